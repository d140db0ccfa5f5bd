//! Cases of trial `named_regressions`: certificates and keys that BoringSSL does not read and other programs do, or the
//! other way round. trustspan's verdict on each was wrong once.

use anyhow::{Context, Result};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use trustspan::trust::Certificate;
use x509_parser::asn1_rs::{Any, FromDer};

use crate::{
    case::{Case, Probe},
    changed::{with_key, with_long_length},
    pki::{Identity, Key, Keys, Kind, Spec, Usage, block, element},
    proxy::Content,
    testbed::Seed,
};

/// The last arcs below 2.5.29.
const ALT_NAMES: u64 = 17;
const CONSTRAINTS: u64 = 30;
const DISTRIBUTION_POINTS: u64 = 31;
const POLICIES: u64 = 32;
const AUTHORITY: u64 = 35;
const EXTENDED_USAGE: u64 = 37;

/// Extensions that make BoringSSL reject a certificate, and some that do not: name, number, content.
pub(crate) fn extensions() -> Vec<(&'static str, u64, Vec<u8>)> {
    let policy = element(0x30, &[6, 3, 0x2a, 3, 4]);
    let text = [12, 1, b'x'];
    // An arc of 128 bits below 2.25 (X.667).
    let uuid = [&[0x69, 0x83][..], &[0xff; 17], &[0x7f]].concat();
    let qualifier = [&[6, 8, 0x2b, 6, 1, 5, 5, 7, 2, 1][..], &[2, 1, 1]].concat();
    let qualified = element(0x30, &[&[6, 3, 0x2a, 3, 4][..], &element(0x30, &element(0x30, &qualifier))].concat());
    let list = |content: &[u8]| element(0x30, content);
    let uri = element(0x86, b"x");
    vec![
        ("policies", POLICIES, list(&policy)),
        ("policies-none", POLICIES, list(&[])),
        ("policies-twice", POLICIES, list(&[policy.clone(), policy.clone()].concat())),
        ("policies-null", POLICIES, vec![5, 0]),
        ("policies-qualifier", POLICIES, list(&qualified)),
        ("points", DISTRIBUTION_POINTS, list(&element(0x30, &element(0xa0, &element(0xa0, &uri))))),
        ("points-number", DISTRIBUTION_POINTS, list(&[2, 1, 1])),
        ("points-junk", DISTRIBUTION_POINTS, list(&element(0x30, &element(0x87, b"x")))),
        ("other-name", ALT_NAMES, list(&element(0xa0, &[&[6, 1, 0x2a][..], &element(0xa0, &text)].concat()))),
        ("other-name-empty", ALT_NAMES, list(&element(0xa0, &[]))),
        // Latin-1 with the tag of UTF-8, as in Windows principal names.
        (
            "other-name-latin-1",
            ALT_NAMES,
            list(&element(0xa0, &[&[6, 1, 0x2a][..], &element(0xa0, &[12, 1, 0xe4])].concat())),
        ),
        ("other-name-uuid", ALT_NAMES, list(&element(0xa0, &[&element(6, &uuid)[..], &element(0xa0, &text)].concat()))),
        ("private-tag", ALT_NAMES, list(&element(0xc2, b"x"))),
        ("party-latin-1", ALT_NAMES, list(&element(0xa5, &element(0xa1, &[12, 1, 0xe4])))),
        (
            "constraint-latin-1",
            CONSTRAINTS,
            list(&element(0xa1, &list(&element(0xa5, &element(0xa1, &[12, 1, 0xe4]))))),
        ),
        ("usage-uuid", EXTENDED_USAGE, list(&[&[6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2][..], &element(6, &uuid)].concat())),
        ("party", ALT_NAMES, list(&element(0xa5, &element(0xa1, &text)))),
        ("party-junk", ALT_NAMES, list(&element(0xa5, b"zz"))),
        ("registered-id", ALT_NAMES, list(&element(0x88, &[0x2a]))),
        ("registered-id-junk", ALT_NAMES, list(&element(0x88, &[0x80]))),
        ("directory-junk", ALT_NAMES, list(&element(0xa4, &element(0x30, &element(0x31, &[]))))),
        ("usage-junk", EXTENDED_USAGE, list(&[6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2, 6, 1, 0x80])),
        ("authority-junk", AUTHORITY, list(&[0x82, 2, 0, 1])),
    ]
}

