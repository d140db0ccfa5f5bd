//! A ClusterIssuer whose CA is in cert-manager's own namespace, and clients in the namespaces of two teams.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    client::ca_crt,
    issuer::SERVER,
    objects,
    run::finish,
    testbed::{CLUSTER_RESOURCES, Cluster, SOON, User, wait_for},
    world::{Layout, World},
};

/// The users of two teams, each of which may write only in half of the clients' namespaces.
const TEAMS: [&str; 2] = ["team-a", "team-b"];
const NAMESPACES: usize = 10;
const CLIENTS: usize = 20;

/// A ConfigMap in a team's namespace, to which the agent writes the clients' bundle.
const TRUST: &str = "trust";

/// The rights of a team in its namespaces.
const RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: team }
rules:
- { apiGroups: [""], resources: [secrets, configmaps], verbs: ["*"] }
- { apiGroups: [cert-manager.io], resources: [certificates], verbs: ["*"] }
"#;

/// Namespace of a client, and the team that owns it.
fn home(ns: &str, client: usize) -> (String, &'static str) {
    let number = client % NAMESPACES;
    (format!("{ns}-clients-{number}"), TEAMS[number % TEAMS.len()])
}

/// A namespace without any grant for the GatewaySecret.
fn strange(ns: &str) -> String {
    format!("{ns}-stranger")
}

