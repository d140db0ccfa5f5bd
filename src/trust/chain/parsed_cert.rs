//! The fields of a certificate that BoringSSL reads before it verifies it (`x509v3_cache_extensions`, crypto/x509/v3_purp.cc).

use std::borrow::Cow;
use std::sync::OnceLock;

use super::extension_syntax;
use super::general_name::{DIRECTORY, GeneralName, NameConstraints, general_names};
use super::name::{self, Name};
use crate::trust::Certificate;
use crate::trust::certificate::sha256;
use crate::trust::der::{self, CONSTRUCTED, CONTEXT, Cbs, SEQUENCE};

/// The fields of a certificate that path building needs.
pub(super) struct ParsedCert<'a> {
    pub(super) certificate: &'a Certificate,
    pub(super) signed: Signed<'a>,
    pub(super) serial: &'a [u8],
    pub(super) subject: Name,
    pub(super) issuer: Name,
    pub(super) is_v1: bool,
    /// The CA bit; `None` without basicConstraints.
    pub(super) ca: Option<bool>,
    pub(super) path_length: Option<u64>,
    pub(super) usage: Option<u16>,
    pub(super) extended_usage: Option<ExtendedUsage>,
    pub(super) subject_key_id: Option<&'a [u8]>,
    pub(super) authority: Option<AuthorityKeyId<'a>>,
    pub(super) has_unknown_critical: bool,
    pub(super) alt_names: Option<Vec<GeneralName<'a>>>,
    pub(super) constraints: Option<NameConstraints<'a>>,
    /// Policy constraints and mappings, which are not evaluated.
    pub(super) has_policy_constraints: bool,
    /// Whether BoringSSL cannot read its certificatePolicies. For an anchor that does not matter.
    pub(super) has_malformed_policies: bool,
    attributes: OnceLock<Attributes>,
    key_digest: OnceLock<[u8; 32]>,
}

/// The attributes of a subject that name constraints check, in addition to the whole name.
pub(super) struct Attributes {
    pub(super) is_empty: bool,
    /// Mail addresses, with their tags.
    pub(super) emails: Vec<(u32, Vec<u8>)>,
    /// Whether a common name could be a host.
    pub(super) names_a_host: bool,
}

/// The signed bytes, the algorithm and the signature.
#[derive(Clone, Copy)]
pub(super) struct Signed<'a> {
    pub(super) body: &'a [u8],
    /// The algorithm inside the signed body equals the one outside (RFC 5280 section 4.1.1.2).
    pub(super) is_consistent: bool,
    /// AlgorithmIdentifier without its outer sequence.
    pub(super) algorithm: &'a [u8],
    pub(super) signature: &'a [u8],
}

/// The purposes that extendedKeyUsage allows, of those that matter.
#[derive(Clone, Copy, Default)]
pub(super) struct ExtendedUsage {
    pub(super) client: bool,
    pub(super) server: bool,
}

/// authorityKeyIdentifier.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AuthorityKeyId<'a> {
    pub(super) key_id: Option<Cow<'a, [u8]>>,
    pub(super) issuer: Option<Name>,
    pub(super) serial: Option<Cow<'a, [u8]>>,
}

/// keyUsage bits as BoringSSL numbers them: the first octet low, the second high.
pub(super) const DIGITAL_SIGNATURE: u16 = 0x80;
pub(super) const KEY_CERT_SIGN: u16 = 0x04;
pub(super) const CRL_SIGN: u16 = 0x02;

impl<'a> ParsedCert<'a> {
    /// Reads a certificate; `None` if an extension that BoringSSL supports is malformed or repeated.
    pub(super) fn read(certificate: &'a Certificate) -> Option<Self> {
        let (signed, mut tbs) = signed(&certificate.der)?;
        let is_v1 = !tbs.peek(CONTEXT | CONSTRUCTED) || {
            let version = tbs.take(CONTEXT | CONSTRUCTED, "").ok()?;
            version.0 == [2, 1, 0]
        };
        let serial = der::integer(&mut tbs, "").ok()?;
        let inner = tbs.take(SEQUENCE, "").ok()?.0;
        for _ in 0..4 {
            // The fields before the extensions: issuer, validity, subject, key.
            tbs.any()?;
        }
        let mut parsed = Self {
            certificate,
            signed: Signed { is_consistent: inner == signed.algorithm, ..signed },
            serial,
            subject: Name::read(&certificate.subject_der)?,
            issuer: Name::read(&certificate.issuer_der)?,
            is_v1,
            ca: None,
            path_length: None,
            usage: None,
            extended_usage: None,
            subject_key_id: None,
            authority: None,
            has_unknown_critical: false,
            alt_names: None,
            constraints: None,
            has_policy_constraints: false,
            attributes: OnceLock::new(),
            key_digest: OnceLock::new(),
            has_malformed_policies: false,
        };
        for unique_id in [1, 2] {
            if tbs.peek(CONTEXT | unique_id) {
                tbs.any()?;
            }
        }
        if !tbs.0.is_empty() {
            let mut wrapper = tbs.take(CONTEXT | CONSTRUCTED | 3, "").ok()?;
            parsed.extensions(wrapper.take(SEQUENCE, "").ok()?)?;
        }
        Some(parsed)
    }

