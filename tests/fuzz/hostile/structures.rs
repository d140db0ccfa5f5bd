//! Certificates and revocation lists with tens of thousands of tiny elements, with a few long ones, or with both.

use jiff::Timestamp;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::trust::bundle;
use trustspan::trust::chain::{Purpose, Store, horizon};

use super::crafted::{Crafted, attribute, extension, list, name};
use super::{
    SIZE, Trial, conclude,
    reviews::{body, both, secret},
    trial,
};
use crate::draw::Draw;
use crate::pki::{Dates, Identity, Keys, Kind, Spec, element};
use crate::pool::POOL;
use crate::review::claim;

/// Bytes of DER that are nearly a mebibyte in PEM.
const DER: usize = 740_000;

fn kind() -> Value {
    json!({"group": "", "version": "v1", "kind": "Secret"})
}

/// A CREATE of a Secret, and an UPDATE that replaces one that is as expensive.
fn written(label: &str, data: &[(&str, &str)]) -> Vec<Trial> {
    let registry = Registry::new([entry(&claim(&POOL.leaves), "default").expect("an entry")]);
    let new = secret(data);
    let other: Vec<_> = data.iter().map(|(key, text)| (*key, format!("# other\n{text}"))).collect();
    let old = secret(&other.iter().map(|(key, text)| (*key, text.as_str())).collect::<Vec<_>>());
    let trials = [("new", &Value::Null), ("instead of its like", &old)]
        .map(|(how, old)| both(&format!("{label}, {how}"), &body(kind(), &new, old), &registry));
    trials.into_iter().flatten().collect()
}

fn sized(one: &[u8], bytes: usize) -> Vec<u8> {
    one.repeat(bytes / one.len())
}

/// Certificates with one long field.
fn long_fields() -> Vec<(&'static str, Crafted)> {
    let cn = [0x55, 4, 3];
    let named = |rdns: Vec<u8>| Crafted { subject: element(0x30, &rdns), ..Crafted::ca("ca", "ca", 0) };
    let with = |number, content: &[u8]| Crafted::ca("ca", "ca", 0).with(number, content);
    let of = |tag: u8, one: &[u8]| element(0x30, &sized(&element(tag, one), DER));
    let empty = attribute(&[0x2a], 12, b"");
    vec![
        ("tiny attributes of one set", named(element(0x31, &sized(&empty, DER)))),
        ("tiny attributes", named(sized(&element(0x31, &empty), DER))),
        ("tiny common names", named(sized(&element(0x31, &attribute(&cn, 12, b"")), DER))),
        ("an attribute with a long type", named(element(0x31, &attribute(&vec![1; DER], 12, b"")))),
        (
            "an attribute with a long value of no known type",
            named(element(0x31, &attribute(&[0x2a], 12, &vec![b'a'; DER]))),
        ),
        ("control characters", named(element(0x31, &attribute(&cn, 12, &vec![1; DER])))),
        ("commas", named(element(0x31, &attribute(&cn, 12, &vec![b','; DER])))),
        ("words", named(element(0x31, &attribute(&cn, 12, &b"a ".repeat(DER / 2))))),
        ("wide characters", named(element(0x31, &attribute(&cn, 30, &vec![1; DER])))),
        ("tiny extensions", Crafted { extensions: sized(&extension(99, b""), DER), ..Crafted::ca("ca", "ca", 0) }),
        ("tiny alternative names", with(17, &of(0x82, b"a"))),
        ("tiny alternative directory names", with(17, &of(0xa4, &element(0x30, b"")))),
        ("alternative directory names", with(17, &of(0xa4, &name("a")))),
        ("tiny registered ids", with(17, &of(0x88, &[0x2a]))),
        ("a long registered id", with(17, &element(0x30, &element(0x88, &vec![1; DER])))),
        ("addresses", with(17, &of(0x87, &[1, 2, 3, 4]))),
        ("tiny purposes", with(37, &of(6, &[0x2a]))),
        ("tiny policies", with(32, &of(0x30, &element(6, &[0x2a])))),
        ("tiny policy mappings", with(33, &of(0x30, &element(6, &[0x2a]).repeat(2)))),
        ("tiny distribution points", with(31, &of(0x30, b""))),
        ("tiny accesses", with(31, &of(0x30, &element(6, &[0x2a])))),
        (
            "names of an authority",
            with(35, &element(0x30, &element(0xa1, &sized(&element(0xa4, &element(0x30, b"")), DER)))),
        ),
        ("a long serial number of an authority", with(35, &element(0x30, &element(0x82, &vec![1; DER])))),
        ("constraints", with(30, &element(0x30, &element(0xa0, &sized(&element(0x30, &element(0x82, b"a")), DER))))),
        ("a long key", Crafted { key: long_key(DER), ..Crafted::ca("ca", "ca", 0) }),
        ("a long key of RSA", Crafted { key: long_rsa_key(DER), ..Crafted::ca("ca", "ca", 0) }),
    ]
}

