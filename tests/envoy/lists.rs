//! Trial `revocation_lists`: valid bundles with lists: of some CAs, of other CAs, outdated, mutated.

use anyhow::Result;

use crate::{
    case::{Case, Probe},
    mutate::mutate,
    pki::{Dates, Identity, Spec, shuffle},
    proxy::Content,
    testbed::Seed,
    texts::{FAMILIES, Family},
};

/// Mutations change blocks with the label CERTIFICATE, so lists are mutated under that label.
const LABELS: [&str; 2] = ["X509 CRL", "CERTIFICATE"];

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("lists-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut families: Vec<_> = FAMILIES.iter().collect();
    shuffle(&mut families, seed);
    let (inside, outside) = families.split_at(1 + seed.below(3) as usize);
    let (mut description, mut lists) = (Vec::new(), String::new());
    for family in inside {
        let (how, list) = list(family, outside[0], seed)?;
        description.push(format!("{}: {how}", family.ca.spec.subject));
        lists += &list;
    }
    if seed.below(8) == 0 {
        description.push("and one of another CA".to_owned());
        lists += &outside[0].ca.crl(Dates::Valid, &[])?;
    }
    let mut lists = lists.into_bytes();
    if seed.below(2) == 0 {
        let mut text = String::from_utf8(lists)?.replace(LABELS[0], LABELS[1]).into_bytes();
        description.push(mutate(&mut text, 1 + seed.below(2), seed));
        lists = relabelled(&text);
    }
    let ca = inside.iter().map(|family| family.ca.pem()).collect::<String>().into_bytes();
    let content = match seed.below(4) {
        0 => Content::Trust { ca: [ca, lists].concat(), crl: None },
        _ => Content::Trust { ca, crl: Some(lists) },
    };
    // The client may be refused for its list, so a refusal does not show that its CA is missing.
    let probe = |family: &&Family| Probe { shows: None, ..family.probe() };
    let probes = inside.iter().chain(&outside[..1]).map(probe).collect();
    Ok(Case { name, description: description.join("; "), content, probes, chain: Vec::new(), root: None, stored: None })
}

/// A list of a CA, valid in most cases.
fn list(family: &Family, other: &Family, seed: &mut Seed) -> Result<(&'static str, String)> {
    Ok(match seed.below(12) {
        0 => ("no list", String::new()),
        1 => ("expired", family.ca.crl(Dates::Expired, &[])?),
        2 => ("ahead of its time", family.ca.crl(Dates::Future, &[])?),
        3 => {
            let spec = Spec { subject: family.ca.spec.subject.clone(), ..other.ca.spec.clone() };
            ("signed by another key", Identity::root(spec, other.ca.key.clone())?.crl(Dates::Valid, &[])?)
        }
        4 => ("revokes the client", family.ca.crl(Dates::Valid, &[2])?),
        5 => ("twice", family.ca.crl(Dates::Expired, &[])? + &family.ca.crl(Dates::Valid, &[])?),
        _ => ("valid", family.ca.crl(Dates::Valid, &[9])?),
    })
}

/// Restores the label of lists. Works on bytes, since a mutated text need not be UTF-8.
fn relabelled(text: &[u8]) -> Vec<u8> {
    let [to, from] = LABELS.map(str::as_bytes);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}
