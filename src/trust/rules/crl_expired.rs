//! `crl-expired`: a revocation list past its next update.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::expiring::ends_soon;
use super::{Observation, Rule, Severity};
use crate::trust::chain::Refused;
use crate::trust::name::brief;
use crate::trust::revocation::Revocation;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Measured: Envoy refuses every client of a CA whose list is past nextUpdate, or not valid yet. The warning comes as
/// late as that of `expiring`, since lists are valid for days and are replaced often.
pub(super) const RULE: Rule = Rule {
    id: "crl-expired",
    severity: Severity::Deny,
    summary: "a revocation list that is past its next update or not valid yet; one that expires soon warns",
    remedy: "publish a new list and replace the old one with it; schedule this well before the next update",
    source: "RFC 5280 section 5.1.2.5; Envoy, measured: X509_V_ERR_CRL_HAS_EXPIRED",
    example: "ca.crl: the revocation list of CN=root expired at 2029-01-01T00:00:00Z. expected a valid list: every client of that \
              CA is refused; publish a new list",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some((ca, revocation)) = context.loaded_ca().zip(context.revocation()) else { return Vec::new() };
    let outdated = revocation.blocked.iter().filter_map(|(_, refused)| match refused {
        Refused::CrlOutdated { issuer } => Some(issuer.as_str()),
        _ => None,
    });
    let outdated: BTreeSet<_> = outdated.collect();
    let used = ca.bundle.entries.iter().map(|entry| entry.certificate.subject.as_str());
    let others: BTreeSet<_> = used.filter(|issuer| !outdated.contains(issuer)).collect();
    let validities = validities(revocation);
    let validity = |issuer: &str| validities.get(issuer).copied();
    let now = outdated.iter().map(|issuer| ended(revocation.key, issuer, validity(issuer), context.now));
    let ahead = |issuer: &&str| ending(revocation.key, issuer, validity(issuer)?, context.now);
    now.chain(others.iter().filter_map(ahead)).collect()
}

/// Start and end of a list's validity.
type Validity = (Timestamp, Option<Timestamp>);

/// The latest validity of each CA's lists, by its name: a hostile bundle has thousands of both.
fn validities(revocation: &Revocation) -> HashMap<&str, Validity> {
    let mut latest = HashMap::new();
    for list in &revocation.lists {
        let validity = list.validity();
        let known = latest.entry(list.issuer()).or_insert(validity);
        *known = std::cmp::max_by_key(*known, validity, |(from, to)| (to.is_none(), *to, *from));
    }
    latest
}

fn ended(key: &'static str, issuer: &str, validity: Option<Validity>, now: Timestamp) -> Observation {
    let of = brief(issuer);
    let when = match validity {
        Some((from, _)) if from > now => format!("is not valid before {from}"),
        Some((_, Some(to))) => format!("expired at {to}"),
        _ => "is not valid".to_owned(),
    };
    let message = format!(
        "{key}: the revocation list of {of} {when}. expected a valid list: every client of that CA is refused; publish a new list"
    );
    Observation::new(field(key), issuer, message)
}

fn ending(key: &'static str, issuer: &str, (from, to): Validity, now: Timestamp) -> Option<Observation> {
    let to = to.filter(|to| ends_soon(from, *to, now))?;
    let message = format!(
        "{key}: the revocation list of {} expires at {to}. expected a later date: from then on every client of that CA is refused; \
         publish a new list before",
        brief(issuer)
    );
    Some(Observation::new(field(key), issuer, message).only_warns(true))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use crate::trust::fixtures::{ca, findings, now, secret};
    use crate::trust::{SecretUsage, Severity, judge};

    fn found(from: i32, to: i32) -> Vec<(&'static str, Severity)> {
        let one = ca("one");
        let found = findings(&secret(&[("ca.crt", &one.pem()), ("ca.crl", &one.crl_pem(from, to, &[]))]));
        found.iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_a_list_that_lasts_and_a_new_one_next_to_the_old() {
        assert_eq!(found(2029, 2031), []);
        let one = ca("one");
        let lists = one.crl_pem(2028, 2029, &[]) + &one.crl_pem(2029, 2031, &[]);
        assert_eq!(findings(&secret(&[("ca.crt", &one.pem()), ("ca.crl", &lists)])), []);
    }

    #[test]
    fn rejects_a_list_that_is_expired_or_not_valid_yet() {
        assert_eq!(found(2028, 2029), [("crl-expired", Severity::Deny)]);
        assert_eq!(found(2031, 2032), [("crl-expired", Severity::Deny)]);
    }

    #[test]
    fn rejects_an_expired_list_in_the_bundle() {
        let one = ca("one");
        let found = findings(&secret(&[("ca.crt", &(one.pem() + &one.crl_pem(2028, 2029, &[])))]));
        assert_eq!(
            found.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
            [("crl-expired", "data[ca.crt]")]
        );
    }

    #[test]
    fn warns_of_a_list_that_expires_soon() {
        let one = ca("one");
        let judged = |days_before: i64| {
            let text = secret(&[("ca.crt", &one.pem()), ("ca.crl", &one.crl_pem(2029, 2030, &[]))]);
            let found = judge(&text, SecretUsage::default(), now() - SignedDuration::from_hours(24 * days_before));
            found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>()
        };
        assert_eq!(judged(31), []);
        assert_eq!(judged(29), [("crl-expired", Severity::Warn)]);
        assert_eq!(judged(0), [("crl-expired", Severity::Deny)]);
    }
}
