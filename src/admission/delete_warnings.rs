//! What the deletion of a GatewaySecret leaves behind: warnings, on a dry run too. Nothing that the agent wrote has an owner, so nothing
//! goes with it; but nobody goes on with it, either.

use serde::Deserialize;
use serde_json::Value;

use super::owned_objects::CLEANERS;
use super::{Operation, Request};
use crate::api::Phase;

/// Sentences of at most 120 characters, as clients show them; none where nothing was written.
pub(super) fn notes(request: &Request<'_>) -> Vec<String> {
    let old = request.old_object.filter(|_| request.operation == Operation::Delete);
    // Who ends a namespace reads no warning.
    old.filter(|_| !CLEANERS.contains(&request.username)).and_then(told).unwrap_or_default()
}

fn told(old: &Value) -> Option<Vec<String>> {
    let status = &old["status"];
    let phase = Phase::deserialize(&status["phase"]).ok()?;
    let managed = status["secretName"].as_str()?;
    let is_begun = status["bundle"].as_array().is_some_and(|bundle| !bundle.is_empty());
    let is_new = old["metadata"]["deletionTimestamp"].is_null();
    let mut told = match phase {
        _ if !is_begun || !is_new => return None,
        Phase::Steady => Vec::new(),
        _ => vec![
            format!("the rotation is {phase:?}, and stops there: no step that is left is taken, no old CA is dropped"),
            "made again from its manifest it goes on; better let it end first: trustspan wait --for Steady".to_owned(),
        ],
    };
    told.push(format!(
        "what was written stays: gateways go on with it, and nobody renews it any more: Secret {managed}"
    ));
    Some(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::{Kind, Verdict, validate};
    use crate::registry::Registry;
    use crate::trust::{Severities, fixtures::now};

    fn object(phase: &str) -> Value {
        json!({
            "metadata": {"name": "gateway", "namespace": "mesh"}, "spec": {"sourceSecretName": "root"},
            "status": {"phase": phase, "secretName": "gateway", "bundle": [{"fingerprint": "00"}]},
        })
    }

    fn asked(object: &Value, change: impl FnOnce(&mut Request<'_>)) -> Vec<String> {
        let mut request = Request {
            operation: Operation::Delete,
            kind: Kind { group: "trustspan.dev", version: "v1alpha1", kind: "GatewaySecret" },
            sub_resource: "",
            namespace: "mesh",
            // Of a collection that is deleted the API server sends no names.
            name: "",
            username: "jane",
            by_agent: false,
            may_break_glass: false,
            in_guarded_namespace: true,
            object: None,
            old_object: Some(object),
        };
        change(&mut request);
        let decision = validate(&request, &Registry::default(), &Severities::default(), now());
        assert_ne!(decision.verdict(), Verdict::Deny, "a deletion is never refused");
        decision.notes
    }

    #[test]
    fn rejects_nothing_but_warns_of_what_is_left_undone() {
        for phase in ["Pending", "TrustExpanded", "Converged", "ClientsMigrated", "ServingCertificateSwitched"] {
            let said = asked(&object(phase), |_| ());
            assert!(said[0].contains(&format!("the rotation is {phase}, and stops there")), "{said:?}");
            assert!(said[1].contains("trustspan wait --for Steady"), "{said:?}");
            assert!(said[2].ends_with("Secret gateway"), "{said:?}");
            assert!(said.iter().all(|note| note.len() <= 120), "{said:?}");
        }
    }

    #[test]
    fn rejects_nothing_but_warns_of_what_nobody_renews() {
        let said = asked(&object("Steady"), |_| ());
        assert!(matches!(&said[..], [one] if one.contains("nobody renews it any more: Secret gateway")), "{said:?}");
    }

    #[test]
    fn accepts_the_end_of_one_that_wrote_nothing() {
        let mut unmade = object("Pending");
        unmade["status"]["bundle"] = json!([]);
        let mut unseen = object("Steady");
        unseen["status"] = json!({});
        for object in [unmade, unseen, object("OfAnotherVersion")] {
            assert_eq!(asked(&object, |_| ()), [""; 0], "{object}");
        }
    }

    #[test]
    fn accepts_a_change_a_cleaner_and_what_is_going_already() {
        let rotating = object("Converged");
        assert_eq!(asked(&rotating, |request| request.username = CLEANERS[0]), [""; 0]);
        assert_eq!(asked(&rotating, |request| request.operation = Operation::Update), [""; 0]);
        let mut going = rotating;
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(asked(&going, |_| ()), [""; 0]);
    }
}
