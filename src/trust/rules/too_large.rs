//! `too-large`: more CAs than a handshake can name.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::MAX_CERTIFICATES;
use crate::trust::chain::{MAX_SUBJECTS, subjects_length};
use crate::trust::rule_context::RuleContext;

/// Java reads handshake messages up to 32 KiB (`jdk.tls.maxHandshakeMessageSize`).
const COMFORTABLE: usize = 32_000;

/// A gateway names the subjects of all its CAs to each client (RFC 8446 section 4.2.4). Measured: past 64 KiB Envoy takes the
/// update, and every handshake fails.
pub(super) const RULE: Rule = Rule {
    id: "too-large",
    severity: Severity::Deny,
    summary: "a bundle whose subjects do not fit into a handshake; from 32 KB of them on it warns",
    mend: "remove the CAs that no client needs; private client CAs and the web's public CAs do not belong together",
    source: "RFC 8446 section 4.2.4; Envoy, measured: it takes the update, and every handshake fails",
    example: "ca.crt: the subjects of its 120 CAs take 66120 bytes. TLS has room for 65400, then every handshake \
              fails; remove CAs",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = subject.loaded_ca() else { return Vec::new() };
    if ca.bundle.is_too_long {
        let message = format!("{}: more than {MAX_CERTIFICATES} certificates; keep the CAs that clients need", ca.key);
        return vec![Observation::new(ca.field(), "count", message)];
    }
    let bytes = subjects_length(ca.bundle.entries.iter().map(|entry| &entry.certificate));
    if bytes <= COMFORTABLE {
        return Vec::new();
    }
    let fits = bytes <= MAX_SUBJECTS;
    let effect = if fits { "some clients, such as Java's, read only 32 KB" } else { "then every handshake fails" };
    let message = format!(
        "{}: the subjects of its {} CAs take {bytes} bytes. TLS has room for {MAX_SUBJECTS}, {effect}; remove CAs",
        ca.key,
        ca.bundle.entries.len(),
    );
    let seen = if fits { "tight" } else { "full" };
    vec![Observation::new(ca.field(), seen, message).only_warns(fits)]
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};

    fn found(count: usize) -> Vec<(&'static str, Severity)> {
        // About 1,000 bytes of subject each.
        let text: String = (0..count).map(|n| ca(&format!("{n:04}{}", "x".repeat(980))).pem()).collect();
        findings(&secret(&[("ca.crt", &text)])).iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_a_few() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &ca("one").pem())])), NOTHING);
        assert_eq!(found(10), []);
    }

    #[test]
    fn rejects_more_than_clients_or_tls_take() {
        assert_eq!(found(40), [("too-large", Severity::Warn)]);
        assert_eq!(found(70), [("too-large", Severity::Deny)]);
    }
}
