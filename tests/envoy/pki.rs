//! CAs and leaves of all kinds. Keys are generated once per run and shared between cases, but never used twice in a
//! case.

use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DistinguishedName, DnType,
    DnValue, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    NameConstraints, SanType, SerialNumber, SigningKey, date_time_ymd,
};
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use sha2::{Digest, Sha256};

use trustspan::trust::Certificate;

use crate::testbed::Seed;

/// A key's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    P256,
    P384,
    P521,
    Rsa2048,
    Ed25519,
    MlDsa44,
    MlDsa65,
    MlDsa87,
}

/// A private key. rcgen's own type cannot be cloned, and cannot read ML-DSA keys.
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) pair: KeyPair,
    pkcs8: Vec<u8>,
}

impl Key {
    fn generate(kind: Kind) -> Result<Self> {
        let pair = match kind {
            // Generating keys on P-521 and for RSA is slow.
            Kind::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048),
            kind => KeyPair::generate_for(kind.algorithm()),
        };
        let pair = pair?;
        Ok(Self { kind, pkcs8: pair.serialize_der(), pair })
    }

    /// The key in PKCS #8 (PEM).
    pub(crate) fn pem(&self) -> String {
        block("PRIVATE KEY", &self.pkcs8)
    }

    /// Label and DER of the key in PKCS #1 or SEC1, which is the content of PKCS #8.
    pub(crate) fn traditional(&self) -> Result<(&'static str, Vec<u8>)> {
        use x509_parser::asn1_rs::{Any, FromDer};
        let (_, outer) = Any::from_der(&self.pkcs8)?;
        let (rest, _version) = Any::from_der(outer.data)?;
        let (rest, _algorithm) = Any::from_der(rest)?;
        let (_, inner) = Any::from_der(rest)?;
        let label = if self.kind == Kind::Rsa2048 { "RSA PRIVATE KEY" } else { "EC PRIVATE KEY" };
        Ok((label, inner.data.to_vec()))
    }
}

impl Kind {
    fn algorithm(self) -> &'static rcgen::SignatureAlgorithm {
        match self {
            Self::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Self::P521 => &rcgen::PKCS_ECDSA_P521_SHA512,
            Self::Rsa2048 => &rcgen::PKCS_RSA_SHA256,
            Self::Ed25519 => &rcgen::PKCS_ED25519,
            Self::MlDsa44 => &rcgen::PKCS_ML_DSA_44,
            Self::MlDsa65 => &rcgen::PKCS_ML_DSA_65,
            Self::MlDsa87 => &rcgen::PKCS_ML_DSA_87,
        }
    }
}

/// The keys of this run. There are few RSA keys, since generating one takes a tenth of a second.
static POOL: LazyLock<Vec<Arc<Key>>> = LazyLock::new(|| {
    let counts = [(Kind::P256, 24), (Kind::P384, 6), (Kind::P521, 2), (Kind::Rsa2048, 4), (Kind::Ed25519, 5)];
    let keys = counts.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| Key::generate(kind)));
    keys.map(|key| Arc::new(key.expect("a key"))).collect()
});

/// Keys for one case, each used once. When they run out, new P-256 keys are generated.
pub(crate) struct Keys(Vec<Arc<Key>>);

impl Keys {
    pub(crate) fn shuffled(seed: &mut Seed) -> Self {
        let mut keys = POOL.clone();
        shuffle(&mut keys, seed);
        Self(keys)
    }

    pub(crate) fn any(&mut self) -> Result<Arc<Key>> {
        self.0.pop().map_or_else(|| Ok(Arc::new(Key::generate(Kind::P256)?)), Ok)
    }

    pub(crate) fn of(&mut self, kind: Kind) -> Result<Arc<Key>> {
        match self.0.iter().position(|key| key.kind == kind) {
            Some(at) => Ok(self.0.remove(at)),
            None => Ok(Arc::new(Key::generate(kind)?)),
        }
    }
}

/// An element of DER (X.690, section 8.1).
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1)..];
    let long = (content.len() > 127).then_some(0x80 | length.len() as u8);
    [&[tag][..], long.as_slice(), length, content].concat()
}

/// Fisher-Yates shuffle.
pub(crate) fn shuffle<T>(items: &mut [T], seed: &mut Seed) {
    for last in (1..items.len()).rev() {
        let other = seed.below(last as u64 + 1) as usize;
        items.swap(last, other);
    }
}

/// A validity period relative to today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dates {
    Valid,
    /// Valid, and only until the end of this year.
    Brief,
    Expired,
    Future,
}

/// basicConstraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basic {
    Ca,
    PathLength(u8),
    NotCa,
    Absent,
}

/// keyUsage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    CertSign,
    OnlySignature,
    Encipherment,
    Absent,
}

