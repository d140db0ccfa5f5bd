//! Certificates and revocation lists signed with each hash and each kind of key. rcgen supports few of them, and
//! trustspan not all.

use std::sync::LazyLock;

use anyhow::Result;
use boring::{
    ec::{EcGroup, EcKey},
    hash::MessageDigest,
    nid::Nid,
    pkey::{PKey, Private},
    rsa::Rsa,
    sign,
};
use rustls::pki_types::{CertificateRevocationListDer, pem::PemObject};

use crate::{
    case::{Case, Probe},
    changed::signed_again,
    pki::{Dates, Identity, Keys, Kind, Spec, block, element},
    proxy::Content,
    testbed::Seed,
};

/// A key of a CA. Generated once, like the keys of the other kinds of cases.
struct Signer {
    kind: &'static str,
    key: PKey<Private>,
    /// Its SubjectPublicKeyInfo (DER).
    info: Vec<u8>,
}

static SIGNERS: LazyLock<Vec<Signer>> = LazyLock::new(|| signers().expect("keys"));

fn signers() -> Result<Vec<Signer>> {
    let on = |curve: Nid| -> Result<_> {
        let group = EcGroup::from_curve_name(curve)?;
        Ok(PKey::from_ec_key(EcKey::generate(&group)?)?)
    };
    let keys = [
        ("P-224", on(Nid::SECP224R1)?),
        ("P-256", on(Nid::X9_62_PRIME256V1)?),
        ("P-384", on(Nid::SECP384R1)?),
        ("P-521", on(Nid::SECP521R1)?),
        ("RSA-1024", PKey::from_rsa(Rsa::generate(1024)?)?),
        ("RSA-2048", PKey::from_rsa(Rsa::generate(2048)?)?),
    ];
    keys.into_iter().map(|(kind, key)| Ok(Signer { kind, info: key.public_key_to_der()?, key })).collect()
}

/// A hash: its name, the last arc of its algorithm with RSA (below 1.2.840.113549.1.1), and the last arcs of that with
/// ECDSA (below 1.2.840.10045).
type Hash = (&'static str, fn() -> MessageDigest, u8, &'static [u8]);

const HASHES: [Hash; 5] = [
    ("SHA-1", MessageDigest::sha1, 5, &[4, 1]),
    ("SHA-224", MessageDigest::sha224, 14, &[4, 3, 1]),
    ("SHA-256", MessageDigest::sha256, 11, &[4, 3, 2]),
    ("SHA-384", MessageDigest::sha384, 12, &[4, 3, 3]),
    ("SHA-512", MessageDigest::sha512, 13, &[4, 3, 4]),
];

impl Signer {
    /// A certificate or a revocation list (DER), signed by this key; a certificate of this key also gets its public key.
    fn sign(&self, der: &[u8], is_own: bool, (_, digest, rsa, ecdsa): Hash) -> Result<Vec<u8>> {
        let algorithm = if self.kind.starts_with("RSA") {
            [&element(6, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, rsa])[..], &[5, 0]].concat()
        } else {
            element(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d], ecdsa].concat())
        };
        let algorithm = element(0x30, &algorithm);
        signed_again(der, is_own.then_some(self.info.as_slice()), Some(&algorithm), |body| {
            Ok(sign::Signer::new(digest(), &self.key)?.sign_oneshot_to_vec(body)?)
        })
    }
}

/// A CA with such a key, whose clients, intermediate and revocation list are signed with any hash.
pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("signed-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let signer = &SIGNERS[seed.below(SIGNERS.len() as u64) as usize];
    let mut hash = || HASHES[seed.below(HASHES.len() as u64) as usize];
    // rcgen makes the certificates with another key, of which the key identifiers are. They are only compared.
    let made = Identity::root(Spec::ca("root"), keys.of(Kind::P256)?)?;
    let root = signer.sign(&made.der, true, hash())?;
    let key = keys.of(Kind::P256)?;
    let (of_leaf, of_sub, of_list) = (hash(), hash(), hash());
    let signed = |one: Identity, hash: Hash| -> Result<Identity> {
        Ok(Identity { der: signer.sign(&one.der, false, hash)?.into(), ..one })
    };
    let leaf = signed(made.issue(Spec::leaf("client"), key.clone())?, of_leaf)?;
    let sub = Spec { authority_key_id: true, ..Spec::ca("sub") };
    let sub = signed(made.issue(sub, keys.of(Kind::P256)?)?, of_sub)?;
    let below = sub.issue(Spec::leaf("below"), key)?;
    let mut der = leaf.der.to_vec();
    if let Some(last) = der.last_mut() {
        *last ^= 1;
    }
    let damaged = Identity { der: der.into(), ..leaf.clone() };
    let clients = [
        (format!("leaf with {}", of_leaf.0), &leaf, vec![]),
        (format!("below a CA with {}", of_sub.0), &below, vec![&sub]),
        ("with another signature".to_owned(), &damaged, vec![]),
    ];
    let probe = |(label, leaf, above): (String, &Identity, Vec<&Identity>)| {
        Ok(Probe { label, identity: leaf.shown_with(&above)?, shows: None, plain_of: None })
    };
    let mut description = format!("a CA with {}", signer.kind);
    let crl = match seed.below(2) {
        0 => None,
        _ => {
            let list = made.crl(Dates::Valid, &[9])?;
            let list = CertificateRevocationListDer::from_pem_slice(list.as_bytes())?;
            description += &format!(", a list with {}", of_list.0);
            Some(block("X509 CRL", &signer.sign(&list, false, of_list)?).into_bytes())
        }
    };
    let content = Content::Trust { ca: block("CERTIFICATE", &root).into_bytes(), crl };
    let probes = clients.into_iter().map(probe).collect::<Result<_>>()?;
    Ok(Case { name, description, content, probes, chain: Vec::new(), root: None, stored: None })
}
