//! Cases of trial `named_regressions`: CAs and intermediates with each kind of key, and leaves of them. trustspan must
//! allow exactly the key types that Envoy verifies.

use anyhow::Result;

use crate::{
    case::{Case, Probe},
    pki::{Identity, Keys, Kind, Spec},
    proxy::Content,
    testbed::Seed,
};

const KINDS: [Kind; 8] =
    [Kind::P256, Kind::P384, Kind::P521, Kind::Rsa2048, Kind::Ed25519, Kind::MlDsa44, Kind::MlDsa65, Kind::MlDsa87];

pub(crate) fn cases() -> Result<Vec<Case>> {
    let keys = &mut Keys::shuffled(&mut Seed::of_run("algorithms"));
    let plain = Identity::root(Spec::ca("plain"), keys.of(Kind::P256)?)?;
    let mut cases = Vec::new();
    for kind in KINDS {
        let key = keys.of(Kind::P256)?;
        let root = Identity::root(Spec::ca("root"), keys.of(kind)?)?;
        let of_root = root.issue(Spec::leaf("of root"), key.clone())?;
        let under_plain = plain.issue(Spec { authority_key_id: true, ..Spec::ca("sub") }, keys.of(kind)?)?;
        let under_root = root.issue(Spec { authority_key_id: true, ..Spec::ca("sub") }, keys.of(kind)?)?;
        let of_plain_sub = under_plain.issue(Spec::leaf("of the sub of plain"), key.clone())?;
        let of_root_sub = under_root.issue(Spec::leaf("of the sub of root"), key.clone())?;
        let own = plain.issue(Spec::leaf("own"), keys.of(kind)?)?;
        // A signature with one changed bit.
        let mut flipped = of_root.clone();
        let mut der = flipped.der.to_vec();
        let at = der.len() - 20;
        der[at] ^= 1;
        flipped.der = der.into();
        let probe = |label: &str, leaf: &Identity, above: &[&Identity], shows: Option<&Identity>| -> Result<Probe> {
            let identity = leaf.shown_with(above)?;
            Ok(Probe { label: label.to_owned(), identity, shows: shows.map(|ca| ca.der.clone()), plain_of: None })
        };
        cases.push(Case {
            name: format!("algorithm-{kind:?}").to_lowercase(),
            description: "a CA, an intermediate and a leaf with a key of this kind".to_owned(),
            content: Content::Trust { ca: (root.pem() + &plain.pem()).into_bytes(), crl: None },
            probes: vec![
                probe("of the CA", &of_root, &[], Some(&root))?,
                probe("of the CA, with another signature", &flipped, &[], None)?,
                probe("of the intermediate", &of_plain_sub, &[&under_plain], None)?,
                probe("of the CA's intermediate", &of_root_sub, &[&under_root], None)?,
                probe("with such a key", &own, &[], None)?,
            ],
            chain: Vec::new(),
            root: None,
            stored: None,
        });
        let server = Spec { san: Some("gateway.example".to_owned()), ..Spec::leaf("gateway") };
        let server = plain.issue(server, keys.of(kind)?)?;
        cases.push(Case {
            name: format!("algorithm-pair-{kind:?}").to_lowercase(),
            description: "a serving pair with a key of this kind".to_owned(),
            content: Content::Pair { chain: server.pem().into_bytes(), key: server.key.pem().into_bytes() },
            probes: Vec::new(),
            chain: vec![server.der.clone()],
            root: Some(plain.der.clone()),
            stored: None,
        });
    }
    Ok(cases)
}
