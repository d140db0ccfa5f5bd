//! Thousands of names and very long names, with as many constraints and hosts.

use jiff::Timestamp;
use serde_json::{Value, json};
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::trust::Certificate;
use trustspan::trust::chain::{Purpose, Store, horizon};

use super::{
    SIZE, Trial, conclude,
    reviews::{body, both, secret},
    trial,
};
use crate::pki::{Identity, Spec, element};
use crate::pool::POOL;
use crate::review::claim;

/// Tags of GeneralName (RFC 5280, section 4.2.1.6).
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const DIRECTORY: u8 = 0xa4;
const URI: u8 = 0x86;
/// Lists of subtrees (section 4.2.1.10).
const PERMITTED: u8 = 0xa0;
const EXCLUDED: u8 = 0xa1;

/// The share of a bundle that a CA takes, and the share of a chain that its leaf takes.
const CA: usize = SIZE / 2;
const LEAF: usize = 90_000;

/// A directory name with this many common names.
fn directory(common_name: &str, count: usize) -> Vec<u8> {
    let attribute = [element(6, &[0x55, 4, 3]), element(12, common_name.as_bytes())].concat();
    element(0x30, &element(0x31, &element(0x30, &attribute)).repeat(count))
}

/// One element, repeated to this many bytes.
fn many(one: &[u8], bytes: usize) -> Vec<u8> {
    one.repeat((bytes / one.len()).max(1))
}

/// A CA with constraints, and a leaf of it with alternative names.
fn pair(list: u8, base: &[u8], bytes: usize, names: &[u8], subject: &str) -> [Identity; 2] {
    let trees = element(0x30, &element(list, &many(&element(0x30, base), bytes)));
    let key = &POOL.leaves[6].key;
    let ca = Identity::root(Spec { constraints: Some(trees), ..Spec::ca("constrained") }, POOL.cas[6].key.clone());
    let ca = ca.expect("a CA");
    let alt_names = (!names.is_empty()).then(|| element(0x30, names));
    let leaf = ca.issue(Spec { alt_names, ..Spec::leaf(subject) }, key.clone()).expect("a leaf");
    [ca, leaf]
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn names_under_constraints() {
    let long = "n".repeat(LEAF);
    let (mailbox, uri) = (format!("{long}@a.b"), format!("{}://a.b", long));
    let tiny = element(DIRECTORY, &directory("x", 1));
    let of = |kind, text: &str| element(kind, text.as_bytes());
    let wide = many(&of(DNS, "a.b"), LEAF);
    let cases = [
        ("a long subject", pair(EXCLUDED, &tiny, CA, &[], &long)),
        ("directory names", pair(PERMITTED, &tiny, CA, &many(&tiny, LEAF), "leaf")),
        ("one directory name", pair(EXCLUDED, &tiny, CA, &element(DIRECTORY, &directory("n", 4_000)), "leaf")),
        (
            "few directory names, and a few long ones",
            pair(PERMITTED, &element(DIRECTORY, &directory("n", 4_000)), CA, &many(&tiny, LEAF), "leaf"),
        ),
        ("a mailbox", pair(EXCLUDED, &of(EMAIL, "c.d"), CA, &of(EMAIL, &mailbox), "leaf")),
        ("a URI", pair(EXCLUDED, &of(URI, "c.d"), CA, &of(URI, &uri), "leaf")),
        ("hosts", pair(EXCLUDED, &of(DNS, "c.d"), CA, &wide, "leaf")),
        ("hosts under as many constraints as are judged", pair(EXCLUDED, &of(DNS, "c.d"), 120, &wide, "leaf")),
        ("hosts under a long constraint", pair(EXCLUDED, &of(DNS, &long), 10 * LEAF, &wide, "leaf")),
    ];
    let mut trials = Vec::new();
    let (kind, registry) = (json!({"group": "", "version": "v1", "kind": "Secret"}), Registry::default());
    for (name, [ca, leaf]) in cases {
        let parsed = |one: &Identity| Certificate::parse(&one.der).expect("a certificate");
        trials.push(trial(format!("{name}, verified"), || {
            let (bundle, chain) = ([parsed(&ca)], [parsed(&leaf)]);
            let _ = Store::new(&bundle, None).verify(&chain, Purpose::Client, Timestamp::now());
            let _ = horizon(&bundle, None, &chain, Purpose::Client, Timestamp::now());
        }));
        let secret = secret(&[("ca.crt", &ca.pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key.pem())]);
        trials.extend(both(name, &body(kind.clone(), &secret, &Value::Null), &registry));
    }
    trials.extend(hosts());
    conclude("names", trials);
}

/// A function that returns the name with a number.
type Numbered = fn(usize) -> String;

/// A leaf with many names, for Gateways with many hosts.
fn hosts() -> Vec<Trial> {
    let names: Vec<u8> = (0..SIZE / 24).flat_map(|n| element(DNS, format!("host-{n}.example").as_bytes())).collect();
    let spec = Spec { alt_names: Some(element(0x30, &names)), ..Spec::leaf("leaf") };
    let leaf = POOL.cas[6].issue(spec, POOL.leaves[6].key.clone()).expect("a leaf");
    let hosts = |name: Numbered| (0..20_000).map(name).collect::<Vec<_>>();
    let secret = secret(&[("ca.crt", &POOL.cas[6].pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key.pem())]);
    let body = body(json!({"group": "", "version": "v1", "kind": "Secret"}), &secret, &Value::Null);
    let cases: [(_, Numbered); 2] = [
        ("hosts of Gateways", |n| format!("other-{n}.example")),
        ("wildcards of Gateways", |n| format!("*.{n}.example")),
    ];
    let trials = cases.map(|(name, host)| {
        let mut object = claim(&[]);
        let used =
            json!({"group": "networking.istio.io", "namespace": "istio-system", "name": "g", "hosts": hosts(host)});
        object["status"]["gateways"] = json!([used]);
        both(name, &body, &Registry::new([entry(&object, "default").expect("an entry")]))
    });
    trials.into_iter().flatten().collect()
}
