//! `chain-order`: a serving chain with a gap, or out of order.

use super::{Observation, Rule, Severity};
use crate::trust::Certificate;
use crate::trust::chain::{may_issue, signers};
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;

/// Certificates of a chain that is judged. A handshake needs far fewer, and more would take long to sort.
const LONGEST: usize = 32;

/// Measured: Envoy serves a chain as it is written. Clients reorder it (RFC 8446 section 4.4.2 asks them to; RFC 5246 section 7.4.2 did
/// not), but cannot add what is missing: a client that trusts only the root refuses a leaf whose issuer is not in the chain.
pub(super) const RULE: Rule = Rule {
    id: "chain-order",
    severity: Severity::Deny,
    summary: "a serving chain with CAs, but without the leaf's issuer; one that is out of order or has unrelated ones warns",
    remedy: "write the leaf first, then the CA that signed it, and so on; remove certificates that signed none before them",
    source: "RFC 8446 section 4.4.2; Envoy, measured: it serves the chain as written",
    example: "tls.crt: no certificate in the chain signed the leaf CN=shop.example.com, which was issued by CN=sub. expected its \
              issuer: clients that trust only the root refuse the chain; add it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some((chain, leaf)) = context.served() else { return Vec::new() };
    // `key-mismatch` reports a chain that does not start with the leaf.
    if context.pair.is_some_and(|pair| pair.public_key.as_ref().is_ok_and(|key| *key != leaf.public_key)) {
        return Vec::new();
    }
    let certificates: Vec<_> = chain.bundle.entries.iter().map(|entry| &entry.certificate).collect();
    if certificates.len() > LONGEST {
        let count = certificates.len();
        let message = format!(
            "{}: {count} certificates. expected the leaf and the few CAs between it and the root; remove the others",
            chain.key
        );
        return vec![Observation::new(chain.field(), "long", message).only_warns(true)];
    }
    let gap = gap(context.loaded_ca(), chain, leaf, &certificates[1.min(certificates.len())..]);
    gap.into_iter().chain(misplaced(chain, &certificates)).collect()
}

/// The finding on a chain that has CAs, none of which signed the leaf.
fn gap(ca: Option<&Text>, chain: &Text, leaf: &Certificate, others: &[&Certificate]) -> Option<Observation> {
    let is_alone = !others.iter().any(|other| other.is_ca && other.fingerprint != leaf.fingerprint)
        || leaf.subject_der == leaf.issuer_der;
    // A leaf that a CA of the bundle signed needs no intermediate.
    let bundled = ca.iter().flat_map(|ca| &ca.bundle.entries).take(LONGEST).map(|entry| &entry.certificate);
    if is_alone || others.iter().copied().chain(bundled).any(signers(leaf)) {
        return None;
    }
    let message = format!(
        "{}: no certificate in the chain signed the leaf {}, which was issued by {}. expected its issuer: clients that trust only \
         the root refuse the chain; add it",
        chain.key,
        brief(&leaf.subject),
        brief(&leaf.issuer)
    );
    Some(Observation::new(chain.field(), leaf.fingerprint.as_str(), message))
}

/// Certificates that signed nothing before them.
fn misplaced(chain: &Text, certificates: &[&Certificate]) -> Vec<Observation> {
    let issues = may_issue(certificates);
    let count = certificates.len();
    let observe = |at: usize| {
        let twin = certificates[..at].iter().position(|other| other.fingerprint == certificates[at].fingerprint);
        if twin.is_none() && (0..at).any(|before| issues(at, before)) {
            return None;
        }
        let (line, name) = (chain.bundle.entries[at].line, brief(&certificates[at].subject));
        let what = if let Some(twin) = twin {
            let first = chain.bundle.entries[twin].line;
            &format!("is already on line {first}. expected each certificate once; remove this one")
        } else if (at + 1..count).any(|after| issues(at, after)) {
            "precedes a certificate that it signed. expected it after that one: some clients do not reorder a chain; move it down"
        } else {
            "signed no certificate before it. expected only CAs between the leaf and the root; remove it"
        };
        let message = format!("{} line {line}: {name} {what}", chain.key);
        Some(Observation::new(chain.field(), certificates[at].fingerprint.as_str(), message).only_warns(true))
    };
    (1..count).filter_map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{Leaf, ca, findings, secret};

    const DENY: (&str, Severity) = ("chain-order", Severity::Deny);
    const WARN: (&str, Severity) = ("chain-order", Severity::Warn);

    fn found(leaf: &Leaf, others: &[String], bundle: Option<&str>) -> Vec<(&'static str, Severity)> {
        let (chain, key) = (leaf.pem() + &others.concat(), leaf.key_pem());
        let bundle = bundle.map(|bundle| ("ca.crt", bundle));
        let data: Vec<_> = [("tls.crt", chain.as_str()), ("tls.key", &key)].into_iter().chain(bundle).collect();
        findings(&secret(&data)).iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_chains_in_order_with_and_without_the_root() {
        let root = ca("root");
        let sub = root.intermediate("sub", |_| {});
        let leaf = sub.leaf("a");
        for others in [vec![], vec![sub.pem()], vec![sub.pem(), root.pem()]] {
            assert_eq!(found(&leaf, &others, None), [], "{}", others.len());
        }
    }

    #[test]
    fn accepts_a_cross_signed_ca_next_to_its_root() {
        let (old, new) = (ca("old"), ca("new"));
        let cross = old.cross(&new);
        assert_eq!(found(&new.leaf("a"), &[new.pem(), cross], None), []);
    }

    #[test]
    fn rejects_a_gap() {
        let root = ca("root");
        let leaf = root.intermediate("sub", |_| {}).leaf("a");
        assert_eq!(found(&leaf, &[root.pem()], None), [DENY, WARN]);
        let other = ca("sub");
        assert_eq!(found(&leaf, &[other.pem()], None)[0], DENY, "the name alone signs nothing");
    }

    #[test]
    fn warns_of_an_unrelated_certificate() {
        let (root, other) = (ca("root"), ca("other"));
        let leaf = root.leaf("a");
        assert_eq!(found(&leaf, &[other.pem()], Some(&root.pem())), [WARN]);
        assert_eq!(found(&leaf, &[leaf.pem()], None), [WARN]);
        let odd = root.leaf_with("a", |params| params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
        assert_eq!(found(&odd, &[odd.pem()], None), [WARN], "found by comparing with Envoy");
    }

    #[test]
    fn warns_of_another_order() {
        let root = ca("root");
        let sub = root.intermediate("sub", |_| {});
        assert_eq!(found(&sub.leaf("a"), &[root.pem(), sub.pem()], None), [WARN]);
    }
}
