//! CA bundles beside the Secrets of gateways: where they stand, and how they are judged. By the rules on Secrets, each as its
//! reader reads it, and by the same policy: what the stored object had already only warns.

mod api_objects;
mod config_map;
mod kubeconfig;

use std::collections::{HashMap, HashSet, VecDeque};

use jiff::Timestamp;
use serde_json::Value;

use super::owned_objects::CLEANERS;
use super::rules::{KUBECONFIG_UNREADABLE, UNREADABLE};
use super::{Kind, Operation, Request, connectivity, guard};
use crate::api::SourceKind;
use crate::registry::Registry;
use crate::rotation::readers::decode;
use crate::trust::{self, Duty, Finding, ParsedSecret, Secret, Severities, Severity, TlsConsumer};

/// Texts of one object that are read together, as the content of a Secret.
struct BundleLocation {
    /// What stands before a key in the name of its field: `spec.conversion.webhook.clientConfig.`; empty when the content
    /// stands under `data` as a Secret's does.
    prefix: String,
    duty: Duty<'static>,
    texts: Secret,
}

/// A text that cannot be read, by its field.
#[derive(PartialEq, Eq, Hash)]
enum Unreadable {
    /// A caBundle that is not base64.
    NoBundle(String),
    /// Not base64 where a kubeconfig has base64.
    NotBase64(String),
    /// A kubeconfig of more nodes than are read.
    TooLarge(String),
    /// A kubeconfig of more private keys than are read.
    TooManyKeys(String),
}

/// What an object holds.
#[derive(Default)]
struct BundleLocations {
    readable: Vec<BundleLocation>,
    unreadable: Vec<Unreadable>,
}

impl Unreadable {
    fn finding(&self) -> Finding {
        match self {
            Self::NoBundle(field) => UNREADABLE.finding(
                field.as_str(),
                "not base64. the API server refuses the whole object; expected base64 of a PEM text",
            ),
            Self::NotBase64(field) => KUBECONFIG_UNREADABLE.finding(
                field.as_str(),
                "not base64. client-go refuses the whole kubeconfig; expected base64 of a PEM text",
            ),
            // client-go may well read them.
            Self::TooManyKeys(field) => {
                let message = format!(
                    "a kubeconfig of more than {} private keys, or of long ones: the users behind them are not judged. expected \
                     fewer; split it",
                    kubeconfig::KEYS_READ
                );
                Finding { severity: Severity::Warn, ..KUBECONFIG_UNREADABLE.finding(field.as_str(), message) }
            }
            Self::TooLarge(field) => {
                let message = format!(
                    "a kubeconfig of more than {} YAML nodes, or one that grows by aliases: what is in it is not judged. \
                     expected one of a few hundred entries; split it",
                    kubeconfig::NODES
                );
                Finding { severity: Severity::Warn, ..KUBECONFIG_UNREADABLE.finding(field.as_str(), message) }
            }
        }
    }
}

impl BundleLocation {
    fn new(prefix: String, duty: Duty<'static>) -> Self {
        let texts = Secret {
            namespace: String::new(),
            name: String::new(),
            type_: String::new(),
            labels: Default::default(),
            immutable: false,
            data: Default::default(),
        };
        Self { prefix, duty, texts }
    }

    /// Names a finding's field as users write it.
    fn told(&self, mut finding: Finding) -> Finding {
        if let Some(key) = finding.field.strip_prefix("data[").and_then(|rest| rest.strip_suffix(']'))
            && !self.prefix.is_empty()
        {
            finding.field = format!("{}{key}", self.prefix);
        }
        finding
    }
}

/// The findings on a write of an object that is no gateway's: a kubeconfig in a Secret, a caBundle; `None` when it has no place for one.
pub(super) fn written(request: &Request<'_>, severities: &Severities, now: Timestamp) -> Option<Vec<Finding>> {
    let object = request.object.filter(|_| !request.is_being_deleted())?;
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    findings(request.kind, object, old, severities, now)
}

/// The findings on a write or the deletion of a ConfigMap: on what it holds where it is guarded, and on what becomes of the clients of
/// gateways that take CAs from it.
pub(super) fn config_map(
    request: &Request<'_>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let is_source = registry.readers_of(request.kind.kind, request.namespace, request.name).next().is_some();
    let new = request.object.filter(|_| !request.is_being_deleted());
    let old = request.old_object.filter(|_| request.operation != Operation::Create);
    let mut all = Vec::new();
    if let Some(object) = new.filter(|_| guard::is_guarded(request)) {
        all.extend(findings(request.kind, object, old, severities, now).unwrap_or_default());
    }
    let is_over = match request.operation {
        Operation::Delete => CLEANERS.contains(&request.username),
        _ => request.is_being_deleted(),
    };
    let decoded = |object| decode(SourceKind::ConfigMap, object).ok();
    if is_source
        && !is_over
        && let Some(old) = old.and_then(decoded)
    {
        let new = new.and_then(decoded);
        let contents = |texts| ParsedSecret::new(texts, TlsConsumer::Envoy);
        let (old, new) = (contents(&old), new.as_ref().map(contents));
        all.extend(connectivity::of_source(request, &old, new.as_ref(), registry, severities, now));
    }
    all
}

/// The findings on an object, or on the change of one; `None` when it has no place for a CA bundle.
fn findings(
    kind: Kind<'_>,
    object: &Value,
    old: Option<&Value>,
    severities: &Severities,
    now: Timestamp,
) -> Option<Vec<Finding>> {
    let new = places(kind, object, old)?;
    let old = old.and_then(|old| places(kind, old, None)).unwrap_or_default();
    let mut all = Vec::new();
    // By name, since a hostile kubeconfig has thousands of entries.
    let was_unreadable: HashSet<_> = old.unreadable.iter().collect();
    // Of places with one name each is compared with the one that stood there in its turn, so that none is read twice.
    let mut before: HashMap<_, VecDeque<_>> = HashMap::new();
    old.readable.iter().for_each(|place| before.entry(place.prefix.as_str()).or_default().push_back(&place.texts));
    for text in &new.unreadable {
        let mut finding = text.finding();
        if was_unreadable.contains(text) {
            finding.severity = Severity::Warn;
        }
        all.extend(severities.apply(finding));
    }
    for place in &new.readable {
        let judged = match before.get_mut(place.prefix.as_str()).and_then(VecDeque::pop_front) {
            Some(before) => trust::judge_update_with(before, &place.texts, place.duty, severities, now),
            None => trust::judge_with(&place.texts, place.duty, severities, now),
        };
        all.extend(judged.into_iter().map(|finding| place.told(finding)));
    }
    Some(all)
}

fn places(kind: Kind<'_>, object: &Value, old: Option<&Value>) -> Option<BundleLocations> {
    match kind {
        config_map::KIND => config_map::places(object, old),
        Kind { group: "", version: "v1", kind: "Secret" } => kubeconfig::places(object),
        kind => api_objects::places(kind, object),
    }
}

#[cfg(test)]
mod tests;
