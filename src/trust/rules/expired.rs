//! `expired`: an expired leaf or CA.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::{Observation, Rule, Severity};
use crate::trust::Certificate;
use crate::trust::bundle::BundleEntry;
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;

/// RFC 5280 section 4.1.2.5. Envoy serves an expired leaf, and its clients refuse it; it refuses the clients of an expired
/// CA, but not those of other CAs in the bundle (measured).
pub(super) const RULE: Rule = Rule {
    id: "expired",
    severity: Severity::Deny,
    summary: "an expired leaf or intermediate, or a bundle without a valid CA; an expired CA among valid ones warns",
    remedy: "renew the leaf; remove an expired CA from the bundle once its successor is in it",
    source: "RFC 5280 section 4.1.2.5; Envoy, measured",
    example: "tls.crt: the leaf CN=shop.example.com expired at 2025-01-01T00:00:00Z. expected a valid one: every client refuses \
              it; renew it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let mut seen = Vec::new();
    let peer = context.usage.reader.peer();
    if let Some(ca) = context.loaded_ca() {
        let valid = valid(ca, context.now);
        let any_valid = !valid.is_empty();
        for entry in ca.bundle.entries.iter().filter(|e| e.certificate.is_expired(context.now)) {
            let (subject, end) = (brief(&entry.certificate.subject), entry.certificate.not_after);
            let effect = if let Some(renewal) = valid.get(&identity(&entry.certificate)) {
                format!("expected only its renewal on line {}; remove it", renewal.line)
            } else if any_valid {
                format!("expected valid CAs only: its {peer}s are refused; remove it")
            } else {
                format!("expected at least one valid CA: every {peer} is refused; add the renewed CA")
            };
            let message = format!("{} line {}: {subject} expired at {end}. {effect}", ca.key, entry.line);
            let fingerprint = entry.certificate.fingerprint.as_str();
            seen.push(Observation::new(ca.field(), fingerprint, message).only_warns(any_valid));
        }
    }
    let Some((chain, leaf)) = context.served() else { return seen };
    if leaf.is_expired(context.now) {
        let message = format!(
            "{}: the {} {} expired at {}. expected a valid one: every {peer} refuses it; renew it",
            chain.key,
            context.usage.kind.first_certificate(),
            brief(&leaf.subject),
            leaf.not_after,
        );
        seen.push(Observation::new(chain.field(), leaf.fingerprint.as_str(), message));
    }
    seen.extend(intermediates(chain, context.now));
    seen
}

/// What makes two certificates those of one CA: subject and key.
type Identity<'c> = (&'c [u8], &'c [u8]);

pub(super) fn identity(certificate: &Certificate) -> Identity<'_> {
    (&certificate.subject_der, &certificate.public_key)
}

/// The valid CAs of a bundle, of each the certificate that is valid for the longest time. A map, since a hostile bundle has thousands.
pub(super) fn valid(ca: &Text, now: Timestamp) -> HashMap<Identity<'_>, &BundleEntry> {
    let mut valid: HashMap<_, &BundleEntry> = HashMap::new();
    for entry in ca.bundle.entries.iter().filter(|entry| entry.certificate.is_valid_at(now)) {
        let longest = valid.entry(identity(&entry.certificate)).or_insert(entry);
        if longest.certificate.not_after < entry.certificate.not_after {
            *longest = entry;
        }
    }
    valid
}

/// Not a root: clients ignore one at the end of a chain.
pub(super) fn is_intermediate(certificate: &Certificate) -> bool {
    certificate.subject_der != certificate.issuer_der
}

fn intermediates(chain: &Text, now: Timestamp) -> impl Iterator<Item = Observation> {
    let others = chain.bundle.entries.iter().skip(1);
    let valid = others.clone().filter(|entry| entry.certificate.is_valid_at(now));
    // By name, since a hostile chain has thousands.
    let valid: HashSet<_> = valid.map(|entry| entry.certificate.subject_der.as_slice()).collect();
    let above = others.filter(|entry| is_intermediate(&entry.certificate));
    above.filter(move |entry| entry.certificate.is_expired(now)).map(move |entry| {
        let certificate = &entry.certificate;
        let is_renewed = valid.contains(certificate.subject_der.as_slice());
        let effect = if is_renewed {
            "expected only its renewal, which the chain has, too; remove this one"
        } else {
            "expected a valid one: clients that trust only the root refuse the chain; replace it with its renewal"
        };
        let message = format!(
            "{} line {}: the intermediate {} expired at {}. {effect}",
            chain.key,
            entry.line,
            brief(&certificate.subject),
            certificate.not_after,
        );
        Observation::new(chain.field(), certificate.fingerprint.as_str(), message).only_warns(is_renewed)
    })
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, ca_between, findings, now, secret, verdicts};
    use crate::trust::{SecretUsage, Severity, Verdict, judge, judge_update};

    #[test]
    fn rejects_from_the_second_of_not_after_on() {
        let text = ca("one").pem();
        let end = crate::trust::certificates_under(&secret(&[("ca.crt", &text)]), "ca.crt")[0].not_after;
        let judged = |at| judge(&secret(&[("ca.crt", &text)]), SecretUsage::default(), at);
        // `expiring` warns.
        assert_eq!(Verdict::of(&judged(end - jiff::SignedDuration::from_secs(1))), Verdict::Warn);
        assert_eq!(Verdict::of(&judged(end)), Verdict::Deny);
    }

    #[test]
    fn warns_of_an_expired_ca_among_valid_ones() {
        let text = format!("{}{}", ca("new").pem(), ca_between("old", 2020, 2025).pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("expired", Severity::Warn)]);
        assert!(found[0].message.contains("CN=old expired at 2025-01-01T00:00:00Z"), "{}", found[0].message);
    }

    #[test]
    fn rejects_a_bundle_of_expired_cas() {
        let text = format!("{}{}", ca_between("a", 2020, 2025).pem(), ca_between("b", 2020, 2026).pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("expired", Severity::Deny); 2]);
    }

    #[test]
    fn rejects_an_expired_leaf() {
        let leaf = ca("one").leaf_between("a", 2020, 2025);
        assert_eq!(verdicts(&secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])), ["expired"]);
    }

    #[test]
    fn rejects_an_expired_intermediate() {
        let root = ca("root");
        let old = root.intermediate("sub", |params| params.not_after = rcgen::date_time_ymd(2029, 6, 1));
        let leaf = old.leaf("a");
        let found = |chain: String| {
            let found = findings(&secret(&[("tls.crt", &chain), ("tls.key", &leaf.key_pem())]));
            found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>()
        };
        assert_eq!(found(leaf.pem() + &old.pem()), [("expired", Severity::Deny)]);
        let renewed = root.cross(&old.renewed(2029, 2040));
        assert_eq!(found(leaf.pem() + &renewed), []);
        assert_eq!(found(leaf.pem() + &renewed + &old.pem()), [("expired", Severity::Warn)]);
    }

    #[test]
    fn rejects_the_removal_of_the_only_valid_ca() {
        let (old, new) = (ca_between("old", 2020, 2025).pem(), ca("new").pem());
        let both = secret(&[("ca.crt", &format!("{new}{old}"))]);
        let found = judge_update(&both, &secret(&[("ca.crt", &old)]), SecretUsage::default(), now());
        assert_eq!(Verdict::of(&found), Verdict::Deny, "the old object only warned");
    }
}