fn long_key(bytes: usize) -> Vec<u8> {
    element(0x30, &[element(0x30, &element(6, &[0x2a])), element(3, &vec![0; bytes])].concat())
}

fn long_rsa_key(bytes: usize) -> Vec<u8> {
    let oid = element(6, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1]);
    let numbers = element(0x30, &[element(2, &vec![0x7f; bytes]), element(2, &[1, 0, 1])].concat());
    element(
        0x30,
        &[element(0x30, &[oid, element(5, b"")].concat()), element(3, &[&[0], &numbers[..]].concat())].concat(),
    )
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn certificates_of_one_long_field() {
    let key = POOL.leaves[6].key.pem();
    let mut trials = Vec::new();
    for (label, one) in long_fields() {
        let pem = one.pem();
        trials.extend(written(&format!("{label}, as a CA"), &[("ca.crt", &pem)]));
        trials.extend(written(&format!("{label}, as a leaf"), &[("tls.crt", &pem), ("tls.key", &key)]));
        trials.push(trial(format!("{label}, verified"), || {
            let certificates = bundle::read(pem.as_bytes()).into_certificates();
            let _ = Store::new(&certificates, None).verify(&certificates, Purpose::Client, Timestamp::now());
        }));
    }
    let entry = |serial: &[u8], extensions: &[u8]| {
        let extensions = if extensions.is_empty() { Vec::new() } else { element(0x30, extensions) };
        element(0x30, &[element(2, serial), element(0x17, b"250101000000Z"), extensions].concat())
    };
    let ca = Crafted::ca("ca", "ca", 0).pem();
    for (label, entries) in [
        ("tiny entries", sized(&entry(&[1], &[]), DER)),
        ("entries with an extension", sized(&entry(&[1], &extension(99, b"")), DER)),
        ("an entry with tiny extensions", entry(&[1], &sized(&extension(99, b""), DER))),
        ("distinct entries", (0..DER as u32 / 25).flat_map(|n| entry(&(1 << 24 | n).to_be_bytes(), &[])).collect()),
    ] {
        trials.extend(written(&format!("a list of {label}"), &[("ca.crt", &ca), ("ca.crl", &list("ca", &entries))]));
    }
    conclude("long fields", trials);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn many_small_certificates() {
    let cas = |count: usize, one: &dyn Fn(usize) -> Crafted| (0..count).map(|n| one(n).pem()).collect::<String>();
    let mut trials = Vec::new();
    // CAs, and revocation lists of about as many other issuers.
    let named = |n: usize| format!("an authority with the number {n:06}");
    let lists: String = (0..3_000).map(|n| list(&named(n + 10_000), &[])).collect();
    let text = cas(2_400, &|n| Crafted::ca(&named(n), &named(n), n));
    trials.extend(written("CAs and lists", &[("ca.crt", &text), ("ca.crl", &lists)]));
    // CAs with one name, each with another key. Every second one has expired.
    let expired = |n: usize| if n.is_multiple_of(2) { "260101000000Z" } else { "490101000000Z" };
    for group in [8, 32, 33, 500] {
        let one = |n: usize| {
            let subject = format!("{}", n / group);
            Crafted { ends: expired(n).to_owned(), ..Crafted::ca(&subject, &subject, n) }
        };
        trials.extend(written(&format!("duplicate subjects by the {group}"), &[("ca.crt", &cas(4_400, &one))]));
        let renewed = |n: usize| {
            let subject = format!("{}", n / group);
            Crafted { ends: format!("4{}0101000000Z", n % 10), ..Crafted::ca(&subject, &subject, n / group) }
        };
        trials.extend(written(&format!("renewals by the {group}"), &[("ca.crt", &cas(4_400, &renewed))]));
    }
    // CAs with one name, none of which is the issuer of another.
    let stranger = |n: usize| {
        let own = element(4, &(n as u32).to_be_bytes());
        let other = element(0x30, &element(0x80, &(n as u32 | 1 << 24).to_be_bytes()));
        Crafted::ca("x", "x", n).with(14, &own).with(35, &other)
    };
    trials.extend(written("strangers of one name", &[("ca.crt", &cas(3_300, &stranger)), ("ca.crl", &list("y", &[]))]));
    // The longest supported signatures: P-521.
    let mut keys = Keys::shuffled(&mut Draw::new(&[]));
    for kind in [Kind::P521, Kind::P384, Kind::Rsa2048, Kind::Ed25519] {
        let ca = Identity::root(Spec::ca("a"), keys.of(kind).expect("a key")).expect("a CA");
        let info = trustspan::trust::Certificate::parse(&ca.der).expect("a CA").public_key;
        let size = Crafted { key: info.clone(), ..Crafted::ca("12345", "12345", 0) }.pem().len();
        let one = |n: usize| Crafted { key: info.clone(), ..Crafted::ca(&n.to_string(), &n.to_string(), n) };
        trials.extend(written(&format!("CAs with a key of {kind:?}"), &[("ca.crt", &cas(SIZE / size, &one))]));
    }
    trials.extend(long_names_above());
    trials.extend(long_leaf());
    conclude("small certificates", trials);
}

/// Many CAs below a few with long names.
fn long_names_above() -> Vec<Trial> {
    let long = "n".repeat(150_000);
    let below = |issuer: &str| (0..1_500).map(|n| Crafted::ca(issuer, &n.to_string(), n).pem()).collect::<String>();
    let ring = format!("{}{}{}", below("a"), Crafted::ca(&long, "a", 0).pem(), Crafted::ca("a", &long, 0).pem());
    let mut trials = written("CAs below a ring with a long name", &[("ca.crt", &ring), ("ca.crl", &list("y", &[]))]);
    let ca = &POOL.cas[6];
    let key = trustspan::trust::Certificate::parse(&ca.der).expect("a CA").public_key;
    let long = "n".repeat(100_000);
    let middle = Crafted { key, subject: name("a"), ..Crafted::ca(&long, "a", 0) };
    let own_list = ca.crl(Dates::Valid, &[]).expect("a list");
    let cannot_sign = |n: usize| Crafted::ca("a", &n.to_string(), n).with(15, &element(3, &[7, 0x80])).pem();
    let text = (0..1_500).map(cannot_sign).collect::<String>() + &middle.pem();
    trials.extend(written("CAs whose lists lack one of a long name", &[("ca.crt", &text), ("ca.crl", &own_list)]));
    let text = format!("{}{}{}", below("a"), Crafted::ca("b", "a", 0).pem(), Crafted::ca("a", "b", 0).pem());
    trials.extend(written("CAs below a ring", &[("ca.crt", &(text + &below("b"))), ("ca.crl", &list("y", &[]))]));
    trials
}

/// A long leaf among CAs that could be its issuer.
fn long_leaf() -> Vec<Trial> {
    let leaf = &POOL.leaves[6].key;
    let public = trustspan::trust::Certificate::parse(&POOL.leaves[6].der).expect("a leaf").public_key;
    let root = trustspan::trust::Certificate::parse(&POOL.cas[6].der).expect("a CA").public_key;
    let names = [
        ("tiny directory names", element(0x30, &sized(&element(0xa4, &element(0x30, b"")), 500_000))),
        ("directory names", element(0x30, &sized(&element(0xa4, &name("a")), 500_000))),
        ("a long name", element(0x30, &element(0x86, &vec![b'a'; 500_000]))),
    ];
    let issuers = |count: usize| -> String {
        let one = |n| Crafted { key: root.clone(), ..Crafted::ca(&format!("{n}"), "x", n) };
        (0..count).map(|n| one(n).pem()).collect()
    };
    let mut trials = Vec::new();
    for (label, names) in names {
        let one = Crafted { key: public.clone(), ..Crafted::ca("x", "leaf", 0) }.with(17, &names);
        let chain = one.pem() + &issuers(31);
        let data = [("ca.crt", issuers(33)), ("tls.crt", chain), ("tls.key", leaf.pem())];
        let data: Vec<_> = data.iter().map(|(key, text)| (*key, text.as_str())).collect();
        trials.extend(written(&format!("a leaf of {label} among issuers"), &data));
    }
    trials
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn chains_at_many_dates() {
    let mut keys = Keys::shuffled(&mut Draw::new(&[]));
    // As many dates as are checked, each of an unrelated CA.
    let dates = |count: usize| -> String {
        let ends = |n: usize| format!("{:02}{:02}01000000Z", 27 + n / 12, 1 + n % 12);
        (0..count)
            .map(|n| Crafted { ends: ends(n), ..Crafted::ca(&format!("other {n}"), &format!("other {n}"), n) }.pem())
            .collect()
    };
    let hosts = ["a.example".to_owned()];
    let any = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let mut trials = Vec::new();
    let mut judged = |label: &str, bundle: String, chain: String| {
        for (purpose, name) in [(Purpose::Client, "a client"), (Purpose::Server { hosts: &hosts }, "a server")] {
            let mut ends = String::new();
            trials.push(trial(format!("{label}, {name}"), || {
                let (bundle, chain) = (bundle::read(bundle.as_bytes()), bundle::read_chain(chain.as_bytes()));
                let (lists, bundle, chain) =
                    (bundle.crls.clone(), bundle.into_certificates(), chain.into_certificates());
                let lists = (!lists.is_empty()).then_some(lists.as_slice());
                let verdict = Store::new(&bundle, lists).verify(&chain, purpose, Timestamp::now());
                ends = verdict.map_or_else(|refused| refused.id().to_owned(), |_| "accepted".to_owned());
                let _ = horizon(&bundle, lists, &chain, purpose, Timestamp::now());
            }));
            // If the chain were refused now, no future date would be checked.
            assert!(
                !label.starts_with("a chain") || ["", "accepted"].contains(&ends.as_str()),
                "{label}, {name}: {ends}"
            );
        }
    };
    // The signatures that take longest to verify.
    for kind in [Kind::P256, Kind::P521] {
        let key = keys.of(kind).expect("a key");
        let mut above = Identity::root(Spec::ca("root"), key.clone()).expect("a CA");
        let root = above.pem();
        let mut chain = Vec::new();
        for n in 0..60 {
            above = above.issue(Spec::ca(n.to_string()), key.clone()).expect("a CA");
            chain.push(above.pem());
        }
        let spec = Spec { san: Some("a.example".to_owned()), eku: any.clone(), ..Spec::leaf("leaf") };
        chain.push(above.issue(spec, POOL.leaves[6].key.clone()).expect("a leaf").pem());
        chain.reverse();
        let chain: String = chain.concat();
        judged(&format!("a chain of {kind:?}"), root.clone() + &dates(20), chain.clone());
        judged(&format!("a chain of {kind:?}, in no order"), root.clone() + &dates(64), chain.clone());
        // Unrelated certificates after the chain, beyond the 64 KiB up to which a client is refused for its session
        // tickets.
        let other = |n| Crafted::ca("o", "o", n).pem();
        let others: String = (0..(125_000 - chain.len()) / other(0).len()).map(other).collect();
        let roots: String = (0..30)
            .map(|serial| Identity::root(Spec { serial, ..Spec::ca("root") }, key.clone()).expect("a CA").pem())
            .collect();
        judged(&format!("a chain of {kind:?} among others"), roots + &dates(64), chain + &others);
    }
    // Names, and constraints on other kinds of names.
    let dns = element(0x82, b"a.example");
    let wide = element(0x30, &[dns.clone(), sized(&element(0x82, b"a.b"), 85_000)].concat());
    let directories = element(0x30, &[dns.clone(), sized(&element(0xa4, &name("a")), 85_000)].concat());
    let mailbox = element(0x30, &[dns, element(0x81, &[&[b'a'; 85_000], &b"@a.b"[..]].concat())].concat());
    let tree = |base: &[u8]| element(0x30, &element(0xa1, &element(0x30, base)));
    for (label, constraints) in [
        ("no subtree", element(0x30, &element(0xa1, b""))),
        ("one subtree", tree(&element(0x82, b"c.d"))),
        ("one subtree of no name", tree(&element(0x86, b"c.d"))),
        ("a few subtrees", element(0x30, &element(0xa1, &sized(&element(0x30, &element(0x82, b"c.d")), 500)))),
    ] {
        for (names, alt_names) in [("hosts", &wide), ("directory names", &directories), ("a mailbox", &mailbox)] {
            for depth in [1, 80] {
                let key = POOL.cas[6].key.clone();
                let spec = |name: String| Spec { constraints: Some(constraints.clone()), ..Spec::ca(name) };
                let mut above = Identity::root(spec("root".to_owned()), key.clone()).expect("a CA");
                let mut cas = above.pem();
                for n in 1..depth {
                    above = above.issue(spec(format!("ca {n}")), key.clone()).expect("a CA");
                    cas += &above.pem();
                }
                let spec = Spec { alt_names: Some(alt_names.clone()), eku: any.clone(), ..Spec::leaf("leaf") };
                let leaf = above.issue(spec, POOL.leaves[6].key.clone()).expect("a leaf").pem();
                judged(&format!("{names} under {label} with CAs: {depth}"), cas + &dates(64), leaf);
            }
        }
    }
    // A ring of CAs with a long name, above a chain.
    let long = "n".repeat(200_000);
    let key = trustspan::trust::Certificate::parse(&POOL.cas[6].der).expect("a CA").public_key;
    let middle = Crafted { key, ..Crafted::ca(&long, "a", 0) }.pem();
    let ring = middle + &Crafted::ca("a", &long, 0).pem();
    judged("below a ring with a long name", ring.clone() + &dates(40), POOL.leaves[6].pem());
    judged("below a ring with a long name and lists", ring + &dates(40) + &POOL.crls[0], POOL.leaves[6].pem());
    conclude("chains at many dates", trials);
}
