//! What a Secret is used for, and so which rules apply to its content.

use jiff::Timestamp;

use super::Request;
use super::secret_write::SecretWrite;
use crate::api::names::MANAGED_LABEL;
use crate::connectivity;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{ParsedSecret, Proxy, SecretUsage, UsageKind};

/// What the Secret of a write is used for.
pub(super) fn usage<'r>(write: &SecretWrite<'r>, new: &ParsedSecret<'_>) -> SecretUsage<'r> {
    match write.claim {
        Some((entry, role)) => claimed(entry, role, write.now),
        None => unclaimed(write.request, write.registry, new),
    }
}

/// The use of a Secret that a GatewaySecret names. Gateways take trust anchors from a managed Secret, unless a `-cacert` sibling has them. The
/// source Secret of a public issuer never has a CA.
fn claimed(entry: &Entry, role: Role, now: Timestamp) -> SecretUsage<'_> {
    let status = &entry.status;
    let sibling = status.cacert_sibling.as_ref().filter(|_| role != Role::CacertSibling);
    let ca_required = sibling.is_none() && role != Role::Source;
    let oldest_proxy = entry.oldest_proxy();
    if role == Role::CacertSibling {
        return SecretUsage { ca_required, kind: UsageKind::TrustBundle, oldest_proxy, ..SecretUsage::default() };
    }
    SecretUsage {
        ca_required,
        is_rotated: true,
        is_source_of_cas: role == Role::Source,
        distributes_trust: connectivity::distributes(status, now),
        // Istio uses the sibling of the source Secret only for Gateways that name the source Secret.
        sibling: sibling.filter(|_| role == Role::Source).map(|sibling| sibling.name.as_str()),
        gateways: status.gateways.as_deref().unwrap_or_default(),
        oldest_proxy,
        ..SecretUsage::default()
    }
}

/// The use of a Secret that no GatewaySecret names as its source or managed Secret: this replica may not know its GatewaySecret yet. A Secret
/// with a CA is an issuer's, since gateways serve leaves.
pub(super) fn unclaimed<'r>(
    request: &Request<'_>,
    registry: &'r Registry,
    contents: &ParsedSecret<'_>,
) -> SecretUsage<'r> {
    let mut usage: SecretUsage<'r> = registry.usage(request.namespace, request.name);
    let served = registry.served(request.namespace, request.name).filter(|_| usage.kind == UsageKind::Serving);
    if let Some(served) = served {
        usage.gateways = &served.gateways;
        usage.ca_required = served.verifies_clients;
        usage.pair_required = !served.gateways.is_empty();
        return usage;
    }
    let is_managed = contents.secret.labels.get(MANAGED_LABEL).is_some_and(|value| value == "true");
    if usage.kind == UsageKind::Serving && contents.presents_ca() && !is_managed {
        usage.kind = UsageKind::SigningCa;
    }
    if usage.kind == UsageKind::SigningCa {
        // No proxy reads it. A rotation to a CA that some proxies cannot verify with waits, and its conditions say so.
        usage.oldest_proxy = Proxy::NEWEST;
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::secret_write::DecodedWrite;
    use crate::api::{CacertSibling, GatewayUse, Leaf, LeafKind, TrustAnchor};
    use crate::json::json;
    use crate::registry::tests::entry;
    use crate::trust::Severities;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    /// A GatewaySecret with these CAs in its bundle, these CAs trusted by clients, and this serving certificate.
    fn observed(bundle: &[&Authority], trusted: &[&Authority], served: &Authority) -> Entry {
        let mut entry = entry("mesh", "root", "gw");
        let anchors =
            |cas: &[&Authority]| cas.iter().map(|ca| TrustAnchor::from(&parsed(ca.der()))).collect::<Vec<_>>();
        let leaf = served.leaf("shop.example.com");
        entry.status.bundle = anchors(bundle);
        entry.status.client_trust = Some(anchors(trusted));
        entry.status.leaves = Some(vec![Leaf {
            kind: LeafKind::Server,
            namespace: "mesh".to_owned(),
            name: "gw".to_owned(),
            subject: "CN=shop.example.com".to_owned(),
            not_after: parsed(leaf.der()).not_after,
            pem: leaf.pem(),
            others: Vec::new(),
            same_names: false,
        }]);
        entry
    }

    fn distributes(entry: &Entry) -> bool {
        claimed(entry, Role::Managed, now()).distributes_trust
    }

    #[test]
    fn clients_trust_the_managed_bundle_when_it_verifies_the_serving_certificate() {
        let (one, two) = (ca("one"), ca("two"));
        assert!(distributes(&observed(&[&one, &two], &[&one], &one)));
    }

    #[test]
    fn clients_of_another_server_ca_do_not_trust_the_managed_bundle() {
        let (clients, servers) = (ca("clients"), ca("servers"));
        assert!(!distributes(&observed(&[&clients], &[&servers], &servers)));
        assert!(
            !distributes(&observed(&[&clients], &[&servers, &clients], &servers)),
            "they trust both CAs and need only one"
        );
        assert!(!distributes(&entry("mesh", "root", "gw")), "status has no bundle");
    }

    #[test]
    fn only_the_source_secret_has_a_cacert_sibling() {
        let mut entry = entry("mesh", "root", "gw");
        entry.status.cacert_sibling = Some(CacertSibling { name: "root-cacert".to_owned(), missing: Vec::new() });
        let of = |role| claimed(&entry, role, now()).sibling;
        let siblings = [Role::Source, Role::Managed, Role::CacertSibling].map(of);
        assert_eq!(siblings, [Some("root-cacert"), None, None]);
    }

    #[test]
    fn a_secret_that_no_gateway_secret_names_has_the_default_usage() {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other"}});
        let (request, registry) = (Request::create(&object, "mesh"), Registry::default());
        let decoded = DecodedWrite::new(&request).unwrap();
        let write = SecretWrite::new(&request, &decoded, &registry, &Severities::default(), now());
        assert_eq!(usage(&write, write.new.as_ref().unwrap()), SecretUsage::default());
    }

    #[test]
    fn source_and_managed_secret_are_rotated_and_serve_gateways() {
        let mut entry = entry("mesh", "root", "gw");
        let (group, namespace, name) = ("networking.istio.io".to_owned(), "mesh".to_owned(), "public".to_owned());
        entry.status.gateways = Some(vec![GatewayUse { group, namespace, name, hosts: Vec::new() }]);
        for (role, counts) in [(Role::Source, true), (Role::Managed, true), (Role::CacertSibling, false)] {
            let usage = claimed(&entry, role, now());
            assert_eq!((usage.is_rotated, usage.gateways.len() == 1), (counts, counts), "{role:?}");
        }
    }
}
