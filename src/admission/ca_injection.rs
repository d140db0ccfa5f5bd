//! The trust of a declared client: when its certificate is reissued, the webhook adds the whole bundle of the GatewaySecret to the same write
//! of its Secret. cert-manager alone would write only the new CA while gateways still serve a certificate of the old one.

use std::collections::HashSet;

use jiff::Timestamp;

use super::{connectivity, keystores};
use crate::api::Mode;
use crate::api::names::CLIENT_LABEL;
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::trust::{Certificate, bundle, decoded, is_distrusted};

/// The key of a client's Secret with its trust anchors.
pub(super) const KEY: &str = "ca.crt";

/// The bundle to write into the Secret of a declared client; `None` if the Secret is not that of a declared client, or already has this bundle. It
/// includes the bundles of other GatewaySecrets whose gateways accept the client.
pub(super) fn wanted(
    object: &Json<'_>,
    old: Option<&Json<'_>>,
    namespace: &str,
    registry: &Registry,
    now: Timestamp,
) -> Option<Vec<Certificate>> {
    let entry = client_of(object, namespace, registry)?;
    let stored = decoded(object["data"].as_object()?.get(KEY).and_then(Json::as_str).unwrap_or_default())?;
    let present = certificates(&stored)?;
    let chains: Vec<_> = [old, Some(object)].into_iter().flatten().map(presented).collect();
    let mut bundle = client_bundle(entry);
    for other in connectivity::sharing(entry, &chains, registry, now) {
        bundle = extended(entry, bundle, &client_bundle(other));
    }
    if bundle.is_empty() {
        return None;
    }
    // The policy on a single CA compares its text, so another layout is rewritten.
    let is_canonical = present.len() != 1 || present.iter().all(|ca| stored == ca.pem().into_bytes());
    let ours = bundle.len();
    let mut wanted = extended(entry, bundle, &present);
    if is_read_from_pkcs12(object, old) {
        // Of CAs with one name Java finds the last: the oldest of the bundle, which what gateways serve may need. An issuer that has the newest CA
        // before this replica knows it must not take its place.
        wanted.rotate_left(ours);
    }
    (wanted != present || !is_canonical).then_some(wanted)
}

/// The GatewaySecret that has this Secret as a client: by its label, or in the same namespace by `spec.clients.secretNames`.
fn client_of<'r>(object: &Json<'_>, namespace: &str, registry: &'r Registry) -> Option<&'r Entry> {
    let metadata = &object["metadata"];
    let labelled = connectivity::declared(metadata["labels"][CLIENT_LABEL].as_str(), namespace, registry);
    let name = metadata["name"].as_str().unwrap_or_default();
    let names = |entry: &&Entry| {
        entry.namespace == namespace && entry.spec.clients.secret_names.iter().any(|named| named == name)
    };
    let mut entries = registry.entries().iter().map(AsRef::as_ref);
    labelled.or_else(|| entries.find(|entry| names(entry) && registry.conflict(entry).is_none()))
}

/// The clients' bundle of a GatewaySecret; empty in mode `Copy`.
fn client_bundle(entry: &Entry) -> Vec<Certificate> {
    match entry.spec.mode {
        Mode::Bundle => crate::connectivity::observed(&entry.status.client_bundle),
        Mode::Copy => Vec::new(),
    }
}

/// Whether cert-manager renders a PKCS #12 truststore into a Secret.
fn is_read_from_pkcs12(object: &Json<'_>, old: Option<&Json<'_>>) -> bool {
    [Some(object), old].into_iter().flatten().any(|secret| keystores::holds(secret, keystores::PKCS12_TRUSTSTORE))
}

/// The chain that a client presents.
fn presented(object: &Json<'_>) -> Vec<Certificate> {
    let stored = object["data"]["tls.crt"].as_str().and_then(decoded);
    stored.map(|text| bundle::read_chain(&text).into_certificates()).unwrap_or_default()
}

/// The bundle of a GatewaySecret, followed by other CAs: of other GatewaySecrets, of the issuer, or of the user. What it distrusts, its clients
/// do not get from another one.
fn extended(entry: &Entry, mut bundle: Vec<Certificate>, others: &[Certificate]) -> Vec<Certificate> {
    // In a set, since a hostile bundle has thousands.
    let mut known: HashSet<_> = bundle.iter().map(|certificate| certificate.fingerprint.clone()).collect();
    let others = others.iter().filter(|certificate| !is_distrusted(certificate, &entry.spec.distrusted_cas));
    bundle.extend(others.filter(|certificate| known.insert(certificate.fingerprint.clone())).cloned());
    bundle
}

