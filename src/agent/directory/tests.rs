#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::trust::fixtures::{ca, now};

/// A directory with a GatewaySecret `gw` and its root.
fn manifests() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let authority = ca("mesh");
    let leaf = authority.leaf("shop.example.com");
    let root = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"namespace": "mesh", "name": "root"},
        "stringData": {"ca.crt": authority.pem(), "tls.crt": leaf.pem(), "tls.key": *leaf.key_pem()},
    });
    fs::write(dir.path().join("root.json"), root.to_string()).unwrap();
    name(&dir, "gw");
    dir
}

/// Says how the managed Secret is called.
fn name(dir: &TempDir, managed: &str) {
    let spec = json!({"sourceSecretName": "root", "secretName": managed});
    let metadata = json!({"namespace": "mesh", "name": "gateway"});
    let object =
        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": metadata, "spec": spec});
    fs::write(dir.path().join("gateway.json"), object.to_string()).unwrap();
}

fn look_at(dir: &TempDir) -> Result<(), String> {
    look(dir.path(), &Severities::default(), now()).map_err(|error| error.to_string())
}

fn secrets(dir: &TempDir) -> Vec<String> {
    let objects = directory::objects(dir.path()).unwrap();
    let names = objects.iter().filter(|object| object["kind"] == "Secret");
    names.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn accepts_an_empty_place_and_its_own_folder() {
    let dir = manifests();
    look_at(&dir).unwrap();
    look_at(&dir).unwrap();
    assert_eq!(secrets(&dir), ["root", "gw"]);
}

#[test]
fn rejects_a_folder_that_would_not_be_read_again() {
    let elsewhere = tempfile::tempdir().unwrap();
    for target in ["trustspan", ".", elsewhere.path().to_str().unwrap()] {
        let dir = manifests();
        symlink(target, dir.path().join("trustspan")).unwrap();
        let said = look_at(&dir).unwrap_err();
        assert!(said.contains("trustspan: not a folder of its own (a symbolic link)"), "{target}: {said}");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    let dir = manifests();
    fs::write(dir.path().join("trustspan"), "").unwrap();
    assert!(look_at(&dir).unwrap_err().contains("(a file)"));
}

#[test]
fn rejects_another_name_while_the_managed_secret_stands() {
    let dir = manifests();
    look_at(&dir).unwrap();
    look_at(&dir).unwrap();
    name(&dir, "gw-2");
    let said = look_at(&dir).unwrap_err();
    assert!(said.contains("Secret gw holds what gateways were given last"), "{said}");
    assert_eq!(secrets(&dir), ["root", "gw"]);
    name(&dir, "gw");
    look_at(&dir).unwrap();
}

#[test]
fn accepts_another_name_once_the_former_is_taken_out() {
    let dir = manifests();
    look_at(&dir).unwrap();
    look_at(&dir).unwrap();
    fs::remove_file(dir.path().join("trustspan/mesh.gateway.yaml")).unwrap();
    name(&dir, "gw-2");
    look_at(&dir).unwrap();
    assert_eq!(secrets(&dir), ["root", "gw-2"]);
}

#[test]
fn a_config_map_is_kept_from_another_and_outlives_its_place_in_the_spec() {
    let dir = manifests();
    let spec = |names: &[&str]| {
        let spec = json!({"sourceSecretName": "root", "secretName": "gw", "clients": {"caConfigMapNames": names}});
        let metadata = json!({"namespace": "mesh", "name": "gateway"});
        let kind = "GatewaySecret";
        let object = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        fs::write(dir.path().join("gateway.json"), object.to_string()).unwrap();
    };
    let partner = ca("partner");
    let source = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "mesh", "name": "partners"},
        "data": {"ca.crt": partner.pem()},
    });
    fs::write(dir.path().join("partners.json"), source.to_string()).unwrap();
    spec(&["partners"]);
    look_at(&dir).unwrap();
    look_at(&dir).unwrap();
    let kept = || {
        let objects = directory::objects(dir.path()).unwrap();
        let is_kept = |object: &&Value| object["metadata"]["name"] == "partners.trustspan";
        objects.iter().find(is_kept).map(|object| object["data"]["ca.crt"].clone())
    };
    let written = Some(json!(partner.pem().replace("\r\n", "\n")));
    assert_eq!(kept(), written);
    let registry = load(dir.path(), &Severities::default(), now()).unwrap();
    assert_eq!(registry.entries()[0].status.managed_config_maps[0].source, "partners");
    spec(&[]);
    fs::remove_file(dir.path().join("partners.json")).unwrap();
    look_at(&dir).unwrap();
    assert_eq!(kept(), written, "a Gateway may still name it");
}

#[test]
fn a_client_elsewhere_counts_where_both_sides_declare_it() {
    let dir = manifests();
    let authority = ca("mesh");
    let secret = |namespace: &str, name: &str, label: &str, leaf: &crate::trust::fixtures::Leaf| {
        let labels = json!({ CLIENT_LABEL: label });
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "stringData": {"ca.crt": authority.pem(), "tls.crt": leaf.pem(), "tls.key": *leaf.key_pem()},
        });
        fs::write(dir.path().join(format!("{namespace}.{name}.json")), object.to_string()).unwrap();
    };
    let clients = json!({"namespaces": ["apps"]});
    let spec = json!({"sourceSecretName": "root", "secretName": "gw", "clients": clients});
    let metadata = json!({"namespace": "mesh", "name": "gateway"});
    let object =
        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": metadata, "spec": spec});
    fs::write(dir.path().join("gateway.json"), object.to_string()).unwrap();
    let leaf = authority.leaf("till");
    for (namespace, name, label) in
        [("apps", "till", "mesh_gateway"), ("apps", "unlabelled", "gateway"), ("strange", "stranger", "mesh_gateway")]
    {
        secret(namespace, name, label, &leaf);
    }
    look_at(&dir).unwrap();
    let kept = Manifests::read(dir.path(), &Severities::default(), now()).unwrap();
    let world = kept.world(&kept.registry.entries()[0], now());
    assert_eq!(world.journal.clients.keys().collect::<Vec<_>>(), ["apps/till"]);
}
