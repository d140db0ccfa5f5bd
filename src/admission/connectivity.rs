//! Whether clients and gateways that work together now still do after a write. It is judged for managed Secrets, their `-cacert` siblings,
//! other objects from which gateways take CAs, and Secrets of declared clients. A source Secret is its issuer's: gateways use the managed
//! Secret.

use jiff::Timestamp;

use super::Request;
use super::rules::CONNECTIVITY;
use super::secret_write::SecretWrite;
use crate::api::names::{CACERT_SUFFIX, CLIENT_LABEL, RETIRED};
use crate::api::{Mode, TrustSourceUse};
use crate::connectivity::{self, Broken};
use crate::json::Json;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{Certificate, Finding, ParsedSecret, Severities, Severity};

/// The connections that a write of a Secret breaks.
pub(super) fn findings(write: &SecretWrite<'_>) -> Vec<Finding> {
    let (Ok(new), old) = (&write.new, write.old.as_ref()) else { return Vec::new() };
    let mut findings = Vec::new();
    for (entry, broken) in broken(write, new, old) {
        findings.extend(broken.into_iter().filter_map(|broken| finding(entry, broken, &write.severities)));
    }
    findings.extend(of_source(write.request, old, Some(new), write.registry, &write.severities, write.now));
    if old.is_none() {
        findings.extend(of_new_sibling(write, new));
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
        finding_on(entry, source, (field, message), &write.severities)
    });
    found.collect()
}

/// A finding on a source of trust. Without the consent of its owner it only warns: naming an object gives no say about who may change it.
fn finding_on(entry: &Entry, source: &TrustSourceUse, broken: Broken, severities: &Severities) -> Option<Finding> {
    let mut finding = finding(entry, broken, severities)?;
    if !source.is_granted_to(&entry.namespace) && finding.severity == Severity::Deny {
        finding.severity = Severity::Warn;
        // At the beginning, and short: warnings have a limit.
        finding.message.insert_str(0, "not rejected without a ReferenceGrant: ");
    }
    Some(finding)
}

/// The connections of the GatewaySecret to which the Secret belongs, or of those to whose gateways it connects.
fn broken<'r>(
    write: &SecretWrite<'r>,
    new: &ParsedSecret<'_>,
    old: Option<&ParsedSecret<'_>>,
) -> Vec<(&'r Entry, Vec<Broken>)> {
    let (namespace, now) = (write.request.namespace, write.now);
    match write.claim {
        Some((entry, Role::Managed)) => {
            let judge =
                |old| connectivity::managed(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now);
            vec![(entry, old.map(judge).unwrap_or_default())]
        }
        Some((entry, Role::CacertSibling)) if is_of_managed(new, entry) => {
            let broken = connectivity::sibling(old, new, &entry.status, &entry.spec.distrusted_cas, namespace, now);
            vec![(entry, broken.into_iter().collect())]
        }
        Some(_) => Vec::new(),
        None => broken_by_client(write, new, old),
    }
}

/// The connections of a declared client: to the gateways of the GatewaySecret that its label names, and to those of others that accept its present
/// certificate.
fn broken_by_client<'r>(
    write: &SecretWrite<'r>,
    new: &ParsedSecret<'_>,
    old: Option<&ParsedSecret<'_>>,
) -> Vec<(&'r Entry, Vec<Broken>)> {
    let (namespace, now) = (write.request.namespace, write.now);
    let label = new.secret.labels.get(CLIENT_LABEL).map(String::as_str);
    let Some(entry) = declared(label, namespace, write.registry) else { return Vec::new() };
    // The canary gets a certificate of the new CA before gateways trust it: a probe with it shows whether they do.
    let is_canary = |of: &Entry| of.namespace == namespace && of.canary_name() == Some(new.secret.name.as_str());
    let is_retired = |object: &Json<'_>| object["metadata"]["annotations"][RETIRED] == "true";
    if is_canary(entry) || write.request.object.is_some_and(is_retired) {
        return Vec::new();
    }
    let distrust = &entry.spec.distrusted_cas;
    let mut all = vec![(entry, connectivity::client(old, new, &entry.status, distrust, now))];
    let pair = old.filter(|old| old.secret.data != new.secret.data).and_then(ParsedSecret::pair);
    let present = pair.iter().flat_map(|pair| pair.chain.certificates()).cloned().collect();
    for other in sharing(entry, &[present], write.registry, now).filter(|other| !is_canary(other)) {
        let distrust: Vec<_> = distrust.iter().chain(&other.spec.distrusted_cas).cloned().collect();
        let name = other.name_in(namespace);
        let broken = connectivity::client(old, new, &other.status, &distrust, now).into_iter();
        let named = |(field, message)| (field, format!("{message}. these are gateways of GatewaySecret {name}"));
        all.push((other, broken.map(named).collect()));
    }
    all
}

/// The other GatewaySecrets of the namespace of `entry` whose gateways accept one of a client's chains, too.
pub(super) fn sharing<'r>(
    entry: &'r Entry,
    chains: &[Vec<Certificate>],
    registry: &'r Registry,
    now: Timestamp,
) -> impl Iterator<Item = &'r Entry> {
    let accepts = move |other: &&Entry| chains.iter().any(|chain| connectivity::accepts(&other.status, chain, now));
    registry.others(entry).map(AsRef::as_ref).filter(accepts)
}

fn finding(entry: &Entry, (field, message): Broken, severities: &Severities) -> Option<Finding> {
    let mut finding = CONNECTIVITY.finding(field, message);
    if entry.spec.mode == Mode::Copy {
        finding.severity = Severity::Warn;
    }
    severities.under(&entry.policy.severities).apply(finding)
}

/// The connections that a write breaks of a Secret or ConfigMap other than the managed Secret from which gateways take their clients' CAs.
/// `new` is `None` for its deletion, `old` for a creation: gateways may still have the content of a deleted object, so what is created in its
/// place is judged as an update. Status does not have that content: one that accepts clients counts as the managed bundle.
pub(super) fn of_source(
    request: &Request<'_>,
    old: Option<&ParsedSecret<'_>>,
    new: Option<&ParsedSecret<'_>>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let Request { kind, namespace, name, .. } = *request;
    let found = registry.readers_of(kind.kind, namespace, name).filter_map(|(entry, source)| {
        let distrust = &entry.spec.distrusted_cas;
        let (field, message) = match (old, new) {
            (Some(old), new) => connectivity::source(old, new, &entry.status, distrust, namespace, now)?,
            (None, Some(new)) if source.accepts_clients => {
                connectivity::sibling(None, new, &entry.status, distrust, namespace, now)?
            }
            (None, _) => return None,
        };
        let message = format!("{message}. {} takes its clients' CAs from it", source.used_by);
        finding_on(entry, source, (field, message), severities)
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
