//! Ingress gateways: real Envoys that get their configuration and their Secrets from istiod.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    endpoints::{endpoint_slice, own_address},
    envoy::{Envoy, Secrets, at},
    istiod::{Istiod, SERVER_NAME},
    process::Scratch,
    wait::free_port,
};

/// The ServiceAccount of the gateways' pods, and the name of their Service.
const NAME: &str = "ingressgateway";
/// The port that Gateways name. Each proxy listens on a separate port, to which the named target port of the Service
/// maps.
pub(crate) const GATEWAY_PORT: u16 = 443;

/// The gateways of one namespace: their pods are labelled `istio: <label>`. Istio's selectors are cluster-wide, so each
/// namespace has another label.
pub(crate) struct Ingress {
    envoys: Vec<Envoy>,
    ports: Vec<u16>,
}

impl Ingress {
    /// Creates the Service, the ServiceAccount with its rights, and a Pod object and an EndpointSlice for each gateway.
    /// Starts the Envoys, and waits until istiod has configured them.
    pub(crate) fn start(
        cluster: &Cluster,
        istiod: &Istiod,
        scratch: &Scratch,
        ns: &str,
        label: &str,
        count: u8,
    ) -> Result<Self> {
        // Another process may take a port between its choice and its use. That is unlikely, and fails as a gateway that
        // does not become ready.
        let ports = (0..count).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        cluster.apply(ns, &objects(ns, label, &ports).to_string())?;
        for port in &ports {
            cluster.apply(ns, &endpoint_slice(NAME, (own_address()?, *port).into()).to_string())?;
        }
        let certificates = scratch.join("proxy");
        istiod.issue_proxy(ns, NAME, &certificates)?;
        let mut envoys = Vec::new();
        for number in 0..count {
            let name = gateway_name(number.into());
            let dynamic = bootstrap(istiod, &certificates.display().to_string(), ns, label, number);
            envoys.push(Envoy::start_dynamic(scratch, &name, dynamic)?);
        }
        Ok(Self { envoys, ports })
    }

    /// The address on loopback of each gateway.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    /// Each gateway's name and secrets.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (String, &Secrets)> {
        self.envoys.iter().enumerate().map(|(number, envoy)| (gateway_name(number), envoy.secrets()))
    }

    /// Kills a gateway's Envoy, starts it again, and waits until istiod has configured it.
    pub(crate) fn restart(&mut self, scratch: &Scratch, number: usize) -> Result<()> {
        self.envoys[number].restart(scratch)
    }

    /// Kills a gateway's Envoy; [`start_again`](Self::start_again) follows.
    pub(crate) fn kill(&mut self, number: usize) -> Result<()> {
        self.envoys[number].kill()
    }

    /// Starts a killed Envoy, and waits until istiod has configured it.
    pub(crate) fn start_again(&mut self, scratch: &Scratch, number: usize) -> Result<()> {
        self.envoys[number].start_again(scratch)
    }

    /// The last lines of each Envoy's log.
    pub(crate) fn log_tails(&self) -> String {
        self.envoys.iter().map(Envoy::log_tail).collect()
    }
}

/// The name of a gateway's pod.
pub(crate) fn gateway_name(number: usize) -> String {
    format!("{NAME}-{number}")
}

fn objects(ns: &str, label: &str, ports: &[u16]) -> Value {
    let labels = json!({ "istio": label });
    let mut items = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": NAME } }),
        // istiod checks with the API server whether the proxy's ServiceAccount may read Secrets here.
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": NAME },
            "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch", "list"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": NAME },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME },
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": ns }],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
            "spec": { "selector": labels, "ports": [{ "name": "https", "port": GATEWAY_PORT, "targetPort": "https" }] },
        }),
    ];
    items.extend(ports.iter().enumerate().map(|(number, port)| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": gateway_name(number), "labels": labels },
            "spec": {
                "serviceAccountName": NAME,
                // The process is the pod. A node must not run another.
                "schedulerName": "none",
                "containers": [{
                    "name": "envoy", "image": "envoy", "ports": [{ "name": "https", "containerPort": port }],
                }],
            },
        })
    }));
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// Node and configuration sources of an Istio proxy (istio.io, "Envoy bootstrap configuration").
fn bootstrap(istiod: &Istiod, certificates: &str, ns: &str, label: &str, number: u8) -> Value {
    let address = format!("127.0.0.{}", number + 1);
    let ads = json!({ "ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3" });
    let file = |name: &str| json!({ "filename": format!("{certificates}/{name}") });
    let name = json!({ "san_type": "DNS", "matcher": { "exact": SERVER_NAME } });
    let tls = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "sni": SERVER_NAME,
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [{ "certificate_chain": file("tls.crt"), "private_key": file("tls.key") }],
            "validation_context": { "trusted_ca": file("ca.crt"), "match_typed_subject_alt_names": [name] },
        },
    });
    json!({
        "node": {
            "id": format!("router~{address}~{NAME}-{number}.{ns}~{ns}.svc.cluster.local"),
            "cluster": format!("{NAME}.{ns}"),
            "metadata": {
                "NAMESPACE": ns, "SERVICE_ACCOUNT": NAME, "ISTIO_VERSION": "1.31.0", "CLUSTER_ID": "Kubernetes",
                "MESH_ID": "cluster.local", "INSTANCE_IPS": address, "LABELS": { "istio": label },
            },
        },
        "dynamic_resources": {
            "lds_config": ads,
            "cds_config": ads,
            "ads_config": {
                "api_type": "GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }],
            },
        },
        "static_resources": { "clusters": [{
            "name": "xds-grpc",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": { "cluster_name": "xds-grpc", "endpoints": [{
                "lb_endpoints": [{ "endpoint": { "address": at(istiod.xds) } }],
            }] },
            "transport_socket": { "name": "tls", "typed_config": tls },
            "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            } },
        }] },
    })
}
