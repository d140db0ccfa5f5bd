//! `not-a-ca`: a trust anchor that may not sign certificates.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::BundleEntry;
use crate::trust::chain::{has_valid_extensions, may_issue_for};
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;
use crate::trust::{TlsConsumer, UsageKind, content_hash};

/// RFC 5280 sections 4.2.1.9 (basicConstraints) and 4.2.1.3 (keyCertSign). Envoy trusts an anchor that is not a CA, since
/// it allows partial chains (measured), but refuses certificates of one whose key usage lacks keyCertSign. A bundle without any CA is
/// nearly always a leaf in the wrong place.
pub(super) const RULE: Rule = Rule {
    id: "not-a-ca",
    severity: Severity::Deny,
    summary: "a CA bundle without a CA, or with a CA that has malformed extensions; among CAs, other certificates warn",
    remedy: "put the issuing CA's certificate into the bundle, not the leaf's",
    source: "RFC 5280 sections 4.2.1.9 and 4.2.1.3; Envoy, measured",
    example: "ca.crt line 1: CN=shop.example.com is not a CA, nor is any other certificate here: basicConstraints lack CA:TRUE. \
              expected the CA that signed the clients' certificates; put that in its place, or reissue it as a CA with the same subject and key",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let of_bundle = |ca| malformed(ca).chain(not_cas(ca)).collect::<Vec<_>>();
    context.loaded_ca().map(of_bundle).unwrap_or_default().into_iter().chain(not_a_signing_ca(context)).collect()
}

/// A certificate that an issuer must not sign with. RFC 5280 section 4.2.1.12: extended key usage of CAs.
fn not_a_signing_ca(context: &RuleContext<'_>) -> Option<Observation> {
    let (chain, signer) = context.served().filter(|_| context.usage.kind == UsageKind::SigningCa)?;
    let is_anchor = context.loaded_ca().is_some_and(|ca| ca.certificates().any(|anchor| anchor == signer));
    let (what, only_warns) = match may_issue_for(signer) {
        _ if !signer.is_ca => ("basicConstraints lack CA:TRUE", false),
        _ if !signer.may_sign => ("its key usage lacks keyCertSign", false),
        _ if !has_valid_extensions(signer) => ("it has a malformed or repeated extension", false),
        // Peers do not check the extended key usage of an anchor.
        _ if is_anchor || signer.subject_der == signer.issuer_der => return None,
        (false, false) => ("its extended key usage has neither clientAuth nor serverAuth", false),
        (false, true) => {
            ("its extended key usage lacks clientAuth, so that proxies which trust its root refuse its clients", true)
        }
        (true, false) => {
            ("its extended key usage lacks serverAuth, so that clients which trust its root refuse its servers", true)
        }
        (true, true) => return None,
    };
    let message = format!(
        "{}: {} cannot be a signing CA: {what}. expected a CA that may issue certificates of servers and clients; reissue it",
        chain.key,
        brief(&signer.subject),
    );
    let identity = format!("{} signs", signer.fingerprint);
    Some(Observation::new(chain.field(), identity, message).only_warns(only_warns))
}

/// Envoy loads a CA with a malformed or repeated extension, and refuses all its clients (measured).
fn malformed(ca: &Text) -> impl Iterator<Item = Observation> {
    let reads = |entry: &&BundleEntry| ca.reader != TlsConsumer::Envoy || has_valid_extensions(&entry.certificate);
    ca.bundle.entries.iter().filter(move |entry| !reads(entry)).map(|entry| {
        let message = format!(
            "{} line {}: {} has a malformed or repeated extension. expected extensions that the proxy can read: it loads this CA, but \
             refuses every client of it; reissue it",
            ca.key,
            entry.line,
            brief(&entry.certificate.subject),
        );
        let identity = format!("{} malformed", entry.certificate.fingerprint);
        Observation::new(ca.field(), identity, message)
    })
}

