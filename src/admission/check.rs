//! Judging an object on its own, as `trustspan check` does: the cluster's verdict, plus what slipped by.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::rules::{INVALID_GATEWAY_SECRET, NAME_CONFLICT, NOT_REWRITTEN, REWRITE_HELD, UNREADABLE};
use super::validate::{duty, judged};
use crate::api::{GatewaySecretSpec, Kind};
use crate::registry::Registry;
use crate::rewrite::{Write, rewrite};
use crate::rotation::{Inventory, Outlook, Uses};
use crate::trust::{Finding, Severity};

/// What surrounds the objects that are checked.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The GatewaySecrets.
    pub registry: Registry,
    /// The Secrets that Gateways name.
    pub uses: Uses,
}

impl Context {
    /// The context that an inventory shows.
    pub fn new(inventory: Inventory, outlook: Outlook, now: Timestamp) -> Self {
        let uses = inventory.uses().clone();
        Self { registry: inventory.into_registry(outlook, now), uses }
    }

    /// Whether a Secret is judged in full: something names it, or there is nothing that could.
    fn counts(&self, namespace: &str, name: &str) -> bool {
        let alone = self.registry.entries().is_empty() && self.uses.is_empty();
        alone || self.registry.role(namespace, name).is_some() || self.uses.contains(namespace, name)
    }
}

/// Keys that make a Secret one of a gateway's.
const GATEWAY_KEYS: [&str; 8] = ["ca.crt", "tls.crt", "tls.key", "ca.crl", "cacert", "cert", "key", "crl"];

/// The findings on an object; `None` when trustspan has nothing to say about its kind.
pub fn check(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    match Kind::of(object) {
        Kind { group: "", version: "v1", kind: "Secret" } => check_secret(object, namespace, context, now),
        Kind { group: crate::api::GROUP, kind: "GatewaySecret", .. } => {
            Some(check_gateway_secret(object, namespace, &context.registry))
        }
        kind => check_names(kind, object, namespace, &context.registry),
    }
}

fn check_secret(object: &Value, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let claim = context.registry.role(namespace, name);
    let has = |field: &str| GATEWAY_KEYS.iter().any(|key| !object[field][key].is_null());
    let odd = |field: &str| !object[field].is_null() && !object[field].is_object();
    if claim.is_none() && !["data", "stringData"].iter().any(|field| has(field) || odd(field)) {
        return None;
    }
    let mut findings = judged(object, None, duty(claim, None), now);
    if !context.counts(namespace, name) {
        // The cluster lets it pass, since nothing here uses it, but for what the API server itself refuses.
        for finding in findings.iter_mut().filter(|finding| finding.rule != UNREADABLE.id) {
            finding.severity = Severity::Warn;
        }
    }
    Some(findings)
}

fn check_gateway_secret(object: &Value, namespace: &str, registry: &Registry) -> Vec<Finding> {
    if let Err(error) = GatewaySecretSpec::deserialize(&object["spec"]) {
        return vec![INVALID_GATEWAY_SECRET.finding("spec", error.to_string())];
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let entry = registry.entries().iter().find(|entry| entry.namespace == namespace && entry.name == name);
    let Some((entry, holder)) = entry.and_then(|entry| Some((entry, registry.conflict(entry)?))) else {
        return Vec::new();
    };
    if entry.root_name() == entry.managed_name() {
        let message = format!("the managed Secret needs a name of its own: both are {}", entry.root_name());
        return vec![INVALID_GATEWAY_SECRET.finding("spec.secretName", message)];
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
    let slipped = outcome.renamed.iter().filter(|_| stored).map(|field| {
        let message = format!("names a root Secret: the webhook did not see this write. {mend}");
        NOT_REWRITTEN.finding(field.as_str(), message)
    });
    Some(held.chain(slipped).collect())
}
