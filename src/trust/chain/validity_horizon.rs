//! When a verdict on a chain changes.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Budget, Crl, Presented, Purpose, Refused, Store};
use crate::trust::Certificate;
use crate::trust::limits::CHAIN_DATES;

/// The date at which a chain that is accepted now is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Break {
    /// The first instant at which the chain is refused.
    pub at: Timestamp,
    /// Why it is refused then.
    pub refused: Refused,
}

/// The dates after `now` at which a verdict on these certificates and lists can change, earliest first.
fn dates<'c>(
    certificates: impl IntoIterator<Item = &'c Certificate>,
    crls: &[Crl],
    now: Timestamp,
) -> BTreeSet<Timestamp> {
    let certificates = certificates.into_iter().flat_map(|c| [c.not_before, c.not_after]);
    certificates.chain(crls.iter().flat_map(Crl::dates)).filter(|at| *at > now).collect()
}

/// The dates after `now` at which a verdict on these certificates can change, earliest first.
pub(crate) fn dates_after<'c>(
    certificates: impl IntoIterator<Item = &'c Certificate>,
    now: Timestamp,
) -> BTreeSet<Timestamp> {
    dates(certificates, &[], now)
}

/// When a chain that is accepted now is first refused, if that is before its leaf expires.
///
/// `None` if it is refused already, or accepted until its leaf expires. Only the 64 earliest dates are judged, and together they may
/// cost as much as one verdict.
pub fn horizon(
    bundle: &[Certificate],
    crls: Option<&[Crl]>,
    chain: &[Certificate],
    purpose: Purpose<'_>,
    now: Timestamp,
) -> Option<Break> {
    let (store, presented, mut budget) = (Store::new(bundle, crls), Presented::read(chain), Budget::default());
    let end = chain.first()?.not_after;
    store.judge(&presented, purpose, now, &mut budget).ok()?;
    let dates = dates(bundle.iter().chain(chain), crls.unwrap_or_default(), now);
    let mut ahead = dates.into_iter().take_while(|at| *at < end).take(CHAIN_DATES);
    let first =
        ahead.find_map(|at| Some(Break { at, refused: store.judge(&presented, purpose, at, &mut budget).err()? }));
    // The budget was sufficient for the verdict at `now`, so here the future dates have exhausted it.
    first.filter(|ahead| ahead.refused != Refused::Budget)
}
