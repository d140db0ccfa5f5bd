#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::api::{
    CacertSibling, Condition, ConditionStatus, GatewaySecretStatus, READY, Resolved, RotationPolicySpec, SecretRef,
    TrustAnchor,
};
use crate::trust::fixtures::{ca, parsed};

/// A Ready GatewaySecret `namespace/managed` with source Secret `root`, whose workloads run in its own namespace.
pub(crate) fn entry(namespace: &str, root: &str, managed: &str) -> Entry {
    Entry {
        namespace: namespace.to_owned(),
        name: managed.to_owned(),
        uid: None,
        created: Some(Timestamp::UNIX_EPOCH),
        generation: Some(1),
        being_deleted: false,
        unread: None,
        spec: serde_json::from_value(json!({"sourceSecretName": root})).expect("a spec"),
        resolved: Resolved { source_secret_name: root.to_owned(), ..Resolved::default() },
        policy: RotationPolicySpec::default(),
        status: GatewaySecretStatus {
            conditions: vec![Condition {
                type_: READY.to_owned(),
                status: ConditionStatus::True,
                observed_generation: Some(1),
                last_transition_time: Timestamp::UNIX_EPOCH,
                reason: "Sound".to_owned(),
                message: String::new(),
            }],
            workload_namespaces: Some(vec![namespace.to_owned()]),
            ungranted_namespaces: Some(vec![]),
            ..GatewaySecretStatus::default()
        },
    }
}

fn with(mut entry: Entry, change: impl FnOnce(&mut Entry)) -> Entry {
    change(&mut entry);
    entry
}

fn selected(registry: &Registry, selector: &[(&str, &str)]) -> Option<Result<String, RewriteBlocker>> {
    let outcome = registry.rename(&Place::Selected(Arc::new(selector.iter().copied().collect())), "root");
    outcome.map(|result| result.map(|rename| rename.managed_name().to_owned()))
}

const INGRESS: &[(&str, &str)] = &[("istio", "ingressgateway")];

#[test]
fn rewrites_a_source_secret_in_its_namespace() {
    let registry = Registry::new([entry("mesh", "root", "gw")]);
    let rename = registry.rename(&Place::Namespace("mesh"), "root").unwrap().unwrap();
    assert_eq!(rename.managed_name(), "gw");
    assert_eq!(registry.rename(&Place::Namespace("other"), "root"), None);
    assert_eq!(registry.rename(&Place::Namespace("mesh"), "gw"), None, "the managed Secret is not a source");
}

#[test]
fn does_not_rewrite_until_the_managed_secret_is_ready() {
    let unready = with(entry("mesh", "root", "gw"), |e| e.status.conditions.clear());
    let registry = Registry::new([unready]);
    let blocker = registry.rename(&Place::Namespace("mesh"), "root").unwrap().unwrap_err();
    assert!(matches!(blocker, RewriteBlocker::NotReady { .. }), "{blocker}");
    assert_eq!(registry.counterparts(&Place::Namespace("mesh"), "root"), ["gw"]);
}

#[test]
fn does_not_rewrite_if_the_managed_secret_lacks_cas_of_the_cacert_sibling() {
    let sibling = CacertSibling { name: "root-cacert".to_owned(), missing: vec!["ab".to_owned()] };
    let registry = Registry::new([with(entry("mesh", "root", "gw"), |e| e.status.cacert_sibling = Some(sibling))]);
    let blocker = registry.rename(&Place::Namespace("mesh"), "root").unwrap().unwrap_err();
    assert!(matches!(blocker, RewriteBlocker::Sibling { missing: 1, .. }), "{blocker}");
}

#[test]
fn does_not_rewrite_across_namespaces_without_a_grant() {
    let registry = Registry::new([with(entry("mesh", "root", "gw"), |e| {
        e.status.ungranted_namespaces = Some(vec!["apps".to_owned()])
    })]);
    let at = |from| registry.rename(&Place::Granted { namespace: "mesh", from }, "root").unwrap();
    assert!(matches!(at("apps"), Err(RewriteBlocker::Ungranted { .. })));
    assert!(at("other").is_ok());
    let unobserved = Registry::new([with(entry("mesh", "root", "gw"), |e| e.status.ungranted_namespaces = None)]);
    let at = |from| unobserved.rename(&Place::Granted { namespace: "mesh", from }, "root").unwrap();
    assert!(matches!(at("other"), Err(RewriteBlocker::Ungranted { .. })), "grants are not observed");
}

