//! The controller on a directory of manifests. It writes the owned objects of each GatewaySecret to a file of the state directory. A person adds new
//! certificates to the manifests.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::cluster_state::{self, ClusterState};
use super::desired_object::DesiredObject;
use super::owned_objects;
use super::state_directory::{Directories, StateDirectoryError, StateLock};
use super::{describe, observe_status, readiness};
use crate::api::names::{CLIENT_LABEL, GATEWAY_SECRET, journal_name};
use crate::api::{Phase, SourceKind, TrustAnchor};
use crate::registry::{Entry, Registry};
use crate::rotation;
use crate::rotation::planner::{Plan, Step};
use crate::store::atomic_file;
use crate::store::directory::{self, StoreError};
use crate::store::manifest::ManifestError;
use crate::trust::{Secret, Severities, bundle, credential};

/// Time between two reconciles.
const INTERVAL: Duration = Duration::from_millis(500);

/// Why a reconcile failed.
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
        /// The cause.
        source: std::io::Error,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateDirectoryError),
    /// Another manifest contains an owned object.
    #[error("{name} is in another manifest, expected only in {}: remove it there", path.display())]
    Foreign {
        /// Its kind and name.
        name: String,
        /// The agent's file.
        path: PathBuf,
    },
    /// The managed Secret was renamed while it is in use.
    #[error("Secret {stored_name} is in use, and what names it would not switch to Secret {managed}: set spec.secretName to {stored_name} again, or \
             remove that Secret from {} when nothing names it any more", path.display())]
    Renamed {
        /// The stored Secret's name.
        stored_name: String,
        /// The name in the spec.
        managed: String,
        /// The agent's file.
        path: PathBuf,
    },
    /// An object cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
}

