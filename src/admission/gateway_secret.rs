//! Checks of GatewaySecrets: another name for the managed Secret, a namespace that is not guarded, and clients that a
//! change of the spec would cut off. The warnings are the same on a dry run.

use jiff::Timestamp;
use serde::Deserialize;

use super::rules::{MANAGED_RENAMED, NAMESPACE_UNGUARDED};
use super::{Operation, Request};
use crate::api::names::{GUARD, GUARD_ENABLED};
use crate::api::{Clients, GatewaySecretSpec, GatewaySecretStatus, Mode, shortened};
use crate::connectivity;
use crate::json::Json;
use crate::registry::Registry;
use crate::rotation::counted;
use crate::trust::{Certificate, Finding, Severities, is_distrusted};

/// The number of clients that one warning names.
const NAMED: usize = 2;

/// The findings on a GatewaySecret that is created or changed. A stored one can keep a wrong `spec.secretName`, and can always return to the
/// name that the managed Secret has.
pub(super) fn findings(request: &Request<'_>, severities: &Severities) -> Vec<Finding> {
    let Some(object) = request.stored_object() else { return Vec::new() };
    let old = request.old_object;
    let had_another_name = |old: &&Json<'_>| managed_name(old).is_some_and(|name| managed_name(object) != Some(name));
    let renamed = old.filter(had_another_name).and_then(|old| managed_secret_renamed(object, &old["status"]));
    let is_new_spec = request.operation == Operation::Create || old.is_some_and(|old| old["spec"] != object["spec"]);
    let unguarded = (is_new_spec && !request.in_guarded_namespace).then(|| namespace_unguarded(request.namespace));
    renamed.into_iter().chain(unguarded.and_then(|finding| severities.apply(finding))).collect()
}

/// A name in `spec.secretName` other than that of the managed Secret in `status`. No Gateway or workload that uses this Secret would be
/// rewritten. During a rotation the agent, which reads Secrets only by the names in the spec, could not copy the serving pair either.
pub(super) fn managed_secret_renamed(object: &Json<'_>, status: &Json<'_>) -> Option<Finding> {
    let (stored, name) = (status["secretName"].as_str()?, managed_name(object)?);
    let exists = status["bundle"].as_array().is_some_and(|bundle| !bundle.is_empty());
    (exists && stored != name).then(|| MANAGED_RENAMED.finding("spec.secretName", renamed_message(stored, &name)))
}

/// Why another `name` for the managed Secret is rejected.
pub(super) fn renamed_message(stored: &str, name: &str) -> String {
    format!(
        "Secret {stored} is in use: Gateways and workloads that use it are not rewritten to {name}. keep spec.secretName. to use another \
         name, wait for phase Steady, make them use the source Secret, delete this GatewaySecret and create one with the other name"
    )
}

fn managed_name(object: &Json<'_>) -> Option<String> {
    let spec = GatewaySecretSpec::deserialize(&object["spec"]).ok()?;
    Some(spec.managed_name(object["metadata"]["name"].as_str()?).to_owned())
}

/// A GatewaySecret in a namespace whose Secrets the API server does not send to the webhook.
pub(super) fn namespace_unguarded(namespace: &str) -> Finding {
    let message = format!(
        "namespace {namespace} is not guarded: label it {GUARD}={GUARD_ENABLED}. without this label an invalid source Secret is accepted, \
         and blocks the next rotation"
    );
    NAMESPACE_UNGUARDED.finding("metadata.namespace", message)
}

