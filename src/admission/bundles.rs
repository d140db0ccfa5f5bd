//! CA bundles in other objects than the Secrets of gateways. The rules on Secrets apply, each bundle is parsed as its reader parses it, and
//! what the stored object already had only warns.

mod api_objects;
mod config_map;
mod kubeconfig;

use std::collections::{HashMap, HashSet, VecDeque};

use jiff::Timestamp;

use super::owned_objects::CLEANUP_CONTROLLERS;
use super::rules::{KUBECONFIG_UNREADABLE, UNREADABLE};
use super::secret_write::SecretWrite;
use super::{Kind, Operation, Request, connectivity, guard};
use crate::api::SourceKind;
use crate::json::Json;
use crate::registry::Registry;
use crate::rotation::readers::decode;
use crate::trust::{
    self, Finding, ParsedSecret, Secret, SecretUsage, Severities, Severity, TlsConsumer, UsageKind, judge_deletion,
};

/// Texts of one object that one reader loads together, in the form of a Secret's content.
struct BundleLocation {
    /// The prefix of a key in the name of its field, such as `spec.conversion.webhook.clientConfig.`; empty where the content is under
    /// `data`, as in a Secret.
    prefix: String,
    usage: SecretUsage<'static>,
    texts: Secret,
}

/// Why a text of an object cannot be read. Each variant has the path of its field.
#[derive(PartialEq, Eq, Hash)]
enum Unreadable {
    /// A caBundle that is not base64.
    CaBundle(String),
    /// A field of a kubeconfig that is not base64.
    Kubeconfig(String),
    /// A kubeconfig with more YAML nodes than are read.
    TooLarge(String),
    /// A kubeconfig with more private keys than are read.
    TooManyKeys(String),
}

/// The bundles of an object.
#[derive(Default)]
struct BundleLocations {
    readable: Vec<BundleLocation>,
    unreadable: Vec<Unreadable>,
}

impl Unreadable {
    fn finding(&self) -> Finding {
        match self {
            Self::CaBundle(field) => UNREADABLE.finding(
                field.as_str(),
                "not base64. the API server rejects the whole object; expected base64 of a PEM text",
            ),
            Self::Kubeconfig(field) => KUBECONFIG_UNREADABLE.finding(
                field.as_str(),
                "not base64. client-go refuses the whole kubeconfig; expected base64 of a PEM text",
            ),
            // The limit is one of this program, and client-go may read the rest, so this only warns.
            Self::TooManyKeys(field) => {
                let message = format!(
                    "the kubeconfig has more than {} private keys, or very long ones: the users after them are not judged. expected \
                     fewer; split it",
                    kubeconfig::KEYS_READ
                );
                Finding { severity: Severity::Warn, ..KUBECONFIG_UNREADABLE.finding(field.as_str(), message) }
            }
            Self::TooLarge(field) => {
                let message = format!(
                    "the kubeconfig has more than {} YAML nodes, or aliases that expand to as many: its content is not judged. \
                     expected at most a few hundred entries; split it",
                    kubeconfig::NODES
                );
                Finding { severity: Severity::Warn, ..KUBECONFIG_UNREADABLE.finding(field.as_str(), message) }
            }
        }
    }
}

impl BundleLocation {
    fn new(prefix: String, usage: SecretUsage<'static>) -> Self {
        Self { prefix, usage, texts: Secret::default() }
    }

    /// A finding with its field as users write it.
    fn with_field(&self, mut finding: Finding) -> Finding {
        if let Some(key) = finding.field.strip_prefix("data[").and_then(|rest| rest.strip_suffix(']'))
            && !self.prefix.is_empty()
        {
            finding.field = format!("{}{key}", self.prefix);
        }
        finding
    }
}

/// The findings on the caBundles of an object that is created or changed; `None` if its kind has none.
pub(super) fn api_object(request: &Request<'_>, severities: &Severities, now: Timestamp) -> Option<Vec<Finding>> {
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    findings(request.kind, request.stored_object()?, old, severities, now)
}

