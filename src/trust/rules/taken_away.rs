//! `taken-away`: an update after which a Secret lacks what its readers used.

use std::collections::{BTreeSet, HashSet};

use super::{Observation, Rule, Severity};
use crate::trust::certificate::Certificate;
use crate::trust::chain::{Budget, LeafShape, Store};
use crate::trust::finding::counted;
use crate::trust::name::brief;
use crate::trust::parsed_secret::{ParsedSecret, Text};
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;
use crate::trust::{UsageKind, credential};

/// Running gateways keep what istiod sent before. Content that did not work is no loss, so that it can always be replaced.
pub(super) const RULE: Rule = Rule {
    id: "taken-away",
    severity: Severity::Deny,
    summary: "an update that takes away the CA bundle or the serving pair; if it takes away single CAs or lists, it warns",
    remedy: "write both again; if nothing uses the Secret any more, delete it",
    source: "istiod pilot/pkg/credentials/kube/secrets.go: without them it sends nothing to a gateway that starts later",
    example: "data: this update takes away tls.crt and tls.key. expected the pair to stay: a gateway that starts later serves no \
              certificate; write both again",
    warns_ahead: false,
    check,
};

/// CAs in one message.
const NAMED: usize = 3;

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(old) = context.before else { return Vec::new() };
    [pair(context, old), bundle(context, old), single_cas(context, old), lists(context, old)]
        .into_iter()
        .flatten()
        .collect()
}

fn pair(context: &RuleContext<'_>, old: &ParsedSecret<'_>) -> Option<Observation> {
    let worked = old.served().next().is_some_and(|leaf| leaf.is_valid_at(context.now));
    // `pair-incomplete` reports half a pair.
    let is_gone =
        context.pair.is_none() && credential::half_pairs(context.usage.reader, context.secret).next().is_none();
    if !worked || !is_gone || context.usage.kind == UsageKind::TrustBundle {
        return None;
    }
    let pair = old.pair()?;
    let effect = match context.usage.kind {
        UsageKind::SigningCa => "nothing can be signed without it",
        _ => "a gateway that starts later serves no certificate",
    };
    let message = format!(
        "data: this update takes away {} and {}. expected the pair to stay: {effect}; write both again",
        pair.chain.key, pair.private_key_key
    );
    Some(Observation::new("data".to_owned(), pair.chain.key, message))
}

fn bundle(context: &RuleContext<'_>, old: &ParsedSecret<'_>) -> Option<Observation> {
    let is_blank = |ca: &Text| context.secret.data.get(ca.key).is_none_or(|content| content.is_empty());
    // `empty` reports a blank one without a pair, or one that is required.
    let is_reported = context.usage.ca_required || context.ca.is_some() && context.pair.is_none();
    let is_unused = context.usage.sibling.is_some();
    if valid(old.anchors(), context).next().is_none() || !context.ca.is_none_or(is_blank) || is_reported || is_unused {
        return None;
    }
    let key = old.ca()?.key;
    let message = format!(
        "{key}: this update takes away {}. expected the CA bundle to stay: a gateway that starts later refuses every client; write it \
         again",
        counted(old.anchors().count(), "CA")
    );
    Some(Observation::new(field(key), "bundle", message))
}

/// CAs whose certificates were accepted before. Where a GatewaySecret says which clients there are, they decide ([`crate::connectivity`]).
fn single_cas(context: &RuleContext<'_>, old: &ParsedSecret<'_>) -> Option<Observation> {
    let ca = context.loaded_ca().filter(|ca| !ca.bundle.entries.is_empty())?;
    if context.usage.is_rotated || context.usage.kind != UsageKind::Serving {
        return None;
    }
    let mut seen: HashSet<_> = ca.certificates().map(|ca| ca.fingerprint.as_str()).collect();
    let gone = valid(old.anchors(), context).filter(|anchor| anchor.may_sign && seen.insert(&anchor.fingerprint));
    let gone: Vec<_> = gone.collect();
    if gone.is_empty() {
        return None;
    }
    let [before, after] = [Store::new(old.anchors(), None), Store::new(ca.certificates(), None)];
    let mut budget = Budget::default();
    // What is not known after the update counts as lost, and what was not known before does not.
    let mut is_lost = |anchor: &&Certificate| {
        [LeafShape::WithKeyId, LeafShape::WithoutKeyId].into_iter().any(|shape| {
            before.accepts_issued(anchor, shape, context.now, &mut budget) == Some(true)
                && after.accepts_issued(anchor, shape, context.now, &mut budget) != Some(true)
        })
    };
    let gone: Vec<_> = gone.into_iter().filter(|anchor| is_lost(anchor)).collect();
    let until = gone.iter().map(|anchor| anchor.not_after).max()?;
    let named: Vec<_> = gone.iter().take(NAMED).map(|anchor| brief(&anchor.subject)).collect();
    let more = match gone.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "{}: this update takes away {}{more}, valid until {until}: the proxy refuses certificates that it issued. \
         expected it to stay until its clients have other certificates; add it again if it has such clients",
        ca.key,
        named.join(", "),
    );
    Some(Observation::new(ca.field(), "single", message).only_warns(true))
}

