//! Trial `generated_pki`: CAs of all kinds and relations, bundled in any order, with clients of each.

use anyhow::Result;
use rcgen::ExtendedKeyUsagePurpose as Eku;

use crate::{
    case::{BARE, Case, Probe},
    mutate,
    pki::{Basic, Dates, Identity, Keys, Kind, Spec, Usage, shuffle},
    proxy::Content,
    testbed::Seed,
};

/// A random one of these choices.
fn of<T: Clone>(choices: &[T], seed: &mut Seed) -> T {
    choices[seed.below(choices.len() as u64) as usize].clone()
}

/// True with probability 1/`n`.
fn rarely(n: u64, seed: &mut Seed) -> bool {
    seed.below(n) == 0
}

/// Whether a CA is plain: only its dates can be a reason to refuse its certificates.
fn is_plain(spec: &Spec) -> bool {
    let named = spec.permitted.is_some() || spec.excluded.is_some();
    let signs = spec.basic == Basic::Ca && spec.usage != Usage::OnlySignature;
    signs && spec.subject_key_id && spec.eku.is_empty() && !named && !spec.unknown_critical
}

fn authority(number: usize, seed: &mut Seed) -> Spec {
    let mut spec = Spec::ca(format!("ca {number}"));
    // Most CAs have at most one fault, since one fault can hide another.
    match seed.below(16) {
        0 => spec.dates = Dates::Expired,
        1 => spec.dates = Dates::Future,
        2 => spec.basic = Basic::NotCa,
        3 => spec.basic = Basic::Absent,
        13 => spec.dates = Dates::Brief,
        4 => spec.basic = Basic::PathLength(seed.below(2) as u8),
        5 => spec.usage = Usage::OnlySignature,
        6 => spec.usage = Usage::Absent,
        7 => spec.subject_key_id = false,
        8 => spec.eku = vec![of(&[Eku::ClientAuth, Eku::ServerAuth, Eku::Any], seed)],
        9 => spec.permitted = Some("example".to_owned()),
        10 => spec.excluded = Some("example".to_owned()),
        11 => spec.unknown_critical = true,
        12 => spec.authority_key_id = true,
        _ => {}
    }
    spec
}

fn client(number: usize, seed: &mut Seed) -> Spec {
    let mut spec = Spec::leaf(format!("client {number}"));
    spec.serial = 100 + number as u64;
    spec.authority_key_id = !rarely(3, seed);
    match seed.below(12) {
        0 => spec.eku = vec![Eku::ServerAuth],
        1 => spec.eku = vec![Eku::ServerAuth, Eku::ClientAuth],
        2 => spec.eku = Vec::new(),
        3 => spec.eku = vec![Eku::Any],
        4 => spec.dates = of(&[Dates::Expired, Dates::Future], seed),
        5 => spec.san = Some("client.example".to_owned()),
        6 => spec.san = Some("client.elsewhere".to_owned()),
        7 => spec.usage = of(&[Usage::OnlySignature, Usage::CertSign], seed),
        8 => spec.basic = of(&[Basic::NotCa, Basic::Ca], seed),
        9 => spec.unknown_critical = rarely(2, seed),
        _ => {}
    }
    spec
}

/// The side that presents the chains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Clients,
    Servers,
}

impl Side {
    /// Adapts the specification of a client, or of its CA, to this side.
    fn facing(self, mut spec: Spec) -> Spec {
        if self == Self::Servers {
            for usage in &mut spec.eku {
                *usage = match *usage {
                    Eku::ClientAuth => Eku::ServerAuth,
                    Eku::ServerAuth => Eku::ClientAuth,
                    ref other => other.clone(),
                };
            }
        }
        spec
    }
}

pub(crate) fn case(number: usize) -> Result<Case> {
    case_of(&format!("pki-{number}"), Side::Clients)
}

