//! trustspan's requests, from the audit log of the API server.

use std::{collections::HashSet, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::users::User;

/// Name of the Secret whose writes by all users are in the audit log.
pub(crate) const AUDITED: &str = "gateway";

/// The API server's audit policy (Kubernetes docs, "Auditing"): all requests of trustspan's two users, with what they report in Events, status
/// and ConfigMaps, and by all users the writes of one Secret and the deletions of what the API server calls.
pub(super) fn policy() -> Value {
    let users = [User::Agent.name(), User::Webhook.name()];
    let audited = json!([{ "group": "", "resources": ["secrets"], "resourceNames": [AUDITED] }]);
    let reported = json!([
        { "group": "", "resources": ["events", "configmaps"] },
        { "group": "events.k8s.io", "resources": ["events"] },
        { "group": "trustspan.dev" },
    ]);
    let called = json!([
        { "group": "admissionregistration.k8s.io" },
        { "group": "apps", "resources": ["deployments"] },
        { "group": "", "resources": ["services"] },
    ]);
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Request", "users": users, "resources": reported },
            { "level": "Metadata", "users": users },
            { "level": "Metadata", "verbs": ["create", "update", "patch", "delete"], "resources": audited },
            { "level": "Metadata", "verbs": ["delete"], "resources": called },
            { "level": "None" },
        ],
    })
}

/// A request in the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: String,
    /// Empty for a request without a resource, such as `/version`.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    /// The name in the path, or in the field selector of a list or watch. Empty: any name.
    pub(crate) name: String,
}

fn events(log: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    // The last line may be incomplete, because it is still being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let event = |line: &str| serde_json::from_str(line).with_context(|| format!("audit log: {line}"));
    whole.lines().map(event).collect()
}

/// The annotations of an audited Secret's writes in a namespace, oldest first.
pub(super) fn annotations(log: &Path, ns: &str) -> Result<Vec<Value>> {
    let mut events = events(log)?;
    events.retain(|event| {
        let object = &event["objectRef"];
        object["namespace"] == ns && object["resource"] == "secrets" && object["name"] == AUDITED
    });
    Ok(events.into_iter().map(|mut event| event["annotations"].take()).collect())
}

/// A user's requests in a log, oldest first. A watch is one request, listed when it begins.
pub(super) fn requests(log: &Path, user: User) -> Result<Vec<Request>> {
    let (mut seen, mut requests) = (HashSet::new(), Vec::new());
    for event in events(log)? {
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
