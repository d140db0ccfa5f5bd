//! Istio `DestinationRule`: `credentialName` of `trafficPolicy.tls`, of a port's and of a subset's.
//!
//! It applies to gateways, and with a `workloadSelector` to the selected sidecars; the Secret is looked up in the
//! proxy's namespace (istiod's `pilot/pkg/networking/core/cluster_tls.go`).
//!
//! Source: <https://istio.io/latest/docs/reference/config/networking/destination-rule/#ClientTLSSettings>.

use super::{Credential, JsonPath, Place, Reference, RewriteRule};
use crate::json::Json;
use crate::rewrite::Named;
use crate::rewrite::tls_settings::{TlsSettings, TrustSource};

pub(super) const RULE: RewriteRule = RewriteRule {
    group: "networking.istio.io",
    versions: &["v1", "v1beta1", "v1alpha3"],
    kinds: &["DestinationRule"],
    references,
    tls_settings,
    can_trust_another_source: |_| true,
    has_template: false,
};

fn references<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<Reference<'a>> {
    let proxies = proxies(object, namespace);
    settings(object).filter_map(|tls| reference(&tls, &proxies)).collect()
}

fn reference<'a>(tls: &JsonPath<'a>, proxies: &Place<'a>) -> Option<Reference<'a>> {
    let node = tls.get("credentialName");
    Credential::parse(node.text()?).reference(&node, proxies)
}

fn proxies<'a>(object: &'a Json<'a>, namespace: &'a str) -> Place<'a> {
    let spec = &object["spec"];
    let labels = spec["workloadSelector"]["matchLabels"].as_object().filter(|labels| !labels.is_empty());
    match (labels, spec["exportTo"].as_array()) {
        // With a selector the rule applies to its own namespace only.
        (Some(_), _) => Place::Namespace(namespace),
        (None, Some([only])) if *only == "." || *only == namespace => Place::Namespace(namespace),
        _ => Place::AllGateways { from: namespace },
    }
}

fn settings<'a>(object: &'a Json<'a>) -> impl Iterator<Item = JsonPath<'a>> {
    let spec = JsonPath::root(object).get("spec");
    let subsets = spec.get("subsets").items().map(|subset| subset.get("trafficPolicy"));
    let policies = std::iter::once(spec.get("trafficPolicy")).chain(subsets);
    policies.flat_map(|policy| {
        let ports = policy.get("portLevelSettings").items().map(|port| port.get("tls"));
        std::iter::once(policy.get("tls")).chain(ports)
    })
}

fn tls_settings<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<TlsSettings<'a>> {
    let proxies = proxies(object, namespace);
    let of = |tls: JsonPath<'a>| {
        let node = tls.get("credentialName");
        let name = node.text()?;
        let mode = tls.value["mode"].as_str();
        let verifies = tls.value["insecureSkipVerify"] != true && matches!(mode, Some("SIMPLE" | "MUTUAL"));
        let trust = if verifies { Credential::parse(name).cacert(&node, &proxies) } else { TrustSource::NotVerified };
        let presents = reference(&tls, &proxies).filter(|_| mode == Some("MUTUAL")).map(Named::from);
        Some(TlsSettings {
            deciding_field: node,
            presents: presents.into_iter().collect(),
            trust,
            is_upstream: true,
            hosts: Vec::new(),
            pins: Vec::new(),
            issuer_annotation: None,
        })
    };
    settings(object).filter_map(of).collect()
}
