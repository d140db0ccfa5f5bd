//! Target: the cases of `tests/boringssl`, and bundles with edited bytes, compared with BoringSSL in this process.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU8, Ordering},
    },
};

use anyhow::{Context, Result};
use rustls::{pki_types::CertificateDer, sign::CertifiedKey};
use trustspan::trust::Certificate;

use crate::{
    case::{Case, Probe},
    client::Outcome,
    draw::Draw,
    judge::Judge,
    mutate::mutate,
    pki::{Identity, block},
    pool::POOL,
    proxy::Content,
    testbed::{Seed, set_input},
    texts::FAMILIES,
    trial::{SORTS, Trial, gateway, trial},
};

thread_local! {
    static JUDGE: Judge = gateway().and_then(|gateway| Judge::new(&gateway)).expect("BoringSSL");
}

/// Counters that libFuzzer reads in addition to those of the code: one for each of BoringSSL's reasons to refuse a
/// client, since BoringSSL itself has no counters.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static REASONS: [AtomicU8; 1 << 10] = [const { AtomicU8::new(0) }; 1 << 10];

fn count(outcome: &Outcome) {
    let Outcome::Refused(why) = outcome else { return };
    let mut hasher = DefaultHasher::new();
    why.hash(&mut hasher);
    REASONS[hasher.finish() as usize % REASONS.len()].fetch_add(1, Ordering::Relaxed);
}

/// Generates what all cases share.
pub(crate) fn prepare() {
    LazyLock::force(&FAMILIES);
    JUDGE.with(|_| ());
}

pub(crate) fn case(draw: &mut Draw) {
    let sort = draw.below(SORTS.len() as u64 + 2) as usize;
    let input = draw.rest();
    // The other cases read the input from its start.
    set_input(&input);
    let tried = JUDGE.with(|judge| match SORTS.get(sort) {
        Some(sort) => (sort.try_one)(judge, 0),
        None => trial(judge, edited(&mut Seed::new(&input))?),
    });
    let Trial { disagreements, text, replay, .. } = tried.expect("a verdict of BoringSSL");
    if let Some((_, seen)) = replay {
        seen.outcomes.iter().for_each(count);
    }
    assert!(disagreements.is_empty(), "{text}");
}

/// A bundle of a sound CA and of a leaf that clients present, too: with the leaf as an anchor, BoringSSL does not
/// verify its signature, so that its bytes may be edited.
fn edited(seed: &mut Seed) -> Result<Case> {
    let leaf = seed.of(&POOL.leaves);
    let mut der = leaf.der.to_vec();
    for _ in 0..seed.below(9) {
        edit(&mut der, seed);
    }
    let family = seed.of(&FAMILIES);
    let mut ca = (block("CERTIFICATE", &der) + &family.ca.pem()).into_bytes();
    let count = seed.below(4);
    let description = mutate(&mut ca, count, seed);
    let mut probes = vec![family.probe()];
    if has_key_of(&der, leaf) {
        probes.push(presented(leaf, der)?);
    }
    let content = Content::Trust { ca, crl: None };
    Ok(Case { name: "edited".to_owned(), description, content, probes, chain: Vec::new(), root: None, stored: None })
}

/// Whether a certificate cannot be parsed, or has the key of this identity. With another key a handshake fails for the
/// client's signature, not for its certificate.
fn has_key_of(der: &[u8], identity: &Identity) -> bool {
    let key = |der: &[u8]| Certificate::parse(der).map(|read| read.public_key);
    key(der).is_err() || key(der).ok() == key(&identity.der).ok()
}

fn presented(leaf: &Identity, der: Vec<u8>) -> Result<Probe> {
    let chain = vec![CertificateDer::from(der)];
    let key = Arc::clone(&leaf.shown_with(&[]).context("a leaf")?.key);
    Ok(Probe { label: "with the leaf".to_owned(), identity: Arc::new(CertifiedKey::new(chain, key)), shows: None })
}

/// Replaces, inserts or removes a byte.
fn edit(bytes: &mut Vec<u8>, seed: &mut Seed) {
    let at = seed.below(bytes.len() as u64 + 1) as usize;
    let value = seed.below(256) as u8;
    match seed.below(4) {
        0 => bytes.insert(at, value),
        1 if at < bytes.len() => drop(bytes.remove(at)),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
    }
}