/// Certificates that are not CAs, or may not sign.
fn not_cas(ca: &Text) -> Vec<Observation> {
    let entries = &ca.bundle.entries;
    let why = |is_ca: bool| {
        if is_ca { "its key usage lacks keyCertSign" } else { "basicConstraints lack CA:TRUE" }
    };
    let odd = || entries.iter().filter(|e| !e.certificate.is_ca || !e.certificate.may_sign);
    if let Some(first) = odd().next()
        && odd().count() == entries.len()
    {
        let message = format!(
            "{} line {}: {} is not a CA, nor is any other certificate here: {}. expected the CA that signed the {}s' certificates; put \
             that in its place, or reissue it as a CA with the same subject and key",
            ca.key,
            first.line,
            brief(&first.certificate.subject),
            why(first.certificate.is_ca),
            ca.reader.peer(),
        );
        let identity = content_hash(entries.iter().map(|e| &e.certificate));
        return vec![Observation::new(ca.field(), identity, message).only_warns(ca.reader.pins())];
    }
    odd()
        .map(|entry| {
            let (key, line, name) = (ca.key, entry.line, brief(&entry.certificate.subject));
            let message = match entry.certificate.is_ca {
                true => format!(
                    "{key} line {line}: the key usage of {name} lacks keyCertSign, so its {}s are refused. expected CAs that may sign; \
                     reissue it with keyCertSign",
                    ca.reader.peer()
                ),
                false => format!(
                    "{key} line {line}: {name} is not a CA: basicConstraints lack CA:TRUE. expected CAs only; remove it unless it is pinned \
                     on purpose"
                ),
            };
            Observation::new(ca.field(), entry.certificate.fingerprint.as_str(), message).only_warns(true)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, ca_with, findings, secret, verdicts};
    use crate::trust::{Severity, Verdict};

    #[test]
    fn accepts_cas() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("{}{}", ca("one").pem(), ca("two").pem()))])), NOTHING);
    }

    #[test]
    fn warns_of_a_leaf_among_cas() {
        let text = format!("{}{}", ca("two").leaf("a").pem(), ca("one").pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| f.rule).collect::<Vec<_>>(), ["not-a-ca"]);
        assert_eq!(Verdict::of(&found), Verdict::Warn);
        assert!(found[0].message.contains("CN=a is not a CA"), "{}", found[0].message);
    }

    #[test]
    fn rejects_a_bundle_without_a_ca() {
        let authority = ca("one");
        let text = format!("{}{}", authority.leaf("a").pem(), authority.leaf("b").pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("not-a-ca", Severity::Deny)]);
    }

    #[test]
    fn rejects_a_ca_with_an_extension_that_cannot_be_read() {
        let odd = |oid: &[u64], content: &[u8]| {
            let extension = rcgen::CustomExtension::from_oid_content(oid, content.to_vec());
            ca_with("odd", |params| params.custom_extensions = vec![extension]).pem() + &ca("one").pem()
        };
        // A malformed authority key identifier; a distribution point that is a number.
        for text in [odd(&[2, 5, 29, 35], b"zz"), odd(&[2, 5, 29, 31], &[0x30, 3, 2, 1, 1])] {
            let found = findings(&secret(&[("ca.crt", &text)]));
            assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("not-a-ca", Severity::Deny)]);
            assert!(found[0].message.contains("line 1: CN=odd has a malformed"), "{}", found[0].message);
        }
        // Envoy ignores the policies of an anchor.
        assert_eq!(verdicts(&secret(&[("ca.crt", &odd(&[2, 5, 29, 32], b"zz"))])), NOTHING);
    }

    #[test]
    fn rejects_a_ca_whose_key_usage_lacks_cert_sign() {
        let authority = ca_with("one", |params| params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature]);
        let found = findings(&secret(&[("ca.crt", &authority.pem())]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("not-a-ca", Severity::Deny)]);
        assert!(found[0].message.contains("key usage"), "{}", found[0].message);
    }
}