fn lists(context: &RuleContext<'_>, old: &ParsedSecret<'_>) -> Option<Observation> {
    let ca = context.loaded_ca().filter(|_| context.usage.kind != UsageKind::SigningCa)?;
    let issuers = |ca: &Text, crl: Option<&Text>| -> BTreeSet<String> {
        let lists = crl.iter().filter(|crl| crl.is_loaded()).flat_map(|crl| &crl.bundle.crls);
        ca.bundle.crls.iter().chain(lists).map(|list| list.issuer().to_owned()).collect()
    };
    let (before, after) = (issuers(old.ca()?, old.crl()), issuers(ca, context.crl));
    let gone: Vec<_> = before.difference(&after).collect();
    let first = gone.first()?;
    let more = match gone.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let effect = match context.crl.is_some() || !after.is_empty() {
        true => "the proxy refuses every client whose path has that CA, since there are other lists",
        false => "the proxy accepts revoked certificates again",
    };
    let key = old.crl().map_or(ca.key, |crl| crl.key);
    let message = format!(
        "{key}: this update takes away the revocation list of {}{more}: {effect}. expected it to stay; write it again, unless no client \
         needs it",
        brief(first),
    );
    Some(Observation::new(field(key), "lists", message).only_warns(true))
}

fn valid<'c>(
    anchors: impl Iterator<Item = &'c Certificate>,
    context: &RuleContext<'_>,
) -> impl Iterator<Item = &'c Certificate> {
    let now = context.now;
    anchors.filter(move |anchor| anchor.is_valid_at(now))
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{Authority, Leaf, ca, ca_between, now, secret};
    use crate::trust::{
        ParsedSecret, Secret, SecretUsage, Severities, Severity, TlsConsumer, UsageKind, judge_deletion, judge_update,
    };

    fn found(old: &Secret, new: &Secret, usage: SecretUsage<'_>) -> Vec<(Severity, String)> {
        let found = judge_update(old, new, usage, now());
        found.into_iter().filter(|f| f.rule == super::RULE.id).map(|f| (f.severity, f.field)).collect()
    }

    fn full(ca: &Authority, leaf: &Leaf) -> Secret {
        secret(&[("ca.crt", &ca.pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])
    }

    fn denied(fields: &[&str]) -> Vec<(Severity, String)> {
        fields.iter().map(|field| (Severity::Deny, (*field).to_owned())).collect()
    }

    #[test]
    fn rejects_an_update_that_empties_a_secret() {
        let root = ca("root");
        let old = full(&root, &root.leaf("shop.example.com"));
        let renamed = secret(&[("server.crt", "x"), ("server.key", "x")]);
        for new in [secret(&[]), renamed, secret(&[("tls.crt", ""), ("tls.key", "")])] {
            assert_eq!(found(&old, &new, SecretUsage::default()), denied(&["data", "data[ca.crt]"]));
        }
        let blank = secret(&[("ca.crt", ""), ("tls.crt", ""), ("tls.key", "")]);
        assert_eq!(found(&old, &blank, SecretUsage::default()), denied(&["data"]), "`empty` reports the CA");
    }

    #[test]
    fn rejects_the_loss_of_the_bundle_or_of_the_pair() {
        let root = ca("root");
        let leaf = root.leaf("shop.example.com");
        let (old, pem) = (full(&root, &leaf), root.pem());
        let (chain, key) = (leaf.pem(), leaf.key_pem());
        for ca in [&[][..], &[("ca.crt", "")]] {
            let new = secret(&[&[("tls.crt", chain.as_str()), ("tls.key", key.as_str())], ca].concat());
            assert_eq!(found(&old, &new, SecretUsage::default()), denied(&["data[ca.crt]"]));
        }
        let without_pair = secret(&[("ca.crt", &pem)]);
        for kind in [UsageKind::Serving, UsageKind::SigningCa] {
            assert_eq!(found(&old, &without_pair, SecretUsage { kind, ..SecretUsage::default() }), denied(&["data"]));
        }
        let bundle = SecretUsage { kind: UsageKind::TrustBundle, ..SecretUsage::default() };
        assert_eq!(found(&old, &without_pair, bundle), [], "no proxy reads a pair there");
    }

    #[test]
    fn accepts_other_keys_and_the_end_of_what_did_not_work() {
        let (root, expired) = (ca("root"), ca_between("old", 2020, 2025));
        let leaf = root.leaf("shop.example.com");
        let (chain, key, pem) = (leaf.pem(), leaf.key_pem(), root.pem());
        let opaque = secret(&[("cacert", &pem), ("cert", &chain), ("key", &key)]);
        assert_eq!(found(&full(&root, &leaf), &opaque, SecretUsage::default()), []);
        let other = root.leaf("other").key_pem();
        for broken in [
            secret(&[("tls.crt", &chain), ("tls.key", &other), ("ca.crt", "broken")]),
            secret(&[("ca.crt", &expired.pem())]),
            secret(&[("tls.crt", &chain)]),
        ] {
            assert_eq!(found(&broken, &secret(&[]), SecretUsage::default()), []);
        }
    }

    #[test]
    fn warns_of_single_cas_unless_a_gateway_secret_knows_the_clients() {
        let (one, two, expired) = (ca("one"), ca("two"), ca_between("old", 2020, 2025));
        let bundle = |cas: &[&Authority]| secret(&[("ca.crt", &cas.iter().map(|ca| ca.pem()).collect::<String>())]);
        let warned = vec![(Severity::Warn, "data[ca.crt]".to_owned())];
        let old = bundle(&[&one, &two, &expired]);
        assert_eq!(found(&old, &bundle(&[&one, &expired]), SecretUsage::default()), warned);
        assert_eq!(found(&old, &bundle(&[&one, &two]), SecretUsage::default()), [], "an expired one");
        let renewed = two.renewed(2029, 2041);
        assert_eq!(found(&old, &bundle(&[&one, &renewed]), SecretUsage::default()), [], "the same subject and key");
        let rotated = SecretUsage { is_rotated: true, ..SecretUsage::default() };
        assert_eq!(found(&old, &bundle(&[&one]), rotated), []);
        let signing = SecretUsage { kind: UsageKind::SigningCa, ..SecretUsage::default() };
        assert_eq!(found(&old, &bundle(&[&one]), signing), []);
    }

    #[test]
    fn warns_of_revocation_lists() {
        let root = ca("root");
        let (pem, lists) = (root.pem(), root.crl_pem(2029, 2031, &[]));
        let old = secret(&[("ca.crt", &pem), ("ca.crl", &lists)]);
        let new = secret(&[("ca.crt", &pem)]);
        assert_eq!(found(&old, &new, SecretUsage::default()), [(Severity::Warn, "data[ca.crl]".to_owned())]);
        let below = root.intermediate("below", |_| {}).crl_pem(2029, 2031, &[]);
        let more = secret(&[("ca.crt", &pem), ("ca.crl", &(lists.clone() + &below))]);
        assert_eq!(found(&more, &old, SecretUsage::default()), [(Severity::Warn, "data[ca.crl]".to_owned())]);
        assert_eq!(found(&old, &more, SecretUsage::default()), []);
        let inside = secret(&[("ca.crt", &(pem + &lists))]);
        assert_eq!(found(&old, &inside, SecretUsage::default()), []);
    }

    #[test]
    fn a_deletion_warns_of_what_an_empty_secret_denies() {
        let root = ca("root");
        let old = full(&root, &root.leaf("shop.example.com"));
        let judge_deletion = |old: &Secret| {
            judge_deletion(
                &ParsedSecret::new(old, TlsConsumer::Envoy),
                SecretUsage::default(),
                &Severities::default(),
                now(),
            )
        };
        let found = judge_deletion(&old);
        let found: Vec<_> = found.iter().map(|f| (f.rule, f.severity, f.field.as_str())).collect();
        assert_eq!(found, ["data", "data[ca.crt]"].map(|field| (super::RULE.id, Severity::Warn, field)));
        assert_eq!(judge_deletion(&secret(&[("ca.crt", "broken")])), []);
    }
}
