//! Future findings: a Secret is judged now, and at every future date in it.
//!
//! A finding that time alone will cause is a warning with its date. Rules that require another order or other contents
//! warn at any time before, since that can be corrected today. The end of a certificate or revocation list is reported
//! when its renewal is due (`expiring`, `crl-expired`): a bundle that is valid for ten years has no finding.

use jiff::Timestamp;

use super::{JudgedSecret, RuleContext, Severity};
use crate::trust::chain::dates_after;
use crate::trust::duplicate_subjects::Order;
use crate::trust::limits::{SECRET_DATES, SECRET_STEPS};

/// The dates to judge at, the earliest first. Hostile bundles of thousands of CAs get fewer.
pub(super) fn dates(context: &RuleContext<'_>) -> Vec<Timestamp> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let pairs = context.same_subjects().into_iter().filter(|pair| pair.order != Order::Reversed).count();
    let steps = ca.bundle.entries.len() + pairs;
    let dates = dates_after(ca.bundle.entries.iter().map(|entry| &entry.certificate), context.now);
    dates.into_iter().take(SECRET_DATES.min(SECRET_STEPS / steps.max(1))).collect()
}

/// A future denial, as it is reported now.
pub(super) fn warning(mut judged: JudgedSecret, at: Timestamp) -> JudgedSecret {
    judged.finding.severity = Severity::Warn;
    judged.finding.message = format!("from {at} on: {}", judged.finding.message);
    judged
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{Authority, ca, ca_between, ca_with, findings, secret};

    fn found(cas: &[Authority]) -> Vec<(&'static str, Severity, String)> {
        let text: String = cas.iter().map(Authority::pem).collect();
        let found = findings(&secret(&[("ca.crt", &text)])).into_iter();
        found.map(|f| (f.rule, f.severity, f.message.split(" on: ").next().unwrap_or_default().to_owned())).collect()
    }

    #[test]
    fn accepts_a_ca_that_expires_in_ten_years() {
        assert_eq!(found(&[ca("one"), ca_between("two", 2026, 2035)]), []);
    }

    #[test]
    fn accepts_a_renewal_that_is_first() {
        let old = ca_between("root", 2026, 2031);
        let found = found(&[old.renewed(2029, 2040), old]);
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), ["superseded"]);
    }

    #[test]
    fn warns_of_a_gap_between_two_cas() {
        let found = found(&[ca_between("one", 2026, 2031), ca_between("two", 2032, 2040)]);
        let ahead: Vec<_> =
            found.iter().filter(|f| f.2.starts_with("from ")).map(|f| (f.0, f.1, f.2.as_str())).collect();
        assert_eq!(ahead, [("not-yet-valid", Severity::Warn, "from 2031-01-01T00:00:00Z")]);
    }

    #[test]
    fn warns_of_a_ca_that_becomes_ambiguous() {
        let next = |from| {
            ca_with("root", |params| {
                params.is_ca = rcgen::IsCa::NoCa;
                params.not_before = rcgen::date_time_ymd(from, 1, 1);
            })
        };
        // Two keys with one subject: once both are valid, their leaves cannot be distinguished.
        let found = found(&[next(2026), next(2032)]);
        let ahead: Vec<_> = found.iter().filter(|f| f.2.starts_with("from ")).map(|f| (f.0, f.2.as_str())).collect();
        assert_eq!(ahead, [("same-subject-ambiguity", "from 2032-01-01T00:00:00Z")]);
    }

    #[test]
    fn reports_each_future_finding_once_at_its_first_date() {
        let old = ca_between("root", 2026, 2031);
        let found = found(&[old.renewed(2026, 2031), old.renewed(2029, 2040), ca_between("x", 2026, 2033)]);
        let ahead: Vec<_> = found.iter().filter(|f| f.2.starts_with("from ")).map(|f| (f.0, f.2.as_str())).collect();
        assert_eq!(ahead, [("expired-beside-renewed", "from 2031-01-01T00:00:00Z")]);
    }
}
