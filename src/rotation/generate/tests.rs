use serde_json::{Value, json};

use super::*;
use crate::registry::tests::entry;
use crate::trust::fixtures::{Authority, ca, now};
use crate::trust::{Secret, SecretUsage, Severities};

fn gateway(namespace: &str, name: &str, tls: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": namespace, "name": name},
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"hosts": ["shop.example.com"], "tls": tls}]},
    })
}

fn mutual(credential: &str) -> Value {
    gateway("apps", "public", json!({"mode": "MUTUAL", "credentialName": credential}))
}

fn pod(namespace: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "labels": {"istio": "ingressgateway", "app": "gw"}}})
}

fn certificate(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"namespace": "mesh", "name": name},
        "spec": {"secretName": name, "issuerRef": {"name": "mesh-ca"}},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn issuer(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": {"namespace": "mesh", "name": "mesh-ca"}, "spec": spec})
}

fn held(data: Value) -> SecretLookup {
    let secret =
        Secret::from_value(&json!({"apiVersion": "v1", "kind": "Secret", "stringData": data})).expect("a Secret");
    SecretLookup::Read(SecretSummary::of(&secret, SecretUsage::default(), &Severities::default(), now()))
}

fn pair(authority: &Authority, with_ca: bool) -> SecretLookup {
    let leaf = authority.leaf("shop.example.com");
    let mut data = json!({"tls.crt": leaf.pem(), "tls.key": leaf.key_pem()});
    if with_ca {
        data["ca.crt"] = authority.pem().into();
    }
    held(data)
}

fn found(objects: &[Value], secrets: &[(&str, SecretLookup)]) -> GenerateInput {
    let key = |name: &str| ("mesh".to_owned(), name.to_owned());
    let secrets = secrets.iter().map(|(name, held)| (key(name), held.clone())).collect();
    GenerateInput { objects: objects.to_vec(), secrets, rewrite: true, ..GenerateInput::default() }
}

fn only(found: &GenerateInput) -> (Value, String) {
    let proposals = propose(found);
    let [proposal] = &proposals.gateway_secrets[..] else { panic!("one proposal, not {proposals:?}") };
    assert_eq!(proposal.entry.namespace, "mesh");
    (serde_json::to_value(&proposal.entry.spec).expect("a spec"), proposal.comments.join("\n"))
}

/// The names of the source and of the managed Secret in the only generated GatewaySecret.
#[track_caller]
fn names(found: &GenerateInput) -> (String, String) {
    let proposals = propose(found);
    let [proposal] = &proposals.gateway_secrets[..] else { panic!("one proposal, not {proposals:?}") };
    (proposal.entry.source_name().to_owned(), proposal.entry.managed_name().to_owned())
}

#[track_caller]
fn left_out(found: &GenerateInput, why: &str) {
    let proposals = propose(found);
    assert!(proposals.gateway_secrets.is_empty(), "{proposals:?}");
    assert!(proposals.left_out.iter().any(|said| said.contains(why)), "{why:?} not in {:?}", proposals.left_out);
}

#[test]
fn generates_from_a_ca_issuer_and_its_clients() {
    let authority = ca("mesh");
    let objects = [
        mutual("root"),
        gateway("apps", "admin", json!({"mode": "SIMPLE", "credentialName": "root"})),
        pod("mesh"),
        certificate("root", json!({})),
        certificate("payments", json!({"usages": ["client auth"]})),
        certificate(
            "declared",
            json!({"usages": ["client auth"], "secretTemplate": {"labels": {"trustspan.dev/client": "x"}}}),
        ),
        certificate("internal", json!({"usages": ["server auth"]})),
        issuer("Issuer", json!({"ca": {"secretName": "mesh-ca"}})),
    ];
    let found = found(&objects, &[("root", pair(&authority, true)), ("mesh-ca", pair(&authority, true))]);
    let wanted: Vec<_> = found.secrets_to_read().into_iter().map(|(_, name)| name).collect();
    assert_eq!(
        wanted,
        [
            "mesh-ca",
            "root",
            "root-cacert",
            "root-managed",
            "root-managed-2",
            "root-managed-3",
            "root-source",
            "root-source-2",
            "root-source-3"
        ]
    );
    let (spec, comments) = only(&found);
    assert_eq!(spec, json!({"certificateRef": {"name": "root"}}));
    for said in [
        "used by Istio Gateway apps/public, which verifies clients",
        "used by Istio Gateway apps/admin",
        "written by Certificate root of Issuer mesh-ca, whose CA is in Secret mesh-ca",
        "possible client Certificates: payments. To declare",
        "issuerSecretName: root-managed-issuer",
    ] {
        assert!(comments.contains(said), "{said:?} not in:\n{comments}");
    }
}