#[test]
fn does_not_rewrite_with_the_status_of_another_spec() {
    let changes: [fn(&mut Entry); 3] = [
        |e| e.status.secret_name = Some("other".to_owned()),
        |e| (e.generation, e.status.observed_generation) = (Some(2), Some(1)),
        |e| e.being_deleted = true,
    ];
    for change in changes {
        let registry = Registry::new([with(entry("mesh", "root", "gw"), change)]);
        let blocker = registry.rename(&Place::Namespace("mesh"), "root").unwrap().unwrap_err();
        assert!(matches!(blocker, RewriteBlocker::NotReady { .. }), "{blocker}");
    }
}

#[test]
fn rewrites_a_selector_with_all_workload_labels() {
    let registry = Registry::new([entry("mesh", "root", "gw")]);
    assert_eq!(selected(&registry, INGRESS), Some(Ok("gw".to_owned())));
    assert_eq!(selected(&registry, &[("istio", "ingressgateway"), ("team", "a")]), Some(Ok("gw".to_owned())));
    let others = || Some(Err(RewriteBlocker::OtherWorkloads { secret: "root".to_owned(), managed: "gw".to_owned() }));
    assert_eq!(selected(&registry, &[("istio", "egressgateway")]), others());
    assert_eq!(selected(&registry, &[]), others(), "a Gateway without selector applies to every workload in the mesh");
    assert_eq!(registry.rename(&Place::Selected(Arc::default()), "other"), None);
}

#[test]
fn does_not_rewrite_if_the_selected_workloads_are_not_observed() {
    let registry = Registry::new([with(entry("mesh", "root", "gw"), |e| e.status.workload_namespaces = None)]);
    assert!(matches!(selected(&registry, INGRESS), Some(Err(RewriteBlocker::Unobserved { .. }))));
    let registry = Registry::new([with(entry("mesh", "root", "gw"), |e| e.status.workload_namespaces = Some(vec![]))]);
    assert!(matches!(selected(&registry, INGRESS), Some(Err(RewriteBlocker::NoWorkload { .. }))));
}

#[test]
fn does_not_rewrite_if_a_selected_namespace_has_no_gateway_secret() {
    let both = || Some(vec!["mesh".to_owned(), "tenant".to_owned()]);
    let mesh = with(entry("mesh", "root", "gw"), |e| e.status.workload_namespaces = both());
    let registry = Registry::new([mesh.clone()]);
    assert!(matches!(selected(&registry, INGRESS), Some(Err(RewriteBlocker::Unmapped { .. }))));

    let tenant = with(entry("tenant", "root", "gw"), |e| e.status.workload_namespaces = both());
    assert_eq!(selected(&Registry::new([mesh.clone(), tenant.clone()]), INGRESS), Some(Ok("gw".to_owned())));

    let renamed = with(tenant.clone(), |e| e.spec.secret_name = Some("other".to_owned()));
    assert!(matches!(
        selected(&Registry::new([mesh.clone(), renamed]), INGRESS),
        Some(Err(RewriteBlocker::Differs { .. }))
    ));

    let unready = with(tenant, |e| e.status.conditions.clear());
    assert!(matches!(selected(&Registry::new([mesh, unready]), INGRESS), Some(Err(RewriteBlocker::NotReady { .. }))));
}

#[test]
fn a_tenant_cannot_move_a_gateway_of_another_team() {
    // The tenant's GatewaySecret has the platform's labels, but no such workload is observed in its namespace.
    let tenant = with(entry("tenant", "root", "evil"), |e| {
        e.status.workload_namespaces = Some(vec!["mesh".to_owned()]);
    });
    assert!(matches!(selected(&Registry::new([tenant.clone()]), INGRESS), Some(Err(RewriteBlocker::Unmapped { .. }))));
    let registry = Registry::new([tenant, entry("mesh", "root", "gw")]);
    assert_eq!(selected(&registry, INGRESS), Some(Ok("gw".to_owned())));
}

