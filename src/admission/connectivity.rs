//! Where connectivity is judged: managed Secrets, their `-cacert` siblings, other sources of gateways' trust, and Secrets of declared
//! clients. Roots are the issuer's right.

use jiff::Timestamp;

use super::Request;
use super::rules::CONNECTIVITY;
use crate::api::Mode;
use crate::api::names::{CACERT_SUFFIX, CLIENT_LABEL};
use crate::connectivity::{self, Broken};
use crate::registry::{Entry, Registry, Role};
use crate::trust::{Finding, ParsedSecret, Severities, Severity};

/// What a write of a Secret breaks of what works now.
pub(super) fn findings(
    new: &ParsedSecret<'_>,
    old: Option<&ParsedSecret<'_>>,
    namespace: &str,
    claim: Option<(&Entry, Role)>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let (entry, broken) = match claim {
        Some((entry, Role::Managed)) => {
            let Some(old) = old else { return Vec::new() };
            (entry, connectivity::managed(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now))
        }
        Some((entry, Role::CacertSibling)) if is_of_managed(new, entry) => {
            let broken = connectivity::sibling(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now);
            (entry, broken.into_iter().collect())
        }
        Some(_) => return Vec::new(),
        None => {
            let label = new.secret.labels.get(CLIENT_LABEL).map(String::as_str);
            let Some(entry) = declared(label, namespace, registry) else { return Vec::new() };
            if entry.namespace == namespace && entry.canary_name() == Some(new.secret.name.as_str()) {
                // It is to be of the new CA before gateways are known to trust that: it is what shows it.
                return Vec::new();
            }
            (entry, connectivity::client(old, new, &entry.status, &entry.spec.distrusted_cas, now))
        }
    };
    broken.into_iter().filter_map(|broken| weighed(entry, broken, severities)).collect()
}

fn weighed(entry: &Entry, (field, message): Broken, severities: &Severities) -> Option<Finding> {
    let mut finding = CONNECTIVITY.finding(field, message);
    if entry.spec.mode == Mode::Copy {
        finding.severity = Severity::Warn;
    }
    severities.under(&entry.policy.severities).apply(finding)
}

/// What an update breaks of a Secret or ConfigMap beside the managed Secret from which gateways take their clients' CAs, or its
/// deletion, where `new` is `None`.
pub(super) fn of_source(
    request: &Request<'_>,
    old: &ParsedSecret<'_>,
    new: Option<&ParsedSecret<'_>>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let Request { kind, namespace, name, .. } = *request;
    let found = registry.readers_of(kind.kind, namespace, name).filter_map(|(entry, source)| {
        let (field, message) =
            connectivity::source(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now)?;
        let message = format!("{message}. {} takes its clients' CAs from it", source.used_by);
        weighed(entry, (field, message), severities)
    });
    found.collect()
}

/// Whether a `-cacert` sibling is the managed Secret's, and not the root's.
fn is_of_managed(sibling: &ParsedSecret<'_>, entry: &Entry) -> bool {
    sibling.secret.name.strip_suffix(CACERT_SUFFIX) == Some(entry.managed_name())
}

/// The GatewaySecret whose client a Secret says it is, by its label.
pub(super) fn declared<'r>(label: Option<&str>, namespace: &str, registry: &'r Registry) -> Option<&'r Entry> {
    let entry =
        registry.entries().iter().find(|entry| label.is_some_and(|label| entry.has_client(namespace, label)))?;
    registry.conflict(entry).is_none().then_some(entry)
}

#[cfg(test)]
mod tests;
