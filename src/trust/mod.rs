//! What a Secret holds, as a proxy would load it, and whether that is sound. Pure: bytes and `now` in, findings out.
//!
//! ```text
//!  Secret ─► credential (which keys are in force) ─► pem ─► bundle (certificates) ─► ParsedSecret ─► Subject ─► rules ─► findings
//! ```

pub mod bundle;
#[cfg(test)]
pub(crate) mod ca_profiles;
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
pub mod malformed_pem;
pub(crate) mod name;
pub mod parsed_secret;
pub mod pem;
pub mod private_key;
pub mod proxy;
mod revocation;
mod rule_context;
pub mod rules;
mod secret;
mod secret_usage;
mod severities;
mod tls_consumer;

pub use certificate::{AltName, Certificate, CertificateError};
pub use finding::{Finding, Severity, Verdict};
pub use fingerprint::{anchors, certificates_under, content_hash, fingerprint_of, is_distrusted};
pub use parsed_secret::{Pair, ParsedSecret, Text};
pub use proxy::Proxy;
pub use rule_context::RuleContext;
pub use rules::{Observation, RULES, Rule};
pub use secret::{CLIENT_LABEL, MANAGED_LABEL, Secret, SecretError};
pub(crate) use secret::{decoded, field};
pub use secret_usage::{GatewayUse, SecretUsage};
pub use severities::{FIXED, Level, Severities};
pub use tls_consumer::TlsConsumer;

use jiff::Timestamp;

pub(crate) use rules::EXPIRED;
use rules::JudgedSecret;

/// Findings of one rule on one field that are told one by one; of the rest only the number is.
const TOLD: usize = 5;

/// What the Secret is relied on for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duty<'a> {
    /// What its certificate is for.
    pub usage: SecretUsage,
    /// Gateways take their trust anchors from this Secret: it must hold a CA bundle.
    pub ca_required: bool,
    /// Who reads it.
    pub reader: TlsConsumer,
    /// The oldest proxy that verifies peers by it.
    pub oldest_proxy: Proxy,
    /// A GatewaySecret names it as its root or managed Secret: rotations change it.
    pub is_rotated: bool,
    /// Clients take their trust from its bundle ([`crate::connectivity::distributes`]), and have to verify its serving pair with it.
    pub distributes_trust: bool,
    /// The `-cacert` Secret from which Istio takes CAs in its place.
    pub sibling: Option<&'a str>,
    /// The Gateways that serve with it.
    pub gateways: &'a [GatewayUse],
}

/// Judges a Secret at an instant.
pub fn judge(secret: &Secret, duty: Duty<'_>, now: Timestamp) -> Vec<Finding> {
    judge_weighed(secret, duty, &Severities::default(), now)
}

/// Judges a Secret at an instant, with other weights.
pub fn judge_weighed(secret: &Secret, duty: Duty<'_>, severities: &Severities, now: Timestamp) -> Vec<Finding> {
    judge_contents(&ParsedSecret::new(secret, duty.reader), duty, severities, now)
}

/// Judges a Secret at an instant that may be parsed already.
pub fn judge_contents(
    contents: &ParsedSecret<'_>,
    duty: Duty<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    tell(weighed(contents, duty, severities, now))
}

fn weighed(contents: &ParsedSecret<'_>, duty: Duty<'_>, severities: &Severities, now: Timestamp) -> Vec<JudgedSecret> {
    let judged = rules::run(RuleContext::new(contents, duty, now));
    judged.into_iter().filter_map(|judged| judged.weighed(severities)).collect()
}

/// Judges the change of a Secret: a finding that `old` already had only warns, since refusing the write would not mend it.
///
/// Both are judged at the same `now`: what time alone made bad does not block a write, nor does what stands on other
/// lines than before. A finding that weighed less in `old` keeps its new weight.
pub fn judge_update(old: &Secret, new: &Secret, duty: Duty<'_>, now: Timestamp) -> Vec<Finding> {
    judge_update_weighed(old, new, duty, &Severities::default(), now)
}

/// Judges the change of a Secret, with other weights. They count before `old` does: a rule that is raised still lets pass
/// what `old` had already.
pub fn judge_update_weighed(
    old: &Secret,
    new: &Secret,
    duty: Duty<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let [old, new] = [old, new].map(|secret| ParsedSecret::new(secret, duty.reader));
    judge_change(&old, &new, duty, severities, now)
}

/// Judges the change of a Secret, both of which may be parsed already.
pub fn judge_change(
    old: &ParsedSecret<'_>,
    new: &ParsedSecret<'_>,
    duty: Duty<'_>,
    severities: &Severities,
    now: Timestamp,
) -> Vec<Finding> {
    let mut judged = weighed(new, duty, severities, now);
    if old.secret.data == new.secret.data {
        judged.iter_mut().for_each(|j| j.finding.severity = Severity::Warn);
    } else if judged.iter().any(|j| j.finding.severity == Severity::Deny) {
        let before = weighed(old, duty, severities, now);
        JudgedSecret::lower(&mut judged, &before);
    }
    tell(judged)
}