#[test]
fn reports_what_is_unknown() {
    let authority = ca("mesh");
    let of = |more: &[Value], root: SecretLookup| {
        let objects: Vec<_> = [mutual("root"), pod("mesh")].into_iter().chain(more.to_vec()).collect();
        only(&found(&objects, &[("root", root)])).1
    };
    let by = |spec: Value| [certificate("root", json!({})), issuer("Issuer", spec)];
    for (comments, said) in [
        (of(&[], pair(&authority, true)), "no cert-manager Certificate writes it"),
        (of(&[], SecretLookup::Refused), "you may not read Secret root"),
        (of(&[], SecretLookup::Missing), "does not exist yet"),
        (of(&[], held(json!({"ca.crt": "prose"}))), "It is not used until this is fixed"),
        (of(&[], pair(&authority, false)), "no CA was found for it"),
        (of(&by(json!({"acme": {}})), pair(&authority, true)), "its CA is not stored in a Secret"),
        (of(&by(json!({"selfSigned": {}})), pair(&authority, true)), "it is self-signed"),
        (of(&[certificate("root", json!({}))], pair(&authority, true)), "that issuer was not found"),
        (of(&[certificate("root", json!({"isCA": true}))], pair(&authority, true)), "a CA itself"),
        (of(&[], pair(&authority, true)), "the clients are unknown"),
    ] {
        assert!(comments.contains(said), "{said:?} not in:\n{comments}");
    }
    let wide = [
        certificate("root", json!({"issuerRef": {"kind": "ClusterIssuer", "name": "mesh-ca"}})),
        issuer("ClusterIssuer", json!({"ca": {"secretName": "mesh-ca"}})),
    ];
    assert!(of(&wide, pair(&authority, true)).contains("Secret cert-manager/mesh-ca. That namespace is a guess"));
    let objects = [mutual("root"), pod("mesh")];
    assert!(only(&found(&objects, &[])).1.contains("not among the manifests"));
}

#[test]
fn a_cluster_issuer_determines_the_namespaces_of_the_ca_and_of_clients() {
    let authority = ca("mesh");
    let reference = json!({"kind": "ClusterIssuer", "name": "mesh-ca"});
    let client = |namespace: &str, issuer: &Value| {
        let mut client = certificate("payments", json!({"usages": ["client auth"], "issuerRef": issuer}));
        client["metadata"]["namespace"] = namespace.into();
        client
    };
    let mut issuing = certificate("mesh-ca", json!({"isCA": true, "issuerRef": {"name": "self"}}));
    issuing["metadata"]["namespace"] = "pki".into();
    let objects = [
        mutual("root"),
        pod("mesh"),
        certificate("root", json!({"issuerRef": reference})),
        issuer("ClusterIssuer", json!({"ca": {"secretName": "mesh-ca"}})),
        issuing,
        client("apps", &reference),
        client("others", &json!({"kind": "ClusterIssuer", "name": "another"})),
    ];
    let found = found(&objects, &[("root", pair(&authority, true))]);
    assert!(found.secrets_to_read().contains(&("pki".to_owned(), "mesh-ca".to_owned())));
    let (spec, comments) = only(&found);
    assert_eq!(spec["caSecretRef"], json!({"name": "mesh-ca", "namespace": "pki"}));
    assert_eq!(spec["clients"]["namespaces"], json!(["apps"]));
    assert!(
        comments.contains(
            "possible client Certificates in other namespaces, which clients.namespaces lists: apps/payments."
        ) && comments.contains("client: mesh_root-managed"),
        "{comments}"
    );
}

#[test]
fn a_cacert_secret_is_the_ca_of_clients() {
    let (public, private) = (ca("public"), ca("private"));
    let sibling = held(json!({"cacert": private.pem()}));
    let objects = [mutual("root"), pod("mesh")];
    let (spec, comments) = only(&found(&objects, &[("root", pair(&public, false)), ("root-cacert", sibling)]));
    assert_eq!(spec["clients"]["caSecretRef"], json!({"name": "root-cacert"}));
    assert!(comments.contains("Secret root-cacert"), "{comments}");
}

