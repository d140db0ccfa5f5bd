//! New client certificates that admission rejects because no Secret has their CA yet.
//!
//! An issuer whose key is not in the cluster (Vault, a cloud provider's private CA) changes its CA unannounced. The first renewed client
//! certificate shows it. Admission rejects that write, because gateways would reject the certificate, and cert-manager retries it with a backoff
//! of at most 30 seconds (`DefaultCertificateRateLimiter`). The serving certificate of the same issuer is then reissued: its `ca.crt` brings the new
//! CA into the source Secret, and the rotation starts.

use jiff::Timestamp;

use super::seen::{Issuance, Pending};
use super::steps::Decided;
use super::view::{View, admits};
use super::{Step, wait};
use crate::api::StepName;
use crate::rotation::name_list::few;

/// Gets such a CA into the source Secret, or says who can add it.
pub(super) fn learn(view: &View<'_>, decided: &mut Decided) {
    let known: Vec<_> = view.journal.client_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    let is_live = |pending: &&Pending| pending.chain.first().is_some_and(|leaf| leaf.not_after >= view.now);
    let waits = view.seen.clients.iter().filter_map(|client| {
        let pending = client.pending.as_ref().filter(is_live)?;
        (!admits(&known, &pending.chain, view.now)).then_some((client, pending))
    });
    let waits: Vec<_> = waits.collect();
    let Some((first, pending)) = waits.first() else { return };
    let names = few(waits.iter().map(|(client, _)| client.name.clone())).unwrap_or_default();
    let ca = pending.chain.last().map(|last| last.issuer.clone()).unwrap_or_default();
    let held =
        format!("admission rejects new certificates of {names}: they are signed by {ca}, which gateways do not trust");
    let hold = |until, what: String| wait(StepName::ExpandTrust, until, format!("{held}. {what}"));
    let issuer = first.certificate.as_ref().map(|certificate| &certificate.issuer);
    let Some(certificate) = shared(view).filter(|own| Some(&own.issuer) == issuer) else {
        let (_, source) = view.seen.client_source();
        decided
            .waits
            .push(hold(None, format!("If this CA is yours, append its certificate to ca.crt of Secret {source}")));
        return;
    };
    let newest = waits.iter().map(|(_, pending)| pending.at).max().unwrap_or(Timestamp::MIN);
    let name = &certificate.name;
    if certificate.is_issuing {
        decided
            .waits
            .push(hold(None, format!("Certificate {name} of the same issuer is being reissued, to obtain the CA")));
    } else if certificate.issued.is_some_and(|issued| issued > newest) {
        let source = view.seen.entry.root_name();
        decided.waits.push(hold(
            None,
            format!(
                "Certificate {name} was issued later, by another CA. Configure the issuer to use one CA, or append {ca} to ca.crt of \
                 Secret {source}"
            ),
        ));
    } else if let Some(pause) = view.reissue_pause(Some(certificate), None) {
        decided.waits.push(hold(pause.until, pause.reason));
    } else {
        decided.steps.push(Step::Reissue { certificate: name.clone() });
    }
}

/// The Certificate of the source Secret, where that Secret alone says which CA signs clients.
fn shared<'v>(view: &View<'v>) -> Option<&'v Issuance> {
    let spec = view.spec();
    let is_told_elsewhere = spec.ca_secret_name.is_some() || spec.client_ca.is_some();
    view.seen.root_certificate.as_ref().filter(|_| !is_told_elsewhere)
}
