//! CAs with the extensions that well-known issuers write.

use rcgen::{
    BasicConstraints, CertificateParams, CrlDistributionPoint, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType,
};

use super::Secret;
use super::fixtures::{Authority, Leaf, ca_with, secret};

/// A CA, and the root above it.
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) ca: Authority,
    pub(crate) root: Option<Authority>,
}

const SIGN: [KeyUsagePurpose; 2] = [KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];

impl Profile {
    /// The anchor that its clients and servers trust.
    pub(crate) fn anchor(&self) -> &Authority {
        self.root.as_ref().unwrap_or(&self.ca)
    }

    /// The Secret as written by cert-manager: certificate, key and root.
    pub(crate) fn secret(&self) -> Secret {
        let (chain, key, anchor) = (self.ca.pem(), self.ca.key_pem(), self.anchor().pem());
        secret(&[("tls.crt", &chain), ("tls.key", &key), ("ca.crt", &anchor)])
    }

    /// A leaf, the CAs behind it, and the root.
    pub(crate) fn leaf_secret(&self, name: &str) -> Secret {
        let leaf: Leaf = self.ca.leaf_with(name, |params| params.use_authority_key_identifier_extension = true);
        let between = self.root.as_ref().map(|_| self.ca.pem()).unwrap_or_default();
        secret(&[("tls.crt", &(leaf.pem() + &between)), ("tls.key", &leaf.key_pem()), ("ca.crt", &self.anchor().pem())])
    }
}

/// All profiles. `generation` is part of each name that changes with a rotation.
pub(crate) fn profiles(generation: &str) -> Vec<Profile> {
    let named = |what: &str| format!("{what} {generation}");
    let root =
        |name, change: &dyn Fn(&mut CertificateParams)| Profile { name, ca: ca_with(&named(name), change), root: None };
    let intermediate = |name, change: &dyn Fn(&mut CertificateParams)| {
        let root = ca_with(&named(&format!("{name} root")), with_key_ids);
        Profile { name, ca: root.intermediate(&named(name), change), root: Some(root) }
    };
    vec![
        root("openssl req -x509", &|params| {
            with_key_ids(params);
            params.key_usages.clear();
        }),
        root("openssl req -x509, minimal", &|params| {
            params.is_ca = IsCa::NoCa;
            params.key_usages.clear();
            let constraints = vec![0x30, 3, 1, 1, 0xff];
            params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 19], constraints));
        }),
        root("step-ca root", &|params| params.is_ca = at_most(1)),
        intermediate("step-ca intermediate", &|params| params.is_ca = at_most(0)),
        root("Vault PKI root", &with_key_ids),
        intermediate("Vault PKI intermediate", &|params| {
            with_key_ids(params);
            with_distribution_point(params);
        }),
        root("cfssl", &|params| params.is_ca = at_most(2)),
        root("AWS Private CA root", &|params| {
            with_key_ids(params);
            params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        }),
        intermediate("AWS Private CA subordinate", &|params| {
            params.is_ca = at_most(0);
            params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        }),
        root("SPIRE", &|params| {
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CountryName, "US");
            params.distinguished_name.push(DnType::OrganizationName, "SPIFFE");
            params.subject_alt_names = vec![SanType::URI("spiffe://example.org".try_into().expect("ASCII"))];
        }),
        intermediate("public CA", &public),
        intermediate("public CA, servers only", &|params| {
            public(params);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        }),
        intermediate("public CA, code signing", &|params| {
            public(params);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        }),
    ]
}

fn public(params: &mut CertificateParams) {
    params.is_ca = at_most(0);
    params.key_usages = [&SIGN[..], &[KeyUsagePurpose::DigitalSignature]].concat();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    with_distribution_point(params);
    // certificatePolicies: domain validated (2.23.140.1.2.1).
    let policies = vec![0x30, 10, 0x30, 8, 6, 6, 0x67, 0x81, 0x0c, 1, 2, 1];
    params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 32], policies));
}

fn at_most(length: u8) -> IsCa {
    IsCa::Ca(BasicConstraints::Constrained(length))
}

fn with_key_ids(params: &mut CertificateParams) {
    params.use_authority_key_identifier_extension = true;
}

fn with_distribution_point(params: &mut CertificateParams) {
    let uris = vec!["http://crl.example.com/ca.crl".to_owned()];
    params.crl_distribution_points = vec![CrlDistributionPoint { uris }];
}

mod tests {
    use rcgen::{BasicConstraints, IsCa};

    use super::{Profile, profiles};
    use crate::trust::fixtures::{NOTHING, ca, now, secret};
    use crate::trust::{Finding, Secret, SecretUsage, Severity, UsageKind, judge};

    fn judged(secret: &Secret, kind: UsageKind) -> Vec<Finding> {
        judge(secret, SecretUsage { kind, ..SecretUsage::default() }, now())
    }