/// Public keys (DER) that BoringSSL does not read. Those on P-256 are made of a sound one.
pub(crate) fn unreadable_keys(sound: &Key) -> Vec<(&'static str, Vec<u8>)> {
    let info = |algorithm: &[u8], bits: &[u8]| {
        element(0x30, &[element(0x30, algorithm), element(3, &[&[0], bits].concat())].concat())
    };
    let rsa = |bits: usize, last: u8, exponent: &[u8]| {
        let modulus = [&[0][..], &vec![0xff; bits / 8 - 1], &[last]].concat();
        let numbers = element(0x30, &[element(2, &modulus), element(2, exponent)].concat());
        info(&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0], &numbers)
    };
    let on_p256 = |point: &[u8]| {
        info(&[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7], point)
    };
    let point = sound.pair.public_key_raw();
    let mut off_the_curve = point.to_vec();
    off_the_curve[64] ^= 1;
    vec![
        ("an exponent of 34 bits", rsa(2048, 1, &[2, 0, 0, 0, 1])),
        ("an exponent of 64 bits", rsa(2048, 1, &[0, 0x80, 0, 0, 0, 0, 0, 0, 1])),
        ("an even exponent", rsa(2048, 1, &[1, 0, 2])),
        ("the exponent 1", rsa(2048, 1, &[1])),
        ("an even modulus", rsa(2048, 2, &[1, 0, 1])),
        ("a modulus of 16,392 bits", rsa(16_392, 1, &[1, 0, 1])),
        ("a point off the curve", on_p256(&off_the_curve)),
        ("a cut point", on_p256(&point[..64])),
    ]
}

pub(crate) fn cases() -> Result<Vec<Case>> {
    let mut cases = trust()?;
    cases.extend(pairs()?);
    Ok(cases)
}

