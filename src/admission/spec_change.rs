//! What a change of a GatewaySecret would do to those who are connected now: warnings, on a dry run too.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::Request;
use crate::api::{Clients, GatewaySecretSpec, GatewaySecretStatus, Mode, shortened};
use crate::connectivity;
use crate::registry::Registry;
use crate::trust::{Certificate, is_distrusted};

/// Clients that one warning names.
const NAMED: usize = 2;

/// Sentences of at most 120 characters, as clients show them.
pub(super) fn notes(request: &Request<'_>, registry: &Registry, now: Timestamp) -> Vec<String> {
    let spec = |object: &Value| GatewaySecretSpec::deserialize(&object["spec"]).ok();
    let Some(new) = request.object.and_then(spec) else { return Vec::new() };
    let mut notes = Vec::new();
    if new.mode == Mode::Bundle && !new.clients.all_declared {
        notes.push(Clients::INCOMPLETE.to_owned());
    }
    let entries = registry.entries().iter();
    let entry = entries.filter(|e| e.namespace == request.namespace).find(|e| e.name == request.name);
    let (Some(old), Some(entry)) = (request.old_object.and_then(spec), entry) else { return notes };
    let held = connectivity::observed(&entry.status.bundle);
    let named = |ca: &&Certificate| is_distrusted(ca, &new.distrusted_cas);
    if held.iter().filter(named).any(|ca| !is_distrusted(ca, &old.distrusted_cas)) {
        let rest: Vec<_> = held.iter().filter(|ca| !named(ca)).cloned().collect();
        if rest.is_empty() {
            notes.push(
                "spec.distrustedCAs names every CA of the bundle: it is not emptied, and nothing is taken out"
                    .to_owned(),
            );
        } else {
            notes.extend(cut_off("spec.distrustedCAs", &entry.status, &held, &rest, now));
            notes.push(
                "spec.distrustedCAs: connections and sessions that are open now live on; restart gateways to end them"
                    .to_owned(),
            );
        }
    }
    if old.mode == Mode::Bundle && new.mode == Mode::Copy {
        let what = "spec.mode: Copy";
        notes.extend(match &entry.status.cut_off_by_copy {
            Some(names) => {
                let all = entry.status.cut_off_by_copy_count.map_or(names.len(), |all| all as usize);
                told(what, "cuts off", &names.iter().map(String::as_str).collect::<Vec<_>>(), all)
            }
            // No agent looked. A copy holds what the root holds, which mostly is the first of the bundle.
            None => cut_off(what, &entry.status, &held, &held[..held.len().min(1)], now),
        });
    }
    notes
}

/// Who is accepted with the bundle as it is, and would not be with another.
fn cut_off(
    what: &str,
    status: &GatewaySecretStatus,
    before: &[Certificate],
    after: &[Certificate],
    now: Timestamp,
) -> Option<String> {
    let cut = connectivity::cut_off(before.iter(), after.iter(), status, now);
    let mut names: Vec<_> = cut.lost.iter().flat_map(|leaf| leaf.names()).collect();
    names.dedup();
    let all = names.len() + cut.unlisted;
    told(what, if cut.is_certain() { "cuts off" } else { "may cut off" }, &names, all)
}

