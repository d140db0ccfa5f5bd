//! `too-large`: more CAs than fit into a handshake, or into the status and the journal of a rotation.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::MAX_CERTIFICATES;
use crate::trust::chain::{MAX_SUBJECTS, subjects_length};
use crate::trust::rule_context::RuleContext;

/// Java reads handshake messages up to 32 KiB (`jdk.tls.maxHandshakeMessageSize`).
const COMFORTABLE: usize = 32_000;

/// PEM of the CAs of one source. Status and journal hold them with the previous ones, in at most 1.5 MiB and 1 MiB (docs/adr/0014). A public trust
/// store has about 220 KiB.
const ROTATED: usize = 256 << 10;

/// A gateway sends the subjects of all its CAs to each client (RFC 8446 section 4.2.4). Measured: beyond 64 KiB Envoy accepts the
/// update, and every handshake fails.
pub(super) const RULE: Rule = Rule {
    id: "too-large",
    severity: Severity::Deny,
    summary: "a bundle whose subjects do not fit into a handshake (warns from 32 KB on); a rotated bundle of over 256 KiB",
    remedy: "remove the CAs that no client needs; do not mix private client CAs with public CAs",
    source: "RFC 8446 section 4.2.4; Envoy, measured: it accepts the update, and every handshake fails",
    example: "ca.crt: the subjects of its 120 CAs take 66120 bytes. expected at most 65400: with more every handshake fails; \
              remove CAs",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    if ca.bundle.is_too_long {
        let message = format!(
            "{}: more than {MAX_CERTIFICATES} certificates. expected only the CAs that clients need; remove CAs",
            ca.key
        );
        return vec![Observation::new(ca.field(), "count", message)];
    }
    let text: usize = ca.bundle.entries.iter().map(|entry| entry.certificate.pem().len()).sum();
    if context.usage.is_source_of_cas && text > ROTATED {
        let message = format!(
            "{}: its {} CAs take {text} bytes. expected at most {ROTATED} in a Secret from which a GatewaySecret takes CAs: a rotation \
             records them next to the previous ones; remove the CAs that no client needs",
            ca.key,
            ca.bundle.entries.len(),
        );
        return vec![Observation::new(ca.field(), "rotation", message)];
    }
    let bytes = subjects_length(ca.bundle.entries.iter().map(|entry| &entry.certificate));
    if bytes <= COMFORTABLE {
        return Vec::new();
    }
    let fits = bytes <= MAX_SUBJECTS;
    let (most, effect) = match fits {
        true => (COMFORTABLE, "some clients, such as Java's, read no more"),
        false => (MAX_SUBJECTS, "with more every handshake fails"),
    };
    let message = format!(
        "{}: the subjects of its {} CAs take {bytes} bytes. expected at most {most}: {effect}; remove CAs",
        ca.key,
        ca.bundle.entries.len(),
    );
    let seen = if fits { "tight" } else { "full" };
    vec![Observation::new(ca.field(), seen, message).only_warns(fits)]
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, findings, now, secret, verdicts};
    use crate::trust::{SecretUsage, Severity, judge};

    fn found(count: usize) -> Vec<(&'static str, Severity)> {
        // Each subject has about 1,000 bytes.
        let text: String = (0..count).map(|n| ca(&format!("{n:04}{}", "x".repeat(980))).pem()).collect();
        findings(&secret(&[("ca.crt", &text)])).iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_a_few() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &ca("one").pem())])), NOTHING);
        assert_eq!(found(10), []);
    }

    /// A rotation to 1,101 CAs did not end: they only warned, and its journal did not fit into a ConfigMap.
    #[test]
    fn rejects_more_than_a_rotation_records() {
        let text: String = (0..1_101).map(|n| ca(&format!("{n:04}{}", "x".repeat(30))).pem()).collect();
        let found = |is_source_of_cas| {
            let usage = SecretUsage { is_source_of_cas, ..SecretUsage::default() };
            judge(&secret(&[("ca.crt", &text)]), usage, now())
                .into_iter()
                .map(|f| (f.rule, f.severity))
                .collect::<Vec<_>>()
        };
        assert_eq!(found(true), [("too-large", Severity::Deny)]);
        assert_eq!(found(false), [("too-large", Severity::Warn)], "no rotation takes CAs from it");
    }

    #[test]
    fn rejects_more_than_tls_allows_and_warns_before() {
        assert_eq!(found(40), [("too-large", Severity::Warn)]);
        assert_eq!(found(70), [("too-large", Severity::Deny)]);
    }
}
