use super::*;

fn istio(tls: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "public", "namespace": "apps"},
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"hosts": ["a.example"], "tls": tls}]},
    })
}

fn gateway_api(spec: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "public", "namespace": "mesh"},
        "spec": spec,
    })
}

#[test]
fn rewrites_every_istio_field() {
    let object = istio(
        json!({"credentialName": "root", "credentialNames": ["other", "root"], "caCertCredentialName": "root-cacert"}),
    );
    let tls = &after(&object, None, &registry())["spec"]["servers"][0]["tls"];
    let expected =
        json!({"credentialName": "gw", "credentialNames": ["other", "gw"], "caCertCredentialName": "gw-cacert"});
    assert_eq!(*tls, expected);
}

#[test]
fn never_names_the_managed_secret_where_istiod_would_serve_no_ca() {
    for name in ["root", "kubernetes://root", "gw", "-cacert"] {
        let object = istio(json!({"mode": "MUTUAL", "credentialName": "root", "caCertCredentialName": name}));
        let tls = &after(&object, None, &registry())["spec"]["servers"][0]["tls"];
        assert_eq!(tls["caCertCredentialName"], name);
    }
}

#[test]
fn a_renamed_cacert_credential_is_restored_by_its_undo() {
    let object = istio(json!({"mode": "MUTUAL", "credentialName": "root", "caCertCredentialName": "root-cacert"}));
    let rewritten = after(&object, None, &registry());
    let mut restored = rewritten.clone();
    json_patch::patch(&mut restored, &undo(&rewritten).unwrap().patch).unwrap();
    assert_eq!(restored, object);
}

fn destination_rule(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": "upstream", "namespace": "mesh"},
        "spec": spec,
    })
}

#[test]
fn rewrites_every_destination_rule_field() {
    let tls = || json!({"tls": {"mode": "MUTUAL", "credentialName": "root"}});
    let policy = json!({"tls": tls()["tls"], "portLevelSettings": [tls()]});
    let object =
        destination_rule(json!({"trafficPolicy": policy, "subsets": [{"name": "v1", "trafficPolicy": policy}]}));
    let rewritten = after(&object, None, &registry()).to_string();
    assert_eq!(
        (rewritten.matches(r#""credentialName":"gw""#).count(), rewritten.matches(r#":"root""#).count()),
        (4, 0)
    );
}

#[test]
fn a_destination_rule_for_another_namespace_only_keeps_its_secret() {
    let mut object = destination_rule(json!({
        "exportTo": ["."], "trafficPolicy": {"tls": {"mode": "MUTUAL", "credentialName": "root"}},
    }));
    object["metadata"]["namespace"] = json!("apps");
    assert_eq!(outcome_in("apps", &object, None, &registry()).renamed().len(), 0);
}

#[test]
fn rewrites_every_istio_version_and_no_other() {
    for (version, name) in [("v1", "gw"), ("v1beta1", "gw"), ("v1alpha3", "gw"), ("v2", "root")] {
        let mut object = istio(json!({"credentialName": "root"}));
        object["apiVersion"] = json!(format!("networking.istio.io/{version}"));
        assert_eq!(after(&object, None, &registry())["spec"]["servers"][0]["tls"]["credentialName"], name, "{version}");
    }
}

#[test]
fn rewrites_all_forms_of_a_credential_name_and_keeps_the_form() {
    for (form, expected) in [
        ("kubernetes://root", "kubernetes://gw"),
        ("mesh/root", "mesh/gw"),
        ("kubernetes://mesh/root", "kubernetes://mesh/gw"),
        ("kubernetes-gateway://mesh/root", "kubernetes-gateway://mesh/gw"),
        ("elsewhere/root", "elsewhere/root"),
        ("configmap://root", "configmap://root"),
        ("sds://root", "sds://root"),
        ("builtin://", "builtin://"),
        ("root-cacert", "root-cacert"),
        ("a/b/root", "a/b/root"),
        ("", ""),
    ] {
        let object = istio(json!({"credentialName": form}));
        let tls = &after(&object, None, &registry())["spec"]["servers"][0]["tls"];
        assert_eq!(tls["credentialName"], expected, "{form}");
    }
}

#[test]
fn rewrites_every_gateway_api_field() {
    let reference = |name| json!([{"kind": "Secret", "group": "", "name": name}]);
    let validation = |name| json!({"validation": {"caCertificateRefs": reference(name)}});
    let spec = |name| {
        json!({
            "listeners": [{"tls": {"certificateRefs": [{"name": name}]}}],
            "tls": {
                "frontend": {"default": validation(name), "perPort": [{"port": 443, "tls": validation(name)}]},
                "backend": {"clientCertificateRef": {"name": name}},
            },
        })
    };
    assert_eq!(after(&gateway_api(spec("root")), None, &registry())["spec"], spec("gw"));
}

#[test]
fn does_not_rewrite_other_gateway_api_references() {
    for reference in [
        json!({"kind": "ConfigMap", "name": "root"}),
        json!({"group": "example.dev", "name": "root"}),
        json!({"namespace": "elsewhere", "name": "root"}),
        json!({"name": 7}),
    ] {
        let object = gateway_api(json!({"listeners": [{"tls": {"certificateRefs": [reference]}}]}));
        assert_eq!(after(&object, None, &registry()), object);
    }
}

#[test]
fn a_cross_namespace_reference_is_looked_up_in_its_namespace() {
    let mut object =
        gateway_api(json!({"listeners": [{"tls": {"certificateRefs": [{"namespace": "mesh", "name": "root"}]}}]}));
    object["metadata"]["namespace"] = json!("apps");
    let rewritten = |registry: &Registry| {
        let outcome = outcome_in("apps", &object, None, registry);
        (outcome.renamed().collect::<Vec<_>>(), outcome.blockers.len())
    };
    assert_eq!(rewritten(&registry()), (vec!["spec.listeners[0].tls.certificateRefs[0].name".to_owned()], 0));
    let mut ungranted = gw();
    ungranted.status.ungranted_namespaces = Some(vec!["apps".to_owned()]);
    assert_eq!(rewritten(&Registry::new([ungranted])), (vec![], 1));
}

#[test]
fn is_blocked_while_the_gateway_secret_is_not_ready_and_reports_it_once() {
    let object = istio(json!({"credentialName": "root", "caCertCredentialName": "root-cacert"}));
    let outcome = outcome(&object, None, &unready());
    assert!(outcome.patch.is_empty());
    let texts: Vec<_> = outcome.blockers.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "GatewaySecret gw is not Ready (no status), so Secret gw cannot be used yet; do what its condition Ready says"
        ]
    );
}