/// The specification of a certificate.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) subject: String,
    pub(crate) dates: Dates,
    pub(crate) basic: Basic,
    pub(crate) usage: Usage,
    pub(crate) subject_key_id: bool,
    pub(crate) authority_key_id: bool,
    /// Whether its authority key identifier has the issuer's serial number, and so one certificate of several of a CA (`keyid,issuer:always` of openssl).
    pub(crate) names_serial: bool,
    pub(crate) eku: Vec<ExtendedKeyUsagePurpose>,
    pub(crate) permitted: Option<String>,
    pub(crate) excluded: Option<String>,
    /// A host, a URI or a mail address in subjectAltName.
    pub(crate) san: Option<String>,
    /// A mail address in the subject.
    pub(crate) mail: Option<String>,
    /// nameConstraints (DER), with kinds of names that rcgen does not support.
    pub(crate) constraints: Option<Vec<u8>>,
    /// subjectAltName (DER), of several kinds, or in a form that rcgen does not support.
    pub(crate) alt_names: Option<Vec<u8>>,
    /// An extension below 2.5.29: the last arc and the content, which need not be DER.
    pub(crate) raw: Option<(u64, Vec<u8>)>,
    /// An unknown extension, marked critical.
    pub(crate) unknown_critical: bool,
    pub(crate) serial: u64,
}

impl Spec {
    /// A CA without special fields.
    pub(crate) fn ca(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            dates: Dates::Valid,
            basic: Basic::Ca,
            usage: Usage::CertSign,
            subject_key_id: true,
            authority_key_id: false,
            names_serial: false,
            eku: Vec::new(),
            permitted: None,
            excluded: None,
            san: None,
            mail: None,
            constraints: None,
            alt_names: None,
            raw: None,
            unknown_critical: false,
            serial: 1,
        }
    }

    /// A client certificate without special fields.
    pub(crate) fn leaf(subject: impl Into<String>) -> Self {
        Self {
            basic: Basic::Absent,
            usage: Usage::Absent,
            subject_key_id: false,
            authority_key_id: true,
            eku: vec![ExtendedKeyUsagePurpose::ClientAuth],
            serial: 2,
            ..Self::ca(subject)
        }
    }

    fn params(&self, key: &KeyPair) -> Result<CertificateParams> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if !self.subject.is_empty() {
            params.distinguished_name.push(DnType::CommonName, self.subject.as_str());
        }
        if let Some(mail) = &self.mail {
            // The attribute emailAddress (PKCS #9).
            let kind = DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
            params.distinguished_name.push(kind, DnValue::Ia5String(mail.as_str().try_into()?));
        }
        let year = i32::from(jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year());
        let (from, to) = match self.dates {
            Dates::Valid => (year - 1, year + 9),
            Dates::Brief => (year - 1, year + 1),
            Dates::Expired => (year - 5, year - 1),
            Dates::Future => (year + 1, year + 9),
        };
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        params.serial_number = Some(SerialNumber::from(self.serial));
        params.key_usages = match self.usage {
            Usage::CertSign => vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign],
            Usage::OnlySignature => vec![KeyUsagePurpose::DigitalSignature],
            Usage::Encipherment => vec![KeyUsagePurpose::KeyEncipherment],
            Usage::Absent => Vec::new(),
        };
        params.extended_key_usages = self.eku.clone();
        params.key_identifier_method = KeyIdMethod::PreSpecified(key_id(key));
        params.use_authority_key_identifier_extension = self.authority_key_id;
        let tree = |name: &Option<String>| name.iter().map(|n| GeneralSubtree::DnsName(n.clone())).collect::<Vec<_>>();
        if self.permitted.is_some() || self.excluded.is_some() {
            let (permitted_subtrees, excluded_subtrees) = (tree(&self.permitted), tree(&self.excluded));
            params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees });
        }
        if let Some(san) = &self.san {
            params.subject_alt_names = match san {
                uri if uri.contains(':') => vec![SanType::URI(uri.as_str().try_into()?)],
                mailbox if mailbox.contains('@') => vec![SanType::Rfc822Name(mailbox.as_str().try_into()?)],
                host => CertificateParams::new([host.clone()])?.subject_alt_names,
            };
        }
        for (number, content, critical) in [(30, &self.constraints, true), (17, &self.alt_names, false)] {
            let Some(content) = content else { continue };
            let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, number], content.clone());
            extension.set_criticality(critical);
            params.custom_extensions.push(extension);
        }
        if let Some((number, content)) = &self.raw {
            params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, *number], content.clone()));
        }
        // rcgen writes the subject key identifier with basicConstraints only, so both are custom extensions here; it
        // writes name constraints
        // for CAs only.
        match (self.basic, self.subject_key_id) {
            (Basic::Ca, true) => params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
            (Basic::PathLength(n), true) => params.is_ca = IsCa::Ca(BasicConstraints::Constrained(n)),
            (Basic::NotCa, true) => params.is_ca = IsCa::ExplicitNoCa,
            (basic, with_id) => {
                params.is_ca = IsCa::NoCa;
                let mut extension = |oid: &[u64], der: Vec<u8>, critical| {
                    let mut extension = CustomExtension::from_oid_content(oid, der);
                    extension.set_criticality(critical);
                    params.custom_extensions.push(extension);
                };
                match basic {
                    Basic::Ca => extension(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff], true),
                    Basic::PathLength(n) => extension(&[2, 5, 29, 19], vec![0x30, 6, 1, 1, 0xff, 2, 1, n], true),
                    Basic::NotCa => extension(&[2, 5, 29, 19], vec![0x30, 0], true),
                    Basic::Absent => {}
                }
                if with_id {
                    let id = key_id(key);
                    extension(&[2, 5, 29, 14], [vec![4, id.len() as u8], id].concat(), false);
                }
            }
        }
        if self.unknown_critical {
            let mut unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999, 1], vec![5, 0]);
            unknown.set_criticality(true);
            params.custom_extensions.push(unknown);
        }
        Ok(params)
    }
}

