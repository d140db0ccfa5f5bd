//! `trustspan preflight`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::Client;
use serde_json::Value;

use super::Failure;
use super::inputs::unless_closed;
use super::kube_args::KubeArgs;
use super::service_account::ServiceAccountArgs;
use crate::agent::permission::may;
use crate::agent::{self, Consent, ServiceAccount};
use crate::registry::Entry;
use crate::store::{cluster, objects};
use crate::text::printable;

/// Check a cluster before an installation or an upgrade, and find leftovers of the previous one.
///
/// It checks the versions, your rights, other webhooks, the webhook's endpoints, excluded namespaces, and the agent's Roles. Nothing is changed. After an installation, `trustspan verify-install` checks the webhook's verdicts.
///
/// Exit code: 0 if no check failed, 1 if one did, 2 on an error.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    kube: KubeArgs,

    #[command(flatten)]
    account: ServiceAccountArgs,
}

/// The oldest minor version of Kubernetes 1: match conditions of webhooks and ValidatingAdmissionPolicies are stable since 1.30.
const OLDEST: u32 = 30;

/// API groups of the kinds that trustspan reads, and whose they are.
const GROUPS: [(&str, &str); 3] = [
    ("networking.istio.io", "Istio"),
    ("gateway.networking.k8s.io", "Gateway API"),
    ("cert-manager.io", "cert-manager"),
];

/// What an installation creates: group and resource.
const CREATED: [(&str, &str); 13] = [
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("apps", "deployments"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
];

/// Simultaneous questions about rights.
const QUESTIONS: usize = 8;

/// Runs the subcommand.
///
/// # Errors
/// When the cluster cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let seen = super::block_on_this_thread(async {
        let client = args.kube.connect().await?;
        Seen::read(&client).await
    })?;
    let checks = seen.checks(&args.account.service_account);
    let failed = checks.iter().any(|check| check.level == Level::Failed);
    let print = || -> io::Result<()> {
        let mut out = io::stdout().lock();
        checks.iter().try_for_each(|check| writeln!(out, "{}", printable(&check.to_string())))
    };
    let code = if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    unless_closed(print().map_err(Failure::from).map(|()| code))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ok,
    Warning,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    level: Level,
    text: String,
}

impl Check {
    fn ok(text: impl Into<String>) -> Self {
        Self { level: Level::Ok, text: text.into() }
    }

    fn warning(text: impl Into<String>) -> Self {
        Self { level: Level::Warning, text: text.into() }
    }

    fn failed(text: impl Into<String>) -> Self {
        Self { level: Level::Failed, text: text.into() }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Failed => "failed",
        };
        write!(f, "{level}: {}", self.text)
    }
}

/// What was read of a cluster.
#[derive(Debug, Default)]
struct Seen {
    /// Major and minor version of the API server, as it reports them.
    version: (String, String),
    /// API groups that are served.
    groups: BTreeSet<String>,
    /// What the user may not create: group and resource.
    forbidden: Vec<(&'static str, &'static str)>,
    /// Both kinds of webhook configurations.
    webhooks: Vec<Value>,
    /// EndpointSlices.
    endpoints: Vec<Value>,
    /// RoleBindings and ClusterRoleBindings.
    bindings: Vec<Value>,
    /// GatewaySecrets. `None`: their CRD is not installed.
    entries: Option<Vec<Entry>>,
    /// TrustConsumers: namespace and name.
    consumers: Vec<(String, String)>,
}

