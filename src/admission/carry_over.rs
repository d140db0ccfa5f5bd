//! Carry-over: a Secret with the annotation keeps its old CAs, after the new ones, in the write that replaces them, by any user.
//! Computed from `object` and `oldObject`, without what a GatewaySecret distrusts that takes CAs from the Secret.

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::connectivity;
use crate::api::names::{CARRY_OVER, CLIENT_LABEL};
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::trust::{
    Certificate, Secret, SecretUsage, UsageKind, Verdict, bundle, carry_over, credential, is_distrusted, judge,
};

/// The number of old CAs that the value `true` keeps.
const DEFAULT: usize = 1;

/// The CA key of a Secret, and the bundle to write under it; `None` if no CA is carried over.
///
/// [`carry_over`] chooses them, up to the number in the annotation. A write that has the old CAs already is not changed.
pub(super) fn bundle(
    object: &Json<'_>,
    old: &Json<'_>,
    namespace: &str,
    registry: &Registry,
    now: Timestamp,
) -> Option<(&'static str, Vec<Certificate>)> {
    let most = most(object["metadata"]["annotations"][CARRY_OVER].as_str()?)?;
    let (key, new) = loaded_bundle(object)?;
    let (_, mut old) = loaded_bundle(old)?;
    let entries = concerned(object, namespace, registry);
    old.retain(|ca| entries.iter().all(|entry| !is_distrusted(ca, &entry.spec.distrusted_cas)));
    let whole = harmless(&new, carry_over(&new, old, most, now), now);
    (whole.len() > new.len()).then_some((key, whole))
}

/// The GatewaySecrets that name a Secret, whose gateways take CAs from it, or whose client it is.
fn concerned<'r>(object: &'r Json<'_>, namespace: &'r str, registry: &'r Registry) -> Vec<&'r Entry> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let readers = registry.readers_of("Secret", namespace, name);
    let readers = readers.filter(|(entry, source)| source.is_granted_to(&entry.namespace)).map(|(entry, _)| entry);
    let named = registry.role(namespace, name).map(|(entry, _)| entry);
    let declared = connectivity::declared(metadata["labels"][CLIENT_LABEL].as_str(), namespace, registry);
    readers.chain(named).chain(declared).collect()
}

/// Old CAs that are tried one by one.
const TRIED: usize = 16;

/// The bundle without the old CAs for which the new ones would be denied, such as one with the same subject and no key identifier: the user's
/// write must not fail for what this adds. Rule `taken-away` then names them.
fn harmless(new: &[Certificate], whole: Vec<Certificate>, now: Timestamp) -> Vec<Certificate> {
    let is_denied = |cas: &[Certificate]| {
        let text: String = cas.iter().map(Certificate::pem).collect();
        let data = [("ca.crt".to_owned(), Zeroizing::new(text.into_bytes()))].into();
        let usage = SecretUsage { kind: UsageKind::TrustBundle, ..SecretUsage::default() };
        Verdict::of(&judge(&Secret { data, ..Secret::default() }, usage, now)) == Verdict::Deny
    };
    if whole.len() == new.len() || !is_denied(&whole) || is_denied(new) {
        return whole;
    }
    let mut kept = new.to_vec();
    for ca in whole.into_iter().skip(new.len()).take(TRIED) {
        kept.push(ca);
        if is_denied(&kept) {
            kept.pop();
        }
    }
    kept
}

/// The number of old CAs to keep; `None` for a value without effect.
pub(super) fn most(annotation: &str) -> Option<usize> {
    match annotation {
        "true" => Some(DEFAULT),
        number => number.parse().ok(),
    }
}

