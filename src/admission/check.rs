//! Judging an object on its own, as `trustspan check` does: the cluster's verdict, plus what slipped by.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::duty::duty;
use super::gateway_trust;
use super::rules::{INVALID_GATEWAY_SECRET, NAME_CONFLICT, NOT_REWRITTEN, REWRITE_HELD, RuleInfo, SEVERITY_IGNORED};
use super::validate::{unreadable, weights};
use super::{break_glass, bundles, continuity, no_such, odd_values, renamed, time_zones};
use crate::api::{GatewaySecretSpec, Kind};
use crate::registry::Registry;
use crate::rewrite::{Write, rewrite};
use crate::rotation::{Inventory, Outlook, Uses};
use crate::trust::{self, Contents, Finding, Reader, Secret, Severities, Severity};

/// What surrounds the objects that are checked.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The GatewaySecrets.
    pub registry: Registry,
    /// The Secrets that Gateways name.
    pub uses: Uses,
    /// The cluster-wide weights of rules.
    pub severities: Severities,
    /// Whether to judge as for a requester who may override rules.
    pub may_break_glass: bool,
}

impl Context {
    /// The context that an inventory shows.
    pub fn new(inventory: Inventory, outlook: Outlook, now: Timestamp) -> Self {
        let (uses, severities) = (inventory.uses().clone(), inventory.severities().clone());
        Self { registry: inventory.into_registry(outlook, now), uses, severities, may_break_glass: false }
    }

    /// Whether a Secret or ConfigMap is judged in full: something names it, or there is nothing that could.
    fn counts(&self, namespace: &str, name: &str, is_used: fn(&Uses, &str, &str) -> bool) -> bool {
        let alone = self.registry.entries().is_empty() && self.uses.is_empty();
        alone || self.registry.role(namespace, name).is_some() || is_used(&self.uses, namespace, name)
    }
}

/// Keys under which a gateway takes something from a Secret or ConfigMap.
pub(crate) const GATEWAY_KEYS: [&str; 8] = ["ca.crt", "tls.crt", "tls.key", "ca.crl", "cacert", "cert", "key", "crl"];

/// The findings on an object; `None` when trustspan has nothing to say about its kind.
pub fn check(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    let odd = [odd_values::findings(Kind::of(object), object, None), break_glass::ignored(object)].concat();
    let mut odd: Vec<_> = odd.into_iter().filter_map(|finding| context.severities.weigh(finding)).collect();
    // Manifests of clients alone say nothing of which GatewaySecrets there are.
    if !context.registry.entries().is_empty() {
        odd.extend(no_such::finding(Kind::of(object), object, namespace, &context.registry, &context.severities));
    }
    let findings = match found(object, namespace, context, now) {
        None if odd.is_empty() => return None,
        findings => [findings.unwrap_or_default(), odd].concat(),
    };
    Some(break_glass::foresee(object, findings, context.may_break_glass))
}

fn found(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let kind = Kind::of(object);
    let bundles = check_bundles(kind, object, namespace, context, now);
    let findings = match kind {
        Kind { group: "", version: "v1", kind: "Secret" } => {
            let findings = check_secret(object, namespace, context, now);
            return match (findings, bundles) {
                (None, bundles) => bundles,
                (findings, None) => findings,
                (Some(findings), Some(bundles)) => Some([findings, bundles].concat()),
            };
        }
        _ if bundles.is_some() => return bundles,
        Kind { group: crate::api::GROUP, kind: "GatewaySecret", .. } => {
            check_gateway_secret(object, namespace, &context.registry)
        }
        kind => check_names(kind, object, namespace, &context.registry)?,
    };
    Some(findings.into_iter().filter_map(|finding| context.severities.weigh(finding)).collect())
}

fn check_secret(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let claim = context.registry.role(namespace, name);
    let counts = |field: &Value| match field {
        Value::Object(contents) => {
            GATEWAY_KEYS.iter().any(|key| contents.get(*key).is_some_and(|text| !text.is_null()))
        }
        odd => !odd.is_null(),
    };
    if claim.is_none() && !["data", "stringData"].iter().any(|field| counts(&object[field])) {
        return None;
    }
    let severities = weights(&context.severities, claim);
    let secret = match Secret::from_value(object) {
        Ok(secret) => secret,
        Err(error) => return Some(vec![unreadable(&error)]),
    };
    let contents = Contents::new(&secret, Reader::Envoy);
    let mut duty = duty(claim, None, now);
    if claim.is_none() {
        duty = context.registry.duty(namespace, name);
    }
    let mut findings = trust::judge_contents(&contents, duty, &severities, now);
    if !context.counts(namespace, name, Uses::contains) {
        // The cluster lets it pass, since nothing here uses it.
        findings.iter_mut().for_each(|finding| finding.severity = Severity::Warn);
    }
    findings.extend(continuity::findings(&contents, None, namespace, claim, &context.registry, &severities, now));
    Some(findings)
}

