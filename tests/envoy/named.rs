//! Trial `named_regressions`: cases that were measured by hand, and all disagreements that were found. They are part of
//! every run.

use anyhow::Result;
use rcgen::ExtendedKeyUsagePurpose as Eku;

use crate::{
    case::{Case, Probe},
    named_bundles::{Bench, TRUST, Trust},
    pki::{Identity, Keys, Kind, Spec, block},
    proxy::Content,
    testbed::Seed,
};

pub(crate) fn cases() -> Result<Vec<Case>> {
    let mut bench = Bench::new()?;
    let mut cases = Vec::new();
    for (name, why, make) in TRUST {
        let Trust { ca, crl, clients } = bench.make(name, *make)?;
        // An accepted client shows that its CA was loaded. If it is refused although the CA is in the text, the CA was
        // dropped.
        let shows = |client: &Identity| {
            let pairs = [(&bench.client_one, &bench.one), (&bench.client_two, &bench.two)];
            let found =
                pairs.into_iter().find(|(of, _)| of.der == client.der && crl.is_none() && !ca.contains("X509 CRL"));
            found.filter(|_| *name != "subjects-over-64-kib").map(|(_, ca)| ca.der.clone())
        };
        let probe = |client: &Identity| -> Result<Probe> {
            let label = format!("{:?} of kind {:?}", client.spec.subject, client.key.kind);
            Ok(Probe { label, identity: client.shown_with(&[])?, shows: shows(client), plain_of: None })
        };
        let probes = clients.iter().map(probe).collect::<Result<_>>()?;
        let content = Content::Trust { ca: ca.clone().into_bytes(), crl: crl.clone().map(String::into_bytes) };
        cases.push(Case {
            name: (*name).to_owned(),
            description: (*why).to_owned(),
            content,
            probes,
            chain: Vec::new(),
            root: None,
            stored: None,
        });
    }
    cases.extend(pairs(&bench.one)?);
    cases.extend(crate::odd::cases()?);
    cases.extend(crate::algorithms::cases()?);
    Ok(cases)
}

/// Serving pairs: name, why, and the pair.
fn pairs(ca: &Identity) -> Result<Vec<Case>> {
    let mut keys = Keys::shuffled(&mut Seed::of_run("named pairs"));
    let mut leaf =
        |kind| ca.issue(Spec { san: Some("gateway.example".to_owned()), ..Spec::leaf("gateway") }, keys.of(kind)?);
    let (p256, ed25519, other) = (leaf(Kind::P256)?, leaf(Kind::Ed25519)?, leaf(Kind::P256)?);
    let (label, inner) = p256.key.traditional()?;
    let sub = ca.issue(Spec { authority_key_id: true, ..Spec::ca("sub") }, keys.of(Kind::P256)?)?;
    let below = Spec { san: Some("gateway.example".to_owned()), eku: vec![Eku::ServerAuth], ..Spec::leaf("below") };
    let below = sub.issue(below, keys.of(Kind::P256)?)?;
    let case = |name: &str, why: &str, chain: &[&Identity], key: String| Case {
        name: name.to_owned(),
        description: why.to_owned(),
        content: Content::Pair {
            chain: chain.iter().map(|c| c.pem()).collect::<String>().into_bytes(),
            key: key.into_bytes(),
        },
        probes: Vec::new(),
        chain: chain.iter().map(|c| c.der.clone()).collect(),
        root: Some(ca.der.clone()),
        stored: None,
    };
    Ok(vec![
        case("pair-sound", "works", &[&p256, ca], p256.key.pem()),
        case("pair-through-sub", "a client that trusts the root finds its way", &[&below, &sub], below.key.pem()),
        case(
            "pair-gap",
            "served as written; a client that trusts the root misses the issuer",
            &[&below, ca],
            below.key.pem(),
        ),
        case("pair-out-of-order", "served as written; a client sorts it out", &[&below, ca, &sub], below.key.pem()),
        case("pair-other-key", "rejected", &[&p256], other.key.pem()),
        case(
            "pair-ed25519",
            "found: Envoy serves with RSA and ECDSA only, we allowed it",
            &[&ed25519],
            ed25519.key.pem(),
        ),
        case(
            "pair-curveless-key",
            "found: SEC1 without its curve is rejected, we allowed it",
            &[&p256],
            block(label, &inner),
        ),
        Case {
            content: Content::Pair {
                chain: (p256.pem() + &ca.pem().replace("CERTIFICATE", "RSA PRIVATE KEY")).into_bytes(),
                key: p256.key.pem().into_bytes(),
            },
            ..case("pair-certificate-as-key", "found: it was dropped, and we said nothing", &[&p256, ca], String::new())
        },
    ])
}
