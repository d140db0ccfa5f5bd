//! The permissions that the agent needs for one GatewaySecret or TrustConsumer. It cannot grant them to itself: an administrator applies them.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

use super::consent::{Consent, OtherNamespaces};
use super::permission::INJECT;
use super::{cluster_state, owned_objects};
use crate::api::names::{CACERT_SUFFIX, journal_name};
use crate::api::{ProbeMode, RestartMode, SourceKind, TrustBundleTargetKind, TrustConsumerSpec, WorkloadKind};
use crate::registry::Entry;

/// The agent's ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    namespace: String,
    name: String,
}

impl ServiceAccount {
    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The username of its requests.
    pub fn username(&self) -> String {
        format!("system:serviceaccount:{self}")
    }
}

impl Default for ServiceAccount {
    /// The one in the shipped manifests.
    fn default() -> Self {
        Self { namespace: "trustspan-system".to_owned(), name: "trustspan-agent".to_owned() }
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceAccount {
    type Err = &'static str;

    /// Parses `NAMESPACE:NAME`, as `kubectl create rolebinding --serviceaccount` does.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
        let (namespace, name) = parts.ok_or("expected NAMESPACE:NAME")?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// The Role for a TrustConsumer and its binding: the objects that it names, and no others.
pub fn consumer_role(namespace: &str, name: &str, spec: &TrustConsumerSpec, account: &ServiceAccount) -> [Value; 2] {
    let mut rules =
        vec![json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] })];
    for kind in [SourceKind::Secret, SourceKind::ConfigMap] {
        let loaded = spec.loads.iter().filter(|loaded| loaded.kind == kind);
        let names: Vec<_> = loaded.map(|loaded| loaded.name.as_str()).collect();
        if !names.is_empty() {
            rules.push(by_name(kind.plural(), json!(names), json!(["get", "list", "watch"])));
        }
    }
    for kind in WorkloadKind::ALL {
        let workloads = spec.workloads.iter().filter(|workload| workload.kind == kind);
        let names: Vec<_> = workloads.map(|workload| workload.name.as_str()).collect();
        if !names.is_empty() {
            rules.push(json!({
                "apiGroups": ["apps"], "resources": [kind.plural()], "resourceNames": names, "verbs": ["get", "patch"],
            }));
        }
    }
    role_and_binding(namespace, &format!("trustspan-consumer-{name}"), rules, account)
}

/// The verb that no API server checks for a request: the shipped webhook configuration asks whether the agent has it for an object, and sends
/// each write of such an object with failurePolicy Fail (docs/adr/0032).
const GUARD: &str = "guard";

/// The rights that a GatewaySecret needs.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Roles and their bindings.
    pub objects: Vec<Value>,
    /// The rights that have no consent, each with what gives it: whole sentences.
    pub left_out: Vec<String>,
}

