//! A write of a Secret: both versions are decoded and parsed once, and every check takes the same [`SecretWrite`].

use jiff::Timestamp;
use serde_json::Value;

use super::rules::{MANAGED_UNLABELLED, UNREADABLE};
use super::{Operation, Request, connectivity, guard, secret_role};
use crate::api::names::MANAGED_LABEL;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{self, Finding, ParsedSecret, Secret, SecretError, Severities, TlsConsumer};

/// The Secrets of a request, decoded.
pub(super) struct DecodedWrite<'r> {
    object: &'r Value,
    new: Result<Secret, SecretError>,
    old: Option<Secret>,
}

/// A write of a Secret, and all that its checks need.
pub(super) struct SecretWrite<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) registry: &'r Registry,
    pub(super) now: Timestamp,
    /// The GatewaySecret that names this Secret, and for which role.
    pub(super) claim: Option<(&'r Entry, Role)>,
    /// The severities for this Secret.
    pub(super) severities: Severities,
    pub(super) object: &'r Value,
    pub(super) new: Result<ParsedSecret<'r>, &'r SecretError>,
    /// The stored version, on an update.
    pub(super) old: Option<ParsedSecret<'r>>,
}

impl<'r> DecodedWrite<'r> {
    /// `None` if the request stores nothing.
    pub(super) fn new(request: &Request<'r>) -> Option<Self> {
        let object = request.stored_object()?;
        let old = request.old_object.filter(|_| request.operation == Operation::Update);
        Some(Self { object, new: Secret::from_value(object), old: old.and_then(|old| Secret::from_value(old).ok()) })
    }
}

impl<'r> SecretWrite<'r> {
    /// `severities` are the cluster-wide ones. Those of the GatewaySecret that names the Secret override them.
    pub(super) fn new(
        request: &'r Request<'r>,
        decoded: &'r DecodedWrite<'r>,
        registry: &'r Registry,
        severities: &Severities,
        now: Timestamp,
    ) -> Self {
        let claim = registry.role(request.namespace, request.name);
        let severities = match claim {
            Some((entry, _)) => severities.under(&entry.policy.severities),
            None => severities.clone(),
        };
        let parsed = |secret: &'r Secret| ParsedSecret::new(secret, TlsConsumer::Envoy);
        let (new, old) = (decoded.new.as_ref().map(parsed), decoded.old.as_ref().map(parsed));
        Self { request, registry, now, claim, severities, object: decoded.object, new, old }
    }

    /// What this write breaks: clients and gateways that work together now and, where the Secret is guarded, a gateway that loads it.
    pub(super) fn findings(&self) -> Vec<Finding> {
        [connectivity::findings, content, missing_label].iter().flat_map(|check| check(self)).collect()
    }
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
    let duty = secret_role::duty(write, new);
    match &write.old {
        Some(old) => trust::judge_parsed_update(old, new, duty, &write.severities, write.now),
        None => trust::judge_parsed(new, duty, &write.severities, write.now),
    }
}

fn unreadable(error: &SecretError) -> Finding {
    // The text of the error begins with the field.
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
        "managed Secret {} lacks label {MANAGED_LABEL}=true: add it. without it, no write is judged while the webhook is down",
        write.request.name
    );
    let finding = MANAGED_UNLABELLED.finding("metadata.labels", message);
    write.severities.apply(finding).into_iter().collect()
}
