//! Comments on how the agent can probe the gateways.

use super::GenerateInput;
use super::served_secrets::ServedSecret;
use crate::api::names::check_object_name;
use crate::rotation::counted;
use crate::rotation::gateway_service::service;

/// The comment: what the agent probes, or why it cannot probe.
pub(super) fn comment(found: &GenerateInput, served: &ServedSecret<'_>) -> String {
    let without = |why: &str| {
        format!("no gateway can be probed yet: {why}. Until one can, the agent relies on propagation delays alone")
    };
    let Some(host) = served.hosts().find(|host| check_object_name(host).is_ok()) else {
        return without("no Gateway presents it for a host without a wildcard");
    };
    match service(found.objects.iter(), served.namespace, &served.workload_labels()) {
        Ok(service) => format!(
            "the agent probes all pods behind Service {} over TLS, for hosts such as {host}: allow its connections to them \
             (NetworkPolicy, firewall){}",
            service.name,
            match service.unselected.len() {
                0 => String::new(),
                unselected => format!(
                    ". It does not select {} with their labels, which cannot be probed",
                    counted(unselected, "pod")
                ),
            }
        ),
        Err(why) => without(&why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rotation::generate::propose;

    fn gateway(hosts: Value) -> Value {
        let tls = json!({"mode": "MUTUAL", "credentialName": "root"});
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "apps", "name": "public"},
            "spec": {"selector": {"istio": "gw"}, "servers": [{"hosts": hosts, "tls": tls}]},
        })
    }

    fn pod(labels: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "mesh", "labels": labels}})
    }

    fn service(name: &str, selector: Value, ports: Value) -> Value {
        let metadata = json!({"namespace": "mesh", "name": name});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": selector, "ports": ports}})
    }

    fn comments(objects: &[Value]) -> String {
        let proposals = propose(&GenerateInput { objects: objects.to_vec(), ..GenerateInput::default() });
        let [proposal] = &proposals.gateway_secrets[..] else { panic!("one proposal, not {proposals:?}") };
        proposal.comments.join("\n")
    }

    fn hosts() -> Value {
        gateway(json!(["*.example.com", "apps/shop.example.com"]))
    }

    #[test]
    fn names_the_service_of_the_gateways() {
        let https = json!([{"name": "http2", "port": 80}, {"name": "https", "port": 8443}]);
        let others = service("other", json!({"app": "other"}), https.clone());
        let objects =
            [hosts(), pod(json!({"istio": "gw", "app": "gw"})), others, service("gw", json!({"app": "gw"}), https)];
        let comments = comments(&objects);
        let expected = "behind Service gw over TLS, for hosts such as shop.example.com: allow its connections";
        assert!(comments.contains(expected), "{comments}");
    }

    #[test]
    fn accepts_port_443_of_any_name_and_labels_without_a_pod() {
        for port in [json!({"name": "tls", "port": 443}), json!({"port": 443})] {
            let found = service("gw", json!({"istio": "gw"}), json!([port]));
            // If no pod runs, a Certificate shows the namespace of the Gateway's Secret.
            let certificate = json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"namespace": "mesh", "name": "root"},
                "spec": {"secretName": "root", "issuerRef": {"name": "mesh"}},
            });
            let comments = comments(&[hosts(), found, certificate]);
            assert!(comments.contains("behind Service gw"), "{comments}");
        }
    }

    #[test]
    fn rejects_services_that_select_no_gateway_or_other_pods() {
        let (https, gw) = (
            json!([{"name": "https", "port": 443}]),
            pod(json!({"istio": "gw", "app": "gw", "zone": "a", "team": "x"})),
        );
        for (what, object) in [
            ("another selector", service("gw", json!({"app": "other"}), https.clone())),
            ("no selector", service("gw", json!({}), https.clone())),
            ("other pods, too", service("gw", json!({"team": "x"}), https)),
            ("no such port", service("gw", json!({"istio": "gw"}), json!([{"name": "http", "port": 80}]))),
        ] {
            let also = pod(json!({"istio": "gw", "app": "gw", "zone": "b", "team": "x"}));
            let stranger = pod(json!({"team": "x"}));
            let comments = comments(&[hosts(), gw.clone(), also, stranger, object]);
            assert!(
                comments.contains("no gateway can be probed yet") && comments.contains("istio=gw"),
                "{what}: {comments}"
            );
        }
    }

    #[test]
    fn a_service_of_some_gateways_is_probed_and_the_others_are_counted() {
        let zone = |zone: &str| pod(json!({"istio": "gw", "zone": zone}));
        let service = service("gw", json!({"zone": "a"}), json!([{"name": "https", "port": 443}]));
        let comments = comments(&[hosts(), zone("a"), zone("b"), service]);
        assert!(
            comments.contains("behind Service gw") && comments.contains("does not select 1 pod with"),
            "{comments}"
        );
    }

    #[test]
    fn rejects_a_wildcard_as_the_host() {
        let found = service("gw", json!({"istio": "gw"}), json!([{"name": "https", "port": 443}]));
        let comments = comments(&[gateway(json!(["*", "*.example.com"])), pod(json!({"istio": "gw"})), found]);
        assert!(comments.contains("no gateway can be probed yet: no Gateway presents it for a host"), "{comments}");
    }
}