#[test]
fn the_older_gateway_secret_keeps_a_name() {
    let older = entry("mesh", "root", "gw");
    let later: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for (source, managed) in [("root", "gw2"), ("root2", "gw"), ("gw", "gw3"), ("root3", "root")] {
        let newer = with(entry("mesh", source, managed), |e| {
            e.name = "newer".to_owned();
            e.spec.secret_name = Some(managed.to_owned());
            e.created = Some(later);
        });
        let registry = Registry::new([newer.clone(), older.clone()]);
        assert_eq!(registry.conflict(&newer).map(|e| e.name.as_str()), Some("gw"), "{source} to {managed}");
        assert!(registry.conflict(&older).is_none());
        assert!(registry.rename(&Place::Namespace("mesh"), "root").unwrap().is_ok());
        let elsewhere = with(newer, |e| e.namespace = "other".to_owned());
        assert!(Registry::new([elsewhere.clone(), older.clone()]).conflict(&elsewhere).is_none());
    }
}

#[test]
fn a_source_that_is_its_own_managed_secret_has_no_effect() {
    let same = with(entry("mesh", "root", "root"), |_| {});
    let registry = Registry::new([same.clone()]);
    assert!(registry.conflict(&same).is_some());
    assert_eq!(registry.rename(&Place::Namespace("mesh"), "root"), None);
}

#[test]
fn an_issuers_secret_with_the_name_of_another_has_no_effect() {
    for issuer in ["root", "gw", "ca"] {
        let doubled = with(entry("mesh", "root", "gw"), |e| {
            e.resolved.ca_secret_ref = Some("ca".into());
            e.spec.issuer_secret_name = Some(issuer.to_owned());
        });
        assert_eq!(doubled.doubled_name(), Some(issuer));
        assert!(Registry::new([doubled.clone()]).conflict(&doubled).is_some(), "{issuer}");
    }
    let apart = with(entry("mesh", "root", "gw"), |e| e.spec.issuer_secret_name = Some("issuer".to_owned()));
    assert!(Registry::new([apart.clone()]).conflict(&apart).is_none());
}

#[test]
fn secrets_have_roles() {
    let registry = Registry::new([entry("mesh", "root", "gw")]);
    let role = |name| registry.role("mesh", name).map(|(_, role)| role);
    assert_eq!(role("root"), Some(Role::Source));
    assert_eq!(role("gw"), Some(Role::Managed));
    assert_eq!(role("root-cacert"), Some(Role::CacertSibling));
    assert_eq!(role("gw-cacert"), Some(Role::CacertSibling));
    assert_eq!(role("other"), None);
}

#[test]
fn a_renamed_managed_secret_is_left_behind() {
    let with_status = |secret_name: &str, bundle: Vec<TrustAnchor>| {
        with(entry("mesh", "root", "gw"), |e| {
            e.status.secret_name = Some(secret_name.to_owned());
            e.status.bundle = bundle;
        })
    };
    let bundle = || vec![TrustAnchor::from(&parsed(ca("one").der()))];
    assert_eq!(with_status("old", bundle()).left_behind(), Some("old"));
    assert_eq!(with_status("old", vec![]).left_behind(), None, "it was never written");
    assert_eq!(with_status("gw", bundle()).left_behind(), None);
}

#[test]
fn the_gateway_secrets_of_a_namespace_determine_the_usage_of_a_secret() {
    let entry = with(entry("mesh", "root", "gw"), |entry| {
        entry.resolved.ca_secret_ref = Some("ca".into());
        entry.spec.issuer_secret_name = Some("issuer".to_owned());
        entry.spec.clients.ca_secret_ref = Some("clients".into());
    });
    // A source Secret that is also the CA's Secret counts as a serving Secret.
    let own = with(super::tests::entry("mesh", "self", "own"), |entry| {
        entry.resolved.ca_secret_ref = Some("self".into());
    });
    let registry = Registry::new([entry, own]);
    for (name, usage) in [
        ("root", UsageKind::Serving),
        ("gw", UsageKind::Serving),
        ("self", UsageKind::Serving),
        ("other", UsageKind::Serving),
        ("ca", UsageKind::SigningCa),
        ("issuer", UsageKind::SigningCa),
        ("clients", UsageKind::SigningCa),
        ("root-cacert", UsageKind::TrustBundle),
        ("gw-cacert", UsageKind::TrustBundle),
    ] {
        assert_eq!(registry.usage("mesh", name).kind, usage, "{name}");
    }
    assert_eq!(registry.usage("other", "ca").kind, UsageKind::Serving);
}

