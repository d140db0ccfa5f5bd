//! CA bundles beside the Secrets of gateways: where they stand, and how they are judged. By the rules on Secrets, each as its
//! reader reads it, and by the same policy: what the stored object had already only warns.

mod api_objects;
mod config_map;
mod kubeconfig;

use std::collections::{HashMap, HashSet, VecDeque};

use jiff::Timestamp;
use serde_json::Value;

use super::rules::{KUBECONFIG_UNREADABLE, UNREADABLE};
use super::validate::weights;
use super::{Decision, Kind, Operation, Request, break_glass, continuity};
use crate::api::SourceKind;
use crate::registry::{Entry, Registry, Role};
use crate::rotation::readers::decode;
use crate::trust::{self, Contents, Duty, Finding, Reader, Secret, Severities, Severity};

/// Texts of one object that are read together, as the content of a Secret.
struct Place {
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
struct Places {
    readable: Vec<Place>,
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

impl Place {
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

/// Judges an object of the opt-in webhook configuration `manifests/ca-bundles`. Never patches; the same under dry-run.
///
/// Of ConfigMaps only those are judged that a GatewaySecret names, from which its gateways take CAs, or that carry
/// [`CA_BUNDLE_LABEL`](crate::api::names::CA_BUNDLE_LABEL).
pub fn validate_bundles(
    request: &Request<'_>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Decision {
    let mut decision = Decision::default();
    let written = matches!(request.operation, Operation::Create | Operation::Update) && request.sub_resource.is_empty();
    let Some(object) = request.object.filter(|_| written && !request.is_being_deleted()) else { return decision };
    let claim = claim(request.kind, request.namespace, request.name, registry);
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    let is_source = is_config_map(request.kind)
        && registry.readers_of(request.kind.kind, request.namespace, request.name).next().is_some();
    if is_source || is_asked_for(request.kind, object, old, claim) {
        let weights = weights(severities, claim);
        decision.findings = findings(request.kind, object, old, &weights, now).unwrap_or_default();
    }
    let decoded = |object| decode(SourceKind::ConfigMap, object).ok();
    if let (true, Some(old), Some(new)) = (is_source, old.and_then(decoded), decoded(object)) {
        let [old, new] = [&old, &new].map(|texts| Contents::new(texts, Reader::Envoy));
        decision.findings.extend(continuity::of_source(request, &old, Some(&new), registry, severities, now));
    }
    break_glass::apply(request, &mut decision);
    decision
}

/// The GatewaySecret that names a ConfigMap. Those that name a Secret say nothing of a kubeconfig in it.
pub(super) fn claim<'r>(
    kind: Kind<'_>,
    namespace: &str,
    name: &str,
    registry: &'r Registry,
) -> Option<(&'r Entry, Role)> {
    registry.role(namespace, name).filter(|_| kind == config_map::KIND)
}

/// Whether an object of this kind is judged wherever it is met: a ConfigMap could be for any program.
fn is_asked_for(kind: Kind<'_>, object: &Value, old: Option<&Value>, claim: Option<(&Entry, Role)>) -> bool {
    kind != config_map::KIND
        || claim.is_some()
        || [Some(object), old].into_iter().flatten().any(config_map::is_labelled)
}

/// Whether a ConfigMap says itself that gateways read it.
pub(super) fn is_labelled(kind: Kind<'_>, object: &Value) -> bool {
    kind == config_map::KIND && config_map::is_labelled(object)
}

/// Whether an object is a ConfigMap.
pub(super) fn is_config_map(kind: Kind<'_>) -> bool {
    kind == config_map::KIND
}

/// The findings on an object, or on the change of one; `None` when it has no place for a CA bundle.
pub(super) fn findings(
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
        all.extend(severities.weigh(finding));
    }
    for place in &new.readable {
        let judged = match before.get_mut(place.prefix.as_str()).and_then(VecDeque::pop_front) {
            Some(before) => trust::judge_update_weighed(before, &place.texts, place.duty, severities, now),
            None => trust::judge_weighed(&place.texts, place.duty, severities, now),
        };
        all.extend(judged.into_iter().map(|finding| place.told(finding)));
    }
    Some(all)
}

fn places(kind: Kind<'_>, object: &Value, old: Option<&Value>) -> Option<Places> {
    match kind {
        config_map::KIND => config_map::places(object, old),
        Kind { group: "", version: "v1", kind: "Secret" } => kubeconfig::places(object),
        kind => api_objects::places(kind, object),
    }
}

#[cfg(test)]
mod tests;