impl Seen {
    async fn read(client: &Client) -> Result<Self, Failure> {
        let version = client.apiserver_version().await?;
        let groups = client.list_api_groups().await?;
        let mut webhooks = Vec::new();
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            webhooks.extend(objects::list(client, "admissionregistration.k8s.io", "v1", kind).await?);
        }
        let mut bindings = Vec::new();
        for kind in ["RoleBinding", "ClusterRoleBinding"] {
            bindings.extend(objects::list(client, "rbac.authorization.k8s.io", "v1", kind).await?);
        }
        let is_unknown = |error: &kube::Error| cluster::has_code(error, 404);
        let entries = match cluster::list(client.clone()).await {
            Err(error) if is_unknown(&error) => None,
            listed => Some(listed?.0),
        };
        let consumers = match cluster::trust_consumers(client.clone()).await {
            Err(error) if is_unknown(&error) => Vec::new(),
            listed => listed?.into_iter().map(|consumer| (consumer.namespace, consumer.name)).collect(),
        };
        let answers =
            stream::iter(CREATED).map(|created| async move { Ok((created, may_create(client, created).await?)) });
        let answers: Vec<kube::Result<_>> = answers.buffered(QUESTIONS).collect().await;
        let answers = answers.into_iter().collect::<kube::Result<Vec<_>>>()?;
        Ok(Self {
            version: (version.major, version.minor),
            groups: groups.groups.into_iter().map(|group| group.name).collect(),
            forbidden: answers.into_iter().filter(|(_, may)| !may).map(|(created, _)| created).collect(),
            webhooks,
            endpoints: objects::list(client, "discovery.k8s.io", "v1", "EndpointSlice").await?,
            bindings,
            entries,
            consumers,
        })
    }

    fn checks(&self, account: &ServiceAccount) -> Vec<Check> {
        let mut checks = vec![self.version()];
        checks.extend(self.groups());
        checks.push(self.rights());
        checks.extend(self.webhooks());
        checks.extend(self.excluded_namespaces());
        checks.extend(self.roles(account));
        checks
    }

    fn version(&self) -> Check {
        let (major, minor) = &self.version;
        // Some providers write `30+`.
        let number = minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
        match major == "1" && number.is_ok_and(|number| number >= OLDEST) {
            true => Check::ok(format!("Kubernetes {major}.{minor}")),
            false => Check::failed(format!("Kubernetes {major}.{minor}; expected 1.{OLDEST} or later")),
        }
    }

    fn groups(&self) -> Vec<Check> {
        let has = |group: &str| self.groups.contains(group);
        let found: Vec<_> = GROUPS.iter().filter(|(group, _)| has(group)).map(|(_, whose)| *whose).collect();
        let mut checks = Vec::new();
        if !found.is_empty() {
            checks.push(Check::ok(format!("kinds of {}", found.join(", "))));
        }
        if !has(GROUPS[0].0) && !has(GROUPS[1].0) {
            checks.push(Check::warning(
                "neither Istio nor the Gateway API is installed: Secrets are judged, and nothing else",
            ));
        }
        checks
    }

    fn rights(&self) -> Check {
        let of = |(group, resource): &(&str, &str)| match group.is_empty() {
            true => (*resource).to_owned(),
            false => format!("{resource}.{group}"),
        };
        match self.forbidden.as_slice() {
            [] => Check::ok("you may create all objects of an installation"),
            forbidden => {
                let forbidden: Vec<_> = forbidden.iter().map(of).collect();
                Check::failed(format!("you may not create {}", forbidden.join(", ")))
            }
        }
    }

    fn webhooks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for configuration in &self.webhooks {
            let (kind, name) = (&configuration["kind"], &configuration["metadata"]["name"]);
            let (kind, name) = (kind.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
            for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
                let webhook_name = webhook["name"].as_str().unwrap_or_default();
                let title = format!("webhook {webhook_name} of {kind} {name}");
                if is_own_webhook(webhook) {
                    checks.extend(self.own_webhook(webhook).map(|why| Check::failed(format!("{title}: {why}"))));
                } else if gets_secrets(webhook) && webhook["failurePolicy"] != "Ignore" {
                    let why = "gets Secrets with failurePolicy Fail: while it is down, no Secret of a rotation can be written";
                    checks.push(Check::warning(format!("{title} {why}")));
                } else if gets_secrets(webhook) && kind.starts_with("Mutating") {
                    checks.push(Check::warning(format!("{title} may change Secrets, also those of a rotation")));
                }
            }
        }
        if self.own_webhooks().next().is_some() && !checks.iter().any(|check| check.level == Level::Failed) {
            checks.push(Check::ok("trustspan's webhooks have a caBundle, and ready endpoints"));
        }
        checks
    }

    fn own_webhooks(&self) -> impl Iterator<Item = &Value> {
        let all = self.webhooks.iter().flat_map(|configuration| configuration["webhooks"].as_array()).flatten();
        all.filter(|webhook| is_own_webhook(webhook))
    }

    /// Why the API server cannot call a webhook of trustspan.
    fn own_webhook(&self, webhook: &Value) -> Option<String> {
        let config = &webhook["clientConfig"];
        if config["caBundle"].as_str().unwrap_or_default().is_empty() {
            return Some("it has no caBundle: the agent, or cert-manager, has not written it".to_owned());
        }
        let (namespace, name) = (config["service"]["namespace"].as_str()?, config["service"]["name"].as_str()?);
        let is_of_service = |slice: &&Value| {
            let metadata = &slice["metadata"];
            metadata["namespace"] == namespace && metadata["labels"]["kubernetes.io/service-name"] == name
        };
        let slices = self.endpoints.iter().filter(is_of_service);
        let mut endpoints = slices.flat_map(|slice| slice["endpoints"].as_array()).flatten();
        // A missing condition counts as ready (EndpointSlice API).
        let is_ready = endpoints.any(|endpoint| endpoint["conditions"]["ready"] != false);
        (!is_ready).then(|| format!("Service {namespace}/{name} has no ready endpoint"))
    }

    /// GatewaySecrets in namespaces that the webhooks exclude.
    fn excluded_namespaces(&self) -> Vec<Check> {
        let excluded: BTreeSet<_> = self.own_webhooks().flat_map(excluded).collect();
        let entries = self.entries.iter().flatten().filter(|entry| excluded.contains(entry.namespace.as_str()));
        let why = "the webhooks get nothing of this namespace, so no write there is judged or rewritten";
        entries
            .map(|Entry { namespace, name, .. }| Check::warning(format!("GatewaySecret {namespace}/{name}: {why}")))
            .collect()
    }

    /// Roles of the agent that are missing, and those that nothing needs.
    fn roles(&self, account: &ServiceAccount) -> Vec<Check> {
        let Some(entries) = &self.entries else { return Vec::new() };
        let mut checks = Vec::new();
        let bound: BTreeSet<_> = self.bindings.iter().filter(|binding| is_bound(binding, account)).map(place).collect();
        let needed: BTreeMap<_, _> = entries
            .iter()
            .flat_map(|entry| {
                let rights = agent::role(entry, account, &Consent::to_everything());
                rights.objects.into_iter().map(move |object| (place(&object), entry))
            })
            .filter(|((kind, ..), _)| kind.ends_with("Binding"))
            .collect();
        for ((kind, namespace, name), entry) in &needed {
            if !bound.contains(&(kind.clone(), namespace.clone(), name.clone())) {
                let title = format!("GatewaySecret {}/{}", entry.namespace, entry.name);
                let role = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
                let consent = match namespace.as_str() {
                    own if own == entry.namespace => "",
                    "" => ". It has ClusterTrustBundles only with --allow-cluster-trust-bundle",
                    _ => ". It has rights in other namespaces only with consent: the command prints what is left out",
                };
                checks.push(Check::failed(format!(
                    "{title}: {kind} {role} is missing: apply the output of trustspan rbac{consent}"
                )));
            }
        }
        let is_needed = |place: &(String, String, String)| {
            let for_source = |entry: &Entry| format!("trustspan-agent:{}:{}:", entry.namespace, entry.name);
            let consumer = place.2.strip_prefix(CONSUMER).map(|consumer| (place.1.clone(), consumer.to_owned()));
            needed.contains_key(place)
                || consumer.is_some_and(|consumer| self.consumers.contains(&consumer))
                || entries.iter().any(|entry| place.2.starts_with(&for_source(entry)))
        };
        for left_over in bound.iter().filter(|place| is_of_one_object(place, account) && !is_needed(place)) {
            let (kind, namespace, name) = left_over;
            let role = kind.trim_end_matches("Binding").to_lowercase();
            let of = if namespace.is_empty() { String::new() } else { format!(" -n {namespace}") };
            let delete = format!("kubectl delete {role}binding,{role} {name}{of}");
            checks.push(Check::warning(format!("{kind} {name} is left over, and grants the agent rights: {delete}")));
        }
        if checks.is_empty() && !needed.is_empty() {
            checks.push(Check::ok("the agent has a Role for each GatewaySecret, and no other"));
        }
        checks
    }
}

