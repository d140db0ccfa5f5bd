//! Trial `mutated_pem`: valid bundles whose text was mutated, each with a client of each CA and with an unrelated client.

use std::sync::{Arc, LazyLock};

use anyhow::Result;
use rustls::sign::CertifiedKey;

use crate::{
    case::{Case, Probe},
    mutate::mutate,
    pki::{Identity, Keys, Kind, Spec, shuffle},
    proxy::Content,
    testbed::Seed,
};

/// A CA with a client.
pub(crate) struct Family {
    pub(crate) ca: Identity,
    client: Arc<CertifiedKey>,
}

impl Family {
    /// A client that is accepted only if the CA was loaded.
    pub(crate) fn probe(&self) -> Probe {
        let label = format!("of {}", self.ca.spec.subject);
        Probe { label, identity: Arc::clone(&self.client), shows: Some(self.ca.der.clone()), plain_of: None }
    }
}

/// Generated once, since only the texts differ between cases.
pub(crate) static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
    let kinds =
        [Kind::P256, Kind::P256, Kind::P384, Kind::Rsa2048, Kind::P256, Kind::Ed25519, Kind::P256, Kind::Rsa2048];
    let mut keys = Keys::shuffled(&mut Seed::of_run("families"));
    let family = |(number, kind): (usize, Kind)| -> Result<Family> {
        let ca = Identity::root(Spec::ca(format!("root {number}")), keys.of(kind)?)?;
        let client = ca.issue(Spec::leaf(format!("client {number}")), keys.of(Kind::P256)?)?;
        Ok(Family { client: client.shown_with(&[])?, ca })
    };
    kinds.into_iter().enumerate().map(family).collect::<Result<_>>().expect("CAs")
});

pub(crate) fn case(number: usize) -> Result<Case> {
    let name = format!("mutated-{number}");
    let seed = &mut Seed::of_run(&name);
    let mut families: Vec<_> = FAMILIES.iter().collect();
    shuffle(&mut families, seed);
    let (inside, outside) = families.split_at(1 + seed.below(4) as usize);
    let mut ca = inside.iter().map(|family| family.ca.pem()).collect::<String>().into_bytes();
    let count = 1 + seed.below(3);
    let description = format!("{} CAs: {}", inside.len(), mutate(&mut ca, count, seed));
    let probes = inside.iter().chain(&outside[..1]).map(|family| family.probe()).collect();
    Ok(Case {
        name,
        description,
        content: Content::Trust { ca, crl: None },
        probes,
        chain: Vec::new(),
        root: None,
        stored: None,
    })
}