/// CA bundles in other places.
fn check_bundles(
    kind: Kind<'_>,
    object: &Value,
    namespace: &str,
    context: &Context,
    now: Timestamp,
) -> Option<Vec<Finding>> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let claim = bundles::claim(kind, namespace, name, &context.registry);
    let mut findings = bundles::findings(kind, object, None, &weights(&context.severities, claim), now)?;
    let counts = !bundles::is_config_map(kind)
        || bundles::is_labelled(kind, object)
        || context.counts(namespace, name, Uses::contains_config_map);
    if !counts {
        findings.iter_mut().for_each(|finding| finding.severity = Severity::Warn);
    }
    Some(findings)
}

fn check_gateway_secret(object: &Value, namespace: &str, registry: &Registry) -> Vec<Finding> {
    if let Err(error) = GatewaySecretSpec::deserialize(&object["spec"]) {
        return vec![INVALID_GATEWAY_SECRET.finding("spec", error.to_string())];
    }
    let mut findings = conflicts(object, namespace, registry);
    findings.extend(ignored(object));
    findings.extend(mistyped(object));
    findings.extend(time_zones::findings(object, None));
    findings.extend(renamed::stored(object));
    findings
}

/// Fingerprints that name nothing, whatever the CA.
fn mistyped(object: &Value) -> impl Iterator<Item = Finding> {
    let named = object["spec"]["distrust"].as_array().into_iter().flatten().enumerate();
    let is_fingerprint = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    named.filter(move |(_, item)| !item.as_str().is_some_and(is_fingerprint)).map(|(at, _)| {
        let message =
            "not a fingerprint: nothing is distrusted by it. expected SHA-256 as 64 hex digits, without colons";
        INVALID_GATEWAY_SECRET.finding(format!("spec.distrust[{at}]"), message.to_owned())
    })
}

/// Weights that change nothing.
fn ignored(object: &Value) -> Vec<Finding> {
    let named = object["spec"]["severities"].as_object().into_iter().flatten();
    let why = named.filter_map(|(rule, _)| match RuleInfo::find(rule) {
        Some(rule) if !rule.is_fixed() => None,
        Some(_) => Some((rule, "the weight of", " is fixed: this one changes nothing. remove it".to_owned())),
        None => {
            let expected = ": this weight changes nothing. expected an id that `trustspan rules` lists".to_owned();
            Some((rule, "there is no rule", expected))
        }
    });
    why.map(|(rule, head, tail)| {
        SEVERITY_IGNORED.finding(format!("spec.severities[{rule}]"), format!("{head} {rule}{tail}"))
    })
    .collect()
}

fn conflicts(object: &Value, namespace: &str, registry: &Registry) -> Vec<Finding> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let entry = registry.entries().iter().find(|entry| entry.namespace == namespace && entry.name == name);
    let Some((entry, holder)) = entry.and_then(|entry| Some((entry, registry.conflict(entry)?))) else {
        return Vec::new();
    };
    if let Some(name) = entry.doubled_name() {
        let message = format!("the managed Secret and the Issuer's need names of their own: {name} stands for two");
        return vec![INVALID_GATEWAY_SECRET.finding("spec", message)];
    }
    let message =
        format!("GatewaySecret {} is older and claims one of these names: this one has no effect", holder.name);
    vec![NAME_CONFLICT.finding("spec", message)]
}

/// An object that the cluster stores (it has a uid) and that the webhook would have written otherwise has slipped by. One
/// whose rename is held says why.
fn check_names(kind: Kind<'_>, object: &Value, namespace: &str, registry: &Registry) -> Option<Vec<Finding>> {
    if !crate::rewrite::is_rewritten(kind) {
        return None;
    }
    let outcome = rewrite(&Write { kind, namespace, object, old: None, by_agent: false }, registry);
    let held = outcome.holds.iter().map(|hold| REWRITE_HELD.finding("spec", hold.to_string()));
    let stored = !object["metadata"]["uid"].is_null();
    // An apply of the same manifest sends nothing, so it mends nothing.
    let mend = match object["spec"]["template"].is_object() {
        true => "Any change of its pod template has it rewritten, such as kubectl rollout restart",
        false => "Any write has it rewritten, such as kubectl annotate",
    };
    let slipped = outcome.renamed().filter(|_| stored).map(|field| {
        let message = format!("names a source Secret or ConfigMap: the webhook did not see this write. {mend}");
        NOT_REWRITTEN.finding(field, message)
    });
    let admits = gateway_trust::findings(kind, object, None);
    Some(held.chain(slipped).chain(admits).collect())
}
