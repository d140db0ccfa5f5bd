//! Objects that the agent writes: a write by another user would be reverted and, during a rotation, cut clients off until then.

use std::collections::HashSet;
use std::sync::Arc;

use super::rules::KEPT_BY_AGENT;
use super::{Operation, Request};
use crate::api::TrustBundleTargetKind;
use crate::api::names::{CACERT_SUFFIX, GATEWAY_SECRET, MANAGED_LABEL, journal_name, managed_config_map_name};
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::trust::{Finding, Severities};

/// Controllers that delete the objects of a namespace or collect garbage, with and without `--use-service-account-credentials` of
/// kube-controller-manager. If they were rejected, a namespace would stay terminating.
pub(super) const CLEANUP_CONTROLLERS: [&str; 3] = [
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];

/// Rejects the change or the deletion of a Secret or ConfigMap that the agent writes for a GatewaySecret. Other users may change other labels,
/// annotations and finalizers, and may remove an owner.
pub(super) fn finding(request: &Request<'_>, registry: &Registry, severities: &Severities) -> Option<Finding> {
    let old = request.old_object?;
    if request.by_agent || CLEANUP_CONTROLLERS.contains(&request.username) {
        return None;
    }
    let owner = old["metadata"]["annotations"][GATEWAY_SECRET].as_str()?;
    let is_owner = |entry: &&Arc<Entry>| entry.name_in(request.namespace) == owner;
    let entry = registry.entries().iter().filter(|entry| !entry.being_deleted).find(is_owner)?;
    if !is_owned_name(entry, request.kind.kind, &entry.qualified(request.namespace, request.name)) {
        return None;
    }
    let changed = match request.operation {
        Operation::Delete => true,
        Operation::Update => {
            request.object.is_some_and(|object| owned_fields(object) != owned_fields(old) || has_new_owner(object, old))
        }
        Operation::Create | Operation::Connect => false,
    };
    if !changed {
        return None;
    }
    let finding = KEPT_BY_AGENT.finding("metadata.annotations", message(request.name, owner));
    severities.under(&entry.policy.severities).apply(finding)
}

/// Why a write of the object `name` is rejected.
pub(super) fn message(name: &str, owner: &str) -> String {
    format!(
        "{name} is written by trustspan for GatewaySecret {owner}, which reverts other writes. change the source Secret or the \
         GatewaySecret, or delete the GatewaySecret first"
    )
}

/// Whether the agent writes an object of that name, in the form of [`Entry::qualified`]: any user can add the annotation.
fn is_owned_name(entry: &Entry, kind: &str, name: &str) -> bool {
    // A target in another namespace belongs to the owner of that namespace.
    let mut targets = entry.spec.trust_bundle_targets.iter().filter(|target| target.namespace.is_none());
    let mut is_target = |kind: TrustBundleTargetKind| targets.any(|target| target.kind == kind && target.name == name);
    match kind {
        "Secret" => {
            name == entry.managed_name()
                || name.strip_suffix(CACERT_SUFFIX) == Some(entry.managed_name())
                || entry.left_behind() == Some(name)
                || entry.issuer_name().as_deref() == Some(name)
                || is_target(TrustBundleTargetKind::Secret)
        }
        _ => {
            name == journal_name(&entry.name)
                || is_target(TrustBundleTargetKind::ConfigMap)
                || entry.spec.clients.ca_config_map_names.iter().any(|source| managed_config_map_name(source) == name)
        }
    }
}

/// Whether an object has a new owner. The garbage collector, which is never rejected, deletes the object if that owner does not exist.
pub(super) fn has_new_owner(object: &Json<'_>, old: &Json<'_>) -> bool {
    let owners = |object: &Json<'_>| -> HashSet<String> {
        let all = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        all.filter_map(|owner| owner["uid"].as_str().map(str::to_owned)).collect()
    };
    !owners(object).is_subset(&owners(old))
}

/// The paths of the fields of an object that only the agent may change.
pub(super) const OWNED_FIELDS: [&[&str]; 6] = [
    &["data"],
    &["binaryData"],
    &["type"],
    &["immutable"],
    &["metadata", "annotations", GATEWAY_SECRET],
    &["metadata", "labels", MANAGED_LABEL],
];

