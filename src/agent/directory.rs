//! The same agent on a directory of manifests: what it keeps of a GatewaySecret stands in a file of its own there. Nobody issues
//! anything in a directory: new certificates are written by hand.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::cluster_state::{self, ClusterState};
use super::desired_object::DesiredObject;
use super::owned_objects;
use super::{observed_with, readiness, sentence};
use crate::api::names::{CLIENT_LABEL, KEPT_FOR, journal_name};
use crate::api::{Phase, SourceKind, TrustAnchor};
use crate::registry::{Entry, Registry};
use crate::rotation;
use crate::rotation::planner::{Plan, Step};
use crate::store::directory::{self, StoreError};
use crate::store::manifest::ManifestError;
use crate::trust::{Secret, Severities, bundle, credential};

/// Folder of the files that the agent writes.
const FOLDER: &str = "trustspan";
/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The manifests cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What is written would not be read again.
    #[error("{}: not a folder of its own ({found}). expected none, or one that is no link: linked folders are not read, since links \
             may form a ring. take it away", path.display())]
    NoFolder {
        /// The agent's folder.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// A Secret is somebody else's.
    #[error("Secret {name} stands in another manifest than {}: take it out there", path.display())]
    Foreign {
        /// Its name.
        name: String,
        /// Where it should stand.
        path: PathBuf,
    },
    /// The managed Secret got another name under its users.
    #[error("Secret {former} holds what gateways were given last: who names it would not follow to Secret {managed}. set \
             spec.secretName to {former} again, or, once nothing names that Secret, take it out of {}", path.display())]
    Renamed {
        /// The name under which it stands.
        former: String,
        /// The name that the spec has now.
        managed: String,
        /// Where it stands.
        path: PathBuf,
    },
    /// An object cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
}