/// Warnings about undeclared clients, and about the clients that a change of the spec cuts off.
pub(super) fn notes(request: &Request<'_>, registry: &Registry, now: Timestamp) -> Vec<String> {
    let spec = |object: &Json<'_>| GatewaySecretSpec::deserialize(&object["spec"]).ok();
    let Some(new) = request.object.and_then(spec) else { return Vec::new() };
    let mut notes = Vec::new();
    if new.mode == Mode::Bundle && !new.clients.all_declared {
        notes.push(Clients::INCOMPLETE.to_owned());
    }
    let entries = registry.entries().iter();
    let entry = entries.filter(|e| e.namespace == request.namespace).find(|e| e.name == request.name);
    let (Some(old), Some(entry)) = (request.old_object.and_then(spec), entry) else { return notes };
    let bundle = connectivity::observed(&entry.status.bundle);
    let is_distrusted_now = |ca: &&Certificate| is_distrusted(ca, &new.distrusted_cas);
    if bundle.iter().filter(is_distrusted_now).any(|ca| !is_distrusted(ca, &old.distrusted_cas)) {
        let rest: Vec<_> = bundle.iter().filter(|ca| !is_distrusted_now(ca)).cloned().collect();
        if rest.is_empty() {
            notes.push(
                "no CA is removed: spec.distrustedCAs names every CA of the bundle. Issue a new CA first".to_owned(),
            );
        } else {
            notes.extend(clients_cut_off("spec.distrustedCAs", &entry.status, &bundle, &rest, now));
            notes.push(
                "spec.distrustedCAs: restart gateways to close the connections and TLS sessions that are open now"
                    .to_owned(),
            );
        }
    }
    if old.mode == Mode::Bundle && new.mode == Mode::Copy {
        let field = "spec.mode: Copy";
        notes.extend(match &entry.status.cut_off_by_copy {
            Some(names) => {
                let all = entry.status.cut_off_by_copy_count.map_or(names.len(), |all| all as usize);
                cut_off_warning(field, "cuts off", &names.iter().map(String::as_str).collect::<Vec<_>>(), all)
            }
            // No agent has computed the clients. A copy has the CAs of the source Secret, which usually is the first of
            // the bundle.
            None => clients_cut_off(field, &entry.status, &bundle, &bundle[..bundle.len().min(1)], now),
        });
    }
    notes
}

/// The warning about clients that gateways accept with the bundle `before`, and reject with the bundle `after`.
fn clients_cut_off(
    field: &str,
    status: &GatewaySecretStatus,
    before: &[Certificate],
    after: &[Certificate],
    now: Timestamp,
) -> Option<String> {
    let cut = connectivity::cut_off(before.iter(), after.iter(), status, now);
    let mut names: Vec<_> = cut.lost.iter().flat_map(|leaf| leaf.names()).collect();
    names.dedup();
    let all = names.len() + cut.unlisted;
    cut_off_warning(field, if cut.is_certain() { "cuts off" } else { "may cut off" }, &names, all)
}

