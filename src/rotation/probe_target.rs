//! How the agent connects to the gateways: by `probe.target`, or derived from Services and Gateways.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::gateway_service::{GatewayService, service};
use super::readers::is_looked_up_by;
use crate::api::names::check_object_name;
use crate::api::{Kind, ProbeTarget};
use crate::json::Json;
use crate::registry::Entry;
use crate::rewrite::{TlsSettings, TrustSource, tls_settings};

/// The most hosts that a probe requests, one after the other, until the gateway presents a certificate.
const HOSTS: usize = 8;
/// The label in place of the wildcard of a host.
const PROBED: &str = "trustspan-probe";

/// How gateways are reached, and the hosts to request: those for which gateways present the managed Secret and verify clients by it. A
/// proxy has one copy of a Secret for all of its hosts (Envoy's SDS), so one host is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The Service and its port, and the canary.
    pub reach: ProbeTarget,
    /// The hosts, at least one.
    pub hosts: Vec<String>,
    /// Pods with the gateways' labels that the Service does not select: they cannot be probed.
    pub unselected: Vec<String>,
}

/// How to probe the gateways of a GatewaySecret: by `probe.target`, or derived from these objects. `services` are those of its namespace.
///
/// # Errors
/// Why they are not probed: part of a sentence.
pub fn probe<'o>(
    entry: &Entry,
    gateways: impl IntoIterator<Item = &'o Value>,
    pods: &[&Value],
    services: &[Value],
) -> Result<Probe, String> {
    if entry.policy.probe.mode == crate::api::ProbeMode::Disabled {
        return Err("probe.mode is Disabled in the RotationPolicy".to_owned());
    }
    if let Some(reach) = &entry.policy.probe.target {
        return Ok(Probe { reach: reach.clone(), hosts: vec![reach.host.clone()], unselected: Vec::new() });
    }
    let hosts = hosts(entry, gateways, pods);
    let host = hosts
        .first()
        .ok_or("no Gateway that trustspan knows serves the managed Secret and takes its clients' CAs from it")?;
    let labels: BTreeMap<_, _> =
        entry.spec.workload_labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let objects = pods.iter().copied().chain(services);
    let GatewayService { name: service_name, port_name, unselected } = service(objects, &entry.namespace, &labels)?;
    let reach = ProbeTarget { service_name, port_name, host: host.clone(), client_secret_name: None };
    Ok(Probe { reach, hosts, unselected })
}