    fn rules(found: &[Finding], severity: Severity) -> Vec<&'static str> {
        found.iter().filter(|finding| finding.severity == severity).map(|finding| finding.rule).collect()
    }

    fn bundle(profile: &Profile) -> Secret {
        secret(&[("ca.crt", &profile.ca.pem())])
    }

    /// For each profile, whether it is denied as a serving certificate, as a signing CA, and in a bundle of the
    /// clients' CAs.
    #[test]
    fn profiles_are_judged_by_role() {
        let no_signature = ["unparsable"].as_slice();
        type Row = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);
        let table: [Row; 13] = [
            ("openssl req -x509", &[], &[], &[]),
            ("openssl req -x509, minimal", &[], &[], &[]),
            ("step-ca root", no_signature, &[], &[]),
            ("step-ca intermediate", no_signature, &[], &[]),
            ("Vault PKI root", no_signature, &[], &[]),
            ("Vault PKI intermediate", no_signature, &[], &[]),
            ("cfssl", no_signature, &[], &[]),
            ("AWS Private CA root", &[], &[], &[]),
            ("AWS Private CA subordinate", &[], &[], &[]),
            ("SPIRE", no_signature, &[], &[]),
            ("public CA", &[], &[], &[]),
            ("public CA, servers only", &[], &[], &[]),
            ("public CA, code signing", &[], &["not-a-ca"], &[]),
        ];
        let profiles = profiles("one");
        assert_eq!(profiles.len(), table.len());
        for (profile, (name, serves, signs, trusted)) in profiles.iter().zip(table) {
            assert_eq!(profile.name, name);
            let denied = |secret: &Secret, kind| rules(&judged(secret, kind), Severity::Deny);
            assert_eq!(denied(&profile.secret(), UsageKind::Serving), serves, "{name} is served");
            assert_eq!(denied(&profile.secret(), UsageKind::SigningCa), signs, "{name} signs");
            for kind in [UsageKind::TrustBundle, UsageKind::SigningCa] {
                assert_eq!(denied(&bundle(profile), kind), trusted, "{name} in a bundle, {kind:?}");
            }
        }
    }

    #[test]
    fn warns_of_an_intermediate_whose_extended_key_usage_lacks_client_auth() {
        let profiles = profiles("one");
        let profile = profiles.iter().find(|profile| profile.name == "public CA, servers only").expect("in the table");
        let found = judged(&profile.secret(), UsageKind::SigningCa);
        assert_eq!(rules(&found, Severity::Warn), ["not-a-ca"]);
        assert!(found[0].message.contains("lacks clientAuth"), "{}", found[0].message);
        // Proxies ignore it in a CA of the bundle.
        let (chain, key) = (profile.ca.pem(), profile.ca.key_pem());
        let anchored = secret(&[("tls.crt", &chain), ("tls.key", &key), ("ca.crt", &chain)]);
        assert_eq!(rules(&judged(&anchored, UsageKind::SigningCa), Severity::Warn), NOTHING);
    }

    #[test]
    fn rejects_signing_cas_that_cannot_sign() {
        let (one, two) = (ca("one"), ca("two"));
        let leaf = one.leaf("shop.example.com");
        let may_not_sign = one.changed(|params| params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature]);
        let over = one.renewed(2020, 2025);
        let ahead = one.renewed(2031, 2040);
        for (pem, key, rule) in [
            (leaf.pem(), leaf.key_pem(), "not-a-ca"),
            (may_not_sign.pem(), one.key_pem(), "not-a-ca"),
            (one.pem(), two.key_pem(), "key-mismatch"),
            (one.pem(), "no key".to_owned(), "key-mismatch"),
            (over.pem(), one.key_pem(), "expired"),
            (ahead.pem(), one.key_pem(), "not-yet-valid"),
            ("no certificate".to_owned(), one.key_pem(), "unparsable"),
        ] {
            let found = judged(&secret(&[("tls.crt", &pem), ("tls.key", &key)]), UsageKind::SigningCa);
            assert_eq!(rules(&found, Severity::Deny), [rule], "{found:?}");
        }
    }

    #[test]
    fn accepts_a_signing_ca_with_a_key_that_no_proxy_serves_with() {
        let one = ca("one");
        let ed25519 = one.leaf_of_with(&rcgen::PKCS_ED25519, |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        });
        let secret = secret(&[("tls.crt", &ed25519.pem()), ("tls.key", &ed25519.key_pem())]);
        assert_eq!(rules(&judged(&secret, UsageKind::SigningCa), Severity::Deny), NOTHING);
        assert_eq!(rules(&judged(&secret, UsageKind::Serving), Severity::Deny), ["key-mismatch"]);
    }

    #[test]
    fn ignores_the_pair_of_a_sibling() {
        let one = ca("one");
        let leaf = one.leaf_between("shop.example.com", 2020, 2025);
        let found = |kind| {
            let pair = secret(&[("ca.crt", &one.pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
            rules(&judged(&pair, kind), Severity::Deny)
        };
        assert_eq!(found(UsageKind::Serving), ["expired"]);
        assert_eq!(found(UsageKind::TrustBundle), NOTHING);
    }
}