/// The warning that `all` clients are cut off, of which some names are known.
fn cut_off_warning(field: &str, effect: &str, names: &[&str], all: usize) -> Option<String> {
    let first = names.iter().take(NAMED).map(|name| shortened(name)).collect::<Vec<_>>().join(", ");
    let more = match names.len() {
        0 => "…",
        _ if all > NAMED => ", …",
        _ => "",
    };
    (all > 0).then(|| format!("{field} {effect} {} at once: {first}{more}", counted(all, "client")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Kind;
    use crate::api::{Leaf, LeafKind, TrustAnchor};
    use crate::json::json;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    const KIND: Kind<'static> = Kind { group: "trustspan.dev", version: "v1alpha1", kind: "GatewaySecret" };

    fn update<'r>(object: &'r Json<'r>, old: &'r Json<'r>) -> Request<'r> {
        Request::fixture(KIND, Some(object), Some(old))
    }

    /// GatewaySecret `gw`, whose status has managed Secret `gw` with a CA.
    fn named(secret_name: Option<&str>) -> Json<'static> {
        let mut object = json!({
            "metadata": {"name": "gw"}, "spec": {"sourceSecretName": "root"},
            "status": {"secretName": "gw", "bundle": [{"fingerprint": "00"}]},
        });
        if let Some(name) = secret_name {
            object["spec"]["secretName"] = json!(name);
        }
        object
    }

    fn changed(object: &Json<'_>, old: &Json<'_>) -> Option<Finding> {
        findings(&update(object, old), &Severities::default()).pop()
    }

    fn stored(object: &Json<'_>) -> Option<Finding> {
        managed_secret_renamed(object, &object["status"])
    }

    #[test]
    fn rejects_another_name_for_an_existing_managed_secret() {
        let finding = changed(&named(Some("gw-2")), &named(None)).unwrap();
        assert_eq!((finding.rule, finding.field.as_str()), ("managed-renamed", "spec.secretName"));
        assert!(finding.message.contains("Secret gw is in use") && finding.message.contains("to gw-2"), "{finding:?}");
        assert_eq!(stored(&named(Some("gw-2"))), Some(finding), "missed by the webhook");
    }

    #[test]
    fn accepts_the_same_name_the_original_name_and_a_name_before_the_secret_exists() {
        assert_eq!(changed(&named(Some("gw")), &named(None)), None, "the default");
        assert_eq!(changed(&named(None), &named(Some("gw-2"))), None);
        assert_eq!(changed(&named(Some("gw-2")), &named(Some("gw-2"))), None, "a label can still be changed");
        let mut without_secret = named(None);
        without_secret["status"]["bundle"] = json!([]);
        assert_eq!(changed(&named(Some("gw-2")), &without_secret), None);
        assert_eq!(stored(&named(None)), None);
    }

    fn warnings(
        old: Json<'static>,
        new: Json<'static>,
        bundle: &[&Authority],
        clients: &[(&str, &Authority)],
    ) -> Vec<String> {
        warnings_with(old, new, bundle, clients, None)
    }

    fn warnings_with(
        old: Json<'static>,
        new: Json<'static>,
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
            not_after: Timestamp::MAX,
            pem: ca.leaf(name).pem(),
            others: Vec::new(),
            same_names: false,
        };
        entry.status.leaves = Some(clients.iter().map(leaf).collect());
        let object = |mut spec: Json<'static>| {
            spec["clients"] = json!({"allDeclared": true});
            json!({"metadata": {"name": "gateway"}, "spec": spec})
        };
        let (old, new) = (object(old), object(new));
        notes(&update(&new, &old), &Registry::new([entry]), now())
    }

    #[test]
    fn warns_about_undeclared_clients() {
        let warnings = |spec: Json<'static>| {
            let object = json!({"metadata": {"name": "gateway"}, "spec": spec});
            let request = Request { kind: KIND, ..Request::create(&object, "mesh") };
            notes(&request, &Registry::default(), now())
        };
        assert_eq!(warnings(json!({"sourceSecretName": "root"})), [Clients::INCOMPLETE]);
        assert!(Clients::INCOMPLETE.len() <= 120);
        assert_eq!(warnings(json!({"sourceSecretName": "root", "clients": {"allDeclared": true}})), [""; 0]);
        let copy = json!({"sourceSecretName": "root", "mode": "Copy"});
        assert_eq!(warnings(copy), [""; 0], "a copy waits for no client");
    }

    #[test]
    fn does_not_warn_when_all_clients_stay_connected() {
        let (old, new) = (ca("old"), ca("new"));
        let (before, copy) = (json!({"sourceSecretName": "root"}), json!({"sourceSecretName": "root", "mode": "Copy"}));
        assert_eq!(warnings(before.clone(), copy.clone(), &[&new, &old], &[("payments", &new)]), [""; 0]);
        assert_eq!(warnings(copy, before.clone(), &[&new], &[("payments", &old)]), [""; 0]);
        let other = json!({"sourceSecretName": "root", "distrustedCAs": ["00"]});
        assert_eq!(warnings(before, other, &[&new, &old], &[("payments", &old)]), [""; 0]);
    }

    #[test]
    fn warns_which_clients_are_cut_off() {
        let (old, new) = (ca("old"), ca("new"));
        let before = json!({"sourceSecretName": "root"});
        let clients = [("shop", &old), ("payments", &new), ("a-client-with-a-rather-long-name", &old), ("third", &old)];
        let copy = json!({"sourceSecretName": "root", "mode": "Copy"});
        let shown = warnings(before.clone(), copy, &[&new, &old], &clients);
        assert_eq!(shown, ["spec.mode: Copy cuts off 3 clients at once: shop, a-client-with-a-rat…, …"]);
        let distrust = |cas: &[&Authority]| {
            let fingerprints: Vec<_> = cas.iter().map(|ca| parsed(ca.der()).fingerprint).collect();
            json!({"sourceSecretName": "root", "distrustedCAs": fingerprints})
        };
        let shown = warnings(before.clone(), distrust(&[&old]), &[&new, &old], &clients);
        assert!(
            shown[0].starts_with("spec.distrustedCAs cuts off 3 clients at once")
                && shown[1].contains("restart gateways"),
            "{shown:?}"
        );
        assert!(shown.iter().all(|note| note.len() <= 120));
        let shown = warnings(before, distrust(&[&old, &new]), &[&new, &old], &clients);
        assert!(shown.len() == 1 && shown[0].contains("no CA is removed"), "{shown:?}");
        assert!(shown.iter().all(|note| note.len() <= 120));
    }

    #[test]
    fn prefers_the_clients_that_the_agent_found() {
        let (old, new) = (ca("old"), ca("new"));
        let (before, copy) = (json!({"sourceSecretName": "root"}), json!({"sourceSecretName": "root", "mode": "Copy"}));
        let shown = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            warnings_with(before.clone(), copy.clone(), &[&new, &old], &[("shop", &old)], Some(names))
        };
        assert_eq!(shown(&["shop", "payments"]), ["spec.mode: Copy cuts off 2 clients at once: shop, payments"]);
        assert_eq!(shown(&["shop"]), ["spec.mode: Copy cuts off 1 client at once: shop"]);
        assert_eq!(shown(&[]), [""; 0]);
    }
}