/// The start of the name of a TrustConsumer's Role.
const CONSUMER: &str = "trustspan-consumer-";

/// Whether a binding is for one GatewaySecret or TrustConsumer, by its name. Those of the installation are in the agent's namespace, or in none.
fn is_of_one_object((_, namespace, name): &(String, String, String), account: &ServiceAccount) -> bool {
    let is_elsewhere = !namespace.is_empty() && namespace != account.namespace();
    name.starts_with("trustspan-agent:")
        || name.starts_with(CONSUMER)
        || is_elsewhere && name.starts_with("trustspan-agent-")
}

/// Whether a webhook is one of trustspan's, by the end of its name.
pub(super) fn is_own_webhook(webhook: &Value) -> bool {
    webhook["name"].as_str().is_some_and(|name| name.ends_with(".trustspan.dev"))
}

/// Kind, namespace and name.
fn place(object: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
}

fn is_bound(binding: &Value, account: &ServiceAccount) -> bool {
    let mut subjects = binding["subjects"].as_array().into_iter().flatten();
    subjects.any(|subject| {
        subject["kind"] == "ServiceAccount"
            && subject["namespace"] == account.namespace()
            && subject["name"] == account.name()
    })
}

/// Whether a webhook gets writes of Secrets. Its selectors and conditions are not evaluated.
fn gets_secrets(webhook: &Value) -> bool {
    let has = |rule: &Value, field: &str, names: [&str; 2]| {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .any(|value| value.as_str().is_some_and(|value| names.contains(&value)))
    };
    let mut rules = webhook["rules"].as_array().into_iter().flatten();
    rules.any(|rule| has(rule, "apiGroups", ["", "*"]) && has(rule, "resources", ["secrets", "*"]))
}

