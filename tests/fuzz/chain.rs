//! Target: a chain against a bundle, with and without revocation lists.

use jiff::{Timestamp, ToSpan};
use trustspan::trust::Certificate;
use trustspan::trust::bundle::{self, Bundle};
use trustspan::trust::chain::{Purpose, Store, horizon, verify};

use crate::{draw::Draw, mutate::mutate, pool::POOL};

pub(crate) fn case(draw: &mut Draw) {
    let bundle = read(draw, "bundle.pem", 40);
    let chain = read(draw, "chain.pem", 8);
    let lists = read(draw, "lists.pem", 6);
    let crls = draw.one_in(3).then_some(lists.crls.as_slice());
    let mut chain = chain.into_certificates();
    if draw.one_in(2) {
        let leaf = draw.of(&POOL.leaves);
        chain.insert(0, Certificate::parse(&leaf.der).expect("a leaf"));
    }
    let bundle = bundle.into_certificates();
    let hosts = ["gateway.example", "*.example", "127.0.0.1", ""].map(str::to_owned);
    let count = draw.below(hosts.len() as u64) as usize;
    let hosts = &hosts[..count];
    let now = Timestamp::now() + (24 * draw.below(4_000) as i64).hours();
    let server = Purpose::Server { hosts };
    let store = Store::new(&bundle, crls);
    for purpose in [Purpose::Client, server] {
        let verdict = verify(&bundle, crls, &chain, purpose, now);
        assert_eq!(store.verify(&chain, purpose, now), verdict, "asked a second time");
        let ahead = horizon(&bundle, crls, &chain, purpose, now);
        match verdict {
            Ok(accepted) => {
                assert!(accepted.until >= now && !accepted.path.is_empty());
                if let Some(ahead) = ahead {
                    assert!(ahead.at > now);
                    assert_eq!(verify(&bundle, crls, &chain, purpose, ahead.at), Err(ahead.refused));
                }
            }
            Err(refused) => {
                assert!(!refused.id().is_empty() && !refused.to_string().is_empty());
                assert_eq!(ahead, None);
            }
        }
    }
    let unnamed = verify(&bundle, crls, &chain, Purpose::Server { hosts: &[] }, now);
    assert!(unnamed.is_ok() || verify(&bundle, crls, &chain, server, now).is_err(), "a host makes it accepted");
}

fn read(draw: &mut Draw, name: &str, most: u64) -> Bundle {
    let mut text = POOL.text(draw, most).into_bytes();
    if draw.one_in(4) {
        let count = 1 + draw.below(3);
        mutate(&mut text, count, draw);
    }
    draw.show(name, &text);
    bundle::read(&text)
}
