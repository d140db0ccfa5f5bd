//! What a step writes: the whole content of a Secret that the agent keeps.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::kept::metadata;
use super::world::World;
use crate::api::names::{CACERT_SUFFIX, KEPT_FOR, MANAGED_LABEL};
use crate::registry::Entry;
use crate::rotation::next::{PairOf, Step};
use crate::trust::{Certificate, credential};

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
            Step::WriteSibling { trust } => {
                let trust: String = trust.iter().map(Certificate::pem).collect();
                let source = secret(&format!("{}{CACERT_SUFFIX}", entry.root_name()));
                let lists = source.and_then(credential::revocation_lists).map(|lists| ("ca.crl", lists.pem));
                let values = std::iter::once(("ca.crt", trust.as_bytes())).chain(lists);
                Some(Self::new(&format!("{managed}{CACERT_SUFFIX}"), "Opaque", values))
            }
            Step::CopyRoot => {
                let root = secret(entry.root_name())?;
                let type_ = if root.type_.is_empty() { "Opaque" } else { &root.type_ };
                Some(Self::new(managed, type_, root.data.iter().map(|(key, value)| (key.as_str(), value.as_slice()))))
            }
            Step::PromoteIssuer => {
                let spec = &entry.spec;
                let source = secret(spec.client_ca_name())?;
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
