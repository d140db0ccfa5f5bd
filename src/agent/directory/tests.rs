#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::trust::fixtures::{ca, now};

/// A directory with a GatewaySecret `gw` and its source Secret.
fn manifests() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let authority = ca("mesh");
    let leaf = authority.leaf("shop.example.com");
    let root = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"namespace": "mesh", "name": "root"},
        "stringData": {"ca.crt": authority.pem(), "tls.crt": leaf.pem(), "tls.key": *leaf.key_pem()},
    });
    fs::write(dir.path().join("root.json"), root.to_string()).unwrap();
    set_managed_name(&dir, "gw");
    dir
}

/// Sets `spec.secretName`.
fn set_managed_name(dir: &TempDir, managed: &str) {
    let spec = json!({"sourceSecretName": "root", "secretName": managed});
    let metadata = json!({"namespace": "mesh", "name": "gateway"});
    let object =
        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": metadata, "spec": spec});
    fs::write(dir.path().join("gateway.json"), object.to_string()).unwrap();
}

fn reconcile_in(dir: &TempDir) -> Result<(), String> {
    reconcile(dir.path(), &Severities::default(), now()).map_err(|error| error.to_string())
}

fn secrets(dir: &TempDir) -> Vec<String> {
    let objects = directory::objects(dir.path()).unwrap();
    let names = objects.iter().filter(|object| object["kind"] == "Secret");
    names.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn writes_the_managed_secret_once() {
    let dir = manifests();
    reconcile_in(&dir).unwrap();
    reconcile_in(&dir).unwrap();
    assert_eq!(secrets(&dir), ["root", "gw"]);
}

#[test]
fn rejects_a_subdirectory_that_is_a_link_or_a_file() {
    let elsewhere = tempfile::tempdir().unwrap();
    for target in ["trustspan", ".", elsewhere.path().to_str().unwrap()] {
        let dir = manifests();
        symlink(target, dir.path().join("trustspan")).unwrap();
        let error = reconcile_in(&dir).unwrap_err();
        assert!(
            error.contains("trustspan: a symbolic link, expected a directory that is not a symbolic link"),
            "{target}: {error}"
        );
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    let dir = manifests();
    fs::write(dir.path().join("trustspan"), "").unwrap();
    assert!(reconcile_in(&dir).unwrap_err().contains("trustspan: a file, expected a directory"));
}

#[test]
fn rejects_another_name_while_the_managed_secret_exists() {
    let dir = manifests();
    reconcile_in(&dir).unwrap();
    reconcile_in(&dir).unwrap();
    set_managed_name(&dir, "gw-2");
    let error = reconcile_in(&dir).unwrap_err();
    assert!(error.contains("Secret gw is in use, and what names it would not switch to Secret gw-2"), "{error}");
    assert_eq!(secrets(&dir), ["root", "gw"]);
    set_managed_name(&dir, "gw");
    reconcile_in(&dir).unwrap();
}

#[test]
fn accepts_another_name_once_the_old_secret_is_removed() {
    let dir = manifests();
    reconcile_in(&dir).unwrap();
    reconcile_in(&dir).unwrap();
    fs::remove_file(dir.path().join("trustspan/mesh.gateway.yaml")).unwrap();
    set_managed_name(&dir, "gw-2");
    reconcile_in(&dir).unwrap();
    assert_eq!(secrets(&dir), ["root", "gw-2"]);
}

#[test]
fn a_managed_config_map_is_kept_when_the_spec_does_not_name_it_any_more() {
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
    reconcile_in(&dir).unwrap();
    reconcile_in(&dir).unwrap();
    let managed = || {
        let objects = directory::objects(dir.path()).unwrap();
        let is_managed = |object: &&Value| object["metadata"]["name"] == "partners.trustspan";
        objects.iter().find(is_managed).map(|object| object["data"]["ca.crt"].clone())
    };
    let written = Some(json!(partner.pem().replace("\r\n", "\n")));
    assert_eq!(managed(), written);
    let registry = load(dir.path(), &Severities::default(), now()).unwrap();
    assert_eq!(registry.entries()[0].status.managed_config_maps[0].source, "partners");
    spec(&[]);
    fs::remove_file(dir.path().join("partners.json")).unwrap();
    reconcile_in(&dir).unwrap();
    assert_eq!(managed(), written, "a Gateway may still name it");
}

#[test]
fn a_client_in_another_namespace_needs_a_label_and_its_namespace_in_the_spec() {
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
    let leaf = authority.leaf("payments");
    for (namespace, name, label) in [
        ("apps", "payments", "mesh_gateway"),
        ("apps", "unlabelled", "gateway"),
        ("strange", "stranger", "mesh_gateway"),
    ] {
        secret(namespace, name, label, &leaf);
    }
    reconcile_in(&dir).unwrap();
    let manifests = Manifests::read(dir.path(), &Severities::default(), now()).unwrap();
    let state = manifests.cluster_state(&manifests.registry.entries()[0], now());
    assert_eq!(state.journal.clients.keys().collect::<Vec<_>>(), ["apps/payments"]);
}
