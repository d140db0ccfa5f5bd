use proptest::prelude::*;

use super::*;

/// Names of Secrets: source Secrets of a Ready and of an unready GatewaySecret, managed Secrets, and an unrelated one.
fn secret() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["root", "gw", "root2", "gw2", "unrelated"])
}

/// The names of ConfigMaps.
fn config_map() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["cas", "cas.trustspan", "cas-cacert", "early", "unrelated"])
}

fn both() -> Registry {
    let mut second = crate::registry::tests::entry("mesh", "root2", "gw2");
    second.status.hashes = [key_hash("ca.crt", 2)].into();
    second.status.conditions.clear();
    Registry::new([gw(), second])
}

fn annotations() -> impl Strategy<Value = Option<Value>> {
    let hash = format!("4-aaaaaaaa-{}", "a".repeat(64));
    prop::option::of(prop::sample::select(vec![
        Value::Null,
        json!({}),
        json!({"team": "a"}),
        json!({"x/y~z": "1.10", ROTATION_HASH: hash}),
        json!({ROTATION_HASH: "by hand"}),
    ]))
}

fn metadata() -> impl Strategy<Value = Value> {
    annotations().prop_map(|annotations| {
        let mut metadata = json!({"name": "x", "namespace": "mesh", "unknown": {"big": 12345678901234567890_u64}});
        metadata.as_object_mut().unwrap().extend(annotations.map(|map| ("annotations".to_owned(), map)));
        metadata
    })
}

fn istio() -> impl Strategy<Value = Value> {
    let cas =
        prop_oneof![secret().prop_map(str::to_owned), config_map().prop_map(|name| format!("configmap://mesh/{name}"))];
    let tls = (secret(), prop::collection::vec(secret(), 0..3), cas, any::<bool>()).prop_map(
        |(one, many, ca, scheme)| {
            let one = if scheme { format!("kubernetes://{one}") } else { one.to_owned() };
            json!({"mode": "MUTUAL", "credentialName": one, "credentialNames": many, "caCertCredentialName": ca, "unknown": 1.0})
        },
    );
    (metadata(), prop::collection::vec(tls, 0..4)).prop_map(|(metadata, servers)| {
        let servers: Vec<_> = servers.into_iter().map(|tls| json!({"tls": tls})).collect();
        let spec = json!({"selector": {"istio": "ingressgateway"}, "servers": servers});
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": metadata, "spec": spec})
    })
}

fn gateway_api() -> impl Strategy<Value = Value> {
    (metadata(), prop::collection::vec(secret(), 0..4), secret(), config_map()).prop_map(
        |(metadata, names, client, cas)| {
            let references: Vec<_> = names.iter().map(|name| json!({"name": name, "namespace": "mesh"})).collect();
            let mut authorities = references.clone();
            authorities.push(json!({"kind": "ConfigMap", "name": cas}));
            let tls = json!({
                "frontend": {"default": {"validation": {"caCertificateRefs": authorities}}},
                "backend": {"clientCertificateRef": {"name": client}},
            });
            let spec = json!({"listeners": [{"tls": {"certificateRefs": references}}], "tls": tls});
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata, "spec": spec})
        },
    )
}

fn workload() -> impl Strategy<Value = Value> {
    let mount = prop::sample::select(vec![json!({}), json!({"subPath": "ca.crt"}), json!({"subPath": "tls.key"})]);
    let template_metadata = prop::option::of(annotations());
    (metadata(), template_metadata, secret(), secret(), secret(), mount).prop_map(
        |(metadata, template_metadata, volume, variable, source, mut mount)| {
            mount["name"] = json!("v");
            let mut template = json!({"spec": {
                "volumes": [
                    {"name": "v", "secret": {"secretName": volume}},
                    {"name": "p", "projected": {"sources": [{"secret": {"name": source}}]}},
                ],
                "containers": [{
                    "env": [{"valueFrom": {"secretKeyRef": {"name": variable, "key": "ca.crt"}}}],
                    "volumeMounts": [mount, {"name": "p"}],
                }],
            }});
            if let Some(annotations) = template_metadata {
                template["metadata"] = json!({});
                let map = template["metadata"].as_object_mut().unwrap();
                map.extend(annotations.map(|annotations| ("annotations".to_owned(), annotations)));
            }
            let spec = json!({"replicas": 1, "template": template});
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        },
    )
}

