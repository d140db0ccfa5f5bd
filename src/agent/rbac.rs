//! The rights that the agent needs for one GatewaySecret. It may not grant them to itself: an administrator applies them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{cluster_state, owned_objects};
use crate::api::names::{CACERT_SUFFIX, journal_name};
use crate::api::{ProbeMode, RestartMode, TrustBundleTargetKind};
use crate::registry::Entry;

/// ServiceAccount of the agent in the shipped manifests: namespace and name.
const ACCOUNT: (&str, &str) = ("trustspan-system", "trustspan-agent");

/// What may name a Secret, and be behind.
const WORKLOADS: [&str; 3] = ["deployments", "statefulsets", "daemonsets"];

/// A Role and its binding for each namespace: Secrets by name only, and public certificates of cert-manager.
pub fn role(entry: &Entry) -> Vec<Value> {
    let journal = json!([journal_name(&entry.name)]);
    let mut elsewhere: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for namespace in entry.client_namespaces().skip(1) {
        elsewhere.entry(namespace).or_default().extend(on_certificates());
    }
    for namespace in entry.ca_namespaces() {
        let rules = elsewhere.entry(namespace).or_default();
        rules.extend(on_secrets(entry, namespace));
        rules.push(
            json!({ "apiGroups": ["cert-manager.io"], "resources": ["certificates"], "verbs": ["list", "watch"] }),
        );
    }
    let mut rules = on_secrets(entry, &entry.namespace);
    rules.extend([
        by_name("configmaps", journal, json!(["create", "get", "list", "watch", "patch", "update"])),
        json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] }),
        json!({ "apiGroups": ["apps"], "resources": WORKLOADS, "verbs": ["list"] }),
    ]);
    rules.extend(on_certificates());
    if entry.spec.certificate_ref.is_some() {
        let issuing = ["certificates", "issuers"];
        rules.push(json!({ "apiGroups": ["cert-manager.io"], "resources": issuing, "verbs": ["get"] }));
    }
    if !entry.spec.clients.ca_config_map_names.is_empty() {
        rules.push(by_name(
            "configmaps",
            json!(cluster_state::config_map_names(entry)),
            json!(["get", "list", "watch"]),
        ));
        rules.push(by_name(
            "configmaps",
            json!(owned_objects::written_config_maps(entry)),
            json!(["create", "patch", "update"]),
        ));
    }
    if entry.policy.workload_restarts.mode == RestartMode::Enabled {
        rules.push(json!({ "apiGroups": ["apps"], "resources": WORKLOADS, "verbs": ["patch"] }));
    }
    if entry.policy.probe.mode == ProbeMode::Auto {
        // Slices have names of their own, and are found by the label of their Service.
        rules.push(json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"] }));
        if entry.policy.probe.target.is_none() {
            rules.push(json!({ "apiGroups": [""], "resources": ["services"], "verbs": ["list"] }));
        }
    }
    for (kind, resource) in
        [(TrustBundleTargetKind::ConfigMap, "configmaps"), (TrustBundleTargetKind::Secret, "secrets")]
    {
        let distributed =
            entry.spec.trust_bundle_targets.iter().filter(|place| place.kind == kind && place.namespace.is_none());
        let names: Vec<_> = distributed.map(|place| place.name.as_str()).collect();
        if !names.is_empty() {
            rules.push(by_name(resource, json!(names), json!(["create", "get", "patch"])));
        }
    }
    for source in &entry.status.trust_sources {
        let resource = if source.kind == "ConfigMap" { "configmaps" } else { "secrets" };
        let rule = by_name(resource, json!([source.name]), json!(["get"]));
        match source.namespace == entry.namespace {
            true => rules.push(rule),
            false => elsewhere.entry(&source.namespace).or_default().push(rule),
        }
    }
    // Their owners create them.
    for place in &entry.spec.trust_bundle_targets {
        if let Some(namespace) = &place.namespace {
            let rule = by_name("configmaps", json!([place.name]), json!(["get", "patch"]));
            elsewhere.entry(namespace).or_default().push(rule);
        }
    }
    let cluster_wide =
        entry.spec.trust_bundle_targets.iter().filter(|place| place.kind == TrustBundleTargetKind::ClusterTrustBundle);
    let cluster_wide: Vec<_> = cluster_wide.map(|place| place.name.as_str()).collect();
    let name = format!("trustspan-agent-{}", entry.name);
    // GatewaySecrets of several namespaces may need something in the same place. Their own names have no colon, so each has its own Role.
    let foreign = format!("trustspan-agent:{}:{}", entry.namespace, entry.name);
    let own = bound(&entry.namespace, &name, rules);
    let others = elsewhere.into_iter().flat_map(|(namespace, rules)| bound(namespace, &foreign, rules));
    let bundles = (!cluster_wide.is_empty()).then(|| {
        let rule = json!({
            "apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "resourceNames": cluster_wide,
            "verbs": ["create", "get", "patch"],
        });
        bound_in("Cluster", json!({ "name": foreign }), vec![rule])
    });
    own.into_iter().chain(others).chain(bundles.into_iter().flatten()).collect()
}

