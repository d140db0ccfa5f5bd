//! `expired-beside-renewed`: a CA that is not valid, before a valid one with the same subject.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{Observation, Rule, Severity};
use crate::trust::bundle::BundleEntry;
use crate::trust::duplicate_subjects::{Order, SameSubject};
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;

/// Measured: BoringSSL takes one CA that fits by subject and key identifier, and checks its dates only then. Envoy 1.38 and newer take the
/// first: with the expired CA first, every client of its renewal is refused; with the renewal first, they are accepted. Envoy 1.37 takes
/// the last of two ([`crate::trust::Proxy::keeps_order`]).
pub(super) const RULE: Rule = Rule {
    id: "expired-beside-renewed",
    severity: Severity::Deny,
    summary: "a CA that is not valid, before a valid one with the same subject; ahead of time, and for old proxies only, it warns",
    remedy: "remove the CA that is not valid; where every proxy is Envoy 1.38 or newer, it may follow the valid one",
    source: "Envoy 1.37 to 1.40, measured: BoringSSL chooses by subject and key identifier, and checks dates later",
    example: "ca.crt line 1: CN=root expired at 2029-06-01T00:00:00Z, and line 11 has the same subject. expected the valid CA \
              first: the proxy takes the first, and refuses every client of the other; remove line 1",
    warns_ahead: true,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let (pairs, now) = (context.same_subjects(), context.now);
    // BoringSSL takes a valid CA with the same key that precedes both.
    let mut guarded: HashMap<usize, usize> = HashMap::new();
    for pair in pairs
        .iter()
        .filter(|pair| pair.order == Order::Kept && pair.first_replaces_second() && is_valid(pair.first, now))
    {
        let line = guarded.entry(pair.second.line).or_insert(pair.first.line);
        *line = pair.first.line.min(*line);
    }
    let is_guarded = |pair: &SameSubject<'_>| {
        pair.order != Order::Reversed && guarded.get(&pair.second.line).is_some_and(|line| *line < pair.first.line)
    };
    let may_hide = |pair: &&SameSubject<'_>| pair.has_one_key() || !pair.have_different_key_ids();
    // A CA that may not sign has no clients to lose.
    let pairs = pairs.iter().filter(|pair| pair.second.certificate.may_sign && !is_guarded(pair)).filter(may_hide);
    pairs.filter_map(|pair| observe(context, ca, pair)).collect()
}

fn is_valid(entry: &BundleEntry, now: Timestamp) -> bool {
    entry.certificate.is_valid_at(now)
}

