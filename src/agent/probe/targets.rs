//! Where the gateways are: the EndpointSlices of their Service.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::ListParams;
use kube::{Api, Client};

use super::super::AgentError;
use crate::api::ProbeTarget;

/// The label by which an EndpointSlice says whose it is (Kubernetes, "EndpointSlices": Ownership).
const SERVICE: &str = "kubernetes.io/service-name";

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its address, as people see it.
    pub(super) address: String,
    /// Name of its pod, where the slice says it.
    pub(super) pod: Option<String>,
    /// Where to connect, or why that is not known.
    pub(super) socket: Result<SocketAddr, String>,
}

/// The gateways behind a Service.
///
/// # Errors
/// When its EndpointSlices cannot be listed.
pub(super) async fn of(client: &Client, namespace: &str, reach: &ProbeTarget) -> Result<Vec<Target>, AgentError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("{SERVICE}={}", reach.service_name));
    let slices = api
        .list(&params)
        .await
        .map_err(|error| AgentError::api("list", "endpointslices", &reach.service_name, error))?;
    Ok(targets(&slices.items, &reach.port_name))
}

/// Each address once: while a Service changes, an endpoint may stand in two slices.
fn targets(slices: &[EndpointSlice], port_name: &str) -> Vec<Target> {
    let mut targets = BTreeMap::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref().unwrap_or_default() == port_name).and_then(|port| port.port);
        let port = port.and_then(|port| u16::try_from(port).ok());
        // All addresses of an endpoint are the same pod's.
        let addresses = slice.endpoints.iter().flatten().filter(|endpoint| is_there(endpoint));
        for (endpoint, address) in addresses.filter_map(|endpoint| Some((endpoint, endpoint.addresses.first()?))) {
            let socket = match (address.parse::<IpAddr>(), port) {
                (Ok(ip), Some(port)) => Ok(SocketAddr::new(ip, port)),
                (Ok(_), None) => Err(format!("it has no port called {port_name:?}")),
                (Err(_), _) => Err("it is not an IP address".to_owned()),
            };
            let address = socket.as_ref().map_or_else(|_| address.clone(), SocketAddr::to_string);
            targets.insert(address.clone(), Target { address, pod: pod(endpoint), socket });
        }
    }
    targets.into_values().collect()
}

fn pod(endpoint: &Endpoint) -> Option<String> {
    endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?.name.clone()
}

/// One that is not ready may be soon. One that ends and takes no more connections is gone.
fn is_there(endpoint: &Endpoint) -> bool {
    let Some(conditions) = &endpoint.conditions else { return true };
    !conditions.terminating.unwrap_or(false) || conditions.serving.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn addresses(slices: &[Value]) -> Vec<(String, bool)> {
        let slices: Vec<_> =
            slices.iter().map(|slice| serde_json::from_value(slice.clone()).expect("a slice")).collect();
        targets(&slices, "https").into_iter().map(|target| (target.address, target.socket.is_ok())).collect()
    }

    fn slice(ports: &Value, endpoints: &Value) -> Value {
        json!({ "metadata": {}, "addressType": "IPv4", "ports": ports, "endpoints": endpoints })
    }

    #[test]
    fn accepts_every_endpoint_of_every_slice_once() {
        let ports = json!([{ "name": "status", "port": 15021 }, { "name": "https", "port": 8443 }]);
        let one = slice(
            &ports,
            &json!([{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.2"], "conditions": { "ready": false } }]),
        );
        let two = slice(&json!([{ "name": "https", "port": 9443 }]), &json!([{ "addresses": ["fd00::1"] }]));
        let expected =
            ["10.0.0.1:8443", "10.0.0.2:8443", "[fd00::1]:9443"].map(|address| (address.to_owned(), true)).to_vec();
        assert_eq!(addresses(&[one.clone(), two, one]), expected);
    }

    #[test]
    fn a_pod_is_named_where_the_slice_says_it() {
        let endpoint =
            |kind: &str| json!({ "addresses": ["10.0.0.1"], "targetRef": { "kind": kind, "name": "gateway-a" } });
        let pod = |endpoint: Value| {
            let slice = slice(&json!([{ "name": "https", "port": 8443 }]), &json!([endpoint]));
            targets(&[serde_json::from_value(slice).expect("a slice")], "https").remove(0).pod
        };
        assert_eq!(pod(endpoint("Pod")), Some("gateway-a".to_owned()));
        assert_eq!(pod(endpoint("VirtualMachine")), None);
        assert_eq!(pod(json!({ "addresses": ["10.0.0.1"] })), None);
    }

    #[test]
    fn accepts_one_that_ends_as_long_as_it_serves() {
        let endpoint = |address: &str, serving: bool| {
            let conditions = json!({ "ready": false, "serving": serving, "terminating": true });
            json!({ "addresses": [address], "conditions": conditions })
        };
        let endpoints = json!([endpoint("10.0.0.1", true), endpoint("10.0.0.2", false)]);
        let seen = addresses(&[slice(&json!([{ "name": "https", "port": 8443 }]), &endpoints)]);
        assert_eq!(seen, [("10.0.0.1:8443".to_owned(), true)]);
    }

    #[test]
    fn rejects_to_connect_where_nobody_says_how() {
        let endpoints = json!([{ "addresses": ["10.0.0.1"] }]);
        let other_port = slice(&json!([{ "name": "http2", "port": 8080 }]), &endpoints);
        assert_eq!(addresses(&[other_port]), [("10.0.0.1".to_owned(), false)]);
        let name = slice(&json!([{ "name": "https", "port": 8443 }]), &json!([{ "addresses": ["gateway.example"] }]));
        assert_eq!(addresses(&[name]), [("gateway.example".to_owned(), false)]);
    }
}
