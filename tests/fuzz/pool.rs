//! Certificates for all cases, generated once per run: CAs that cross-sign each other in a ring, CAs with one name, CAs
//! with unusual fields, a leaf of each, and revocation lists.

use std::sync::LazyLock;

use crate::{
    draw::Draw,
    pki::{Basic, Dates, Identity, Key, Keys, Kind, Spec, Usage},
};

/// The generated certificates and lists.
pub(crate) struct Pool {
    pub(crate) cas: Vec<Identity>,
    pub(crate) leaves: Vec<Identity>,
    /// Revocation lists, in PEM.
    pub(crate) crls: Vec<String>,
}

pub(crate) static POOL: LazyLock<Pool> = LazyLock::new(|| {
    let mut keys = Keys::shuffled(&mut Draw::new(&[]));
    let mut key = |kind| keys.of(kind).expect("a key");
    let root = |spec: Spec, key| Identity::root(spec, key).expect("a CA");
    let mut cas = Vec::new();
    let ring: Vec<_> = ["a", "b", "c"].map(|name| root(Spec::ca(name), key(Kind::P256))).into();
    for (at, below) in ring.iter().enumerate() {
        for above in ring.iter().filter(|above| above.spec.subject != below.spec.subject) {
            let spec = Spec { serial: at as u64, authority_key_id: at != 1, ..Spec::ca(below.spec.subject.as_str()) };
            cas.push(above.issue(spec, below.key.clone()).expect("a CA"));
        }
    }
    cas.extend(ring);
    for (number, kind) in [Kind::P256, Kind::P384, Kind::Rsa2048, Kind::Ed25519, Kind::P256].into_iter().enumerate() {
        let namesake = Spec { subject_key_id: number % 2 == 0, ..Spec::ca("same") };
        cas.push(root(namesake, key(kind)));
    }
    let odd = [
        Spec { dates: Dates::Expired, ..Spec::ca("same") },
        Spec { dates: Dates::Expired, ..Spec::ca("old") },
        Spec { dates: Dates::Future, ..Spec::ca("old") },
        Spec { basic: Basic::NotCa, ..Spec::ca("no CA") },
        Spec { basic: Basic::PathLength(0), ..Spec::ca("short") },
        Spec { usage: Usage::OnlySignature, ..Spec::ca("may not sign") },
        Spec { permitted: Some("example".to_owned()), ..Spec::ca("permitted") },
        Spec { excluded: Some("gateway.example".to_owned()), ..Spec::ca("excluded") },
        Spec { unknown_critical: true, ..Spec::ca("unknown") },
        Spec::ca(""),
    ];
    cas.extend(odd.map(|spec| root(spec, key(Kind::P256))));
    let leaf = |(number, ca): (usize, &Identity)| {
        let san = Some("gateway.example".to_owned());
        let spec = Spec { san, authority_key_id: number % 2 == 0, ..Spec::leaf(format!("leaf {number}")) };
        ca.issue(spec, key(Kind::P256)).expect("a leaf")
    };
    let leaves = cas.iter().enumerate().map(leaf).collect();
    let crl = |ca: &Identity| [Dates::Valid, Dates::Expired].map(|dates| ca.crl(dates, &[2]).expect("a list"));
    let crls = cas.iter().skip(6).take(6).flat_map(crl).collect();
    Pool { cas, leaves, crls }
});

impl Pool {
    pub(crate) fn key(&self, draw: &mut Draw) -> &Key {
        &draw.of(&self.leaves).key
    }

    /// A bundle or chain of up to `most` certificates, in any order, some of them twice.
    pub(crate) fn text(&self, draw: &mut Draw, most: u64) -> String {
        (0..draw.below(most + 1)).map(|_| self.block(draw)).collect()
    }

    fn block(&self, draw: &mut Draw) -> String {
        match draw.below(8) {
            7 => draw.of(&self.crls).clone(),
            5 | 6 => draw.of(&self.leaves).pem(),
            _ => draw.of(&self.cas).pem(),
        }
    }
}
