//! Expensive PEM texts, and bundles in which a chain is searched.

use trustspan::trust::bundle;
use trustspan::trust::chain::{Purpose, Store, horizon};

use super::{SIZE, conclude, fill, trial};
use crate::pki::{Identity, Spec, block};
use crate::pool::POOL;

/// PEM texts, and texts that resemble PEM.
pub(super) fn texts() -> Vec<(&'static str, String)> {
    let ca = &POOL.cas[6];
    vec![
        ("BEGIN lines", fill("-----BEGIN CERTIFICATE-----\n")),
        ("indented BEGIN lines", fill(" -----BEGIN CERTIFICATE-----\n")),
        ("glued BEGIN", fill("-----BEGIN CERTIFICATE-----")),
        ("tiny blocks", fill("-----BEGIN A-----\nAAAA\n-----END A-----\n")),
        ("tiny blocks without label", fill("-----BEGIN -----\nAAAA\n-----END -----\n")),
        ("blocks with headers", fill("-----BEGIN A-----\nA: 1\n\nAAAA\n-----END A-----\n")),
        ("key blocks", fill("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")),
        ("certificates with the wrong label", fill(&ca.pem().replace("CERTIFICATE", "CERT"))),
        ("one certificate, again and again", fill(&ca.pem())),
        ("one certificate on lines of one character", lines_of_one(ca)),
        ("distinct CAs of one name", many(ca, false)),
        ("distinct CAs of one name and key", many(ca, true)),
        ("distinct CAs without key identifier", many(&without_key_id(), false)),
        ("distinct leaves", many(&POOL.leaves[8], false)),
        ("RSA CAs", many(&POOL.cas[11], false)),
        ("odd CAs", POOL.cas.iter().map(Identity::pem).collect::<String>().repeat(SIZE / 20_000)),
        ("a ring of cross-signs", POOL.cas[..9].iter().map(Identity::pem).collect::<String>().repeat(SIZE / 7_000)),
        ("a certificate with thousands of names", names(5)),
        ("revocation lists", fill(&POOL.crls[0])),
        ("one line", fill("A")),
        ("empty lines", fill("\n")),
        ("blanks", fill(" ")),
        ("dashes", fill("-END -BEGIN ")),
        ("dashes in lines", fill("-BEGIN\n")),
        ("no ASCII", fill("–BEGIN\u{a0}\n")),
        ("no ASCII in one line", fill("–BEGIN CERTIFICAT\u{a0}")),
        ("base64", fill(&format!("MII{}\n", "A".repeat(61)))),
        ("base64 of base64", fill("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJoekNDQVM2Z0F3SUI=\n")),
    ]
}

fn lines_of_one(ca: &Identity) -> String {
    let pem = ca.pem();
    let lines = pem.split_inclusive('\n').flat_map(|line| match line.starts_with('-') {
        true => vec![line.to_owned()],
        false => line.trim_end().chars().map(|c| format!("{c}\n")).collect(),
    });
    fill(&lines.collect::<String>())
}

fn without_key_id() -> Identity {
    Identity::root(Spec { subject_key_id: false, ..Spec::ca("same") }, POOL.cas[6].key.clone()).expect("a CA")
}

/// As many copies of a certificate as fit, each with another signature and, unless `one_key`, another key. The
/// signatures are never verified.
pub(super) fn many(of: &Identity, one_key: bool) -> String {
    let public = of.key.pair.public_key_raw().to_vec();
    let at = of.der.windows(public.len()).position(|window| window == public).expect("its key") + public.len();
    let count = SIZE / of.pem().len();
    let certificate = |number: usize| {
        let mut der = of.der.to_vec();
        let end = if one_key { der.len() } else { at - 8 };
        der[end - 4..end].copy_from_slice(&(number as u32).to_be_bytes());
        block("CERTIFICATE", &der)
    };
    (0..count).map(certificate).collect()
}

/// A CA with many attributes in its subject.
fn names(count: usize) -> String {
    let spec = Spec::ca("n".repeat(SIZE / count / 3));
    let ca = Identity::root(spec, POOL.cas[6].key.clone()).expect("a CA");
    ca.pem().repeat(count)
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn chains_in_large_bundles() {
    let mut trials = Vec::new();
    let now = jiff::Timestamp::now();
    // Nearly as long as a chain may be, and longer than chains that are refused for their session tickets. Each
    // certificate is the issuer of the next.
    let ring: String = POOL.cas[..9].iter().map(Identity::pem).collect();
    let long = |leaf: &Identity| leaf.pem() + &ring.repeat(20);
    let host = ["gateway.example".to_owned()];
    for (name, text) in texts() {
        for at in [6, 9, 11, 14] {
            let leaf = &POOL.leaves[at];
            for chain in [leaf.pem(), long(leaf)] {
                let label = format!("{name}, leaf {at}, {} bytes of chain", chain.len());
                trials.push(trial(label, || {
                    let bundle = bundle::read(text.as_bytes());
                    let chain = bundle::read_chain(chain.as_bytes()).into_certificates();
                    let crls = bundle.crls.clone();
                    let bundle = bundle.into_certificates();
                    let store = Store::new(&bundle, Some(&crls));
                    let _ = store.verify(&chain, Purpose::Server { hosts: &host }, now);
                    let _ = horizon(&bundle, None, &chain, Purpose::Client, now);
                }));
            }
        }
    }
    let deep = deep();
    trials.push(trial("a chain of cross-signed namesakes", || {
        let certificates = bundle::read(deep.as_bytes()).into_certificates();
        let _ = horizon(&certificates, None, &certificates[..30], Purpose::Client, now);
    }));
    conclude("chains", trials);
}

/// CAs with two subjects, each signed by one with the other subject. Every CA of one subject fits as the issuer of
/// every CA of the other, and the signatures are valid.
fn deep() -> String {
    let (key, other) = (POOL.cas[6].key.clone(), POOL.cas[7].key.clone());
    let spec = |name: &str, serial| Spec { serial, subject_key_id: false, ..Spec::ca(name) };
    let (one, two) = (Identity::root(spec("one", 0), key), Identity::root(spec("two", 0), other));
    let (one, two) = (one.expect("a CA"), two.expect("a CA"));
    let cross = |serial| {
        let (below, above) = if serial % 2 == 0 { (&one, &two) } else { (&two, &one) };
        above.issue(spec(&below.spec.subject, serial), below.key.clone()).expect("a CA").pem()
    };
    (0..SIZE as u64 / 600).map(cross).collect()
}
