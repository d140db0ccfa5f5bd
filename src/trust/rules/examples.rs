//! Each rule's example is one of its messages.

use rcgen::{CertificateParams, KeyUsagePurpose, SanType, date_time_ymd};

use super::RULES;
use crate::trust::fixtures::{
    Leaf, block, ca, ca_between, ca_with, ca_with_rsa_bits, ca_without_key_id, now, secret, signed_with,
};
use crate::trust::{GatewayUse, SecretUsage, judge, judge_update};

type Data = Vec<(&'static str, String)>;

/// A Secret on which this rule has one finding, and the same after the advice in it was followed.
fn data(rule: &str) -> (Data, Data) {
    let root = ca("root");
    let leaf = root.leaf("shop.example.com");
    let bundle = |text: String| vec![("ca.crt", text)];
    let lists = |cas: String, lists: String| vec![("ca.crt", cas), ("ca.crl", lists)];
    let chain = |chain: String, leaf: &Leaf| vec![("tls.crt", chain), ("tls.key", leaf.key_pem())];
    let pair = |leaf: Leaf| chain(leaf.pem(), &leaf);
    let sound = || bundle(root.pem());
    let served = || chain(leaf.pem(), &leaf);
    match rule {
        "unparsable" => (bundle(root.pem() + &block("CERTIFICATE", b"no")), sound()),
        "dropped-by-proxy" => (bundle(format!("\u{feff}{}", root.pem())), sound()),
        "empty" => (bundle(String::new()), sound()),
        "taken-away" => (vec![], served()),
        "private-key-in-bundle" => (bundle(leaf.key_pem() + &root.pem()), sound()),
        "not-a-ca" => (bundle(leaf.pem()), sound()),
        "pair-incomplete" => (vec![("tls.crt", leaf.pem())], served()),
        "key-mismatch" => (chain(leaf.pem(), &root.leaf("other")), served()),
        "expired" => (pair(root.leaf_between("shop.example.com", 2020, 2025)), served()),
        "not-yet-valid" => (pair(root.leaf_between("shop.example.com", 2031, 2032)), served()),
        "expired-beside-renewed" => {
            let old = ca_with("root", |params| params.not_after = date_time_ymd(2029, 6, 1));
            let new = old.renewed(2029, 2040).pem();
            (bundle(old.pem() + &new), bundle(new))
        }
        "same-subject-ambiguity" => {
            let other = ca_without_key_id("root");
            (bundle(ca_without_key_id("root").pem() + &other.pem()), bundle(root.pem() + &ca("own subject").pem()))
        }
        "broken-path" => {
            let old = ca_between("root", 2020, 2025);
            let issuing = old.intermediate("issuing", |_| {}).pem();
            (bundle(issuing.clone() + &old.pem()), bundle(issuing))
        }
        "superseded" => {
            let renewed = root.renewed(2029, 2041).pem();
            (bundle(renewed.clone() + &root.pem()), bundle(renewed))
        }
        "expiring" => {
            let old = ca_with("root", |params| params.not_after = date_time_ymd(2030, 1, 20));
            (bundle(old.pem()), bundle(old.renewed(2029, 2040).pem()))
        }
        "duplicate" => {
            let cas = root.pem() + &ca("other").pem();
            (bundle(cas.clone() + &root.pem()), bundle(cas))
        }
        "weak-key" => (bundle(ca_with_rsa_bits(1016)), sound()),
        // ecdsa-with-SHA1.
        "weak-signature" => (chain(signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]), &leaf), served()),
        "too-large" => {
            let cas: Vec<_> = (0..120).map(|n| ca(&format!("{n:04}{}", "x".repeat(524))).pem()).collect();
            (bundle(cas.concat()), bundle(cas[..50].concat()))
        }
        "refused-by-clients" => {
            let with = |usage| pair(root.rsa_leaf_with("shop.example.com", |params| params.key_usages = vec![usage]));
            (with(KeyUsagePurpose::KeyEncipherment), with(KeyUsagePurpose::DigitalSignature))
        }
        "crl-missing" => {
            (lists(root.pem(), "# comes later\n".to_owned()), lists(root.pem(), root.crl_pem(2029, 2031, &[])))
        }
        "crl-partial" => {
            let (two, own) = (ca("two"), root.crl_pem(2029, 2031, &[]));
            let cas = root.pem() + &two.pem();
            (lists(cas.clone(), own.clone()), lists(cas, own + &two.crl_pem(2029, 2031, &[])))
        }
        "crl-expired" => {
            (lists(root.pem(), root.crl_pem(2028, 2029, &[])), lists(root.pem(), root.crl_pem(2029, 2031, &[])))
        }
        "chain-order" => {
            let sub = root.intermediate("sub", |_| {});
            let leaf = sub.leaf("shop.example.com");
            (chain(leaf.pem() + &ca("other").pem(), &leaf), chain(leaf.pem() + &sub.pem(), &leaf))
        }
        "leaf-not-trusted" => {
            let other = ca("other");
            let data = pair(other.leaf("shop.example.com"));
            let with = |cas: String| [data.clone(), bundle(cas)].concat();
            (with(root.pem()), with(root.pem() + &other.pem()))
        }
        "hosts-not-covered" => {
            let both = |params: &mut CertificateParams| {
                let names = ["shop.example.com", "pay.example.com"];
                params.subject_alt_names = names.map(|name| SanType::DnsName(name.try_into().unwrap())).to_vec();
            };
            (served(), pair(root.leaf_with("shop.example.com", both)))
        }
        "both-key-styles" => {
            (vec![("cacert", root.pem()), ("ca.crt", ca("other").pem())], vec![("cacert", root.pem())])
        }
        "cacert-sibling-wins" | "immutable" => (sound(), sound()),
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

/// What a text is after the line that a message names was removed; `None` if it advises another edit.
fn edited(text: &str, message: &str) -> Option<String> {
    let number = |before: &str| -> Option<usize> {
        let (_, rest) = message.split_once(before)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let line = match message.contains("remove this one") {
        true => number("line ")?,
        false => number("remove line ")?,
    };
    let lines: Vec<_> = text.lines().collect();
    let end = line + lines[line..].iter().position(|line| line.starts_with("-----END"))?;
    Some([&lines[..line - 1], &lines[end + 1..]].concat().iter().map(|line| format!("{line}\n")).collect())
}

#[test]
fn examples_are_messages_of_their_rules_and_their_advice_helps() {
    let gateways = [GatewayUse {
        group: "networking.istio.io".to_owned(),
        namespace: "istio-system".to_owned(),
        name: "public".to_owned(),
        hosts: vec!["shop.example.com".to_owned(), "pay.example.com".to_owned()],
    }];
    let leaf = ca("root").leaf("shop.example.com");
    let stored = secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
    for rule in RULES {
        let judged = |data: &Data, is_followed: bool| {
            let mut secret = secret(&data.iter().map(|(key, text)| (*key, text.as_str())).collect::<Vec<_>>());
            secret.immutable = rule.id == "immutable" && !is_followed;
            let has_sibling = rule.id == "cacert-sibling-wins" && !is_followed;
            let usage = SecretUsage {
                ca_required: false,
                is_rotated: true,
                distributes_trust: rule.id == "leaf-not-trusted",
                sibling: has_sibling.then_some("gateway-root-cacert"),
                gateways: if rule.id == "hosts-not-covered" { &gateways } else { &[] },
                ..SecretUsage::default()
            };
            match rule.id {
                "taken-away" => judge_update(&stored, &secret, usage, now()),
                _ => judge(&secret, usage, now()),
            }
        };
        let (before, after) = data(rule.id);
        let found = judged(&before, false);
        let message = found.iter().find(|f| f.rule == rule.id).map(|f| f.message.as_str()).unwrap_or_default();
        assert_eq!(without_lines(message), without_lines(rule.example), "{}", rule.id);
        let by_text = before.iter().map(|(key, text)| Some((*key, edited(text, message)?))).collect::<Option<Data>>();
        for after in [Some(after), by_text.filter(|data| !data.is_empty())].into_iter().flatten() {
            let left: Vec<_> = judged(&after, true);
            assert_eq!(left, [], "{}, after its advice was followed", rule.id);
        }
    }
}
