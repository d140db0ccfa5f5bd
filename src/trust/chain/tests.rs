//! Verdicts that were measured with Envoy. Each test has one.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rcgen::{
    CustomExtension, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints, date_time_ymd,
};

use super::{Crl, Purpose, Refused, Store, UNORDERED, horizon, verify};
use crate::trust::Certificate;
use crate::trust::fixtures::{
    Authority, Leaf, ca, ca_between, ca_with, ca_with_damaged_key, ca_without_key_id, certificates, now, parsed,
    signed_with,
};

fn read(cas: &[&Authority]) -> Vec<Certificate> {
    cas.iter().map(|ca| parsed(ca.der())).collect()
}

fn judged(cas: &[&Authority], crls: Option<&[Crl]>, chain: &[&[u8]], at: Timestamp) -> &'static str {
    let chain: Vec<_> = chain.iter().map(|der| parsed(der)).collect();
    match verify(&read(cas), crls, &chain, Purpose::Client, at) {
        Ok(_) => "accepted",
        Err(refused) => refused.id(),
    }
}

fn client(cas: &[&Authority], leaf: &Leaf) -> &'static str {
    judged(cas, None, &[leaf.der()], now())
}

fn chained(cas: &[&Authority], leaf: &Leaf, intermediates: &[&Authority]) -> &'static str {
    let chain: Vec<_> = std::iter::once(leaf.der()).chain(intermediates.iter().map(|ca| ca.der())).collect();
    judged(cas, None, &chain, now())
}

fn with_key_id(ca: &Authority) -> Leaf {
    ca.leaf_with("client", |params| params.use_authority_key_identifier_extension = true)
}

fn plain(ca: &Authority) -> Leaf {
    ca.leaf_with("client", |_| {})
}

#[test]
fn rejects_an_expired_ca_before_its_renewal() {
    let old = ca_between("root", 2020, 2025);
    let new = old.renewed(2024, 2040);
    for leaf in [plain(&new), with_key_id(&new)] {
        assert_eq!(client(&[&old, &new], &leaf), "shadowed");
    }
}

#[test]
fn accepts_the_renewal_before_the_expired_ca() {
    let old = ca_between("root", 2020, 2025);
    let new = old.renewed(2024, 2040);
    for leaf in [plain(&new), with_key_id(&new)] {
        assert_eq!(client(&[&new, &old], &leaf), "accepted");
    }
}

#[test]
fn accepts_roots_with_one_subject_and_different_key_ids() {
    let (a, b) = (ca("root"), ca("root"));
    assert_eq!(client(&[&a, &b], &with_key_id(&a)), "accepted");
    assert_eq!(client(&[&a, &b], &with_key_id(&b)), "accepted");
}

#[test]
fn accepts_a_leaf_without_key_id_of_the_first_root_only() {
    let (a, b) = (ca("root"), ca("root"));
    assert_eq!(client(&[&a, &b], &plain(&a)), "accepted");
    assert_eq!(client(&[&a, &b], &plain(&b)), "shadowed");
}

#[test]
fn rejects_leaves_of_the_second_root_without_key_id() {
    let (a, b) = (ca_without_key_id("root"), ca_without_key_id("root"));
    assert_eq!(client(&[&a, &b], &plain(&b)), "shadowed");
    assert_eq!(client(&[&a, &b], &with_key_id(&b)), "shadowed");
}

#[test]
fn accepts_an_unrelated_expired_ca() {
    let good = ca("good");
    assert_eq!(client(&[&ca_between("old", 2020, 2025), &good], &plain(&good)), "accepted");
}

#[test]
fn rejects_anchors_outside_their_dates() {
    for (from, to, verdict) in [(2031, 2040, "not-yet-valid"), (2020, 2025, "expired")] {
        let root = ca_between("root", from, to);
        assert_eq!(client(&[&root], &plain(&root)), verdict);
    }
}

#[test]
fn rejects_an_anchor_whose_key_usage_lacks_cert_sign() {
    let root = ca_with("root", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
    assert_eq!(client(&[&root], &plain(&root)), "issuer-may-not-sign");
}

#[test]
fn accepts_anchors_that_are_not_cas() {
    for is_ca in [IsCa::ExplicitNoCa, IsCa::NoCa] {
        let root = ca_with("root", |params| params.is_ca = is_ca);
        assert_eq!(client(&[&root], &plain(&root)), "accepted");
    }
}

fn critical() -> CustomExtension {
    let mut extension = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99999, 1], vec![5, 0]);
    extension.set_criticality(true);
    extension
}

#[test]
fn accepts_an_anchor_with_an_unknown_critical_extension() {
    let root = ca_with("root", |params| params.custom_extensions.push(critical()));
    assert_eq!(client(&[&root], &plain(&root)), "accepted");
}