/// The CAs of a bundle; `None` if a program would not load all of it. The validating webhook reports why.
fn certificates(text: &[u8]) -> Option<Vec<Certificate>> {
    let read = bundle::read(text);
    (read.rejected.is_none()).then(|| read.into_certificates())
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::*;
    use crate::api::{TrustAnchor, names::CLIENT_LABEL};
    use crate::json::json;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    fn registry(bundle: &[&Authority]) -> Registry {
        let mut entry = entry("mesh", "root", "gateway");
        entry.status.client_bundle = bundle.iter().map(|ca| TrustAnchor::from(&parsed(ca.der()))).collect();
        Registry::new([entry])
    }

    fn client(cas: &[&Authority]) -> Json<'static> {
        let text: String = cas.iter().map(|ca| ca.pem()).collect();
        json!({"metadata": {"labels": {CLIENT_LABEL: "gateway"}}, "data": {KEY: STANDARD.encode(text)}})
    }

    fn names(object: &Json<'_>, registry: &Registry) -> Option<Vec<String>> {
        wanted(object, None, "mesh", registry, now()).map(|cas| cas.into_iter().map(|ca| ca.subject).collect())
    }

    #[test]
    fn adds_the_whole_bundle_and_keeps_other_cas() {
        let (old, new, own) = (ca("old"), ca("new"), ca("own"));
        let registry = registry(&[&new, &old]);
        assert_eq!(names(&client(&[&new]), &registry), Some(vec!["CN=new".to_owned(), "CN=old".to_owned()]));
        let with_own = names(&client(&[&own, &new]), &registry);
        assert_eq!(with_own, Some(["CN=new", "CN=old", "CN=own"].map(str::to_owned).to_vec()));
        assert_eq!(names(&client(&[&new, &old, &own]), &registry), None, "it has the bundle already");
    }

    /// Found by random histories: an issuer had a newer CA than the replica of the webhook knew, and clients found that one only.
    #[test]
    fn other_cas_come_first_where_java_finds_the_last() {
        let (old, new, newest) = (ca("old"), ca("new"), ca("newest"));
        let registry = registry(&[&new, &old]);
        let with_truststore = |mut object: Json<'static>| {
            object["data"]["truststore.p12"] = json!("c3RvcmU=");
            object
        };
        let expected = Some(["CN=newest", "CN=new", "CN=old"].map(str::to_owned).to_vec());
        assert_eq!(names(&with_truststore(client(&[&newest])), &registry), expected);
        let stored = with_truststore(client(&[&new]));
        let written = wanted(&client(&[&newest]), Some(&stored), "mesh", &registry, now());
        assert_eq!(
            written.map(|cas| cas.into_iter().map(|ca| ca.subject).collect()),
            expected,
            "the stored one has it"
        );
        assert_eq!(
            names(&with_truststore(client(&[&newest, &new, &old])), &registry),
            None,
            "it has the bundle already"
        );
    }

    #[test]
    fn writes_a_single_ca_in_the_layout_of_the_policy() {
        let (only, other) = (ca("only"), ca("other"));
        let registry = registry(&[&only]);
        let in_layout = |text: &str| {
            let mut object = client(&[]);
            object["data"][KEY] = json!(STANDARD.encode(text));
            names(&object, &registry)
        };
        let canonical = parsed(only.der()).pem();
        assert_eq!(in_layout(&canonical), None);
        let crlf = canonical.replace('\n', "\r\n");
        for text in [crlf.as_str(), canonical.trim_end(), &format!("{canonical}# ours\n")] {
            assert_eq!(in_layout(text), Some(vec!["CN=only".to_owned()]), "{text:?}");
        }
        assert_eq!(in_layout(&format!("{crlf}{}", other.pem())), None, "the policy does not judge two CAs");
    }

    #[test]
    fn adds_the_bundle_in_another_namespace_if_both_owners_agree() {
        let (old, new) = (ca("old"), ca("new"));
        let names = |granted: &[&str], label: &str| {
            let mut entry = registry(&[&new, &old]).entries()[0].as_ref().clone();
            entry.spec.clients.namespaces = granted.iter().map(|name| (*name).to_owned()).collect();
            let mut object = client(&[&new]);
            object["metadata"]["labels"][CLIENT_LABEL] = json!(label);
            wanted(&object, None, "apps", &Registry::new([entry]), now()).map(|cas| cas.len())
        };
        assert_eq!(names(&["apps"], "mesh_gateway"), Some(2));
        assert_eq!(names(&[], "mesh_gateway"), None, "the GatewaySecret does not list the namespace");
        assert_eq!(names(&["apps"], "gateway"), None, "the label names a GatewaySecret in the same namespace");
    }

    #[test]
    fn adds_the_bundle_to_a_named_client_of_the_same_namespace() {
        let (old, new) = (ca("old"), ca("new"));
        let mut entry = registry(&[&new, &old]).entries()[0].as_ref().clone();
        entry.spec.clients.secret_names = vec!["payments".to_owned()];
        let registry = Registry::new([entry]);
        let cas = |namespace: &str, name: &str| {
            let mut object = client(&[&new]);
            object["metadata"] = json!({"name": name.to_owned()});
            wanted(&object, None, namespace, &registry, now()).map(|cas| cas.len())
        };
        assert_eq!(cas("mesh", "payments"), Some(2));
        assert_eq!((cas("mesh", "checkout"), cas("apps", "payments")), (None, None));
    }

    #[test]
    fn adds_the_bundles_of_all_gateway_secrets_whose_gateways_accept_the_client() {
        let (own, other, foreign) = (ca("own"), ca("other"), ca("foreign"));
        let anchors =
            |cas: &[&Authority]| cas.iter().map(|ca| TrustAnchor::from(&parsed(ca.der()))).collect::<Vec<_>>();
        let second = |name: &str, accepts: &Authority, bundle: &[&Authority]| {
            let mut entry = entry("mesh", &format!("{name}-root"), name);
            (entry.status.bundle, entry.status.client_bundle) = (anchors(&[accepts]), anchors(bundle));
            entry
        };
        let registry = |entries: Vec<Entry>| {
            let first = registry(&[&own]).entries()[0].as_ref().clone();
            Registry::new(std::iter::once(first).chain(entries))
        };
        let signed = |by: &Authority| {
            let mut object = client(&[&own]);
            object["data"]["tls.crt"] = json!(STANDARD.encode(by.leaf("payments").pem()));
            object
        };
        let names = |object: &Json<'_>, old: Option<&Json<'_>>, entries: Vec<Entry>| {
            let wanted = wanted(object, old, "mesh", &registry(entries), now());
            wanted.map(|cas| cas.into_iter().map(|ca| ca.subject).collect::<Vec<_>>())
        };
        let both = Some(vec!["CN=own".to_owned(), "CN=other".to_owned()]);
        let accepting = || vec![second("second", &own, &[&own, &other])];
        assert_eq!(names(&signed(&own), None, accepting()), both);
        assert_eq!(
            names(&signed(&foreign), Some(&signed(&own)), accepting()),
            both,
            "they accept the present certificate"
        );
        let refusing = vec![second("second", &foreign, &[&other])];
        assert_eq!(names(&signed(&own), None, refusing), None);
        let mut copy = accepting();
        copy[0].spec.mode = Mode::Copy;
        assert_eq!(names(&signed(&own), None, copy), None);
        let mut first = registry(Vec::new()).entries()[0].as_ref().clone();
        first.spec.distrusted_cas = vec![parsed(other.der()).fingerprint];
        let registry = Registry::new(std::iter::once(first).chain(accepting()));
        assert_eq!(
            wanted(&signed(&own), None, "mesh", &registry, now()),
            None,
            "the label's GatewaySecret distrusts it"
        );
    }

    #[test]
    fn does_not_change_other_secrets() {
        let (old, new) = (ca("old"), ca("new"));
        let mut other = client(&[&new]);
        other["metadata"]["labels"][CLIENT_LABEL] = json!("another");
        assert_eq!(names(&other, &registry(&[&new, &old])), None);
        assert_eq!(names(&client(&[&new]), &registry(&[])), None, "status has no bundle");
        let mut broken = client(&[]);
        broken["data"][KEY] = json!(STANDARD.encode("-----BEGIN CERTIFICATE-----\nx\n"));
        assert_eq!(names(&broken, &registry(&[&new, &old])), None);
    }
}