fn owned_fields<'a>(object: &'a Json<'a>) -> [&'a Json<'a>; 6] {
    OWNED_FIELDS.map(|path| path.iter().fold(object, |value, key| &value[*key]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Kind;
    use crate::api::{Level, SecretRef, TrustAnchor};
    use crate::json::json;
    use crate::registry::tests::entry;
    use crate::trust::Severity;
    use crate::trust::fixtures::{ca, parsed};

    fn owned(data: &str) -> Json<'static> {
        json!({
            "metadata": {"name": "gateway", "annotations": {GATEWAY_SECRET: "gateway"}, "labels": {MANAGED_LABEL: "true"}},
            "data": {"ca.crt": data},
        })
    }

    /// The finding on a write of an object that the agent writes for `entry`; without a new object, on its deletion.
    fn found(
        entry: Entry,
        severities: &Severities,
        old: &Json<'_>,
        object: Option<&Json<'_>>,
        change: impl FnOnce(&mut Request<'_>),
    ) -> Option<Finding> {
        let mut request = Request {
            name: "gateway",
            ..Request::fixture(Kind { group: "", version: "v1", kind: "Secret" }, object, Some(old))
        };
        change(&mut request);
        finding(&request, &Registry::new([entry]), severities)
    }

    fn is_rejected(old: &Json<'_>, object: Option<&Json<'_>>, change: impl FnOnce(&mut Request<'_>)) -> bool {
        found(entry("mesh", "root", "gateway"), &Severities::default(), old, object, change).is_some()
    }

    #[test]
    fn rejects_a_change_of_a_config_map_copied_from_another() {
        let is_rejected = |name: &'static str| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.spec.clients.ca_config_map_names = vec!["partners".to_owned()];
            let (old, new) = (owned("a"), owned("b"));
            let found = found(entry, &Severities::default(), &old, Some(&new), |request| {
                request.kind = Kind { group: "", version: "v1", kind: "ConfigMap" };
                request.name = name;
            });
            found.is_some()
        };
        assert!(is_rejected("partners.trustspan"));
        assert!(!is_rejected("partners"), "it belongs to the user");
    }

    #[test]
    fn accepts_the_agent_cleanup_and_changes_of_other_objects() {
        let (old, new) = (owned("a"), owned("b"));
        assert!(!is_rejected(&old, Some(&new), |request| request.by_agent = true));
        assert!(!is_rejected(&old, None, |request| request.username = CLEANUP_CONTROLLERS[0]));
        let mut labelled = owned("a");
        labelled["metadata"]["labels"]["team"] = json!("checkout");
        assert!(!is_rejected(&old, Some(&labelled), |_| {}));
        assert!(!is_rejected(&json!({"data": {"ca.crt": "a"}}), Some(&new), |_| {}), "the annotation is missing");
        assert!(
            !is_rejected(&old, Some(&new), |request| request.namespace = "other"),
            "the GatewaySecret does not exist"
        );
        assert!(!is_rejected(&old, Some(&new), |request| request.name = "root"), "a user added the annotation");
    }

    #[test]
    fn rejects_a_change_of_the_issuers_secret_in_another_namespace() {
        let is_rejected = |owner: &str, name: &'static str| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.spec.issuer_secret_name = Some("issuer".to_owned());
            let namespace = Some("cert-manager".to_owned());
            entry.resolved.ca_secret_ref = Some(SecretRef { namespace, name: "ca".to_owned() });
            let mut old = owned("a");
            old["metadata"]["annotations"][GATEWAY_SECRET] = json!(owner);
            let found = found(entry, &Severities::default(), &old, None, |request| {
                (request.namespace, request.name) = ("cert-manager", name);
            });
            found.is_some()
        };
        assert!(is_rejected("mesh/gateway", "issuer"));
        assert!(!is_rejected("gateway", "issuer"), "the annotation names a GatewaySecret in the same namespace");
        assert!(!is_rejected("mesh/gateway", "gateway"), "the agent writes no such Secret there");
    }

    #[test]
    fn rejects_changes_and_deletion() {
        let old = owned("a");
        assert!(is_rejected(&old, Some(&owned("b")), |_| {}));
        assert!(is_rejected(&old, None, |_| {}));
        for map in ["annotations", "labels"] {
            let mut without_mark = owned("a");
            without_mark["metadata"][map] = Json::Null;
            assert!(is_rejected(&old, Some(&without_mark), |_| {}), "{map}");
        }
    }

    #[test]
    fn rejects_a_new_owner_reference() {
        let with_owners = |uids: &[&str]| {
            let mut object = owned("a");
            object["metadata"]["ownerReferences"] =
                json!(uids.iter().map(|uid| json!({"uid": uid, "name": "x"})).collect::<Vec<_>>());
            object
        };
        assert!(is_rejected(&owned("a"), Some(&with_owners(&["1"])), |_| {}));
        assert!(is_rejected(&with_owners(&["1"]), Some(&with_owners(&["2"])), |_| {}));
        assert!(!is_rejected(&with_owners(&["1", "2"]), Some(&with_owners(&["1"])), |_| {}), "an owner was removed");
        assert!(!is_rejected(&with_owners(&["1"]), Some(&with_owners(&["1"])), |_| {}));
    }

    #[test]
    fn severities_of_the_gateway_secret_override_those_of_the_cluster() {
        let (old, new) = (owned("a"), owned("b"));
        let severity = |near: Option<Level>, far: Option<Level>| {
            let severities = |level: Option<Level>| level.map(|level| (KEPT_BY_AGENT.id.to_owned(), level)).into_iter();
            let mut entry = entry("mesh", "root", "gateway");
            entry.policy.severities = severities(near).collect();
            found(entry, &severities(far).collect(), &old, Some(&new), |_| {}).map(|finding| finding.severity)
        };
        assert_eq!(severity(None, None), Some(Severity::Deny));
        assert_eq!(severity(None, Some(Level::Warn)), Some(Severity::Warn));
        assert_eq!(severity(Some(Level::Off), Some(Level::Warn)), None);
    }

    #[test]
    fn owns_a_managed_secret_whose_name_has_the_suffix_of_istio() {
        let entry = entry("mesh", "root", "gateway-cacert");
        assert!(is_owned_name(&entry, "Secret", "gateway-cacert"));
        assert!(is_owned_name(&entry, "Secret", "gateway-cacert-cacert"));
        assert!(!is_owned_name(&entry, "Secret", "gateway"));
    }

    #[test]
    fn owns_a_managed_secret_under_its_previous_name() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.secret_name = Some("other".to_owned());
        assert!(!is_owned_name(&entry, "Secret", "gateway"));
        assert!(is_owned_name(&entry, "Secret", "other-cacert"), "Istio takes CAs from it instead");
        entry.status.secret_name = Some("gateway".to_owned());
        entry.status.bundle = vec![TrustAnchor::from(&parsed(ca("one").der()))];
        assert!(is_owned_name(&entry, "Secret", "gateway") && is_owned_name(&entry, "Secret", "other"));
    }
}