#[test]
fn rejects_unknown_critical_extensions_elsewhere() {
    let root = ca("root");
    let leaf = root.leaf_with("client", |params| params.custom_extensions.push(critical()));
    assert_eq!(client(&[&root], &leaf), "unknown-critical-extension");
    let below = root.intermediate("below", |params| params.custom_extensions.push(critical()));
    assert_eq!(chained(&[&root], &plain(&below), &[&below]), "unknown-critical-extension");
}

fn limited(length: u8) -> IsCa {
    IsCa::Ca(rcgen::BasicConstraints::Constrained(length))
}

#[test]
fn accepts_an_anchor_whose_path_length_is_too_short() {
    let root = ca_with("root", |params| params.is_ca = limited(0));
    let below = root.intermediate("below", |_| {});
    assert_eq!(chained(&[&root], &plain(&below), &[&below]), "accepted");
}

#[test]
fn rejects_an_intermediate_whose_path_length_is_too_short() {
    let root = ca("root");
    let upper = root.intermediate("upper", |params| params.is_ca = limited(0));
    let lower = upper.intermediate("lower", |_| {});
    assert_eq!(chained(&[&root], &plain(&lower), &[&lower, &upper]), "path-length");
    assert_eq!(chained(&[&root], &plain(&upper), &[&upper]), "accepted");
}

#[test]
fn rejects_intermediates_that_are_missing_or_not_cas() {
    let root = ca("root");
    let below = root.intermediate("below", |params| params.is_ca = IsCa::ExplicitNoCa);
    assert_eq!(chained(&[&root], &plain(&below), &[&below]), "not-a-ca");
    let below = root.intermediate("below", |_| {});
    assert_eq!(chained(&[&root], &plain(&below), &[]), "unknown-issuer");
    assert_eq!(chained(&[&root], &plain(&below), &[&root, &below]), "accepted", "any order will do");
    assert_eq!(chained(&[&below], &plain(&below), &[]), "accepted", "partial chains");
}

#[test]
fn rejects_a_valid_intermediate_anchor_below_an_expired_root() {
    let root = ca_between("root", 2020, 2025);
    let below = root.renewed(2024, 2040).intermediate("below", |_| {});
    assert_eq!(chained(&[&below], &plain(&below), &[]), "accepted");
    assert_eq!(chained(&[&below, &root], &plain(&below), &[]), "expired");
}

#[test]
fn accepts_and_rejects_with_revocation_lists() {
    let (one, two) = (ca("one"), ca("two"));
    let (leaf, revoked) = (plain(&one), plain(&one));
    let lists = [one.crl(2029, 2031, &[&revoked])];
    let judge = |leaf: &Leaf, lists: &[Crl]| judged(&[&one, &two], Some(lists), &[leaf.der()], now());
    assert_eq!(judge(&leaf, &lists), "accepted");
    assert_eq!(judge(&revoked, &lists), "revoked");
    assert_eq!(judge(&plain(&two), &lists), "crl-missing");
    assert_eq!(judge(&leaf, &[one.crl(2028, 2029, &[])]), "crl-outdated");
    assert_eq!(judge(&leaf, &[]), "crl-missing", "a ca.crl without a list");
}

#[test]
fn rejects_a_list_of_a_ca_with_the_same_subject() {
    let (one, other) = (ca("one"), ca("one"));
    assert_eq!(judged(&[&one], Some(&[other.crl(2029, 2031, &[])]), &[plain(&one).der()], now()), "crl-missing");
}

/// Found by comparing with Envoy: of two lists with one issuer and one date the first counts, though another CA signed it.
#[test]
fn rejects_a_list_of_a_ca_with_the_same_subject_before_the_right_one() {
    let (one, other) = (ca_without_key_id("one"), ca_without_key_id("one"));
    let leaf = plain(&one);
    let judge = |lists: [Crl; 2]| judged(&[&one], Some(&lists), &[leaf.der()], now());
    let lists = || (one.crl(2029, 2031, &[]), other.crl(2029, 2031, &[]));
    let (right, wrong) = lists();
    assert_ne!(judge([wrong, right]), "accepted");
}

#[test]
fn rejects_subjects_beyond_64_kib() {
    let root = ca("root");
    let others: Vec<_> = (0..66).map(|n| ca(&format!("{n:03}{}", "x".repeat(980)))).collect();
    let mut bundle = vec![&root];
    bundle.extend(&others);
    assert_eq!(client(&bundle, &plain(&root)), "subjects-too-long");
    assert_eq!(client(&bundle[..60], &plain(&root)), "accepted");
}

