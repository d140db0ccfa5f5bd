//! Trial `changed_elements`: certificates with one or two changed elements, signed after the change.

use anyhow::{Context, Result};
use rcgen::SigningKey;
use trustspan::trust::Certificate;

use crate::{
    case::{Case, Probe},
    odd,
    pki::{Identity, Keys, Kind, Spec, element, shuffle},
    proxy::Content,
    testbed::Seed,
};

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("changed-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let plain = Identity::root(Spec::ca("plain"), keys.of(Kind::P256)?)?;
    let mut root = Identity::root(rich(Spec::ca("root"), seed), keys.of(Kind::P256)?)?;
    let below = rich(Spec { authority_key_id: true, ..Spec::ca("sub") }, seed);
    let mut sub = root.issue(below, keys.of(Kind::P256)?)?;
    let kind = [Kind::P256, Kind::P256, Kind::P384, Kind::Rsa2048][seed.below(4) as usize];
    let mut leaf = sub.issue(rich(Spec::leaf("client"), seed), keys.of(kind)?)?;
    let other = root.issue(Spec::leaf("other"), keys.of(Kind::P256)?)?;
    let (at, change) = match seed.below(3) {
        0 if seed.below(6) == 0 => {
            let keys = odd::unreadable_keys(&plain.key);
            let (what, key) = &keys[seed.below(keys.len() as u64) as usize];
            leaf = with_key(&leaf, &sub, key)?;
            ("the leaf", (*what).to_owned())
        }
        0 => {
            let sound = leaf.clone();
            let change = changed(&mut leaf, &sub, seed)?;
            // With another key the handshake fails for the client's signature, not for its certificate.
            match [&leaf, &sound].map(|leaf| Certificate::parse(&leaf.der).map(|read| read.public_key)) {
                [Ok(new), Ok(old)] if new != old => leaf = sound,
                _ => {}
            }
            ("the leaf", change)
        }
        1 => ("the intermediate", changed(&mut sub, &root, seed)?),
        _ => {
            let signer = root.clone();
            ("the root", changed(&mut root, &signer, seed)?)
        }
    };
    let probe = |label: &str, leaf: &Identity, above: &[&Identity]| {
        Ok(Probe { label: label.to_owned(), identity: leaf.shown_with(above)?, shows: None, plain_of: None })
    };
    let of_plain = plain.issue(Spec::leaf("plain"), keys.of(Kind::P256)?)?;
    let probes = [probe("leaf", &leaf, &[&sub]), probe("other", &other, &[]), probe("of plain", &of_plain, &[])];
    let probes = probes.into_iter().collect::<Result<_>>()?;
    let content = Content::Trust { ca: (root.pem() + &plain.pem()).into_bytes(), crl: None };
    Ok(Case {
        name,
        description: format!("{at}: {change}"),
        content,
        probes,
        chain: Vec::new(),
        root: None,
        stored: None,
    })
}

/// Adds many extensions to a certificate.
fn rich(spec: Spec, seed: &mut Seed) -> Spec {
    let extensions = odd::extensions();
    let (_, number, content) = &extensions[seed.below(extensions.len() as u64) as usize];
    // These extensions may be in the certificate already.
    let raw = (seed.below(2) == 0 && ![17, 30, 35].contains(number)).then(|| (*number, content.clone()));
    let eku = if raw.as_ref().is_some_and(|(number, _)| *number == 37) { Vec::new() } else { spec.eku.clone() };
    let constraints = (spec.serial == 1 && seed.below(3) == 0).then(|| {
        element(
            0x30,
            &[element(0xa0, &element(0x30, &element(0x82, b"example"))), element(0xa1, &alt_names()[2..])].concat(),
        )
    });
    Spec {
        alt_names: (seed.below(2) == 0).then(alt_names),
        constraints: constraints.filter(|_| seed.below(2) == 0),
        raw,
        eku,
        ..spec
    }
}

/// A name of each kind.
fn alt_names() -> Vec<u8> {
    let upn =
        [&[6, 10, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 20, 2, 3][..], &element(0xa0, &element(12, b"a@example"))].concat();
    let name = element(0x30, &element(0x31, &element(0x30, &[&[6, 3, 0x55, 4, 3][..], &element(12, b"x")].concat())));
    let names = [
        element(0x82, b"client.example"),
        element(0x81, b"a@b.example"),
        element(0x86, b"spiffe://td.example/ns"),
        element(0x87, &[10, 0, 0, 1]),
        element(0xa0, &upn),
        element(0xa4, &name),
        element(0xa5, &[element(0xa0, &element(12, b"assigner")), element(0xa1, &element(19, b"party"))].concat()),
        element(0x88, &[0x2a, 3, 4]),
    ];
    element(0x30, &names.concat())
}

