use super::*;

fn read(text: &str) -> Result<Profile, String> {
    Profile::read(text, "system", "cluster.local")
}

#[test]
fn the_built_in_profile_is_that_of_envoy_gateway() {
    let profile = Profile::read(built_in("envoy-gateway").unwrap(), "eg", "example.org").unwrap();
    let names: Vec<_> = profile.certificates.iter().map(|one| one.secret_name.as_str()).collect();
    assert_eq!(names, ["envoy-gateway", "envoy", "envoy-rate-limit"]);
    assert_eq!(profile.restart.loads_trust_once, ["envoy-ratelimit"]);
    assert_eq!(profile.restart.loads_certificate_once, ["envoy-ratelimit"]);
    let server = ["envoy-gateway", "envoy-gateway.eg", "envoy-gateway.eg.svc", "envoy-gateway.eg.svc.example.org"];
    assert_eq!(profile.certificates[0].dns_names, server);
    assert_eq!(profile.certificates[1].dns_names, ["*.eg"]);
    assert_eq!(profile.hmacs[0].key, "hmac-secret");
    assert_eq!(profile.mutating_webhook_configurations, ["envoy-gateway-topology-injector.eg"]);
    assert_eq!(profile.pending_secret_name, "envoy-gateway-certgen-pending");
    assert_eq!((profile.max_previous_cas, profile.propagation_delay.to_string()), (1, "3m".to_owned()));
    assert!(BUILT_IN.iter().all(|name| built_in(name).is_some()) && built_in("other").is_none());
}

#[test]
fn rejects_what_cannot_be_used() {
    for (from, to, why) in [
        ("hmacs:", "hmac:", "hmac"),
        ("commonName: server", "commonname: server", "commonname"),
        ("secretName: client", "secretName: server", "Secret server is named more than once"),
        ("secretName: client", "secretName: Client", "\"Client\" is not a valid object name"),
        ("secretName: hmac", "secretName: test-certgen-pending", "named more than once"),
        ("duration: 43800h", "duration: 0s", "duration: "),
        ("duration: 43800h", "duration: 9999999h", "duration: "),
        ("duration: 43800h", "duration: 5y", "expected a duration"),
        ("duration: 43800h", "duration: 1h\nmaxPreviousCAs: 0", "maxPreviousCAs: expected 1 or more"),
        ("key: key", "key: a/b", "hmacs[].key"),
        ("key: key", "key: key, bytes: 8", "hmacs[].bytes: 8"),
        ("commonName: client", "commonName: client, dnsNames: ['{ns}']", "{namespace} and {clusterDomain}"),
        ("commonName: client", "commonName: client, usages: [signing]", "signing"),
        ("commonName: control-plane", "commonName: ''", "commonName"),
    ] {
        assert!(PROFILE.contains(from), "{from}");
        let error = read(&PROFILE.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(why), "{to}: {error}");
    }
    assert!(
        read("name: a\nduration: 1h\nca: {commonName: a}\ncertificates: []\n").unwrap_err().contains("at least one")
    );
}
