//! The longest keys that signatures are verified with. An attacker does not need the private key to make others verify
//! with it.

use jiff::Timestamp;
use serde_json::{Value, json};
use trustspan::registry::Registry;
use trustspan::trust::bundle;
use trustspan::trust::chain::{Purpose, Store, horizon};

use super::{
    SIZE, conclude,
    reviews::{body, both, secret},
    trial,
};
use crate::pki::{block, element};
use crate::pool::POOL;

/// Bytes of a modulus of 8192 bits.
const MODULUS: usize = 1024;

/// The first serial number: its four bytes are a valid INTEGER without padding.
const SERIAL: u32 = 1 << 24;

/// A certificate with `issuer` as its issuer and such a key. Each serial number gives another certificate.
fn certificate(issuer: &str, subject: &str, serial: u32, is_ca: bool) -> String {
    let name = |text: &str| {
        let attribute = [element(6, &[0x55, 4, 3]), element(12, text.as_bytes())].concat();
        element(0x30, &element(0x31, &element(0x30, &attribute)))
    };
    let rsa = |last: u8| {
        let oid = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, last];
        element(0x30, &[element(6, &oid), element(5, &[])].concat())
    };
    let mut modulus = vec![0xff; MODULUS];
    modulus[4..8].copy_from_slice(&serial.to_be_bytes());
    let numbers = element(0x30, &[element(2, &[&[0], &modulus[..]].concat()), element(2, &[1, 0, 1])].concat());
    let key = element(0x30, &[rsa(1), element(3, &[&[0], &numbers[..]].concat())].concat());
    let dates = ["250101000000Z", "490101000000Z"].map(|date| element(0x17, date.as_bytes())).concat();
    let basic = [element(6, &[0x55, 0x1d, 19]), element(4, &element(0x30, &element(1, &[0xff])))].concat();
    let extensions = element(0xa3, &element(0x30, &element(0x30, &basic)));
    let body = [
        element(0xa0, &element(2, &[2])),
        element(2, &serial.to_be_bytes()),
        rsa(11),
        name(issuer),
        element(0x30, &dates),
        name(subject),
        key,
        if is_ca { extensions } else { Vec::new() },
    ];
    let signature = element(3, &[&[0], &[0x7f; MODULUS][..]].concat());
    block("CERTIFICATE", &element(0x30, &[element(0x30, &body.concat()), rsa(11), signature].concat()))
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn long_keys() {
    let size = certificate("one", "one", SERIAL, true).len();
    let all = |name: fn(u32) -> (&'static str, &'static str)| {
        let one = |serial| (name(serial), serial);
        let cas = (SERIAL..).take(SIZE / size).map(one);
        cas.map(|((issuer, subject), serial)| certificate(issuer, subject, serial, true)).collect::<String>()
    };
    let roots = all(|_| ("one", "one"));
    let ring = all(|serial| if serial % 2 == 0 { ("one", "two") } else { ("two", "one") });
    let leaf = certificate("one", "leaf", 2 * SERIAL, false);
    let parts: Vec<_> = ring.split_inclusive("-----END CERTIFICATE-----\n").take(30).collect();
    let long = format!("{leaf}{}", parts.concat());
    let mut trials = Vec::new();
    let (kind, registry) = (json!({"group": "", "version": "v1", "kind": "Secret"}), Registry::default());
    for (bundle, text) in [("roots", &roots), ("cross-signed", &ring)] {
        for (chain, shown) in [("a leaf", &leaf), ("a long chain", &long)] {
            let name = format!("{bundle} with keys of 8192 bits, {chain}");
            trials.push(trial(format!("{name}, verified"), || {
                let bundle = bundle::read(text.as_bytes()).into_certificates();
                let chain = bundle::read_chain(shown.as_bytes()).into_certificates();
                let _ = Store::new(&bundle, None).verify(&chain, Purpose::Client, Timestamp::now());
                let _ = horizon(&bundle, None, &chain, Purpose::Client, Timestamp::now());
            }));
            let data = [("ca.crt", text.as_str()), ("tls.crt", shown), ("tls.key", &POOL.leaves[6].key.pem())];
            trials.extend(both(&name, &body(kind.clone(), &secret(&data), &Value::Null), &registry));
        }
    }
    conclude("long keys", trials);
}
