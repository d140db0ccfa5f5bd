//! A directory of manifests in the place of a cluster.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::manifest::{self, Chunk, ManifestError, Source};
use crate::api::{GROUP, GatewaySecretSpec, GatewaySecretStatus};
use crate::registry::{Entry, Registry};

/// Why a directory of manifests is no state to decide from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A document is not readable.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A GatewaySecret has a field that its definition does not allow.
    #[error("{place}: {cause}")]
    GatewaySecret {
        /// `file:line`.
        place: String,
        /// Which field, and what was expected.
        cause: GatewaySecretError,
    },
}

/// Why an object is no readable GatewaySecret.
#[derive(Debug, thiserror::Error)]
#[error("{part} of GatewaySecret {name:?}: {cause}")]
pub struct GatewaySecretError {
    part: &'static str,
    name: String,
    #[source]
    cause: serde_json::Error,
}

/// What a set of manifests says, and what of it could not be read.
#[derive(Debug, Default)]
pub struct Collected {
    /// The GatewaySecrets.
    pub registry: Registry,
    /// Documents that were passed over.
    pub errors: Vec<StoreError>,
}

/// Reads all manifests of a directory.
///
/// # Errors
/// When one cannot be read.
pub fn load(directory: &Path, now: Timestamp) -> Result<Registry, StoreError> {
    let collected = collect(&manifest::open(&[directory.to_owned()])?, "default", now);
    match collected.errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(collected.registry),
    }
}

/// Reads what decisions need to know from sources: GatewaySecrets, and nothing else is kept. An object without a
/// namespace is taken to be in `namespace`.
pub fn collect<'s>(sources: impl IntoIterator<Item = &'s Source>, namespace: &str, now: Timestamp) -> Collected {
    let mut collected = Collected::default();
    let mut objects = Vec::new();
    for source in sources {
        match source.chunks() {
            Ok(chunks) => {
                for chunk in chunks {
                    if let Err(error) = chunk.and_then(|chunk| relevant(&chunk, &mut objects)) {
                        collected.errors.push(error.into());
                    }
                }
            }
            Err(error) => collected.errors.push(error.into()),
        }
    }
    let entries = entries_from(objects, namespace, now);
    collected.errors.extend(entries.1);
    collected.registry = Registry::new(entries.0);
    collected
}

/// Most documents of a large stream are not even parsed here.
fn relevant(chunk: &Chunk, objects: &mut Vec<(String, Value)>) -> Result<(), ManifestError> {
    if !chunk.text.contains(GROUP) {
        return Ok(());
    }
    let Some(document) = chunk.parse()? else { return Ok(()) };
    for object in document.objects().filter(|object| is_gateway_secret(&object.value)) {
        objects.push((object.source, object.value.into_owned()));
    }
    Ok(())
}

/// Whether an object is a GatewaySecret of any version.
pub fn is_gateway_secret(object: &Value) -> bool {
    let group = object["apiVersion"].as_str().and_then(|v| v.split_once('/')).map(|(group, _)| group);
    group == Some(GROUP) && object["kind"] == "GatewaySecret"
}

fn entries_from(objects: Vec<(String, Value)>, namespace: &str, _now: Timestamp) -> (Vec<Entry>, Vec<StoreError>) {
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    for (place, object) in objects {
        match entry(&object, namespace) {
            Ok(entry) => entries.push(entry),
            Err(cause) => errors.push(StoreError::GatewaySecret { place, cause }),
        }
    }
    (entries, errors)
}

/// Reads a GatewaySecret object, with the status that is written in it.
///
/// # Errors
/// When a field is missing or of a wrong type.
pub fn entry(object: &Value, namespace: &str) -> Result<Entry, GatewaySecretError> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let failed = |part| {
        let name = name.clone();
        move |cause| GatewaySecretError { part, name, cause }
    };
    let status = Some(&object["status"]).filter(|status| !status.is_null());
    Ok(Entry {
        namespace: metadata["namespace"].as_str().unwrap_or(namespace).to_owned(),
        created: metadata["creationTimestamp"].as_str().and_then(|time| time.parse().ok()),
        generation: metadata["generation"].as_i64(),
        spec: GatewaySecretSpec::deserialize(&object["spec"]).map_err(failed("spec"))?,
        status: status.map(GatewaySecretStatus::deserialize).transpose().map_err(failed("status"))?.unwrap_or_default(),
        name,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GOOD: &str = "apiVersion: trustspan.dev/v1alpha1\nkind: GatewaySecret\nmetadata: {name: gw, namespace: istio-system}\nspec: {rootSecretName: gw-root}\n";

    #[test]
    fn gateway_secrets_of_a_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("a")).expect("a directory");
        fs::write(directory.path().join("a/gws.yaml"), format!("kind: Other\n---\n{GOOD}")).expect("a file");
        fs::write(directory.path().join("other.yaml"), "a: [unfinished\n").expect("a file");
        let registry = load(directory.path(), Timestamp::UNIX_EPOCH).expect("a registry");
        let [entry] = registry.entries() else { panic!("one entry") };
        assert_eq!((entry.namespace.as_str(), entry.name.as_str()), ("istio-system", "gw"));
        assert_eq!(entry.spec.root_secret_name, "gw-root");
    }

    #[test]
    fn a_wrong_field_is_named_with_its_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = GOOD.replace("{rootSecretName: gw-root}", "{secretName: gw}");
        fs::write(directory.path().join("gws.yaml"), format!("\n{text}")).expect("a file");
        let error = load(directory.path(), Timestamp::UNIX_EPOCH).expect_err("no spec.rootSecretName").to_string();
        assert!(error.ends_with("gws.yaml:2: spec of GatewaySecret \"gw\": missing field `rootSecretName`"), "{error}");
    }
}
