//! `superseded`: an older certificate of a CA that has been renewed.

use super::{Observation, Rule, Severity};
use crate::trust::duplicate_subjects::{Order, SameSubject};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Same subject, key and extensions: the newer one verifies what the older one does (RFC 5280 section 6.1), unless a certificate names the serial
/// number of the older one as its issuer (section 4.2.1.1, `keyid,issuer:always` of openssl): Envoy then takes no other (measured).
pub(super) const RULE: Rule = Rule {
    id: "superseded",
    severity: Severity::Warn,
    summary: "an older certificate of a CA whose renewal precedes it",
    remedy: "remove the older certificate once no client certificate names its serial number; few do",
    source: "RFC 5280 sections 6.1 and 4.2.1.1; Envoy, measured: it compares the serial number of an authority key identifier",
    example: "ca.crt line 11: CN=root is renewed on line 1, which verifies the same clients. expected the renewal only; remove this one \
              once no client certificate names its serial number (authorityKeyIdentifier)",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let older = context.same_subjects().into_iter().filter(|pair| {
        let (newer, older) = (&pair.first.certificate, &pair.second.certificate);
        // Rule `expired` reports a CA that has expired.
        pair.order != Order::Reversed
            && pair.are_alike()
            && newer.is_valid_at(context.now)
            && older.not_after < newer.not_after
            && !older.is_expired(context.now)
    });
    let observe = |pair: SameSubject<'_>| {
        let message = format!(
            "{} line {}: {} is renewed on line {}, which verifies the same clients. expected the renewal only; remove this one once no \
             client certificate names its serial number (authorityKeyIdentifier)",
            ca.key,
            pair.second.line,
            brief(&pair.second.certificate.subject),
            pair.first.line,
        );
        Observation::new(ca.field(), pair.identity(), message)
    };
    older.map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, ca_between, findings, secret, verdicts};

    #[test]
    fn accepts_a_ca_alone_and_next_to_another() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("{}{}", ca("one").pem(), ca("two").pem()))])), NOTHING);
    }

    /// Measured: Envoy refuses some clients once the older one is removed.
    #[test]
    fn accepts_a_renewal_that_verifies_other_clients() {
        let old = ca_between("root", 2026, 2035);
        let constrained = old.changed(|params| {
            params.not_after = rcgen::date_time_ymd(2040, 1, 1);
            params.name_constraints = Some(rcgen::NameConstraints {
                permitted_subtrees: Vec::new(),
                excluded_subtrees: vec![rcgen::GeneralSubtree::DnsName("example".to_owned())],
            });
        });
        let other_id = old.changed(|params| {
            params.not_after = rcgen::date_time_ymd(2040, 1, 1);
            params.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![1, 2, 3]);
        });
        for renewed in [constrained, other_id] {
            assert!(!verdicts(&secret(&[("ca.crt", &(renewed.pem() + &old.pem()))])).contains(&super::RULE.id));
        }
    }

    #[test]
    fn warns_of_the_older_one() {
        let old = ca_between("root", 2026, 2035);
        let text = format!("{}{}", old.renewed(2029, 2040).pem(), old.pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("superseded", Severity::Warn)]);
    }
}
