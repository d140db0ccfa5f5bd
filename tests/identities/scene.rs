//! One ClientIdentity with its approver and its client.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use trustspan::identity::IdentityName;

use crate::testbed::{Cluster, Process, SOON, User, wait_for, wait_for_value};

/// Time between two reads of everything, in both processes.
const POLL: &str = "500ms";

/// The trustspan-node binary.
fn trustspan_node() -> PathBuf {
    env!("CARGO_BIN_EXE_trustspan-node").into()
}

/// The permissions of the approver, and of the clients that it may give.
pub(crate) fn install(cluster: &Cluster) -> Result<()> {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/approver");
    for file in ["rbac.yaml", "policy.yaml"] {
        cluster.kubectl(["apply", "-f"]).arg(manifests.join(file)).ok()?;
    }
    Ok(())
}

/// Starts the approver.
pub(crate) fn start_approver(cluster: &Cluster, extra: &[&str]) -> Result<Process> {
    start_approver_at(cluster, 0, extra)
}

/// Starts the approver, with its health checks on a port of loopback.
pub(crate) fn start_approver_at(cluster: &Cluster, port: u16, extra: &[&str]) -> Result<Process> {
    let name = format!("approver-{}", cluster.unique());
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig(User::Approver).display());
    let poll = format!("--poll={POLL}");
    // The next process of a test must not wait for the Lease of one that was killed.
    let listen = format!("--metrics-listen=127.0.0.1:{port}");
    let fixed = ["approve", &kubeconfig, &poll, "--lease-duration=1s", &listen];
    cluster.spawn(&name, &trustspan_node(), fixed.iter().chain(extra), &[])
}

/// A ClientIdentity in a namespace with the rights of its approver.
pub(crate) struct Scene<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) identity: IdentityName,
    pub(crate) directory: PathBuf,
}

impl<'c> Scene<'c> {
    /// Creates the namespace, and lets the approver work in it.
    pub(crate) fn new(cluster: &'c Cluster, namespace: &str) -> Result<Self> {
        install(cluster)?;
        cluster.kubectl(["create", "namespace", namespace]).ok()?;
        let account = "--serviceaccount=trustspan-system:trustspan-approver";
        let role = ["create", "role", "clients", "--verb=get,list,create", "--resource=configmaps"];
        cluster.kubectl(role).ns(namespace).ok()?;
        for (name, role) in [("approver", "--clusterrole=trustspan-approver-namespace"), ("clients", "--role=clients")]
        {
            cluster.kubectl(["create", "rolebinding", name, role, account]).ns(namespace).ok()?;
        }
        wait_for("the root CA's ConfigMap", SOON, || cluster.exists("configmap", namespace, "kube-root-ca.crt"))?;
        let directory = cluster.temp_dir("identity")?;
        Ok(Self { cluster, identity: IdentityName::new(namespace, "payments"), directory })
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.identity.namespace
    }