/// The findings to tell: the first few of each rule, field and severity, and how many more there are.
fn tell(judged: Vec<JudgedSecret>) -> Vec<Finding> {
    let mut told: Vec<(Finding, usize, usize)> = Vec::new();
    for JudgedSecret { finding, .. } in judged {
        let alike = |f: &Finding| f.rule == finding.rule && f.field == finding.field && f.severity == finding.severity;
        // Findings of a rule come together, and at most a few per kind are kept: a short look back is enough.
        match told.iter_mut().rev().find(|(f, ..)| alike(f)) {
            Some((_, count, more)) if *count == TOLD => *more += 1,
            Some((_, count, _)) => {
                let count = *count + 1;
                told.push((finding, count, 0));
            }
            None => told.push((finding, 1, 0)),
        }
    }
    let more = |(mut finding, _, more): (Finding, usize, usize)| {
        if more > 0 {
            finding.message.push_str(&format!("; and {more} more like this"));
        }
        finding
    };
    told.into_iter().map(more).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::fixtures::{ca, ca_between, now, secret};
    use super::*;

    fn update(old: &str, new: &str) -> Verdict {
        Verdict::of(&judge_update(&secret(&[("ca.crt", old)]), &secret(&[("ca.crt", new)]), Duty::default(), now()))
    }

    #[test]
    fn accepts_an_update_that_changes_no_data() {
        assert_eq!(update("broken", "broken"), Verdict::Warn);
        let required = Duty { ca_required: true, ..Duty::default() };
        assert_eq!(Verdict::of(&judge_update(&secret(&[]), &secret(&[]), required, now())), Verdict::Warn);
    }

    #[test]
    fn accepts_what_time_made_bad_and_what_gets_better() {
        let (old, new) = (ca_between("old", 2020, 2025).pem(), ca("new").pem());
        assert_eq!(update(&old, &format!("# a comment\n{old}")), Verdict::Warn);
        assert_eq!(update(&old, &format!("{new}{old}")), Verdict::Warn);
        assert_eq!(update("broken", &new), Verdict::Allow);
    }

    #[test]
    fn rejects_what_gets_worse_or_bad_in_another_way() {
        let (one, two) = (ca_between("one", 2020, 2025).pem(), ca_between("two", 2020, 2025).pem());
        assert_eq!(update(&one, &format!("{one}{two}")), Verdict::Deny);
        assert_eq!(update("broken", "broken otherwise"), Verdict::Deny);
        assert_eq!(update(&one, ""), Verdict::Deny);
    }

    #[test]
    fn accepts_what_a_raised_rule_found_before() {
        let (one, two, new) =
            (ca_between("one", 2020, 2025).pem(), ca_between("two", 2020, 2025).pem(), ca("new").pem());
        let raised: Severities = [("expired".to_owned(), Level::Deny)].into_iter().collect();
        let update = |old: &str, new: &str| {
            let (old, new) = (secret(&[("ca.crt", old)]), secret(&[("ca.crt", new)]));
            Verdict::of(&judge_update_weighed(&old, &new, Duty::default(), &raised, now()))
        };
        assert_eq!(update(&new, &format!("{new}{one}")), Verdict::Deny, "it only warns by default");
        assert_eq!(update(&format!("{new}{one}"), &format!("{one}{new}")), Verdict::Warn);
        assert_eq!(update(&format!("{new}{one}"), &format!("{one}{new}{two}")), Verdict::Deny);
    }

    #[test]
    fn accepts_many_findings_in_few_words() {
        let text: String = (0..8).map(|n| ca_between(&format!("ca {n}"), 2020, 2025).pem()).collect();
        let found = judge(&secret(&[("ca.crt", &text)]), Duty::default(), now());
        assert_eq!(found.len(), TOLD);
        assert!(found[TOLD - 1].message.ends_with("; and 3 more like this"), "{}", found[TOLD - 1].message);
        assert!(!found[0].message.contains("more like this"));
    }

    /// Lists cost signatures: many of one CA, one of many CAs, and a long one.
    #[test]
    fn accepts_hostile_revocation_lists_within_time() {
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
            let found = judge(&secret, Duty::default(), now());
            let took = start.elapsed();
            println!("{name}: {took:?}, {} findings", found.len());
            let most = if cfg!(debug_assertions) { 5_000 } else { 250 };
            assert!(took < Duration::from_millis(most), "{name}: {took:?}");
        }
    }

    /// A mebibyte of each: the largest Secret there is. Measured 10 to 70 ms in release; the bounds leave room for busy machines.
    #[test]
    fn accepts_hostile_bundles_within_time() {
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
                let found = judge_update(&fixtures::secret(&[]), &secret, Duty::default(), now());
                let took = start.elapsed();
                println!("{name} under {key}: {took:?}, {} findings", found.len());
                let most = if cfg!(debug_assertions) { 5_000 } else { 250 };
                assert!(took < Duration::from_millis(most), "{name}: {took:?}");
                assert_eq!(Verdict::of(&found), Verdict::Deny, "{name}");
            }
        }
    }
}
