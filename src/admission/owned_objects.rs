//! What the agent keeps is the agent's to write: anybody else's write would be undone, and in mid-rotation cut somebody off
//! until then.

use std::collections::HashSet;

use serde_json::Value;

use super::rules::KEPT_BY_AGENT;
use super::{Operation, Request};
use crate::api::TrustBundleTargetKind;
use crate::api::names::{CACERT_SUFFIX, KEPT_FOR, MANAGED_LABEL, journal_name, managed_config_map_name};
use crate::registry::{Entry, Registry};
use crate::trust::{Finding, Severities};

/// Controllers that end a namespace or collect garbage: refusing them would leave a namespace terminating for ever.
/// With and without `--use-service-account-credentials` of kube-controller-manager.
pub(super) const CLEANERS: [&str; 3] = [
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];

/// Refuses a change or the end of a Secret or ConfigMap that the agent keeps for a GatewaySecret. Other labels, annotations
/// and finalizers are anybody's, and so is taking an owner off.
pub(super) fn finding(request: &Request<'_>, registry: &Registry, severities: &Severities) -> Option<Finding> {
    let old = request.old_object?;
    if request.by_agent || CLEANERS.contains(&request.username) {
        return None;
    }
    let keeper = old["metadata"]["annotations"][KEPT_FOR].as_str()?;
    let is_keeper = |entry: &&Entry| entry.name_in(request.namespace) == keeper;
    let entry = registry.entries().iter().filter(|entry| !entry.being_deleted).find(is_keeper)?;
    if !keeps(entry, request.kind.kind, &entry.qualified(request.namespace, request.name)) {
        return None;
    }
    let changed = match request.operation {
        Operation::Delete => true,
        Operation::Update => {
            request.object.is_some_and(|object| owned(object) != owned(old) || has_new_owner(object, old))
        }
        Operation::Create | Operation::Connect => false,
    };
    if !changed {
        return None;
    }
    let message = format!(
        "{} is kept by trustspan for GatewaySecret {keeper}: any other write is undone. change the root Secret or the \
         GatewaySecret, or delete the GatewaySecret first",
        request.name
    );
    severities.under(&entry.policy.severities).apply(KEPT_BY_AGENT.finding("metadata.annotations", message))
}

/// Whether the agent keeps an object of that name, as [`Entry::qualified`] has it: anybody can write an annotation.
fn keeps(entry: &Entry, kind: &str, name: &str) -> bool {
    // In another namespace the owner of the object decides.
    let mut here = entry.spec.trust_bundle_targets.iter().filter(|place| place.namespace.is_none());
    let mut distributed = |wanted: TrustBundleTargetKind| here.any(|place| place.kind == wanted && place.name == name);
    match kind {
        "Secret" => {
            name.strip_suffix(CACERT_SUFFIX).unwrap_or(name) == entry.managed_name()
                || entry.left_behind() == Some(name)
                || entry.issuer_name().as_deref() == Some(name)
                || distributed(TrustBundleTargetKind::Secret)
        }
        _ => {
            name == journal_name(&entry.name)
                || distributed(TrustBundleTargetKind::ConfigMap)
                || entry.spec.clients.ca_config_map_names.iter().any(|source| managed_config_map_name(source) == name)
        }
    }
}

/// Whether an object has an owner that it had not: the garbage collector deletes it once that one is gone, or was never
/// there, and is let through.
fn has_new_owner(object: &Value, old: &Value) -> bool {
    let owners = |object: &Value| -> HashSet<String> {
        let all = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        all.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect()
    };
    !owners(object).is_subset(&owners(old))
}

