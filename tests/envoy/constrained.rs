//! Trial `name_constraints`: CAs with constraints on names of all kinds, and clients with names of all kinds.

use anyhow::Result;

use crate::{
    case::{Case, Probe},
    pki::{Identity, Keys, Kind, Spec, element},
    proxy::Content,
    testbed::Seed,
};

const HOSTS: [&[u8]; 14] = [
    b"a.example",
    b"b.a.example",
    b".a.example",
    b"A.Example",
    b"example",
    b"",
    b"*.a.example",
    b"a.example.",
    b"xa.example",
    b"a_b.example",
    b"*.example",
    b"*",
    b"a..example",
    b"\xe4.example",
];
const MAILBOXES: [&[u8]; 14] = [
    b"a@a.example",
    b"A@a.example",
    b"a@A.example",
    b"a@b.a.example",
    b"a.example",
    b".a.example",
    b"@a.example",
    b"",
    b"a@",
    b"\"a b\"@a.example",
    b"a@a_b.example",
    b"a@b@a.example",
    b"a.b@a.example",
    b"a@a.example.",
];
const URIS: [&[u8]; 18] = [
    b"spiffe://a.example/x",
    b"spiffe://b.a.example/x",
    b"https://A.example:80/",
    b"https://a.example?x",
    b"https://a.example",
    b"spiffe://10.0.0.1/x",
    b"spiffe://[::1]/x",
    b"urn:a:b",
    b"https://me@a.example/",
    b"spiffe://a_b.example/",
    b"spiffe:///x",
    b"",
    b"a.example",
    b".a.example",
    b".example",
    b"example",
    b"a.example.",
    b"spiffe://a.example./x",
];
const ADDRESSES: [&[u8]; 5] = [&[10, 0, 0, 1], &[10, 0, 0, 0, 255, 0, 0, 0], &[0; 16], &[0; 32], &[10, 0, 0, 1, 0]];

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("constrained-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let constraints = Some(constraints(seed));
    let plain = Identity::root(Spec::ca("plain"), keys.of(Kind::P256)?)?;
    let root = Identity::root(Spec { constraints: constraints.clone(), ..Spec::ca("root") }, keys.of(Kind::P256)?)?;
    let below = Spec { constraints, authority_key_id: true, ..Spec::ca("sub") };
    let sub = plain.issue(below, keys.of(Kind::P256)?)?;
    let key = keys.of(Kind::P256)?;
    let mut probes = Vec::new();
    for number in 0..2 + seed.below(4) {
        let names: Vec<_> = (0..seed.below(4)).map(|_| general_name(seed)).collect();
        let alt_names = (!names.is_empty()).then(|| element(0x30, &names.concat()));
        let subject = ["client", "a.example", "b.example", "*.a.example", "a b", ""][seed.below(6) as usize];
        let mail = (seed.below(5) == 0).then(|| String::from_utf8_lossy(draw(&MAILBOXES, seed)).into_owned());
        let spec = Spec { alt_names, mail, ..Spec::leaf(subject) };
        let (issuer, above) = if seed.below(2) == 0 { (&root, vec![]) } else { (&sub, vec![&sub]) };
        let identity = issuer.issue(spec, key.clone())?.shown_with(&above)?;
        probes.push(Probe {
            label: format!("{number} of {}", issuer.spec.subject),
            identity,
            shows: None,
            plain_of: None,
        });
    }
    let ca = (plain.pem() + &root.pem()).into_bytes();
    let content = Content::Trust { ca, crl: None };
    Ok(Case {
        name,
        description: "constraints".to_owned(),
        content,
        probes,
        chain: Vec::new(),
        root: None,
        stored: None,
    })
}

fn constraints(seed: &mut Seed) -> Vec<u8> {
    let mut lists = Vec::new();
    for tag in [0xa0, 0xa1] {
        if seed.below(3) > 0 {
            let mut list = Vec::new();
            for _ in 0..1 + seed.below(3) {
                let mut tree = general_name(seed);
                match seed.below(16) {
                    0 => tree.extend([0x80, 1, 0]),
                    1 => tree.extend([0x81, 1, 1]),
                    _ => {}
                }
                list.extend(element(0x30, &tree));
            }
            lists.extend(element(tag, &list));
        }
    }
    element(0x30, &lists)
}

/// A name, or the base of a subtree.
fn general_name(seed: &mut Seed) -> Vec<u8> {
    match seed.below(16) {
        0..=4 => element(0x82, draw(&HOSTS, seed)),
        5..=7 => element(0x81, draw(&MAILBOXES, seed)),
        8..=10 => element(0x86, draw(&URIS, seed)),
        11 | 12 => element(0x87, draw(&ADDRESSES, seed)),
        13 | 14 => element(0xa4, &element(0x30, &directory(seed))),
        _ => element(0x88, &[0x2a, 3]),
    }
}

/// The content of a directory name: an organization and a common name.
fn directory(seed: &mut Seed) -> Vec<u8> {
    let attribute = |last: u8, text: &[u8]| {
        element(0x31, &element(0x30, &[element(6, &[0x55, 4, last]), element(12, text)].concat()))
    };
    let all = [attribute(3, b"client"), attribute(10, b"Acme"), attribute(3, b"CLIENT"), attribute(3, b"a.example")];
    (0..seed.below(3)).flat_map(|_| all[seed.below(4) as usize].clone()).collect()
}

fn draw(from: &[&'static [u8]], seed: &mut Seed) -> &'static [u8] {
    from[seed.below(from.len() as u64) as usize]
}
