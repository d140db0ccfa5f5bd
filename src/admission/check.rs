//! Judges an object from a file, for `trustspan check`: the verdict of the cluster, and what the webhook missed.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use super::rules::{INVALID_RESOURCE, NAME_CONFLICT, NOT_REWRITTEN, REWRITE_HELD};
use super::secret_write::{DecodedWrite, SecretWrite};
use super::{
    Request, annotation_validation, break_glass, bundles, gateway_secret, gateway_trust, guard, policy, secret_checks,
    unknown_gateway_secret,
};
use crate::api::{GROUP, GatewaySecretSpec, Kind};
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::rewrite::{Write, rewrite};
use crate::rotation::{Inventory, Outlook};
use crate::trust::{Finding, Severities, Severity};

/// The cluster to which the checked objects belong.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The GatewaySecrets.
    pub registry: Registry,
    /// Namespaces in the input without label `trustspan.dev/guard: enabled`.
    pub unguarded: BTreeSet<String>,
    /// The cluster-wide severities of rules.
    pub severities: Severities,
    /// Whether to judge as for a user who may override rules.
    pub may_break_glass: bool,
}

impl Context {
    /// The context that an inventory describes.
    pub fn new(inventory: Inventory, outlook: Outlook, now: Timestamp) -> Self {
        let (unguarded, severities) = (inventory.unguarded().clone(), inventory.severities().clone());
        Self { registry: inventory.into_registry(outlook, now), unguarded, severities, may_break_glass: false }
    }
}

/// The findings on an object; `None` if trustspan does not judge it.
pub fn check(object: &Json<'_>, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    let ignored =
        [annotation_validation::findings(Kind::of(object), object, None), break_glass::ignored(object)].concat();
    let mut ignored: Vec<_> = ignored.into_iter().filter_map(|finding| context.severities.apply(finding)).collect();
    // Without any GatewaySecret in the input, clients are not checked: the GatewaySecrets may be in other manifests.
    if !context.registry.entries().is_empty() {
        ignored.extend(unknown_gateway_secret::finding(
            Kind::of(object),
            object,
            namespace,
            &context.registry,
            &context.severities,
        ));
    }
    let findings = match findings(object, namespace, context, now) {
        None if ignored.is_empty() => return None,
        findings => [findings.unwrap_or_default(), ignored].concat(),
    };
    Some(break_glass::preview(object, findings, context.may_break_glass))
}

fn findings(object: &Json<'_>, namespace: &str, context: &Context, now: Timestamp) -> Option<Vec<Finding>> {
    let kind = Kind::of(object);
    let request = Request {
        may_break_glass: context.may_break_glass,
        // Guarded unless the input has the Namespace without the label: a pipeline rarely has the Namespace.
        in_guarded_namespace: !context.unguarded.contains(namespace),
        ..Request::create(object, namespace)
    };
    let Context { registry, severities, .. } = context;
    let findings = match kind {
        Kind { group: "", version: "v1", kind: "Secret" } => {
            // What a Gateway of the input names is judged, whatever it contains.
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let request = Request { decides_trust: registry.served(namespace, name).is_some(), ..request };
            let decoded = DecodedWrite::new(&request)?;
            let write = SecretWrite::new(&request, &decoded, registry, severities, now);
            let is_ours = write.claim.is_some() || guard::holds_trust(kind, object) || guard::is_guarded(&request);
            let content = |request: &Request<'_>| {
                secret_checks::findings(&SecretWrite::new(request, &decoded, registry, severities, now))
            };
            let content = is_ours.then(|| with_unguarded(&request, content));
            return match (content, bundles::kubeconfigs(&write)) {
                (None, None) => None,
                (content, kubeconfigs) => Some([content, kubeconfigs].into_iter().flatten().flatten().collect()),
            };
        }
        Kind { group: "", version: "v1", kind: "ConfigMap" } => {
            let is_ours = guard::holds_trust(kind, object) || guard::is_guarded(&request);
            return is_ours
                .then(|| with_unguarded(&request, |request| bundles::config_map(request, registry, severities, now)));
        }
        Kind { group: GROUP, kind: "GatewaySecret", .. } => {
            let mut findings = check_gateway_secret(object, namespace, registry);
            findings
                .extend(context.unguarded.contains(namespace).then(|| gateway_secret::namespace_unguarded(namespace)));
            findings
        }
        Kind { group: GROUP, kind: "RotationPolicy" | "ClusterRotationPolicy", .. } => policy::findings(object),
        kind => match bundles::api_object(&request, severities, now) {
            Some(findings) => return Some(findings),
            None => check_names(kind, object, namespace, registry)?,
        },
    };
    Some(findings.into_iter().filter_map(|finding| severities.apply(finding)).collect())
}