    /// The fields of a certificate that a CA issues, with this authority key identifier, and without extensions that limit it.
    pub(super) fn issued_by(
        ca: &ParsedCert<'_>,
        certificate: &'a Certificate,
        key_id: Option<&'a [u8]>,
    ) -> Option<Self> {
        let authority = |key_id: &'a [u8]| AuthorityKeyId { key_id: Some(key_id.into()), issuer: None, serial: None };
        let parsed = Self {
            certificate,
            signed: Signed { body: &[], is_consistent: true, algorithm: &[], signature: &[] },
            serial: &[],
            subject: Name::read(&certificate.subject_der)?,
            issuer: ca.subject.clone(),
            is_v1: false,
            ca: None,
            path_length: None,
            usage: None,
            extended_usage: None,
            subject_key_id: None,
            authority: key_id.map(authority),
            has_unknown_critical: false,
            alt_names: None,
            constraints: None,
            has_policy_constraints: false,
            has_malformed_policies: false,
            attributes: OnceLock::new(),
            key_digest: OnceLock::new(),
        };
        // The name of a CA that has none fits its own certificates.
        (parsed.subject != parsed.issuer).then_some(parsed)
    }

    /// SHA-256 over its SubjectPublicKeyInfo.
    pub(super) fn key_digest(&self) -> &[u8; 32] {
        self.key_digest.get_or_init(|| sha256(&self.certificate.public_key))
    }

    /// The attributes of its subject. Read once: there may be tens of thousands, and a hundred CAs with constraints above.
    pub(super) fn attributes(&self) -> &Attributes {
        self.attributes.get_or_init(|| {
            let subject = &self.certificate.subject_der;
            let emails = name::values(subject, &name::EMAIL_ADDRESS);
            Attributes {
                is_empty: name::count(subject) == 0,
                emails: emails.into_iter().map(|(tag, content)| (tag, content.to_vec())).collect(),
                names_a_host: name::has_host_like_common_name(subject),
            }
        })
    }

    /// Subject and issuer are the same.
    pub(super) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// `EXFLAG_SS`: self-issued, its authority key identifier fits itself, and it may sign. The signature is not verified.
    pub(super) fn is_self_signed(&self) -> bool {
        self.is_self_issued() && self.authority.as_ref().is_none_or(|id| id.fits(self)) && self.may(KEY_CERT_SIGN)
    }

    /// `X509_check_ca`.
    pub(super) fn is_ca(&self) -> bool {
        self.may(KEY_CERT_SIGN) && (self.is_v1 && self.is_self_signed() || self.ca == Some(true))
    }

    /// Whether key usage is absent or has one of the bits.
    pub(super) fn may(&self, usage: u16) -> bool {
        self.usage.is_none_or(|allowed| allowed & usage != 0)
    }

    fn extensions(&mut self, mut list: Cbs<'a>) -> Option<()> {
        let mut seen = Vec::new();
        while !list.0.is_empty() {
            let mut extension = list.take(SEQUENCE, "").ok()?;
            let oid = extension.take(der::OBJECT, "").ok()?.0;
            let critical = extension.peek(der::BOOLEAN) && extension.any()?.1 == [0xff];
            let value = extension.take(der::OCTET_STRING, "").ok()?.0;
            self.extension(oid, critical, value, &mut seen)?;
        }
        Some(())
    }

    fn extension(&mut self, oid: &'a [u8], critical: bool, value: &'a [u8], seen: &mut Vec<&'a [u8]>) -> Option<()> {
        // id-ce (2.5.29) and the last arc.
        let &[0x55, 0x1d, number] = oid else {
            self.has_unknown_critical |= critical;
            return Some(());
        };
        if matches!(number, 14 | 15 | 17 | 19 | 30 | 35 | 37 | 31) {
            // RFC 5280 section 4.2: once at most.
            if seen.contains(&oid) {
                return None;
            }
            seen.push(oid);
        }
        let input = Cbs(value);
        match number {
            14 => self.subject_key_id = Some(only(input, der::OCTET_STRING)?.0),
            15 => self.usage = Some(usage(only(input, der::BIT_STRING)?.0)?),
            17 => self.alt_names = Some(general_names(only(input, SEQUENCE)?)?),
            19 => self.basic_constraints(only(input, SEQUENCE)?)?,
            30 => self.constraints = Some(NameConstraints::read(only(input, SEQUENCE)?)?),
            35 => self.authority = Some(authority(only(input, SEQUENCE)?)?),
            37 => self.extended_usage = Some(extended_usage(only(input, SEQUENCE)?)?),
            // CRL distribution points: only their syntax matters.
            31 => extension_syntax::distribution_points(only(input, SEQUENCE)?)?,
            // Policies, mappings, constraints, inhibitAnyPolicy.
            32 => {
                self.has_malformed_policies |= seen.contains(&oid) || !extension_syntax::is_policies(value);
                seen.push(oid);
            }
            33 | 36 | 54 => self.has_policy_constraints = true,
            _ => {}
        }
        let supported = matches!(number, 15 | 17 | 19 | 30 | 32 | 33 | 36 | 37 | 54);
        self.has_unknown_critical |= critical && !supported;
        Some(())
    }

