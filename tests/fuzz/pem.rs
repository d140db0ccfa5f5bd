//! Target: bytes under the keys of a Secret, which are parsed and judged.

use std::collections::BTreeMap;

use trustspan::trust::{self, Secret, SecretUsage, Severity, bundle, pem, private_key};

use crate::{draw::Draw, mutate::mutate, pool::POOL};

pub(crate) fn case(draw: &mut Draw) {
    let usage = SecretUsage { ca_required: draw.one_in(2), ..SecretUsage::default() };
    if draw.one_in(4) {
        let text = draw.rest();
        draw.show("text.pem", &text);
        return judged(draw, text, usage);
    }
    let most = 1 + draw.below(5);
    let mut text = POOL.text(draw, most).into_bytes();
    let count = draw.below(5);
    mutate(&mut text, count, draw);
    if draw.one_in(6) {
        // A private key follows, so nothing is stored for the report from here on.
        text.extend(POOL.key(draw).pem().into_bytes());
        return judged(draw, text, usage);
    }
    draw.show("text.pem", &text);
    judged(draw, text, usage);
}

fn judged(draw: &mut Draw, text: Vec<u8>, usage: SecretUsage) {
    let lines = text.split(|b| *b == b'\n').count();
    let reading = pem::read(&text);
    assert!(reading.blocks.iter().all(|block| block.line <= lines && !block.content.is_empty()));
    for read in [bundle::read(&text), bundle::read_chain(&text)] {
        assert!(read.entries.is_sorted_by_key(|entry| entry.line), "out of order");
        assert!(read.entries.iter().all(|entry| entry.line <= lines), "a line that is not there");
        // The content of a block may be rejected where its PEM syntax is accepted, but not the other way round.
        assert!(read.rejected.is_some() || reading.rejected.is_none(), "{:?}", reading.rejected);
        for certificate in read.into_certificates() {
            let again = bundle::read(certificate.pem().as_bytes()).into_certificates();
            assert_eq!(again, [certificate], "what it wrote reads otherwise");
        }
    }
    let key = if draw.one_in(3) { text.clone() } else { POOL.key(draw).pem().into_bytes() };
    let known = private_key::public_key(&key).is_ok();
    assert!(known || key == text, "a sound key is not read");
    let secret = secret([("ca.crt", text.clone()), ("tls.crt", text), ("tls.key", key)]);
    let now = jiff::Timestamp::now();
    let found = trust::judge(&secret, usage, now);
    assert!(found.iter().all(|finding| !finding.message.is_empty() && !finding.field.is_empty()));
    assert!(found.iter().all(|finding| finding.warning().chars().count() <= 120));
    let unchanged = trust::judge_update(&secret, &secret, usage, now);
    assert!(unchanged.iter().all(|finding| finding.severity == Severity::Warn), "{unchanged:?}");
    assert_eq!(unchanged.is_empty(), found.is_empty());
}

/// A Secret with this data.
pub(crate) fn secret(data: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Secret {
    Secret {
        namespace: "istio-system".to_owned(),
        name: "gateway".to_owned(),
        type_: "Opaque".to_owned(),
        labels: BTreeMap::new(),
        immutable: false,
        data: data.into_iter().map(|(key, bytes)| (key.to_owned(), bytes.into())).collect(),
    }
}