/// Changes elements of a certificate, and signs it again if its body has changed.
fn changed(identity: &mut Identity, signer: &Identity, seed: &mut Seed) -> Result<String> {
    if seed.below(24) == 0 {
        identity.der = [&*identity.der, &[0]].concat().into();
        return Ok("a byte after it".to_owned());
    }
    if seed.below(24) == 0 {
        *identity = with_long_length(identity)?;
        return Ok("a long length of its signature".to_owned());
    }
    let mut whole = elements(&identity.der, 0).context("DER")?;
    let parts = inside(&mut whole[0])?;
    if seed.below(12) == 0 {
        let how = change(parts, seed);
        identity.der = encoded(&whole).into();
        return Ok(format!("not signed again: {how}"));
    }
    let body = inside(&mut parts[0])?;
    let how: Vec<_> = (0..1 + seed.below(4) / 3).map(|_| change(body, seed)).collect();
    let algorithm = encoded(&parts[1..2]);
    identity.der = signer.sign(&encoded(&parts[..1]), &algorithm)?;
    Ok(how.join(", "))
}

/// A certificate whose signature has a length with more octets than it needs.
pub(crate) fn with_long_length(identity: &Identity) -> Result<Identity> {
    let mut whole = elements(&identity.der, 0).context("DER")?;
    inside(&mut whole[0])?[2].is_long = true;
    Ok(Identity { der: encoded(&whole).into(), ..identity.clone() })
}

/// A certificate with another public key (DER), signed again.
pub(crate) fn with_key(identity: &Identity, signer: &Identity, key: &[u8]) -> Result<Identity> {
    let der = signed_again(&identity.der, Some(key), None, |body| Ok(signer.key.pair.sign(body)?))?;
    Ok(Identity { der: der.into(), ..identity.clone() })
}

/// A certificate with another public key (DER), or with another signature algorithm (DER), or a revocation list with
/// another signature algorithm, signed again.
pub(crate) fn signed_again(
    der: &[u8],
    key: Option<&[u8]>,
    algorithm: Option<&[u8]>,
    sign: impl FnOnce(&[u8]) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let one = |der: &[u8]| elements(der, 0).and_then(|mut read| read.pop()).context("an element");
    let mut whole = one(der)?;
    let parts = inside(&mut whole)?;
    let body = inside(&mut parts[0])?;
    if let Some(key) = key {
        body[6] = one(key)?;
    }
    if let Some(algorithm) = algorithm {
        // In a certificate a serial number precedes it.
        let at = if body[0].tag == 0xa0 { 2 } else { 1 };
        body[at] = one(algorithm)?;
        parts[1] = one(algorithm)?;
    }
    let signature = sign(&encoded(&parts[..1]))?;
    parts[2].content = Body::Plain([&[0][..], &signature].concat());
    Ok(encoded(&[whole]))
}

/// The elements of a constructed element.
fn inside(element: &mut Element) -> Result<&mut Vec<Element>> {
    match &mut element.content {
        Body::Nested { elements, .. } => Ok(elements),
        Body::Plain(_) => anyhow::bail!("expected a constructed element"),
    }
}

/// A DER element.
#[derive(Clone)]
struct Element {
    tag: u8,
    content: Body,
    /// Whether its length has one byte more than necessary.
    is_long: bool,
}

#[derive(Clone)]
enum Body {
    Plain(Vec<u8>),
    /// The elements of a constructed element, or those inside a string, after a prefix.
    Nested {
        prefix: Vec<u8>,
        elements: Vec<Element>,
    },
}

/// Reads elements to the end; `None` if these bytes are something else.
fn elements(mut bytes: &[u8], depth: usize) -> Option<Vec<Element>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (tag, rest) = bytes.split_first().filter(|(tag, _)| **tag & 0x1f != 0x1f && **tag != 0)?;
        let (first, rest) = rest.split_first()?;
        let (length, rest) = match *first {
            short @ ..=0x7f => (usize::from(short), rest),
            0x81 => (usize::from(*rest.first()?), &rest[1..]),
            0x82 => (usize::from(*rest.first()?) << 8 | usize::from(*rest.get(1)?), &rest[2..]),
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        let prefix = usize::from(*tag == 3);
        let may_nest = depth < 12 && (tag & 0x20 != 0 || matches!(tag, 3 | 4)) && content.len() > prefix;
        let nested = if may_nest { elements(&content[prefix..], depth + 1) } else { None };
        let content = match nested {
            Some(elements) => Body::Nested { prefix: content[..prefix].to_vec(), elements },
            None => Body::Plain(content.to_vec()),
        };
        found.push(Element { tag: *tag, content, is_long: false });
    }
    Some(found)
}

fn encoded(elements: &[Element]) -> Vec<u8> {
    let one = |e: &Element| {
        let content = match &e.content {
            Body::Plain(bytes) => bytes.clone(),
            Body::Nested { prefix, elements } => [prefix.as_slice(), &encoded(elements)].concat(),
        };
        let mut der = element(e.tag, &content);
        if e.is_long {
            match der[1] {
                0x82 => drop(der.splice(1..2, [0x83, 0])),
                0x81 => drop(der.splice(1..2, [0x82, 0])),
                _ => der.insert(1, 0x81),
            }
        }
        der
    };
    elements.iter().flat_map(one).collect()
}