/// The findings of the webhook and, as warnings, those that it would have in a guarded namespace.
fn with_unguarded(request: &Request<'_>, judge: impl Fn(&Request<'_>) -> Vec<Finding>) -> Vec<Finding> {
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

fn check_gateway_secret(object: &Json<'_>, namespace: &str, registry: &Registry) -> Vec<Finding> {
    if let Err(error) = GatewaySecretSpec::deserialize(&object["spec"]) {
        return vec![INVALID_RESOURCE.finding("spec", error.to_string())];
    }
    let mut findings = conflicts(object, namespace, registry);
    findings.extend(mistyped(object));
    findings.extend(unresolved(object, namespace, registry));
    findings.extend(gateway_secret::managed_secret_renamed(object, &object["status"]));
    findings
}

/// Warns about a GatewaySecret whose source Secret is unknown.
fn unresolved(object: &Json<'_>, namespace: &str, registry: &Registry) -> Option<Finding> {
    let named = |entry: &&Arc<Entry>| entry.namespace == namespace && object["metadata"]["name"] == entry.name.as_str();
    let entry = registry.entries().iter().find(named).filter(|entry| entry.source_name().is_empty())?;
    let certificate = &entry.spec.certificate_ref.as_ref()?.name;
    let message = format!(
        "the source Secret is unknown, so it is judged like any other Secret: Certificate {certificate} is missing from the input, or \
         writes the managed Secret itself. add the Certificate, with another spec.secretName"
    );
    Some(Finding { severity: Severity::Warn, ..INVALID_RESOURCE.finding("spec.certificateRef", message) })
}

/// Values in `spec.distrustedCAs` that cannot be a fingerprint.
fn mistyped(object: &Json<'_>) -> impl Iterator<Item = Finding> {
    let named = object["spec"]["distrustedCAs"].as_array().into_iter().flatten().enumerate();
    let is_fingerprint = |text: &str| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    named.filter(move |(_, item)| !item.as_str().is_some_and(is_fingerprint)).map(|(at, _)| {
        let message = "not a fingerprint, so it distrusts no CA. expected SHA-256 as 64 hex digits, without colons";
        INVALID_RESOURCE.finding(format!("spec.distrustedCAs[{at}]"), message.to_owned())
    })
}

fn conflicts(object: &Json<'_>, namespace: &str, registry: &Registry) -> Vec<Finding> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let entry = registry.entries().iter().find(|entry| entry.namespace == namespace && entry.name == name);
    let Some((entry, holder)) = entry.and_then(|entry| Some((entry, registry.conflict(entry)?))) else {
        return Vec::new();
    };
    if let Some(name) = entry.doubled_name() {
        let message = format!(
            "two of the Secrets that it names are called {name}. expected different names for the source Secret, the managed Secret and the \
             Issuer's Secret; rename one of them"
        );
        return vec![INVALID_RESOURCE.finding("spec", message)];
    }
    let message =
        format!("GatewaySecret {} is older and claims one of these names: this one has no effect", holder.name);
    vec![NAME_CONFLICT.finding("spec", message)]
}

/// Names that are not rewritten: because the rewrite is blocked, or because the webhook missed the write of an object that the cluster stores
/// (it has a uid).
fn check_names(kind: Kind<'_>, object: &Json<'_>, namespace: &str, registry: &Registry) -> Option<Vec<Finding>> {
    if !crate::rewrite::is_rewritten(kind) {
        return None;
    }
    let outcome = rewrite(&Write { kind, namespace, object, old: None, by_agent: false }, registry);
    let blocked = outcome.blockers.iter().map(|blocker| REWRITE_HELD.finding("spec", blocker.to_string()));
    let stored = !object["metadata"]["uid"].is_null();
    // `kubectl apply` of an unchanged manifest sends no request, so the fix has to change something.
    let fix = match object["spec"]["template"].is_object() {
        true => "change its pod template, such as with kubectl rollout restart",
        false => "write it again, such as with kubectl annotate",
    };
    let missed = outcome.renamed().filter(|_| stored).map(|field| {
        let message = format!("names a source Secret or ConfigMap: the webhook missed this write. {fix}");
        NOT_REWRITTEN.finding(field, message)
    });
    let without_cas = gateway_trust::findings(kind, object, None);
    Some(blocked.chain(missed).chain(without_cas).collect())
}
