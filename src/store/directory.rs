//! Reads GatewaySecrets, and the objects that they depend on, from manifests.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::manifest::{self, Document, ManifestError, Object, Source};
use crate::api::names::GATEWAY_SECRET;
use crate::api::{
    GROUP, GatewaySecretSpec, GatewaySecretStatus, Kind, RotationPolicySpec, TrustConsumerSpec, WorkloadKind,
    with_short_quotes,
};
use crate::registry::{CertManagerObjects, Entry, Policies, Registry};
use crate::rotation::{Inventory, Outlook};
use crate::trust::Severities;

/// Why manifests cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A document cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A TrustConsumer does not match its schema.
    #[error("{location}: spec of TrustConsumer {name:?}: {cause}")]
    TrustConsumer {
        /// `file:line`.
        location: String,
        /// Its name.
        name: String,
        /// serde's message, with quoted values shortened.
        cause: String,
    },
    /// A GatewaySecret does not match its schema.
    #[error("{location}: {cause}")]
    GatewaySecret {
        /// `file:line`.
        location: String,
        /// The field, and what was expected.
        cause: GatewaySecretError,
    },
}

/// Why an object is not a valid GatewaySecret.
#[derive(Debug, thiserror::Error)]
#[error("{part} of GatewaySecret {name:?}: {cause}")]
pub struct GatewaySecretError {
    part: &'static str,
    name: String,
    /// serde's message, with quoted values shortened.
    cause: String,
}

/// The result of [`collect`].
#[derive(Debug, Default)]
pub struct Collected {
    /// The GatewaySecrets, with what the other objects say about them.
    pub inventory: Inventory,
    /// Why GatewaySecrets were skipped.
    pub errors: Vec<StoreError>,
    /// Other documents that could not be read. A second pass over the sources reports them again.
    pub unreadable: Vec<ManifestError>,
}

/// Reads all manifests of directories.
///
/// # Errors
/// When one cannot be read.
pub fn load(directories: &[PathBuf], severities: &Severities, now: Timestamp) -> Result<Registry, StoreError> {
    let sources = manifest::open(directories)?;
    let collected = collect(&sources, "default", severities, now);
    match collected.errors.into_iter().chain(collected.unreadable.into_iter().map(StoreError::from)).next() {
        Some(error) => Err(error),
        None => Ok(collected.inventory.into_registry(Outlook::Whole, now)),
    }
}

/// Reads GatewaySecrets, and then the objects that they depend on: the sources are read twice. Memory grows with GatewaySecrets and
/// Gateways, not with the sources. `namespace` is that of objects without one; `severities` are the cluster-wide severities.
pub fn collect<'s>(
    sources: impl IntoIterator<Item = &'s Source, IntoIter: Clone>,
    namespace: &str,
    severities: &Severities,
    now: Timestamp,
) -> Collected {
    let sources = sources.into_iter();
    let mut errors = Vec::new();
    let mut entries = Vec::new();
    let (mut policies, mut cert_manager) = (Policies::default(), CertManagerObjects::default());
    let read = each(sources.clone(), &[GROUP, "cert-manager.io"], |object| {
        policies.take(&object.value, namespace);
        cert_manager.take(&object.value, namespace);
        if is_gateway_secret(&object.value) {
            match entry(&object.value, namespace) {
                Ok(entry) => entries.push((entry, object.source())),
                Err(cause) => errors.push(StoreError::GatewaySecret { location: object.source(), cause }),
            }
        }
    });
    errors.extend(read.into_iter().map(StoreError::from));
    let entries = entries.into_iter().filter_map(|(mut entry, location)| {
        match policies.policy(&entry.namespace, entry.spec.policy_name()) {
            Ok(policy) => entry.policy = policy,
            Err(cause) => {
                let part = "policy";
                let cause = GatewaySecretError { part, name: entry.name, cause: with_short_quotes(&cause.to_string()) };
                errors.push(StoreError::GatewaySecret { location, cause });
                return None;
            }
        }
        // Without its Certificate among the manifests, the source Secret stays unknown.
        entry.resolved = cert_manager.resolve(&entry).unwrap_or(entry.resolved);
        Some(entry)
    });
    let entries: Vec<_> = entries.collect();
    let mut inventory = Inventory::new(entries).with_severities(severities.clone());
    let observed: Vec<_> = OBSERVED.into_iter().chain(WorkloadKind::NAMES).collect();
    let unreadable = each(sources, &observed, |object| inventory.take(&object.value, namespace, now));
    Collected { inventory, errors, unreadable }
}

/// A TrustConsumer: its namespace, its name, and its spec.
pub type DeclaredConsumer = (String, String, TrustConsumerSpec);

/// Reads TrustConsumers. `namespace` is that of objects without one.
///
/// # Errors
/// When one does not match its schema, or a document cannot be read.
pub fn trust_consumers<'s>(
    sources: impl IntoIterator<Item = &'s Source>,
    namespace: &str,
) -> Result<Vec<DeclaredConsumer>, StoreError> {
    let (mut consumers, mut errors) = (Vec::new(), Vec::new());
    let unreadable = each(sources.into_iter(), &[GROUP], |object| {
        let kind = Kind::of_value(&object.value);
        if (kind.group, kind.kind) != (GROUP, "TrustConsumer") {
            return;
        }
        let text = |field: &str| object.value["metadata"][field].as_str();
        let name = text("name").unwrap_or_default().to_owned();
        match TrustConsumerSpec::deserialize(&object.value["spec"]) {
            Ok(spec) => consumers.push((text("namespace").unwrap_or(namespace).to_owned(), name, spec)),
            Err(cause) => {
                let cause = with_short_quotes(&cause.to_string());
                errors.push(StoreError::TrustConsumer { location: object.source(), name, cause });
            }
        }
    });
    match errors.into_iter().chain(unreadable.into_iter().map(StoreError::from)).next() {
        Some(error) => Err(error),
        None => Ok(consumers),
    }
}

