//! Whether clients and gateways that work together now still do after a write. It is judged for managed Secrets, their `-cacert` siblings,
//! other objects from which gateways take CAs, and Secrets of declared clients. A source Secret is its issuer's: gateways use the managed
//! Secret.

use jiff::Timestamp;

use super::Request;
use super::rules::CONNECTIVITY;
use super::secret_write::SecretWrite;
use crate::api::names::{CACERT_SUFFIX, CLIENT_LABEL};
use crate::api::{Mode, TrustSourceUse};
use crate::connectivity::{self, Broken};
use crate::registry::{Entry, Registry, Role};
use crate::trust::{Finding, ParsedSecret, Severities, Severity};

/// The connections that a write of a Secret breaks.
pub(super) fn findings(write: &SecretWrite<'_>) -> Vec<Finding> {
    let (Ok(new), old) = (&write.new, write.old.as_ref()) else { return Vec::new() };
    let mut findings = Vec::new();
    if let Some((entry, broken)) = broken(write, new, old) {
        findings.extend(broken.into_iter().filter_map(|broken| finding(entry, broken, &write.severities)));
    }
    match old {
        Some(old) => {
            findings.extend(of_source(write.request, old, Some(new), write.registry, &write.severities, write.now));
        }
        None => findings.extend(of_new_sibling(write, new)),
    }
    findings
}

/// The connections that break when a source of trust gets a `-cacert` sibling, from which istiod takes CAs instead. Status does not have the
/// source's content: one that accepts clients counts as the managed bundle.
fn of_new_sibling(write: &SecretWrite<'_>, new: &ParsedSecret<'_>) -> Vec<Finding> {
    let Request { kind, namespace, name, .. } = *write.request;
    let Some(stem) = name.strip_suffix(CACERT_SUFFIX) else { return Vec::new() };
    let found = write.registry.readers_of(kind.kind, namespace, name).filter_map(|(entry, source)| {
        let is_stem = |other: &&TrustSourceUse| {
            (&other.kind, other.namespace.as_str(), other.name.as_str()) == (&source.kind, namespace, stem)
        };
        entry.status.trust_sources.iter().find(is_stem).filter(|stem| stem.accepts_clients)?;
        let distrust = &entry.spec.distrusted_cas;
        let (field, message) = connectivity::sibling(None, new, &entry.status, distrust, namespace, write.now)?;
        let message = format!("{message}. {} takes its clients' CAs from it instead of Secret {stem}", source.used_by);
        finding(entry, (field, message), &write.severities)
    });
    found.collect()
}

/// The connections of the GatewaySecret to which the Secret belongs.
fn broken<'r>(
    write: &SecretWrite<'r>,
    new: &ParsedSecret<'_>,
    old: Option<&ParsedSecret<'_>>,
) -> Option<(&'r Entry, Vec<Broken>)> {
    let (namespace, now) = (write.request.namespace, write.now);
    let (entry, broken) = match write.claim {
        Some((entry, Role::Managed)) => {
            (entry, connectivity::managed(old?, new, &entry.status, &entry.spec.distrusted_cas, namespace, now))
        }
        Some((entry, Role::CacertSibling)) if is_of_managed(new, entry) => {
            let broken = connectivity::sibling(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now);
            (entry, broken.into_iter().collect())
        }
        Some(_) => return None,
        None => {
            let label = new.secret.labels.get(CLIENT_LABEL).map(String::as_str);
            let entry = declared(label, namespace, write.registry)?;
            if entry.namespace == namespace && entry.canary_name() == Some(new.secret.name.as_str()) {
                // The canary gets a certificate of the new CA before gateways trust it: a probe with it shows whether they do.
                return None;
            }
            (entry, connectivity::client(old, new, &entry.status, &entry.spec.distrusted_cas, now))
        }
    };
    Some((entry, broken))
}

fn finding(entry: &Entry, (field, message): Broken, severities: &Severities) -> Option<Finding> {
    let mut finding = CONNECTIVITY.finding(field, message);
    if entry.spec.mode == Mode::Copy {
        finding.severity = Severity::Warn;
    }
    severities.under(&entry.policy.severities).apply(finding)
}

/// The connections that an update breaks of a Secret or ConfigMap other than the managed Secret from which gateways take their clients' CAs.
/// `new` is `None` for its deletion.
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
        finding(entry, (field, message), severities)
    });
    found.collect()
}

/// The connections that the deletion of the managed Secret's `-cacert` sibling breaks: gateways then take CAs from the managed Secret itself.
pub(super) fn of_deleted_sibling(
    old: &ParsedSecret<'_>,
    claim: Option<(&Entry, Role)>,
    severities: &Severities,
    now: Timestamp,
) -> Option<Finding> {
    let (entry, _) = claim.filter(|(entry, role)| *role == Role::CacertSibling && is_of_managed(old, entry))?;
    let (field, message) =
        connectivity::deleted_sibling(old, &entry.status, &entry.spec.distrusted_cas, &entry.namespace, now)?;
    let message = format!("{message}. gateways would take CAs from Secret {} instead", entry.managed_name());
    finding(entry, (field, message), severities)
}

/// Whether a `-cacert` Secret belongs to the managed Secret, not to the source Secret.
fn is_of_managed(sibling: &ParsedSecret<'_>, entry: &Entry) -> bool {
    sibling.secret.name.strip_suffix(CACERT_SUFFIX) == Some(entry.managed_name())
}

/// The GatewaySecret that the client label of a Secret names.
pub(super) fn declared<'r>(label: Option<&str>, namespace: &str, registry: &'r Registry) -> Option<&'r Entry> {
    let entry =
        registry.entries().iter().find(|entry| label.is_some_and(|label| entry.has_client(namespace, label)))?;
    registry.conflict(entry).is_none().then_some(entry)
}

#[cfg(test)]
mod tests;
