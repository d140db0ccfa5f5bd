//! The data of a Secret or ConfigMap that a step writes.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::cluster_state::ClusterState;
use super::owned_objects::{StoredObject, metadata};
use crate::api::SourceKind;
use crate::api::names::{CACERT_SUFFIX, GATEWAY_SECRET, MANAGED_LABEL, managed_config_map_name};
use crate::registry::Entry;
use crate::rotation::planner::{PairOf, Step};
use crate::trust::{Certificate, credential};

/// An object that a step writes. Has no `Debug`: it may hold a private key.
pub(super) struct DesiredObject {
    pub(super) kind: SourceKind,
    /// The object's name: see [`Entry::qualified`].
    pub(super) name: String,
    /// The type of a Secret.
    type_: Option<String>,
    /// Values; those of a Secret are in base64.
    pub(super) data: BTreeMap<String, String>,
}

impl DesiredObject {
    /// The object that a step writes. `None` for a step that writes no data, and if the source was deleted.
    pub(super) fn of(entry: &Entry, state: &ClusterState, step: &Step) -> Option<Self> {
        let secret = |name: &str| state.stored_secret(name).map(|stored| &stored.secret);
        let managed = entry.managed_name();
        match step {
            Step::WriteManaged { trust, pair } => {
                let from = match pair {
                    PairOf::Managed => managed,
                    PairOf::Source => entry.source_name(),
                };
                let pair = credential::serving_pair(secret(from)?)?;
                let trust: String = trust.iter().map(Certificate::pem).collect();
                let values = [("ca.crt", trust.as_bytes()), ("tls.crt", pair.chain), ("tls.key", pair.private_key)];
                Some(Self::new(managed, "kubernetes.io/tls", values))
            }
            Step::WriteSibling { trust } => {
                let trust: String = trust.iter().map(Certificate::pem).collect();
                let source = secret(&format!("{}{CACERT_SUFFIX}", entry.source_name()));
                let lists = source.and_then(credential::revocation_lists).map(|lists| ("ca.crl", lists.pem));
                let values = std::iter::once(("ca.crt", trust.as_bytes())).chain(lists);
                Some(Self::new(&format!("{managed}{CACERT_SUFFIX}"), "Opaque", values))
            }
            Step::WriteConfigMap { source, trust } => {
                let name = managed_config_map_name(source);
                let data = |name: &str| state.stored_config_map(name).map(|stored| &stored.secret);
                // If the source was deleted, the copy keeps its revocation lists.
                let lists = data(source).or_else(|| data(&name)).and_then(credential::revocation_lists);
                let lists = lists.map(|lists| ("ca.crl".to_owned(), String::from_utf8_lossy(lists.pem).into_owned()));
                let trust = ("ca.crt".to_owned(), trust.iter().map(Certificate::pem).collect());
                let data = [trust].into_iter().chain(lists).collect();
                Some(Self { kind: SourceKind::ConfigMap, name, type_: None, data })
            }
            Step::CopySource => {
                let source = secret(entry.source_name())?;
                let type_ = if source.type_.is_empty() { "Opaque" } else { &source.type_ };
                Some(Self::new(managed, type_, source.data.iter().map(|(key, value)| (key.as_str(), value.as_slice()))))
            }
            Step::PromoteIssuer => {
                let source = secret(&entry.client_ca_name())?;
                let keys = ["ca.crt", "tls.crt", "tls.key"].into_iter();
                let values = keys.filter_map(|key| Some((key, source.data.get(key)?.as_slice())));
                Some(Self::new(&entry.issuer_name()?, "kubernetes.io/tls", values))
            }
            Step::Reissue { .. } => None,
        }
    }

    fn new<'a>(name: &str, type_: &str, values: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let encoded = |(key, value): (&str, &[u8])| (key.to_owned(), STANDARD.encode(value));
        let data = values.into_iter().map(encoded).collect();
        Self { kind: SourceKind::Secret, name: name.to_owned(), type_: Some(type_.to_owned()), data }
    }

    /// The object to create.
    pub(super) fn object(&self, entry: &Entry) -> Value {
        let metadata = metadata(entry, &self.name);
        let mut object =
            json!({ "apiVersion": "v1", "kind": self.kind.name(), "metadata": metadata, "data": self.data });
        if let Some(type_) = &self.type_ {
            object["type"] = type_.as_str().into();
        }
        object
    }

    /// The stored object of this name.
    pub(super) fn stored<'s>(&self, state: &'s ClusterState) -> Option<&'s StoredObject> {
        match self.kind {
            SourceKind::Secret => state.stored_secret(&self.name),
            SourceKind::ConfigMap => state.stored_config_map(&self.name),
        }
    }

    /// A stored object with the data replaced; its other labels and annotations stay.
    pub(super) fn update(&self, object: &Value, entry: &Entry) -> Value {
        let mut object = object.clone();
        object["data"] = json!(self.data);
        let metadata = metadata(entry, &self.name);
        for (field, key) in [("labels", MANAGED_LABEL), ("annotations", GATEWAY_SECRET)] {
            object["metadata"][field][key] = metadata[field][key].clone();
        }
        object
    }
}
