//! Istio `Gateway`: `servers[].tls.{credentialName,credentialNames[],caCertCredentialName}`.
//!
//! Source: <https://istio.io/latest/docs/reference/config/networking/gateway/#ServerTLSSettings>; the forms of a name are
//! those of istiod's `pilot/pkg/model/credentials/resource.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Node, Place, Reference, Rule};

pub(super) const RULE: Rule = Rule {
    group: "networking.istio.io",
    versions: &["v1", "v1beta1", "v1alpha3"],
    kinds: &["Gateway"],
    references,
    has_template: false,
};

fn references<'a>(object: &'a Value, _namespace: &'a str) -> Vec<Reference<'a>> {
    let spec = Node::root(object).get("spec");
    // The Secret lives where the selected workloads run, not where the Gateway object stands.
    let labels = spec.value["selector"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    // Shared: a hostile Gateway has thousands of labels and thousands of servers.
    let selector = Arc::new(labels.collect());
    let servers = spec.get("servers").items().map(|server| server.get("tls"));
    let names = servers.flat_map(|tls| {
        let one = [tls.get("credentialName")];
        let many = tls.get("credentialNames").items();
        one.into_iter().chain(many).chain([tls.get("caCertCredentialName")])
    });
    names.filter_map(|node| credential(&node, &selector)).collect()
}

/// `name`, `namespace/name`, `kubernetes://[namespace/]name` and `kubernetes-gateway://namespace/name` are Secrets; every
/// other scheme (`configmap://`, `sds://`, `builtin://`) is something else.
fn credential<'a>(node: &Node<'a>, selector: &Arc<BTreeMap<&'a str, &'a str>>) -> Option<Reference<'a>> {
    let text = node.text()?;
    let rest = match text.split_once("://") {
        None => text,
        Some(("kubernetes" | "kubernetes-gateway", rest)) => rest,
        Some(_) => return None,
    };
    let (place, name) = match rest.split_once('/') {
        None => (Place::Selected(Arc::clone(selector)), rest),
        Some((_, name)) if name.contains('/') => return None,
        Some((namespace, name)) => (Place::Namespace(namespace), name),
    };
    let prefix = text.strip_suffix(name)?;
    Some(Reference { node: *node, prefix, name, place })
}