#[test]
fn a_stored_gateway_keeps_the_managed_name_while_a_rename_is_blocked() {
    let object = istio(json!({"credentialName": "root"}));
    let stored = after(&object, None, &registry());
    assert_eq!(after(&object, Some(&stored), &unready()), stored);
}

#[test]
fn does_not_rewrite_an_object_that_opts_out_or_is_being_deleted() {
    let mut object = istio(json!({"credentialName": "root"}));
    object["metadata"]["annotations"] = json!({REWRITE: REWRITE_DISABLED});
    assert_eq!(after(&object, None, &registry()), object);
    let mut object = istio(json!({"credentialName": "root"}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(after(&object, Some(&object), &registry()), object);
}

#[test]
fn rewrites_a_new_object_that_brings_a_deletion_timestamp() {
    let mut object = istio(json!({"credentialName": "root"}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(after(&object, None, &registry())["spec"]["servers"][0]["tls"]["credentialName"], "gw");
}

#[test]
fn the_record_undoes_the_rewrite() {
    let object = istio(json!({"credentialName": "kubernetes://root"}));
    let rewritten = after(&object, None, &registry());
    assert_eq!(
        rewritten["metadata"]["annotations"][UNDO],
        concat!(
            r#"[{"op":"test","path":"/spec/servers/0/tls/credentialName","value":"kubernetes://gw"},"#,
            r#"{"op":"replace","path":"/spec/servers/0/tls/credentialName","value":"kubernetes://root"},"#,
            r#"{"op":"remove","path":"/metadata/annotations"}]"#
        )
    );
    assert_eq!(patched(&rewritten, &undo(&rewritten).unwrap().patch), object);
}

#[test]
fn undo_keeps_later_annotations() {
    let object = istio(json!({"credentialName": "root"}));
    let mut rewritten = after(&object, None, &registry());
    rewritten["metadata"]["annotations"]["team"] = json!("a");
    let mut expected = object.clone();
    expected["metadata"]["annotations"] = json!({"team": "a"});
    assert_eq!(patched(&rewritten, &undo(&rewritten).unwrap().patch), expected);
}

#[test]
fn removes_the_record_if_nothing_is_rewritten() {
    let object = istio(json!({"credentialName": "root"}));
    let mut stored = after(&object, None, &registry());
    stored["spec"]["servers"][0]["tls"]["credentialName"] = json!("root");
    stored["metadata"]["annotations"]["team"] = json!("a");
    let restored = after(&stored, None, &unready());
    assert_eq!(restored["metadata"]["annotations"], json!({"team": "a"}));
    assert_eq!(undo(&restored), None);
}

#[test]
fn does_not_rewrite_malformed_objects() {
    for object in [
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway"}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": [], "spec": {"servers": {"a": 1}}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "spec": {"servers": [null, 3, {"tls": "x"}]}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": 4}}),
        json!([]),
    ] {
        assert_eq!(after(&object, None, &registry()), object);
    }
}

#[test]
fn a_forged_record_changes_no_other_fields() {
    let mut object = istio(json!({"credentialName": "gw"}));
    let forged = |path: &str, from: Value, to: Value| json!([{"op": "test", "path": path, "value": from}, {"op": "replace", "path": path, "value": to}]);
    for (path, from, to) in [
        ("/metadata/namespace", json!("apps"), json!("istio-system")),
        ("/kind", json!("Gateway"), json!("Secret")),
        ("/spec/selector/istio", json!("ingressgateway"), json!("evil")),
        ("/spec/servers/0/hosts/0", json!("a.example"), json!("evil.example")),
        ("/spec/servers/0/tls/credentialName", json!("other"), json!("evil")),
        ("/spec/servers/0/tls/credentialName", json!("gw"), json!({"evil": true})),
        ("/metadata", json!({}), json!({})),
    ] {
        object["metadata"]["annotations"] = json!({"team": "a", UNDO: forged(path, from, to).to_string()});
        let mut expected = object.clone();
        expected["metadata"]["annotations"] = json!({"team": "a"});
        assert_eq!(patched(&object, &undo(&object).unwrap().patch), expected, "{path}");
    }
    for text in
        ["no JSON", r#"[{"op":"remove","path":"/spec"}]"#, r#"[{"op":"replace","path":"/metadata","value":{}}]"#]
    {
        object["metadata"]["annotations"] = json!({"team": "a", UNDO: text});
        let mut expected = object.clone();
        expected["metadata"]["annotations"] = json!({"team": "a"});
        assert_eq!(patched(&object, &undo(&object).unwrap().patch), expected, "{text}");
    }
}

#[test]
fn undo_keeps_later_changes() {
    let object = istio(json!({"credentialName": "root"}));
    let mut rewritten = after(&object, None, &registry());
    rewritten["spec"]["servers"][0]["tls"]["credentialName"] = json!("my-own");
    let undone = undo(&rewritten).unwrap();
    assert_eq!(undone.passed_over, 1);
    assert_eq!(patched(&rewritten, &undone.patch)["spec"], rewritten["spec"]);
}

#[test]
fn reports_a_record_that_does_not_fit() {
    let mut object = istio(json!({"credentialName": "root"}));
    object["metadata"]["annotations"] = json!({"big": "x".repeat(256 * 1024 - 20)});
    let outcome = outcome(&object, None, &registry());
    assert!(outcome.unrecorded);
    let rewritten = patched(&object, &outcome.patch.parse());
    assert_eq!(rewritten["spec"]["servers"][0]["tls"]["credentialName"], "gw");
    assert_eq!(rewritten["metadata"], object["metadata"]);
}

#[test]
fn an_istio_gateway_names_the_managed_config_map() {
    for (written, expected) in [
        ("configmap://mesh/cas", "configmap://mesh/cas.trustspan"),
        ("configmap://mesh/cas-cacert", "configmap://mesh/cas.trustspan-cacert"),
        ("configmap://elsewhere/cas", "configmap://elsewhere/cas"),
        ("configmap://mesh/early", "configmap://mesh/early"),
        ("configmap://mesh/cas.trustspan", "configmap://mesh/cas.trustspan"),
        ("cas", "cas"),
    ] {
        let object = istio(json!({"mode": "MUTUAL", "credentialName": "other", "caCertCredentialName": written}));
        let rewritten = after(&object, None, &registry());
        assert_eq!(rewritten["spec"]["servers"][0]["tls"]["caCertCredentialName"], expected);
        let undone = undo(&rewritten).map_or(rewritten.clone(), |undo| patched(&rewritten, &undo.patch));
        assert_eq!(undone, object);
    }
}

fn frontend(reference: Value) -> Value {
    let validation = json!({"validation": {"caCertificateRefs": [reference]}});
    json!({
        "listeners": [{"tls": {"certificateRefs": [{"name": "other"}]}}],
        "tls": {"frontend": {"default": validation, "perPort": [{"port": 443, "tls": validation}]}},
    })
}

#[test]
fn a_gateway_api_gateway_names_the_managed_config_map() {
    let named = |name: &str| json!({"group": "", "kind": "ConfigMap", "name": name});
    let object = gateway_api(frontend(named("cas")));
    let rewritten = after(&object, None, &registry());
    assert_eq!(rewritten["spec"], frontend(named("cas.trustspan")));
    assert_eq!(patched(&rewritten, &undo(&rewritten).unwrap().patch), object);
    for reference in [
        json!({"kind": "ConfigMap", "name": "early"}),
        json!({"kind": "ConfigMap", "group": "example.dev", "name": "cas"}),
        json!({"kind": "Secret", "name": "cas"}),
        json!({"name": "cas"}),
    ] {
        let object = gateway_api(frontend(reference));
        assert_eq!(after(&object, None, &registry()), object);
    }
}

#[test]
fn is_blocked_without_a_managed_config_map_or_grant_and_reports_why() {
    let of = |namespace: &str, reference: Value| {
        let mut object = gateway_api(frontend(reference));
        object["metadata"]["namespace"] = namespace.into();
        let outcome = outcome_in(namespace, &object, None, &registry());
        (outcome.renamed().len(), outcome.blockers.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let in_mesh = |name: &str| json!({"kind": "ConfigMap", "namespace": "mesh", "name": name});
    assert_eq!(of("apps", in_mesh("cas")), (2, vec![]));
    let (renamed, blockers) = of("ungranted", in_mesh("cas"));
    assert_eq!((renamed, blockers.len()), (0, 1));
    assert!(blockers[0].contains("ReferenceGrant") && blockers[0].contains("ConfigMap cas.trustspan"), "{blockers:?}");
    let (renamed, blockers) = of("mesh", in_mesh("early"));
    assert_eq!((renamed, blockers.len()), (0, 1));
    assert!(blockers[0].contains("ConfigMap early.trustspan does not exist yet"), "{blockers:?}");
}

#[test]
fn a_stored_gateway_keeps_a_managed_config_map_that_is_missing() {
    let mut gone = gw();
    gone.status.managed_config_maps.clear();
    let object =
        istio(json!({"mode": "MUTUAL", "credentialName": "other", "caCertCredentialName": "configmap://mesh/cas"}));
    let stored = after(&object, None, &registry());
    assert_eq!(after(&object, Some(&stored), &Registry::new([gone])), stored);
}

fn blockers(object: &Value) -> Vec<String> {
    let json = Json::from(object);
    let namespace = object["metadata"]["namespace"].as_str().unwrap();
    let write = Write { kind: Kind::of(&json), namespace, object: &json, old: None, by_agent: false };
    rewrite(&write, &registry()).blockers.iter().map(ToString::to_string).collect()
}

#[test]
fn warns_about_a_gateway_that_names_the_source_secret_and_selects_other_pods() {
    for selector in [json!({"istio": "second"}), json!({}), Value::Null] {
        let mut object = istio(json!({"mode": "MUTUAL", "credentialName": "root"}));
        object["spec"]["selector"] = selector;
        let said = blockers(&object);
        let expected = "it does not select workloadLabels; name gw instead of root if its pods use that Secret";
        assert_eq!(said, [expected]);
        assert_eq!(after(&object, None, &registry()), object);
    }
    let mut unrelated = istio(json!({"mode": "MUTUAL", "credentialName": "other"}));
    unrelated["spec"]["selector"] = json!({"istio": "second"});
    assert_eq!(blockers(&unrelated), [""; 0]);
}

#[test]
fn does_not_rename_what_cert_manager_issues_by_an_annotation() {
    let listener =
        |name: &str| json!({"name": name, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "root"}]}});
    let of = |kind: &str, annotations: Value| {
        let mut object = gateway_api(json!({"listeners": [listener("a"), listener("b")]}));
        object["kind"] = json!(kind);
        object["metadata"]["annotations"] = annotations;
        let renamed = after(&object, None, &registry());
        let name = |at: usize| {
            renamed["spec"]["listeners"][at]["tls"]["certificateRefs"][0]["name"].as_str().unwrap().to_owned()
        };
        ([name(0), name(1)], blockers(&object))
    };
    let names = |names: [&str; 2]| names.map(str::to_owned);
    for kind in ["Gateway", "ListenerSet"] {
        assert_eq!(of(kind, json!({"cert-manager.io/common-name": "edge"})), (names(["gw", "gw"]), vec![]));
        for annotation in ["cert-manager.io/issuer", "cert-manager.io/cluster-issuer"] {
            let said = format!(
                "cert-manager would issue Secret gw by annotation {annotation}; remove that: Certificate root stays"
            );
            assert_eq!(of(kind, json!({annotation: "mesh-ca"})), (names(["root", "root"]), vec![said.clone()]));
            let ignored = json!({annotation: "mesh-ca", "cert-manager.io/ignore-tls-listeners": "x, b"});
            assert_eq!(of(kind, ignored), (names(["root", "gw"]), vec![said]), "cert-manager ignores listener b");
        }
    }
}
