//! Users of the API server, with static tokens and one kubeconfig each.

use std::{fs, io::Read, path::Path};

use anyhow::{Context, Result};
use serde_json::json;

/// A user that the API server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// In `system:masters`: may do everything.
    Admin,
    /// A developer: the built-in ClusterRole `edit` in every namespace, and rights for both kinds of Gateway.
    Dev,
    /// trustspan's agent, with the name of its ServiceAccount.
    Agent,
    /// trustspan's webhook server, with the name of its ServiceAccount.
    Webhook,
    /// trustspan's approver, with the name of its ServiceAccount.
    Approver,
}

impl User {
    pub(super) const ALL: [User; 5] = [User::Admin, User::Dev, User::Agent, User::Webhook, User::Approver];

    /// The user name that RBAC, the audit log and matchConditions use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            User::Admin => "admin",
            User::Dev => "dev",
            User::Agent => "system:serviceaccount:trustspan-system:trustspan-agent",
            User::Webhook => "system:serviceaccount:trustspan-system:trustspan-webhook",
            User::Approver => "system:serviceaccount:trustspan-system:trustspan-approver",
        }
    }

    fn groups(self) -> &'static str {
        match self {
            User::Admin => "system:masters",
            User::Dev => "developers",
            User::Agent | User::Webhook | User::Approver => {
                "system:serviceaccounts,system:serviceaccounts:trustspan-system"
            }
        }
    }

    pub(super) fn kubeconfig(self) -> &'static str {
        match self {
            User::Admin => "admin.kubeconfig",
            User::Dev => "dev.kubeconfig",
            User::Agent => "agent.kubeconfig",
            User::Webhook => "webhook.kubeconfig",
            User::Approver => "approver.kubeconfig",
        }
    }
}

/// Writes `tokens.csv` for the API server and a kubeconfig for every user.
pub(super) fn write_all(dir: &Path, server: &str, ca: &str) -> Result<()> {
    let mut tokens = String::new();
    for user in User::ALL {
        let token = random_token()?;
        tokens += &format!("{token},{},{},\"{}\"\n", user.name(), user.name(), user.groups());
        // JSON is YAML.
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [{ "name": "bed", "cluster": { "server": server, "certificate-authority-data": base64(ca) } }],
            "users": [{ "name": user.name(), "user": { "token": token } }],
            "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": user.name() } }],
        });
        fs::write(dir.join(user.kubeconfig()), serde_json::to_string_pretty(&kubeconfig)?)?;
    }
    fs::write(dir.join("tokens.csv"), tokens)?;
    Ok(())
}

/// Rights of [`User::Dev`] beyond the built-in kinds of `edit`. The label aggregates this ClusterRole into `edit`.
pub(super) const RIGHTS: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: bed-gateways
  labels: { rbac.authorization.k8s.io/aggregate-to-edit: "true" }
rules:
- apiGroups: [networking.istio.io, gateway.networking.k8s.io]
  resources: ["*"]
  verbs: [get, list, watch, create, update, patch, delete, deletecollection]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: bed-developers }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit }
subjects:
- { apiGroup: rbac.authorization.k8s.io, kind: Group, name: developers }
"#;

pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}

/// Other users of this machine can connect to loopback, so a token must not be guessable.
fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
