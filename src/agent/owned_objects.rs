//! The objects that the agent creates and updates for a GatewaySecret.

use serde_json::{Value, json};

use crate::api::names::{ADOPT, CACERT_SUFFIX, GATEWAY_SECRET, MANAGED_LABEL, journal_name, managed_config_map_name};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::trust::Secret;

/// The ConfigMaps with CAs that the agent writes.
pub(super) fn written_config_maps(entry: &Entry) -> Vec<String> {
    entry.spec.clients.ca_config_map_names.iter().map(|name| managed_config_map_name(name)).collect()
}

/// The Secrets that the agent writes.
pub(super) fn written_names(entry: &Entry) -> Vec<String> {
    let sibling = format!("{}{CACERT_SUFFIX}", entry.managed_name());
    [Some(entry.managed_name().to_owned()), Some(sibling), entry.issuer_name()].into_iter().flatten().collect()
}

/// Key of the journal's ConfigMap.
const JOURNAL_KEY: &str = "journal.json";

/// The journal as a ConfigMap.
pub(super) fn journal_config_map(entry: &Entry, journal: &Journal) -> Value {
    let metadata = metadata(entry, &journal_name(&entry.name));
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { JOURNAL_KEY: journal.to_text() } })
}

/// Reads the journal's ConfigMap. An unreadable one is replaced by an empty journal: the state of the cluster still determines the next
/// steps, after longer waits.
pub(super) fn read_journal(entry: &Entry, object: Option<&Value>) -> Journal {
    let text = object.and_then(|object| object["data"][JOURNAL_KEY].as_str());
    text.map_or_else(Journal::default, |text| {
        Journal::from_text(text).unwrap_or_else(|error| {
            tracing::warn!(
                namespace = entry.namespace,
                name = entry.name,
                "journal unreadable, starting with an empty one: {error}"
            );
            Journal::default()
        })
    })
}

/// The metadata of an owned object.
pub(super) fn metadata(entry: &Entry, name: &str) -> Value {
    let (namespace, name) = entry.place_of(name);
    json!({
        "namespace": namespace, "name": name,
        "labels": { MANAGED_LABEL: "true" }, "annotations": { GATEWAY_SECRET: entry.name_in(namespace) },
    })
}

/// Whether the agent created an object for this GatewaySecret, or may adopt it. An object in another namespace must name the
/// GatewaySecret: otherwise any tenant's GatewaySecret could claim it.
pub(super) fn is_owned_by(object: &Value, entry: &Entry) -> bool {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    let annotations = &metadata["annotations"];
    annotations[GATEWAY_SECRET] == entry.name_in(namespace).as_str()
        || annotations[ADOPT] == adopt_value(entry, namespace).as_str()
}

/// The value of annotation `trustspan.dev/adopt` that lets the agent adopt an object of a namespace.
pub(super) fn adopt_value(entry: &Entry, namespace: &str) -> String {
    if namespace == entry.namespace { "true".to_owned() } else { entry.name_in(namespace) }
}

/// A Secret from the cluster. Has no `Debug`: it holds private keys.
pub(super) struct StoredObject {
    pub(super) object: Value,
    /// The object, decoded.
    pub(super) secret: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::entry;

    #[test]
    fn objects_in_other_namespaces_must_name_their_gateway_secret() {
        let is_owned = |namespace: &str, key: &str, value: &str| {
            let object = json!({ "metadata": { "namespace": namespace, "annotations": { key: value } } });
            is_owned_by(&object, &entry("mesh", "root", "gw"))
        };
        for (namespace, key, value, expected) in [
            ("mesh", GATEWAY_SECRET, "gw", true),
            ("mesh", ADOPT, "true", true),
            ("cert-manager", GATEWAY_SECRET, "mesh/gw", true),
            ("cert-manager", ADOPT, "mesh/gw", true),
            ("cert-manager", GATEWAY_SECRET, "gw", false),
            ("cert-manager", ADOPT, "true", false),
            ("cert-manager", ADOPT, "evil/gw", false),
        ] {
            assert_eq!(is_owned(namespace, key, value), expected, "{key}: {value} in {namespace}");
        }
    }
}
