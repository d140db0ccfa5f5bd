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
    /// Name of the Service, and prefix of the pods' names.
    name: &'static str,
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
        Self::start_named(cluster, istiod, scratch, (ns, NAME), label, count)
    }

    /// The same with another name of the Service and of its ServiceAccount: a namespace can have several.
    pub(crate) fn start_named(
        cluster: &Cluster,
        istiod: &Istiod,
        scratch: &Scratch,
        (ns, name): (&str, &'static str),
        label: &str,
        count: u8,
    ) -> Result<Self> {
        // Another process may take a port between its choice and its use. That is unlikely, and fails as a gateway that
        // does not become ready.
        let ports = (0..count).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        cluster.apply(ns, &objects(ns, name, label, &ports).to_string())?;
        let mut ingress = Self { name, envoys: Vec::new(), ports };
        for number in 0..count {
            ingress.publish(cluster, ns, number.into())?;
        }
        for number in 0..count {
            ingress.start_envoy(istiod, scratch, ns, label, number)?;
        }
        Ok(ingress)
    }

    /// Adds a gateway that gets its configuration from this istiod. Its pod exists, but is no endpoint of the Service until
    /// [`publish`](Self::publish). Returns its number.
    pub(crate) fn add(
        &mut self,
        cluster: &Cluster,
        istiod: &Istiod,
        scratch: &Scratch,
        (ns, label): (&str, &str),
    ) -> Result<usize> {
        let (number, port) = (self.ports.len(), free_port()?);
        cluster.apply(ns, &pod(self.name, &json!({ "istio": label }), number, port).to_string())?;
        self.ports.push(port);
        self.start_envoy(istiod, scratch, ns, label, u8::try_from(number)?)?;
        Ok(number)
    }

    /// Creates the EndpointSlice of a gateway.
    pub(crate) fn publish(&self, cluster: &Cluster, ns: &str, number: usize) -> Result<()> {
        let slice = endpoint_slice(self.name, (own_address()?, self.ports[number]).into());
        cluster.apply(ns, &slice.to_string()).map(drop)
    }

    fn start_envoy(&mut self, istiod: &Istiod, scratch: &Scratch, ns: &str, label: &str, number: u8) -> Result<()> {
        let name = pod_name(self.name, number.into());
        let certificates = scratch.join(&format!("proxy-{name}"));
        istiod.issue_proxy(ns, self.name, &certificates)?;
        let dynamic = bootstrap(istiod, &certificates.display().to_string(), (ns, self.name), label, number);
        self.envoys.push(Envoy::start_dynamic(scratch, &name, dynamic)?);
        Ok(())
    }

    /// The address on loopback of each gateway.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    /// Each gateway's name and secrets.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (String, &Secrets)> {
        let name = self.name;
        self.envoys.iter().enumerate().map(move |(number, envoy)| (pod_name(name, number), envoy.secrets()))
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
    pod_name(NAME, number)
}

fn pod_name(name: &str, number: usize) -> String {
    format!("{name}-{number}")
}

fn objects(ns: &str, name: &str, label: &str, ports: &[u16]) -> Value {
    let labels = json!({ "istio": label });
    let mut items = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } }),
        // istiod checks with the API server whether the proxy's ServiceAccount may read Secrets here.
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name },
            "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "watch", "list"] }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": ns }],
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "selector": labels, "ports": [{ "name": "https", "port": GATEWAY_PORT, "targetPort": "https" }] },
        }),
    ];
    items.extend(ports.iter().enumerate().map(|(number, port)| pod(name, &labels, number, *port)));
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

fn pod(name: &str, labels: &Value, number: usize, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod_name(name, number), "labels": labels },
        "spec": {
            "serviceAccountName": name,
            // The process is the pod. A node must not run another.
            "schedulerName": "none",
            "containers": [{
                "name": "envoy", "image": "envoy", "ports": [{ "name": "https", "containerPort": port }],
            }],
        },
    })
}

/// Node and configuration sources of an Istio proxy (istio.io, "Envoy bootstrap configuration").
fn bootstrap(istiod: &Istiod, certificates: &str, (ns, pods): (&str, &str), label: &str, number: u8) -> Value {
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
            "id": format!("router~{address}~{}.{ns}~{ns}.svc.cluster.local", pod_name(pods, number.into())),
            "cluster": format!("{pods}.{ns}"),
            "metadata": {
                "NAMESPACE": ns, "SERVICE_ACCOUNT": pods, "ISTIO_VERSION": "1.31.0", "CLUSTER_ID": "Kubernetes",
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
