//! The managed Secret of mode `Copy`: what the root holds, and nothing else.

use super::Step;
use super::snapshot::usable;
use super::view::{View, admits, verifies};
use crate::api::Mode;
use crate::rotation::journal::Version;

/// What is to be written.
pub(super) fn step(view: &View<'_>) -> Option<Step> {
    let root = usable((view.seen.root, view.seen.entry.source_name())).ok()?;
    let same = view.seen.managed.is_some_and(|held| held.anchors == root.anchors && held.chain == root.chain);
    (!same).then_some(Step::CopyRoot)
}

/// The declared clients that get on with the managed Secret of mode `Bundle`, and would not with a copy of the root: gateways refuse
/// them, or they refuse the gateways.
pub(super) fn cuts_off(view: &View<'_>) -> Vec<String> {
    let (seen, now) = (view.seen, view.now);
    let root = usable((seen.root, seen.entry.source_name())).ok();
    let (Some(root), Some(managed), Mode::Bundle) = (root, seen.managed, view.spec().mode) else { return Vec::new() };
    let refused =
        |held: &Version| admits(&managed.anchors, &held.chain, now) && !admits(&root.anchors, &held.chain, now);
    let refuses =
        |held: &Version| verifies(&held.trust, &managed.chain, now) && !verifies(&held.trust, &root.chain, now);
    let lost = view.clients_in_use().filter(|(_, held)| refused(held) || refuses(held));
    let mut names: Vec<_> = lost.map(|(name, _)| name.to_owned()).collect();
    names.dedup();
    names
}
