use super::*;

/// A Deployment whose one container mounts a Secret volume.
fn deployment(secret: &str, mount: Value) -> Value {
    let mut mount = mount;
    mount["name"] = json!("certs");
    workload(json!({
        "containers": [{"name": "app", "volumeMounts": [mount]}],
        "volumes": [{"name": "certs", "secret": {"secretName": secret}}],
    }))
}

fn workload(pod: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "app", "namespace": "mesh"},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": "app"}}, "spec": pod}},
    })
}

fn hash(object: &Value) -> Option<&str> {
    object["spec"]["template"]["metadata"]["annotations"][ROTATION_HASH].as_str()
}

fn revision(object: &Value) -> Option<u64> {
    hash(object).map(|text| RotationHash::parse(text).unwrap().revision)
}

#[test]
fn rewrites_every_reference_except_pull_secrets() {
    let pod = |name: &str| {
        json!({
            "imagePullSecrets": [{"name": "root"}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": name}}, {"configMapRef": {"name": "root"}}]}],
            "containers": [{
                "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "ca.crt"}}},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "root", "key": "ca.crt"}}},
                ],
            }],
            "volumes": [
                {"name": "v", "secret": {"secretName": name}},
                {"name": "p", "projected": {"sources": [{"secret": {"name": name}}, {"configMap": {"name": "root"}}]}},
            ],
        })
    };
    for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
        let mut object = workload(pod("root"));
        object["kind"] = json!(kind);
        let rewritten = after(&object, None, &registry());
        assert_eq!(rewritten["spec"]["template"]["spec"], pod("gw"), "{kind}");
        assert_eq!(revision(&rewritten), Some(8));
    }
}

