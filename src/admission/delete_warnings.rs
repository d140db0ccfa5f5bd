//! Warnings about the deletion of a GatewaySecret, including dry runs. Objects that the agent wrote have no owner, so
//! they stay, but they are no longer updated.

use serde::Deserialize;

use super::owned_objects::CLEANUP_CONTROLLERS;
use super::{Operation, Request};
use crate::api::Phase;
use crate::json::Json;

/// The warnings; none if the agent has written nothing. Each has at most 120 characters, which is what clients show.
pub(super) fn notes(request: &Request<'_>) -> Vec<String> {
    let old = request.old_object.filter(|_| request.operation == Operation::Delete);
    old.filter(|_| !CLEANUP_CONTROLLERS.contains(&request.username)).and_then(warnings).unwrap_or_default()
}

fn warnings(old: &Json<'_>) -> Option<Vec<String>> {
    let status = &old["status"];
    let phase = Phase::deserialize(&status["phase"]).ok()?;
    let managed = status["secretName"].as_str()?;
    let has_bundle = status["bundle"].as_array().is_some_and(|bundle| !bundle.is_empty());
    if !has_bundle || !old["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let mut warnings = Vec::new();
    if phase != Phase::Steady {
        warnings.extend([
            format!("the rotation stops in phase {phase:?}: no further step is taken, and no old CA is removed"),
            "finish the rotation first: trustspan wait --for Steady. A GatewaySecret created again continues it"
                .to_owned(),
        ]);
    }
    warnings.push(format!("gateways continue to use Secret {managed}, which is not renewed any more"));
    Some(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Kind, Verdict, validate};
    use crate::json::json;
    use crate::registry::Registry;
    use crate::trust::{Severities, fixtures::now};

    fn object(phase: &str) -> Json<'static> {
        json!({
            "metadata": {"name": "gateway", "namespace": "mesh"}, "spec": {"sourceSecretName": "root"},
            "status": {"phase": phase, "secretName": "gateway", "bundle": [{"fingerprint": "00"}]},
        })
    }

    fn notes_on(object: &Json<'_>, change: impl FnOnce(&mut Request<'_>)) -> Vec<String> {
        let kind = Kind { group: "trustspan.dev", version: "v1alpha1", kind: "GatewaySecret" };
        // When a collection is deleted, the API server sends no names.
        let mut request = Request { name: "", ..Request::fixture(kind, None, Some(object)) };
        change(&mut request);
        let decision = validate(&request, &Registry::default(), &Severities::default(), now());
        assert_ne!(decision.verdict(), Verdict::Deny, "a deletion is never rejected");
        decision.notes
    }

    #[test]
    fn warns_that_the_rotation_stops() {
        for phase in ["Pending", "TrustExpanded", "Converged", "ClientsMigrated", "ServingCertificateSwitched"] {
            let shown = notes_on(&object(phase), |_| ());
            assert!(shown[0].contains(&format!("the rotation stops in phase {phase}: no further step")), "{shown:?}");
            assert!(shown[1].contains("trustspan wait --for Steady"), "{shown:?}");
            assert!(shown[2].contains("Secret gateway, which is not renewed"), "{shown:?}");
            assert!(shown.iter().all(|note| note.len() <= 120), "{shown:?}");
        }
    }

    #[test]
    fn warns_that_certificates_are_not_renewed() {
        let shown = notes_on(&object("Steady"), |_| ());
        assert!(
            matches!(&shown[..], [one] if one.contains("Secret gateway, which is not renewed any more")),
            "{shown:?}"
        );
    }

    #[test]
    fn does_not_warn_before_the_agent_wrote_anything() {
        let mut without_bundle = object("Pending");
        without_bundle["status"]["bundle"] = json!([]);
        let mut without_status = object("Steady");
        without_status["status"] = json!({});
        for object in [without_bundle, without_status, object("OfAnotherVersion")] {
            assert_eq!(notes_on(&object, |_| ()), [""; 0], "{object}");
        }
    }

    #[test]
    fn does_not_warn_on_updates_cleanup_and_repeated_deletions() {
        let rotating = object("Converged");
        assert_eq!(notes_on(&rotating, |request| request.username = CLEANUP_CONTROLLERS[0]), [""; 0]);
        assert_eq!(notes_on(&rotating, |request| request.operation = Operation::Update), [""; 0]);
        let mut deleted = rotating;
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(notes_on(&deleted, |_| ()), [""; 0]);
    }
}
