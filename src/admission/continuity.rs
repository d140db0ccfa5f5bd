//! Where continuity is judged: managed Secrets and those of declared clients. Roots are the issuer's right.

use jiff::Timestamp;
use serde_json::Value;

use super::rules::CONTINUITY;
use crate::api::Mode;
use crate::api::names::CLIENT_LABEL;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{Finding, Secret, Severities, Severity, continuity};

/// What a write of a Secret breaks of what works now.
pub(super) fn findings(
    object: &Value,
    old: Option<&Value>,
    namespace: &str,
    claim: Option<(&Entry, Role)>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    // Another rule says what is unreadable.
    let Ok(new) = Secret::from_value(object) else { return Vec::new() };
    let old = old.and_then(|old| Secret::from_value(old).ok());
    let (entry, broken) = match claim {
        Some((entry, Role::Managed)) => {
            let Some(old) = &old else { return Vec::new() };
            (entry, continuity::managed(old, &new, &entry.status, namespace, now))
        }
        Some(_) => return Vec::new(),
        None => {
            let Some(entry) = declared(object, namespace, registry) else { return Vec::new() };
            if entry.spec.canary_name() == Some(new.name.as_str()) {
                // It is to be of the new CA before gateways are known to trust that: it is what shows it.
                return Vec::new();
            }
            (entry, continuity::client(old.as_ref(), &new, &entry.status, now))
        }
    };
    let severities = severities.under(&entry.spec.severities);
    let weighed = broken.into_iter().filter_map(|(field, message)| {
        let mut finding = CONTINUITY.finding(field, message);
        if entry.spec.mode == Mode::Copy {
            finding.severity = Severity::Warn;
        }
        severities.weigh(finding)
    });
    weighed.collect()
}

/// The GatewaySecret whose client a Secret says it is.
pub(super) fn declared<'r>(object: &Value, namespace: &str, registry: &'r Registry) -> Option<&'r Entry> {
    let named = object["metadata"]["labels"][CLIENT_LABEL].as_str()?;
    let entry = registry.entries().iter().find(|entry| entry.namespace == namespace && entry.name == named)?;
    registry.conflict(entry).is_none().then_some(entry)
}

#[cfg(test)]
mod tests;