#[test]
fn the_older_gateway_secret_owns_a_managed_config_map() {
    let owner = |name: &str, created| {
        with(entry("mesh", &format!("{name}-source"), name), |entry| {
            entry.created = Some(created);
            entry.spec.clients.ca_config_map_names = vec!["cas".to_owned()];
        })
    };
    let newer = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(1);
    let registry = Registry::new([owner("b", newer), owner("c", Timestamp::UNIX_EPOCH)]);
    let of =
        |namespace| registry.config_map_owner(&Place::Namespace(namespace), "cas").map(|entry| entry.name.as_str());
    assert_eq!((of("mesh"), of("apps")), (Some("c"), None));
}

#[test]
fn a_client_in_another_namespace_needs_a_label_and_its_namespace_in_the_spec() {
    let gateway = with(entry("mesh", "root", "gw"), |e| e.spec.clients.namespaces = vec!["apps".to_owned()]);
    for (namespace, label, expected) in [
        ("mesh", "gw", true),
        ("mesh", "mesh_gw", true),
        ("mesh", "other", false),
        ("apps", "mesh_gw", true),
        ("apps", "gw", false),
        ("apps", "other.gw", false),
        ("strange", "mesh_gw", false),
        ("strange", "gw", false),
    ] {
        assert_eq!(gateway.has_client(namespace, label), expected, "{label} in {namespace}");
    }
    // Names can contain dots, so the namespace is not separated by one.
    assert!(!entry("a", "root", "b").has_client("mesh", "a.b"));
    assert!(entry("mesh", "root", "a.b").has_client("mesh", "a.b"));
    assert!(entry("mesh", "root", "a.b").has_client("mesh", "mesh_a.b"));
}

#[test]
fn secrets_of_different_namespaces_are_different() {
    let names = |namespace: Option<&str>, issuer: &str| {
        with(entry("mesh", "root", "gw"), |e| {
            let namespace = namespace.map(str::to_owned);
            e.resolved.ca_secret_ref = Some(SecretRef { namespace, name: "root".to_owned() });
            e.spec.issuer_secret_name = Some(issuer.to_owned());
        })
    };
    let elsewhere = names(Some("cert-manager"), "gw");
    assert_eq!((elsewhere.doubled_name(), elsewhere.ca_name().as_deref()), (None, Some("cert-manager/root")));
    assert_eq!(elsewhere.place_of("cert-manager/root"), ("cert-manager", "root"));
    assert_eq!(names(Some("cert-manager"), "root").doubled_name(), Some("root"));
    assert_eq!(names(None, "gw").doubled_name(), Some("gw"));
    assert_eq!(elsewhere.issuing_namespaces().collect::<Vec<_>>(), ["mesh", "cert-manager"]);
}

#[test]
fn the_cacert_secret_of_a_name_belongs_to_the_older_gateway_secret() {
    let older = entry("mesh", "root", "gw");
    for (source, managed) in [("gw-cacert", "second"), ("second", "gw-cacert"), ("root-cacert", "second")] {
        let mut younger = entry("mesh", source, managed);
        younger.created = Some(Timestamp::MAX);
        let registry = Registry::new([older.clone(), younger.clone()]);
        assert_eq!(registry.conflict(&younger).map(|owner| owner.name.as_str()), Some(older.name.as_str()));
        let (owner, role) = registry.role("mesh", "gw-cacert").unwrap();
        assert_eq!((owner.managed_name(), role), ("gw", Role::CacertSibling));
    }
}