#[test]
fn takes_a_free_name() {
    let authority = ca("mesh");
    let taken = [("root", pair(&authority, true)), ("root-managed", pair(&authority, true))];
    let name = |found: &GenerateInput| names(found).1;
    assert_eq!(name(&found(&[mutual("root"), pod("mesh")], &taken)), "root-managed-2");
    let objects = [mutual("root"), pod("mesh"), certificate("root-managed-2", json!({}))];
    assert_eq!(name(&found(&objects, &taken)), "root-managed-3");
    let other = GenerateInput { known: vec![entry("mesh", "another", "root-managed-3")], ..found(&objects, &taken) };
    left_out(&other, "no free name for the new Secret");
    let long = "r".repeat(253);
    assert_eq!(name(&found(&[mutual(&long), pod("mesh")], &[])).len(), 253);
}

#[test]
fn leaves_out_what_is_managed_already_or_never_rewritten() {
    let authority = ca("mesh");
    let root = [("root", pair(&authority, true))];
    let with = |object: Value| found(&[object, pod("mesh")], &root);
    let known = GenerateInput { known: vec![entry("mesh", "root", "gw")], ..with(mutual("root")) };
    left_out(&known, "GatewaySecret gw names it already");
    let known = GenerateInput { known: vec![entry("mesh", "other", "root")], ..with(mutual("root")) };
    left_out(&known, "GatewaySecret root names it already");
    let mut whole_mesh = mutual("root");
    whole_mesh["spec"]["selector"] = json!({});
    left_out(&with(whole_mesh), "selects all workloads of the mesh");
    let mut opted_out = mutual("root");
    opted_out["metadata"]["annotations"] = json!({"trustspan.dev/rewrite": "disabled"});
    left_out(&with(opted_out), "excludes it from rewriting");
    left_out(&with(mutual("Root_1")), "is not a valid object name");
    left_out(&found(&[mutual("root")], &root), "no pod with istio=ingressgateway was found");
    let simple = gateway("apps", "public", json!({"mode": "SIMPLE", "credentialName": "root"}));
    left_out(&found(&[simple, pod("mesh")], &[("root", pair(&authority, false))]), "there is nothing to rotate");
    // A bundle of CAs is no serving pair, and a Gateway that is being deleted needs none.
    let ca_only = gateway("apps", "public", json!({"mode": "MUTUAL", "caCertCredentialName": "root"}));
    let mut going = mutual("root");
    going["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
    for object in [ca_only, going] {
        let proposals = propose(&with(object));
        assert!(proposals.gateway_secrets.is_empty() && proposals.left_out.is_empty(), "{proposals:?}");
    }
}

#[test]
fn ignores_other_namespaces() {
    let objects = [mutual("root"), pod("mesh")];
    let only = |namespace: &str| GenerateInput { only: Some(namespace.to_owned()), ..found(&objects, &[]) };
    assert!(!only("mesh").secrets_to_read().is_empty());
    assert!(only("other").secrets_to_read().is_empty());
    assert!(propose(&only("other")).gateway_secrets.is_empty());
}

#[test]
fn workload_labels_are_common_to_all_selectors() {
    let selecting = |name: &str, selector: Value| {
        let mut object = gateway("apps", name, json!({"mode": "MUTUAL", "credentialName": "root"}));
        object["spec"]["selector"] = selector;
        object
    };
    let labels = |one: Value, other: Value| {
        let (spec, comments) = only(&found(&[selecting("a", one), selecting("b", other), pod("mesh")], &[]));
        (spec["workloadLabels"].clone(), comments)
    };
    let (common, comments) = labels(json!({"istio": "ingressgateway", "app": "gw"}), json!({"app": "gw"}));
    assert_eq!(common, json!({"app": "gw"}));
    assert!(comments.contains("what they have in common"), "{comments}");
    let (_, comments) = labels(json!({"istio": "ingressgateway"}), json!({"app": "gw"}));
    assert!(comments.contains("nothing in common"), "{comments}");
}

#[test]
fn a_gateway_of_the_gateway_api_names_secrets_in_its_namespace() {
    let listener = json!({"name": "https", "tls": {"certificateRefs": [{"name": "root"}]}});
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"namespace": "mesh", "name": "public"},
        "spec": {"listeners": [listener], "tls": {"frontend": {"default": {"validation": {}}}}},
    });
    let (spec, comments) = only(&found(&[object], &[("root", pair(&ca("mesh"), true))]));
    assert_eq!(spec["sourceSecretName"], "root");
    assert!(comments.contains("used by Gateway mesh/public, which verifies clients"), "{comments}");
}

