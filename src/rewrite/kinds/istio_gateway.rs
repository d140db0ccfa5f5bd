//! Istio `Gateway`: `servers[].tls.{credentialName,credentialNames[],caCertCredentialName}`.
//!
//! Source: <https://istio.io/latest/docs/reference/config/networking/gateway/#ServerTLSSettings>; istiod interprets
//! the fields in `pilot/pkg/security/model/authentication.go` (`ApplyCredentialSDSToServerCommonTLSContext`).

use std::sync::Arc;

use super::{Credential, JsonPath, Place, Reference, RewriteRule};
use crate::api::SourceKind;
use crate::api::names::CACERT_SUFFIX;
use crate::json::Json;
use crate::rewrite::Named;
use crate::rewrite::tls_settings::{TlsSettings, TrustSource};

pub(super) const RULE: RewriteRule = RewriteRule {
    group: "networking.istio.io",
    versions: &["v1", "v1beta1", "v1alpha3"],
    kinds: &["Gateway"],
    references,
    tls_settings,
    can_trust_another_source,
    has_template: false,
};

fn references<'a>(object: &'a Json<'a>, _namespace: &'a str) -> Vec<Reference<'a>> {
    let proxies = proxies(object);
    let mut references = Vec::new();
    for server in JsonPath::root(object).path(&["spec", "servers"]).items() {
        let tls = server.get("tls");
        references.extend(presented(&tls, &proxies));
        references.extend(ca_certificate(&tls, &proxies).or_else(|| config_map(&tls)));
    }
    references
}

/// With only `credentialName`, as in most Gateways, its Secret decides about the CAs, too.
fn can_trust_another_source<'a>(object: &'a Json<'a>) -> bool {
    let mut servers = object["spec"]["servers"].as_array().into_iter().flatten();
    servers.any(|server| {
        let tls = &server["tls"];
        tls.get("caCertCredentialName").is_some() || tls.get("credentialNames").is_some()
    })
}

/// The Secret is in the namespace of the selected workloads, not in that of the Gateway.
fn proxies<'a>(object: &'a Json<'a>) -> Place<'a> {
    let labels = object["spec"]["selector"].as_object().into_iter().flatten();
    // Shared, since a hostile Gateway has thousands of labels and thousands of servers.
    Place::Selected(Arc::new(labels.filter_map(|(key, value)| Some((key, value.as_str()?))).collect()))
}

fn presented<'a>(tls: &JsonPath<'a>, proxies: &Place<'a>) -> impl Iterator<Item = Reference<'a>> {
    let nodes = tls
        .find("credentialName")
        .into_iter()
        .chain(tls.find("credentialNames").into_iter().flat_map(|list| list.items()));
    nodes.filter_map(|node| Credential::parse(node.text()?).reference(&node, proxies))
}

/// `caCertCredentialName: <name>-cacert`. Without the suffix it gives no CAs (see [`TrustSource::Nothing`]), whatever the Secret
/// is called, so a rewrite must not write the managed Secret there.
fn ca_certificate<'a>(tls: &JsonPath<'a>, proxies: &Place<'a>) -> Option<Reference<'a>> {
    let node = tls.find("caCertCredentialName")?;
    let reference = Credential::parse(node.text()?).reference(&node, proxies)?;
    let name = reference.name.strip_suffix(CACERT_SUFFIX).filter(|name| !name.is_empty())?;
    Some(Reference { name, suffix: CACERT_SUFFIX, ..reference })
}

/// `caCertCredentialName: configmap://<namespace>/<name>`, with the suffix or without.
fn config_map<'a>(tls: &JsonPath<'a>) -> Option<Reference<'a>> {
    let node = tls.find("caCertCredentialName")?;
    let text = node.text()?;
    let Credential::ConfigMap { namespace, name } = Credential::parse(text) else { return None };
    let (prefix, suffix) = (&text[..text.rfind(name)?], if text.ends_with(CACERT_SUFFIX) { CACERT_SUFFIX } else { "" });
    let reference = Reference::of(SourceKind::ConfigMap, node, name, Place::Namespace(namespace));
    Some(Reference { prefix, suffix, ..reference })
}

fn tls_settings<'a>(object: &'a Json<'a>, _namespace: &'a str) -> Vec<TlsSettings<'a>> {
    let proxies = proxies(object);
    let servers = JsonPath::root(object).path(&["spec", "servers"]).items();
    servers.filter_map(|server| settings(&server, &proxies)).collect()
}

fn settings<'a>(server: &JsonPath<'a>, proxies: &Place<'a>) -> Option<TlsSettings<'a>> {
    let tls = &server.get("tls");
    let is_mutual = matches!(tls.value["mode"].as_str(), Some("MUTUAL" | "OPTIONAL_MUTUAL"));
    let first = tls.find("credentialNames").and_then(|list| list.items().find(|node| node.text().is_some()));
    let first = first.unwrap_or_else(|| tls.get("credentialName"));
    let explicit = tls.get("caCertCredentialName");
    let (deciding_field, trust) = match (explicit.text(), first.text()) {
        _ if !is_mutual => (first, TrustSource::NotVerified),
        (Some(_), Some(_)) => (explicit, explicit_trust(tls, proxies)),
        (None, Some(name)) => (first, Credential::parse(name).cacert(&first, proxies)),
        // Without a credentialName, istiod configures files of the proxy's pod.
        (_, None) => {
            let file = tls.get("caCertificates");
            (file, TrustSource::Unknowable(file.text().unwrap_or("a file of the proxy's pod")))
        }
    };
    let presents: Vec<_> = presented(tls, proxies).map(Named::from).collect();
    let pins = tls.texts("verifyCertificateHash").chain(tls.texts("verifyCertificateSpki")).collect();
    let is_used = !presents.is_empty() || trust != TrustSource::NotVerified;
    let hosts = server.texts("hosts").collect();
    is_used.then_some(TlsSettings {
        deciding_field,
        presents,
        trust,
        is_upstream: false,
        hosts,
        pins,
        issuer_annotation: None,
    })
}

fn explicit_trust<'a>(tls: &JsonPath<'a>, proxies: &Place<'a>) -> TrustSource<'a> {
    let node = tls.get("caCertCredentialName");
    let text = node.text().unwrap_or_default();
    match (ca_certificate(tls, proxies), Credential::parse(text)) {
        (Some(Reference { name, place, .. }), _) => TrustSource::Secret { place, name },
        (None, Credential::Secret { .. }) => TrustSource::Nothing(text),
        (None, other) => other.cacert(&node, proxies),
    }
}
