//! `leaf-not-trusted`: a serving leaf that the bundle of the same Secret does not verify.

use super::{Observation, Rule, Severity};
use crate::trust::chain::{Purpose, Store};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Only where clients take their trust from this bundle ([`crate::connectivity::distributes`]). A public server
/// certificate next to a private client CA is normal.
pub(super) const RULE: Rule = Rule {
    id: "leaf-not-trusted",
    severity: Severity::Deny,
    summary: "a serving leaf that the bundle of the same Secret does not verify, where clients trust that bundle",
    remedy: "add the leaf's CA to the bundle first, or serve a leaf of a CA that is in it",
    source: "GatewaySecret status says what clients trust; the leaf is verified as Envoy does (RFC 5280 section 6.1)",
    example: "tls.crt: clients take their trust from ca.crt, which does not verify the leaf CN=shop.example.com: \
              CN=shop.example.com was issued by CN=other, which is not in the bundle; add it, or the missing intermediate to the \
              chain",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(((chain, leaf), ca)) = context.served().zip(context.loaded_ca()) else { return Vec::new() };
    // `expired`, `not-yet-valid` and `empty` report an invalid leaf and an empty bundle.
    if !context.usage.distributes_trust || !leaf.is_valid_at(context.now) || ca.bundle.entries.is_empty() {
        return Vec::new();
    }
    let served: Vec<_> = chain.bundle.entries.iter().map(|entry| entry.certificate.clone()).collect();
    let store = Store::new(ca.bundle.entries.iter().map(|entry| &entry.certificate), None);
    let Err(refused) = store.verify(&served, Purpose::Server { hosts: &[] }, context.now) else { return Vec::new() };
    let message = format!(
        "{}: clients take their trust from {}, which does not verify the leaf {}: {refused}",
        chain.key,
        ca.key,
        brief(&leaf.subject)
    );
    vec![Observation::new(chain.field(), leaf.fingerprint.as_str(), message)]
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{Authority, ca, now, secret};
    use crate::trust::{SecretUsage, judge};

    fn found(bundle: &Authority, issuer: &Authority, distributes_trust: bool) -> Vec<&'static str> {
        let leaf = issuer.leaf("shop.example.com");
        let secret = secret(&[("ca.crt", &bundle.pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
        judge(&secret, SecretUsage { distributes_trust, ..SecretUsage::default() }, now())
            .iter()
            .map(|f| f.rule)
            .collect()
    }

    #[test]
    fn accepts_a_leaf_of_the_bundle() {
        let one = ca("one");
        assert!(found(&one, &one, true).is_empty());
    }

    #[test]
    fn accepts_a_public_certificate_next_to_a_private_client_ca() {
        assert!(found(&ca("one"), &ca("public"), false).is_empty());
    }

    #[test]
    fn rejects_a_leaf_of_another_ca_where_clients_rely_on_the_bundle() {
        assert_eq!(found(&ca("one"), &ca("other"), true), ["leaf-not-trusted"]);
        assert_eq!(found(&ca("one"), &ca("one"), true), ["leaf-not-trusted"], "the same name is not the same key");
    }
}