fn by_name(resource: &str, names: Value, verbs: Value) -> Value {
    json!({ "apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": verbs })
}

/// The Secrets of one namespace that a rotation reads, and those that the agent writes. In another namespace it creates none.
fn on_secrets(entry: &Entry, namespace: &str) -> Vec<Value> {
    let rule = |qualified: Vec<String>, verbs: Value| {
        let places = qualified.iter().map(|name| entry.place_of(name)).filter(|place| place.0 == namespace);
        let names: Vec<_> = places.map(|(_, name)| name).collect();
        (!names.is_empty()).then(|| by_name("secrets", json!(names), verbs))
    };
    let read = rule(cluster_state::names(entry), json!(["get", "list", "watch"]));
    let verbs = if namespace == entry.namespace { json!(["create", "patch", "update"]) } else { json!(["update"]) };
    let written = rule(owned_objects::written_names(entry), verbs);
    read.into_iter().chain(written).collect()
}

/// To see clients and to ask for their re-issue: certificates are public.
fn on_certificates() -> [Value; 3] {
    let rule = |resource: &str, verbs: Value| json!({ "apiGroups": ["cert-manager.io"], "resources": [resource], "verbs": verbs });
    [
        rule("certificates", json!(["list", "watch"])),
        rule("certificates/status", json!(["patch"])),
        rule("certificaterequests", json!(["list"])),
    ]
}

