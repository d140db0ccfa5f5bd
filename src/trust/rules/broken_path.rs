//! `broken-path`: a valid CA whose clients are refused because of another certificate of the bundle.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{Observation, Rule, Severity};
use crate::trust::Certificate;
use crate::trust::bundle::BundleEntry;
use crate::trust::chain::{Blocked, Budget, LeafShape, Refused, Store};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Envoy trusts each certificate of a bundle (`X509_V_FLAG_PARTIAL_CHAIN`), but BoringSSL builds a path up to the top of the bundle, and
/// checks all of it: envoyproxy/envoy#18510, measured.
pub(super) const RULE: Rule = Rule {
    id: "broken-path",
    severity: Severity::Deny,
    summary: "a valid CA whose clients are refused for a CA above it, or for trust settings; if this only lies ahead, it warns",
    remedy: "remove the CA above once it is not valid; give CAs with one subject their own key identifiers or subjects",
    source: "Envoy, measured: BoringSSL builds each path to the top of the bundle, and checks all of it",
    example: "ca.crt line 1: CN=issuing is valid, and its clients are refused: their path goes on to line 12, CN=root, which expired at \
              2025-01-01T00:00:00Z. expected a path that is valid up to its end; remove line 12",
    warns_ahead: true,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    // Of repeated certificates the first counts.
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for BundleEntry { line, certificate } in &ca.bundle.entries {
        lines.entry(certificate.fingerprint.as_str()).or_insert(*line);
    }
    let store = || Store::new(ca.bundle.entries.iter().map(|entry| &entry.certificate), None);
    let newest = store();
    // The order matters only for CAs with one subject.
    let has_older = !context.usage.oldest_proxy.keeps_order() && !context.same_subjects().is_empty();
    let oldest = has_older.then(|| store().of_proxy(context.usage.oldest_proxy));
    let (mut budget, mut seen) = (Budget::default(), Vec::new());
    for entry in &ca.bundle.entries {
        let issuing = &entry.certificate;
        let is_first = lines.get(issuing.fingerprint.as_str()) == Some(&entry.line);
        if !is_first || !issuing.may_sign || !issuing.is_valid_at(context.now) || budget.is_used_up() {
            continue;
        }
        // Another certificate of this CA may be taken instead.
        let mut are_accepted = || {
            SHAPES.map(|shape| newest.accepts_issued(issuing, shape, context.now, &mut budget)).contains(&Some(true))
        };
        if issuing.trusts_clients == Some(false) && !are_accepted() {
            let message = format!(
                "{} line {}: {} has trust settings that reject clientAuth, so its clients are refused. expected a CA without them; write \
                 its block to FILE, and replace it with the output of openssl x509 -in FILE",
                ca.key,
                entry.line,
                brief(&issuing.subject),
            );
            seen.push(Observation::new(ca.field(), issuing.fingerprint.as_str(), message));
            continue;
        }
        let mut blocked_by = |store| broken(store, issuing, context.now, &mut budget);
        let certain = blocked_by(&newest);
        let Some(Broken { blocked, shape }) = certain.clone().or_else(|| blocked_by(oldest.as_ref()?)) else {
            continue;
        };
        let line = lines.get(blocked.by.fingerprint.as_str()).copied().unwrap_or_default();
        let which = match shape {
            None => "",
            Some(LeafShape::WithKeyId) => " with authority key identifier",
            Some(LeafShape::WithoutKeyId) => " without authority key identifier",
        };
        let how = match (certain.is_some(), newest.is_ordered()) {
            (true, true) => "are refused",
            (true, false) => "may be refused, since from 24 entries on the proxy takes CAs in any order",
            (false, _) => "may be refused by Envoy before 1.38",
        };
        let message = format!(
            "{} line {}: {} is valid, and its clients{which} {how}: their path goes on to line {line}, {}, {}. expected a path that is \
             valid up to its end; {}",
            ca.key,
            entry.line,
            brief(&issuing.subject),
            brief(&blocked.by.subject),
            state(&blocked),
            remedy(&blocked, line, context.when_to_remove()),
        );
        let only_warns = certain.is_none() || shape.is_some();
        seen.push(Observation::new(ca.field(), issuing.fingerprint.as_str(), message).only_warns(only_warns));
    }
    seen
}

/// All shapes of a CA's clients.
const SHAPES: [LeafShape; 2] = [LeafShape::WithKeyId, LeafShape::WithoutKeyId];

/// Why a CA's clients are refused.
#[derive(Clone)]
struct Broken<'s> {
    blocked: Blocked<'s>,
    /// The clients that are refused; `None` for all.
    shape: Option<LeafShape>,
}