    /// The ClientIdentity, with further fields of its spec.
    pub(crate) fn object(&self, extra: &Value) -> Result<Value> {
        let (url, _) = self.cluster.server()?;
        let mut object = json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "ClientIdentity",
            "metadata": { "name": self.identity.name, "namespace": self.namespace() },
            "spec": {
                "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"] }],
                "server": { "endpoint": url },
                "expirationSeconds": 3600,
            },
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        Ok(object)
    }

    pub(crate) fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(self.namespace(), &object.to_string()).map(drop)
    }

    /// Starts the client with a bootstrap kubeconfig from a Secret of this cluster or another one.
    pub(crate) fn start_client(&self, place: &Cluster, secret: &str, to: &[String]) -> Result<Process> {
        let identity = self.identity.to_string();
        let mut args = vec!["identity".to_owned(), identity, format!("--bootstrap-from={secret}")];
        args.push(format!("--kubeconfig={}", place.kubeconfig(User::Admin).display()));
        args.extend([format!("--interval={POLL}"), "--expiration-seconds=3600".to_owned()]);
        args.extend(to.iter().cloned());
        let name = format!("client-{}", place.unique());
        place.spawn(&name, &trustspan_node(), args, &[])
    }

    /// Starts the client with a bootstrap kubeconfig in a file.
    pub(crate) fn start_client_with_file(&self, bootstrap: &Path) -> Result<Process> {
        let file = format!("--bootstrap-kubeconfig={}", bootstrap.display());
        let (identity, interval) = (self.identity.to_string(), format!("--interval={POLL}"));
        let args = ["identity", &identity, &file, &interval, "--expiration-seconds=3600", &self.to()];
        self.cluster.spawn(&format!("client-{}", self.cluster.unique()), &trustspan_node(), args, &[])
    }

    /// The same, with its own directory and the default Secret.
    pub(crate) fn start_own_client(&self) -> Result<Process> {
        let secret = format!("{}/payments-bootstrap", self.namespace());
        self.start_client(self.cluster, &secret, &[self.to()])
    }

    pub(crate) fn to(&self) -> String {
        format!("--to={}", self.directory.display())
    }

    /// The client's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Waits until the client has a kubeconfig that differs from another text.
    pub(crate) fn new_kubeconfig(&self, old: &str, limit: Duration) -> Result<String> {
        wait_for_value("a new kubeconfig", limit, || {
            Ok(fs::read_to_string(self.kubeconfig()).ok().filter(|text| text != old))
        })
    }

    pub(crate) fn stored(&self) -> Result<Value> {
        self.cluster.get("clientidentities", self.namespace(), &self.identity.name)
    }

    /// Waits until the condition `Valid` has a status and a reason.
    pub(crate) fn wait_valid(&self, status: &str, reason: &str) -> Result<Value> {
        wait_for_value(&format!("Valid={status} ({reason})"), SOON, || {
            let object = self.stored()?;
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let valid = conditions.iter().find(|one| one["type"] == "Valid").context("no condition")?;
            ensure!(valid["status"] == status && valid["reason"] == reason, "saw {valid}");
            Ok(Some(object))
        })
    }

    /// The certificate signing requests for this identity, by any sender.
    pub(crate) fn requests(&self) -> Result<Vec<Value>> {
        let mut list = self.cluster.list("certificatesigningrequests", "default", "")?;
        let user = self.identity.user();
        list.retain(|request| {
            let pem = STANDARD.decode(request["spec"]["request"].as_str().unwrap_or_default()).unwrap_or_default();
            let body: String =
                String::from_utf8_lossy(&pem).lines().filter(|line| !line.starts_with("-----")).collect();
            let der = STANDARD.decode(body).unwrap_or_default();
            der.windows(user.len()).any(|window| window == user.as_bytes())
        });
        Ok(list)
    }

    /// Bootstrap tokens, bindings and bootstrap kubeconfigs of this identity.
    pub(crate) fn counts(&self) -> Result<Counts> {
        let label = format!("trustspan.dev/client-identity-namespace={}", self.namespace());
        let count =
            |kind: &str, namespace: &str| Ok::<_, anyhow::Error>(self.cluster.list(kind, namespace, &label)?.len());
        Ok(Counts {
            requests: self.requests()?.len(),
            tokens: count("secrets", "kube-system")?,
            bootstrap_secrets: count("secrets", self.namespace())?,
            roles: count("roles", self.namespace())?,
            role_bindings: count("rolebindings", self.namespace())?,
            cluster_role_bindings: count("clusterrolebindings", "default")?,
        })
    }

    /// The text of the bootstrap kubeconfig.
    pub(crate) fn bootstrap_kubeconfig(&self) -> Result<String> {
        let secret = self.cluster.get("secret", self.namespace(), "payments-bootstrap")?;
        let text = STANDARD.decode(secret["data"]["kubeconfig"].as_str().context("no kubeconfig")?)?;
        Ok(String::from_utf8(text)?)
    }
}

/// What exists for an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: usize,
    pub(crate) tokens: usize,
    pub(crate) bootstrap_secrets: usize,
    pub(crate) roles: usize,
    pub(crate) role_bindings: usize,
    pub(crate) cluster_role_bindings: usize,
}

/// One of everything, and no token.
pub(crate) const ONE: Counts =
    Counts { requests: 1, tokens: 0, bootstrap_secrets: 1, roles: 1, role_bindings: 1, cluster_role_bindings: 1 };