fn certificate(name: &str, issuer: &str, usages: Value, rest: &Value) -> Value {
    let mut spec = json!({
        "secretName": name, "commonName": name, "usages": usages,
        "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
        "issuerRef": { "name": issuer, "kind": "ClusterIssuer" },
    });
    for (key, value) in rest.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    json!({ "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name }, "spec": spec })
}

fn client(ns: &str, name: &str) -> Value {
    let template = json!({ "labels": { "trustspan.dev/client": format!("{ns}_gateway") } });
    certificate(name, ns, json!(["digital signature", "client auth"]), &json!({ "secretTemplate": template }))
}

/// Creates a namespace in which a team may write, and the trustspan webhook may read.
fn namespace(cluster: &Cluster, name: &str, team: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    cluster.kubectl(["create", "-f", "-"]).stdin(object.to_string()).ok()?;
    cluster.apply(name, RIGHTS)?;
    cluster.kubectl(["create", "rolebinding", "team", "--role=team", &format!("--user={team}")]).ns(name).ok().map(drop)
}

/// Applies an object as a user that has its rights only from RBAC.
fn apply_as(cluster: &Cluster, team: &str, ns: &str, object: &Value) -> Result<String> {
    cluster.kubectl(["apply", "-f", "-", &format!("--as={team}")]).ns(ns).stdin(object.to_string()).ok()
}

/// Creates the ClusterIssuers, the Certificates, and the rights.
pub(crate) fn layout(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let (root, promoted, self_signed) = (format!("{ns}-root"), format!("{ns}-issuer"), format!("{ns}-self-signed"));
    let issuer = |name: &str, spec: Value| json!({ "apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer", "metadata": { "name": name }, "spec": spec });
    let ca = certificate(
        &root,
        &self_signed,
        json!(["cert sign", "digital signature"]),
        &json!({ "isCA": true, "duration": "2160h" }),
    );
    let hosts: Vec<_> = hosts.split(", ").collect();
    let server = certificate(SERVER, ns, json!(["digital signature", "server auth"]), &json!({ "dnsNames": hosts }));
    // The agent creates no Secret in another namespace: its owner creates it, with the annotation that lets this
    // GatewaySecret write it.
    let adopted = json!({ "trustspan.dev/adopt": format!("{ns}/gateway") });
    let held_back =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": promoted, "annotations": adopted } });
    for (namespace, object) in [
        (CLUSTER_RESOURCES, held_back),
        (CLUSTER_RESOURCES, issuer(&self_signed, json!({ "selfSigned": {} }))),
        (CLUSTER_RESOURCES, issuer(ns, json!({ "ca": { "secretName": promoted } }))),
        (CLUSTER_RESOURCES, ca),
        (ns, server),
    ] {
        cluster.apply(namespace, &object.to_string())?;
    }
    let mut clients = Vec::new();
    for number in 0..NAMESPACES {
        let (home, team) = home(ns, number);
        namespace(cluster, &home, team)?;
    }
    for number in 0..CLIENTS {
        let ((home, team), name) = (home(ns, number), format!("client-{number:02}"));
        apply_as(cluster, team, &home, &client(ns, &name))?;
        clients.push((home, name));
    }
    let (first, team) = home(ns, 0);
    let labels = json!({ "trustspan.dev/client": format!("{ns}_gateway") });
    let trust = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": TRUST, "labels": labels } });
    apply_as(cluster, team, &first, &trust)?;
    let mut gateway_secret = objects::gateway_secret(ns);
    let spec = &mut gateway_secret["spec"];
    spec["caSecretRef"] = json!({ "namespace": CLUSTER_RESOURCES, "name": root });
    spec["issuerSecretName"] = promoted.into();
    spec["trustBundleTargets"] = json!([{ "kind": "ConfigMap", "namespace": first, "name": TRUST }]);
    spec["clients"]["namespaces"] = (0..NAMESPACES).map(|number| home(ns, number).0).collect();
    Ok(Layout {
        namespace: ns.to_owned(),
        ca: (CLUSTER_RESOURCES.to_owned(), root),
        clients,
        gateway_secret,
        external: None,
        trust: |_| ca_crt,
    })
}

/// A client in a namespace without grants changes nothing. Then the CA is rotated.
pub(crate) fn rotate(world: &mut World<'_>) -> Result<()> {
    let (cluster, ns) = (world.cluster, world.ns.clone());
    let (first, _) = home(&ns, 0);
    let (_, other) = home(&ns, 1);
    let refused = apply_as(cluster, other, &first, &client(&ns, "intruder"));
    ensure!(
        refused.is_err_and(|error| format!("{error:#}").contains("forbidden")),
        "a team writes in another's namespace"
    );
    let strange = strange(&ns);
    namespace(cluster, &strange, TEAMS[0])?;
    apply_as(cluster, TEAMS[0], &strange, &client(&ns, "stranger"))?;
    wait_for("cert-manager to issue the stranger's certificate", SOON, || {
        Ok(cluster.get("secret", &strange, "stranger").is_ok_and(|secret| !secret["data"]["tls.crt"].is_null()))
    })?;

    world.step("CA rotated")?;
    world.rotate_ca()?;
    finish(world)?;
    let status = world.operator.status()?;
    let named = |name: &str| status["leaves"].to_string().contains(name);
    ensure!(named(&format!("{first}/client-00")), "expected clients of {first} in status, saw {}", status["leaves"]);
    ensure!(!named("stranger"), "a client that was granted nothing is in status: {}", status["leaves"]);
    let trust = cluster.get("configmap", &first, TRUST)?;
    let held = trust["data"]["ca.crt"].as_str().unwrap_or_default();
    ensure!(held.contains(world.newest_ca()?.trim()), "expected the new CA in ConfigMap {TRUST}, saw {trust}");
    let asked = cluster.requests(User::Agent)?.into_iter().filter(|request| request.resource == "secrets");
    let asked: Vec<_> =
        asked.filter(|request| request.name.is_empty() || request.namespace.starts_with(&first)).collect();
    ensure!(asked.is_empty(), "expected Secrets by name, and none of clients, saw {asked:?}");
    let revision =
        cluster.get("certificate", &strange, "stranger")?["status"]["revision"].as_u64().context("revision")?;
    ensure!(revision == 1, "expected the stranger's Certificate as it was, saw revision {revision}");
    retire(world)?;
    let gone = delete_namespace(world)?;
    let left = (0..NAMESPACES).map(|number| home(&ns, number).0).filter(|namespace| *namespace != gone);
    for namespace in left.chain([strange]) {
        cluster.kubectl(["delete", "namespace", &namespace, "--wait=false"]).ok()?;
    }
    Ok(())
}

/// The owner of a client says that no workload uses it any more.
fn retire(world: &World<'_>) -> Result<()> {
    let (home, team) = home(&world.ns, 0);
    let template = json!({ "spec": { "secretTemplate": { "annotations": { "trustspan.dev/retired": "true" } } } });
    let patch = ["patch", "certificate", "client-00", "--type=merge", "-p", &template.to_string()];
    world.cluster.kubectl(patch).ns(&home).arg(format!("--as={team}")).ok()?;
    let client = format!("{home}/client-00\"");
    wait_for("a retired client to be forgotten", SOON, || {
        Ok(!world.operator.status()?["leaves"].to_string().contains(&client))
    })
}

/// The namespace of two clients is deleted.
fn delete_namespace(world: &World<'_>) -> Result<String> {
    let (home, _) = home(&world.ns, 1);
    world.cluster.kubectl(["delete", "namespace", &home]).ok()?;
    let words = format!("Namespace {home} of spec.clients.namespaces was deleted, and counts until");
    wait_for("a deleted namespace to be noticed", SOON, || {
        Ok(world.operator.status()?["conditions"].to_string().contains(&words))
    })?;
    let leaves = world.operator.status()?["leaves"].to_string();
    ensure!(leaves.contains(&format!("{home}/client-01")), "expected its clients to count for a day, saw {leaves}");
    Ok(home)
}