fn broken<'s>(
    store: &'s Store<'s>,
    issuing: &'s Certificate,
    now: Timestamp,
    budget: &mut Budget,
) -> Option<Broken<'s>> {
    let mut blocked = |shape| store.blocked(issuing, shape, now, budget);
    let [with, without] = SHAPES.map(&mut blocked);
    let are_all = without.is_some() && (with.is_some() || issuing.subject_key_id.is_none());
    let mut shaped = [with, without].into_iter().zip(SHAPES).filter_map(|(blocked, shape)| Some((blocked?, shape)));
    // Other rules report other CAs with the subject of this one, but not their trust settings.
    let (blocked, shape) =
        shaped.find(|(blocked, _)| !blocked.has_its_subject || matches!(blocked.refused, Refused::Rejected { .. }))?;
    Some(Broken { blocked, shape: Some(shape).filter(|_| !are_all) })
}

/// Why the path fails at the certificate.
fn state(blocked: &Blocked<'_>) -> String {
    let by: &Certificate = blocked.by;
    match blocked.refused {
        Refused::Signature { .. } if blocked.leads_back => {
            "which names it as its issuer, and was signed with another key".to_owned()
        }
        Refused::Expired { .. } => format!("which expired at {}", by.not_after),
        Refused::NotYetValid { .. } => format!("which is not valid before {}", by.not_before),
        Refused::Signature { .. } => "which has its issuer's name and another key".to_owned(),
        Refused::SignatureAlgorithm { .. } => "whose key does not verify its signature".to_owned(),
        Refused::Rejected { .. } => "whose trust settings reject clientAuth".to_owned(),
        Refused::NameConstraints { .. } | Refused::UnsupportedConstraint { .. } => {
            "whose name constraints do not permit it".to_owned()
        }
        _ => "which the proxy does not accept there".to_owned(),
    }
}

