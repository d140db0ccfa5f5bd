//! What a Secret is relied on for, as the GatewaySecret that names it knows.

use jiff::Timestamp;
use serde_json::Value;

use crate::connectivity;
use crate::registry::{Entry, Role};
use crate::trust::credential::CA_KEYS;
use crate::trust::{Duty, SecretUsage};

/// Gateways take trust anchors from a managed Secret, unless a `-cacert` sibling holds them. A root of a public issuer has
/// no CA and never had one; a root that had one must not lose it.
pub(super) fn duty<'e>(claim: Option<(&'e Entry, Role)>, old: Option<&Value>, now: Timestamp) -> Duty<'e> {
    let Some((entry, role)) = claim else { return Duty::default() };
    let had_one = || old.is_some_and(|old| CA_KEYS.iter().any(|key| old["data"][key].is_string()));
    let status = &entry.status;
    let sibling = status.cacert_sibling.as_ref().filter(|_| role != Role::CacertSibling);
    let ca_required = sibling.is_none() && (role != Role::Root || had_one());
    if role == Role::CacertSibling {
        let oldest_proxy = entry.oldest_proxy();
        return Duty { ca_required, usage: SecretUsage::TrustBundle, oldest_proxy, ..Duty::default() };
    }
    Duty {
        ca_required,
        is_rotated: true,
        distributes_trust: connectivity::distributes(status, now),
        // It is the root's; under the managed name it does not apply.
        sibling: sibling.filter(|_| role == Role::Root).map(|sibling| sibling.name.as_str()),
        gateways: status.gateways.as_deref().unwrap_or_default(),
        oldest_proxy: entry.oldest_proxy(),
        ..Duty::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CacertSibling, GatewayUse, Leaf, LeafKind, TrustAnchor};
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    /// A GatewaySecret whose bundle holds some CAs, whose clients trust others, and whose gateways serve a leaf.
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
        duty(Some((entry, Role::Managed)), None, now()).distributes_trust
    }

    #[test]
    fn accepts_that_clients_take_their_trust_from_the_bundle() {
        let (one, two) = (ca("one"), ca("two"));
        assert!(distributes(&observed(&[&one, &two], &[&one], &one)));
    }

    #[test]
    fn rejects_that_clients_of_another_server_ca_do() {
        let (clients, servers) = (ca("clients"), ca("servers"));
        assert!(!distributes(&observed(&[&clients], &[&servers], &servers)));
        assert!(!distributes(&observed(&[&clients], &[&servers, &clients], &servers)), "they trust both, and need one");
        assert!(!distributes(&entry("mesh", "root", "gw")), "nothing was observed");
    }

    #[test]
    fn accepts_a_sibling_of_the_root_alone() {
        let mut entry = entry("mesh", "root", "gw");
        entry.status.cacert_sibling = Some(CacertSibling { name: "root-cacert".to_owned(), missing: Vec::new() });
        let of = |role| duty(Some((&entry, role)), None, now()).sibling;
        let siblings = [Role::Root, Role::Managed, Role::CacertSibling].map(of);
        assert_eq!(siblings, [Some("root-cacert"), None, None]);
    }

    #[test]
    fn accepts_no_duty_of_a_secret_that_nobody_names() {
        assert_eq!(duty(None, None, now()), Duty::default());
    }

    #[test]
    fn accepts_gateways_and_rotation_of_root_and_managed_secret() {
        let mut entry = entry("mesh", "root", "gw");
        let (group, namespace, name) = ("networking.istio.io".to_owned(), "mesh".to_owned(), "public".to_owned());
        entry.status.gateways = Some(vec![GatewayUse { group, namespace, name, hosts: Vec::new() }]);
        for (role, counts) in [(Role::Root, true), (Role::Managed, true), (Role::CacertSibling, false)] {
            let duty = duty(Some((&entry, role)), None, now());
            assert_eq!((duty.is_rotated, duty.gateways.len() == 1), (counts, counts), "{role:?}");
        }
    }
}