/// The hosts of servers that present the managed Secret and verify clients by it, alternating between namespaces.
fn hosts<'o>(entry: &Entry, gateways: impl IntoIterator<Item = &'o Value>, pods: &[&Value]) -> Vec<String> {
    let mut by_namespace: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for object in gateways {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let json = Json::from(object);
        let found = tls_settings(Kind::of(&json), &json, namespace);
        let found = found.iter().filter(|settings| follows(settings, entry, pods));
        let hosts = found.flat_map(|settings| &settings.hosts).filter_map(|host| asked_for(host));
        by_namespace.entry(namespace).or_default().extend(hosts);
    }
    let mut turns: Vec<_> = by_namespace.into_values().map(BTreeSet::into_iter).collect();
    let mut hosts = Vec::new();
    loop {
        let before = hosts.len();
        for host in turns.iter_mut().filter_map(Iterator::next) {
            if hosts.len() < HOSTS && !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        if hosts.len() == before {
            return hosts;
        }
    }
}

fn follows(settings: &TlsSettings<'_>, entry: &Entry, pods: &[&Value]) -> bool {
    let presents = settings
        .presents
        .iter()
        .any(|named| named.name == entry.managed_name() && is_looked_up_by(&named.place, entry, pods));
    let trusts = matches!(
        &settings.trust,
        TrustSource::Secret { place, name } if *name == entry.managed_name() && is_looked_up_by(place, entry, pods)
    );
    presents && trusts && !settings.is_upstream
}

/// The name that a client would request (SNI): Istio hosts may have a namespace as prefix, and in both APIs the first label may be a wildcard.
fn asked_for(host: &str) -> Option<String> {
    let host = host.rsplit_once('/').map_or(host, |(_, host)| host);
    let name = match host.strip_prefix("*.") {
        Some(rest) => format!("{PROBED}.{rest}"),
        None => host.to_owned(),
    };
    check_object_name(&name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;

    fn gateway(namespace: &str, tls: Value, hosts: Value) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": {"namespace": namespace, "name": "public"},
            "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"hosts": hosts, "tls": tls}]},
        })
    }

    fn mutual(hosts: Value) -> Value {
        gateway("apps", json!({"mode": "MUTUAL", "credentialName": "gw"}), hosts)
    }

    fn service() -> Value {
        json!({
            "kind": "Service", "metadata": {"namespace": "mesh", "name": "ingress"},
            "spec": {"selector": {"istio": "ingressgateway"}, "ports": [{"name": "https", "port": 443}]},
        })
    }

    fn hosts_of(gateways: &[Value]) -> Result<Vec<String>, String> {
        probe(&entry("mesh", "root", "gw"), gateways, &[], &[service()]).map(|probe| probe.hosts)
    }

    #[test]
    fn the_service_and_the_hosts_of_the_managed_secret_are_found() {
        let gateway = mutual(json!(["apps/shop.example.com", "*.example.org", "*"]));
        let found = probe(&entry("mesh", "root", "gw"), [&gateway], &[], &[service()]).unwrap();
        assert_eq!((found.reach.service_name.as_str(), found.reach.port_name.as_str()), ("ingress", "https"));
        assert_eq!(found.hosts, ["shop.example.com", "trustspan-probe.example.org"]);
        assert_eq!(found.reach.client_secret_name, None);
    }

    #[test]
    fn ignores_hosts_that_do_not_verify_clients_by_the_managed_secret() {
        let host = || json!(["shop.example.com"]);
        for tls in [
            json!({"mode": "SIMPLE", "credentialName": "gw"}),
            json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": "partners-cacert"}),
            json!({"mode": "MUTUAL", "credentialName": "root"}),
        ] {
            let why = hosts_of(&[gateway("apps", tls.clone(), host())]).unwrap_err();
            assert!(why.contains("no Gateway"), "{tls}: {why}");
        }
    }

    #[test]
    fn a_namespace_with_many_hosts_leaves_room_for_others() {
        let many: Vec<_> = (0..20).map(|at| format!("a{at}.example.com")).collect();
        let other = gateway("zoo", json!({"mode": "MUTUAL", "credentialName": "gw"}), json!(["zoo.example.com"]));
        let hosts = hosts_of(&[mutual(json!(many)), other]).unwrap();
        assert!(hosts.len() == HOSTS && hosts.contains(&"zoo.example.com".to_owned()), "{hosts:?}");
    }

    #[test]
    fn the_policy_takes_precedence() {
        let mut entry = entry("mesh", "root", "gw");
        let target = ProbeTarget {
            service_name: "other".to_owned(),
            port_name: "tls".to_owned(),
            host: "a.example.com".to_owned(),
            client_secret_name: None,
        };
        entry.policy.probe.target = Some(target.clone());
        let objects = [mutual(json!(["shop.example.com"]))];
        let found = probe(&entry, &objects, &[], &[service()]).unwrap();
        assert_eq!((found.reach, found.hosts), (target, vec!["a.example.com".to_owned()]));
        entry.policy.probe.mode = crate::api::ProbeMode::Disabled;
        assert!(probe(&entry, &objects, &[], &[service()]).unwrap_err().contains("probe.mode"));
    }

    #[test]
    fn without_a_service_the_reason_says_what_it_must_select() {
        let why = probe(&entry("mesh", "root", "gw"), [&mutual(json!(["a.example.com"]))], &[], &[]).unwrap_err();
        assert!(why.contains("no Service in namespace mesh") && why.contains("istio=ingressgateway"), "{why}");
    }
}
