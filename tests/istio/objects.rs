//! What users write: Gateways with their routes, and the GatewaySecret.

use serde_json::{Value, json};

use crate::{
    issuer::{MANAGED, PROMOTED, ROOT, SERVER},
    testbed::{self, GATEWAY_PORT},
};

/// Propagation delays that are longer than istiod and the clients need.
pub(crate) fn rotation_policy() -> Value {
    testbed::rotation_policy(&json!({ "propagationDelays": { "gateways": "2s", "clients": "2s", "admission": "1s" } }))
}

/// The same with another name and propagation delay of gateways.
pub(crate) fn rotation_policy_of(name: &str, gateways: &str) -> Value {
    let mut policy = rotation_policy();
    policy["metadata"]["name"] = name.into();
    policy["spec"]["propagationDelays"]["gateways"] = gateways.into();
    policy
}

/// The GatewaySecret of most scenarios.
pub(crate) fn gateway_secret(ns: &str) -> Value {
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": "gateway" },
        "spec": {
            "sourceSecretName": SERVER, "caSecretRef": { "name": ROOT }, "issuerSecretName": PROMOTED,
            "secretName": MANAGED, "workloadLabels": { "istio": ns }, "clients": { "allDeclared": true },
        },
    })
}

/// A Gateway of one server for one host with these TLS settings.
pub(crate) fn gateway(ns: &str, name: &str, host: &str, tls: &Value) -> Value {
    gateway_of(ns, name, &[host], tls)
}

/// A Gateway of one server for these hosts.
pub(crate) fn gateway_of(ns: &str, name: &str, hosts: &[&str], tls: &Value) -> Value {
    gateway_of_pods(ns, name, hosts, tls)
}

/// The same at gateways whose pods are labelled `istio: <label>`.
pub(crate) fn gateway_of_pods(label: &str, name: &str, hosts: &[&str], tls: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": { "name": name },
        "spec": {
            "selector": { "istio": label },
            "servers": [{
                "port": { "number": GATEWAY_PORT, "name": format!("https-{name}"), "protocol": "HTTPS" },
                "hosts": hosts,
                "tls": tls,
            }],
        },
    })
}

/// A Gateway of the Gateway API for one host at the same gateways, which takes its clients' CAs from a ConfigMap.
pub(crate) fn gateway_api(ns: &str, name: &str, host: &str, config_map: &str) -> Value {
    let validation = json!({ "caCertificateRefs": [{ "group": "", "kind": "ConfigMap", "name": config_map }] });
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "name": name },
        "spec": {
            "gatewayClassName": "istio",
            // The address of a proxy that istiod does not deploy.
            "addresses": [{ "type": "Hostname", "value": format!("ingressgateway.{ns}.svc.cluster.local") }],
            "tls": { "frontend": { "default": { "validation": validation } } },
            "listeners": [{
                "name": "https", "hostname": host, "port": GATEWAY_PORT, "protocol": "HTTPS",
                "tls": { "mode": "Terminate", "certificateRefs": [{ "name": SERVER }] },
            }],
        },
    })
}

/// A route of a Gateway of the Gateway API to a Service.
pub(crate) fn http_route(gateway: &str, host: &str, service: &str, port: u16) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": { "name": gateway },
        "spec": {
            "parentRefs": [{ "name": gateway }], "hostnames": [host],
            "rules": [{ "backendRefs": [{ "name": service, "port": port }] }],
        },
    })
}

/// A route of a Gateway with a direct response, without an upstream.
pub(crate) fn route(gateway: &str, hosts: &[&str]) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": { "name": gateway },
        "spec": { "hosts": hosts, "gateways": [gateway], "http": [{ "directResponse": { "status": 200 } }] },
    })
}

/// The Certificate of a declared client.
pub(crate) fn client(name: &str, issuer: &str) -> Value {
    let template = json!({ "labels": { "trustspan.dev/client": "gateway" } });
    json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
        "spec": {
            "secretName": name, "commonName": name, "usages": ["digital signature", "client auth"],
            "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
            "issuerRef": { "name": issuer, "kind": "Issuer" }, "secretTemplate": template,
        },
    })
}

/// An Issuer that signs with the CA in a Secret.
pub(crate) fn ca_issuer(name: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": { "name": name },
        "spec": { "ca": { "secretName": secret } },
    })
}

/// A serving Certificate of the clients' Issuer that trustspan does not manage.
pub(crate) fn certificate(name: &str, host: &str, algorithm: &str, size: u32) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
        "spec": {
            "secretName": name, "commonName": name, "dnsNames": [host],
            "usages": ["digital signature", "key encipherment", "server auth"],
            "privateKey": { "algorithm": algorithm, "size": size, "rotationPolicy": "Always" },
            "issuerRef": { "name": "ca", "kind": "Issuer" },
        },
    })
}