fn trust() -> Result<Vec<Case>> {
    let keys = &mut Keys::shuffled(&mut Seed::of_run("odd"));
    let root = Identity::root(Spec::ca("root"), keys.of(Kind::P256)?)?;
    let key = keys.of(Kind::P256)?;
    let spec = |number: u64, content: &[u8], spec: Spec| {
        let eku = if number == EXTENDED_USAGE { Vec::new() } else { spec.eku.clone() };
        Spec { eku, authority_key_id: false, raw: Some((number, content.to_vec())), ..spec }
    };
    let mut cases = Vec::new();
    for (name, number, content) in extensions() {
        // The extension in a leaf, in an intermediate, and in an anchor.
        let leaf = root.issue(spec(number, &content, Spec::leaf("client")), key.clone())?;
        let sub = root.issue(spec(number, &content, Spec::ca("sub")), keys.any()?)?;
        let below = sub.issue(Spec::leaf("below"), key.clone())?;
        let odd = Identity::root(spec(number, &content, Spec::ca("odd")), keys.any()?)?;
        let of_odd = odd.issue(Spec { authority_key_id: false, ..Spec::leaf("of odd") }, key.clone())?;
        let plain = root.issue(Spec::leaf("plain"), key.clone())?;
        let clients =
            [("leaf", &leaf, vec![]), ("sub", &below, vec![&sub]), ("odd", &of_odd, vec![]), ("plain", &plain, vec![])];
        cases.push(case(&format!("odd-{name}"), root.pem() + &odd.pem(), &clients)?);
    }

    // A Unicode noncharacter in a name, for which Envoy rejects the whole text. trustspan once allowed it.
    let odd = Identity::root(Spec::ca("odd\u{fdd0}"), keys.any()?)?;
    cases.push(case("odd-noncharacter", root.pem() + &odd.pem(), &[])?);

    let on_p256 = Identity::root(Spec::ca("odd"), keys.of(Kind::P256)?)?;
    let rsa = Identity::root(Spec::ca("odd"), keys.of(Kind::Rsa2048)?)?;
    let changed = |ca: &Identity, old: &[u8], new: &[u8]| -> Result<String> {
        let mut der = ca.der.to_vec();
        let at = der.windows(old.len()).rposition(|bytes| bytes == old).context("the bytes are there")?;
        der[at..at + new.len()].copy_from_slice(new);
        Ok(block("CERTIFICATE", &der))
    };
    let point = [3, 0x42, 0, 4];
    let at = on_p256.der.windows(4).position(|bytes| bytes == point).context("a point")? + 3;
    let hybrid = 6 | on_p256.der[at + 64] & 1;
    for (name, ca, text) in [
        // RFC 3279 section 2.3.1 requires NULL.
        ("odd-rsa-parameters", &rsa, changed(&rsa, &[0xf7, 0x0d, 1, 1, 1, 5, 0], &[0xf7, 0x0d, 1, 1, 1, 4, 0])?),
        ("odd-rsa-exponent", &rsa, changed(&rsa, &[2, 3, 1, 0, 1], &[2, 3, 1, 0, 2])?),
        ("odd-hybrid-point", &on_p256, changed(&on_p256, &point, &[3, 0x42, 0, hybrid])?),
        // secp256k1's identifier has another length, so an unknown identifier of the right length is used.
        (
            "odd-curve",
            &on_p256,
            changed(&on_p256, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7, 3], &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 6])?,
        ),
    ] {
        let client = ca.issue(Spec { authority_key_id: false, ..Spec::leaf("client") }, key.clone())?;
        cases.push(case(name, text + &root.pem(), &[("odd", &client, vec![])])?);
    }

    // Leaves with keys that BoringSSL does not read. trustspan once accepted them.
    let leaf = root.issue(Spec::leaf("client"), key.clone())?;
    let sound = with_key(&leaf, &root, &Certificate::parse(&leaf.der)?.public_key)?;
    let odd: Vec<_> = unreadable_keys(&root.key)
        .into_iter()
        .map(|(what, key)| Ok((what, with_key(&leaf, &root, &key)?)))
        .collect::<Result<_>>()?;
    let mut clients = vec![("sound", &sound, vec![])];
    clients.extend(odd.iter().map(|(what, leaf)| (*what, leaf, vec![])));
    cases.push(case("odd-leaf-keys", root.pem(), &clients)?);

    // A byte after a certificate of a chain. trustspan once accepted it.
    let sub = root.issue(Spec::ca("sub"), keys.of(Kind::P256)?)?;
    let below = sub.issue(Spec::leaf("below"), key.clone())?;
    let long = |one: &Identity| Identity { der: [&*one.der, &[0]].concat().into(), ..one.clone() };
    let (long_leaf, long_sub) = (long(&leaf), long(&sub));
    let clients = [("leaf", &long_leaf, vec![]), ("sub", &below, vec![&long_sub]), ("neither", &below, vec![&sub])];
    cases.push(case("odd-trailing-byte", root.pem(), &clients)?);

    // A length of the signature with more octets than it needs. BoringSSL accepts it; trustspan rejects it on purpose.
    let long_root = Identity::root(Spec::ca("long"), keys.of(Kind::P256)?)?;
    let (long_leaf, long_root) = (with_long_length(&leaf)?, with_long_length(&long_root)?);
    cases.push(case("odd-signature-length", root.pem(), &[("leaf", &long_leaf, vec![])])?);
    cases.push(case("odd-signature-length-of-a-ca", root.pem() + &long_root.pem(), &[("leaf", &leaf, vec![])])?);

    // A subtree that cannot be compared, after one that permits the name. trustspan once refused it.
    let tree = |base: &[u8]| element(0x30, &element(0x86, base));
    let constraints = Some(element(0x30, &element(0xa0, &[tree(b"a.example"), tree(b"")].concat())));
    let limited = Identity::root(Spec { constraints, ..Spec::ca("limited") }, keys.of(Kind::P256)?)?;
    let client = |uri: &str| limited.issue(Spec { san: Some(uri.to_owned()), ..Spec::leaf("client") }, key.clone());
    let (fits, other) = (client("spiffe://a.example/x")?, client("spiffe://b.example/x")?);
    cases.push(case("odd-subtree", limited.pem(), &[("fits", &fits, vec![]), ("other", &other, vec![])])?);

    // The CA bit of basicConstraints is 01 instead of FF. Envoy accepts it; trustspan once did not.
    let client = on_p256.issue(Spec { authority_key_id: false, ..Spec::leaf("client") }, key.clone())?;
    let text = changed(&on_p256, &[0x30, 3, 1, 1, 0xff], &[0x30, 3, 1, 1, 1])?;
    cases.push(case("odd-ca-bit", text, &[("odd", &client, vec![])])?);
    Ok(cases)
}