pub(crate) fn case_of(name: &str, side: Side) -> Result<Case> {
    let name = name.to_owned();
    let seed = &mut Seed::of_run(&name);
    let mut keys = Keys::shuffled(seed);
    let mut description = Vec::new();
    // Each CA, with the index of its signer.
    let mut authorities: Vec<(Identity, Option<usize>)> = Vec::new();
    for number in 0..1 + seed.below(5) as usize {
        let mut spec = side.facing(authority(number, seed));
        let other = (number > 0).then(|| seed.below(number as u64) as usize);
        let (made, parent, how) = match (seed.below(9), other) {
            (0, Some(other)) => {
                let own = &authorities[other].0;
                spec.subject = own.spec.subject.clone();
                spec.serial = 2 + number as u64;
                (Identity::root(spec, own.key.clone())?, None, format!("renews {other} with its key"))
            }
            (1, Some(other)) => {
                spec.subject = authorities[other].0.spec.subject.clone();
                (Identity::root(spec, keys.any()?)?, None, format!("is called as {other}"))
            }
            (2, Some(other)) => {
                spec.authority_key_id = !rarely(3, seed);
                (authorities[other].0.issue(spec, keys.any()?)?, Some(other), format!("is signed by {other}"))
            }
            (3, Some(other)) => {
                // A cross-signed certificate: the CA's name and key, signed by another CA.
                let signer = seed.below(number as u64) as usize;
                let own = authorities[other].0.clone();
                spec.subject = own.spec.subject.clone();
                spec.authority_key_id = !rarely(3, seed);
                let made = authorities[signer].0.issue(spec, own.key.clone())?;
                (made, Some(signer), format!("is {other} cross-signed by {signer}"))
            }
            _ => (Identity::root(spec, keys.any()?)?, None, "is a root".to_owned()),
        };
        description.push(format!("{number} {how} ({:?}, {})", made.key.kind, traits(&made.spec)));
        authorities.push((made, parent));
    }

    // Two CAs that signed each other with keys that they no longer have: each names the other as its issuer.
    let mutual = &mut Seed::of_run(&format!("{name}, mutual"));
    if rarely(8, mutual) {
        let plain = |number: usize| Spec { subject_key_id: false, ..Spec::ca(format!("mutual {number}")) };
        let number = authorities.len();
        for (own, other) in [(0, 1), (1, 0)] {
            let before = Identity::root(plain(other), keys.any()?)?;
            authorities.push((before.issue(plain(own), keys.any()?)?, None));
        }
        description.push(format!("{number} and {} are signed by previous keys of each other", number + 1));
    }

    // The bundle: most of the CAs, some twice, in any order.
    let mut inside: Vec<usize> = (0..authorities.len()).filter(|_| !rarely(5, seed)).collect();
    if inside.is_empty() {
        inside.push(0);
    }
    if rarely(5, seed) {
        inside.push(of(&inside.clone(), seed));
    }
    shuffle(&mut inside, seed);
    description.push(format!("bundled {inside:?}"));
    // What is stored before it, in half of the cases. From another seed, so that the other cases stay as they are.
    let others = &mut Seed::of_run(&format!("{name}, stored"));
    let mut stored: Vec<usize> = (0..authorities.len()).filter(|_| !rarely(4, others)).collect();
    shuffle(&mut stored, others);
    let stored = Some(stored).filter(|stored| !stored.is_empty() && rarely(2, others));
    if let Some(stored) = &stored {
        description.push(format!("instead of {stored:?}"));
    }

    let mut probes = Vec::new();
    let mut serials = Vec::new();
    for (number, (authority, parent)) in authorities.iter().enumerate() {
        for variant in 0..1 + seed.below(2) as usize {
            let spec = if variant == 0 && rarely(2, seed) {
                Spec::leaf("client")
            } else {
                client(10 * number + variant, seed)
            };
            let kind =
                of(&[Kind::P256, Kind::P256, Kind::P256, Kind::P384, Kind::Rsa2048, Kind::P521, Kind::Ed25519], seed);
            let leaf = authority.issue(side.facing(spec), keys.of(kind)?)?;
            let is_valid = leaf.spec.dates == Dates::Valid
                && !leaf.spec.unknown_critical
                && leaf.spec.eku.iter().all(|usage| *usage == Eku::ClientAuth)
                && leaf.spec.usage != Usage::CertSign
                && !matches!(kind, Kind::P521 | Kind::Ed25519);
            serials.push((number, leaf.spec.serial));
            let mut chains = vec![(Vec::new(), "")];
            if rarely(2, seed) {
                chains.push((vec![authority], " with its issuer"));
            }
            if let Some(parent) = parent {
                chains.push((vec![authority, &authorities[*parent].0], " with two"));
            }
            for (intermediates, how) in chains {
                let plain = is_valid && intermediates.is_empty() && is_plain(&authority.spec);
                let alone =
                    authorities.iter().filter(|other| other.0.spec.subject == authority.spec.subject).count() == 1;
                let shows = plain && alone && authority.spec.dates == Dates::Valid && parent.is_none();
                probes.push(Probe {
                    label: format!("of {number}{how} ({kind:?}, {})", traits(&leaf.spec)),
                    identity: leaf.shown_with(&intermediates)?,
                    shows: shows.then(|| authority.der.clone()),
                    plain_of: None,
                });
            }
        }
    }

    // Clients of each CA of either bundle that can be refused only for the bundle: with the key identifier of their CA, and without, so that another
    // CA with the same subject affects them.
    let is_used = |number: &usize| inside.contains(number) || stored.iter().flatten().any(|at| at == number);
    for (number, (authority, _)) in authorities.iter().enumerate().filter(|(number, _)| is_used(number)) {
        for authority_key_id in [true, false].into_iter().filter(|with| !with || authority.spec.subject_key_id) {
            let spec = Spec { authority_key_id, ..Spec::leaf(format!("plain client {number}")) };
            let identity = authority.issue(side.facing(spec), keys.of(Kind::P256)?)?.shown_with(&[])?;
            let label = format!("of {number}{}", if authority_key_id { ", plain" } else { BARE });
            probes.push(Probe { label, identity, shows: None, plain_of: Some(authority.der.clone()) });
        }
        let spec =
            Spec { authority_key_id: false, names_serial: true, ..Spec::leaf(format!("client {number} by serial")) };
        let identity = authority.issue(side.facing(spec), keys.of(Kind::P256)?)?.shown_with(&[])?;
        probes.push(Probe { label: format!("of {number}, by serial number"), identity, shows: None, plain_of: None });
    }

    // OpenSSL's trust settings, from another seed, so that the other cases stay as they are.
    let settings = &mut Seed::of_run(&format!("{name}, trust settings"));
    // For servers other purposes count.
    let has_settings = side == Side::Clients && rarely(4, settings);
    let mut written = |authority: &Identity| match has_settings && rarely(2, settings) {
        true => mutate::with_trust_settings(&authority.der, settings),
        false => authority.pem(),
    };
    let mut ca: String = inside.iter().map(|at| written(&authorities[*at].0)).collect();
    if has_settings {
        description.push("with trust settings".to_owned());
        // What a setting refuses is said of it, and not of the path.
        probes.iter_mut().for_each(|probe| probe.shows = None);
    }
    let mut crl = None;
    if rarely(6, seed) {
        let mut lists = String::new();
        for at in &inside {
            if !rarely(4, seed) {
                let revoked: Vec<_> =
                    serials.iter().filter(|(by, _)| by == at && rarely(3, seed)).map(|(_, s)| *s).collect();
                let dates = of(&[Dates::Valid, Dates::Valid, Dates::Valid, Dates::Expired, Dates::Future], seed);
                lists += &authorities[*at].0.crl(dates, &revoked)?;
                description.push(format!("list of {at}: {dates:?}, revokes {revoked:?}"));
            }
        }
        // A list affects all clients, so an accepted client is no evidence that its CA is loaded.
        probes.iter_mut().for_each(|probe| probe.shows = None);
        if rarely(2, seed) {
            ca += &lists;
        } else if !lists.is_empty() {
            crl = Some(lists.into_bytes());
        }
    }
    let content = Content::Trust { ca: ca.into_bytes(), crl };
    let stored = stored.map(|stored| stored.iter().map(|at| authorities[*at].0.pem()).collect::<String>().into_bytes());
    Ok(Case { name, description: description.join("; "), content, probes, chain: Vec::new(), root: None, stored })
}

fn traits(spec: &Spec) -> String {
    let mut words = Vec::new();
    let mut word = |holds: bool, what: String| {
        if holds {
            words.push(what);
        }
    };
    word(spec.dates != Dates::Valid, format!("{:?}", spec.dates));
    word(!matches!(spec.basic, Basic::Ca | Basic::Absent), format!("{:?}", spec.basic));
    word(spec.basic == Basic::Absent && spec.subject_key_id, "no basicConstraints".to_owned());
    word(spec.usage != Usage::Absent, format!("{:?}", spec.usage));
    word(spec.subject_key_id, "SKI".to_owned());
    word(spec.authority_key_id, "AKI".to_owned());
    word(!spec.eku.is_empty(), format!("{:?}", spec.eku));
    word(spec.permitted.is_some(), format!("permits {}", spec.permitted.as_deref().unwrap_or_default()));
    word(spec.excluded.is_some(), format!("excludes {}", spec.excluded.as_deref().unwrap_or_default()));
    word(spec.san.is_some(), format!("for {}", spec.san.as_deref().unwrap_or_default()));
    word(spec.unknown_critical, "unknown critical".to_owned());
    words.join(" ")
}