/// Reconciles the GatewaySecrets of a directory forever. The lock replaces the Lease.
pub async fn run(directories: Directories, _lock: StateLock, severities: Severities) {
    let mut last_error = String::new();
    loop {
        let (directories, severities) = (directories.clone(), severities.clone());
        // The panic hook reports a panic.
        let outcome = tokio::task::spawn_blocking(move || reconcile(&directories, &severities, Timestamp::now())).await;
        match outcome {
            Ok(Err(error)) if error.to_string() != last_error => {
                last_error = error.to_string();
                tracing::error!("{last_error}");
            }
            Ok(Ok(())) => last_error.clear(),
            _ => {}
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reconciles all GatewaySecrets once.
fn reconcile(directories: &Directories, severities: &Severities, now: Timestamp) -> Result<(), DirectoryError> {
    let manifests = Manifests::read(directories, severities, now)?;
    // An error of one does not block the others.
    let entries = manifests.registry.entries().iter();
    let results: Vec<_> = entries.map(|entry| manifests.reconcile(entry, now)).collect();
    results.into_iter().collect()
}

/// The GatewaySecrets of a directory as the webhooks of the same process use them: with the clients' bundle in their status.
///
/// # Errors
/// When the manifests cannot be read.
pub fn load(directories: &Directories, severities: &Severities, now: Timestamp) -> Result<Registry, DirectoryError> {
    let manifests = Manifests::read(directories, severities, now)?;
    let entries = manifests.registry.entries().iter();
    Ok(Registry::new(entries.map(|entry| with_client_bundle(entry, &manifests.cluster_state(entry, now)))))
}

/// The GatewaySecrets of a directory with the status that the agent would report.
///
/// # Errors
/// When the manifests cannot be read.
pub fn report(directories: &Directories, now: Timestamp) -> Result<Vec<Entry>, DirectoryError> {
    let manifests = Manifests::read(directories, &Severities::default(), now)?;
    let reported = manifests.registry.entries().iter().map(|entry| {
        let state = manifests.cluster_state(entry, now);
        let entry = &with_client_bundle(entry, &state);
        let plan = rotation::planner::plan(&state.snapshot(entry), &state.journal, now);
        let status = observe_status(entry.clone(), state.stored_objects().chain(&manifests.objects), now);
        let mut status = rotation::report(entry, &plan, status, now);
        readiness::report(entry, &state, &plan, &mut status, now);
        // The status is not stored, so the start of the phase is unknown. A phase is reached once its steps are written.
        status.phase_since = None;
        if plan.steps.iter().any(|step| !matches!(step, Step::Reissue { .. })) {
            status.phase = Some(Phase::Pending);
        }
        Entry { status, ..entry.clone() }
    });
    Ok(reported.collect())
}

/// A GatewaySecret with the clients' bundle in its status. On a cluster the webhooks wait for the stored status.
fn with_client_bundle(entry: &Entry, state: &ClusterState) -> Entry {
    let journal = &state.journal;
    let last = || journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    let bundle = if journal.offered.is_empty() { last() } else { &journal.offered };
    let mut entry = entry.clone();
    entry.status.client_bundle = bundle.iter().map(TrustAnchor::from).collect();
    entry
}

/// The manifests of a directory, and the objects that the controller wrote for them.
struct Manifests {
    directories: Directories,
    registry: Registry,
    objects: Vec<Value>,
}

impl Manifests {
    fn read(directories: &Directories, severities: &Severities, now: Timestamp) -> Result<Self, DirectoryError> {
        let readable = directories.readable();
        let registry = directory::load(&readable, severities, now)?;
        let objects = directory::objects(&readable)?;
        Ok(Self { directories: directories.clone(), registry, objects })
    }

    fn cluster_state(&self, entry: &Entry, now: Timestamp) -> ClusterState {
        let of_kind = |kind: &'static str| self.objects.iter().filter(move |object| object["kind"] == kind);
        let name = |object: &Value| cluster_state::qualified(entry, object);
        let names = cluster_state::secret_names(entry);
        let is_client = |object: &Value| {
            let name = name(object);
            let label = object["metadata"]["labels"][CLIENT_LABEL].as_str();
            label.is_some_and(|label| entry.has_client(entry.place_of(&name).0, label))
                && entry.canary_name() != Some(&name)
        };
        let journal = of_kind("ConfigMap").find(|object| name(object) == journal_name(&entry.name));
        let config_maps = cluster_state::config_map_names(entry);
        let ca_config_maps = of_kind("ConfigMap").filter(|object| config_maps.contains(&name(object)));
        let is_read = |object: &&Value| names.contains(&name(object)) || is_client(object);
        let secrets = of_kind("Secret").filter(is_read).cloned();
        let mut state = ClusterState::from_objects(entry, secrets, ca_config_maps.cloned(), journal, now);
        let is_declared =
            |object: &&Value| is_client(object) || entry.spec.clients.secret_names.contains(&name(object));
        state.declare_clients(of_kind("Secret").filter(is_declared).map(name));
        state.read_gateways(entry, &self.objects);
        state
    }

    fn reconcile(&self, entry: &Entry, now: Timestamp) -> Result<(), DirectoryError> {
        if self.registry.conflict(entry).is_some() {
            return Ok(());
        }
        let state = self.cluster_state(entry, now);
        if let Some(stored_name) = self.left_behind(entry, &state) {
            let (managed, path) = (entry.managed_name().to_owned(), self.file(entry, ""));
            return Err(DirectoryError::Renamed { stored_name, managed, path });
        }
        let entry = &with_client_bundle(entry, &state);
        let plan = rotation::planner::plan(&state.snapshot(entry), &state.journal, now);
        if plan.steps.is_empty() && plan.journal == state.journal {
            return Ok(());
        }
        // The journal is written first, and to another file: deleting the objects' file then loses no history.
        self.write(self.file(entry, "journal."), &[owned_objects::journal_config_map(entry, &plan.journal)])?;
        if !plan.steps.is_empty() {
            self.write(self.file(entry, ""), &self.desired_objects(entry, &state, &plan)?)?;
        }
        for step in &plan.steps {
            tracing::info!(namespace = entry.namespace, name = entry.name, "{}", describe(step));
        }
        Ok(())
    }

    /// The objects of the agent's file, after the plan's steps.
    fn desired_objects(&self, entry: &Entry, state: &ClusterState, plan: &Plan) -> Result<Vec<Value>, DirectoryError> {
        let mut objects = self.renamed_objects(entry);
        let desired: Vec<_> = plan.steps.iter().filter_map(|step| DesiredObject::of(entry, state, step)).collect();
        let secrets = owned_objects::written_names(entry).into_iter().map(|name| (SourceKind::Secret, name));
        let config_maps =
            owned_objects::written_config_maps(entry).into_iter().map(|name| (SourceKind::ConfigMap, name));
        for (kind, name) in secrets.chain(config_maps) {
            let stored = match kind {
                SourceKind::Secret => state.stored_secret(&name),
                SourceKind::ConfigMap => state.stored_config_map(&name),
            };
            let stored = stored.map(|stored| &stored.object);
            let new = desired.iter().find(|object| object.kind == kind && object.name == name);
            if stored.is_some_and(|stored| !owned_objects::is_owned_by(stored, entry)) && new.is_some() {
                let name = format!("{} {name}", kind.name());
                return Err(DirectoryError::Foreign { name, path: self.file(entry, "") });
            }
            let owned = stored.filter(|stored| owned_objects::is_owned_by(stored, entry)).cloned();
            objects.extend(new.map(|object| object.object(entry)).or(owned));
        }
        Ok(objects)
    }

    /// Objects owned under an earlier name, which Gateways may still use.
    fn renamed_objects(&self, entry: &Entry) -> Vec<Value> {
        let secrets = owned_objects::written_names(entry);
        let mut config_maps = owned_objects::written_config_maps(entry);
        // The journal has its own file.
        config_maps.push(journal_name(&entry.name));
        let is_renamed = |object: &&Value| {
            let metadata = &object["metadata"];
            let names = match object["kind"].as_str() {
                Some("Secret") => &secrets,
                Some("ConfigMap") => &config_maps,
                _ => return false,
            };
            let namespace = metadata["namespace"].as_str().unwrap_or("default");
            metadata["annotations"][GATEWAY_SECRET] == entry.name_in(namespace).as_str()
                && !names.contains(&cluster_state::qualified(entry, object))
        };
        self.objects.iter().filter(is_renamed).cloned().collect()
    }

    /// The earlier name of the managed Secret, found by the serving certificate that the journal has last.
    fn left_behind(&self, entry: &Entry, state: &ClusterState) -> Option<String> {
        let last = state.journal.gateways.last().filter(|_| state.stored_secret(entry.managed_name()).is_none())?;
        let is_managed = |secret: &Secret| {
            let pair = credential::serving_pair(secret);
            pair.is_some_and(|pair| bundle::read_chain(pair.chain).into_certificates() == last.chain)
        };
        let secrets = self.renamed_objects(entry).into_iter().filter_map(|object| Secret::from_value(&object).ok());
        secrets.filter(is_managed).map(|secret| secret.name.clone()).next()
    }

    fn file(&self, entry: &Entry, part: &str) -> PathBuf {
        self.directories.state().join(format!("{}.{}.{part}yaml", entry.namespace, entry.name))
    }

    /// Replaces a file of the agent atomically. Only its owner can read it, since it may contain private keys.
    fn write(&self, path: PathBuf, objects: &[Value]) -> Result<(), DirectoryError> {
        let mut text = "# Written by trustspan: changes are overwritten.\n".to_owned();
        for object in objects {
            text += &format!("---\n{}", serde_saphyr::to_string(object)?);
        }
        // The directory may have been deleted since the last write.
        let created = self.directories.create();
        let written = created.and_then(|()| atomic_file::replace(&path, text.as_bytes(), 0o600));
        written.map_err(|source| DirectoryError::Write { path, source })
    }
}

#[cfg(test)]
mod tests;
