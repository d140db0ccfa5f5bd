//! Clients that connect to the gateways of two GatewaySecrets with one CA.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, reissues, source};
use crate::api::{StepName, TrustAnchor};
use crate::registry::Entry;
use crate::registry::tests::entry;
use crate::rotation::planner::{Plan, Step};
use crate::trust::fixtures::{Authority, ca, parsed};

/// A GatewaySecret whose gateways have these CAs, and whether all of them do.
fn second(bundle: &[(&Authority, bool)]) -> Entry {
    let mut second = entry("mesh", "second-root", "second");
    let anchor = |(ca, converged): &(&Authority, bool)| TrustAnchor {
        converged: Some(*converged),
        ..TrustAnchor::from(&parsed(ca.der()))
    };
    second.status.bundle = bundle.iter().map(anchor).collect();
    second
}

/// The first GatewaySecret's own gateways trust the new CA.
fn converged(old: &Authority, new: &Authority, is_staged: bool) -> Scene {
    let mut scene = Scene::steady(old);
    if !is_staged {
        (scene.has_issuer, scene.entry.spec.issuer_secret_name) = (false, None);
    }
    scene.ca = source(new);
    scene.other_gateway_secrets = vec![second(&[(old, true)])];
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.reconcile();
    scene.now += SignedDuration::from_mins(1);
    scene
}

fn reason(plan: &Plan, step: StepName) -> Option<(&str, bool)> {
    let wait = plan.waits.iter().find(|wait| wait.step == step && wait.reason.contains("GatewaySecret second"))?;
    Some((wait.reason.as_str(), wait.needs_action))
}

#[test]
fn the_issuer_waits_for_the_gateways_of_another_gateway_secret_with_the_same_clients() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = converged(&old, &new, true);
    let plan = scene.reconcile();
    assert_eq!((plan.steps.as_slice(), plan.awaits_other_gateways), ([].as_slice(), true));
    let lacks = "Gateways of GatewaySecret second accept client, too, and do not have the new CA. Add it to Secret second-root or to \
                 spec.additionalTrust of second";
    assert_eq!(
        reason(&plan, StepName::PromoteIssuer),
        Some((lacks, false)),
        "the agent may not have reconciled it yet"
    );
    scene.now += HOUR;
    assert_eq!(reason(&scene.reconcile(), StepName::PromoteIssuer), Some((lacks, true)));
    scene.other_gateway_secrets = vec![second(&[(&new, false), (&old, true)])];
    let plan = scene.reconcile();
    let behind = "Gateways of GatewaySecret second accept client, too, and some may not trust the new CA yet. Status of second says which";
    assert_eq!((plan.steps.as_slice(), reason(&plan, StepName::PromoteIssuer)), ([].as_slice(), Some((behind, false))));
    scene.other_gateway_secrets = vec![second(&[(&new, true), (&old, true)])];
    let plan = scene.reconcile();
    assert_eq!((plan.steps.as_slice(), plan.awaits_other_gateways), ([Step::PromoteIssuer].as_slice(), false));
}

#[test]
fn clients_are_reissued_when_the_gateways_of_both_trust_the_new_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = converged(&old, &new, false);
    let plan = scene.reconcile();
    assert!(reissues(&plan).is_empty() && plan.lagging.is_empty(), "the client cannot follow yet: {plan:?}");
    assert!(reason(&scene.reconcile(), StepName::ReissueClients).is_some());
    scene.other_gateway_secrets = vec![second(&[(&new, true), (&old, true)])];
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
}

#[test]
fn gateways_that_do_not_accept_the_clients_are_not_waited_for() {
    let (old, new, foreign) = (ca("old"), ca("new"), ca("foreign"));
    let mut scene = converged(&old, &new, true);
    scene.other_gateway_secrets = vec![second(&[(&foreign, true)])];
    assert_eq!(scene.reconcile().steps, [Step::PromoteIssuer]);
}