/// The warning about `all` clients, of which some names are known; none when it is about nobody.
fn told(what: &str, effect: &str, names: &[&str], all: usize) -> Option<String> {
    let told = names.iter().take(NAMED).map(|name| shortened(name)).collect::<Vec<_>>().join(", ");
    let more = match names.len() {
        0 => "…",
        _ if all > NAMED => ", …",
        _ => "",
    };
    (all > 0).then(|| format!("{what} {effect} {all} live client(s) at once: {told}{more}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::{Kind, Operation};
    use crate::api::{Leaf, LeafKind, TrustAnchor};
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    fn asked(old: Value, new: Value, bundle: &[&Authority], clients: &[(&str, &Authority)]) -> Vec<String> {
        asked_after(old, new, bundle, clients, None)
    }

    fn asked_after(
        old: Value,
        new: Value,
        bundle: &[&Authority],
        clients: &[(&str, &Authority)],
        cut_off_by_copy: Option<Vec<String>>,
    ) -> Vec<String> {
        let mut entry = entry("mesh", "root", "gateway");
        entry.status.cut_off_by_copy = cut_off_by_copy;
        entry.status.bundle = bundle.iter().map(|ca| TrustAnchor::from(&parsed(ca.der()))).collect();
        let leaf = |(name, ca): &(&str, &Authority)| Leaf {
            kind: LeafKind::Client,
            namespace: "mesh".to_owned(),
            name: (*name).to_owned(),
            subject: format!("CN={name}"),
            not_after: now(),
            pem: ca.leaf(name).pem(),
            others: Vec::new(),
            same_names: false,
        };
        entry.status.leaves = Some(clients.iter().map(leaf).collect());
        let object = |mut spec: Value| {
            spec["clients"] = json!({"allDeclared": true});
            json!({"metadata": {"name": "gateway"}, "spec": spec})
        };
        let (old, new) = (object(old), object(new));
        let request = Request {
            operation: Operation::Update,
            kind: Kind { group: "trustspan.dev", version: "v1alpha1", kind: "GatewaySecret" },
            sub_resource: "",
            namespace: "mesh",
            name: "gateway",
            username: "jane",
            by_agent: false,
            may_break_glass: false,
            in_guarded_namespace: true,
            object: Some(&new),
            old_object: Some(&old),
        };
        notes(&request, &Registry::new([entry]), now())
    }

    #[test]
    fn warns_that_undeclared_clients_are_cut_off() {
        let said = |spec: Value| {
            let object = json!({"metadata": {"name": "gateway"}, "spec": spec});
            let kind = Kind { group: "trustspan.dev", version: "v1alpha1", kind: "GatewaySecret" };
            let request = Request { kind, ..Request::create(&object, "mesh") };
            notes(&request, &Registry::new([]), now())
        };
        assert_eq!(said(json!({"sourceSecretName": "root"})), [Clients::INCOMPLETE]);
        assert!(Clients::INCOMPLETE.len() <= 120);
        assert_eq!(said(json!({"sourceSecretName": "root", "clients": {"allDeclared": true}})), [""; 0]);
        assert_eq!(said(json!({"sourceSecretName": "root", "mode": "Copy"})), [""; 0], "a copy waits for nobody");
    }

    #[test]
    fn accepts_changes_that_cut_nobody_off() {
        let (old, new) = (ca("old"), ca("new"));
        let (before, copy) = (json!({"sourceSecretName": "root"}), json!({"sourceSecretName": "root", "mode": "Copy"}));
        assert_eq!(asked(before.clone(), copy.clone(), &[&new, &old], &[("till", &new)]), [""; 0]);
        assert_eq!(asked(copy, before.clone(), &[&new], &[("till", &old)]), [""; 0]);
        let other = json!({"sourceSecretName": "root", "distrustedCAs": ["00"]});
        assert_eq!(asked(before, other, &[&new, &old], &[("till", &old)]), [""; 0]);
    }

    #[test]
    fn rejects_nothing_but_warns_who_is_cut_off() {
        let (old, new) = (ca("old"), ca("new"));
        let before = json!({"sourceSecretName": "root"});
        let clients = [("shop", &old), ("till", &new), ("a-client-with-a-rather-long-name", &old), ("third", &old)];
        let seen = asked(before.clone(), json!({"sourceSecretName": "root", "mode": "Copy"}), &[&new, &old], &clients);
        assert_eq!(seen, ["spec.mode: Copy cuts off 3 live client(s) at once: shop, a-client-with-a-rat…, …"]);
        let distrust = |cas: &[&Authority]| {
            let named: Vec<_> = cas.iter().map(|ca| parsed(ca.der()).fingerprint).collect();
            json!({"sourceSecretName": "root", "distrustedCAs": named})
        };
        let seen = asked(before.clone(), distrust(&[&old]), &[&new, &old], &clients);
        assert!(
            seen[0].starts_with("spec.distrustedCAs cuts off 3 live client(s)") && seen[1].contains("live on"),
            "{seen:?}"
        );
        let seen = asked(before, distrust(&[&old, &new]), &[&new, &old], &clients);
        assert!(seen.len() == 1 && seen[0].contains("not emptied"), "{seen:?}");
        assert!(seen.iter().all(|note| note.len() <= 120));
    }

    #[test]
    fn what_the_agent_found_out_of_a_copy_counts() {
        let (old, new) = (ca("old"), ca("new"));
        let (before, copy) = (json!({"sourceSecretName": "root"}), json!({"sourceSecretName": "root", "mode": "Copy"}));
        let seen = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            asked_after(before.clone(), copy.clone(), &[&new, &old], &[("shop", &old)], Some(names))
        };
        assert_eq!(seen(&["shop", "till"]), ["spec.mode: Copy cuts off 2 live client(s) at once: shop, till"]);
        assert_eq!(seen(&[]), [""; 0]);
    }
}