    fn basic_constraints(&mut self, mut input: Cbs<'a>) -> Option<()> {
        let ca = input.peek(der::BOOLEAN)
            && match input.any()?.1 {
                // DER allows FF only, and omits a default, but BoringSSL accepts any value (measured).
                [value] => *value != 0,
                _ => return None,
            };
        if input.peek(der::INTEGER) {
            let length = der::integer(&mut input, "").ok()?;
            if !ca || length.first().is_some_and(|b| *b >= 0x80) {
                return None;
            }
            // A limit beyond the length of any path does not limit.
            self.path_length = (length.len() <= 8).then(|| length.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
        }
        self.ca = Some(ca);
        input.end("").ok()
    }
}

impl AuthorityKeyId<'_> {
    /// `X509_check_akid`: fields that both have must be equal.
    pub(super) fn fits(&self, issuer: &ParsedCert<'_>) -> bool {
        let keys = self.key_id.as_deref().zip(issuer.subject_key_id).is_none_or(|(a, b)| a == b);
        keys && self.serial.as_deref().is_none_or(|serial| serial == issuer.serial)
            && self.issuer.as_ref().is_none_or(|name| *name == issuer.issuer)
    }

    pub(super) fn into_owned(self) -> AuthorityKeyId<'static> {
        let owned = |bytes: Option<Cow<'_, [u8]>>| bytes.map(|bytes| Cow::Owned(bytes.into_owned()));
        AuthorityKeyId { key_id: owned(self.key_id), issuer: self.issuer, serial: owned(self.serial) }
    }
}

/// The three parts that certificates and revocation lists share, and the rest of the body.
pub(super) fn signed(der: &[u8]) -> Option<(Signed<'_>, Cbs<'_>)> {
    let mut outer = Cbs(der).take(SEQUENCE, "").ok()?;
    let whole = outer.0;
    let tbs = outer.take(SEQUENCE, "").ok()?;
    let body = &whole[..whole.len() - outer.0.len()];
    let algorithm = outer.take(SEQUENCE, "").ok()?.0;
    let bits = outer.take(der::BIT_STRING, "").ok()?.0;
    // Signatures are whole octets.
    let signature = bits.strip_prefix(&[0]).unwrap_or_default();
    Some((Signed { body, is_consistent: true, algorithm, signature }, tbs))
}

fn only<'a>(mut input: Cbs<'a>, tag: u32) -> Option<Cbs<'a>> {
    let value = input.take(tag, "").ok()?;
    input.end("").ok()?;
    Some(value)
}

fn usage(bits: &[u8]) -> Option<u16> {
    if !der::valid_bits(bits) {
        return None;
    }
    let octet = |at: usize| u16::from(bits.get(at).copied().unwrap_or(0));
    Some(octet(1) | octet(2) << 8)
}

fn extended_usage(mut list: Cbs<'_>) -> Option<ExtendedUsage> {
    // id-kp (1.3.6.1.5.5.7.3)
    const PURPOSE: [u8; 7] = [0x2b, 6, 1, 5, 5, 7, 3];
    let mut usage = ExtendedUsage::default();
    while !list.0.is_empty() {
        let oid = list.take(der::OBJECT, "").ok()?.0;
        der::object(oid).ok()?;
        match oid.strip_prefix(&PURPOSE) {
            Some([1]) => usage.server = true,
            Some([2]) => usage.client = true,
            _ => {}
        }
    }
    Some(usage)
}

pub(super) fn authority<'a>(mut input: Cbs<'a>) -> Option<AuthorityKeyId<'a>> {
    let mut id = AuthorityKeyId { key_id: None, issuer: None, serial: None };
    if input.peek(CONTEXT) {
        id.key_id = Some(input.any()?.1.into());
    }
    if input.peek(CONTEXT | CONSTRUCTED | 1) {
        // Of several names only the first directory name counts.
        let names = general_names(Cbs(input.any()?.1))?;
        if let Some(name) = names.iter().find(|name| name.kind == DIRECTORY) {
            id.issuer = Some(Name::read(name.content)?);
        }
    }
    if input.peek(CONTEXT | 2) {
        id.serial = Some(input.any().map(|(_, serial)| serial).filter(|serial| der::valid_integer(serial))?.into());
    }
    input.end("").ok()?;
    Some(id)
}
