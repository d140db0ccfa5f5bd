//! Trial `long_chains`: CAs on several levels, some renewed, cross-signed or with the name of another, and chains that present them in any
//! order.

use anyhow::Result;
use rcgen::ExtendedKeyUsagePurpose as Eku;

use crate::{
    case::{Case, Probe},
    pki::{Basic, Dates, Identity, Keys, Kind, Spec, Usage, shuffle},
    proxy::Content,
    testbed::Seed,
};

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("chain-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let mut description = Vec::new();
    // Each CA, with the index of its signer.
    let mut cas = vec![(Identity::root(ca(0, seed), keys.of(Kind::P256)?)?, None)];
    for number in 1..2 + seed.below(7) as usize {
        let (signer, other) = (seed.below(number as u64) as usize, seed.below(number as u64) as usize);
        let mut spec = ca(number, seed);
        spec.authority_key_id = seed.below(3) > 0;
        let known = cas[other].0.clone();
        let (key, how) = match seed.below(7) {
            0 => {
                spec.subject = cas[signer].0.spec.subject.clone();
                (keys.of(Kind::P256)?, "self-issued")
            }
            1 => {
                spec.subject = known.spec.subject.clone();
                (known.key, "cross-signed")
            }
            2 => {
                spec.subject = known.spec.subject.clone();
                (keys.of(Kind::P256)?, "duplicate subject")
            }
            3 => {
                cas.push((Identity::root(spec, keys.of(Kind::P256)?)?, None));
                description.push(format!("{number} is a root"));
                continue;
            }
            _ => (keys.of(Kind::P256)?, "new"),
        };
        description.push(format!("{number} is {how}, of {other}, signed by {signer}"));
        cas.push((cas[signer].0.issue(spec, key)?, Some(signer)));
    }
    let mut inside: Vec<usize> = (0..cas.len()).filter(|_| seed.below(3) == 0).collect();
    if inside.is_empty() {
        inside.push(seed.below(cas.len() as u64) as usize);
    }
    shuffle(&mut inside, seed);
    description.push(format!("bundled {inside:?}"));

    let (mut probes, leaf_key) = (Vec::new(), keys.of(Kind::P256)?);
    for number in 0..3 + seed.below(4) {
        let at = seed.below(cas.len() as u64) as usize;
        let spec = Spec { authority_key_id: seed.below(3) > 0, ..Spec::leaf(format!("client {number}")) };
        let leaf = cas[at].0.issue(spec, leaf_key.clone())?;
        let mut above: Vec<usize> = std::iter::successors(Some(at), |at| cas[*at].1).collect();
        for _ in 0..seed.below(4) {
            match seed.below(4) {
                0 => shuffle(&mut above, seed),
                1 => above.push(seed.below(cas.len() as u64) as usize),
                2 if !above.is_empty() => drop(above.remove(seed.below(above.len() as u64) as usize)),
                _ => above.insert(0, seed.below(cas.len() as u64) as usize),
            }
        }
        let chain: Vec<_> = above.iter().map(|at| &cas[*at].0).collect();
        let label = format!("of {at} with {above:?}");
        probes.push(Probe { label, identity: leaf.shown_with(&chain)?, shows: None, plain_of: None });
    }
    let ca = inside.iter().map(|at| cas[*at].0.pem()).collect::<String>().into_bytes();
    let content = Content::Trust { ca, crl: None };
    Ok(Case { name, description: description.join("; "), content, probes, chain: Vec::new(), root: None, stored: None })
}

/// A random CA, in most cases one without special fields.
fn ca(number: usize, seed: &mut Seed) -> Spec {
    let mut spec = Spec::ca(format!("ca {number}"));
    match seed.below(20) {
        0 => spec.dates = Dates::Expired,
        1 => spec.dates = Dates::Future,
        2..=5 => spec.basic = Basic::PathLength(seed.below(3) as u8),
        6 => spec.basic = Basic::NotCa,
        7 => spec.basic = Basic::Absent,
        8 => spec.usage = Usage::OnlySignature,
        9 => spec.usage = Usage::Absent,
        10 => spec.eku = vec![[Eku::ClientAuth, Eku::ServerAuth, Eku::Any][seed.below(3) as usize].clone()],
        11 => spec.subject_key_id = false,
        12 => spec.unknown_critical = true,
        _ => {}
    }
    spec
}
