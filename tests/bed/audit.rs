//! What the API server itself says that trustspan asked of it.

use std::{collections::HashSet, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::users::User;

/// The API server's audit policy (Kubernetes docs, "Auditing"): who asked what, for trustspan's two users only.
pub(super) fn policy() -> Value {
    let users = [User::Agent.name(), User::Webhook.name()];
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata", "users": users }, { "level": "None" }],
    })
}

/// One request, as the API server understood it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: String,
    /// Empty for a request that is about no resource, such as for a version.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    /// The name in the path; of a list or watch the one that its field selector demands. Empty: any name.
    pub(crate) name: String,
}

/// A user's requests in a log, oldest first. A watch is one request, from its begin on.
pub(super) fn requests(log: &Path, user: User) -> Result<Vec<Request>> {
    let text = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    // What follows the last line's end is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let (mut seen, mut requests) = (HashSet::new(), Vec::new());
    for line in whole.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| format!("audit log: {line}"))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if event["user"]["username"] == user.name() && seen.insert(text(&event["auditID"])) {
            let object = &event["objectRef"];
            requests.push(Request {
                verb: text(&event["verb"]),
                resource: text(&object["resource"]),
                namespace: text(&object["namespace"]),
                name: text(&object["name"]),
            });
        }
    }
    Ok(requests)
}
