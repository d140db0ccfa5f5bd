//! `leaf-not-trusted`: a serving leaf that the bundle of the same Secret does not verify.

use super::{Observation, Rule, Severity};
use crate::trust::chain::{Purpose, Refused, Store};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Denied only where clients take their trust from this bundle ([`crate::connectivity::distributes`]). A public server certificate next to a
/// private client CA is normal, and only a GatewaySecret says what clients trust.
pub(super) const RULE: Rule = Rule {
    id: "leaf-not-trusted",
    severity: Severity::Deny,
    summary: "a serving chain that the bundle next to it does not verify; it warns if clients may trust another root",
    remedy: "add the missing intermediate to the chain; in the bundle, a CA also admits its clients",
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
    if !leaf.is_valid_at(context.now) || ca.bundle.entries.is_empty() {
        return Vec::new();
    }
    let usage = &context.usage;
    if !usage.distributes_trust && (usage.is_rotated || leaf.has_scts()) {
        return Vec::new();
    }
    let store = Store::new(ca.certificates(), None);
    let refused = match usage.distributes_trust {
        true => {
            let served: Vec<_> = chain.certificates().cloned().collect();
            store.verify(&served, Purpose::Server { hosts: &[] }, context.now).err()
        }
        false => store.leads_here(chain.certificates()).err().filter(|refused| *refused != Refused::Budget),
    };
    let Some(refused) = refused else { return Vec::new() };
    let (chain_key, ca_key, name) = (chain.key, ca.key, brief(&leaf.subject));
    let message = match usage.distributes_trust {
        true => format!(
            "{chain_key}: clients take their trust from {ca_key}, which does not verify the leaf {name}: {refused}"
        ),
        false => match refused {
            Refused::UnknownIssuer { subject, issuer } => format!(
                "{chain_key}: {} was issued by {}, which is neither in the chain nor in {ca_key}: clients that trust only {ca_key} refuse \
                 the gateway. expected a chain that leads to what clients trust; if {} is an intermediate, add it to the chain (in {ca_key} \
                 it would also admit its clients)",
                brief(&subject),
                brief(&issuer),
                brief(&issuer),
            ),
            Refused::SelfSigned { .. } => format!(
                "{chain_key}: the leaf {name} is self-signed: clients that trust only {ca_key} refuse the gateway. expected a leaf of a CA \
                 that clients trust; issue it from one"
            ),
            refused => format!(
                "{chain_key}: {ca_key} does not verify the leaf {name}: {refused}. this is intended only if clients trust another root"
            ),
        },
    };
    vec![Observation::new(chain.field(), leaf.fingerprint.as_str(), message).only_warns(!usage.distributes_trust)]
}

#[cfg(test)]
mod tests {
    use rcgen::CustomExtension;

    use crate::trust::fixtures::{Leaf, ca, now, secret};
    use crate::trust::{SecretUsage, Severity, judge};

    const DENY: [(&str, Severity); 1] = [("leaf-not-trusted", Severity::Deny)];
    const WARN: [(&str, Severity); 1] = [("leaf-not-trusted", Severity::Warn)];

    fn found(bundle: &str, leaf: &Leaf, others: &str, usage: SecretUsage<'_>) -> Vec<(&'static str, Severity)> {
        let chain = leaf.pem() + others;
        let secret = secret(&[("ca.crt", bundle), ("tls.crt", &chain), ("tls.key", &leaf.key_pem())]);
        judge(&secret, usage, now()).iter().map(|f| (f.rule, f.severity)).collect()
    }

    fn guarded(bundle: &str, leaf: &Leaf, others: &str) -> Vec<(&'static str, Severity)> {
        found(bundle, leaf, others, SecretUsage::default())
    }

    #[test]
    fn accepts_a_leaf_of_the_bundle() {
        let one = ca("one");
        let usage = SecretUsage { distributes_trust: true, ..SecretUsage::default() };
        assert!(found(&one.pem(), &one.leaf("shop.example.com"), "", usage).is_empty());
    }

    #[test]
    fn accepts_a_public_certificate_next_to_a_private_client_ca() {
        let scts = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 11129, 2, 4, 2], vec![4, 0]);
        let public = ca("public").leaf_with("shop.example.com", |params| params.custom_extensions = vec![scts]);
        assert_eq!(guarded(&ca("one").pem(), &public, ""), []);
        let rotated = SecretUsage { is_rotated: true, ..SecretUsage::default() };
        assert_eq!(found(&ca("one").pem(), &ca("public").leaf("a"), "", rotated), [], "connections decide");
    }

    #[test]
    fn rejects_a_leaf_of_another_ca_where_clients_rely_on_the_bundle() {
        let usage = SecretUsage { distributes_trust: true, ..SecretUsage::default() };
        let other = |name| found(&ca("one").pem(), &ca(name).leaf("shop.example.com"), "", usage);
        assert_eq!(other("other"), DENY);
        assert_eq!(other("one"), DENY, "the same name is not the same key");
    }

    #[test]
    fn warns_of_a_gap_below_the_bundle() {
        let root = ca("root");
        let sub = root.intermediate("sub", |_| {});
        let below = sub.intermediate("below", |_| {});
        let other = ca("root").leaf_with("a", |params| params.use_authority_key_identifier_extension = true);
        assert_eq!(guarded(&root.pem(), &sub.leaf("a"), ""), WARN, "the leaf alone");
        assert_eq!(guarded(&root.pem(), &below.leaf("a"), &below.pem()), WARN, "a gap above its issuer");
        assert_eq!(guarded(&root.pem(), &other, ""), WARN, "another key");
        for anchors in [sub.pem(), below.pem() + &root.pem()] {
            assert_eq!(guarded(&anchors, &below.leaf("a"), &below.pem()), []);
        }
    }
}