/// The namespaces that a webhook's selector excludes by name.
fn excluded(webhook: &Value) -> impl Iterator<Item = &str> {
    let expressions = webhook["namespaceSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let by_name = expressions
        .filter(|expression| expression["key"] == "kubernetes.io/metadata.name" && expression["operator"] == "NotIn");
    by_name.flat_map(|expression| expression["values"].as_array()).flatten().filter_map(Value::as_str)
}

async fn may_create(client: &Client, (group, resource): (&str, &str)) -> kube::Result<bool> {
    let text = |text: &str| Some(text.to_owned());
    let (verb, group, resource) = (text("create"), text(group), text(resource));
    may(client, ResourceAttributes { verb, group, resource, ..ResourceAttributes::default() }).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;

    fn seen() -> Seen {
        let groups = GROUPS.iter().map(|(group, _)| (*group).to_owned()).collect();
        Seen { version: ("1".to_owned(), "36".to_owned()), groups, ..Seen::default() }
    }

    fn configuration(webhook: &str, changes: &Value) -> Value {
        let mut webhook = json!({
            "name": webhook, "failurePolicy": "Fail",
            "rules": [{ "apiGroups": [""], "resources": ["secrets"] }],
            "namespaceSelector": { "matchExpressions": [
                { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "mesh"] },
            ] },
            "clientConfig": { "caBundle": "QQ==", "service": { "namespace": "trustspan-system", "name": "trustspan-webhook" } },
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            webhook[key] = value.clone();
        }
        json!({ "kind": "MutatingWebhookConfiguration", "metadata": { "name": "one" }, "webhooks": [webhook] })
    }

    fn lines(seen: &Seen, level: Level) -> Vec<String> {
        let checks = seen.checks(&ServiceAccount::default());
        checks.into_iter().filter(|check| check.level == level).map(|check| check.text).collect()
    }

    fn one(lines: &[String]) -> &str {
        assert_eq!(lines.len(), 1, "{lines:?}");
        &lines[0]
    }

    #[test]
    fn fails_on_an_old_version_and_on_missing_rights() {
        assert_eq!(lines(&seen(), Level::Failed), Vec::<String>::new());
        let old = |minor: &str| Seen { version: ("1".to_owned(), minor.to_owned()), ..seen() };
        assert!(one(&lines(&old("29+"), Level::Failed)).contains("expected 1.30"));
        assert_eq!(lines(&old("30+"), Level::Failed), Vec::<String>::new());
        let forbidden = vec![("", "namespaces"), ("rbac.authorization.k8s.io", "roles")];
        let refused = lines(&Seen { forbidden, ..seen() }, Level::Failed);
        assert_eq!(one(&refused), "you may not create namespaces, roles.rbac.authorization.k8s.io");
    }

    #[test]
    fn warns_about_other_webhooks_on_secrets() {
        let warned = |changes: Value| {
            let webhooks = vec![configuration("other.example.com", &changes)];
            lines(&Seen { webhooks, ..seen() }, Level::Warning)
        };
        assert!(one(&warned(json!({}))).contains("failurePolicy Fail"));
        assert!(one(&warned(json!({ "failurePolicy": "Ignore" }))).contains("may change Secrets"));
        assert!(warned(json!({ "rules": [{ "apiGroups": ["apps"], "resources": ["*"] }] })).is_empty());
    }

    #[test]
    fn fails_on_a_webhook_that_cannot_be_called() {
        let slice = |ready: Value| {
            json!({
                "metadata": {
                    "namespace": "trustspan-system", "labels": { "kubernetes.io/service-name": "trustspan-webhook" },
                },
                "endpoints": [{ "conditions": ready }],
            })
        };
        let with = |changes: Value, endpoints: Vec<Value>| {
            let webhooks = vec![configuration("trust.validate.trustspan.dev", &changes)];
            lines(&Seen { webhooks, endpoints, ..seen() }, Level::Failed)
        };
        assert!(one(&with(json!({}), Vec::new())).contains("no ready endpoint"));
        assert!(one(&with(json!({}), vec![slice(json!({ "ready": false }))])).contains("no ready endpoint"));
        assert_eq!(with(json!({}), vec![slice(json!({}))]), Vec::<String>::new());
        assert!(one(&with(json!({ "clientConfig": {} }), vec![slice(json!({}))])).contains("no caBundle"));
    }

    #[test]
    fn finds_missing_and_left_over_roles_and_excluded_namespaces() {
        let account = ServiceAccount::default();
        let entries = Some(vec![entry("mesh", "root", "gateway")]);
        let bindings: Vec<_> =
            agent::role(&entry("mesh", "root", "gateway"), &account, &Consent::to_everything()).objects.split_off(1);
        let with = |bindings: Vec<Value>| Seen { entries: entries.clone(), bindings, ..seen() };
        assert!(one(&lines(&with(Vec::new()), Level::Failed)).contains("is missing"));
        assert_eq!(lines(&with(bindings.clone()), Level::Failed), Vec::<String>::new());

        let mut old = bindings[0].clone();
        old["metadata"]["name"] = "trustspan-agent-old".into();
        let mut another_account = old.clone();
        another_account["subjects"][0]["name"] = "default".into();
        let mut own = old.clone();
        own["metadata"] = json!({ "name": "trustspan-agent-lease", "namespace": "trustspan-system" });
        let more = [bindings, vec![old, another_account, own]].concat();
        let left_over = lines(&with(more), Level::Warning);
        assert!(
            one(&left_over).contains("kubectl delete rolebinding,role trustspan-agent-old -n mesh"),
            "{left_over:?}"
        );

        let webhooks = vec![configuration("trust.validate.trustspan.dev", &json!({}))];
        let excluded = lines(&Seen { entries, webhooks, ..seen() }, Level::Warning);
        assert!(one(&excluded).contains("the webhooks get nothing of this namespace"));
    }
}