/// The findings on the kubeconfigs in a Secret; `None` if it has none.
pub(super) fn kubeconfigs(write: &SecretWrite<'_>) -> Option<Vec<Finding>> {
    let new = kubeconfig::locations(write.new.as_ref().ok()?.secret)?;
    let old = write.old.as_ref().and_then(|old| kubeconfig::locations(old.secret)).unwrap_or_default();
    Some(compared(&new, &old, &write.severities, write.now))
}

/// The findings on a ConfigMap that is created, changed or deleted: on its content if it is guarded, and on the clients of gateways that take
/// CAs from it.
pub(super) fn config_map(
    request: &Request<'_>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let is_source = registry.readers_of(request.kind.kind, request.namespace, request.name).next().is_some();
    let new = request.stored_object();
    let old = request.old_object.filter(|_| request.operation != Operation::Create);
    let mut all = Vec::new();
    if let Some(object) = new.filter(|_| guard::is_guarded(request)) {
        all.extend(findings(request.kind, object, old, severities, now).unwrap_or_default());
    }
    let is_exempt = match request.operation {
        Operation::Delete => CLEANUP_CONTROLLERS.contains(&request.username),
        _ => request.is_draining(),
    };
    let decoded = |object| decode(SourceKind::ConfigMap, object).ok();
    if request.operation == Operation::Delete && !is_exempt && guard::is_guarded(request) {
        let usage = SecretUsage { kind: UsageKind::TrustBundle, ..SecretUsage::default() };
        if let Some(old) = old.and_then(decoded) {
            all.extend(judge_deletion(&ParsedSecret::new(&old, TlsConsumer::Envoy), usage, severities, now));
        }
    }
    if is_source && !is_exempt {
        let (old, new) = (old.and_then(decoded), new.and_then(decoded));
        let contents = |texts| ParsedSecret::new(texts, TlsConsumer::Envoy);
        let (old, new) = (old.as_ref().map(contents), new.as_ref().map(contents));
        all.extend(connectivity::of_source(request, old.as_ref(), new.as_ref(), registry, severities, now));
    }
    all
}

/// The findings on an object that is created or changed; `None` if it has no bundle.
fn findings(
    kind: Kind<'_>,
    object: &Json<'_>,
    old: Option<&Json<'_>>,
    severities: &Severities,
    now: Timestamp,
) -> Option<Vec<Finding>> {
    let new = locations(kind, object, old)?;
    let old = old.and_then(|old| locations(kind, old, None)).unwrap_or_default();
    Some(compared(&new, &old, severities, now))
}

fn compared(new: &BundleLocations, old: &BundleLocations, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    let mut all = Vec::new();
    // In sets and maps, since a hostile kubeconfig has thousands of entries.
    let was_unreadable: HashSet<_> = old.unreadable.iter().collect();
    // Locations with the same name are compared in order, so that each old one is used once.
    let mut before: HashMap<_, VecDeque<_>> = HashMap::new();
    for location in &old.readable {
        before.entry(location.prefix.as_str()).or_default().push_back(&location.texts);
    }
    for text in &new.unreadable {
        let mut finding = text.finding();
        if was_unreadable.contains(text) {
            finding.severity = Severity::Warn;
        }
        all.extend(severities.apply(finding));
    }
    for location in &new.readable {
        let judged = match before.get_mut(location.prefix.as_str()).and_then(VecDeque::pop_front) {
            Some(before) => trust::judge_update_with(before, &location.texts, location.usage, severities, now),
            None => trust::judge_with(&location.texts, location.usage, severities, now),
        };
        all.extend(judged.into_iter().map(|finding| location.with_field(finding)));
    }
    all
}

fn locations(kind: Kind<'_>, object: &Json<'_>, old: Option<&Json<'_>>) -> Option<BundleLocations> {
    match kind {
        config_map::KIND => config_map::locations(object, old),
        kind => api_objects::locations(kind, object),
    }
}

#[cfg(test)]
mod tests;