/// A key identifier by RFC 7093 section 2, method 1.
fn key_id(key: &KeyPair) -> Vec<u8> {
    Sha256::digest(key.public_key_raw())[..20].to_vec()
}

/// A certificate with its key.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) spec: Spec,
    pub(crate) key: Arc<Key>,
    pub(crate) der: CertificateDer<'static>,
}

impl Identity {
    /// Its certificate, in PEM, with a key that is no point of the curve P-256.
    pub(crate) fn with_damaged_key(&self) -> String {
        let mut der = self.der.to_vec();
        // An uncompressed point as BIT STRING, after the identifier of the curve.
        let head = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3, 0x42, 0, 4];
        let at = der.windows(head.len()).position(|bytes| bytes == head).expect("a key on P-256") + head.len();
        der[at + 63] ^= 1;
        block("CERTIFICATE", &der)
    }

    /// A self-signed certificate.
    pub(crate) fn root(spec: Spec, key: Arc<Key>) -> Result<Self> {
        let der = spec.params(&key.pair)?.self_signed(&key.pair)?.into();
        Ok(Self { spec, key, der })
    }

    /// Issues a certificate, whether this one may sign or not.
    pub(crate) fn issue(&self, spec: Spec, key: Arc<Key>) -> Result<Self> {
        let (pair, own) = (&key.pair, &self.key.pair);
        let issuer = Issuer::new(self.spec.params(own)?, own);
        let mut params = spec.params(pair)?;
        if spec.names_serial {
            let above = Certificate::parse(&self.der)?;
            let name = element(0xa1, &element(0xa4, &above.issuer_der));
            let id = [name, element(0x82, &[self.spec.serial as u8])].concat();
            params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 35], element(0x30, &id)));
        }
        let der = params.signed_by(pair, &issuer)?.into();
        Ok(Self { spec, key, der })
    }

    pub(crate) fn pem(&self) -> String {
        block("CERTIFICATE", &self.der)
    }

    /// Signs the body of a certificate; returns the certificate in DER.
    pub(crate) fn sign(&self, body: &[u8], algorithm: &[u8]) -> Result<CertificateDer<'static>> {
        let signature = [&[0][..], &self.key.pair.sign(body)?].concat();
        Ok(element(0x30, &[body, algorithm, &element(3, &signature)].concat()).into())
    }

    /// A revocation list of this authority.
    pub(crate) fn crl(&self, dates: Dates, revoked: &[u64]) -> Result<String> {
        let own = &self.key.pair;
        let mut params = self.spec.params(own)?;
        params.key_usages = vec![KeyUsagePurpose::CrlSign];
        let valid = Spec { dates, ..self.spec.clone() }.params(own)?;
        let revoked = revoked.iter().map(|serial| rcgen::RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: valid.not_before,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: valid.not_before,
            next_update: valid.not_after,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: params.key_identifier_method.clone(),
        };
        Ok(block("X509 CRL", list.signed_by(&Issuer::new(params, own))?.der()))
    }

    /// The chain that a client presents, with these intermediates, and its key.
    pub(crate) fn shown_with(&self, intermediates: &[&Identity]) -> Result<Arc<CertifiedKey>> {
        let chain = [self].into_iter().chain(intermediates.iter().copied()).map(|one| one.der.clone()).collect();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.pkcs8.clone()));
        Ok(Arc::new(CertifiedKey::new(chain, any_supported_type(&key).context("a key that rustls knows")?)))
    }
}

/// A PEM block with lines of 64 characters.
pub(crate) fn block(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut body = String::new();
    for line in text.as_bytes().chunks(64) {
        body += &String::from_utf8_lossy(line);
        body.push('\n');
    }
    format!("-----BEGIN {label}-----\n{body}-----END {label}-----\n")
}
