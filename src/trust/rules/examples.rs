//! Each rule's example is one of its messages.

use rcgen::date_time_ymd;

use super::RULES;
use crate::trust::fixtures::{
    Leaf, block, ca, ca_between, ca_with, ca_with_rsa_bits, ca_without_key_id, now, secret, signed_with,
};
use crate::trust::{GatewayUse, SecretUsage, judge, judge_update};

type Data = Vec<(&'static str, String)>;

/// A Secret on which this rule has one finding.
fn data(rule: &str) -> Data {
    let root = ca("root");
    let leaf = root.leaf("shop.example.com");
    let bundle = |text: String| vec![("ca.crt", text)];
    let lists = |cas: String, lists: String| vec![("ca.crt", cas), ("ca.crl", lists)];
    let chain = |chain: String, leaf: &Leaf| vec![("tls.crt", chain), ("tls.key", leaf.key_pem())];
    let pair = |leaf: Leaf| chain(leaf.pem(), &leaf);
    match rule {
        "unparsable" => bundle(block("CERTIFICATE", b"no")),
        "dropped-by-proxy" => bundle(format!("\u{feff}{}", root.pem())),
        "empty" => bundle(String::new()),
        "taken-away" => vec![],
        "private-key-in-bundle" => bundle(leaf.key_pem() + &root.pem()),
        "not-a-ca" => bundle(leaf.pem()),
        "pair-incomplete" => vec![("tls.crt", leaf.pem())],
        "key-mismatch" => chain(leaf.pem(), &root.leaf("other")),
        "expired" => pair(root.leaf_between("shop.example.com", 2020, 2025)),
        "not-yet-valid" => pair(root.leaf_between("shop.example.com", 2031, 2032)),
        "expired-beside-renewed" => {
            let old = ca_with("root", |params| params.not_after = date_time_ymd(2029, 6, 1));
            bundle(old.pem() + &old.renewed(2029, 2040).pem())
        }
        "same-subject-ambiguity" => bundle(ca_without_key_id("root").pem() + &ca_without_key_id("root").pem()),
        "broken-path" => {
            let old = ca_between("root", 2020, 2025);
            bundle(old.intermediate("issuing", |_| {}).pem() + &old.pem())
        }
        "superseded" => bundle(root.renewed(2029, 2041).pem() + &root.pem()),
        "expiring" => bundle(ca_with("root", |params| params.not_after = date_time_ymd(2030, 1, 20)).pem()),
        "duplicate" => bundle(root.pem() + &ca("other").pem() + &root.pem()),
        "weak-key" => bundle(ca_with_rsa_bits(1016)),
        // ecdsa-with-SHA1.
        "weak-signature" => chain(signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]), &leaf),
        "too-large" => bundle((0..120).map(|n| ca(&format!("{n:04}{}", "x".repeat(524))).pem()).collect()),
        "refused-by-clients" => {
            let usage = vec![rcgen::KeyUsagePurpose::KeyEncipherment];
            pair(root.rsa_leaf_with("shop.example.com", |params| params.key_usages = usage.clone()))
        }
        "crl-missing" => lists(root.pem(), "# comes later\n".to_owned()),
        "crl-partial" => lists(root.pem() + &ca("two").pem(), root.crl_pem(2029, 2031, &[])),
        "crl-expired" => lists(root.pem(), root.crl_pem(2028, 2029, &[])),
        "chain-order" => {
            let leaf = root.intermediate("sub", |_| {}).leaf("shop.example.com");
            chain(leaf.pem() + &ca("other").pem(), &leaf)
        }
        "leaf-not-trusted" => {
            let mut data = pair(ca("other").leaf("shop.example.com"));
            data.push(("ca.crt", root.pem()));
            data
        }
        "hosts-not-covered" => pair(leaf),
        "both-key-styles" => vec![("cacert", root.pem()), ("ca.crt", ca("other").pem())],
        "cacert-sibling-wins" | "immutable" => bundle(root.pem()),
        other => panic!("{other}: no example Secret"),
    }
}

/// Signatures differ in length, and so do line numbers.
fn without_lines(message: &str) -> String {
    let mut in_lines = false;
    let words = message.split(' ').map(|word| {
        let number = word.trim_end_matches([':', ',', ';', '.']);
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        in_lines = matches!(word, "line" | "lines") || in_lines && (is_number || word == "and");
        if is_number && in_lines { word.replace(number, "N") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn examples_are_messages_of_their_rules() {
    let gateways = [GatewayUse {
        group: "networking.istio.io".to_owned(),
        namespace: "istio-system".to_owned(),
        name: "public".to_owned(),
        hosts: vec!["shop.example.com".to_owned(), "pay.example.com".to_owned()],
    }];
    let leaf = ca("root").leaf("shop.example.com");
    let stored = secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
    for rule in RULES {
        let data = data(rule.id);
        let mut secret = secret(&data.iter().map(|(key, text)| (*key, text.as_str())).collect::<Vec<_>>());
        secret.immutable = rule.id == "immutable";
        let usage = SecretUsage {
            ca_required: false,
            is_rotated: true,
            distributes_trust: rule.id == "leaf-not-trusted",
            sibling: (rule.id == "cacert-sibling-wins").then_some("gateway-root-cacert"),
            gateways: if rule.id == "hosts-not-covered" { &gateways } else { &[] },
            ..SecretUsage::default()
        };
        let found = match rule.id {
            "taken-away" => judge_update(&stored, &secret, usage, now()),
            _ => judge(&secret, usage, now()),
        };
        let message = found.iter().find(|f| f.rule == rule.id).map(|f| without_lines(&f.message));
        assert_eq!(message.as_deref(), Some(without_lines(rule.example).as_str()), "{}", rule.id);
    }
}
