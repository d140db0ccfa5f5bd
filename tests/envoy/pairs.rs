//! Trial `serving_pairs`: chains and keys of all kinds, mutated or not; the chain that the gateway presents is compared.

use anyhow::Result;
use rcgen::ExtendedKeyUsagePurpose as Eku;

use crate::{
    case::Case,
    mutate::mutate,
    pki::{Basic, Dates, Identity, Keys, Kind, Spec, block},
    proxy::Content,
    testbed::Seed,
};

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("pair-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let root = Identity::root(Spec::ca("root"), keys.any()?)?;
    let sub = root.issue(Spec { authority_key_id: true, ..Spec::ca("sub") }, keys.any()?)?;
    // Sometimes the chain lacks a CA above the leaf's issuer.
    let sub = if seed.below(4) == 0 {
        sub.issue(Spec { authority_key_id: true, ..Spec::ca("sub of sub") }, keys.any()?)?
    } else {
        sub
    };
    let kind = [Kind::P256, Kind::P256, Kind::P384, Kind::P521, Kind::Rsa2048, Kind::Ed25519][seed.below(6) as usize];
    let dates = [Dates::Valid, Dates::Valid, Dates::Valid, Dates::Expired, Dates::Future][seed.below(5) as usize];
    let basic = [Basic::Absent, Basic::NotCa, Basic::Ca][seed.below(3) as usize];
    let san = Some("gateway.example".to_owned());
    let spec = Spec { dates, basic, san, eku: vec![Eku::ServerAuth], ..Spec::leaf("gateway") };
    let leaf = sub.issue(spec, keys.of(kind)?)?;

    let certificates = match seed.below(7) {
        0 => vec![&leaf],
        1 => vec![&leaf, &sub],
        2 => vec![&leaf, &sub, &root],
        3 => vec![&sub, &leaf],
        4 => vec![&leaf, &leaf],
        5 => vec![&leaf, &root, &sub],
        _ => vec![&leaf, &root],
    };
    let mut chain = certificates.iter().map(|one| one.pem()).collect::<String>().into_bytes();
    let (form, mut key) = match seed.below(10) {
        0 => ("another key", keys.of(kind)?.pem()),
        1 | 2 if kind != Kind::Ed25519 => {
            let (label, der) = leaf.key.traditional()?;
            ("a traditional key", block(label, &der))
        }
        3 if kind != Kind::Ed25519 => {
            let (label, _) = leaf.key.traditional()?;
            ("PKCS#8 under a traditional label", leaf.key.pem().replace("PRIVATE KEY", label))
        }
        4 => ("parameters before the key", block("EC PARAMETERS", &[6, 1, 42]) + &leaf.key.pem()),
        5 => ("the chain before the key", leaf.pem() + &leaf.key.pem()),
        6 => ("two keys", leaf.key.pem() + &keys.any()?.pem()),
        _ => ("PKCS#8", leaf.key.pem()),
    };
    let mut description = format!("{kind:?} {dates:?} {basic:?}, {} certificates, {form}", certificates.len());
    match seed.below(4) {
        0 => description += &format!(", chain: {}", mutate(&mut chain, 1, seed)),
        1 => {
            // Mutations change blocks with the label CERTIFICATE, so the key is mutated under that label.
            let mut bytes = key.replace("PRIVATE KEY", "CERTIFICATE").into_bytes();
            let how = mutate(&mut bytes, 1, seed);
            description += &format!(", key: {how}");
            key = String::from_utf8_lossy(&bytes).replace("CERTIFICATE", "PRIVATE KEY");
        }
        _ => {}
    }
    let made_of = certificates.iter().map(|one| one.der.clone()).collect();
    let content = Content::Pair { chain, key: key.into_bytes() };
    Ok(Case {
        name,
        description,
        content,
        probes: Vec::new(),
        chain: made_of,
        root: Some(root.der.clone()),
        stored: None,
    })
}
