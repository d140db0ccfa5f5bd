//! The TLS settings of each kind, compared with a table that was written from istiod's source code.

use super::*;

/// The source of the CAs, as the table names it.
fn source(trust: &TrustSource<'_>) -> String {
    match trust {
        TrustSource::NotVerified => "not verified".to_owned(),
        TrustSource::Secret { name, place: Place::Granted { namespace, .. } } => {
            format!("{namespace}/{name}-cacert or {name}")
        }
        TrustSource::Secret { name, .. } => format!("{name}-cacert or {name}"),
        TrustSource::ConfigMap { namespace, name } => format!("configmap {namespace}/{name}"),
        TrustSource::Nothing(name) => format!("nothing: {name}"),
        TrustSource::Unknowable(what) => format!("unknown: {what}"),
    }
}

fn read(object: &Value, namespace: &str) -> Vec<(String, Vec<String>, String)> {
    let object = &Json::from(object);
    let settings = tls_settings(Kind::of(object), object, namespace);
    let presents = |settings: &TlsSettings<'_>| settings.presents.iter().map(|named| named.name.to_owned()).collect();
    settings.iter().map(|tls| (tls.field(), presents(tls), source(&tls.trust))).collect()
}

fn of_istio(tls: Value) -> (Vec<String>, String) {
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"tls": tls}]},
    });
    let mut read = read(&object, "apps");
    assert_eq!(read.len(), 1, "{tls}");
    let (_, presents, trust) = read.remove(0);
    (presents, trust)
}

#[test]
fn an_istio_server_reads_what_istiod_serves_it() {
    for (tls, presents, trust) in [
        (json!({"mode": "SIMPLE", "credentialName": "x"}), &["x"][..], "not verified"),
        (json!({"mode": "SIMPLE", "credentialName": "x", "caCertCredentialName": "y-cacert"}), &["x"], "not verified"),
        (json!({"mode": "MUTUAL", "credentialName": "x"}), &["x"], "x-cacert or x"),
        (json!({"mode": "OPTIONAL_MUTUAL", "credentialName": "x"}), &["x"], "x-cacert or x"),
        (json!({"mode": "MUTUAL", "credentialNames": ["a", "b"]}), &["a", "b"], "a-cacert or a"),
        (json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "y-cacert"}), &["x"], "y-cacert or y"),
        (json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "y"}), &["x"], "nothing: y"),
        (
            json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "configmap://ns/y"}),
            &["x"],
            "configmap ns/y",
        ),
        (
            json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "configmap://ns/y-cacert"}),
            &["x"],
            "configmap ns/y",
        ),
        (
            json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "sds://y"}),
            &["x"],
            "unknown: sds://y",
        ),
        (json!({"mode": "MUTUAL", "serverCertificate": "/a", "caCertificates": "/ca.pem"}), &[], "unknown: /ca.pem"),
    ] {
        assert_eq!(
            of_istio(tls.clone()),
            (presents.iter().map(|name| (*name).to_owned()).collect(), trust.to_owned()),
            "{tls}"
        );
    }
}

#[test]
fn a_gateway_api_listener_reads_its_frontends_authorities() {
    let config_map =
        |name: &str| json!({"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": name}]}});
    let listener = |port: u16, options: Value| json!({"port": port, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "x"}], "options": options}});
    let mutual = json!({"gateway.istio.io/tls-terminate-mode": "MUTUAL"});
    let object = |tls: Value, listeners: Value| json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "spec": {"tls": tls, "listeners": listeners}});
    let trusts = |object: &Value| read(object, "apps").into_iter().map(|(.., trust)| trust).collect::<Vec<_>>();
    let frontend =
        json!({"frontend": {"default": config_map("all"), "perPort": [{"port": 8443, "tls": config_map("one")}]}});
    let both = object(frontend.clone(), json!([listener(443, json!({})), listener(8443, json!({}))]));
    assert_eq!(trusts(&both), ["configmap apps/all", "configmap apps/one"]);
    assert_eq!(
        trusts(&object(frontend, json!([listener(443, mutual.clone())]))),
        ["configmap apps/all"],
        "the standard field wins"
    );
    assert_eq!(trusts(&object(json!({}), json!([listener(443, mutual)]))), ["x-cacert or x"]);
    assert_eq!(trusts(&object(json!({}), json!([listener(443, json!({}))]))), ["not verified"]);
    let secret = json!({"frontend": {"default": {"validation": {"caCertificateRefs": [
        {"group": "", "kind": "Secret", "name": "y", "namespace": "trust"},
    ]}}}});
    assert_eq!(trusts(&object(secret, json!([listener(443, json!({}))]))), ["trust/y-cacert or y"]);
    let passthrough = json!([{"port": 443, "tls": {"mode": "Passthrough"}}]);
    assert_eq!(trusts(&object(json!({"frontend": {"default": config_map("all")}}), passthrough)), [""; 0]);
}

#[test]
fn a_destination_rule_presents_its_credential_in_mode_mutual_only() {
    let rule = |tls: Value| {
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "spec": {"trafficPolicy": {"tls": tls}},
        });
        read(&object, "mesh").into_iter().map(|(_, presents, trust)| (presents.len(), trust)).collect::<Vec<_>>()
    };
    let verified = "x-cacert or x".to_owned();
    assert_eq!(rule(json!({"mode": "MUTUAL", "credentialName": "x"})), [(1, verified.clone())]);
    assert_eq!(rule(json!({"mode": "SIMPLE", "credentialName": "x"})), [(0, verified)]);
    let skips = json!({"mode": "MUTUAL", "credentialName": "x", "insecureSkipVerify": true});
    assert_eq!(rule(skips), [(1, "not verified".to_owned())]);
    assert_eq!(rule(json!({"mode": "ISTIO_MUTUAL"})), []);
}

#[test]
fn pins_are_read() {
    let object = crate::json::json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "spec": {"servers": [{"tls": {
            "mode": "MUTUAL", "credentialName": "x", "verifyCertificateHash": ["AB"], "verifyCertificateSpki": ["cd"],
        }}]},
    });
    assert_eq!(tls_settings(Kind::of(&object), &object, "apps")[0].pins, ["AB", "cd"]);
}
