//! A verdict holds for a time: when does it change?

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{Budget, Crl, Presented, Purpose, Refused, Store};
use crate::trust::Certificate;
use crate::trust::limits::CHAIN_DATES;

/// A chain that is accepted now and will not be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Break {
    /// From when on.
    pub at: Timestamp,
    /// Why.
    pub refused: Refused,
}

/// The dates after `now` at which a verdict on these certificates and lists can change, earliest first.
fn dates<'c>(
    certificates: impl IntoIterator<Item = &'c Certificate>,
    crls: &[Crl],
    now: Timestamp,
) -> BTreeSet<Timestamp> {
    // A certificate is refused in its last second; whoever reads RFC 5280 to the letter refuses it a second later.
    let ends = |c: &Certificate| c.not_after.checked_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
    let certificates = certificates.into_iter().flat_map(|c| [c.not_before, c.not_after, ends(c)]);
    certificates.chain(crls.iter().flat_map(Crl::dates)).filter(|at| *at > now).collect()
}

/// The dates after `now` at which a verdict on these certificates can change, earliest first.
pub(crate) fn dates_after<'c>(
    certificates: impl IntoIterator<Item = &'c Certificate>,
    now: Timestamp,
) -> BTreeSet<Timestamp> {
    dates(certificates, &[], now)
}

/// When a chain that is accepted now is refused first, before its leaf's own end: time alone breaks it.
///
/// `None` when it is refused already, or holds until its leaf ends. Only the 64 earliest dates are looked at,
/// and no more than cost as much as one verdict may.
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
    // It was enough for the verdict of now: then it is the dates that cost too much.
    first.filter(|ahead| ahead.refused != Refused::Budget)
}
