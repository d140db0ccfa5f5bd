#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::trust::fixtures::{ca, now};

/// A temporary directory with `manifests` and, after the first reconcile, `state`.
struct Site(TempDir);

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("manifests").join(name)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn directories(&self) -> Directories {
        Directories::new(&self.path(""), Some(&self.state())).unwrap()
    }

    fn objects(&self) -> Vec<Value> {
        directory::objects(&self.directories().readable()).unwrap()
    }
}

/// A directory with a GatewaySecret `gw` and its source Secret.
fn manifests() -> Site {
    let dir = Site(tempfile::tempdir().unwrap());
    fs::create_dir(dir.path("")).unwrap();
    let authority = ca("mesh");
    let leaf = authority.leaf("shop.example.com");
    let root = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"namespace": "mesh", "name": "root"},
        "stringData": {"ca.crt": authority.pem(), "tls.crt": leaf.pem(), "tls.key": *leaf.key_pem()},
    });
    fs::write(dir.path("root.json"), root.to_string()).unwrap();
    set_managed_name(&dir, "gw");
    dir
}

/// Sets `spec.secretName`.
fn set_managed_name(dir: &Site, managed: &str) {
    let spec = json!({"sourceSecretName": "root", "secretName": managed});
    let metadata = json!({"namespace": "mesh", "name": "gateway"});
    let object =
        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": metadata, "spec": spec});
    fs::write(dir.path("gateway.json"), object.to_string()).unwrap();
}

fn reconcile_in(dir: &Site) -> Result<(), String> {
    reconcile(&dir.directories(), &Severities::default(), now()).map_err(|error| error.to_string())
}

fn secrets(dir: &Site) -> Vec<String> {
    let objects = dir.objects();
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
fn the_state_directory_is_private_and_the_manifests_stay_as_they_are() {
    let dir = manifests();
    let names = |path: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = names(&dir.path(""));
    reconcile_in(&dir).unwrap();
    assert_eq!(names(&dir.path("")), before);
    assert_eq!(names(&dir.state()), ["mesh.gateway.journal.yaml", "mesh.gateway.yaml"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.state()), 0o700);
    assert_eq!(mode(&dir.state().join("mesh.gateway.yaml")), 0o600);
}

#[test]
fn a_state_directory_that_is_deleted_is_made_again() {
    let dir = manifests();
    reconcile_in(&dir).unwrap();
    fs::remove_dir_all(dir.state()).unwrap();
    assert_eq!(secrets(&dir), ["root"]);
    reconcile_in(&dir).unwrap();
    assert_eq!(secrets(&dir), ["root", "gw"]);
}

#[test]
fn rejects_a_second_process_with_the_same_state_directory() {
    let dir = manifests();
    let lock = dir.directories().lock().unwrap();
    let error = dir.directories().lock().unwrap_err().to_string();
    assert!(error.contains("is in use by another process"), "{error}");
    drop(lock);
    dir.directories().lock().unwrap();
}

#[test]
fn rejects_a_state_directory_that_cannot_be_written() {
    let dir = manifests();
    // Not even root can create a file in /proc.
    for path in ["/proc/trustspan", "/proc/self/task"] {
        let error = Directories::new(&dir.path(""), Some(Path::new(path))).unwrap().lock().unwrap_err().to_string();
        assert!(error.contains("cannot be written") && error.contains("set --state-dir"), "{error}");
    }
    let error = Directories::new(&dir.path(""), Some(Path::new("/proc/version"))).unwrap_err().to_string();
    assert!(error.contains("/proc/version cannot be written: not a directory"), "{error}");
}

#[test]
fn rejects_a_state_directory_that_would_be_read_as_manifests() {
    let dir = manifests();
    let link = dir.0.path().join("link");
    symlink(dir.path(""), &link).unwrap();
    let parent = dir.0.path().to_owned();
    for state in [dir.path(""), dir.path("state"), dir.path("new/state"), link.join("state"), parent] {
        let error = Directories::new(&dir.path(""), Some(&state)).unwrap_err().to_string();
        assert!(error.contains("contain each other"), "{error}");
    }
}

#[test]
fn each_directory_of_manifests_has_its_own_default_state_directory() {
    let state = |manifests: &Path| Directories::new(manifests, None).unwrap().state().to_owned();
    let (one, other) = (manifests(), manifests());
    assert_eq!(state(&one.path("")), state(&one.path("../manifests")));
    assert_ne!(state(&one.path("")), state(&other.path("")));
    let name = state(&one.path("")).file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with("manifests-"), "{name}");
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
    fs::remove_file(dir.state().join("mesh.gateway.yaml")).unwrap();
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
        fs::write(dir.path("gateway.json"), object.to_string()).unwrap();
    };
    let partner = ca("partner");
    let source = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "mesh", "name": "partners"},
        "data": {"ca.crt": partner.pem()},
    });
    fs::write(dir.path("partners.json"), source.to_string()).unwrap();
    spec(&["partners"]);
    reconcile_in(&dir).unwrap();
    reconcile_in(&dir).unwrap();
    let managed = || {
        let objects = dir.objects();
        let is_managed = |object: &&Value| object["metadata"]["name"] == "partners.trustspan";
        objects.iter().find(is_managed).map(|object| object["data"]["ca.crt"].clone())
    };
    let written = Some(json!(partner.pem().replace("\r\n", "\n")));
    assert_eq!(managed(), written);
    let registry = load(&dir.directories(), &Severities::default(), now()).unwrap();
    assert_eq!(registry.entries()[0].status.managed_config_maps[0].source, "partners");
    spec(&[]);
    fs::remove_file(dir.path("partners.json")).unwrap();
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
        fs::write(dir.path(&format!("{namespace}.{name}.json")), object.to_string()).unwrap();
    };
    let clients = json!({"namespaces": ["apps"]});
    let spec = json!({"sourceSecretName": "root", "secretName": "gw", "clients": clients});
    let metadata = json!({"namespace": "mesh", "name": "gateway"});
    let object =
        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": metadata, "spec": spec});
    fs::write(dir.path("gateway.json"), object.to_string()).unwrap();
    let leaf = authority.leaf("payments");
    for (namespace, name, label) in [
        ("apps", "payments", "mesh_gateway"),
        ("apps", "unlabelled", "gateway"),
        ("strange", "stranger", "mesh_gateway"),
    ] {
        secret(namespace, name, label, &leaf);
    }
    reconcile_in(&dir).unwrap();
    let manifests = Manifests::read(&dir.directories(), &Severities::default(), now()).unwrap();
    let state = manifests.cluster_state(&manifests.registry.entries()[0], now());
    assert_eq!(state.journal.clients.keys().collect::<Vec<_>>(), ["apps/payments"]);
}
