//! Gateway API `Gateway` and `ListenerSet`: `listeners[].tls.certificateRefs[]`, the frontend's `caCertificateRefs[]` and
//! the backend's `clientCertificateRef`.
//!
//! Source: <https://gateway-api.sigs.k8s.io/reference/spec/#gatewayspec>; Istio interprets them in
//! `pilot/pkg/config/kube/gateway/conversion.go` (`buildTLS`).

use super::{JsonPath, Place, Reference, RewriteRule};
use crate::api::SourceKind;
use crate::api::names::{IGNORED_LISTENERS, ISSUER_ANNOTATIONS};
use crate::json::Json;
use crate::rewrite::Named;
use crate::rewrite::tls_settings::{TlsSettings, TrustSource};

/// Istio's option for mutual TLS in a listener's `tls`, which preceded the Gateway API's fields.
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";

pub(super) const GATEWAY: RewriteRule = RewriteRule {
    group: "gateway.networking.k8s.io",
    versions: &["v1", "v1beta1"],
    kinds: &["Gateway"],
    references,
    tls_settings,
    can_trust_another_source: |_| true,
    has_template: false,
};

/// A ListenerSet adds listeners to the Gateway that it names. The frontend settings of that Gateway apply to them.
pub(super) const LISTENER_SET: RewriteRule = RewriteRule { versions: &["v1"], kinds: &["ListenerSet"], ..GATEWAY };

fn references<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<Reference<'a>> {
    let spec = JsonPath::root(object).get("spec");
    let tls = spec.get("tls");
    let validations: Vec<_> = frontends(&tls).flat_map(|settings| authorities(&settings)).collect();
    let listeners = spec.get("listeners");
    let certificates = listeners.items().flat_map(|listener| {
        let issuer_annotation = issuer_annotation(object, &listener);
        certificates(&listener, namespace).map(move |reference| Reference { issuer_annotation, ..reference })
    });
    let config_maps: Vec<_> = validations.iter().filter_map(|node| config_map(node, namespace)).collect();
    let others = validations.into_iter().chain([tls.path(&["backend", "clientCertificateRef"])]);
    certificates.chain(others.filter_map(|node| secret(&node, namespace))).chain(config_maps).collect()
}

/// The annotation by which cert-manager makes a Certificate for the Secrets of a listener (`handleGatewayAPIListeners`). It has the name of the
/// Secret. If the listener names another Secret, cert-manager deletes it and makes one of that name.
fn issuer_annotation(object: &Json<'_>, listener: &JsonPath<'_>) -> Option<&'static str> {
    let annotations = &object["metadata"]["annotations"];
    let annotation = ISSUER_ANNOTATIONS.into_iter().find(|annotation| annotations[*annotation].is_string())?;
    let ignored = annotations[IGNORED_LISTENERS].as_str().unwrap_or_default();
    let is_ignored = ignored.split(',').any(|name| Some(name.trim()) == listener.value["name"].as_str());
    let is_passed_through = listener.value["tls"]["mode"] == "Passthrough";
    (!is_ignored && !is_passed_through).then_some(annotation)
}

fn frontends<'a>(tls: &JsonPath<'a>) -> impl Iterator<Item = JsonPath<'a>> + use<'a> {
    let frontend = tls.get("frontend");
    let ports = frontend.get("perPort").items().map(|port| port.get("tls"));
    std::iter::once(frontend.get("default")).chain(ports)
}

fn authorities<'a>(frontend: &JsonPath<'a>) -> impl Iterator<Item = JsonPath<'a>> + use<'a> {
    frontend.path(&["validation", "caCertificateRefs"]).items()
}

/// A reference to a Secret: group and kind default to core and Secret, the namespace to the Gateway's own.
fn secret<'a>(node: &JsonPath<'a>, own: &'a str) -> Option<Reference<'a>> {
    is_of(node, "Secret", "Secret").then(|| reference(SourceKind::Secret, node, own))?
}

/// A reference to a ConfigMap: its kind has no default.
fn config_map<'a>(node: &JsonPath<'a>, own: &'a str) -> Option<Reference<'a>> {
    is_of(node, "ConfigMap", "").then(|| reference(SourceKind::ConfigMap, node, own))?
}

fn reference<'a>(kind: SourceKind, node: &JsonPath<'a>, own: &'a str) -> Option<Reference<'a>> {
    let name = node.get("name");
    Some(Reference::of(kind, name, name.text()?, place(node, own)))
}