#[test]
fn the_hash_covers_the_keys_that_the_pod_loads() {
    let revision_of = |mount| revision(&after(&deployment("root", mount), None, &registry()));
    assert_eq!(revision_of(json!({})), Some(8));
    assert_eq!(revision_of(json!({"subPath": "ca.crt"})), Some(3));
    assert_eq!(revision_of(json!({"subPath": "tls.crt"})), Some(5));
    assert_eq!(revision_of(json!({"subPath": "tls.key"})), None, "no public certificate");

    let mut items = deployment("root", json!({}));
    items["spec"]["template"]["spec"]["volumes"][0]["secret"]["items"] =
        json!([{"key": "ca.crt", "path": "pki/ca.pem"}]);
    assert_eq!(revision(&after(&items, None, &registry())), Some(3));
    items["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("other");
    assert_eq!(revision(&after(&items, None, &registry())), None);

    let mut unmounted = deployment("root", json!({}));
    unmounted["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = json!([]);
    assert_eq!(revision(&after(&unmounted, None, &registry())), None);
}

#[test]
fn counts_all_keys_as_loaded_with_too_many_mounts() {
    let mounting = |count: usize| {
        let mut object = deployment("root", json!({"subPath": "other"}));
        let pod = &mut object["spec"]["template"]["spec"];
        for place in ["/containers/0/volumeMounts", "/volumes"] {
            let list = pod.pointer_mut(place).unwrap();
            *list = json!(vec![list[0].clone(); count]);
        }
        object
    };
    assert_eq!(revision(&after(&mounting(100), None, &registry())), None, "none loads a certificate");
    assert_eq!(revision(&after(&mounting(101), None, &registry())), Some(8), "all keys count as loaded");
}

#[test]
fn a_change_of_a_key_that_the_pod_does_not_load_keeps_the_hash() {
    let object = deployment("root", json!({"subPath": "tls.crt"}));
    assert_eq!(hash(&after(&object, None, &registry())), hash(&after(&object, None, &rotated())));
    let object = deployment("root", json!({"subPath": "ca.crt"}));
    assert_ne!(hash(&after(&object, None, &registry())), hash(&after(&object, None, &rotated())));
}

#[test]
fn a_workload_that_names_the_managed_secret_itself_gets_the_hash() {
    let object = deployment("gw", json!({}));
    let rewritten = after(&object, None, &registry());
    assert_eq!(revision(&rewritten), Some(8));
    assert_eq!(patched(&rewritten, &undo(&rewritten).unwrap().patch), object);
}

#[test]
fn gateway_proxies_get_no_hash() {
    let mut object = deployment("root", json!({}));
    object["spec"]["template"]["metadata"]["labels"] = json!({"istio": "ingressgateway", "app": "gateway"});
    assert_eq!(hash(&after(&object, None, &registry())), None);
}

#[test]
fn an_update_that_keeps_the_template_causes_no_rollout() {
    let manifest = deployment("root", json!({}));
    let stored = after(&manifest, None, &registry());
    for (what, registry) in
        [("same", registry()), ("rotated", rotated()), ("unready", unready()), ("none", Registry::default())]
    {
        let mut scaled = stored.clone();
        scaled["spec"]["replicas"] = json!(5);
        let after_scale = after(&scaled, Some(&stored), &registry);
        assert_eq!(after_scale["spec"]["template"], stored["spec"]["template"], "scale, {what}");
        if what != "none" {
            let after_replace = after(&manifest, Some(&stored), &registry);
            assert_eq!(after_replace, stored, "replace without annotation, {what}");
        }
    }
}

#[test]
fn installing_trustspan_causes_no_rollout() {
    for secret in ["root", "gw", "other"] {
        let stored = deployment(secret, json!({}));
        let mut labelled = stored.clone();
        labelled["metadata"]["labels"] = json!({"team": "a"});
        assert_eq!(after(&labelled, Some(&stored), &registry()), labelled, "{secret}");
    }
}

#[test]
fn a_second_secret_that_becomes_ready_causes_no_rollout() {
    let mut second = crate::registry::tests::entry("mesh", "root2", "gw2");
    second.status.hashes = [key_hash("ca.crt", 1)].into();
    let mut unready = second.clone();
    unready.status.conditions.clear();
    let manifest = workload(json!({
        "containers": [{"envFrom": [{"secretRef": {"name": "root"}}, {"secretRef": {"name": "root2"}}]}],
    }));
    let stored = after(&manifest, None, &Registry::new([gw(), unready]));
    let both = Registry::new([gw(), second]);
    assert_eq!(after(&manifest, Some(&stored), &both), stored);
}

#[test]
fn a_changed_template_gets_the_current_hash() {
    let stored = after(&deployment("root", json!({})), None, &registry());
    let mut changed = deployment("root", json!({}));
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("v2");
    let rewritten = after(&changed, Some(&stored), &rotated());
    assert_eq!(revision(&rewritten), Some(14));
    // `kubectl rollout undo` restores an earlier template, with its earlier hash.
    let mut undone = stored.clone();
    undone["spec"]["template"]["spec"]["containers"][0]["image"] = json!("v1");
    assert_eq!(revision(&after(&undone, Some(&rewritten), &rotated())), Some(14));
}

#[test]
fn a_stale_replica_keeps_the_newer_hash() {
    let stored = after(&deployment("root", json!({})), None, &rotated());
    let mut changed = stored.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("v2");
    assert_eq!(hash(&after(&changed, Some(&stored), &registry())), hash(&stored));
    // The result stays the same if the API server invokes the webhook again, on a replica that already knows the new
    // content.
    let fresh = after(&deployment("root", json!({})), None, &rotated());
    assert_eq!(after(&fresh, None, &registry()), fresh);
    // Revisions of other keys cannot be compared: the current one counts, with and without the old value in the request.
    let mut with_old_hash = deployment("root", json!({"subPath": "ca.crt"}));
    with_old_hash["spec"]["template"]["metadata"] = stored["spec"]["template"]["metadata"].clone();
    assert_eq!(revision(&after(&with_old_hash, Some(&stored), &registry())), Some(3));
    let narrowed = deployment("root", json!({"subPath": "ca.crt"}));
    assert_eq!(revision(&after(&narrowed, Some(&stored), &registry())), Some(3));
}

#[test]
fn a_stale_replica_accepts_a_newer_hash_from_the_agent() {
    let stored = after(&deployment("root", json!({})), None, &registry());
    let newer = after(&deployment("root", json!({})), None, &rotated());
    let mut rolled = stored.clone();
    rolled["spec"]["template"]["metadata"] = newer["spec"]["template"]["metadata"].clone();
    assert_eq!(after_agent(&rolled, &stored, &registry())["spec"], newer["spec"]);
    // A hash that a user writes, and an older hash, are ignored.
    assert_eq!(after(&rolled, Some(&stored), &registry())["spec"], stored["spec"]);
    let mut back = newer.clone();
    back["spec"]["template"]["metadata"] = stored["spec"]["template"]["metadata"].clone();
    assert_eq!(after_agent(&back, &newer, &registry())["spec"], newer["spec"]);
}

#[test]
fn only_the_agents_annotation_restarts_a_workload() {
    let resynced = |workload: &Value| {
        let mut resynced = workload.clone();
        resynced["metadata"]["annotations"][RESYNC_REQUESTED_AT] = json!("1970-01-01T00:00:00Z");
        resynced
    };
    // The workload was missed by the webhook, or stored before the content changed.
    let older = after(&deployment("root", json!({})), None, &registry());
    let newest = after(&deployment("root", json!({})), None, &rotated());
    for stored in [deployment("root", json!({})), older] {
        assert_eq!(after(&resynced(&stored), Some(&stored), &rotated())["spec"], stored["spec"]);
        let rolled = after_agent(&resynced(&stored), &stored, &rotated());
        assert_eq!(rolled["spec"], newest["spec"]);
        // An apply of the user's manifest does not revert the hash, with or without the annotation.
        for manifest in [deployment("root", json!({})), resynced(&deployment("root", json!({})))] {
            assert_eq!(after(&manifest, Some(&rolled), &rotated())["spec"], rolled["spec"]);
        }
        assert!(after_agent(&rolled, &rolled, &rotated()) == rolled);
    }
    // Neither an outdated replica nor one on which the rewrite is blocked reverts it.
    assert_eq!(after_agent(&resynced(&newest), &newest, &registry())["spec"], newest["spec"]);
    let stored = deployment("root", json!({}));
    assert_eq!(after_agent(&resynced(&stored), &stored, &unready())["spec"], stored["spec"]);
}

#[test]
fn naming_the_managed_secret_manually_changes_the_template() {
    let stored = deployment("root", json!({}));
    let edited = deployment("gw", json!({}));
    let rewritten = after(&edited, Some(&stored), &registry());
    assert_eq!(rewritten["spec"]["template"]["spec"], edited["spec"]["template"]["spec"]);
    assert_eq!(revision(&rewritten), Some(8));
}

#[test]
fn adds_missing_template_metadata_and_undo_removes_it() {
    for metadata in
        [None, Some(Value::Null), Some(json!({})), Some(json!({"annotations": null})), Some(json!({"annotations": {}}))]
    {
        let mut object = deployment("root", json!({}));
        let template = object["spec"]["template"].as_object_mut().unwrap();
        template.remove("metadata");
        template.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
        let rewritten = after(&object, None, &registry());
        assert_eq!(revision(&rewritten), Some(8), "{object}");
        assert_eq!(patched(&rewritten, &undo(&rewritten).unwrap().patch), object);
    }
}

#[test]
fn ignores_an_implausible_revision() {
    let mut forged = after(&deployment("root", json!({})), None, &registry());
    let text = hash(&forged).unwrap().replacen("8-", "18446744073709551615-", 1);
    forged["spec"]["template"]["metadata"]["annotations"][ROTATION_HASH] = json!(text);
    assert_eq!(revision(&after(&forged, None, &registry())), Some(8));
}

/// With `spec.clients.caSecretRef` the managed bundle has the clients' CA, not the servers'.
#[test]
fn a_pod_that_loads_ca_crt_keeps_the_source_secret_if_clients_have_another_ca() {
    let with_client_ca = |client_ca: Option<&str>| {
        let mut entry = gw();
        entry.spec.clients.ca_secret_ref = client_ca.map(|name| name.into());
        Registry::new([entry])
    };
    let secret = |object: &Value| object["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].clone();
    let pair = json!([{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}]);
    for (mount, items, name) in [
        (json!({}), json!(null), "root"),
        (json!({"subPath": "ca.crt"}), json!(null), "root"),
        (json!({}), json!([{"key": "cacert", "path": "ca.pem"}]), "root"),
        (json!({}), pair, "gw"),
        (json!({"subPath": "tls.crt"}), json!(null), "gw"),
    ] {
        let mut object = deployment("root", mount);
        if items.is_array() {
            object["spec"]["template"]["spec"]["volumes"][0]["secret"]["items"] = items.clone();
        }
        assert_eq!(secret(&after(&object, None, &with_client_ca(Some("clients")))), name, "{items}");
        assert_eq!(secret(&after(&object, None, &with_client_ca(None))), "gw", "{items}");
    }
    let object = deployment("root", json!({}));
    let outcome = outcome(&object, None, &with_client_ca(Some("clients")));
    let blockers: Vec<_> = outcome.blockers.iter().map(ToString::to_string).collect();
    assert_eq!(
        blockers,
        ["Secret gw has the clients' CA in ca.crt, not the CA of root; mount only tls.crt and tls.key to use it"]
    );
    assert!(outcome.patch.is_empty());
}