/// A document without any of these words, or the kind of a workload, contains no object that an [`Inventory`] uses.
const OBSERVED: [&str; 8] =
    ["ReferenceGrant", "Secret", "Gateway", "ListenerSet", "DestinationRule", "Namespace", "Pod", GATEWAY_SECRET];

/// Visits the objects of all documents that contain one of the words; most documents of a large stream are not
/// parsed. Returns the errors.
fn each<'s>(
    sources: impl Iterator<Item = &'s Source>,
    words: &[&str],
    mut visit: impl FnMut(&Object<'_>),
) -> Vec<ManifestError> {
    let mut errors = Vec::new();
    for source in sources {
        let mut read = || -> Result<(), ManifestError> {
            for chunk in source.chunks()? {
                let chunk = chunk?;
                if !words.iter().any(|word| chunk.text.contains(word)) {
                    continue;
                }
                match chunk.parse() {
                    Ok(document) => {
                        let objects = document.iter().flat_map(Document::objects);
                        objects.for_each(|object| visit(&object));
                    }
                    // The next documents are still read.
                    Err(error) => errors.push(error),
                }
            }
            Ok(())
        };
        if let Err(error) = read() {
            errors.push(error);
        }
    }
    errors
}

/// All objects of directories, in memory.
///
/// # Errors
/// When one cannot be read.
pub fn objects(directories: &[PathBuf]) -> Result<Vec<Value>, ManifestError> {
    let mut objects = Vec::new();
    for source in manifest::open(directories)? {
        for chunk in source.chunks()? {
            let chunk = chunk?;
            let document = chunk.parse()?;
            objects.extend(document.iter().flat_map(Document::objects).map(|object| object.value.into_owned()));
        }
    }
    Ok(objects)
}

/// Whether an object is a GatewaySecret, of any version.
pub fn is_gateway_secret(object: &Value) -> bool {
    let group = object["apiVersion"].as_str().and_then(|v| v.split_once('/')).map(|(group, _)| group);
    group == Some(GROUP) && object["kind"] == "GatewaySecret"
}

/// Parses a GatewaySecret with its status.
///
/// # Errors
/// When a field is missing or has a wrong type.
pub fn entry(object: &Value, namespace: &str) -> Result<Entry, GatewaySecretError> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let failed = |part| {
        let name = name.clone();
        move |cause: serde_json::Error| GatewaySecretError { part, name, cause: with_short_quotes(&cause.to_string()) }
    };
    let spec = GatewaySecretSpec::deserialize(&object["spec"]).map_err(failed("spec"))?;
    let status = Some(&object["status"]).filter(|status| !status.is_null());
    let status: GatewaySecretStatus =
        status.map(GatewaySecretStatus::deserialize).transpose().map_err(failed("status"))?.unwrap_or_default();
    Ok(Entry {
        namespace: metadata["namespace"].as_str().unwrap_or(namespace).to_owned(),
        uid: metadata["uid"].as_str().map(str::to_owned),
        created: metadata["creationTimestamp"].as_str().and_then(|time| time.parse().ok()),
        generation: metadata["generation"].as_i64(),
        being_deleted: metadata["deletionTimestamp"].is_string(),
        unread: None,
        resolved: spec.resolved(status.resolved.as_ref()),
        policy: RotationPolicySpec::default(),
        spec,
        status,
        name,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = "apiVersion: trustspan.dev/v1alpha1\nkind: GatewaySecret\nmetadata: {name: gw, namespace: istio-system}\nspec: {sourceSecretName: gw-root}\n";

    #[test]
    fn reads_gateway_secrets_of_a_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("a")).expect("a directory");
        fs::write(directory.path().join("a/gws.yaml"), format!("kind: Other\n---\n{GOOD}")).expect("a file");
        fs::write(directory.path().join("other.yaml"), "kind: Secret\na: [unfinished\n").expect("a file");
        let directories = [directory.path().to_owned()];
        let read = || load(&directories, &Severities::default(), Timestamp::UNIX_EPOCH);
        let error = read().expect_err("unfinished").to_string();
        assert!(error.contains("other.yaml:"), "{error}");
        fs::remove_file(directory.path().join("other.yaml")).expect("a file");
        let registry = read().expect("a registry");
        let [entry] = registry.entries() else { panic!("one entry") };
        assert_eq!((entry.namespace.as_str(), entry.name.as_str()), ("istio-system", "gw"));
        assert_eq!(entry.resolved.source_secret_name, "gw-root");
    }

    #[test]
    fn errors_name_the_file_the_line_and_the_field() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = GOOD.replace("gw-root}", "gw-root, mode: Other}");
        fs::write(directory.path().join("gws.yaml"), format!("\n{text}")).expect("a file");
        let directories = [directory.path().to_owned()];
        let error =
            load(&directories, &Severities::default(), Timestamp::UNIX_EPOCH).expect_err("no such mode").to_string();
        assert!(error.contains("gws.yaml:2: spec of GatewaySecret \"gw\": unknown variant `Other`"), "{error}");
    }
}
