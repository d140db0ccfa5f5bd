//! The way back to mode `Copy` during a rotation.

use super::probe::{ONE, TWO, expanded};
use super::scene::pair;
use crate::api::{ConditionStatus, Endpoints, Mode};
use crate::rotation::GATEWAYS;
use crate::rotation::planner::{Answer, Step};
use crate::trust::fixtures::ca;

#[test]
fn a_gateway_without_the_new_ca_has_no_earlier_content_after_the_way_back() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (served, canary) = (scene.source.clone(), pair(&new, "canary"));
    let refused = [ONE, TWO].map(|address| (address, Ok((&served, Some(Answer::Untrusted)))));
    scene.see(Some(&canary), &refused);
    assert_eq!(scene.reconcile().endpoints.map(|endpoints| endpoints.stale), Some(2), "the new CA was just added");
    scene.entry.spec.mode = Mode::Copy;
    let plan = scene.reconcile();
    assert_eq!(plan.steps, [Step::CopySource]);
    scene.take(&plan);
    scene.see(Some(&canary), &refused);
    let plan = scene.reconcile();
    assert_eq!(plan.endpoints, Some(Endpoints { total: 2, current: 2, stale: 0, unreachable: 0 }));
    let status = scene.status(&plan);
    let converged = status.condition(GATEWAYS).expect("a condition");
    assert_eq!((converged.status, converged.reason.as_str()), (ConditionStatus::True, "Converged"), "{converged:?}");
}
