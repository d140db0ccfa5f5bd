//! `crl-partial`: revocation lists that block all clients of a CA.

use super::{Observation, Rule, Severity};
use crate::trust::Text;
use crate::trust::chain::Refused;
use crate::trust::name::brief;
use crate::trust::revocation::Revocation;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Measured: once there is a list, Envoy requires one of each CA on the path, signed by that CA, and refuses other clients. A CA that
/// is revoked itself only warns: that is intended.
pub(super) const RULE: Rule = Rule {
    id: "crl-partial",
    severity: Severity::Deny,
    summary: "a CA without a usable revocation list while others have one; a list for no CA of the bundle warns",
    remedy: "add a list for each CA, including the CAs above it, signed by the CA's own key; or remove all lists",
    source: "Envoy, measured: X509_V_FLAG_CRL_CHECK_ALL; RFC 5280 section 6.3.3",
    example: "ca.crt line 11: clients of CN=two are refused: no revocation list found for CN=two. expected one for each CA, since \
              there are lists for others; add it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some((ca, revocation)) = context.loaded_ca().zip(context.revocation()) else { return Vec::new() };
    if revocation.is_of_no_ca() {
        return Vec::new();
    }
    let blocked = revocation.blocked.iter().filter_map(|(at, refused)| blocked(ca, *at, refused));
    blocked.chain(of_no_ca(ca, revocation)).collect()
}

fn blocked(ca: &Text, at: usize, refused: &Refused) -> Option<Observation> {
    // `crl-expired` reports the dates.
    let entry = ca.bundle.entries.get(at).filter(|_| !matches!(refused, Refused::CrlOutdated { .. }))?;
    let (subject, fingerprint) = (brief(&entry.certificate.subject), entry.certificate.fingerprint.as_str());
    let message = match refused {
        Refused::Budget => {
            format!(
                "{} line {}: too many CAs and revocation lists to check. expected only those in use; remove the others",
                ca.key, entry.line
            )
        }
        Refused::Revoked { subject: revoked } if *revoked == entry.certificate.subject => format!(
            "{} line {}: clients of {subject} are refused: it is revoked. expected no revoked CA; remove it, and its own list",
            ca.key, entry.line
        ),
        refused => format!("{} line {}: clients of {subject} are refused: {refused}", ca.key, entry.line),
    };
    let is_meant = matches!(refused, Refused::Revoked { .. });
    Some(Observation::new(ca.field(), fingerprint, message).only_warns(is_meant))
}

fn of_no_ca(ca: &Text, revocation: &Revocation) -> impl Iterator<Item = Observation> {
    revocation.unrelated.iter().map(|issuer| {
        let key = revocation.key;
        let message = format!(
            "{key}: a revocation list of {}, which is not in {}. expected lists of CAs of the bundle, and of intermediates that clients \
             present; remove it only if no client presents that CA",
            brief(issuer),
            ca.key
        );
        Observation::new(field(key), issuer.as_str(), message).only_warns(true)
    })
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{Authority, NOTHING, ca, ca_with, ca_without_key_id, findings, secret, verdicts};

    const DENY: (&str, Severity) = ("crl-partial", Severity::Deny);
    const WARN: (&str, Severity) = ("crl-partial", Severity::Warn);

    fn found(cas: &str, lists: &str) -> Vec<(&'static str, Severity)> {
        let found = findings(&secret(&[("ca.crt", cas), ("ca.crl", lists)]));
        found.iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_lists_of_a_root_and_its_intermediate() {
        let root = ca("root");
        let below = root.intermediate("below", |_| {});
        let lists = root.crl_pem(2029, 2031, &[]) + &below.crl_pem(2029, 2031, &[]);
        assert_eq!(verdicts(&secret(&[("ca.crt", &(root.pem() + &below.pem())), ("ca.crl", &lists)])), NOTHING);
    }

    /// Each list is verified once, though each CA and its clients need it.
    #[test]
    fn accepts_as_many_lists_as_a_large_bundle_has_cas() {
        let cas: Vec<_> = (0..200).map(|n| ca(&format!("ca {n}"))).collect();
        let bundle: String = cas.iter().map(Authority::pem).collect();
        let lists: String = cas.iter().map(|ca| ca.crl_pem(2029, 2031, &[])).collect();
        assert_eq!(verdicts(&secret(&[("ca.crt", &bundle), ("ca.crl", &lists)])), NOTHING);
    }

    #[test]
    fn accepts_an_expired_ca_without_a_list() {
        let (one, old) = (ca("one"), crate::trust::fixtures::ca_between("old", 2020, 2025));
        assert_eq!(found(&(one.pem() + &old.pem()), &one.crl_pem(2029, 2031, &[])), [("expired", Severity::Warn)]);
    }

    #[test]
    fn rejects_a_ca_without_a_list() {
        let (one, two) = (ca("one"), ca("two"));
        assert_eq!(found(&(one.pem() + &two.pem()), &one.crl_pem(2029, 2031, &[])), [DENY]);
        let root = ca("root");
        let below = root.intermediate("below", |_| {});
        // The intermediate's clients need the root's list, too, which needs the root.
        let lists = root.crl_pem(2029, 2031, &[]) + &below.crl_pem(2029, 2031, &[]);
        let (cas, lists) = (one.pem() + &below.pem(), lists + &one.crl_pem(2029, 2031, &[]));
        assert_eq!(found(&cas, &lists), [DENY, WARN]);
    }

    #[test]
    fn rejects_more_lists_of_a_ca_than_can_be_verified() {
        let (one, other) = (ca("one"), (0..24).map(|n| ca(&format!("ca {n}")).pem()).collect::<String>());
        let lists: String = (0..300).map(|_| one.crl_pem(2029, 2031, &[])).collect();
        let found = findings(&secret(&[("ca.crt", &(one.pem() + &other)), ("ca.crl", &lists)]));
        let reports = |finding: &&crate::trust::Finding| finding.message.contains("too many CAs and revocation lists");
        assert_eq!(found.iter().find(reports).map(|finding| finding.severity), Some(Severity::Deny), "{found:?}");
    }

    #[test]
    fn rejects_a_list_that_its_ca_did_not_or_may_not_sign() {
        let (one, other) = (ca_without_key_id("one"), ca_without_key_id("one"));
        assert_eq!(found(&one.pem(), &other.crl_pem(2029, 2031, &[])), [DENY]);
        let mute =
            ca_with("mute", |params| params.key_usages.retain(|usage| *usage == rcgen::KeyUsagePurpose::KeyCertSign));
        // rcgen refuses to sign it, so a CA with the same name and key does.
        let list =
            mute.changed(|params| params.key_usages.push(rcgen::KeyUsagePurpose::CrlSign)).crl_pem(2029, 2031, &[]);
        assert_eq!(found(&mute.pem(), &list), [DENY]);
    }

    #[test]
    fn warns_of_a_list_for_no_ca_of_the_bundle() {
        let (one, two) = (ca("one"), ca("two"));
        assert_eq!(found(&one.pem(), &(one.crl_pem(2029, 2031, &[]) + &two.crl_pem(2029, 2031, &[]))), [WARN]);
    }
}