/// A Role and its binding for each namespace. They include Secrets by name only, and cert-manager's certificates, which
/// are public.
///
/// Who may write a GatewaySecret chooses names in other namespaces. A right there needs the consent of their owner or of the operator.
pub fn role(entry: &Entry, account: &ServiceAccount, consent: &Consent) -> Rights {
    let journal = json!([journal_name(&entry.name)]);
    let workloads = WorkloadKind::ALL.map(WorkloadKind::plural);
    let mut others = OtherNamespaces::new(entry, consent);
    for namespace in entry.client_namespaces().skip(1) {
        certificate_rules().into_iter().for_each(|rule| others.add(namespace, rule));
    }
    for namespace in entry.ca_namespaces() {
        secret_rules(entry, namespace).into_iter().for_each(|rule| others.add(namespace, rule));
        others.add(
            namespace,
            json!({ "apiGroups": ["cert-manager.io"], "resources": ["certificates"], "verbs": ["list", "watch"] }),
        );
    }
    let mut rules = secret_rules(entry, &entry.namespace);
    rules.push(by_name("secrets", json!(guarded_secrets(entry)), json!([GUARD])));
    let clients = &entry.spec.clients.secret_names;
    if !clients.is_empty() {
        rules.push(by_name("secrets", json!(clients), json!([INJECT])));
    }
    rules.extend([
        by_name("configmaps", journal, json!(["create", "get", "list", "watch", "patch", "update"])),
        json!({ "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] }),
        json!({ "apiGroups": ["apps"], "resources": workloads, "verbs": ["list"] }),
    ]);
    rules.extend(certificate_rules());
    if entry.spec.certificate_ref.is_some() {
        let issuing = ["certificates", "issuers"];
        rules.push(json!({ "apiGroups": ["cert-manager.io"], "resources": issuing, "verbs": ["get"] }));
    }
    let config_maps = cluster_state::config_map_names(entry);
    if !config_maps.is_empty() {
        rules.push(by_name("configmaps", json!(config_maps), json!(["get", "list", "watch"])));
    }
    if !entry.spec.clients.ca_config_map_names.is_empty() {
        rules.push(by_name(
            "configmaps",
            json!(owned_objects::written_config_maps(entry)),
            json!(["create", "patch", "update", GUARD]),
        ));
    }
    if entry.policy.workload_restarts.mode == RestartMode::Enabled {
        rules.push(json!({ "apiGroups": ["apps"], "resources": workloads, "verbs": ["patch"] }));
    }
    if entry.policy.probe.mode == ProbeMode::Auto {
        // EndpointSlices have generated names, and are found by the label of their Service.
        rules.push(json!({ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"] }));
        if entry.policy.probe.target.is_none() {
            rules.push(json!({ "apiGroups": [""], "resources": ["services"], "verbs": ["list"] }));
        }
    }
    for (kind, resource) in
        [(TrustBundleTargetKind::ConfigMap, "configmaps"), (TrustBundleTargetKind::Secret, "secrets")]
    {
        let targets =
            entry.spec.trust_bundle_targets.iter().filter(|target| target.kind == kind && target.namespace.is_none());
        let names: Vec<_> = targets.map(|target| target.name.as_str()).collect();
        if !names.is_empty() {
            rules.push(by_name(resource, json!(names), json!(["create", "get", "patch"])));
        }
    }
    for source in &entry.status.trust_sources {
        let resource = if source.kind == "ConfigMap" { "configmaps" } else { "secrets" };
        let rule = by_name(resource, json!([source.name]), json!(["get", GUARD]));
        match source.namespace == entry.namespace {
            true => rules.push(rule),
            false => others.add_if(&source.namespace, rule, |_| source.granted),
        }
    }
    // The owner of another namespace creates the target there, so the agent needs no right to create it.
    for target in &entry.spec.trust_bundle_targets {
        if let Some(namespace) = &target.namespace {
            others.add(namespace, by_name("configmaps", json!([target.name]), json!(["get", "patch"])));
        }
    }
    let name = format!("trustspan-agent-{}", entry.name);
    // GatewaySecrets of several namespaces can need Roles in the same namespace. Their names contain no colon, so these names are unique.
    let foreign = format!("trustspan-agent:{}:{}", entry.namespace, entry.name);
    let mut objects = role_and_binding(&entry.namespace, &name, rules, account).to_vec();
    let (rules, mut left_out) = others.finish();
    objects
        .extend(rules.into_iter().flat_map(|(namespace, rules)| role_and_binding(namespace, &foreign, rules, account)));
    let bundles = entry.spec.trust_bundle_targets.iter();
    let bundles = bundles.filter(|target| target.kind == TrustBundleTargetKind::ClusterTrustBundle);
    let (allowed, other): (Vec<_>, Vec<_>) =
        bundles.map(|target| target.name.as_str()).partition(|name| consent.allows_cluster_trust_bundle(name));
    left_out.extend(other.iter().map(|bundle| {
        format!(
            "GatewaySecret {}/{} gets no right to create, get, patch ClusterTrustBundle {bundle}: every pod of the cluster can use it. If that is \
             right, add --allow-cluster-trust-bundle {bundle}",
            entry.namespace, entry.name
        )
    }));
    if !allowed.is_empty() {
        let rule = json!({
            "apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"], "resourceNames": allowed,
            "verbs": ["create", "get", "patch"],
        });
        objects.extend(scoped_role_and_binding("Cluster", json!({ "name": foreign }), vec![rule], account));
    }
    Rights { objects, left_out }
}

/// The Secrets in its namespace from which gateways take CAs: the managed Secret, under an earlier name too, and their `-cacert` siblings.
fn guarded_secrets(entry: &Entry) -> Vec<String> {
    let names = [Some(entry.managed_name()), entry.left_behind()].into_iter().flatten();
    names.flat_map(|name| [name.to_owned(), format!("{name}{CACERT_SUFFIX}")]).collect()
}

fn by_name(resource: &str, names: Value, verbs: Value) -> Value {
    json!({ "apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": verbs })
}

/// Rules on the Secrets of one namespace that a rotation reads, and on those that it writes. In other namespaces the agent creates none.
fn secret_rules(entry: &Entry, namespace: &str) -> Vec<Value> {
    let rule = |qualified: Vec<String>, verbs: Value| {
        let secrets = qualified.iter().map(|name| entry.place_of(name)).filter(|secret| secret.0 == namespace);
        let names: Vec<_> = secrets.map(|(_, name)| name).collect();
        (!names.is_empty()).then(|| by_name("secrets", json!(names), verbs))
    };
    let read = rule(cluster_state::secret_names(entry), json!(["get", "list", "watch"]));
    let verbs = if namespace == entry.namespace { json!(["create", "patch", "update"]) } else { json!(["update"]) };
    let written = rule(owned_objects::written_names(entry), verbs);
    read.into_iter().chain(written).collect()
}

/// Rules on the Certificates of clients: to read them, and to request a reissue.
fn certificate_rules() -> [Value; 3] {
    let rule = |resource: &str, verbs: Value| json!({ "apiGroups": ["cert-manager.io"], "resources": [resource], "verbs": verbs });
    [
        rule("certificates", json!(["list", "watch"])),
        rule("certificates/status", json!(["patch"])),
        rule("certificaterequests", json!(["list"])),
    ]
}

/// A Role that allows reading one source of trust and has its writes judged, and its binding.
pub fn reader_role(entry: &Entry, kind: &str, namespace: &str, name: &str, account: &ServiceAccount) -> [Value; 2] {
    let resource = if kind == "ConfigMap" { "configmaps" } else { "secrets" };
    // istiod prefers Secret `<name>-cacert` if it exists, so the agent reads both.
    let names = match name.strip_suffix(CACERT_SUFFIX) {
        Some(stem) => [name.to_owned(), stem.to_owned()],
        None => [name.to_owned(), format!("{name}{CACERT_SUFFIX}")],
    };
    let rule = by_name(resource, json!(names), json!(["get", GUARD]));
    let role = format!("trustspan-agent:{}:{}:{name}", entry.namespace, entry.name);
    role_and_binding(namespace, &role, vec![rule], account)
}

/// A Role, and its binding to the agent.
fn role_and_binding(namespace: &str, name: &str, rules: Vec<Value>, account: &ServiceAccount) -> [Value; 2] {
    scoped_role_and_binding("", json!({ "name": name, "namespace": namespace }), rules, account)
}

/// A Role and its RoleBinding; with scope `Cluster`, a ClusterRole and its ClusterRoleBinding.
fn scoped_role_and_binding(scope: &str, metadata: Value, rules: Vec<Value>, account: &ServiceAccount) -> [Value; 2] {
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let subject = json!({ "kind": "ServiceAccount", "namespace": account.namespace, "name": account.name });
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
    use crate::api::{AdditionalTrust, SourceKind, TrustSourceUse};
    use crate::registry::tests::entry;

    fn role(entry: &Entry) -> Vec<Value> {
        let rights = super::role(entry, &ServiceAccount::default(), &Consent::to_everything());
        assert_eq!(rights.left_out, [""; 0]);
        rights.objects
    }

    #[test]
    fn secrets_are_granted_by_name_only() {
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
    fn a_trust_consumer_grants_what_it_names_by_name_only() {
        let spec = serde_json::from_value(json!({
            "workloads": [{"kind": "Deployment", "name": "ratelimit"}, {"kind": "DaemonSet", "name": "log"}],
            "loads": [{"kind": "Secret", "name": "ca", "keys": ["ca.crt"]}],
        }));
        let [role, binding] = consumer_role("edge", "limits", &spec.expect("a spec"), &ServiceAccount::default());
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        let of = |resource: &str| {
            let rule = rules.iter().find(|rule| rule["resources"] == json!([resource]));
            rule.map(|rule| (rule["resourceNames"].clone(), rule["verbs"].clone()))
        };
        assert_eq!(of("secrets"), Some((json!(["ca"]), json!(["get", "list", "watch"]))));
        assert_eq!(of("deployments"), Some((json!(["ratelimit"]), json!(["get", "patch"]))));
        assert_eq!(of("daemonsets"), Some((json!(["log"]), json!(["get", "patch"]))));
        assert_eq!((of("statefulsets"), of("configmaps"), rules.len()), (None, None, 4));
        assert_eq!(
            (&binding["roleRef"]["name"], &role["metadata"]["namespace"]),
            (&role["metadata"]["name"], &json!("edge"))
        );
    }

    #[test]
    fn config_maps_are_granted_by_name() {
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
        assert_eq!(verbs("partners.trustspan"), ["get", "list", "watch", "create", "patch", "update", "guard"]);
    }

    #[test]
    fn additional_trust_is_only_read() {
        let mut entry = entry("mesh", "root", "gateway");
        entry.spec.additional_trust = [(SourceKind::ConfigMap, "partners"), (SourceKind::Secret, "legacy-ca")]
            .map(|(kind, name)| AdditionalTrust { kind, name: name.to_owned() })
            .to_vec();
        let rules = role(&entry)[0]["rules"].as_array().cloned().unwrap_or_default();
        for name in ["partners", "legacy-ca"] {
            let of = rules
                .iter()
                .filter(|rule| rule["resourceNames"].as_array().is_some_and(|all| all.contains(&name.into())));
            let verbs: Vec<_> = of.flat_map(|rule| rule["verbs"].as_array().cloned().unwrap_or_default()).collect();
            assert_eq!(verbs, ["get", "list", "watch"], "{name}");
        }
    }

    #[test]
    fn cluster_trust_bundles_are_granted_by_name_in_a_cluster_role() {
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
    fn sources_of_trust_are_granted_by_name_in_their_namespaces() {
        let mut entry = entry("mesh", "root", "gateway");
        let source = |kind: &str, namespace: &str| TrustSourceUse {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: "partners".to_owned(),
            used_by: String::new(),
            accepts_clients: true,
            granted: false,
        };
        entry.status.trust_sources = vec![source("Secret", "mesh"), source("ConfigMap", "apps")];
        let roles = role(&entry);
        let read = |resource: &str| {
            let rule = by_name(resource, json!(["partners"]), json!(["get", "guard"]));
            let holds = |role: &&Value| role["rules"].as_array().is_some_and(|rules| rules.contains(&rule));
            roles.iter().filter(holds).map(|role| role["metadata"]["namespace"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((roles.len(), read("secrets"), read("configmaps")), (4, vec![json!("mesh")], vec![json!("apps")]));
    }

    #[test]
    fn secrets_from_which_gateways_take_cas_are_guarded() {
        let mut entry = entry("mesh", "root", "gateway");
        let guarded = |entry: &Entry| {
            let rules = role(entry)[0]["rules"].as_array().cloned().unwrap_or_default();
            let guards = |rule: &&Value| rule["verbs"] == json!(["guard"]) && rule["resources"] == json!(["secrets"]);
            rules.iter().filter(guards).map(|rule| rule["resourceNames"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(guarded(&entry), [json!(["gateway", "gateway-cacert"])]);
        entry.status.secret_name = Some("gateway".to_owned());
        entry.spec.secret_name = Some("other".to_owned());
        let ca = crate::trust::fixtures::parsed(crate::trust::fixtures::ca("one").der());
        entry.status.bundle = vec![crate::api::TrustAnchor::from(&ca)];
        let both = json!(["other", "other-cacert", "gateway", "gateway-cacert"]);
        assert_eq!(guarded(&entry), [both], "gateways that are not rewritten take CAs from the earlier one");
    }

    #[test]
    fn other_namespaces_grant_certificates_and_the_secrets_of_cas_only() {
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

    /// A GatewaySecret of a tenant that names objects of others.
    fn hostile() -> Entry {
        let mut entry = entry("tenant", "root", "gateway");
        entry.spec.clients.namespaces = vec!["shop".to_owned()];
        let secret = |namespace: &str, name: &str| {
            Some(crate::api::SecretRef { namespace: Some(namespace.to_owned()), name: name.to_owned() })
        };
        entry.resolved.ca_secret_ref = secret("kube-system", "bootstrap-token-abcdef");
        entry.spec.clients.ca_secret_ref = secret("argocd", "argocd-initial-admin-secret");
        entry.spec.issuer_secret_name = Some("etcd-ca".to_owned());
        let target = |kind, namespace: Option<&str>, name: &str| crate::api::TrustBundleTarget {
            kind,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            key: "ca.crt".to_owned(),
        };
        entry.spec.trust_bundle_targets = vec![
            target(TrustBundleTargetKind::ConfigMap, Some("kube-system"), "coredns"),
            target(TrustBundleTargetKind::ClusterTrustBundle, None, "roots"),
        ];
        let source = |namespace: &str, granted: bool| TrustSourceUse {
            kind: "Secret".to_owned(),
            namespace: namespace.to_owned(),
            name: "cas".to_owned(),
            used_by: String::new(),
            accepts_clients: true,
            granted,
        };
        entry.status.trust_sources =
            vec![source("argocd", false), source("partners", true), source("kube-system", true)];
        entry
    }

    /// The rights outside of the namespace of the GatewaySecret: namespace, resource, names.
    fn elsewhere(rights: &Rights) -> Vec<String> {
        let is_elsewhere = |object: &&Value| {
            object["kind"] != "RoleBinding"
                && object["kind"] != "ClusterRoleBinding"
                && object["metadata"]["namespace"] != "tenant"
        };
        let of = |object: &Value| {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("cluster").to_owned();
            let rules = object["rules"].as_array().cloned().unwrap_or_default().into_iter();
            let text = move |rule: Value| format!("{namespace} {} {}", rule["resources"][0], rule["resourceNames"]);
            rules.map(text).collect::<Vec<_>>()
        };
        let mut rights: Vec<_> = rights.objects.iter().filter(is_elsewhere).flat_map(of).collect();
        rights.dedup();
        rights
    }

    #[test]
    fn names_of_tenants_grant_nothing_in_other_namespaces_and_each_is_reported() {
        let hostile = hostile();
        let rights = super::role(&hostile, &ServiceAccount::default(), &Consent::default());
        let of_partners = r#"partners "secrets" ["cas"]"#.to_owned();
        assert_eq!(elsewhere(&rights), [of_partners], "the status has the consent of its owner");
        let said = rights.left_out.join("\n");
        for words in [
            "argocd: get, list, watch secrets argocd-initial-admin-secret, etcd-ca; update secrets etcd-ca; list, watch certificates; get, guard secrets cas",
            "kube-system: get, list, watch secrets bootstrap-token-abcdef",
            "get, patch configmaps coredns",
            "shop: list, watch certificates; patch certificates/status; list certificaterequests",
            "get, patch ClusterTrustBundle roots",
            "--allow-namespace argocd, or let the owner",
            "it is the control plane's",
            "--allow-cluster-trust-bundle roots",
        ] {
            assert!(said.contains(words), "{words:?} not in:\n{said}");
        }
        assert_eq!(rights.left_out.len(), 4, "{said}");
    }

    #[test]
    fn a_grant_gives_rights_on_what_it_names_and_none_in_kube_system() {
        let grant = |namespace: &str, to: Value| {
            let from = json!([{"group": "trustspan.dev", "kind": "GatewaySecret", "namespace": "tenant"}]);
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
                "metadata": {"namespace": namespace}, "spec": {"from": from, "to": to},
            })
        };
        let of_secrets = json!([{"group": "", "kind": "Secret"}]);
        let objects = [
            grant("argocd", json!([{"group": "", "kind": "Secret", "name": "etcd-ca"}])),
            grant("shop", json!([{"group": "cert-manager.io", "kind": "Certificate"}])),
            grant("kube-system", of_secrets),
        ];
        let with = |namespaces: &[String], bundles: &[String]| {
            let consent = Consent::new(namespaces, bundles, crate::rotation::Grants::of(&objects));
            elsewhere(&super::role(&hostile(), &ServiceAccount::default(), &consent)).join("\n")
        };
        let granted = with(&[], &[]);
        assert!(granted.contains(r#"argocd "secrets" ["etcd-ca"]"#) && granted.contains(r#"shop "certificates" null"#));
        assert!(!granted.contains("initial-admin") && !granted.contains("kube-system"), "{granted}");
        let allowed = with(&["kube-system".to_owned()], &["roots".to_owned()]);
        assert!(
            allowed.contains("coredns") && allowed.contains(r#"cluster "clustertrustbundles" ["roots"]"#),
            "{allowed}"
        );
        assert!(!allowed.contains("initial-admin"), "{allowed}");
    }

    #[test]
    fn workloads_can_be_patched_only_if_restarts_are_enabled() {
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
    fn probing_grants_endpoints_and_the_canary() {
        let rules = |mode, target| {
            let mut entry = entry("mesh", "root", "gateway");
            (entry.policy.probe.mode, entry.policy.probe.target) = (mode, target);
            role(&entry)[0]["rules"].as_array().cloned().unwrap_or_default()
        };
        let reads_slices = |rules: &[Value]| rules.iter().any(|rule| rule["resources"] == json!(["endpointslices"]));
        let reads_canary = |rules: &[Value]| {
            let names = rules[0]["resourceNames"].as_array().into_iter().flatten();
            rules[0]["resources"] == json!(["secrets"]) && names.into_iter().any(|name| name == "canary")
        };
        let reads_services = |rules: &[Value]| rules.iter().any(|rule| rule["resources"] == json!(["services"]));
        let disabled = rules(ProbeMode::Disabled, None);
        assert!(!reads_slices(&disabled) && !reads_services(&disabled) && !reads_canary(&disabled));
        let derived = rules(ProbeMode::Auto, None);
        assert!(reads_slices(&derived) && reads_services(&derived) && !reads_canary(&derived));
        let explicit = rules(
            ProbeMode::Auto,
            Some(crate::api::ProbeTarget {
                service_name: "gateway".to_owned(),
                port_name: "https".to_owned(),
                host: "shop.example.com".to_owned(),
                client_secret_name: Some("canary".to_owned()),
            }),
        );
        assert!(reads_slices(&explicit) && !reads_services(&explicit) && reads_canary(&explicit));
    }
}
