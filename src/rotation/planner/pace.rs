//! When a certificate is requested again: one pace for every request to an issuer.

use jiff::{SignedDuration, Timestamp};

use super::pause::{Pause, command_for};
use super::rules::{Rule, applies};
use super::snapshot::Issuance;

/// The shortest time between two requests for one certificate. It doubles while a request does not help.
const SHORTEST: SignedDuration = SignedDuration::from_secs(15);
/// The time after a change in which an issuer may still sign with what it has cached. After that its configuration is wrong.
const INFORMED: SignedDuration = SignedDuration::from_secs(10);
/// The time in which an issuer answers. After that a person has to act.
const ANSWERED: SignedDuration = SignedDuration::from_mins(2);
/// The time after which a request without an answer makes room for others.
const MAKES_ROOM: SignedDuration = SignedDuration::from_secs(30);
/// cert-manager's backoff after an issuance that failed: an hour, doubled by each further failure, at most 32 hours
/// (`shouldBackoffReissuingOnFailure`, `pkg/controller/certificates/trigger`). A requested issuance would not wait for it.
const AFTER_FAILURE: SignedDuration = SignedDuration::from_hours(1);
const DOUBLED: u32 = 5;

/// Why a certificate is not requested now although it is needed. `changed`: since when its issuer should sign what is needed. `deadline`: when it
/// is needed at the latest, for which it is requested more often.
pub(super) fn pause(
    certificate: &Issuance,
    changed: Timestamp,
    deadline: impl FnOnce() -> Option<Timestamp>,
    now: Timestamp,
) -> Option<Pause> {
    let Issuance { name, issuer, .. } = certificate;
    if is_stuck(certificate, now) {
        let since = certificate.issuing.unwrap_or(now);
        let reason = format!(
            "Certificate {name}: its issuer has not answered since {since}. Check that the Issuer of its issuerRef exists and works: {}",
            describe(name)
        );
        return Some(Pause::for_action(reason));
    }
    if certificate.is_issuing() || !applies(Rule::Pace) {
        return None;
    }
    let of_failure = certificate.failed.map(|at| (at, backoff(certificate)));
    let helped = certificate.issued.filter(|issued| *issued >= changed);
    let of_result = helped.map(|issued| (issued, issued.duration_since(changed).max(SHORTEST)));
    let (last, wait) = of_failure.or(of_result)?;
    let after = |wait| last.saturating_add(wait).unwrap_or(Timestamp::MAX);
    if now >= after(wait) {
        return None;
    }
    // More often before the deadline; afterwards with growing intervals again.
    let until_end = deadline().map(|end| match end.duration_since(last) {
        ahead if ahead.is_positive() => (ahead / 4).max(ANSWERED),
        over => over.abs().max(ANSWERED),
    });
    let next = after(until_end.map_or(wait, |most| wait.min(most)));
    if now >= next {
        return None;
    }
    let reason = match of_failure {
        Some((at, _)) => format!(
            "Certificate {name}: its issuance failed at {at}, and is requested again at {next}. Correct what its CertificateRequest reports: {}",
            describe(name)
        ),
        None => format!(
            "Certificate {name} was reissued at {last}, and does not have the new CA. If this lasts, let its issuerRef name the Issuer of the new \
             CA (now {issuer}). It is requested again at {next}"
        ),
    };
    let is_informed = |issued: Timestamp| issued.duration_since(changed) >= INFORMED;
    let needs_action = of_failure.is_some() || helped.is_some_and(is_informed);
    Some(Pause { until: Some(next), reason, needs_action })
}

/// When a certificate may be requested again after its issuance failed.
pub(super) fn after_failure(certificate: &Issuance) -> Option<Timestamp> {
    let at = certificate.failed?;
    Some(at.saturating_add(backoff(certificate)).unwrap_or(Timestamp::MAX))
}

fn backoff(certificate: &Issuance) -> SignedDuration {
    AFTER_FAILURE * (1 << certificate.failures.saturating_sub(1).min(DOUBLED))
}

/// Whether a certificate is being issued, and its issuer does not answer.
fn is_stuck(certificate: &Issuance, now: Timestamp) -> bool {
    has_waited(certificate, ANSWERED, now)
}

fn has_waited(certificate: &Issuance, time: SignedDuration, now: Timestamp) -> bool {
    let waited = certificate.issuing.map(|since| now.duration_since(since));
    waited.is_some_and(|waited| waited >= time) && applies(Rule::StuckRequestsDoNotDelayOthers)
}

/// Whether a certificate is being issued, and its issuer may answer soon.
pub(super) fn is_in_progress(certificate: &Issuance, now: Timestamp) -> bool {
    certificate.is_issuing() && !has_waited(certificate, MAKES_ROOM, now)
}

fn describe(name: &str) -> String {
    command_for("kubectl describe certificate", name)
}
