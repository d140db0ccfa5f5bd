//! Gateway API `Gateway`: `listeners[].tls.certificateRefs[]`, the frontend's `caCertificateRefs[]` and the backend's
//! `clientCertificateRef`.
//!
//! Source: <https://gateway-api.sigs.k8s.io/reference/spec/#gatewayspec>.

use serde_json::Value;

use super::{Node, Place, Reference, Rule};

pub(super) const RULE: Rule = Rule {
    group: "gateway.networking.k8s.io",
    versions: &["v1", "v1beta1"],
    kinds: &["Gateway"],
    references,
    has_template: false,
};

fn references<'a>(object: &'a Value, namespace: &'a str) -> Vec<Reference<'a>> {
    let spec = Node::root(object).get("spec");
    let tls = spec.get("tls");
    let frontend = tls.get("frontend");
    let validations = std::iter::once(frontend.get("default"))
        .chain(frontend.get("perPort").items().map(|port| port.get("tls")))
        .map(|settings| settings.path(&["validation", "caCertificateRefs"]));
    let listeners = spec.get("listeners");
    let certificates = listeners.items().map(|listener| listener.path(&["tls", "certificateRefs"]));
    certificates
        .chain(validations)
        .flat_map(|list| list.items())
        .chain([tls.path(&["backend", "clientCertificateRef"])])
        .filter_map(|node| secret(&node, namespace))
        .collect()
}

/// A reference to a Secret: group and kind default to core and Secret, the namespace to the Gateway's own.
fn secret<'a>(node: &Node<'a>, own: &'a str) -> Option<Reference<'a>> {
    let text = |key: &str| node.value[key].as_str();
    if text("group").is_some_and(|group| !group.is_empty()) || text("kind").is_some_and(|kind| kind != "Secret") {
        return None;
    }
    let namespace = text("namespace").filter(|namespace| !namespace.is_empty()).unwrap_or(own);
    let place = if namespace == own { Place::Namespace(own) } else { Place::Granted { namespace, from: own } };
    let name = node.get("name");
    Some(Reference { node: name, prefix: "", name: name.text()?, place })
}