fn object() -> impl Strategy<Value = Value> {
    prop_oneof![istio(), gateway_api(), workload()]
}

/// The object without the fields that trustspan owns, which must not change.
fn unowned(object: &Value) -> String {
    let mut object = object.clone();
    for name in names_mut(&mut object) {
        *name = Value::Null;
    }
    for pointer in ["/metadata", "/spec/template/metadata", "/spec/template"] {
        let Some(Value::Object(map)) = object.pointer_mut(pointer) else { continue };
        if let Some(Value::Object(annotations)) = map.get_mut("annotations") {
            annotations.shift_remove(ROTATION_HASH);
            annotations.shift_remove(UNDO);
        }
        for key in ["annotations", "metadata"] {
            let spent = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            if map.get(key).is_some_and(spent) {
                map.shift_remove(key);
            }
        }
    }
    object.to_string()
}

/// The values of all references in an object.
fn names_mut(object: &mut Value) -> Vec<&mut Value> {
    let json = Json::from(&*object);
    let rule = kinds::find(Kind::of(&json)).unwrap();
    let references = (rule.references)(&json, "mesh");
    let pointers: Vec<_> = references.iter().map(|reference| reference.node.pointer()).collect();
    fn collect<'a>(value: &'a mut Value, at: &str, pointers: &[String], found: &mut Vec<&'a mut Value>) {
        if pointers.iter().any(|pointer| pointer == at) {
            found.push(value);
            return;
        }
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    let mut pointer = at.to_owned();
                    json_path::push_step(&mut pointer, key);
                    collect(value, &pointer, pointers, found);
                }
            }
            Value::Array(list) => {
                for (index, value) in list.iter_mut().enumerate() {
                    collect(value, &format!("{at}/{index}"), pointers, found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(object, "", &pointers, &mut found);
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_second_rewrite_is_an_empty_patch(object in object()) {
        let once = after(&object, None, &both());
        let again = outcome(&once, None, &both());
        prop_assert!(again.patch.is_empty(), "{}", again.patch.as_str());
        let as_update = outcome(&once, Some(&once), &both());
        prop_assert!(as_update.patch.is_empty(), "{}", as_update.patch.as_str());
    }

    #[test]
    fn other_fields_do_not_change(object in object()) {
        prop_assert_eq!(unowned(&after(&object, None, &both())), unowned(&object));
    }

    #[test]
    fn undo_after_rewrite_is_the_identity(object in object()) {
        let rewritten = after(&object, None, &both());
        let undone = undo(&rewritten).map_or(rewritten.clone(), |undo| patched(&rewritten, &undo.patch));
        prop_assert_eq!(undone, object);
    }

    #[test]
    fn undo_after_rewrites_at_two_revisions_is_the_identity(object in object()) {
        let rewritten = after(&after(&object, None, &both()), None, &rotated());
        let undone = undo(&rewritten).map_or(rewritten.clone(), |undo| patched(&rewritten, &undo.patch));
        prop_assert_eq!(undone, object);
    }

    #[test]
    fn applying_the_same_manifest_again_changes_nothing(object in object()) {
        let stored = after(&object, None, &both());
        prop_assert_eq!(after(&object, Some(&stored), &both()), stored);
    }

    #[test]
    fn the_same_template_never_rolls(object in workload(), registry in prop::sample::select(vec![0, 1, 2])) {
        let stored = after(&object, None, &both());
        let registry = [both(), rotated(), unready()].into_iter().nth(registry).unwrap();
        let template = |object: &Value| object["spec"]["template"].clone();
        let replaced = after(&object, Some(&stored), &registry);
        let [new, old] = [&replaced, &stored].map(Json::from);
        prop_assert!(same_template(&new, &old), "{replaced}");
        prop_assert_eq!(HASH.read(&new), HASH.read(&old));
        prop_assert_eq!(template(&after(&stored, Some(&stored), &registry)), template(&stored));
    }
}