/// The right to read one object from which gateways take CAs, and what binds it to the agent.
pub fn reader_role(entry: &Entry, kind: &str, namespace: &str, name: &str) -> [Value; 2] {
    let resource = if kind == "ConfigMap" { "configmaps" } else { "secrets" };
    // istiod takes Secret `<name>-cacert` where there is one, and the agent looks for both.
    let names = match name.strip_suffix(CACERT_SUFFIX) {
        Some(stem) => [name.to_owned(), stem.to_owned()],
        None => [name.to_owned(), format!("{name}{CACERT_SUFFIX}")],
    };
    let rule = json!({ "apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["get"] });
    let role = format!("trustspan-agent:{}:{}:{name}", entry.namespace, entry.name);
    bound(namespace, &role, vec![rule])
}

/// A Role, and what binds it to the agent.
fn bound(namespace: &str, name: &str, rules: Vec<Value>) -> [Value; 2] {
    bound_in("", json!({ "name": name, "namespace": namespace }), rules)
}

/// The same, for all namespaces where `scope` is `Cluster`.
fn bound_in(scope: &str, metadata: Value, rules: Vec<Value>) -> [Value; 2] {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let subject = json!({ "kind": "ServiceAccount", "namespace": ACCOUNT.0, "name": ACCOUNT.1 });
    [
        json!({ "apiVersion": api, "kind": format!("{scope}Role"), "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": api, "kind": format!("{scope}RoleBinding"), "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": format!("{scope}Role"), "name": metadata["name"] }, "subjects": [subject],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::TrustSourceUse;
    use crate::registry::tests::entry;

    #[test]
    fn accepts_secrets_by_name_only() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.issuer_secret_name = Some("issuer-ca".to_owned());
        let [role, binding] = &role(&entry)[..] else { panic!("one Role and its binding") };
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        let holds_content =
            |rule: &&Value| rule["apiGroups"] == json!([""]) && rule["resources"] != json!(["services"]);
        for rule in rules.iter().filter(holds_content) {
            assert!(rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty()), "{rule}");
        }
        let writes = rules.iter().find(|rule| rule["verbs"] == json!(["create", "patch", "update"]));
        assert_eq!(
            writes.map(|rule| rule["resourceNames"].clone()),
            Some(json!(["gateway", "gateway-cacert", "issuer-ca"]))
        );
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    }

    #[test]
    fn config_maps_are_written_by_name_and_their_sources_read() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.clients.ca_config_map_names = vec!["partners".to_owned()];
        let rules = role(&entry)[0]["rules"].as_array().cloned().unwrap_or_default();
        let verbs = |name: &str| {
            let of = rules.iter().filter(|rule| rule["resources"] == json!(["configmaps"]));
            let of =
                of.filter(|rule| rule["resourceNames"].as_array().is_some_and(|names| names.contains(&name.into())));
            of.flat_map(|rule| rule["verbs"].as_array().cloned().unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(verbs("partners"), ["get", "list", "watch"]);
        assert_eq!(verbs("partners.trustspan"), ["get", "list", "watch", "create", "patch", "update"]);
    }

    #[test]
    fn cluster_trust_bundles_are_written_by_name_in_no_namespace() {
        let mut entry = entry("mesh", "root", "gateway");
        assert!(role(&entry).iter().all(|object| object["kind"] != "ClusterRole"));
        let (kind, name, key) = (TrustBundleTargetKind::ClusterTrustBundle, "roots".to_owned(), "ca.crt".to_owned());
        entry.spec.trust_bundle_targets = vec![crate::api::TrustBundleTarget { kind, namespace: None, name, key }];
        let roles = role(&entry);
        let [.., cluster_role, binding] = &roles[..] else { panic!("a ClusterRole and its binding") };
        assert_eq!(cluster_role["rules"][0]["resourceNames"], json!(["roots"]));
        assert_eq!((&cluster_role["kind"], &binding["kind"]), (&json!("ClusterRole"), &json!("ClusterRoleBinding")));
        assert_eq!(cluster_role["metadata"], json!({ "name": "trustspan-agent:mesh:gateway" }));
    }

    #[test]
    fn objects_from_which_gateways_take_cas_are_read_by_name_where_they_are() {
        let mut entry = entry("mesh", "root", "gateway");
        let source = |kind: &str, namespace: &str| TrustSourceUse {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: "partners".to_owned(),
            used_by: String::new(),
        };
        entry.status.trust_sources = vec![source("Secret", "mesh"), source("ConfigMap", "apps")];
        let roles = role(&entry);
        let read = |resource: &str| {
            let rule =
                json!({ "apiGroups": [""], "resources": [resource], "resourceNames": ["partners"], "verbs": ["get"] });
            let holds = |role: &&Value| role["rules"].as_array().is_some_and(|rules| rules.contains(&rule));
            roles.iter().filter(holds).map(|role| role["metadata"]["namespace"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((roles.len(), read("secrets"), read("configmaps")), (4, vec![json!("mesh")], vec![json!("apps")]));
    }

    #[test]
    fn elsewhere_only_certificates_and_the_secrets_of_the_ca() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.clients.namespaces = vec!["apps".to_owned(), "mesh".to_owned()];
        let namespace = Some("cert-manager".to_owned());
        entry.resolved.ca_secret_ref = Some(crate::api::SecretRef { namespace, name: "ca".to_owned() });
        entry.spec.issuer_secret_name = Some("issuer".to_owned());
        let roles = role(&entry);
        let secrets = |namespace: &str| {
            let of = |role: &&Value| role["metadata"]["namespace"] == namespace;
            let rules = roles.iter().filter(of).flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
            let rules = rules.filter(|rule| rule["resources"] == json!(["secrets"]));
            rules.map(|rule| (rule["resourceNames"].clone(), rule["verbs"][0].clone())).collect::<Vec<_>>()
        };
        assert_eq!(roles.len(), 6, "a Role and its binding in each of three namespaces");
        assert_eq!(secrets("apps"), []);
        assert_eq!(
            secrets("cert-manager"),
            [(json!(["ca", "issuer"]), json!("get")), (json!(["issuer"]), json!("update"))]
        );
        let own = json!(["gateway", "gateway-cacert", "root", "root-cacert"]);
        assert_eq!(secrets("mesh")[0], (own, json!("get")));
    }

    #[test]
    fn accepts_a_write_of_workloads_only_where_they_are_to_be_rolled() {
        let verbs = |rollouts| {
            let mut entry = entry("mesh", "root", "gateway");
            entry.policy.workload_restarts.mode = rollouts;
            let rules = role(&entry)[0]["rules"].as_array().cloned().unwrap_or_default();
            let of_workloads = rules.iter().filter(|rule| rule["apiGroups"] == json!(["apps"]));
            of_workloads.map(|rule| rule["verbs"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(verbs(RestartMode::Disabled), [json!(["list"])]);
        assert_eq!(verbs(RestartMode::Enabled), [json!(["list"]), json!(["patch"])]);
    }

    #[test]
    fn accepts_endpoints_and_the_canary_where_gateways_are_looked_at() {
        let rules = |probe, reach| {
            let mut entry = entry("mesh", "root", "gateway");
            (entry.policy.probe.mode, entry.policy.probe.target) = (probe, reach);
            role(&entry)[0]["rules"].as_array().cloned().unwrap_or_default()
        };
        let reads_slices = |rules: &[Value]| rules.iter().any(|rule| rule["resources"] == json!(["endpointslices"]));
        let reads_canary = |rules: &[Value]| {
            let names = rules[0]["resourceNames"].as_array().into_iter().flatten();
            rules[0]["resources"] == json!(["secrets"]) && names.into_iter().any(|name| name == "canary")
        };
        let reads_services = |rules: &[Value]| rules.iter().any(|rule| rule["resources"] == json!(["services"]));
        let never = rules(ProbeMode::Disabled, None);
        assert!(!reads_slices(&never) && !reads_services(&never) && !reads_canary(&never));
        let found = rules(ProbeMode::Auto, None);
        assert!(reads_slices(&found) && reads_services(&found) && !reads_canary(&found));
        let with = rules(
            ProbeMode::Auto,
            Some(crate::api::ProbeTarget {
                service_name: "gateway".to_owned(),
                port_name: "https".to_owned(),
                host: "shop.example.com".to_owned(),
                client_secret_name: Some("canary".to_owned()),
            }),
        );
        assert!(reads_slices(&with) && !reads_services(&with) && reads_canary(&with));
    }
}