fn case(name: &str, ca: String, clients: &[(&str, &Identity, Vec<&Identity>)]) -> Result<Case> {
    let probe = |(label, leaf, above): &(&str, &Identity, Vec<&Identity>)| {
        Ok(Probe { label: (*label).to_owned(), identity: leaf.shown_with(above)?, shows: None, plain_of: None })
    };
    Ok(Case {
        name: name.to_owned(),
        description: "found: read by others, and not by BoringSSL, or the other way round".to_owned(),
        content: Content::Trust { ca: ca.into_bytes(), crl: None },
        probes: clients.iter().map(probe).collect::<Result<_>>()?,
        chain: Vec::new(),
        root: None,
        stored: None,
    })
}

/// Serving pairs that Envoy rejects, and that trustspan once allowed.
fn pairs() -> Result<Vec<Case>> {
    let keys = &mut Keys::shuffled(&mut Seed::of_run("odd pairs"));
    let ca = Identity::root(Spec::ca("ca"), keys.of(Kind::P256)?)?;
    let spec = || Spec { san: Some("gateway.example".to_owned()), ..Spec::leaf("gateway") };
    let mut made = Vec::new();
    for (name, kind, usage) in [
        ("odd-pair-no-signature", Kind::P256, Usage::CertSign),
        ("odd-pair-rsa-no-signature", Kind::Rsa2048, Usage::CertSign),
        ("odd-pair-signature", Kind::P256, Usage::OnlySignature),
    ] {
        let leaf = ca.issue(Spec { usage, ..spec() }, keys.of(kind)?)?;
        let key = leaf.key.pem();
        made.push((name, leaf, key));
    }
    let leaf = ca.issue(spec(), keys.of(Kind::P256)?)?;
    let pem = leaf.key.pem();
    let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut der = pkcs8.secret_pkcs8_der().to_vec();
    let version = der.windows(3).position(|bytes| bytes == [2, 1, 0]).context("a version")?;
    der[version + 2] = 1;
    made.push(("odd-pair-key-version", leaf.clone(), block("PRIVATE KEY", &der)));
    // UTCTime with an offset: Envoy serves it, and trustspan rejects it on purpose.
    let (_, outer) = Any::from_der(&leaf.der)?;
    let (signature, tbs) = Any::from_der(outer.data)?;
    let at = tbs.data.windows(4).position(|bytes| bytes == [0x30, 30, 23, 13]).context("dates")?;
    let (before, dates, after) = (&tbs.data[..at], &tbs.data[at + 2..at + 32], &tbs.data[at + 32..]);
    let first = element(23, &[&dates[2..14], b"+0000"].concat());
    let dates = element(0x30, &[&first, &dates[15..]].concat());
    let tbs = element(0x30, &[before, &dates, after].concat());
    let der = element(0x30, &[&tbs, signature].concat()).into();
    made.push(("odd-pair-offset", Identity { der, ..leaf.clone() }, leaf.key.pem()));
    let case = |(name, leaf, key): (&str, Identity, String)| Case {
        name: name.to_owned(),
        description: "found: Envoy rejects it, or serves with it, and we said something else".to_owned(),
        content: Content::Pair { chain: leaf.pem().into_bytes(), key: key.into_bytes() },
        probes: Vec::new(),
        chain: vec![leaf.der.clone()],
        root: Some(ca.der.clone()),
        stored: None,
    };
    Ok(made.into_iter().map(case).collect())
}
