//! Judging an object on its own, as `trustspan check` does: the cluster's verdict, plus what slipped by.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::rules::{INVALID_RESOURCE, NAME_CONFLICT, NOT_REWRITTEN, REWRITE_HELD};
use super::validate::{self, weights};
use super::{
    Request, annotation_validation, break_glass, bundles, gateway_trust, guard, managed_name, policy,
    unknown_gateway_secret,
};
use crate::api::{GROUP, GatewaySecretSpec, Kind};
use crate::registry::{Entry, Registry};
use crate::rewrite::{Write, rewrite};
use crate::rotation::{Inventory, Outlook};
use crate::trust::{Finding, Severities, Severity};

/// What surrounds the objects that are checked.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The GatewaySecrets.
    pub registry: Registry,
    /// Namespaces that are shown without label `trustspan.dev/guard: enabled`.
    pub unguarded: BTreeSet<String>,
    /// The cluster-wide weights of rules.
    pub severities: Severities,
    /// Whether to judge as for a requester who may override rules.
    pub may_break_glass: bool,
}

impl Context {
    /// The context that an inventory shows.
    pub fn new(inventory: Inventory, outlook: Outlook, now: Timestamp) -> Self {
        let (unguarded, severities) = (inventory.unguarded().clone(), inventory.severities().clone());
        Self { registry: inventory.into_registry(outlook, now), unguarded, severities, may_break_glass: false }
    }
}

/// The findings on an object; `None` when trustspan has nothing to say about its kind.
pub fn check(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    let odd = [annotation_validation::findings(Kind::of(object), object, None), break_glass::ignored(object)].concat();
    let mut odd: Vec<_> = odd.into_iter().filter_map(|finding| context.severities.apply(finding)).collect();
    // Manifests of clients alone say nothing of which GatewaySecrets there are.
    if !context.registry.entries().is_empty() {
        odd.extend(unknown_gateway_secret::finding(
            Kind::of(object),
            object,
            namespace,
            &context.registry,
            &context.severities,
        ));
    }
    let findings = match found(object, namespace, context, now) {
        None if odd.is_empty() => return None,
        findings => [findings.unwrap_or_default(), odd].concat(),
    };
    Some(break_glass::foresee(object, findings, context.may_break_glass))
}

fn found(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let kind = Kind::of(object);
    let request = Request {
        may_break_glass: context.may_break_glass,
        // Taken to be guarded, unless it is shown otherwise: a pipeline rarely has the Namespace.
        in_guarded_namespace: !context.unguarded.contains(namespace),
        ..Request::create(object, namespace)
    };
    let Context { registry, severities, .. } = context;
    let findings = match kind {
        Kind { group: "", version: "v1", kind: "Secret" } => {
            let claim = registry.role(namespace, request.name);
            let is_ours = claim.is_some() || guard::holds_trust(kind, object) || guard::is_guarded(&request);
            let weights = weights(severities, claim);
            let content =
                is_ours.then(|| graded(&request, |request| validate::write(request, claim, registry, &weights, now)));
            let kubeconfig = bundles::written(&request, &weights, now);
            return match (content, kubeconfig) {
                (None, None) => None,
                (content, kubeconfig) => Some([content, kubeconfig].into_iter().flatten().flatten().collect()),
            };
        }
        Kind { group: "", version: "v1", kind: "ConfigMap" } => {
            let is_ours = guard::holds_trust(kind, object) || guard::is_guarded(&request);
            return is_ours
                .then(|| graded(&request, |request| bundles::config_map(request, registry, severities, now)));
        }
        Kind { group: GROUP, kind: "GatewaySecret", .. } => {
            let mut findings = check_gateway_secret(object, namespace, registry);
            findings.extend(context.unguarded.contains(namespace).then(|| guard::unguarded(object, namespace)));
            findings
        }
        Kind { group: GROUP, kind: "RotationPolicy" | "ClusterRotationPolicy", .. } => policy::stored(object),
        kind => match bundles::written(&request, severities, now) {
            Some(findings) => return Some(findings),
            None => check_names(kind, object, namespace, registry)?,
        },
    };
    Some(findings.into_iter().filter_map(|finding| severities.apply(finding)).collect())
}

/// What the webhook finds, and as warnings what it would find with a guard.
fn graded(request: &Request<'_>, judge: impl Fn(&Request<'_>) -> Vec<Finding>) -> Vec<Finding> {
    let mut findings = if guard::is_sent(request) { judge(request) } else { Vec::new() };
    if !guard::is_guarded(request) {
        let guarded = judge(&Request { in_guarded_namespace: true, ..request.clone() });
        let more: Vec<_> = guarded.into_iter().filter(|finding| !findings.contains(finding)).collect();
        findings.extend(more.into_iter().map(|finding| {
            let message =
                format!("{} (a warning only: namespace {} is not guarded)", finding.message, request.namespace);
            Finding { severity: Severity::Warn, message, ..finding }
        }));
    }
    findings
}

fn check_gateway_secret(object: &Value, namespace: &str, registry: &Registry) -> Vec<Finding> {
    if let Err(error) = GatewaySecretSpec::deserialize(&object["spec"]) {
        return vec![INVALID_RESOURCE.finding("spec", error.to_string())];
    }
    let mut findings = conflicts(object, namespace, registry);
    findings.extend(mistyped(object));
    findings.extend(unresolved(object, namespace, registry));
    findings.extend(managed_name::stored(object));
    findings
}

/// A GatewaySecret of which the source Secret is not known.
fn unresolved(object: &Value, namespace: &str, registry: &Registry) -> Option<Finding> {
    let named = |entry: &&Entry| entry.namespace == namespace && object["metadata"]["name"] == entry.name.as_str();
    let entry = registry.entries().iter().find(named).filter(|entry| entry.source_name().is_empty())?;
    let certificate = &entry.spec.certificate_ref.as_ref()?.name;
    let message = format!(
        "the source Secret is not known, and is judged like any other Secret: Certificate {certificate} is not among the manifests, or \
         writes the managed Secret itself. pass the Certificate too, with another spec.secretName"
    );
    Some(Finding { severity: Severity::Warn, ..INVALID_RESOURCE.finding("spec.certificateRef", message) })
}

/// Fingerprints that name nothing, whatever the CA.
fn mistyped(object: &Value) -> impl Iterator<Item = Finding> {
    let named = object["spec"]["distrustedCAs"].as_array().into_iter().flatten().enumerate();
    let is_fingerprint = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    named.filter(move |(_, item)| !item.as_str().is_some_and(is_fingerprint)).map(|(at, _)| {
        let message =
            "not a fingerprint: nothing is distrusted by it. expected SHA-256 as 64 hex digits, without colons";
        INVALID_RESOURCE.finding(format!("spec.distrustedCAs[{at}]"), message.to_owned())
    })
}

fn conflicts(object: &Value, namespace: &str, registry: &Registry) -> Vec<Finding> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let entry = registry.entries().iter().find(|entry| entry.namespace == namespace && entry.name == name);
    let Some((entry, holder)) = entry.and_then(|entry| Some((entry, registry.conflict(entry)?))) else {
        return Vec::new();
    };
    if let Some(name) = entry.doubled_name() {
        let message = format!(
            "the managed Secret and the Issuer's need other names than the other Secrets: {name} is used twice"
        );
        return vec![INVALID_RESOURCE.finding("spec", message)];
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
    let held = outcome.blockers.iter().map(|hold| REWRITE_HELD.finding("spec", hold.to_string()));
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
