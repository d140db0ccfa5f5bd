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

/// The revocation lists of the managed Secret: those of the source Secret. If that has no key for them, those that the managed Secret has, such as
/// from before it was taken over.
fn managed_lists(entry: &Entry, state: &ClusterState) -> Option<Vec<u8>> {
    let secret = |name: &str| state.stored_secret(name).map(|stored| &stored.secret);
    let source = secret(entry.source_name());
    match source.and_then(credential::all_revocation_lists) {
        None if source.is_some_and(credential::has_no_revocation_lists) => None,
        None => secret(entry.managed_name()).and_then(credential::all_revocation_lists),
        lists => lists,
    }
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
                let lists = managed_lists(entry, state);
                let values = [("ca.crt", trust.as_bytes()), ("tls.crt", pair.chain), ("tls.key", pair.private_key)];
                let values = values.into_iter().chain(lists.as_deref().map(|lists| ("ca.crl", lists)));
                Some(Self::new(managed, "kubernetes.io/tls", values))
            }
            Step::WriteSibling { trust } => {
                let trust: String = trust.iter().map(Certificate::pem).collect();
                let source = secret(&format!("{}{CACERT_SUFFIX}", entry.source_name()));
                let lists = source.and_then(credential::all_revocation_lists);
                let lists = lists.as_deref().map(|lists| ("ca.crl", lists));
                let values = std::iter::once(("ca.crt", trust.as_bytes())).chain(lists);
                Some(Self::new(&format!("{managed}{CACERT_SUFFIX}"), "Opaque", values))
            }
            Step::WriteConfigMap { source, trust } => {
                let name = managed_config_map_name(source);
                let data = |name: &str| state.stored_config_map(name).map(|stored| &stored.secret);
                // If the source was deleted, the copy keeps its revocation lists.
                let lists = data(source).or_else(|| data(&name)).and_then(credential::all_revocation_lists);
                let lists = lists.map(|lists| ("ca.crl".to_owned(), String::from_utf8_lossy(&lists).into_owned()));
                let trust = ("ca.crt".to_owned(), trust.iter().map(Certificate::pem).collect());
                let data = [trust].into_iter().chain(lists).collect();
                Some(Self { kind: SourceKind::ConfigMap, name, type_: None, data })
            }
            Step::CopySource => {
                let source = secret(entry.source_name())?;
                let type_ = if source.type_.is_empty() { "Opaque" } else { &source.type_ };
                let has_lists = credential::all_revocation_lists(source).is_some();
                // Those of a Secret that was taken over.
                let lists = credential::crl_key(source).filter(|_| !has_lists).zip(managed_lists(entry, state));
                let lists = lists.as_ref().map(|(key, lists)| (*key, lists.as_slice()));
                let data = source.data.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
                Some(Self::new(managed, type_, data.chain(lists)))
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{ca, parsed};

    fn secret(name: &str, data: &[(&str, String)]) -> Value {
        let data: serde_json::Map<_, _> = data.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "mesh", "name": name }, "stringData": data })
    }

    /// The revocation lists that a step writes for these Secrets, by their key.
    fn written(step: &Step, secrets: Vec<Value>) -> Vec<(String, String)> {
        let entry = entry("mesh", "root", "gw");
        let state = ClusterState::from_objects(&entry, secrets, [], None, Timestamp::now());
        let object = DesiredObject::of(&entry, &state, step).expect("an object");
        let lists = object.data.iter().filter(|(key, _)| ["crl", "ca.crl"].contains(&key.as_str()));
        let decoded = |text: &String| String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text");
        lists.map(|(key, text)| (key.clone(), decoded(text))).collect()
    }

    #[test]
    fn revocation_lists_of_the_source_and_of_a_secret_that_was_taken_over_are_kept_in_both_modes() {
        let authority = ca("root");
        let leaf = authority.leaf_with("gateway", |_| {});
        let pair = |style: [&'static str; 3]| {
            let [ca, chain, key] = style;
            vec![(ca, authority.pem()), (chain, leaf.pem()), (key, leaf.key_pem())]
        };
        let (tls, generic) = (pair(["ca.crt", "tls.crt", "tls.key"]), pair(["cacert", "cert", "key"]));
        let (list, other) = (authority.crl_pem(2029, 2031, &[]), authority.crl_pem(2029, 2032, &[]));
        let with = |data: &[(&'static str, String)], key: &'static str, lists: &str| {
            [data, &[(key, lists.to_owned())]].concat()
        };
        let bundle = Step::WriteManaged { trust: vec![parsed(authority.der())], pair: PairOf::Source };
        let expected = |key: &str, lists: &str| vec![(key.to_owned(), lists.to_owned())];
        let tls_listed = with(&tls, "ca.crl", &list);
        for (source, managed, in_bundle, in_copy) in [
            (&tls_listed, None, expected("ca.crl", &list), expected("ca.crl", &list)),
            (&with(&generic, "crl", &list), None, expected("ca.crl", &list), expected("crl", &list)),
            (&tls, Some(&tls_listed), expected("ca.crl", &list), expected("ca.crl", &list)),
            (&generic, Some(&tls_listed), expected("ca.crl", &list), expected("crl", &list)),
            (&with(&tls, "ca.crl", &other), Some(&tls_listed), expected("ca.crl", &other), expected("ca.crl", &other)),
            (&with(&tls, "ca.crl", ""), Some(&tls_listed), Vec::new(), expected("ca.crl", "")),
            (&tls, Some(&tls), Vec::new(), Vec::new()),
        ] {
            let secrets = || {
                let managed = managed.map(|managed| secret("gw", managed));
                std::iter::once(secret("root", source)).chain(managed).collect::<Vec<_>>()
            };
            assert_eq!((written(&bundle, secrets()), written(&Step::CopySource, secrets())), (in_bundle, in_copy));
        }
    }

    #[test]
    fn lists_in_the_text_of_a_bundle_are_kept() {
        let authority = ca("root");
        let (leaf, list) = (authority.leaf_with("gateway", |_| {}), authority.crl_pem(2029, 2031, &[]));
        let data = [("ca.crt", authority.pem() + &list), ("tls.crt", leaf.pem()), ("tls.key", leaf.key_pem())];
        let step = Step::WriteManaged { trust: vec![parsed(authority.der())], pair: PairOf::Source };
        let [(key, text)] = written(&step, vec![secret("root", &data)]).try_into().expect("one list");
        assert_eq!((key.as_str(), crate::trust::bundle::read(text.as_bytes()).crls.len()), ("ca.crl", 1));
    }
}