fn count(elements: &[Element]) -> u64 {
    elements.iter().map(|e| 1 + if let Body::Nested { elements, .. } = &e.content { count(elements) } else { 0 }).sum()
}

/// Changes one of the elements, or of those inside them.
fn change(elements: &mut Vec<Element>, seed: &mut Seed) -> String {
    let at = seed.below(count(elements).max(1));
    at_number(elements, at, &mut Vec::new(), seed).unwrap_or_else(|_| "nothing".to_owned())
}

/// Changes the element with this number, counted depth first, and returns a description. If there are fewer elements,
/// the error is the number less their count.
fn at_number(
    elements: &mut Vec<Element>,
    mut number: u64,
    path: &mut Vec<usize>,
    seed: &mut Seed,
) -> Result<String, u64> {
    for at in 0..elements.len() {
        path.push(at);
        if number == 0 {
            let how = apply(elements, at, seed);
            return Ok(format!("{how} at {path:?}"));
        }
        number -= 1;
        if let Body::Nested { elements, .. } = &mut elements[at].content {
            match at_number(elements, number, path, seed) {
                Ok(how) => return Ok(how),
                Err(rest) => number = rest,
            }
        }
        path.pop();
    }
    Err(number)
}

const TAGS: [u8; 40] = [
    1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 30, 0x30, 0x31, 0x80, 0x81, 0x82,
    0x84, 0x86, 0x88, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xc0, 0xe0, 0x40, 0x61,
];

/// Values that are valid in some places: a UUID's arc, other numbers, strings, dates.
fn values() -> Vec<Vec<u8>> {
    let uuid = [&[0x69][..], &[0x83], &[0xff; 17], &[0x7f]].concat();
    [
        uuid.as_slice(),
        &[0x2a, 3, 4],
        &[0x80, 1],
        &[0x2b, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
        &[0x55, 0x1d, 37, 0],
        &[],
        &[0],
        &[1],
        &[0xff],
        &[0, 1],
        &[0, 0x80],
        &[0xff, 0x80],
        &[0xff; 20],
        &[0x7f; 30],
        &[7, 0x80],
        &[1, 0xfe],
        b"a@b\xe4.example",
        b"\xc3\xa4.example",
        b"260101000000Z",
        b"20260101000000Z",
        b"2601010000Z",
        b"260101000000+0000",
        b"20260101000000.5Z",
        b"99991231235959Z",
        b"19491231235959Z",
        b"500101000000Z",
        b"\0a",
        b"\0\0\0a",
        b"a\0b",
    ]
    .map(<[u8]>::to_vec)
    .to_vec()
}

fn apply(elements: &mut Vec<Element>, at: usize, seed: &mut Seed) -> String {
    let values = values();
    let mut other = Element {
        tag: TAGS[seed.below(TAGS.len() as u64) as usize],
        content: Body::Plain(values[seed.below(values.len() as u64) as usize].clone()),
        is_long: false,
    };
    match seed.below(15) {
        0 | 1 => {
            let tag = std::mem::replace(&mut elements[at].tag, other.tag);
            format!("tag {tag:#x} turned into {:#x}", other.tag)
        }
        2 | 3 => {
            let Body::Plain(value) = &other.content else { return String::new() };
            let how = format!("the content {value:x?} of {:#x}", elements[at].tag);
            elements[at].content = other.content;
            how
        }
        4 | 5 => {
            let how = format!("tag {:#x} turned into {:#x} with another content", elements[at].tag, other.tag);
            elements[at] = other;
            how
        }
        6 => {
            let removed = elements.remove(at);
            format!("{:#x} removed", removed.tag)
        }
        7 => {
            elements.insert(at, elements[at].clone());
            format!("{:#x} doubled", elements[at].tag)
        }
        8 => {
            shuffle(elements, seed);
            "the order".to_owned()
        }
        9 => {
            other.is_long = false;
            let how = format!("{:#x} inserted", other.tag);
            elements.insert(at, other);
            how
        }
        10 => {
            elements[at].is_long = true;
            format!("a long length of {:#x}", elements[at].tag)
        }
        11 => {
            let content = encoded(&elements[at..=at]);
            let bytes = &content[content.len().min(2)..];
            let mut bytes = bytes.to_vec();
            bytes.push(seed.below(256) as u8);
            elements[at].content = Body::Plain(bytes);
            format!("a byte more in {:#x}", elements[at].tag)
        }
        12 => {
            elements[at].tag ^= 0x40;
            format!("another class of a tag, now {:#x}", elements[at].tag)
        }
        _ => {
            let Body::Plain(bytes) = &mut elements[at].content else {
                elements[at].content = Body::Plain(Vec::new());
                return format!("{:#x} emptied", elements[at].tag);
            };
            let place = seed.below(bytes.len().max(1) as u64) as usize;
            let value = if seed.below(2) == 0 { seed.below(256) as u8 } else { 1 << seed.below(8) };
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= value;
            }
            format!("byte {place} of {:#x}", elements[at].tag)
        }
    }
}
