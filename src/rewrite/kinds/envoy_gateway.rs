//! Envoy Gateway's `ClientTrafficPolicy`: the CAs with which the listeners of a Gateway verify clients. It is read, not rewritten: Envoy
//! Gateway uses `ca.crt` of all objects that it names.
//!
//! Source: <https://gateway.envoyproxy.io/docs/api/extension_types/#clientvalidationcontext>.

use super::gateway_api::{authority, certificates};
use super::{JsonPath, RewriteRule};
use crate::json::Json;
use crate::rewrite::Named;
use crate::rewrite::tls_settings::TlsSettings;

pub(super) const CLIENT_TRAFFIC_POLICY: RewriteRule = RewriteRule {
    group: "gateway.envoyproxy.io",
    versions: &["v1alpha1"],
    kinds: &["ClientTrafficPolicy"],
    references: |_, _| Vec::new(),
    tls_settings,
    can_trust_another_source: |_| true,
    has_template: false,
};

/// The TLS settings of a policy, one for each CA reference. The caller sets `spec.listeners` to those of the Gateway
/// that the policy applies to.
fn tls_settings<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<TlsSettings<'a>> {
    let spec = JsonPath::root(object).get("spec");
    let validation = spec.path(&["tls", "clientValidation"]);
    let presents: Vec<_> = spec
        .get("listeners")
        .items()
        .flat_map(|listener| certificates(&listener, namespace))
        .map(Named::from)
        .collect();
    let pins: Vec<_> = validation.texts("certificateHashes").chain(validation.texts("spkiHashes")).collect();
    let of = |node: JsonPath<'a>| TlsSettings {
        deciding_field: node.get("name"),
        presents: presents.clone(),
        trust: authority(&node, namespace, "Secret"),
        is_upstream: false,
        hosts: Vec::new(),
        pins: pins.clone(),
        issuer_annotation: None,
    };
    validation.get("caCertificateRefs").items().map(of).collect()
}
