//! Declared clients that gateways were changed in spite of: they got on with what gateways had before, and do not with what they have.

use jiff::Timestamp;

use super::steps::migrated;
use super::view::verifies_to_the_end;
use crate::api::Period;
use crate::rotation::journal::{CutOff, Journal, Version};

/// Writes down who is cut off. Whom nothing cuts off any more is forgotten.
pub(super) fn record(journal: &mut Journal, settle: Period, now: Timestamp) {
    let Some((newest, former)) = journal.gateways.split_last().filter(|(newest, _)| !newest.guessed) else { return };
    let admits = |gateway: &Version, held: &Version| migrated(&gateway.trust, &held.chain, now);
    // A leaf that is kept beyond its end was not put there in spite of anybody.
    let verifies = |gateway: &Version, held: &Version| verifies_to_the_end(&held.trust, &gateway.chain, now);
    for client in journal.clients.values_mut() {
        let was = std::mem::take(&mut client.cut_off);
        let mut is = CutOff::default();
        for held in client.in_use(settle, now) {
            let lost = |was: bool, gets_on: &dyn Fn(&Version, &Version) -> bool| {
                !gets_on(newest, held) && (was || former.iter().any(|gateway| gets_on(gateway, held)))
            };
            is.refused |= lost(was.refused, &admits);
            is.refuses |= lost(was.refuses, &verifies);
        }
        client.cut_off = is;
    }
}