/// An edit that costs no other client: only a CA that is not valid has none.
fn remedy(blocked: &Blocked<'_>, line: usize, when: &str) -> String {
    match blocked.refused {
        Refused::Rejected { .. } => {
            format!("write the block on line {line} to FILE, and replace it with the output of openssl x509 -in FILE")
        }
        Refused::NotYetValid { .. } => format!("remove line {line} until then"),
        Refused::Expired { .. } => format!("remove line {line}{when}"),
        _ => format!("remove line {line} if no client needs it, or reissue that CA with its own subject"),
    }
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{
        Authority, block, ca, ca_between, ca_with, ca_without_key_id, element, findings, findings_in_order, secret,
    };

    fn found(cas: &[&str]) -> Vec<(Severity, String)> {
        let found =
            findings_in_order(&secret(&[("ca.crt", &cas.concat())])).into_iter().filter(|f| f.rule == super::RULE.id);
        found.map(|f| (f.severity, f.message)).collect()
    }

    fn severities(cas: &[&str]) -> Vec<Severity> {
        found(cas).into_iter().map(|(severity, _)| severity).collect()
    }

    fn issuing(root: &Authority) -> String {
        root.intermediate("issuing", |params| params.use_authority_key_identifier_extension = true).pem()
    }

    #[test]
    fn accepts_an_intermediate_alone_and_below_a_valid_root() {
        let (root, expired) = (ca("root"), ca_between("old", 2020, 2025));
        for cas in [vec![issuing(&root)], vec![issuing(&root), root.pem()], vec![issuing(&expired)]] {
            assert_eq!(severities(&cas.iter().map(String::as_str).collect::<Vec<_>>()), []);
        }
    }

    #[test]
    fn rejects_an_intermediate_below_a_root_that_is_not_valid() {
        for root in [ca_between("root", 2020, 2025), ca_between("root", 2031, 2040)] {
            for cas in [[issuing(&root), root.pem()], [root.pem(), issuing(&root)]] {
                let found = found(&[&cas[0], &cas[1]]);
                assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Deny]);
                assert!(found[0].1.contains("CN=root") && found[0].1.contains("remove line"), "{}", found[0].1);
            }
        }
    }

    #[test]
    fn rejects_a_cross_signed_ca_below_an_expired_issuer() {
        let (issuer, own) = (ca_between("issuer", 2020, 2025), ca("own"));
        let cross = issuer.cross(&own);
        assert_eq!(severities(&[&cross, &issuer.pem()]), [Severity::Deny]);
        assert_eq!(
            severities(&[&cross, &issuer.pem(), &own.pem()]),
            [Severity::Deny; 2],
            "its own certificate comes last"
        );
        let first = [own.pem(), cross, issuer.pem()];
        assert_eq!(severities(&first.each_ref().map(String::as_str)), [], "its own certificate comes first");
        let found = findings(&secret(&[("ca.crt", &first.concat())])).into_iter().filter(|f| f.rule == super::RULE.id);
        let found: Vec<_> = found.map(|f| (f.severity, f.message.contains("Envoy before 1.38"))).collect();
        assert_eq!(found, [(Severity::Warn, true); 2], "another proxy may take the other");
    }

    /// Found: `pki-4024`, with seed 197104299 of the comparison with BoringSSL.
    #[test]
    fn rejects_a_cross_signed_ca_below_an_issuer_of_its_name_that_is_not_valid() {
        let own = ca_with("root", |params| params.use_authority_key_identifier_extension = true);
        for issuer in [ca_between("root", 2020, 2025), ca_between("root", 2031, 2040)] {
            let (cross, issuer, own) = (issuer.cross(&own), issuer.pem(), own.pem());
            let found = found(&[&cross, &own, &issuer]);
            assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Deny; 2], "{found:?}");
            assert!(found[0].1.contains("remove line"), "{}", found[0].1);
        }
    }

    #[test]
    fn rejects_an_intermediate_next_to_another_root_of_its_issuers_name() {
        let (root, other) = (ca("root"), ca_without_key_id("root"));
        assert_eq!(severities(&[&issuing(&root), &other.pem()]), [Severity::Deny]);
        assert_eq!(severities(&[&issuing(&root), &ca("root").pem()]), [], "the key identifiers differ");
        assert_eq!(severities(&[&issuing(&root), &root.pem(), &other.pem()]), [], "its own root comes first");
    }

    /// A CA as `openssl x509 -trustout` writes it with `-addtrust` (tag 30) or `-addreject` (tag a0).
    fn with_settings(der: &[u8], tag: u8, purposes: &[&[u8]]) -> String {
        let purposes: Vec<_> = purposes.iter().flat_map(|purpose| element(6, purpose)).collect();
        block("TRUSTED CERTIFICATE", &[der, &element(0x30, &element(tag, &purposes))].concat())
    }

    fn rejecting(authority: &Authority, purposes: &[&[u8]]) -> String {
        with_settings(authority.der(), 0xa0, purposes)
    }

    /// Measured: one shape of its clients is refused for the CA above, and the other for the CA of its name.
    #[test]
    fn rejects_a_ca_whose_clients_are_refused_for_two_reasons() {
        let old = ca_between("root", 2020, 2025);
        let new = ca_with("root", |params| params.use_authority_key_identifier_extension = true);
        let cross = old.cross(&new);
        for cas in [[&old.pem(), &cross], [&cross, &old.pem()]] {
            assert_eq!(severities(&cas.map(String::as_str)), [Severity::Deny]);
        }
    }

    /// Measured: the path leads from one to the other and back, where no signature fits.
    #[test]
    fn rejects_cas_that_name_each_other_as_issuer() {
        let (a, b) = (ca_without_key_id("a"), ca_without_key_id("b"));
        let (of_a, of_b) = (ca_without_key_id("b").cross(&a), ca_without_key_id("a").cross(&b));
        for cas in [[&of_a, &of_b], [&of_b, &of_a]] {
            let found = found(&cas.map(String::as_str));
            assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Deny; 2], "{found:?}");
        }
    }

    #[test]
    fn rejects_trust_settings_that_reject_clients() {
        const CLIENTS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
        const SERVERS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
        let root = ca("root");
        assert_eq!(severities(&[&rejecting(&root, &[SERVERS])]), []);
        for rejects in [rejecting(&root, &[CLIENTS]), rejecting(&root, &[SERVERS, CLIENTS])] {
            let alone = found(&[&rejects]);
            assert!(
                matches!(&alone[..], [(Severity::Deny, text)] if text.ends_with("the output of openssl x509 -in FILE")),
                "{alone:?}"
            );
            let below = found(&[&issuing(&root), &rejects]);
            assert_eq!(below.len(), 2, "the clients of the intermediate are refused, too: {below:?}");
        }
        let trusted = crate::trust::fixtures::certificates(&issuing(&root)).remove(0);
        let trusted = with_settings(&trusted.der, 0x30, &[CLIENTS]);
        assert_eq!(found(&[&trusted, &rejecting(&root, &[CLIENTS])]).len(), 1, "the lowest setting decides");
        let as_plain = block("CERTIFICATE", root.der());
        assert_eq!(severities(&[&as_plain, &rejecting(&root, &[CLIENTS])]), [], "the first of two copies counts");
    }

    #[test]
    fn warns_of_a_root_that_ends_before_its_intermediate() {
        let root = ca_between("root", 2020, 2033);
        let found = found(&[&issuing(&root), &root.pem()]);
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), [Severity::Warn]);
        assert!(found[0].1.starts_with("from 2033-01-01T00:00:00Z on: "), "{}", found[0].1);
    }
}
