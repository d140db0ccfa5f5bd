//! trustspan's verdict on a client.

use jiff::Timestamp;
use trustspan::trust::{
    Certificate,
    bundle::{self, Bundle},
    chain::{Purpose, Refused, Store},
};

use crate::case::{Probe, judge_proxy};

/// trustspan's verdict on a client. `None` if the bundle or the lists are rejected.
pub(crate) fn passes(
    bundle: &Bundle,
    crl: Option<&[u8]>,
    probe: &Probe,
    now: Timestamp,
) -> Option<Result<(), Refused>> {
    judged(bundle, crl, probe, Purpose::Client, now)
}

/// Why a certificate that the client presents cannot be parsed.
pub(crate) fn unread(probe: &Probe) -> Option<String> {
    probe.identity.cert.iter().find_map(|der| Some(Certificate::parse(der).err()?.to_string()))
}

/// The same verdict on a chain that is presented for any purpose.
pub(crate) fn judged(
    bundle: &Bundle,
    crl: Option<&[u8]>,
    probe: &Probe,
    purpose: Purpose<'_>,
    now: Timestamp,
) -> Option<Result<(), Refused>> {
    // Envoy treats an empty text as absent.
    let lists = crl.filter(|crl| !crl.is_empty()).map(bundle::read);
    if bundle.rejected.is_some() || bundle.is_too_long || lists.as_ref().is_some_and(|lists| lists.rejected.is_some()) {
        return None;
    }
    let anchors: Vec<_> = bundle.entries.iter().map(|entry| entry.certificate.clone()).collect();
    let checks = lists.is_some() || !bundle.crls.is_empty();
    let mut crls = bundle.crls.clone();
    crls.extend(lists.into_iter().flat_map(|lists| lists.crls));
    let chain = probe.identity.cert.iter().map(|der| Certificate::parse(der)).collect::<Result<Vec<_>, _>>().ok()?;
    let store = Store::new(&anchors, checks.then_some(crls.as_slice())).of_proxy(judge_proxy());
    Some(store.verify(&chain, purpose, now).map(|_| ()))
}