#[test]
fn rejects_chains_that_do_not_fit_into_session_tickets() {
    let one = ca("one");
    let of = |size: usize| {
        let extension = CustomExtension::from_oid_content(&[1, 2, 3], vec![0; size]);
        one.leaf_with("client", |params| params.custom_extensions = vec![extension])
    };
    let sizes = [30_000, 33_000, 64_000, 66_000, 103_000];
    let judged = sizes.map(|size| client(&[&one], &of(size)));
    assert_eq!(judged, ["accepted", "tickets-too-long", "tickets-too-long", "accepted", "chain-too-long"]);
    let server = verify(&read(&[&one]), None, &[parsed(of(33_000).der())], Purpose::Server { hosts: &[] }, now());
    assert!(server.is_ok(), "{server:?}");
}

#[test]
fn accepts_extended_key_usage_for_clients_or_none() {
    let root = ca("root");
    let leaf = |usages: &[ExtendedKeyUsagePurpose]| {
        root.leaf_with("client", |params| params.extended_key_usages = usages.to_vec())
    };
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    assert_eq!(client(&[&root], &leaf(&[])), "accepted");
    assert_eq!(client(&[&root], &leaf(&[ServerAuth, ClientAuth])), "accepted");
    assert_eq!(client(&[&root], &leaf(&[ServerAuth])), "purpose");
    assert_eq!(client(&[&root], &leaf(&[Any])), "purpose");
}

#[test]
fn rejects_key_usage_without_digital_signature() {
    let root = ca("root");
    for (usage, verdict) in [
        (KeyUsagePurpose::DigitalSignature, "accepted"),
        (KeyUsagePurpose::KeyAgreement, "leaf-key-usage"),
        (KeyUsagePurpose::KeyEncipherment, "leaf-key-usage"),
    ] {
        assert_eq!(client(&[&root], &root.leaf_with("client", |params| params.key_usages = vec![usage])), verdict);
    }
}

#[test]
fn rejects_leaf_keys_that_handshakes_do_not_support() {
    let root = ca("root");
    for (algorithm, verdict) in [
        (&rcgen::PKCS_ECDSA_P384_SHA384, "accepted"),
        (&rcgen::PKCS_ECDSA_P521_SHA512, "leaf-key"),
        (&rcgen::PKCS_ED25519, "leaf-key"),
    ] {
        assert_eq!(client(&[&root], &root.leaf_of("client", algorithm)), verdict);
    }
    assert_eq!(client(&[&root], &root.rsa_leaf("client")), "accepted");
}

/// Found by comparing with BoringSSL, which does not read such a key, nor a certificate that bytes follow.
#[test]
fn rejects_leaves_that_boringssl_does_not_read() {
    let root = ca("root");
    let leaf = plain(&root);
    let with_a_byte = [leaf.der(), &[0]].concat();
    assert_eq!(judged(&[&root], None, &[&with_a_byte], now()), "trailing-bytes");
    let below = root.intermediate("below", |_| {});
    let below_with_a_byte = [below.der(), &[0]].concat();
    let chain = [plain(&below).der().to_vec(), below_with_a_byte];
    assert_eq!(judged(&[&root], None, &[&chain[0], &chain[1]], now()), "trailing-bytes");

    // Only the key of the leaf is damaged. The leaf is its own anchor, so nothing else can be refused.
    let damaged = &certificates(&ca_with_damaged_key())[0];
    assert_eq!(
        verify(std::slice::from_ref(damaged), None, std::slice::from_ref(damaged), Purpose::Client, now())
            .map_err(|refused| refused.id()),
        Err("leaf-key")
    );
}

#[test]
fn rejects_weak_and_wrong_signatures() {
    let root = ca("root");
    let leaf = plain(&root);
    let md5 = signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4]);
    assert_eq!(judged(&[&root], None, &[&certificates(&md5)[0].der], now()), "signature-algorithm");
    // ecdsa-with-SHA224, which Envoy supports and AWS-LC does not: not a wrong signature.
    let sha224 = signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 1]);
    assert_eq!(judged(&[&root], None, &[&certificates(&sha224)[0].der], now()), "signature-algorithm");
    let mut changed = leaf.der().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(judged(&[&root], None, &[&changed], now()), "signature");
}

#[test]
fn rejects_names_outside_of_an_anchors_constraints() {
    let root = ca_with("root", |params| {
        let permitted_subtrees = vec![GeneralSubtree::DnsName("a.example".to_owned())];
        params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
    });
    assert_eq!(client(&[&root], &root.leaf("x.a.example")), "accepted");
    assert_eq!(client(&[&root], &root.leaf("b.example")), "name-constraints");
    assert_eq!(client(&[&root], &plain(&root)), "name-constraints", "a common name that resembles a host");
}