#[test]
fn without_pods_a_single_certificate_determines_the_namespace() {
    let one = certificate("root", json!({}));
    let mut two = one.clone();
    two["metadata"]["namespace"] = "other".into();
    let (_, comments) = only(&found(&[mutual("root"), one.clone()], &[]));
    assert!(comments.contains("is a guess"), "{comments}");
    left_out(&found(&[mutual("root"), one, two], &[]), "is unknown");
}

#[test]
fn config_maps_from_which_gateways_take_cas_are_proposed_in_the_secrets_namespace_alone() {
    let tls = |name: &str| json!({"mode": "MUTUAL", "credentialName": "root", "caCertCredentialName": name});
    let here = gateway("apps", "here", tls("configmap://mesh/partners"));
    let elsewhere = gateway("apps", "elsewhere", tls("configmap://apps/others"));
    let root = pair(&ca("one"), true);
    let (spec, comments) = only(&found(&[here, elsewhere, pod("mesh")], &[("root", root)]));
    assert_eq!(spec["clients"]["caConfigMapNames"], json!(["partners"]));
    assert!(comments.contains("ConfigMap partners") && comments.contains("ConfigMap apps/others"), "{comments}");
}

#[test]
fn warns_of_gateway_classes_that_may_not_use_two_cas_of_a_config_map() {
    let comments = |class: &str| {
        let reference = json!([{"kind": "ConfigMap", "group": "", "name": "partners"}]);
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "mesh", "name": "public"},
            "spec": {
                "gatewayClassName": class,
                "listeners": [{"name": "https", "port": 443, "tls": {"certificateRefs": [{"name": "root"}]}}],
                "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": reference}}}},
            },
        });
        let (spec, comments) = only(&found(&[gateway], &[("root", pair(&ca("one"), true))]));
        assert_eq!(spec["clients"]["caConfigMapNames"], json!(["partners"]));
        comments
    };
    assert!(comments("nginx").contains("is of class nginx"));
    assert!(!comments("istio").contains("is of class"));
}

#[test]
fn the_managed_secret_takes_over_the_name_where_a_certificate_writes_it() {
    let authority = ca("mesh");
    let objects = [
        mutual("root"),
        pod("mesh"),
        certificate("root", json!({})),
        issuer("Issuer", json!({"ca": {"secretName": "mesh-ca"}})),
    ];
    let secrets = || [("root", pair(&authority, true)), ("mesh-ca", pair(&authority, true))];
    let (spec, comments) = only(&GenerateInput { rewrite: false, ..found(&objects, &secrets()) });
    assert_eq!(spec["certificateRef"], json!({"name": "root"}));
    let source = |found: &GenerateInput| names(found).0;
    let expected = ("root-source".to_owned(), "root".to_owned());
    assert_eq!(names(&GenerateInput { rewrite: false, ..found(&objects, &secrets()) }), expected);
    for words in [
        "kubectl annotate secret root -n mesh trustspan.dev/adopt=true",
        r#"kubectl patch certificate root -n mesh --type=merge --patch '{"spec":{"secretName":"root-source"}}'"#,
    ] {
        assert!(comments.contains(words), "{words} not in {comments}");
    }
    // Without a Certificate there is no issuer that could write another Secret.
    let by_hand = GenerateInput { rewrite: false, ..found(&objects[..2], &secrets()) };
    assert_eq!(source(&by_hand), "root");
    let with_cacert = [&secrets()[..], &[("root-cacert", pair(&authority, true))]].concat();
    let with_sibling = GenerateInput { rewrite: false, ..found(&objects, &with_cacert) };
    assert_eq!(source(&with_sibling), "root");
    let taken = [&secrets()[..], &[("root-source", pair(&authority, true))]].concat();
    let with_taken = GenerateInput { rewrite: false, ..found(&objects, &taken) };
    assert_eq!(source(&with_taken), "root-source-2");
}

#[test]
fn leaves_out_a_certificate_that_cert_manager_manages_for_a_gateway() {
    let mut kept = certificate("root", json!({}));
    kept["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web", "controller": true},
    ]);
    let secrets = [("root", pair(&ca("mesh"), true))];
    for rewrite in [true, false] {
        let found = GenerateInput { rewrite, ..found(&[mutual("root"), pod("mesh"), kept.clone()], &secrets) };
        left_out(&found, "cert-manager manages Certificate root for Gateway web");
    }
}
