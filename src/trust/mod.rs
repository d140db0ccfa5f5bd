//! Judges the content of a Secret as a proxy would load it. Pure: bytes and `now` in, findings out.
//!
//! ```text
//!  Secret ─► credential (keys in use) ─► pem ─► bundle (certificates) ─► ParsedSecret ─► RuleContext ─► rules ─► findings
//! ```

pub mod bundle;
#[cfg(test)]
pub(crate) mod ca_profiles;
mod carry_over;
pub mod certificate;
pub mod chain;
pub mod credential;
mod der;
mod duplicate_subjects;
pub(crate) mod equivalence;
mod finding;
mod fingerprint;
#[cfg(test)]
pub(crate) mod fixtures;
mod go;
mod leaf_requirements;
pub(crate) mod limits;
pub mod loadable;
pub mod malformed_pem;
pub(crate) mod name;
pub mod parsed_secret;
pub mod pem;
pub mod private_key;
pub mod proxy;
mod resemblance;
mod revocation;
mod rule_context;
pub mod rules;
mod secret;
mod secret_usage;
mod severities;
pub(crate) mod signature_verdict;
mod signers;
mod tls_consumer;

pub use carry_over::carry_over;
#[cfg(feature = "edge")]
pub(crate) use certificate::hex;
pub use certificate::{AltName, Certificate, CertificateError};
pub(crate) use finding::counted;
pub use finding::{Finding, Severity, Verdict};
pub use fingerprint::{anchors, certificates_under, content_hash, fingerprint_of, is_distrusted};
pub use parsed_secret::{Pair, ParsedSecret, Text};
pub use proxy::Proxy;
pub use resemblance::Resemblance;
pub(crate) use revocation::blocked_by_lists;
pub use rule_context::RuleContext;
pub use rules::{Observation, RULES, Rule};
pub(crate) use secret::{BASE64, decoded, field};
pub use secret::{CLIENT_LABEL, MANAGED_LABEL, Secret, SecretError};
pub use secret_usage::{GatewayUse, SecretUsage, UsageKind};
pub use severities::{FIXED, Level, PUBLISHED, Severities};
pub(crate) use signers::Signers;
pub use tls_consumer::TlsConsumer;

use jiff::Timestamp;

use rules::JudgedSecret;

/// Findings of one rule on one field that are reported one by one; the others are counted.
const REPORTED: usize = 5;

/// Judges a Secret at an instant.
pub fn judge(secret: &Secret, usage: SecretUsage<'_>, now: Timestamp) -> Vec<Finding> {
    judge_with(secret, usage, &Severities::default(), now)
}

/// Judges a Secret at an instant, with configured severities.
pub fn judge_with(secret: &Secret, usage: SecretUsage<'_>, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    judge_parsed(&ParsedSecret::new(secret, usage.reader), usage, severities, now)
}

/// Judges a Secret that may already be parsed.
pub fn judge_parsed(
    contents: &ParsedSecret<'_>,
    usage: SecretUsage<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    report(judged(RuleContext::new(contents, usage, now), severities))
}

fn judged(context: RuleContext<'_>, severities: &Severities) -> Vec<JudgedSecret> {
    rules::run(context).into_iter().filter_map(|judged| judged.with_severity(severities)).collect()
}

/// Judges the update of a Secret: a finding that `old` already had only warns, since rejecting the write would not fix it.
///
/// Both are judged at the same `now`: a finding that time alone has caused does not block a write, nor does one on another line than
/// before. A finding that was less severe in `old` keeps its new severity.
pub fn judge_update(old: &Secret, new: &Secret, usage: SecretUsage<'_>, now: Timestamp) -> Vec<Finding> {
    judge_update_with(old, new, usage, &Severities::default(), now)
}

/// Judges the update of a Secret, with configured severities. They apply to `old`, too: a rule that is set to deny only warns of findings
/// that `old` already had.
pub fn judge_update_with(
    old: &Secret,
    new: &Secret,
    usage: SecretUsage<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let [old, new] = [old, new].map(|secret| ParsedSecret::new(secret, usage.reader));
    judge_parsed_update(&old, &new, usage, severities, now)
}

