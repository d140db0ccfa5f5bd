//! The checks of a write of a Secret.

use super::rules::{MANAGED_UNLABELLED, UNREADABLE};
use super::secret_write::SecretWrite;
use super::{connectivity, guard, secret_usage};
use crate::api::names::MANAGED_LABEL;
use crate::registry::Role;
use crate::trust::{self, Finding, SecretError};

/// What a write breaks: clients and gateways that work together now and, where the Secret is guarded, a gateway that loads it.
pub(super) fn findings(write: &SecretWrite<'_>) -> Vec<Finding> {
    [connectivity::findings, content, missing_label].iter().flat_map(|check| check(write)).collect()
}

/// The rules on the content of a guarded Secret.
fn content(write: &SecretWrite<'_>) -> Vec<Finding> {
    if !guard::is_guarded(write.request) {
        return Vec::new();
    }
    let new = match &write.new {
        Ok(new) => new,
        Err(error) => return vec![unreadable(error)],
    };
    let usage = secret_usage::usage(write, new);
    match &write.old {
        Some(old) => trust::judge_parsed_update(old, new, usage, &write.severities, write.now),
        None => trust::judge_parsed(new, usage, &write.severities, write.now),
    }
}

fn unreadable(error: &SecretError) -> Finding {
    // The error's text begins with the name of the field.
    let text = error.to_string();
    let (field, message) = text.split_once(": ").unwrap_or(("data", &text));
    UNREADABLE.finding(field, message)
}

/// A managed Secret without the label by which the API server selects it.
fn missing_label(write: &SecretWrite<'_>) -> Vec<Finding> {
    let is_managed = write.claim.is_some_and(|(_, role)| role == Role::Managed);
    if !is_managed || write.object["metadata"]["labels"][MANAGED_LABEL] == "true" {
        return Vec::new();
    }
    let message = format!(
        "managed Secret {} lacks label {MANAGED_LABEL}=true. expected it: without it the API server may accept writes of this Secret while \
         the webhook is down, unless the Role of trustspan rbac is applied; the agent adds it, so let that run",
        write.request.name
    );
    let finding = MANAGED_UNLABELLED.finding("metadata.labels", message);
    write.severities.apply(finding).into_iter().collect()
}