/// What the agent owns of an object.
fn owned(object: &Value) -> [&Value; 6] {
    let metadata = &object["metadata"];
    [
        &object["data"],
        &object["binaryData"],
        &object["type"],
        &object["immutable"],
        &metadata["annotations"][KEPT_FOR],
        &metadata["labels"][MANAGED_LABEL],
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::Kind;
    use crate::api::{Level, SecretRef, TrustAnchor};
    use crate::registry::tests::entry;
    use crate::trust::Severity;
    use crate::trust::fixtures::{ca, parsed};

    fn kept(data: &str) -> Value {
        json!({
            "metadata": {"name": "gateway", "annotations": {KEPT_FOR: "gateway"}, "labels": {MANAGED_LABEL: "true"}},
            "data": {"ca.crt": data},
        })
    }

    /// What a write makes of an object that `entry` keeps, or its deletion where there is no new one.
    fn found(
        entry: Entry,
        severities: &Severities,
        old: &Value,
        object: Option<&Value>,
        change: impl FnOnce(&mut Request<'_>),
    ) -> Option<Finding> {
        let mut request = Request {
            operation: if object.is_some() { Operation::Update } else { Operation::Delete },
            kind: Kind { group: "", version: "v1", kind: "Secret" },
            sub_resource: "",
            namespace: "mesh",
            name: "gateway",
            username: "jane",
            by_agent: false,
            may_break_glass: false,
            in_guarded_namespace: true,
            object,
            old_object: Some(old),
        };
        change(&mut request);
        finding(&request, &Registry::new([entry]), severities)
    }

    fn refused(old: &Value, object: Option<&Value>, change: impl FnOnce(&mut Request<'_>)) -> bool {
        found(entry("mesh", "root", "gateway"), &Severities::default(), old, object, change).is_some()
    }

    #[test]
    fn rejects_a_change_of_a_config_map_that_is_kept_from_another() {
        let refused = |name: &'static str| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.spec.clients.ca_config_map_names = vec!["partners".to_owned()];
            let (old, new) = (kept("a"), kept("b"));
            let found = found(entry, &Severities::default(), &old, Some(&new), |request| {
                request.kind = Kind { group: "", version: "v1", kind: "ConfigMap" };
                request.name = name;
            });
            found.is_some()
        };
        assert!(refused("partners.trustspan"));
        assert!(!refused("partners"), "its owner's");
    }

    #[test]
    fn accepts_the_agent_cleaners_and_what_is_not_its_own() {
        let (old, new) = (kept("a"), kept("b"));
        assert!(!refused(&old, Some(&new), |request| request.by_agent = true));
        assert!(!refused(&old, None, |request| request.username = CLEANERS[0]));
        let mut labelled = kept("a");
        labelled["metadata"]["labels"]["team"] = "checkout".into();
        assert!(!refused(&old, Some(&labelled), |_| {}));
        assert!(!refused(&json!({"data": {"ca.crt": "a"}}), Some(&new), |_| {}), "nobody keeps it");
        assert!(!refused(&old, Some(&new), |request| request.namespace = "other"), "its GatewaySecret is gone");
        assert!(!refused(&old, Some(&new), |request| request.name = "root"), "somebody wrote the annotation there");
    }

    #[test]
    fn rejects_a_change_of_the_issuers_secret_elsewhere() {
        let refused = |keeper: &str, name: &'static str| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.spec.issuer_secret_name = Some("issuer".to_owned());
            let namespace = Some("cert-manager".to_owned());
            entry.resolved.ca_secret_ref = Some(SecretRef { namespace, name: "ca".to_owned() });
            let mut old = kept("a");
            old["metadata"]["annotations"][KEPT_FOR] = keeper.into();
            let found = found(entry, &Severities::default(), &old, None, |request| {
                (request.namespace, request.name) = ("cert-manager", name);
            });
            found.is_some()
        };
        assert!(refused("mesh/gateway", "issuer"));
        assert!(!refused("gateway", "issuer"), "kept for one in its own namespace");
        assert!(!refused("mesh/gateway", "gateway"), "not what the agent keeps there");
    }

    #[test]
    fn rejects_changes_and_the_end() {
        let old = kept("a");
        assert!(refused(&old, Some(&kept("b")), |_| {}));
        assert!(refused(&old, None, |_| {}));
        for path in ["/metadata/annotations", "/metadata/labels"] {
            let mut freed = kept("a");
            freed.pointer_mut(path).map(Value::take);
            assert!(refused(&old, Some(&freed), |_| {}), "{path}");
        }
    }

    #[test]
    fn rejects_an_owner_that_takes_it_along() {
        let owned = |uids: &[&str]| {
            let mut object = kept("a");
            object["metadata"]["ownerReferences"] = uids.iter().map(|uid| json!({"uid": uid, "name": "x"})).collect();
            object
        };
        assert!(refused(&kept("a"), Some(&owned(&["1"])), |_| {}));
        assert!(refused(&owned(&["1"]), Some(&owned(&["2"])), |_| {}));
        assert!(!refused(&owned(&["1", "2"]), Some(&owned(&["1"])), |_| {}), "one less");
        assert!(!refused(&owned(&["1"]), Some(&owned(&["1"])), |_| {}));
    }

    #[test]
    fn weights_count_and_those_of_the_gateway_secret_win() {
        let (old, new) = (kept("a"), kept("b"));
        let weighed = |near: Option<Level>, far: Option<Level>| {
            let weights = |level: Option<Level>| level.map(|level| (KEPT_BY_AGENT.id.to_owned(), level)).into_iter();
            let mut entry = entry("mesh", "root", "gateway");
            entry.policy.severities = weights(near).collect();
            found(entry, &weights(far).collect(), &old, Some(&new), |_| {}).map(|finding| finding.severity)
        };
        assert_eq!(weighed(None, None), Some(Severity::Deny));
        assert_eq!(weighed(None, Some(Level::Warn)), Some(Severity::Warn));
        assert_eq!(weighed(Some(Level::Off), Some(Level::Warn)), None);
    }

    #[test]
    fn rejects_writes_to_a_managed_secret_under_its_former_name() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.secret_name = Some("other".to_owned());
        assert!(!keeps(&entry, "Secret", "gateway"));
        assert!(keeps(&entry, "Secret", "other-cacert"), "what Istio takes CAs from in its place");
        entry.status.secret_name = Some("gateway".to_owned());
        entry.status.bundle = vec![TrustAnchor::from(&parsed(ca("one").der()))];
        assert!(keeps(&entry, "Secret", "gateway") && keeps(&entry, "Secret", "other"));
    }
}
