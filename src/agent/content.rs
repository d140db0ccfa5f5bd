//! What a step writes: the whole content of a Secret that the agent keeps.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::world::World;
use crate::api::names::{ADOPT, KEPT_FOR, MANAGED_LABEL, journal_name};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::next::{PairOf, Step};
use crate::trust::{Certificate, Secret, credential};

/// Key of the journal's ConfigMap.
pub(super) const JOURNAL_KEY: &str = "journal.json";

/// The content of a Secret. Has no `Debug`: it holds a private key.
pub(super) struct Content {
    /// The Secret's name.
    pub(super) name: String,
    /// Its type.
    type_: String,
    /// Values in base64.
    pub(super) data: BTreeMap<String, String>,
}

impl Content {
    /// What a step writes; `None` for one that writes no Secret, or whose source is gone.
    pub(super) fn of(entry: &Entry, world: &World, step: &Step) -> Option<Self> {
        let secret = |name: &str| world.held(name).map(|held| &held.secret);
        let managed = entry.managed_name();
        match step {
            Step::WriteManaged { trust, pair } => {
                let from = match pair {
                    PairOf::Managed => managed,
                    PairOf::Root => entry.root_name(),
                };
                let pair = credential::serving_pair(secret(from)?)?;
                let trust: String = trust.iter().map(Certificate::pem).collect();
                let values = [("ca.crt", trust.as_bytes()), ("tls.crt", pair.chain), ("tls.key", pair.private_key)];
                Some(Self::new(managed, "kubernetes.io/tls", values))
            }
            Step::CopyRoot => {
                let root = secret(entry.root_name())?;
                let type_ = if root.type_.is_empty() { "Opaque" } else { &root.type_ };
                Some(Self::new(managed, type_, root.data.iter().map(|(key, value)| (key.as_str(), value.as_slice()))))
            }
            Step::PromoteIssuer => {
                let spec = &entry.spec;
                let of_clients = spec.client_ca.as_ref().map(|ca| ca.secret_name.as_str());
                let source = secret(of_clients.or(spec.ca_secret_name.as_deref()).unwrap_or(entry.root_name()))?;
                let keys = ["ca.crt", "tls.crt", "tls.key"].into_iter();
                let values = keys.filter_map(|key| Some((key, source.data.get(key)?.as_slice())));
                Some(Self::new(spec.issuer_secret_name.as_deref()?, "kubernetes.io/tls", values))
            }
            Step::Reissue { .. } => None,
        }
    }

    fn new<'a>(name: &str, type_: &str, values: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let encoded = |(key, value): (&str, &[u8])| (key.to_owned(), STANDARD.encode(value));
        Self { name: name.to_owned(), type_: type_.to_owned(), data: values.into_iter().map(encoded).collect() }
    }

    /// As a new object.
    pub(super) fn object(&self, entry: &Entry) -> Value {
        let metadata = metadata(entry, &self.name);
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": self.type_, "data": self.data })
    }

    /// In the place of what an object holds; its own labels and annotations stay.
    pub(super) fn put_into(&self, object: &Value, entry: &Entry) -> Value {
        let mut object = object.clone();
        object["data"] = json!(self.data);
        for (field, key, value) in [("labels", MANAGED_LABEL, "true"), ("annotations", KEPT_FOR, entry.name.as_str())] {
            object["metadata"][field][key] = value.into();
        }
        object
    }
}

/// The journal as a ConfigMap.
pub(super) fn journal(entry: &Entry, journal: &Journal) -> Value {
    let metadata = metadata(entry, &journal_name(&entry.name));
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { JOURNAL_KEY: journal.to_text() } })
}

/// Reads the journal's ConfigMap. One that is not readable is begun anew: what is in the cluster says what to do, only with
/// longer waits.
pub(super) fn read_journal(entry: &Entry, object: Option<&Value>) -> Journal {
    let text = object.and_then(|object| object["data"][JOURNAL_KEY].as_str());
    text.map_or_else(Journal::default, |text| {
        Journal::from_text(text).unwrap_or_else(|error| {
            tracing::warn!(namespace = entry.namespace, name = entry.name, "journal begun anew: {error}");
            Journal::default()
        })
    })
}

fn metadata(entry: &Entry, name: &str) -> Value {
    json!({
        "namespace": entry.namespace, "name": name,
        "labels": { MANAGED_LABEL: "true" }, "annotations": { KEPT_FOR: entry.name },
    })
}

/// Whether the agent made an object, for this GatewaySecret, or may take it over.
pub(super) fn is_kept_for(object: &Value, entry: &Entry) -> bool {
    let annotations = &object["metadata"]["annotations"];
    annotations[KEPT_FOR] == entry.name.as_str() || annotations[ADOPT] == "true"
}

/// A Secret as it was read. Has no `Debug`: it holds private keys.
pub(super) struct Held {
    /// The object.
    pub(super) object: Value,
    /// The same, decoded.
    pub(super) secret: Secret,
}