fn observe(context: &RuleContext<'_>, ca: &Text, pair: &SameSubject<'_>) -> Option<Observation> {
    let now = context.now;
    if is_valid(pair.first, now) || !is_valid(pair.second, now) {
        return None;
    }
    let first = &pair.first.certificate;
    let is_expired = first.is_expired(now);
    let state = if is_expired {
        format!("expired at {}", first.not_after)
    } else {
        format!("is not valid before {}", first.not_before)
    };
    let (line, other) = (pair.first.line, pair.second.line);
    let expected = match pair.order {
        Order::Kept => "the valid CA first: the proxy takes the first",
        Order::Any => "only the valid CA: from 24 entries on the proxy may take either",
        Order::Reversed => "only the valid CA: Envoy before 1.38 may take either",
    };
    let is_renewal = pair.order == Order::Kept && pair.are_alike();
    let remedy = match context.is_ahead() {
        true if is_renewal && context.is_valid_today(&pair.second.certificate) => {
            format!("put line {other} before line {line}")
        }
        true => format!("remove line {line} at that time"),
        false if is_expired => format!("remove line {line}"),
        false => format!("remove line {line} until then"),
    };
    let message = format!(
        "{} line {line}: {} {state}, and line {other} has the same subject. expected {expected}, and refuses every client of the \
         other; {remedy}",
        ca.key,
        brief(&first.subject),
    );
    Some(Observation::new(ca.field(), pair.identity(), message).only_warns(pair.order == Order::Reversed))
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{ca, ca_between, findings, findings_in_order, secret};

    fn found(text: &str) -> Vec<(Severity, String)> {
        let found = findings_in_order(&secret(&[("ca.crt", text)])).into_iter().filter(|f| f.rule == super::RULE.id);
        found.map(|f| (f.severity, f.message)).collect()
    }

    #[test]
    fn accepts_the_renewal_first() {
        let old = ca_between("root", 2020, 2025);
        assert_eq!(found(&format!("{}{}", old.renewed(2024, 2040).pem(), old.pem())), []);
    }

    /// Measured: Envoy 1.37 takes the last of two, and later ones the first.
    #[test]
    fn warns_of_the_renewal_first_where_a_proxy_before_1_38_may_read_it() {
        let old = ca_between("root", 2020, 2025);
        let found = findings(&secret(&[("ca.crt", &(old.renewed(2024, 2040).pem() + &old.pem()))]));
        let found: Vec<_> = found.iter().filter(|f| f.rule == super::RULE.id).collect();
        assert_eq!(found.iter().map(|f| f.severity).collect::<Vec<_>>(), [Severity::Warn]);
        assert!(found[0].message.contains("Envoy before 1.38 may take either"), "{}", found[0].message);
    }

    #[test]
    fn accepts_an_expired_ca_of_another_name() {
        assert_eq!(found(&format!("{}{}", ca_between("old", 2020, 2025).pem(), ca("new").pem())), []);
    }

    /// Found by comparing with Envoy: it takes the first CA and never tries the one that is not valid.
    #[test]
    fn accepts_a_valid_one_before_both() {
        let (now, next) = (ca("root"), ca("root"));
        let denied = |cas: [String; 3]| found(&cas.concat()).iter().filter(|f| f.0 == Severity::Deny).count();
        assert_eq!(denied([now.pem(), now.renewed(2032, 2050).pem(), now.renewed(2028, 2041).pem()]), 0);
        let other = [next.pem(), now.renewed(2032, 2050).pem(), now.pem()];
        assert_eq!(denied(other), 1, "another key does not help");
    }

    /// Found by comparing with Envoy.
    #[test]
    fn accepts_an_expired_ca_before_one_that_may_not_sign() {
        let old = ca_between("root", 2020, 2025);
        let mute = old.changed(|params| {
            params.not_after = rcgen::date_time_ymd(2040, 1, 1);
            params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        });
        assert_eq!(found(&format!("{}{}", old.pem(), mute.pem())), []);
    }

    #[test]
    fn rejects_the_expired_ca_first() {
        let old = ca_between("root", 2020, 2025);
        let found = found(&format!("{}{}", old.pem(), old.renewed(2024, 2040).pem()));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, Severity::Deny);
        assert!(found[0].1.contains("CN=root expired at 2025-01-01T00:00:00Z"), "{}", found[0].1);
    }

    #[test]
    fn rejects_a_renewal_that_is_not_valid_yet_first() {
        let old = ca("root");
        let found = found(&format!("{}{}", old.renewed(2031, 2050).pem(), old.pem()));
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Deny]);
    }

    #[test]
    fn warns_of_a_ca_that_will_expire_first() {
        let old = ca_between("root", 2026, 2031);
        let found = found(&format!("{}{}", old.pem(), old.renewed(2029, 2040).pem()));
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Warn]);
        assert!(found[0].1.contains("from 2031-01-01T00:00:00Z on"), "{}", found[0].1);
    }

    #[test]
    fn rejects_either_order_in_a_long_bundle() {
        let old = ca_between("root", 2020, 2025);
        let others: String = (0..22).map(|n| ca(&format!("ca {n}")).pem()).collect();
        let found = found(&format!("{}{}{others}", old.renewed(2024, 2040).pem(), old.pem()));
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Deny]);
    }
}
