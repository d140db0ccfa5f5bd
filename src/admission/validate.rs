//! The validating webhook's decision.

use jiff::Timestamp;

use super::owned_objects::CLEANUP_CONTROLLERS;
use super::rules::MANAGED_IN_USE;
use super::secret_write::{DecodedWrite, SecretWrite};
use super::{
    Decision, Kind, Operation, Request, annotation_validation, break_glass, bundles, connectivity, delete_warnings,
    gateway_secret, gateway_trust, guard, owned_objects, policy, secret_checks, secret_usage, unknown_gateway_secret,
};
use crate::api::GROUP;
use crate::json::Json;
use crate::registry::{Entry, Registry, Role};
use crate::rotation::counted;
use crate::trust::{self, Finding, ParsedSecret, Secret, Severities, TlsConsumer};

/// Judges Secrets, ConfigMaps and other objects with a CA bundle, what the schemas of our own kinds cannot express, and the labels that a
/// Certificate gives to its Secret. Warns about the effects of a change or the deletion of a GatewaySecret. Never patches, and decides the
/// same on a dry run.
///
/// The content of a Secret or ConfigMap is judged only if a label of the object or of its namespace guards it.
///
/// `severities` are the cluster-wide ones. Those of the GatewaySecret that names the Secret override them.
pub fn validate(request: &Request<'_>, registry: &Registry, severities: &Severities, now: Timestamp) -> Decision {
    if !request.sub_resource.is_empty() {
        return Decision::default();
    }
    let request = &request.named();
    let stored = request.stored_object();
    let labels = || stored.map(|object| labels(request, object, registry, severities)).unwrap_or_default();
    let only = |findings| Decision { findings, ..Decision::default() };
    let mut findings = match request.kind {
        Kind { group: "", version: "v1", kind: "Secret" } => match request.operation {
            Operation::Delete => deletion(request, registry, severities, now),
            _ => secret(request, registry, severities, now),
        },
        Kind { group: "", version: "v1", kind: "ConfigMap" } => {
            [bundles::config_map(request, registry, severities, now), labels()].concat()
        }
        Kind { group: GROUP, kind: "GatewaySecret", .. } => {
            let notes = [gateway_secret::notes(request, registry, now), delete_warnings::notes(request)].concat();
            return Decision { findings: gateway_secret::findings(request, severities), notes, ..Decision::default() };
        }
        Kind { group: GROUP, kind: "RotationPolicy" | "ClusterRotationPolicy", .. } => {
            let findings = stored.map(|object| policy::unknown_time_zones(object, request.old_object));
            return only(findings.unwrap_or_default());
        }
        Kind { group: "networking.istio.io", kind: "Gateway", .. } => {
            let findings = stored.map(|object| gateway_trust::findings(request.kind, object, request.old_object));
            let findings = findings.unwrap_or_default().into_iter();
            return only(findings.filter_map(|finding| severities.apply(finding)).collect());
        }
        Kind { group: "cert-manager.io", kind: "Certificate", .. } => return only(labels()),
        _ => match bundles::api_object(request, severities, now) {
            Some(findings) => findings,
            None => return Decision::default(),
        },
    };
    findings.extend(new_owner(request, registry, severities, now));
    findings.extend(owned_objects::finding(request, registry, severities));
    let mut decision = only(findings);
    break_glass::apply(request, &mut decision);
    decision
}

/// The findings on a Secret that is created or changed.
fn secret(request: &Request<'_>, registry: &Registry, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    let Some(decoded) = DecodedWrite::new(request) else { return Vec::new() };
    let write = SecretWrite::new(request, &decoded, registry, severities, now);
    let mut findings = secret_checks::findings(&write);
    findings.extend(labels(request, write.object, registry, &write.severities));
    findings.extend(created_for_deletion(&write));
    findings.extend(bundles::kubeconfigs(&write).into_iter().flatten());
    findings
}

