//! New client certificates that admission rejects because no Secret has their CA yet.
//!
//! An issuer whose key is not in the cluster (Vault, a cloud provider's private CA) changes its CA unannounced. The first renewed client
//! certificate shows it. Admission rejects that write, because gateways would reject the certificate, and cert-manager retries it with a backoff
//! of at most 30 seconds (`DefaultCertificateRateLimiter`). The serving certificate of the same issuer is then reissued: its `ca.crt` brings the new
//! CA into the source Secret, and the rotation starts.

use jiff::{SignedDuration, Timestamp};

use super::snapshot::{ClientState, Issuance, Pending};
use super::steps::Decided;
use super::view::{View, admits, verifies};
use super::{Step, wait};
use crate::api::StepName;
use crate::rotation::name_list::few;
use crate::trust::Certificate;

/// cert-manager's first backoff after an issue that failed, which a requested issue does not wait for.
const AFTER_FAILURE: SignedDuration = SignedDuration::from_hours(1);

/// Gets such a CA into the source Secret, or says who can add it.
pub(super) fn learn(view: &View<'_>, decided: &mut Decided) {
    // One that has expired admits nobody, and its successor may have the same key.
    let known = view.journal.client_issuers.iter().map(|authority| authority.certificate.clone());
    let known: Vec<_> = known.filter(|ca| ca.not_after >= view.now).collect();
    let is_unknown = |pending: &&Pending| {
        let is_live = pending.chain.first().is_some_and(|leaf| leaf.not_after >= view.now) && pending.at <= view.now;
        let is_known = || known.iter().any(|ca| is_issued_by(ca, &pending.chain, view.now));
        is_live && !admits(&known, &pending.chain, view.now) && !is_known()
    };
    let clients = view.seen.clients.iter().filter(|_| !view.journal.client_issuers.is_empty());
    let unknown = clients.filter_map(|client| Some((client, client.pending.as_ref().filter(is_unknown)?)));
    let own = shared(view);
    let is_of_own = |client: &ClientState| {
        own.is_some_and(|own| client.certificate.as_ref().is_some_and(|certificate| certificate.issuer == own.issuer))
    };
    let (learnable, others): (Vec<_>, Vec<_>) = unknown.partition(|(client, _)| is_of_own(client));
    if let Some(rejected) = rejected(&others) {
        let (_, source) = view.seen.client_source();
        let what = format!("{rejected}. If this CA is yours, append its certificate to ca.crt of Secret {source}");
        decided.waits.push(wait(StepName::ExpandTrust, None, what));
    }
    if let (Some(certificate), Some(rejected)) = (own, rejected(&learnable)) {
        let newest = learnable.iter().map(|(_, pending)| pending.at).max().unwrap_or(Timestamp::MIN);
        match refusal(view, certificate, newest) {
            Some((until, why)) => decided.waits.push(wait(StepName::ExpandTrust, until, format!("{rejected}. {why}"))),
            None => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
        }
    }
}

/// Whether a CA issued a chain, valid or not, and for whatever use.
fn is_issued_by(ca: &Certificate, chain: &[Certificate], now: Timestamp) -> bool {
    let Some(last) = chain.last() else { return true };
    let has_its_key = match (&last.authority_key_id, &ca.subject_key_id) {
        (Some(key), Some(of_ca)) => key == of_ca,
        _ => verifies(std::slice::from_ref(ca), chain, now),
    };
    last == ca || last.issuer == ca.subject && has_its_key
}

/// The certificates that admission rejects; `None` for none.
fn rejected(waiting: &[(&ClientState, &Pending)]) -> Option<String> {
    let names = few(waiting.iter().map(|(client, _)| client.name.clone()))?;
    let ca = waiting.first()?.1.chain.last()?.issuer.clone();
    Some(format!("admission rejects new certificates of {names}: they are signed by {ca}, which gateways do not trust"))
}

/// Why the serving Certificate is not reissued now to obtain the CA, and until when. A tenant may have as many certificates issued as it likes: none
/// of them makes it more often than a rotation could take, nor right after an issue that failed.
fn refusal(view: &View<'_>, certificate: &Issuance, newest: Timestamp) -> Option<(Option<Timestamp>, String)> {
    let (name, settle) = (&certificate.name, &view.policy().propagation_delays);
    let pace = settle.gateways.duration().saturating_add(settle.clients.duration());
    let after = |at: Option<Timestamp>, pace| at.map(|at| at.saturating_add(pace).unwrap_or(Timestamp::MAX));
    let next = after(certificate.issued, pace).max(after(certificate.failed, pace.max(AFTER_FAILURE)));
    let next = next.filter(|next| view.now < *next);
    let source = view.seen.entry.source_name();
    if certificate.is_issuing {
        return Some((None, format!("Certificate {name} of the same issuer is being reissued, to obtain the CA")));
    }
    if certificate.issued.is_some_and(|issued| issued > newest) {
        let what = "was issued later, by another CA. Configure the issuer to use one CA, or append the other";
        return Some((None, format!("Certificate {name} {what} to ca.crt of Secret {source}")));
    }
    if let Some(next) = next {
        return Some((
            Some(next),
            format!("Certificate {name} of the same issuer is reissued at {next}, to obtain the CA"),
        ));
    }
    view.reissue_pause(Some(certificate), None).map(|pause| (pause.until, pause.reason))
}

/// The Certificate of the source Secret, where that Secret alone says which CA signs clients.
fn shared<'v>(view: &View<'v>) -> Option<&'v Issuance> {
    let entry = view.seen.entry;
    let is_told_elsewhere = entry.ca_name().is_some() || entry.own_client_ca_name().is_some();
    view.seen.root_certificate.as_ref().filter(|_| !is_told_elsewhere)
}