/// The key and CAs of the bundle that a proxy loads; `None` if it would not load all of it. The validating webhook reports why.
fn loaded_bundle(object: &Json<'_>) -> Option<(&'static str, Vec<Certificate>)> {
    let secret = Secret::from_json(object).ok()?;
    let ca = credential::ca_bundle(&secret)?;
    let read = bundle::read(ca.pem);
    (read.rejected.is_none() && !read.entries.is_empty()).then(|| (ca.key, read.into_certificates()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TrustSourceUse;
    use crate::json::json;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{Authority, ca, ca_between, ca_without_key_id, now, parsed};

    fn secret(annotation: &str, cas: &[&Authority]) -> Json<'static> {
        let text: String = cas.iter().map(|ca| ca.pem()).collect();
        json!({"metadata": {"annotations": {CARRY_OVER: annotation}}, "stringData": {"ca.crt": text}})
    }

    fn carried(annotation: &str, new: &[&Authority], old: &[&Authority]) -> Option<Vec<String>> {
        let none = Registry::default();
        let (key, whole) = bundle(&secret(annotation, new), &secret(annotation, old), "mesh", &none, now())?;
        assert_eq!(key, "ca.crt");
        Some(whole.into_iter().map(|ca| ca.subject).collect())
    }

    #[test]
    fn keeps_the_old_ca_after_the_new_one() {
        let (old, new, newer) = (ca("old"), ca("new"), ca("newer"));
        let names = |names: &[&str]| Some(names.iter().map(|name| format!("CN={name}")).collect::<Vec<_>>());
        assert_eq!(carried("true", &[&new], &[&old]), names(&["new", "old"]));
        // The results stay the same for a second apply, for a write that has both CAs, and for the next rotation.
        assert_eq!(carried("true", &[&new], &[&new, &old]), names(&["new", "old"]));
        assert_eq!(carried("true", &[&new, &old], &[&new, &old]), None);
        assert_eq!(carried("true", &[&newer], &[&new, &old]), names(&["newer", "new"]));
        assert_eq!(carried("2", &[&newer], &[&new, &old]), names(&["newer", "new", "old"]));
    }

    #[test]
    fn drops_a_ca_for_which_the_write_would_be_denied() {
        let (old, older, new) = (ca_without_key_id("root"), ca("older"), ca_without_key_id("root"));
        assert_eq!(carried("true", &[&new], &[&old]), None);
        let names = ["CN=root", "CN=older"].map(str::to_owned).to_vec();
        assert_eq!(carried("2", &[&new], &[&old, &older]), Some(names), "the others are kept");
    }

    #[test]
    fn drops_what_a_gateway_secret_distrusts_that_the_secret_concerns() {
        let (old, new) = (ca("old"), ca("new"));
        let carried = |namespace: &str, distrusted: &str, mut object: Json<'static>, name: &'static str| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.spec.distrusted_cas = vec![distrusted.to_owned()];
            entry.status.trust_sources = vec![TrustSourceUse {
                kind: "Secret".to_owned(),
                namespace: "partners".to_owned(),
                name: "cas".to_owned(),
                used_by: "Gateway apps/public spec.servers[0]".to_owned(),
                accepts_clients: true,
                granted: true,
            }];
            object["metadata"]["name"] = json!(name);
            bundle(&object, &secret("true", &[&old]), namespace, &Registry::new([entry]), now()).is_some()
        };
        let distrusted = parsed(old.der()).fingerprint;
        let write = || secret("true", &[&new]);
        assert!(!carried("mesh", &distrusted, write(), "root"), "the source Secret");
        assert!(!carried("mesh", &distrusted, write(), "gateway-cacert"), "istiod takes CAs from it");
        assert!(!carried("partners", &distrusted, write(), "cas"), "gateways take CAs from it");
        let mut client = write();
        client["metadata"]["labels"][CLIENT_LABEL] = json!("gateway");
        assert!(!carried("mesh", &distrusted, client, "shop"), "a client of the gateways");
        assert!(carried("mesh", &distrusted, write(), "other") && carried("partners", &distrusted, write(), "root"));
        assert!(carried("mesh", &parsed(new.der()).fingerprint, write(), "root"));
    }

    #[test]
    fn drops_expired_and_replaced_cas() {
        let (old, new, expired) = (ca("old"), ca("new"), ca_between("expired", 2020, 2025));
        assert_eq!(carried("true", &[&new], &[&expired]), None);
        assert_eq!(carried("true", &[&old.renewed(2029, 2045)], &[&old]), None);
        assert_eq!(carried("0", &[&new], &[&old]), None);
        assert_eq!(carried("many", &[&new], &[&old]), None);
        assert_eq!(carried("true", &[&new], &[]), None);
        assert_eq!(bundle(&json!({}), &secret("true", &[&old]), "mesh", &Registry::default(), now()), None);
    }
}