/// Keeps the GatewaySecrets of a directory, and never ends. One process for a directory: there is no Lease.
pub async fn keep(dir: PathBuf, severities: Severities) {
    let mut told = String::new();
    loop {
        let (place, severities) = (dir.clone(), severities.clone());
        // A panic is told by its hook.
        let kept = tokio::task::spawn_blocking(move || look(&place, &severities, Timestamp::now())).await;
        match kept {
            Ok(Err(error)) if error.to_string() != told => {
                told = error.to_string();
                tracing::error!("{told}");
            }
            Ok(Ok(())) => told.clear(),
            _ => {}
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Looks once, and does what is to be done.
fn look(dir: &Path, severities: &Severities, now: Timestamp) -> Result<(), DirectoryError> {
    let kept = Manifests::read(dir, severities, now)?;
    // One that cannot be kept holds up no other.
    let results: Vec<_> = kept.registry.entries().iter().map(|entry| kept.keep(entry, now)).collect();
    results.into_iter().collect()
}

/// The GatewaySecrets of a directory as webhooks beside the agent see them: with what clients are to trust.
///
/// # Errors
/// When the manifests cannot be read.
pub fn load(dir: &Path, severities: &Severities, now: Timestamp) -> Result<Registry, DirectoryError> {
    let kept = Manifests::read(dir, severities, now)?;
    let entries: Vec<_> = kept.registry.entries().iter().map(|entry| told(entry, &kept.world(entry, now))).collect();
    Ok(Registry::new(entries))
}

/// The GatewaySecrets of a directory with the status that the agent would report.
///
/// # Errors
/// When the manifests cannot be read.
pub fn report(dir: &Path, now: Timestamp) -> Result<Vec<Entry>, DirectoryError> {
    let kept = Manifests::read(dir, &Severities::default(), now)?;
    let reported = kept.registry.entries().iter().map(|entry| {
        let world = kept.world(entry, now);
        let entry = &told(entry, &world);
        let plan = rotation::planner::plan(&world.seen(entry), &world.journal, now);
        let status = observed_with(entry, world.held_objects().chain(&kept.objects), now);
        let mut status = rotation::report(entry, &plan, status, now);
        readiness::report(entry, &world, &plan, &mut status, now);
        // Nobody writes down when a phase began; and what is not written yet is nothing that was reached.
        status.phase_since = None;
        if plan.steps.iter().any(|step| !matches!(step, Step::Reissue { .. })) {
            status.phase = Some(Phase::Pending);
        }
        Entry { status, ..entry.clone() }
    });
    Ok(reported.collect())
}

/// A GatewaySecret with the clients' bundle in its status: nobody else needs to hear of it than reads the journal.
fn told(entry: &Entry, world: &ClusterState) -> Entry {
    let journal = &world.journal;
    let last = || journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    let bundle = if journal.offered.is_empty() { last() } else { &journal.offered };
    let mut entry = entry.clone();
    entry.status.client_bundle = bundle.iter().map(TrustAnchor::from).collect();
    entry
}

/// What a directory holds.
struct Manifests {
    dir: PathBuf,
    registry: Registry,
    objects: Vec<Value>,
}

impl Manifests {
    fn read(dir: &Path, severities: &Severities, now: Timestamp) -> Result<Self, DirectoryError> {
        let registry = directory::load(dir, severities, now)?;
        let objects = directory::objects(dir)?;
        Ok(Self { dir: dir.to_owned(), registry, objects })
    }

    fn world(&self, entry: &Entry, now: Timestamp) -> ClusterState {
        let of_kind = |kind: &'static str| self.objects.iter().filter(move |object| object["kind"] == kind);
        let name = |object: &Value| cluster_state::qualified(entry, object);
        let names = cluster_state::names(entry);
        let is_client = |object: &Value| {
            let name = name(object);
            let label = object["metadata"]["labels"][CLIENT_LABEL].as_str();
            label.is_some_and(|label| entry.has_client(entry.place_of(&name).0, label))
                && entry.canary_name() != Some(&name)
        };
        let journal = of_kind("ConfigMap").find(|object| name(object) == journal_name(&entry.name));
        let config_maps = cluster_state::config_map_names(entry);
        let with_cas = of_kind("ConfigMap").filter(|object| config_maps.contains(&name(object)));
        let counts = |object: &&Value| names.contains(&name(object)) || is_client(object);
        let mut world =
            ClusterState::of(entry, of_kind("Secret").filter(counts).cloned(), with_cas.cloned(), journal, now);
        let named = |object: &&Value| is_client(object) || entry.spec.clients.secret_names.contains(&name(object));
        world.declare(of_kind("Secret").filter(named).map(name));
        world.read_from(entry, &self.objects);
        world
    }

    fn keep(&self, entry: &Entry, now: Timestamp) -> Result<(), DirectoryError> {
        if self.registry.conflict(entry).is_some() {
            return Ok(());
        }
        let world = self.world(entry, now);
        if let Some(former) = self.left_behind(entry, &world) {
            let (managed, path) = (entry.managed_name().to_owned(), self.file(entry, ""));
            return Err(DirectoryError::Renamed { former, managed, path });
        }
        let entry = &told(entry, &world);
        let plan = rotation::planner::plan(&world.seen(entry), &world.journal, now);
        if plan.steps.is_empty() && plan.journal == world.journal {
            return Ok(());
        }
        // First what is remembered. In a file of its own: whoever deletes the other loses no trust by that.
        self.write(&self.file(entry, "journal."), &[owned_objects::journal(entry, &plan.journal)])?;
        if !plan.steps.is_empty() {
            self.write(&self.file(entry, ""), &self.written(entry, &world, &plan)?)?;
        }
        for step in &plan.steps {
            tracing::info!(namespace = entry.namespace, name = entry.name, "{}", sentence(step));
        }
        Ok(())
    }

    /// What the agent's file is to hold.
    fn written(&self, entry: &Entry, world: &ClusterState, plan: &Plan) -> Result<Vec<Value>, DirectoryError> {
        let mut objects = self.former(entry);
        let contents: Vec<_> = plan.steps.iter().filter_map(|step| DesiredObject::of(entry, world, step)).collect();
        let secrets = owned_objects::written_names(entry).into_iter().map(|name| (SourceKind::Secret, name));
        let config_maps =
            owned_objects::written_config_maps(entry).into_iter().map(|name| (SourceKind::ConfigMap, name));
        for (kind, name) in secrets.chain(config_maps) {
            let held = match kind {
                SourceKind::Secret => world.held(&name),
                SourceKind::ConfigMap => world.held_config_map(&name),
            };
            let held = held.map(|held| &held.object);
            let content = contents.iter().find(|content| content.kind == kind && content.name == name);
            if held.is_some_and(|held| !owned_objects::is_kept_for(held, entry)) && content.is_some() {
                return Err(DirectoryError::Foreign { name, path: self.file(entry, "") });
            }
            let ours = held.filter(|held| owned_objects::is_kept_for(held, entry)).cloned();
            objects.extend(content.map(|content| content.object(entry)).or(ours));
        }
        Ok(objects)
    }

    /// What it kept under a former name: Gateways may still use it.
    fn former(&self, entry: &Entry) -> Vec<Value> {
        let secrets = owned_objects::written_names(entry);
        let mut config_maps = owned_objects::written_config_maps(entry);
        // In a file of its own.
        config_maps.push(journal_name(&entry.name));
        let is_former = |object: &&Value| {
            let metadata = &object["metadata"];
            let names = match object["kind"].as_str() {
                Some("Secret") => &secrets,
                Some("ConfigMap") => &config_maps,
                _ => return false,
            };
            let namespace = metadata["namespace"].as_str().unwrap_or("default");
            metadata["annotations"][KEPT_FOR] == entry.name_in(namespace).as_str()
                && !names.contains(&cluster_state::qualified(entry, object))
        };
        self.objects.iter().filter(is_former).cloned().collect()
    }

    /// The managed Secret, where it stands under a former name: what gateways were given last tells it from the Issuer's.
    fn left_behind(&self, entry: &Entry, world: &ClusterState) -> Option<String> {
        let given = world.journal.gateways.last().filter(|_| world.held(entry.managed_name()).is_none())?;
        let holds = |secret: &Secret| {
            let pair = credential::serving_pair(secret);
            pair.is_some_and(|pair| bundle::read_chain(pair.chain).into_certificates() == given.chain)
        };
        let former = self.former(entry).into_iter().filter_map(|object| Secret::from_value(&object).ok());
        former.filter(holds).map(|secret| secret.name.clone()).next()
    }

    fn file(&self, entry: &Entry, part: &str) -> PathBuf {
        self.dir.join(FOLDER).join(format!("{}.{}.{part}yaml", entry.namespace, entry.name))
    }

    /// A journal that is written and not read again would begin anew at each look.
    fn is_folder_ours(&self) -> Result<(), DirectoryError> {
        let path = self.dir.join(FOLDER);
        let found = match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => "a symbolic link",
            Ok(found) if !found.is_dir() => "a file",
            // What else is against it the write tells.
            _ => return Ok(()),
        };
        Err(DirectoryError::NoFolder { path, found })
    }

    /// Replaces a file of the agent in one move. It may hold private keys: nobody else may read it.
    fn write(&self, path: &Path, objects: &[Value]) -> Result<(), DirectoryError> {
        let mut text = "# Kept by trustspan: changes are undone.\n".to_owned();
        for object in objects {
            text += &format!("---\n{}", serde_saphyr::to_string(object)?);
        }
        self.is_folder_ours()?;
        let unnamed = path.with_extension("new");
        let replace = || {
            fs::create_dir_all(self.dir.join(FOLDER))?;
            let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unnamed)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unnamed, path)
        };
        replace().map_err(|source| DirectoryError::Write { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests;
