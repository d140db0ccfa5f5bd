//! Certificates that wait at admission for a CA which no Secret shows.
//!
//! An issuer without a local key (Vault, a cloud's private CA) changes its CA without a word. The first to show it is a client's
//! renewal: admission refuses it, since gateways would, and cert-manager tries again every 30 seconds. The gateways' own Certificate of the
//! same issuer learns the CA with its next issue, which is asked for then; what it writes into the source Secret begins the rotation.

use jiff::Timestamp;

use super::seen::{Issuance, Pending};
use super::steps::Decided;
use super::view::{View, admits};
use super::{Step, wait};
use crate::api::StepName;
use crate::rotation::name_list::few;

/// Has the source Secret learn of a CA that only a client's certificate shows, or says who can.
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
    let held = format!("certificates of {names} wait: they are signed by {ca}, which gateways do not trust");
    let hold = |until, what: String| wait(StepName::ExpandTrust, until, format!("{held}. {what}"));
    let issuer = first.certificate.as_ref().map(|certificate| &certificate.issuer);
    let Some(certificate) = shared(view).filter(|own| Some(&own.issuer) == issuer) else {
        let (_, source) = view.seen.client_source();
        decided.waits.push(hold(None, format!("Add that CA to Secret {source}, once you know that it is yours")));
        return;
    };
    let newest = waits.iter().map(|(_, pending)| pending.at).max().unwrap_or(Timestamp::MIN);
    let name = &certificate.name;
    if certificate.is_issuing {
        decided.waits.push(hold(None, format!("Certificate {name} is being issued by the same issuer")));
    } else if certificate.issued.is_some_and(|issued| issued > newest) {
        decided.waits.push(hold(
            None,
            format!("Certificate {name} was issued later, without that CA: have the issuer sign both by one CA, or add it to Secret {}", view.seen.entry.root_name()),
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