/// Judges the update of a Secret. Both versions may already be parsed.
pub fn judge_parsed_update(
    old: &ParsedSecret<'_>,
    new: &ParsedSecret<'_>,
    usage: SecretUsage<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let mut judged_new = judged(RuleContext::new(new, usage, now).after(old), severities);
    if old.secret.data == new.secret.data {
        judged_new.iter_mut().for_each(|j| j.finding.severity = Severity::Warn);
    } else if judged_new.iter().any(|j| j.finding.severity == Severity::Deny) {
        let before = judged(RuleContext::new(old, usage, now), severities);
        JudgedSecret::lower(&mut judged_new, &before);
    }
    report(judged_new)
}

/// Judges the deletion of a Secret: what an update that empties it would take away, as warnings, since a Secret is deleted to get rid of it, or
/// to have it issued again.
pub fn judge_deletion(
    old: &ParsedSecret<'_>,
    usage: SecretUsage<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let empty = Secret::default();
    let contents = ParsedSecret::new(&empty, usage.reader);
    let judged = rules::run_on_deletion(&RuleContext::new(&contents, usage, now).after(old));
    report(judged.into_iter().filter_map(|judged| judged.with_severity(severities)).collect())
}

/// The first few findings of each rule, field and severity, and the number of the others.
fn report(judged: Vec<JudgedSecret>) -> Vec<Finding> {
    let mut reported: Vec<(Finding, usize, usize)> = Vec::new();
    for JudgedSecret { finding, .. } in judged {
        let alike = |f: &Finding| f.rule == finding.rule && f.field == finding.field && f.severity == finding.severity;
        // Findings of a rule are adjacent, and few per field are kept, so the search from the end is short.
        match reported.iter_mut().rev().find(|(f, ..)| alike(f)) {
            Some((_, count, more)) if *count == REPORTED => *more += 1,
            Some((_, count, _)) => {
                let count = *count + 1;
                reported.push((finding, count, 0));
            }
            None => reported.push((finding, 1, 0)),
        }
    }
    let more = |(mut finding, _, more): (Finding, usize, usize)| {
        if more > 0 {
            finding.message.push_str(&format!("; and {more} more like this"));
        }
        finding
    };
    reported.into_iter().map(more).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::fixtures::{ca, ca_between, now, secret};
    use super::*;

    fn update(old: &str, new: &str) -> Verdict {
        Verdict::of(&judge_update(
            &secret(&[("ca.crt", old)]),
            &secret(&[("ca.crt", new)]),
            SecretUsage::default(),
            now(),
        ))
    }

    #[test]
    fn an_update_that_changes_no_data_only_warns() {
        assert_eq!(update("broken", "broken"), Verdict::Warn);
        let required = SecretUsage { ca_required: true, ..SecretUsage::default() };
        assert_eq!(Verdict::of(&judge_update(&secret(&[]), &secret(&[]), required, now())), Verdict::Warn);
    }

    #[test]
    fn findings_that_the_old_secret_had_only_warn() {
        let (old, new) = (ca_between("old", 2020, 2025).pem(), ca("new").pem());
        assert_eq!(update(&old, &format!("# a comment\n{old}")), Verdict::Warn);
        assert_eq!(update(&old, &format!("{new}{old}")), Verdict::Warn);
        assert_eq!(update("broken", &new), Verdict::Allow);
    }

    #[test]
    fn rejects_new_findings() {
        let (one, two) = (ca_between("one", 2020, 2025).pem(), ca_between("two", 2020, 2025).pem());
        assert_eq!(update(&one, &format!("{one}{two}")), Verdict::Deny);
        assert_eq!(update("broken", "broken otherwise"), Verdict::Deny);
        assert_eq!(update(&one, ""), Verdict::Deny);
    }

    #[test]
    fn findings_of_a_raised_rule_that_the_old_secret_had_only_warn() {
        let (one, two, new) =
            (ca_between("one", 2020, 2025).pem(), ca_between("two", 2020, 2025).pem(), ca("new").pem());
        let raised: Severities = [("expired".to_owned(), Level::Deny)].into_iter().collect();
        let update = |old: &str, new: &str| {
            let (old, new) = (secret(&[("ca.crt", old)]), secret(&[("ca.crt", new)]));
            Verdict::of(&judge_update_with(&old, &new, SecretUsage::default(), &raised, now()))
        };
        assert_eq!(update(&new, &format!("{new}{one}")), Verdict::Deny, "it only warns by default");
        assert_eq!(update(&format!("{new}{one}"), &format!("{one}{new}")), Verdict::Warn);
        assert_eq!(update(&format!("{new}{one}"), &format!("{one}{new}{two}")), Verdict::Deny);
    }

    #[test]
    fn many_findings_of_a_rule_are_counted() {
        let text: String = (0..8).map(|n| ca_between(&format!("ca {n}"), 2020, 2025).pem()).collect();
        let found = judge(&secret(&[("ca.crt", &text)]), SecretUsage::default(), now());
        assert_eq!(found.len(), REPORTED);
        assert!(found[REPORTED - 1].message.ends_with("; and 3 more like this"), "{}", found[REPORTED - 1].message);
        assert!(!found[0].message.contains("more like this"));
    }

    /// Verifying lists costs signatures: many of one CA, one of many CAs, and a long one.
    #[test]
    fn judges_hostile_revocation_lists_within_time() {
        let (one, same) = (ca("one"), ca_between("one", 2027, 2039));
        let cas: String = (0..600).map(|n| one.renewed(2026, 2040 + n % 60).pem()).collect();
        let fill = |unit: &str| unit.repeat((1 << 20) / unit.len());
        let (list, other) = (one.crl_pem(2029, 2031, &[]), same.crl_pem(2029, 2031, &[]));
        let many: String = (0..600).map(|n| one.crl_pem(2029, 2031 + n % 60, &[])).collect();
        for (name, ca, crl) in [
            ("one list, many times", one.pem(), fill(&list)),
            ("many lists of one CA", one.pem(), many.clone()),
            ("many CAs, many lists", cas.clone(), many),
            ("many CAs, lists of another key", cas, fill(&other)),
        ] {
            let secret = secret(&[("ca.crt", &ca), ("ca.crl", &crl)]);
            let start = Instant::now();
            let found = judge(&secret, SecretUsage::default(), now());
            let took = start.elapsed();
            println!("{name}: {took:?}, {} findings", found.len());
            let most = if cfg!(debug_assertions) { 5_000 } else { 250 };
            assert!(took < Duration::from_millis(most), "{name}: {took:?}");
        }
    }

    /// A mebibyte of each, the largest possible Secret. Measured 10 to 70 ms in release; the bounds allow for busy machines.
    #[test]
    fn judges_hostile_bundles_within_time() {
        let fill = |unit: &str| unit.repeat((1 << 20) / unit.len());
        let authority = ca_between("one", 2020, 2025);
        for (name, text) in [
            ("BEGIN lines", fill("-----BEGIN CERTIFICATE-----\n")),
            ("indented BEGIN lines", fill(" -----BEGIN CERTIFICATE-----\n")),
            ("glued BEGIN", fill("-----BEGIN CERTIFICATE-----")),
            ("tiny blocks", fill("-----BEGIN A-----\nAAAA\n-----END A-----\n")),
            ("key blocks", fill("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")),
            ("certificates", fill(&authority.pem())),
            ("certificates with the wrong label", fill(&authority.pem().replace("CERTIFICATE", "CERT"))),
            ("one line", fill("A")),
            ("empty lines", fill("\n")),
            ("dashes", fill("-END -BEGIN ")),
            ("no ASCII", fill("–BEGIN\u{a0}\n")),
            ("base64", fill(&format!("MII{}\n", "A".repeat(61)))),
        ] {
            for key in ["ca.crt", "tls.crt"] {
                let secret = secret(&[(key, text.as_str()), ("tls.key", text.as_str())]);
                let start = Instant::now();
                let found = judge_update(&fixtures::secret(&[]), &secret, SecretUsage::default(), now());
                let took = start.elapsed();
                println!("{name} under {key}: {took:?}, {} findings", found.len());
                let most = if cfg!(debug_assertions) { 5_000 } else { 250 };
                assert!(took < Duration::from_millis(most), "{name}: {took:?}");
                assert_eq!(Verdict::of(&found), Verdict::Deny, "{name}");
            }
        }
    }
}
