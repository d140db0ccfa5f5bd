//! The validating webhook's decision: Secrets and CA bundles, and what the agent keeps.

use jiff::Timestamp;
use serde_json::Value;

use super::owned_objects::CLEANERS;
use super::rules::{MANAGED_IN_USE, MANAGED_UNLABELLED, UNREADABLE};
use super::secret_role::duty;
use super::{
    Decision, Kind, Operation, Request, annotation_validation, break_glass, bundles, connectivity, delete_warnings,
    gateway_trust, guard, managed_name, owned_objects, policy, spec_change, unknown_gateway_secret,
};
use crate::api::GROUP;
use crate::api::names::MANAGED_LABEL;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{
    self, Duty, Finding, ParsedSecret, Proxy, Secret, SecretError, SecretUsage, Severities, TlsConsumer,
};

/// Judges a Secret, a ConfigMap or another place of a CA bundle, the labels that a Certificate gives to a Secret, another object that the
/// agent keeps, or what the schema of a GatewaySecret cannot tell; warns of what a change of one does, and its deletion. Never patches;
/// the same under dry-run.
///
/// What a Secret or ConfigMap holds is judged where it is guarded: by its own labels, or by those of its namespace.
///
/// `severities` are the cluster-wide weights; those of the GatewaySecret that names the Secret win over them.
pub fn validate(request: &Request<'_>, registry: &Registry, severities: &Severities, now: Timestamp) -> Decision {
    if !request.sub_resource.is_empty() {
        return Decision::default();
    }
    let findings = match request.kind {
        Kind { group: "", version: "v1", kind: "Secret" } => {
            let claim = registry.role(request.namespace, request.name);
            match request.operation {
                Operation::Delete => deletion(request, claim, registry, severities, now),
                Operation::Create | Operation::Update => {
                    let severities = weights(severities, claim);
                    let asked = staying(request).map(|object| labels(request, object, registry, &severities));
                    let mut findings = write(request, claim, registry, &severities, now);
                    findings.extend(asked.into_iter().flatten());
                    findings.extend(stillborn(request, claim));
                    findings.extend(bundles::written(request, &severities, now).into_iter().flatten());
                    findings
                }
                Operation::Connect => Vec::new(),
            }
        }
        Kind { group: "", version: "v1", kind: "ConfigMap" } => {
            let asked = staying(request).map(|object| labels(request, object, registry, severities));
            let mut findings = bundles::config_map(request, registry, severities, now);
            findings.extend(asked.into_iter().flatten());
            findings
        }
        Kind { group: GROUP, kind: "GatewaySecret", .. } => {
            let notes = [spec_change::notes(request, registry, now), delete_warnings::notes(request)].concat();
            let object = staying(request);
            let renamed = object.zip(request.old_object).and_then(|(object, old)| managed_name::change(object, old));
            let mut findings: Vec<_> = renamed.into_iter().collect();
            findings.extend(guard::gateway_secret(request).and_then(|finding| severities.apply(finding)));
            return Decision { findings, notes, ..Decision::default() };
        }
        Kind { group: GROUP, kind: "RotationPolicy" | "ClusterRotationPolicy", .. } => {
            let findings = staying(request).map(|object| policy::unknown_zones(object, request.old_object));
            return Decision { findings: findings.unwrap_or_default(), ..Decision::default() };
        }
        Kind { group: "networking.istio.io", kind: "Gateway", .. } => {
            let findings = staying(request)
                .map(|object| gateway_trust::findings(request.kind, object, request.old_object))
                .unwrap_or_default();
            let findings = findings.into_iter().filter_map(|finding| severities.apply(finding)).collect();
            return Decision { findings, ..Decision::default() };
        }
        Kind { group: "cert-manager.io", kind: "Certificate", .. } => {
            let findings = staying(request).map(|object| labels(request, object, registry, severities));
            return Decision { findings: findings.unwrap_or_default(), ..Decision::default() };
        }
        _ if request.operation == Operation::Delete => return Decision::default(),
        _ => match bundles::written(request, severities, now) {
            Some(findings) => findings,
            None => return Decision::default(),
        },
    };
    let kept = owned_objects::finding(request, registry, severities);
    let mut decision = Decision { findings: findings.into_iter().chain(kept).collect(), ..Decision::default() };
    break_glass::apply(request, &mut decision);
    decision
}

/// The object, unless it is being deleted.
fn staying<'r>(request: &Request<'r>) -> Option<&'r Value> {
    request.object.filter(|_| !request.is_being_deleted())
}

/// Who uses a managed Secret, for people; `None` for any other Secret, and when nobody does.
fn users(claim: Option<(&Entry, Role)>) -> Option<(&Entry, String)> {
    let (entry, Role::Managed) = claim? else { return None };
    match &entry.status.gateways {
        Some(gateways) if gateways.is_empty() => None,
        Some(gateways) => {
            let all = entry.status.gateway_count.map_or(gateways.len(), |all| all as usize);
            Some((entry, format!("{all} Gateway(s)")))
        }
        None => Some((entry, "Gateways (which ones is not observed yet)".to_owned())),
    }
}

