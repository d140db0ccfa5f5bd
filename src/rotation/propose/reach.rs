//! How the agent may reach a root's gateways, as far as Services tell.

use super::roots::Root;
use super::{Found, name};
use crate::api::Reach;
use crate::rotation::reach::service;

/// `spec.reach`, and what is to be said of it: what is not known, or why there is none.
pub(super) fn reach(found: &Found, root: &Root<'_>) -> (Option<Reach>, Vec<String>) {
    let without = |why: &str| {
        let comment = format!(
            "spec.reach is left out: {why}. The agent looks for the gateways' Service and hosts by itself; until it finds them, \
             the agent relies on propagation delays alone"
        );
        (None, vec![comment])
    };
    let Some(host) = root.hosts().find(|host| name::check(host).is_ok()) else {
        return without("no Gateway serves a host with it that is no wildcard");
    };
    let labels = root.workload_labels();
    let (service_name, port_name) = match service(found.objects.iter(), root.namespace, &labels) {
        Ok(service) => service,
        Err(why) => return without(&why),
    };
    let comments = vec![
        format!(
            "the agent looks at all pods behind Service {service_name}, and asks them for {host}: it has to be let through to them \
             (NetworkPolicy, firewall)"
        ),
        "reach.canarySecretName is not known: the agent signs a client's certificate for some minutes, where the Secret of the clients' \
         CA holds its key"
            .to_owned(),
    ];
    (Some(Reach { service_name, port_name, host: host.to_owned(), canary_secret_name: None }), comments)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rotation::propose::propose;

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

    /// `spec.reach`, and all comments.
    fn proposed(objects: &[Value]) -> (Option<Reach>, String) {
        let proposals = propose(&Found { objects: objects.to_vec(), ..Found::default() });
        let [proposal] = &proposals.gateway_secrets[..] else { panic!("one proposal, not {proposals:?}") };
        (proposal.entry.spec.reach.clone(), proposal.comments.join("\n"))
    }

    fn hosts() -> Value {
        gateway(json!(["*.example.com", "apps/shop.example.com"]))
    }

    #[test]
    fn accepts_the_service_of_the_gateways_and_says_what_is_not_known() {
        let https = json!([{"name": "http2", "port": 80}, {"name": "https", "port": 8443}]);
        let others = service("other", json!({"app": "other"}), https.clone());
        let objects =
            [hosts(), pod(json!({"istio": "gw", "app": "gw"})), others, service("gw", json!({"app": "gw"}), https)];
        let (reach, comments) = proposed(&objects);
        let expected = json!({"serviceName": "gw", "portName": "https", "host": "shop.example.com"});
        assert_eq!(serde_json::to_value(reach).unwrap(), expected);
        assert!(comments.contains("canarySecretName is not known") && comments.contains("NetworkPolicy"), "{comments}");
    }

    #[test]
    fn accepts_port_443_of_any_name_and_labels_without_a_pod() {
        for (port, name) in [(json!({"name": "tls", "port": 443}), "tls"), (json!({"port": 443}), "")] {
            let found = service("gw", json!({"istio": "gw"}), json!([port]));
            // Where no pod runs, a Certificate says in which namespace the Gateway's Secret is.
            let certificate = json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"namespace": "mesh", "name": "root"},
                "spec": {"secretName": "root", "issuerRef": {"name": "mesh"}},
            });
            assert_eq!(proposed(&[hosts(), found, certificate]).0.unwrap().port_name, name);
        }
    }

    #[test]
    fn rejects_services_that_miss_a_gateway_or_lead_elsewhere() {
        let (https, gw) = (
            json!([{"name": "https", "port": 443}]),
            pod(json!({"istio": "gw", "app": "gw", "zone": "a", "team": "x"})),
        );
        for (what, object) in [
            ("another selector", service("gw", json!({"app": "other"}), https.clone())),
            ("no selector", service("gw", json!({}), https.clone())),
            ("one of two zones", service("gw", json!({"zone": "a"}), https.clone())),
            ("other pods, too", service("gw", json!({"team": "x"}), https)),
            ("no such port", service("gw", json!({"istio": "gw"}), json!([{"name": "http", "port": 80}]))),
        ] {
            let also = pod(json!({"istio": "gw", "app": "gw", "zone": "b", "team": "x"}));
            let stranger = pod(json!({"team": "x"}));
            let (reach, comments) = proposed(&[hosts(), gw.clone(), also, stranger, object]);
            assert_eq!(reach, None, "{what}");
            assert!(comments.contains("spec.reach is left out") && comments.contains("istio=gw"), "{what}: {comments}");
        }
    }

    #[test]
    fn rejects_a_wildcard_as_the_host() {
        let found = service("gw", json!({"istio": "gw"}), json!([{"name": "https", "port": 443}]));
        let (reach, comments) = proposed(&[gateway(json!(["*", "*.example.com"])), pod(json!({"istio": "gw"})), found]);
        assert!(reach.is_none() && comments.contains("no wildcard"), "{comments}");
    }
}
