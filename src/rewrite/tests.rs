#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::api::names::UNDO;
use crate::api::{KeyHash, ManagedConfigMap};
use crate::registry::Entry;
use crate::registry::tests::entry;

mod gateways;
mod properties;
mod tls;
mod workloads;

/// Namespace `mesh`: `root` is managed as `gw`, with `ca.crt` at revision 3 and `tls.crt` at revision 5.
/// ConfigMap `cas.trustspan` is managed from `cas`; `early` has no managed ConfigMap yet.
fn gw() -> Entry {
    let mut entry = entry("mesh", "root", "gw");
    entry.spec.clients.ca_config_map_names = vec!["cas".to_owned(), "early".to_owned()];
    entry.status.managed_config_maps = vec![ManagedConfigMap {
        source: "cas".to_owned(),
        name: "cas.trustspan".to_owned(),
        ungranted_namespaces: vec!["ungranted".to_owned()],
    }];
    entry.status.hashes = [("ca.crt", 3), ("tls.crt", 5)].map(|(key, revision)| key_hash(key, revision)).into();
    entry
}

fn key_hash(key: &str, revision: u64) -> (String, KeyHash) {
    (key.to_owned(), KeyHash { sha256: format!("{key}@{revision}"), revision })
}

fn registry() -> Registry {
    Registry::new([gw()])
}

fn unready() -> Registry {
    let mut entry = gw();
    entry.status.conditions.clear();
    Registry::new([entry])
}

/// The registry after `ca.crt` has changed.
fn rotated() -> Registry {
    let mut entry = gw();
    entry.status.hashes.extend([key_hash("ca.crt", 9)]);
    Registry::new([entry])
}

/// Rewrites `object` in namespace `mesh` and applies the patch.
fn after(object: &Value, old: Option<&Value>, registry: &Registry) -> Value {
    patched(object, &outcome(object, old, registry).patch.parse())
}

fn outcome(object: &Value, old: Option<&Value>, registry: &Registry) -> Outcome {
    outcome_in("mesh", object, old, registry)
}

fn outcome_in(namespace: &str, object: &Value, old: Option<&Value>, registry: &Registry) -> Outcome {
    let (object, old) = (Json::from(object), old.map(Json::from));
    let write = Write { kind: Kind::of(&object), namespace, object: &object, old: old.as_ref(), by_agent: false };
    rewrite(&write, registry)
}

fn after_agent(object: &Value, old: &Value, registry: &Registry) -> Value {
    let (json, old) = (Json::from(object), Json::from(old));
    let write = Write { kind: Kind::of(&json), namespace: "mesh", object: &json, old: Some(&old), by_agent: true };
    patched(object, &rewrite(&write, registry).patch.parse())
}

fn undo(object: &Value) -> Option<Undo> {
    super::undo(&Json::from(object))
}

fn patched(object: &Value, patch: &json_patch::Patch) -> Value {
    let mut object = object.clone();
    json_patch::patch(&mut object, patch).unwrap();
    object
}