/// A Secret that Gateways use cannot be deleted: neither the managed Secret, nor one from which they take the CAs of clients. What the deletion
/// of another guarded one takes away warns.
fn deletion(request: &Request<'_>, registry: &Registry, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    if CLEANUP_CONTROLLERS.contains(&request.username) {
        return Vec::new();
    }
    let claim = registry.role(request.namespace, request.name);
    let Some((entry, users)) = users(claim) else {
        let Some(Ok(old)) = request.old_object.map(Secret::from_json) else { return Vec::new() };
        let old = ParsedSecret::new(&old, TlsConsumer::Envoy);
        let mut findings = connectivity::of_source(request, Some(&old), None, registry, severities, now);
        findings.extend(connectivity::of_deleted_sibling(&old, claim, severities, now));
        if claim.is_none() && guard::is_guarded(request) {
            let usage = secret_usage::unclaimed(request, registry, &old);
            findings.extend(trust::judge_deletion(&old, usage, severities, now));
        }
        return findings;
    };
    let message = format!(
        "Secret {} is used by {users}; a gateway that starts without it serves no certificate. delete GatewaySecret {} first, or let the \
         Gateways use another Secret",
        request.name, entry.name
    );
    vec![MANAGED_IN_USE.finding("metadata.name", message)]
}

/// An owner is a deletion in waiting: the garbage collector, which is never rejected, deletes an object together with its owner, and at once if
/// that does not exist. So a new owner is judged as the deletion of the object.
fn new_owner(request: &Request<'_>, registry: &Registry, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    let (Some(object), Some(old)) = (request.stored_object(), request.old_object) else { return Vec::new() };
    if request.operation != Operation::Update || !owned_objects::has_new_owner(object, old) {
        return Vec::new();
    }
    let as_deletion = &Request { operation: Operation::Delete, object: None, ..request.clone() };
    let found = match request.kind {
        Kind { group: "", version: "v1", kind: "Secret" } => deletion(as_deletion, registry, severities, now),
        Kind { group: "", version: "v1", kind: "ConfigMap" } => {
            bundles::config_map(as_deletion, registry, severities, now)
        }
        _ => return Vec::new(),
    };
    let because = "the garbage collector deletes an object with its new owner, and at once if there is no such owner";
    let of_owner = |finding: Finding| Finding {
        field: "metadata.ownerReferences".to_owned(),
        message: format!("{because}: {}", finding.message),
        ..finding
    };
    found.into_iter().map(of_owner).collect()
}

/// The users of a managed Secret, for a message; `None` for any other Secret, and if there is no user.
fn users(claim: Option<(&Entry, Role)>) -> Option<(&Entry, String)> {
    let (entry, Role::Managed) = claim? else { return None };
    match &entry.status.gateways {
        Some(gateways) if gateways.is_empty() => None,
        Some(gateways) => {
            let all = entry.status.gateway_count.map_or(gateways.len(), |all| all as usize);
            Some((entry, counted(all, "Gateway")))
        }
        None => Some((entry, "Gateways (status does not list them yet)".to_owned())),
    }
}

/// A managed Secret that is created with a `deletionTimestamp`.
fn created_for_deletion(write: &SecretWrite<'_>) -> Option<Finding> {
    let is_for_deletion =
        write.request.operation == Operation::Create && write.object["metadata"]["deletionTimestamp"].is_string();
    let (_, users) = users(write.claim).filter(|_| is_for_deletion)?;
    let message = format!(
        "the API server deletes a new Secret with this field at its next update, and Secret {} is used by {users}. expected no \
         deletionTimestamp; remove it",
        write.request.name
    );
    Some(MANAGED_IN_USE.finding("metadata.deletionTimestamp", message))
}

/// Labels and annotations without effect, of an object or of the Secret that a Certificate makes.
fn labels(request: &Request<'_>, object: &Json<'_>, registry: &Registry, severities: &Severities) -> Vec<Finding> {
    let ignored = annotation_validation::findings(request.kind, object, request.old_object);
    let ignored = ignored.into_iter().filter_map(|finding| severities.apply(finding));
    ignored
        .chain(unknown_gateway_secret::finding(request.kind, object, request.namespace, registry, severities))
        .collect()
}
