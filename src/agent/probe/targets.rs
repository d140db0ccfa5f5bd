//! The gateways' addresses, from the EndpointSlices of their Service.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::ListParams;
use kube::{Api, Client};

use super::super::AgentError;
use crate::api::ProbeTarget;

/// The label that names an EndpointSlice's Service (Kubernetes, "EndpointSlices": Ownership).
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// An endpoint of the gateways' Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its address, for messages.
    pub(super) address: String,
    /// Name of its pod, if the EndpointSlice names it.
    pub(super) pod: Option<String>,
    /// The socket address, or why it is unknown.
    pub(super) socket: Result<SocketAddr, String>,
}

/// The endpoints of a Service, listed with these parameters.
///
/// # Errors
/// When its EndpointSlices cannot be listed.
pub(super) async fn of(
    client: &Client,
    namespace: &str,
    target: &ProbeTarget,
    params: ListParams,
) -> Result<Vec<Target>, AgentError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let params = params.labels(&format!("{SERVICE_NAME_LABEL}={}", target.service_name));
    let slices = api
        .list(&params)
        .await
        .map_err(|error| AgentError::api("list", "endpointslices", &target.service_name, error))?;
    Ok(targets(&slices.items, &target.port_name))
}

/// The endpoints, each address once: while a Service changes, two EndpointSlices can contain the same endpoint.
fn targets(slices: &[EndpointSlice], port_name: &str) -> Vec<Target> {
    let mut targets = BTreeMap::new();
    for slice in slices {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref().unwrap_or_default() == port_name).and_then(|port| port.port);
        let port = port.and_then(|port| u16::try_from(port).ok());
        // All addresses of an endpoint belong to the same pod.
        let addresses = slice.endpoints.iter().flatten().filter(|endpoint| can_serve(endpoint));
        for (endpoint, address) in addresses.filter_map(|endpoint| Some((endpoint, endpoint.addresses.first()?))) {
            let socket = match (address.parse::<IpAddr>(), port) {
                (Ok(ip), Some(port)) => Ok(SocketAddr::new(ip, port)),
                (Ok(_), None) => Err(format!("its EndpointSlice has no port named {port_name:?}")),
                (Err(_), _) => Err("its address is not an IP address".to_owned()),
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

/// Whether an endpoint accepts connections, or will. One that terminates and accepts no more connections does not.
fn can_serve(endpoint: &Endpoint) -> bool {
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
    fn lists_each_endpoint_once() {
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
    fn pods_are_named_by_the_target_reference() {
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
    fn lists_terminating_endpoints_while_they_serve() {
        let endpoint = |address: &str, serving: bool| {
            let conditions = json!({ "ready": false, "serving": serving, "terminating": true });
            json!({ "addresses": [address], "conditions": conditions })
        };
        let endpoints = json!([endpoint("10.0.0.1", true), endpoint("10.0.0.2", false)]);
        let listed = addresses(&[slice(&json!([{ "name": "https", "port": 8443 }]), &endpoints)]);
        assert_eq!(listed, [("10.0.0.1:8443".to_owned(), true)]);
    }

    #[test]
    fn endpoints_without_a_port_or_an_ip_address_have_no_socket() {
        let endpoints = json!([{ "addresses": ["10.0.0.1"] }]);
        let other_port = slice(&json!([{ "name": "http2", "port": 8080 }]), &endpoints);
        assert_eq!(addresses(&[other_port]), [("10.0.0.1".to_owned(), false)]);
        let name = slice(&json!([{ "name": "https", "port": 8443 }]), &json!([{ "addresses": ["gateway.example"] }]));
        assert_eq!(addresses(&[name]), [("gateway.example".to_owned(), false)]);
    }
}
