//! Readers that may take the CAs of a bundle in any order: of two that a certificate does not tell apart, some take the first, whatever
//! comes of it. What they hold is judged by the worst order.

use super::trust::of_served;
use super::view::{View, verifies_to_the_end};
use crate::api::TrustBundleTarget;
use crate::trust::Certificate;

/// The orders that differ for a verifier: each CA first. It tries the others only where the first one does not fit.
pub(super) fn orders(trust: &[Certificate]) -> impl Iterator<Item = Vec<Certificate>> {
    (0..trust.len()).map(|first| {
        let mut order = trust.to_vec();
        order[..=first].rotate_right(1);
        order
    })
}

/// Whether some who read what is distributed take its CAs in any order, by the name under which they stand in the journal.
pub(super) fn is_unordered(view: &View<'_>, readers: &str) -> bool {
    places(view).any(|place| place.readers() == readers)
}

fn places<'a>(view: &View<'a>) -> impl Iterator<Item = &'a TrustBundleTarget> {
    view.seen.entry.spec.trust_bundle_targets.iter().filter(|place| !place.kind.keeps_order())
}

/// Why a bundle must not be given to such readers: in some order it does not verify what gateways serve.
pub(super) fn refusal(view: &View<'_>, bundle: &[Certificate]) -> Option<String> {
    let place = places(view).next()?;
    let verifies = |order: &[Certificate], chain: &[Certificate]| verifies_to_the_end(order, chain, view.now);
    let is_refused =
        |chain: &&[Certificate]| verifies(bundle, chain) && orders(bundle).any(|order| !verifies(&order, chain));
    let leaf = of_served(view).into_iter().find(is_refused)?.first()?;
    Some(format!(
        "{} {} is not changed: its readers may take the CAs in any order, and two CAs of the clients' bundle have one name, which \
         {} does not tell apart for want of key identifiers (SKI, AKI). Give the new CA another name, or name a ConfigMap in \
         spec.trustPlannedBundleTargets",
        place.kind.name(),
        place.name,
        leaf.subject
    ))
}