#[test]
fn accepts_a_self_signed_leaf_only_if_it_is_pinned() {
    let usage = vec![KeyUsagePurpose::DigitalSignature];
    let pinned = |params: &mut rcgen::CertificateParams| {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = usage.clone();
    };
    let (one, other) = (ca_with("one", pinned), ca_with("one", pinned));
    assert_eq!(judged(&[&one], None, &[one.der()], now()), "accepted");
    assert_ne!(judged(&[&other], None, &[one.der()], now()), "accepted");
}

#[test]
fn rejects_the_last_second() {
    let root = ca("root");
    let leaf = plain(&root);
    let end = parsed(leaf.der()).not_after;
    let before = end - jiff::SignedDuration::from_secs(1);
    assert_eq!(judged(&[&root], None, &[leaf.der()], before), "accepted");
    assert_eq!(judged(&[&root], None, &[leaf.der()], end), "expired");
}

#[test]
fn rejects_either_order_of_a_renewal_in_a_long_bundle() {
    let old = ca_between("root", 2020, 2025);
    let new = old.renewed(2024, 2040);
    let others: Vec<_> = (0..UNORDERED - 2).map(|n| ca(&format!("ca {n}"))).collect();
    let bundle = |extra: usize| [&new, &old].into_iter().chain(&others[..extra]).collect::<Vec<_>>();
    assert_eq!(client(&bundle(UNORDERED - 3), &plain(&new)), "accepted");
    assert_eq!(client(&bundle(UNORDERED - 2), &plain(&new)), "order-undetermined");
}

#[test]
fn accepts_servers_by_all_their_hosts() {
    let root = ca("root");
    let (bundle, chain) = (read(&[&root]), [parsed(root.leaf("*.a.example").der())]);
    let judge = |hosts: &[&str]| {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        verify(&bundle, None, &chain, Purpose::Server { hosts: &hosts }, now()).map_err(|refused| refused.id())
    };
    assert!(judge(&["x.a.example", "y.a.example"]).is_ok());
    assert_eq!(judge(&["x.a.example", "b.example"]), Err("host"));
    let client_only = root.leaf_with("a", |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let refused = verify(&bundle, None, &[parsed(client_only.der())], Purpose::Server { hosts: &[] }, now());
    assert_eq!(refused.map_err(|refused| refused.id()), Err("purpose"));
}

#[test]
fn rejects_an_empty_chain_and_an_empty_bundle() {
    let root = ca("root");
    assert_eq!(judged(&[&root], None, &[], now()), "no-certificate");
    assert_eq!(client(&[], &plain(&root)), "no-anchors");
}

#[test]
fn finds_the_date_at_which_a_chain_will_be_refused() {
    let old = ca_with("root", |params| params.not_after = date_time_ymd(2030, 6, 1));
    let new = old.renewed(2029, 2040);
    let chain = [parsed(plain(&new).der())];
    let ahead = |cas: &[&Authority]| horizon(&read(cas), None, &chain, Purpose::Client, now());
    let found = ahead(&[&old, &new]).expect("a break");
    assert_eq!(found.at.to_string(), "2030-06-01T00:00:00Z");
    assert!(matches!(found.refused, Refused::Shadowed { .. }), "{:?}", found.refused);
    assert_eq!(ahead(&[&new, &old]), None);
}

/// Cross-sign cycles and many CAs with one subject: BoringSSL takes one path; where the order is unknown, few are tried.
#[test]
fn judges_hostile_bundles_within_time() {
    let (a, b) = (ca("a"), ca("b"));
    let cycle = [a.intermediate("b", |_| {}), b.intermediate("a", |_| {})];
    let crowd: Vec<_> = {
        let root = ca("root");
        (0..400).map(|n| root.changed(|params| params.not_after = date_time_ymd(2040 + n, 1, 1))).collect()
    };
    let leaf = plain(&crowd[0]);
    for (name, bundle, chain) in [
        ("cycle", cycle.iter().collect::<Vec<_>>(), vec![parsed(plain(&a).der())]),
        ("crowd", crowd.iter().collect(), vec![parsed(leaf.der())]),
        ("crowd in the chain", vec![&a], crowd.iter().map(|ca| parsed(ca.der())).collect()),
    ] {
        let bundle = read(&bundle);
        let start = Instant::now();
        let verdict = Store::new(&bundle, None).verify(&chain, Purpose::Client, now());
        let took = start.elapsed();
        println!("{name}: {took:?}, {verdict:?}");
        let most = if cfg!(debug_assertions) { 1_500 } else { 50 };
        assert!(took < Duration::from_millis(most), "{name}: {took:?}");
        assert!(verdict.is_err(), "{name}");
    }
}
