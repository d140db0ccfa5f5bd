//! `expiring`: a CA or leaf that expires before a rotation can finish.

use jiff::{SignedDuration, Timestamp};

use super::expired::{identity, is_intermediate, valid};
use super::{Observation, Rule, Severity};
use crate::trust::Certificate;
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// 30 days, or a quarter of a shorter lifetime. cert-manager renews when a third is left, so this finding means that a renewal is
/// overdue.
const LEFT: SignedDuration = SignedDuration::from_hours(30 * 24);

pub(super) const RULE: Rule = Rule {
    id: "expiring",
    severity: Severity::Warn,
    summary: "a CA, leaf or intermediate with less than 30 days left, or less than a quarter of a shorter lifetime",
    remedy: "renew it now: add the new CA first, renew the leaves, then remove the old CA",
    source: "a rotation takes time: cert-manager renews when a third of the lifetime is left",
    example: "ca.crt line 1: CN=root expires at 2030-01-20T00:00:00Z. expected 30 days, or a quarter of its lifetime, to be left; add its \
              successor now and renew its certificates, unless that is done",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let mut seen = Vec::new();
    let cas = context.ca.into_iter().flat_map(|ca| ca.bundle.entries.iter().map(move |entry| (ca, entry)));
    // With its renewal it has nothing left to do; `superseded` says so.
    let valid = context.loaded_ca().map(|ca| valid(ca, context.now)).unwrap_or_default();
    let is_renewed = |certificate: &Certificate| {
        valid.get(&identity(certificate)).is_some_and(|longest| longest.certificate.not_after > certificate.not_after)
    };
    let served =
        context.pair.into_iter().flat_map(|pair| pair.chain.bundle.entries.iter().map(move |e| (&pair.chain, e)));
    let leaf_and_intermediates = served.enumerate().filter(|(at, (_, e))| *at == 0 || is_intermediate(&e.certificate));
    for (text, entry) in
        cas.chain(leaf_and_intermediates.map(|(_, served)| served)).filter(|(text, _)| text.is_loaded())
    {
        let certificate = &entry.certificate;
        let is_valid = certificate.is_valid_at(context.now);
        let is_anchor = context.ca.is_some_and(|ca| ca.key == text.key);
        if is_valid
            && ends_soon(certificate.not_before, certificate.not_after, context.now)
            && !(is_anchor && is_renewed(certificate))
        {
            let remedy = match is_anchor {
                true => "add its successor now and renew its certificates, unless that is done",
                false => "renew it now",
            };
            let message = format!(
                "{} line {}: {} expires at {}. expected 30 days, or a quarter of its lifetime, to be left; {remedy}",
                text.key,
                entry.line,
                brief(&certificate.subject),
                certificate.not_after,
            );
            seen.push(Observation::new(text.field(), certificate.fingerprint.as_str(), message));
        }
    }
    seen
}

/// Whether too little of a lifetime is left to issue and distribute a successor.
pub(super) fn ends_soon(from: Timestamp, to: Timestamp, now: Timestamp) -> bool {
    to.duration_since(now) < LEFT.min(to.duration_since(from) / 4)
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, certificates, now, secret};
    use crate::trust::{SecretUsage, judge};
    use jiff::SignedDuration;

    fn found(text: &str, days_before_the_end: i64) -> Vec<&'static str> {
        let end = certificates(text)[0].not_after;
        let at = end - SignedDuration::from_hours(24 * days_before_the_end);
        judge(&secret(&[("ca.crt", text)]), SecretUsage::default(), at).iter().map(|f| f.rule).collect()
    }

    #[test]
    fn accepts_a_ca_with_enough_time_left() {
        assert_eq!(found(&ca("one").pem(), 31), Vec::<&str>::new());
    }

    #[test]
    fn warns_of_a_ca_that_expires_soon() {
        assert_eq!(found(&ca("one").pem(), 29), ["expiring"]);
    }

    #[test]
    fn accepts_a_short_lifetime() {
        let after = |hours| now() + SignedDuration::from_hours(hours);
        assert!(!super::ends_soon(now(), after(24), after(17)));
        assert!(super::ends_soon(now(), after(24), after(19)));
    }
}