fn is_of(node: &JsonPath<'_>, kind: &str, default: &str) -> bool {
    let text = |key: &str| node.value[key].as_str();
    text("group").is_none_or(str::is_empty) && text("kind").unwrap_or(default) == kind
}

fn place<'a>(node: &JsonPath<'a>, own: &'a str) -> Place<'a> {
    match node.value["namespace"].as_str() {
        Some(namespace) if !namespace.is_empty() && namespace != own => Place::Granted { namespace, from: own },
        _ => Place::Namespace(own),
    }
}

/// The TLS settings of a Gateway: one for each listener that terminates TLS and each of its `caCertificateRefs`, and
/// one for the upstreams.
fn tls_settings<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<TlsSettings<'a>> {
    let spec = JsonPath::root(object).get("spec");
    let tls = spec.get("tls");
    let mut all: Vec<_> =
        spec.get("listeners").items().flat_map(|listener| of_listener(object, &listener, &tls, namespace)).collect();
    let client = tls.path(&["backend", "clientCertificateRef"]);
    // The CAs for upstreams are in BackendTLSPolicies.
    all.extend(secret(&client, namespace).map(|reference| TlsSettings {
        deciding_field: reference.node,
        presents: vec![Named::from(reference)],
        trust: TrustSource::NotVerified,
        is_upstream: true,
        hosts: Vec::new(),
        pins: Vec::new(),
        issuer_annotation: None,
    }));
    all
}

fn of_listener<'a>(
    object: &Json<'_>,
    listener: &JsonPath<'a>,
    gateway: &JsonPath<'a>,
    namespace: &'a str,
) -> Vec<TlsSettings<'a>> {
    let tls = listener.get("tls");
    if tls.value.is_null() || tls.value["mode"] == "Passthrough" {
        return Vec::new();
    }
    let certificates: Vec<_> = certificates(listener, namespace).collect();
    let frontend = gateway.get("frontend");
    let port = frontend.get("perPort").items().find(|port| port.value["port"] == listener.value["port"]);
    let frontend = port.map_or_else(|| frontend.get("default"), |port| port.get("tls"));
    let authorities: Vec<_> =
        authorities(&frontend).map(|node| (node.get("name"), authority(&node, namespace, ""))).collect();
    let is_mutual = matches!(tls.value["options"][TERMINATE_MODE].as_str(), Some("MUTUAL" | "OPTIONAL_MUTUAL"));
    let hosts: Vec<_> = listener.get("hostname").text().into_iter().collect();
    let settings = |node: JsonPath<'a>, trust| TlsSettings {
        deciding_field: node,
        presents: certificates.iter().cloned().map(Named::from).collect(),
        trust,
        is_upstream: false,
        hosts: hosts.clone(),
        pins: Vec::new(),
        issuer_annotation: issuer_annotation(object, listener),
    };
    match certificates.first() {
        _ if !authorities.is_empty() => authorities.into_iter().map(|(node, trust)| settings(node, trust)).collect(),
        None => Vec::new(),
        Some(first) if is_mutual => {
            let trust = TrustSource::Secret { place: first.place.clone(), name: first.name };
            vec![settings(first.node, trust)]
        }
        Some(first) => vec![settings(first.node, TrustSource::NotVerified)],
    }
}

/// The Secrets that a listener presents.
pub(super) fn certificates<'a>(listener: &JsonPath<'a>, own: &'a str) -> impl Iterator<Item = Reference<'a>> + use<'a> {
    listener.path(&["tls", "certificateRefs"]).items().filter_map(move |node| secret(&node, own))
}

/// An item of `caCertificateRefs`: a ConfigMap (support: Core), or a Secret; `default` is the kind if there is none.
pub(super) fn authority<'a>(node: &JsonPath<'a>, own: &'a str, default: &str) -> TrustSource<'a> {
    let name = node.get("name").text().unwrap_or_default();
    let (Place::Namespace(namespace) | Place::Granted { namespace, .. }) = place(node, own) else {
        return TrustSource::Unknowable(name);
    };
    if is_of(node, "ConfigMap", default) {
        TrustSource::ConfigMap { namespace, name }
    } else if is_of(node, "Secret", default) {
        TrustSource::Secret { place: place(node, own), name }
    } else {
        TrustSource::Unknowable(node.value["kind"].as_str().unwrap_or(name))
    }
}
