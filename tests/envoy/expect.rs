//! Whether trustspan says that a client passes.

use jiff::Timestamp;
use trustspan::trust::{Certificate, bundle::Bundle};

use crate::case::Probe;

/// `None`: nothing is said of such a client.
pub(crate) fn passes(bundle: &Bundle, crl: Option<&[u8]>, probe: &Probe, now: Timestamp) -> Option<bool> {
    let leaf = Certificate::parse(probe.identity.cert.first()?).ok()?;
    if bundle.rejected.is_some()
        || bundle.is_too_long
        || crl.is_some()
        || !probe.plain
        || probe.identity.cert.len() != 1
    {
        return None;
    }
    let anchors: Vec<_> = bundle.entries.iter().map(|entry| &entry.certificate).collect();
    let issuers: Vec<_> = anchors.iter().filter(|anchor| anchor.subject_der == leaf.issuer_der).collect();
    match issuers.as_slice() {
        [] => Some(anchors.iter().any(|anchor| anchor.der == leaf.der)),
        [first, rest @ ..]
            if rest.iter().all(|other| other.der == first.der) && probe.shows.as_deref() == Some(&first.der) =>
        {
            Some(first.is_valid_at(now) && first.may_sign)
        }
        _ => None,
    }
}