/// A Secret that Gateways use is not deleted from under them: the managed one, and one from which they take CAs of live clients.
fn deletion(
    request: &Request<'_>,
    claim: Option<(&Entry, Role)>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    if CLEANERS.contains(&request.username) {
        return Vec::new();
    }
    let Some((entry, users)) = users(claim) else {
        let Some(Ok(old)) = request.old_object.map(Secret::from_value) else { return Vec::new() };
        return connectivity::of_source(
            request,
            &ParsedSecret::new(&old, TlsConsumer::Envoy),
            None,
            registry,
            severities,
            now,
        );
    };
    let message = format!(
        "Secret {} is used by {users}; their next pod would start without it. Delete GatewaySecret {} first, or let the \
         Gateways name another Secret",
        request.name, entry.name
    );
    vec![MANAGED_IN_USE.finding("metadata.name", message)]
}

/// The weights that are in force for a Secret.
pub(super) fn weights(severities: &Severities, claim: Option<(&Entry, Role)>) -> Severities {
    claim.map_or_else(|| severities.clone(), |(entry, _)| severities.under(&entry.policy.severities))
}

/// What a write of a Secret breaks: of what works now, and where it is guarded, of what a gateway takes from it.
pub(super) fn write(
    request: &Request<'_>,
    claim: Option<(&Entry, Role)>,
    registry: &Registry,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let Some(object) = staying(request) else { return Vec::new() };
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    let is_guarded = guard::is_guarded(request);
    let mut findings = match Secret::from_value(object) {
        Ok(secret) => {
            let old_secret = old.and_then(|old| Secret::from_value(old).ok());
            let new = ParsedSecret::new(&secret, TlsConsumer::Envoy);
            let before = old_secret.as_ref().map(|old| ParsedSecret::new(old, TlsConsumer::Envoy));
            let before = before.as_ref();
            let mut findings =
                connectivity::findings(&new, before, request.namespace, claim, registry, severities, now);
            if let Some(before) = before {
                findings.extend(connectivity::of_source(request, before, Some(&new), registry, severities, now));
            }
            if is_guarded {
                // A labelled Secret is judged even when this replica has not heard of its GatewaySecret yet.
                let duty = match claim {
                    Some(claim) => duty(Some(claim), old, now),
                    None => unnamed(request, &new, registry),
                };
                findings.extend(judged(&new, before, duty, severities, now));
            }
            findings
        }
        Err(error) if is_guarded => vec![unreadable(&error)],
        Err(_) => Vec::new(),
    };
    let is_managed = claim.is_some_and(|(_, role)| role == Role::Managed);
    if is_managed && object["metadata"]["labels"][MANAGED_LABEL] != "true" {
        findings.extend(severities.apply(unlabelled(request.name)));
    }
    findings
}

/// What a Secret is for that no GatewaySecret names as its source or managed one. A CA's is an issuer's: gateways serve leaves.
fn unnamed(request: &Request<'_>, new: &ParsedSecret<'_>, registry: &Registry) -> Duty<'static> {
    let mut duty = registry.duty(request.namespace, request.name);
    let is_managed = new.secret.labels.get(MANAGED_LABEL).is_some_and(|value| value == "true");
    if duty.usage == SecretUsage::Serving && new.presents_ca() && !is_managed {
        duty.usage = SecretUsage::SigningCa;
    }
    if duty.usage == SecretUsage::SigningCa {
        // No proxy reads it. A rotation to a CA that some proxies cannot verify with waits, and says so.
        duty.oldest_proxy = Proxy::NEWEST;
    }
    duty
}

/// A managed Secret that is created as one that is being deleted: nothing judges what is written to it from then on.
fn stillborn(request: &Request<'_>, claim: Option<(&Entry, Role)>) -> Option<Finding> {
    let is_dying = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    let is_stillborn = request.operation == Operation::Create && request.object.is_some_and(is_dying);
    let (_, users) = users(claim).filter(|_| is_stillborn)?;
    let message = format!(
        "a new Secret {} with it is gone after its next update, and is used by {users}; their next pod \
         would start without it. expected none: take it off",
        request.name
    );
    Some(MANAGED_IN_USE.finding("metadata.deletionTimestamp", message))
}

/// Labels and annotations of an object without effect, or of those that a Certificate gives to a Secret.
fn labels(request: &Request<'_>, object: &Value, registry: &Registry, severities: &Severities) -> Vec<Finding> {
    let odd = annotation_validation::findings(request.kind, object, request.old_object);
    let odd = odd.into_iter().filter_map(|finding| severities.apply(finding));
    odd.chain(unknown_gateway_secret::finding(request.kind, object, request.namespace, registry, severities)).collect()
}

/// The findings on a Secret, or on the change of one.
fn judged(
    new: &ParsedSecret<'_>,
    old: Option<&ParsedSecret<'_>>,
    duty: Duty<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    match old {
        Some(old) => trust::judge_parsed_update(old, new, duty, severities, now),
        None => trust::judge_parsed(new, duty, severities, now),
    }
}

fn unreadable(error: &SecretError) -> Finding {
    // The error's text begins with the field.
    let text = error.to_string();
    let (field, message) = text.split_once(": ").unwrap_or(("data", &text));
    UNREADABLE.finding(field, message)
}

fn unlabelled(name: &str) -> Finding {
    let message =
        format!("managed Secret {name} lacks label {MANAGED_LABEL}=true: writes pass while the webhook is down");
    MANAGED_UNLABELLED.finding("metadata.labels", message)
}
