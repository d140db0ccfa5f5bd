//! The ConfigMaps from which gateways take CAs, as Gateways and BackendTLSPolicies name them.
//!
//! Sources: Istio's `ServerTLSSettings.caCertCredentialName` with the scheme `configmap://` (a namespace and a name:
//! pilot/pkg/model/credentials/resource.go); `caCertificateRefs` of a Gateway's `spec.tls.frontend` and of a
//! BackendTLSPolicy's `spec.validation` (Gateway API).

use serde_json::Value;

use crate::api::Kind;
use crate::registry::Place;
use crate::rewrite;

/// Namespace and name of each ConfigMap that an object in a namespace names.
pub(super) fn named(object: &Value, own: &str) -> Vec<(String, String)> {
    let kind = Kind::of(object);
    if (kind.group, kind.kind) == ("gateway.networking.k8s.io", "BackendTLSPolicy") {
        return references(&object["spec"]["validation"], own).collect();
    }
    let by_gateways = rewrite::config_maps(kind, object, own).into_iter().filter_map(|named| match named.place {
        Place::Namespace(namespace) | Place::Granted { namespace, .. } => {
            Some((namespace.to_owned(), named.name.to_owned()))
        }
        Place::Selected(_) | Place::AllGateways { .. } => None,
    });
    by_gateways.collect()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn references<'a>(validation: &'a Value, own: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
    let config_maps = items(&validation["caCertificateRefs"]).filter(|reference| {
        reference["group"].as_str().unwrap_or_default().is_empty() && reference["kind"] == "ConfigMap"
    });
    config_maps.filter_map(move |reference| {
        let namespace = reference["namespace"].as_str().filter(|namespace| !namespace.is_empty()).unwrap_or(own);
        Some((namespace.to_owned(), reference["name"].as_str()?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(namespace: &str, name: &str) -> (String, String) {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn accepts_every_way_to_name_one() {
        let config_map = json!({"caCertificateRefs": [
            {"group": "", "kind": "ConfigMap", "name": "here"},
            {"kind": "ConfigMap", "name": "there", "namespace": "other"},
        ]});
        let both = [pair("apps", "here"), pair("other", "there")];
        let gateway =
            |spec: Value| json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "spec": spec});
        let default = gateway(json!({"tls": {"frontend": {"default": {"validation": config_map}}}}));
        let per_port = gateway(json!({"tls": {"frontend": {"perPort": [{"tls": {"validation": config_map}}]}}}));
        let policy = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy", "spec": {"validation": config_map},
        });
        for object in [default, per_port, policy] {
            assert_eq!(named(&object, "apps"), both, "{object}");
        }
        let istio = |name: &str| {
            json!({
                "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
                "spec": {"servers": [{"tls": {"caCertCredentialName": name}}]},
            })
        };
        assert_eq!(named(&istio("configmap://mesh/roots"), "apps"), [pair("mesh", "roots")]);
    }

    #[test]
    fn rejects_what_is_no_config_map() {
        let refs = json!({"caCertificateRefs": [{"kind": "Secret", "name": "a"}, {"name": "b"}, {"group": "x", "kind": "ConfigMap", "name": "c"}]});
        let policy = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy", "spec": {"validation": refs},
        });
        assert_eq!(named(&policy, "apps"), []);
        for name in ["roots", "kubernetes://mesh/roots", "configmap://roots"] {
            let gateway = json!({
                "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
                "spec": {"servers": [{"tls": {"caCertCredentialName": name}}]},
            });
            assert_eq!(named(&gateway, "apps"), [], "{name}");
        }
    }
}
