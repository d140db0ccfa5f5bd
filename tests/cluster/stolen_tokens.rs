//! What the holder of a ServiceAccount's token can write, with the rights and the policies of the manifests. RBAC allows names and verbs; the
//! policies limit types, owners, finalizers and fields. `rights.rs` asks about RBAC alone.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use crate::rights::install_components;
use crate::stage::{MANAGED, SOURCE, deployment, gateway_secret, trustspan};
use crate::testbed::{Cluster, Output, SOON, base64, wait_for};

cases![alone a_stolen_token_writes_only_what_its_account_writes];

/// The Deployment of the TrustConsumer.
const WORKLOAD: &str = "app";

/// The answer of the API server to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// It would be stored.
    Allowed,
    /// RBAC denies it.
    Forbidden,
    /// A policy denies it, with this message.
    Denied(String),
}

use Answer::{Allowed, Forbidden};

/// A denial by a policy.
fn denied(message: &str) -> Answer {
    Answer::Denied(message.to_owned())
}

/// The writes of one ServiceAccount, as dry runs.
struct Token<'c> {
    cluster: &'c Cluster,
    account: &'static str,
    /// The node that the token of a pod names.
    as_pod_of_node: Option<&'static str>,
    /// What was tried, with the answer that was expected and the one that was seen.
    tried: BTreeMap<String, (Answer, Answer)>,
}

impl<'c> Token<'c> {
    /// The token of a ServiceAccount, given as `NAMESPACE:NAME`.
    fn new(cluster: &'c Cluster, account: &'static str) -> Self {
        Self { cluster, account, as_pod_of_node: None, tried: BTreeMap::new() }
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Result<Output> {
        let user = format!("--as=system:serviceaccount:{}", self.account);
        let namespace = self.account.split(':').next().unwrap_or_default();
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"]
            .map(|group| format!("--as-group={group}"));
        let kubectl = self.cluster.kubectl(args).arg("--dry-run=server").arg(user);
        let node =
            self.as_pod_of_node.map(|node| format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"));
        groups.into_iter().chain(node).fold(kubectl, |kubectl, arg| kubectl.arg(arg)).stdin(stdin).run()
    }

    /// Policies take effect some time after they are stored.
    fn wait_for_policy(&self, denied: &Value) -> Result<()> {
        wait_for(&format!("the policy for {}", self.account), SOON, || {
            let output = self.kubectl(&["apply", "--server-side", "-f", "-"], &denied.to_string())?;
            Ok(output.stderr.contains("ValidatingAdmissionPolicy"))
        })
    }

    fn record(&mut self, what: &str, expected: Answer, output: &Output) -> Result<()> {
        let seen = answer(output).with_context(|| format!("{}: {what}", self.account))?;
        self.tried.insert(what.to_owned(), (expected, seen));
        Ok(())
    }

    /// Server-side apply, with which a right by name suffices to create an object.
    fn apply(&mut self, what: &str, object: &Value, expected: Answer) -> Result<()> {
        let output = self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &object.to_string())?;
        self.record(what, expected, &output)
    }

    fn create(&mut self, what: &str, object: &Value, expected: Answer) -> Result<()> {
        let output = self.kubectl(&["create", "-f", "-"], &object.to_string())?;
        self.record(what, expected, &output)
    }

    /// `on` is `KIND/NAME`, with `-n` and the namespace.
    fn delete(&mut self, on: &[&str], expected: Answer) -> Result<()> {
        let output = self.kubectl(&[&["delete", "--wait=false"], on].concat(), "")?;
        self.record(&format!("deletion of {}", on.join(" ")), expected, &output)
    }

    /// A merge patch. `on` is `KIND/NAME`, with `-n` and the namespace.
    fn patch(&mut self, what: &str, on: &[&str], patch: &Value, expected: Answer) -> Result<()> {
        self.patch_as(what, "--type=merge", on, patch, expected)
    }

    /// A JSON patch that adds or replaces one field.
    fn set(&mut self, what: &str, on: &[&str], path: &str, value: &Value, expected: Answer) -> Result<()> {
        let patch = json!([{ "op": "add", "path": path, "value": value }]);
        self.patch_as(what, "--type=json", on, &patch, expected)
    }

    fn patch_as(&mut self, what: &str, type_: &str, on: &[&str], patch: &Value, expected: Answer) -> Result<()> {
        let patch = patch.to_string();
        let output = self.kubectl(&[&["patch"], on, &[type_, "--patch", &patch]].concat(), "")?;
        self.record(what, expected, &output)
    }

    /// An owner that does not exist, with which the garbage collector would delete the object, and a finalizer, with which nothing could.
    fn own_and_keep(&mut self, on: &[&str], expected: &Answer) -> Result<()> {
        let what = |change: &str| format!("{change} of {}", on.join(" "));
        self.patch(
            &what("a missing owner"),
            on,
            &json!({ "metadata": { "ownerReferences": [missing_owner()] } }),
            expected.clone(),
        )?;
        let kept = json!({ "metadata": { "finalizers": ["example.com/keep"] } });
        self.patch(&what("a finalizer"), on, &kept, expected.clone())
    }

    /// Fails with all answers that were not expected.
    fn compare(self) -> Result<()> {
        let unexpected: String = self
            .tried
            .iter()
            .filter(|(_, (expected, seen))| expected != seen)
            .map(|(what, (expected, seen))| format!("\n  {what}: expected {expected:?}, saw {seen:?}"))
            .collect();
        ensure!(unexpected.is_empty(), "{}:{unexpected}", self.account);
        let allowed = self.tried.values().filter(|(_, seen)| *seen == Allowed).count();
        println!("{}: {} writes, {allowed} allowed", self.account, self.tried.len());
        Ok(())
    }
}

fn answer(output: &Output) -> Result<Answer> {
    if output.success() {
        return Ok(Allowed);
    }
    let text = &output.stderr;
    if let Some((_, denial)) = text.split_once("denied request: ") {
        return Ok(denied(denial.lines().next().unwrap_or_default()));
    }
    ensure!(text.contains("forbidden: User") || text.contains("Forbidden): "), "neither allowed nor denied: {text}");
    Ok(Forbidden)
}

/// With it, the garbage collector deletes an object.
pub(crate) fn missing_owner() -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": "11111111-1111-1111-1111-111111111111" })
}

fn secret(ns: &str, name: &str, type_: &str) -> Value {
    let data = if type_ == "kubernetes.io/tls" { json!({ "tls.crt": "", "tls.key": "" }) } else { json!({}) };
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": type_, "data": data, "metadata": {
            "namespace": ns, "name": name, "annotations": { "kubernetes.io/service-account.name": "default" },
        },
    })
}

fn a_stolen_token_writes_only_what_its_account_writes(cluster: &Cluster) -> Result<()> {
    install_components(cluster, &["rbac.yaml", "policy.yaml"])?;
    cluster.with_temp_ns(|ns| agent(cluster, ns))?;
    cluster.with_temp_ns(|ns| webhook(cluster, ns))?;
    cluster.with_temp_ns(|ns| approver(cluster, ns))?;
    certgen(cluster)?;
    mirror(cluster)
}

/// It may write nothing.
fn webhook(cluster: &Cluster, ns: &str) -> Result<()> {
    let mut token = Token::new(cluster, "trustspan-system:trustspan-webhook");
    token.apply("a managed Secret", &secret(ns, MANAGED, "Opaque"), Forbidden)?;
    token.apply("a journal", &journal(ns), Forbidden)?;
    token.apply("a GatewaySecret", &gateway_secret(ns), Forbidden)?;
    token.compare()
}

const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Webhook configurations of these kinds and this name that send nothing to a webhook.
fn with_webhook_configurations(
    cluster: &Cluster,
    kinds: &[&str],
    name: &str,
    test: impl FnOnce() -> Result<()>,
) -> Result<()> {
    for kind in kinds {
        let webhook = |name: &str| {
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "none" } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"] }],
                "clientConfig": { "service": { "name": "trustspan-webhook", "namespace": "trustspan-system" } },
            })
        };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name },
            "webhooks": [webhook("one.trustspan.dev"), webhook("two.trustspan.dev")],
        });
        cluster.kubectl(["apply", "-f", "-"]).stdin(configuration.to_string()).ok()?;
    }
    let outcome = test();
    for kind in kinds {
        cluster.kubectl(["delete", kind, name]).ok()?;
    }
    outcome
}

const OWNERS: &str = "the agent changes no owners and no finalizers";
const TYPES: &str = "the agent writes no Secrets of the types that Kubernetes uses, except kubernetes.io/tls";
const CA_BUNDLE: &str = "the agent changes only caBundle of a webhook configuration";
const ANNOTATIONS: &str = "the agent changes only trustspan's annotations of a workload and of its pod template";
const POD: &str = "the agent changes no pod but the names of Secrets";
const SECRET_NAMES: &str = "the agent lets a pod use no other Secrets than those that it writes";

/// A workload with all places that name Secrets, and with what must stay.
fn workload() -> Value {
    let mut workload = deployment(WORKLOAD, SOURCE, &[]);
    let pod = &mut workload["spec"]["template"]["spec"];
    let container = &mut pod["containers"][0];
    container["env"] = json!([
        { "name": "LEVEL", "value": "info" },
        { "name": "CA", "valueFrom": { "secretKeyRef": { "name": SOURCE, "key": "ca.crt" } } },
    ]);
    container["envFrom"] = json!([{ "secretRef": { "name": SOURCE, "optional": true } }]);
    let volumes = pod["volumes"].as_array_mut();
    let sources = json!([{ "secret": { "name": SOURCE } }, { "configMap": { "name": "settings" } }]);
    volumes.into_iter().for_each(|volumes| {
        volumes.push(json!({ "name": "all", "projected": { "sources": sources } }));
        volumes.push(json!({ "name": "scratch", "emptyDir": {} }));
    });
    workload
}

fn agent(cluster: &Cluster, ns: &str) -> Result<()> {
    let mut declared = gateway_secret(ns);
    declared["metadata"]["namespace"] = json!(ns);
    let consumer = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "TrustConsumer",
        "metadata": { "namespace": ns, "name": "consumer" },
        "spec": {
            "workloads": [{ "kind": "Deployment", "name": WORKLOAD }],
            "loads": [{ "kind": "Secret", "name": SOURCE, "keys": ["ca.crt"] }],
        },
    });
    let (code, roles) = trustspan(&["rbac"], &format!("{declared}\n---\n{consumer}"))?;
    ensure!(code == Some(0), "trustspan rbac failed: {roles}");
    cluster.apply(ns, &roles)?;
    for object in [secret(ns, MANAGED, "Opaque"), workload(), journal(ns)] {
        cluster.apply(ns, &object.to_string())?;
    }
    with_webhook_configurations(cluster, &KINDS, "trustspan", || {
        let mut token = Token::new(cluster, "trustspan-system:trustspan-agent");
        token.wait_for_policy(&secret(ns, &format!("{MANAGED}-cacert"), "kubernetes.io/service-account-token"))?;
        agent_secrets(&mut token, ns)?;
        for kind in KINDS {
            webhook_configuration(&mut token, kind, "trustspan", &denied(OWNERS), &denied(CA_BUNDLE))?;
        }
        agent_workloads(&mut token, ns)?;
        token.compare()
    })
}

fn journal(ns: &str) -> Value {
    let name = format!("{MANAGED}.trustspan-journal");
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": ns, "name": name } })
}

fn agent_secrets(token: &mut Token<'_>, ns: &str) -> Result<()> {
    let cacert = format!("{MANAGED}-cacert");
    for (type_, expected) in [
        ("Opaque", Allowed),
        ("kubernetes.io/tls", Allowed),
        ("istio.io/ca", Allowed),
        ("kubernetes.io/service-account-token", denied(TYPES)),
        ("bootstrap.kubernetes.io/token", denied(TYPES)),
    ] {
        token.apply(&format!("a -cacert Secret of type {type_}"), &secret(ns, &cacert, type_), expected)?;
    }
    let mut owned = secret(ns, &cacert, "Opaque");
    owned["metadata"]["ownerReferences"] = json!([missing_owner()]);
    token.apply("a -cacert Secret with an owner", &owned, denied(OWNERS))?;
    token.apply("another Secret", &secret(ns, "other", "Opaque"), Forbidden)?;
    token.apply("the source Secret", &secret(ns, SOURCE, "Opaque"), Forbidden)?;

    let managed = format!("secret/{MANAGED}");
    let managed = [managed.as_str(), "-n", ns];
    token.own_and_keep(&managed, &denied(OWNERS))?;
    token.patch("the content of the managed Secret", &managed, &json!({ "data": { "ca.crt": "" } }), Allowed)?;
    token.patch(
        "an immutable managed Secret",
        &managed,
        &json!({ "immutable": true }),
        denied("the agent makes nothing immutable"),
    )?;
    token.delete(&managed, Forbidden)?;
    let journal = format!("configmap/{MANAGED}.trustspan-journal");
    token.own_and_keep(&[&journal, "-n", ns], &denied(OWNERS))?;

    let certificate = denied("the agent creates only the Secrets of the webhook's serving certificate here");
    for (name, type_, expected) in [
        ("trustspan-webhook-tls", "kubernetes.io/tls", Allowed),
        ("trustspan-webhook-certgen-pending", "Opaque", Allowed),
        ("trustspan-webhook-certgen-pending", "kubernetes.io/service-account-token", denied(TYPES)),
        ("other", "Opaque", certificate),
    ] {
        let what = format!("Secret {name} of type {type_} in trustspan-system");
        token.create(&what, &secret("trustspan-system", name, type_), expected)?;
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": "trustspan-system", "name": "trustspan-approver" },
    });
    token.create("the approver's Lease", &lease, denied("the agent creates no Lease here but trustspan-agent"))
}

/// Changes of a webhook configuration, of which only that of caBundle is allowed.
fn webhook_configuration(token: &mut Token<'_>, kind: &str, name: &str, owners: &Answer, other: &Answer) -> Result<()> {
    let on = [&format!("{kind}/{name}") as &str];
    token.own_and_keep(&on, owners)?;
    let webhooks = token.cluster.get(kind, "", name)?["webhooks"].clone();
    let mut order = webhooks.clone();
    order.as_array_mut().context("webhooks")?.reverse();
    token.set(&format!("caBundle of {kind}"), &on, "/webhooks/0/clientConfig/caBundle", &json!("eA=="), Allowed)?;
    for (path, value) in [
        ("/webhooks", order),
        ("/webhooks", json!([webhooks[0]])),
        ("/webhooks/0/clientConfig/service/name", json!("other")),
        ("/webhooks/0/rules/0/resources/0", json!("pods")),
        ("/webhooks/0/objectSelector", json!({ "matchLabels": { "a": "b" } })),
        ("/webhooks/0/matchConditions", json!([{ "name": "none", "expression": "false" }])),
        ("/webhooks/0/timeoutSeconds", json!(1)),
        ("/metadata/labels", json!({ "a": "b" })),
    ] {
        token.set(&format!("{kind}{path} = {value}"), &on, path, &value, other.clone())?;
    }
    Ok(())
}

fn agent_workloads(token: &mut Token<'_>, ns: &str) -> Result<()> {
    let on = format!("deployment/{WORKLOAD}");
    let on = [on.as_str(), "-n", ns];
    token.own_and_keep(&on, &denied(OWNERS))?;
    let stored = token.cluster.get("deployment", ns, WORKLOAD)?;
    let container = "/spec/template/spec/containers/0";
    for (path, value, expected) in [
        ("/spec/template/metadata/annotations", json!({ "trustspan.dev/loaded-hash": "a" }), Allowed),
        ("/spec/template/metadata/annotations", json!({ "sidecar.istio.io/inject": "false" }), denied(ANNOTATIONS)),
        ("/spec/template/metadata/labels/a", json!("b"), denied(ANNOTATIONS)),
        ("/metadata/annotations", json!({ "trustspan.dev/resync-requested-at": "now" }), denied(ANNOTATIONS)),
        ("/metadata/annotations/trustspan.dev~1resync-requested-at", json!("now"), Allowed),
        ("/metadata/labels", json!({ "a": "b" }), denied(ANNOTATIONS)),
        ("/spec/replicas", json!(0), denied(ANNOTATIONS)),
        ("/spec/paused", json!(true), denied(ANNOTATIONS)),
        ("/spec/strategy", json!({ "type": "Recreate" }), denied(ANNOTATIONS)),
        ("/spec/template/spec/serviceAccountName", json!("admin"), denied(POD)),
        ("/spec/template/spec/hostNetwork", json!(true), denied(POD)),
        ("/spec/template/spec/initContainers", json!([{ "name": "a", "image": "evil" }]), denied(POD)),
        (&format!("{container}/image"), json!("evil"), denied(POD)),
        (&format!("{container}/command"), json!(["evil"]), denied(POD)),
        (&format!("{container}/securityContext"), json!({ "runAsUser": 0 }), denied(POD)),
        (&format!("{container}/env/0/value"), json!("debug"), denied(POD)),
        (&format!("{container}/env/1/valueFrom/secretKeyRef/key"), json!("tls.key"), denied(POD)),
        (&format!("{container}/env/1/valueFrom/secretKeyRef/name"), json!(MANAGED), Allowed),
        (&format!("{container}/env/1/valueFrom/secretKeyRef/name"), json!("other"), denied(SECRET_NAMES)),
        (&format!("{container}/envFrom/0/secretRef/name"), json!(MANAGED), Allowed),
        (&format!("{container}/envFrom/0/secretRef/name"), json!("other"), denied(SECRET_NAMES)),
        (&format!("{container}/envFrom/0"), json!({ "configMapRef": { "name": "other" } }), denied(POD)),
        ("/spec/template/spec/volumes/0/secret/secretName", json!(MANAGED), Allowed),
        ("/spec/template/spec/volumes/0/secret/secretName", json!("other"), denied(SECRET_NAMES)),
        ("/spec/template/spec/volumes/1/projected/sources/0/secret/name", json!(MANAGED), Allowed),
        ("/spec/template/spec/volumes/1/projected/sources/0/secret/name", json!("other"), denied(SECRET_NAMES)),
        ("/spec/template/spec/volumes/1/projected/sources/1/configMap/name", json!("other"), denied(POD)),
        ("/spec/template/spec/volumes/-", json!({ "name": "b", "hostPath": { "path": "/" } }), denied(POD)),
        ("/spec/template/spec/volumes/-", json!({ "name": "b", "secret": { "secretName": MANAGED } }), denied(POD)),
    ] {
        token.set(&format!("{path} = {value}"), &on, path, &value, expected)?;
    }
    // What the webhook makes of a request of the agent.
    let text = stored.to_string().replace(&format!("\"{SOURCE}\""), &format!("\"{MANAGED}\""));
    let mut renamed: Value = serde_json::from_str(&text)?;
    renamed["spec"]["template"]["metadata"]["annotations"] = json!({ "trustspan.dev/rotation-hash": "3-a" });
    let renamed =
        json!({ "metadata": { "resourceVersion": stored["metadata"]["resourceVersion"] }, "spec": renamed["spec"] });
    token.patch("a rewritten Deployment", &on, &renamed, Allowed)
}

const PREFIX: &str = "trustspan.dev:client-identity:";
const APPROVER_OWNERS: &str = "the approver gives its objects no other owner than their ClientIdentity";
const APPROVER_NAMES: &str = "the approver writes only Roles and bindings of ClientIdentities";
const APPROVER_BINDINGS: &str = "the approver binds the roles of a ClientIdentity to its client";
const APPROVER_RULES: &str = "the approver lets a client only request its certificates";
const APPROVER_LABELS: &str = "the approver writes only Secrets with the labels of their ClientIdentity";
const APPROVER_SECRETS: &str =
    "the approver writes only bootstrap kubeconfigs and bootstrap tokens of ClientIdentities";
const APPROVER_FINALIZERS: &str = "the approver changes no finalizers";
const APPROVER_IDENTITIES: &str =
    "the approver changes no ClientIdentity but its annotation trustspan.dev/client-certificate";

/// The labels of an object of ClientIdentity `payments`.
fn identity_labels(ns: &str) -> Value {
    json!({ "trustspan.dev/client-identity-namespace": ns, "trustspan.dev/client-identity-name": "payments" })
}

/// The Secret of a bootstrap token.
fn bootstrap_token(labels: &Value, id: &str, groups: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": { "namespace": "kube-system", "name": format!("bootstrap-token-{id}"), "labels": labels },
        "stringData": { "token-id": id, "token-secret": "0123456789abcdef", "auth-extra-groups": groups },
    })
}

fn rbac(kind: &str, ns: Option<&str>, name: &str, content: &Value) -> Value {
    let mut object = content.clone();
    object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    object["kind"] = json!(kind);
    object["metadata"]["name"] = json!(name);
    if let Some(ns) = ns {
        object["metadata"]["namespace"] = json!(ns);
    }
    object
}

fn binding(kind: &str, name: &str, subjects: &[(&str, &str)]) -> Value {
    let group = "rbac.authorization.k8s.io";
    let subjects: Vec<_> =
        subjects.iter().map(|(kind, name)| json!({ "apiGroup": group, "kind": kind, "name": name })).collect();
    json!({ "roleRef": { "apiGroup": group, "kind": kind, "name": name }, "subjects": subjects })
}

fn approver(cluster: &Cluster, ns: &str) -> Result<()> {
    let account = "--serviceaccount=trustspan-system:trustspan-approver";
    let bound = ["create", "rolebinding", "trustspan-approver", "--clusterrole=trustspan-approver-namespace", account];
    cluster.kubectl(bound).ns(ns).ok()?;
    let identity = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "ClientIdentity", "metadata": { "namespace": ns, "name": "payments" },
        "spec": { "rules": [], "server": { "endpoint": "https://api.example.com" } },
    });
    let mut own = secret(ns, "own", "Opaque");
    own["metadata"]["labels"] = identity_labels(ns);
    let others_token = bootstrap_token(&json!({}), "others", "system:bootstrappers:kubeadm:default-node-token");
    let own_token =
        bootstrap_token(&identity_labels(ns), "stolen", &format!("system:bootstrappers:trustspan:{ns}:payments"));
    let other = secret("kube-system", &format!("other-{ns}"), "Opaque");
    let mut no_token = secret("kube-system", &format!("no-token-{ns}"), "Opaque");
    no_token["metadata"]["labels"] = identity_labels(ns);
    // A binding of a role that does not exist is answered by its absence.
    let role = rbac("Role", Some(ns), &format!("{PREFIX}payments"), &json!({ "rules": [] }));
    let cluster_role = rbac("ClusterRole", None, &format!("{PREFIX}{ns}:payments"), &json!({ "rules": [] }));
    let others = secret(ns, "other", "Opaque");
    for object in [&identity, &own, &others, &others_token, &own_token, &other, &no_token, &role, &cluster_role] {
        cluster.kubectl(["apply", "-f", "-"]).stdin(object.to_string()).ok()?;
    }
    let mut token = Token::new(cluster, "trustspan-system:trustspan-approver");
    token.wait_for_policy(&secret(ns, "none", "Opaque"))?;
    let outcome = approver_secrets(&mut token, ns)
        .and_then(|()| approver_rbac(&mut token, ns))
        .and_then(|()| approver_others(&mut token, ns));
    for object in [others_token, own_token, other, no_token, cluster_role] {
        cluster.kubectl(["delete", "-f", "-"]).stdin(object.to_string()).ok()?;
    }
    outcome.and_then(|()| token.compare())
}

fn approver_secrets(token: &mut Token<'_>, ns: &str) -> Result<()> {
    let group = format!("system:bootstrappers:trustspan:{ns}:payments");
    let kubeadm = "system:bootstrappers:kubeadm:default-node-token";
    let both = format!("{group},{kubeadm}");
    for (what, labels, groups, expected) in [
        ("a bootstrap token", identity_labels(ns), &group as &str, Allowed),
        ("a bootstrap token without labels", json!({}), &group, denied(APPROVER_LABELS)),
        ("a bootstrap token of kubeadm", identity_labels(ns), kubeadm, denied(APPROVER_SECRETS)),
        ("a bootstrap token with two groups", identity_labels(ns), &both, denied(APPROVER_SECRETS)),
    ] {
        token.create(what, &bootstrap_token(&labels, "create", groups), expected)?;
    }
    let labelled = |ns: &str, labels: Value, type_: &str| {
        let mut object = secret(ns, "bootstrap", type_);
        object["metadata"]["labels"] = labels;
        object
    };
    let other = identity_labels("other");
    let mut with_ca = labelled(ns, identity_labels(ns), "Opaque");
    with_ca["metadata"]["name"] = json!(format!("{SOURCE}-cacert"));
    with_ca["data"] = json!({ "ca.crt": "" });
    for (what, object, expected) in [
        ("a bootstrap kubeconfig", labelled(ns, identity_labels(ns), "Opaque"), Allowed),
        ("a Secret from which the agent takes CAs", with_ca, denied(APPROVER_SECRETS)),
        ("a kubeconfig of another namespace", labelled(ns, other, "Opaque"), denied(APPROVER_SECRETS)),
        ("a Secret without labels", labelled(ns, json!({}), "Opaque"), denied(APPROVER_LABELS)),
        (
            "a token of a ServiceAccount",
            labelled(ns, identity_labels(ns), "kubernetes.io/service-account-token"),
            denied(APPROVER_SECRETS),
        ),
        (
            "a token of a ServiceAccount in kube-system",
            labelled("kube-system", identity_labels("kube-system"), "kubernetes.io/service-account-token"),
            denied(APPROVER_SECRETS),
        ),
    ] {
        token.create(what, &object, expected)?;
    }
    let mut owned = labelled(ns, identity_labels(ns), "Opaque");
    let mut owner =
        json!({ "apiVersion": "trustspan.dev/v1alpha1", "kind": "ClientIdentity", "name": "payments", "uid": "1" });
    owned["metadata"]["ownerReferences"] = json!([owner]);
    token.create("a bootstrap kubeconfig with its owner", &owned, Allowed)?;
    owner["name"] = json!("other");
    owned["metadata"]["ownerReferences"] = json!([owner]);
    token.create("a bootstrap kubeconfig with another owner", &owned, denied(APPROVER_OWNERS))?;

    let content = json!({ "data": { "kubeconfig": "" } });
    let take_over = json!({ "metadata": { "labels": identity_labels(ns) } });
    token.patch("its bootstrap kubeconfig", &["secret/own", "-n", ns], &content, Allowed)?;
    token.patch("another Secret", &["secret/other", "-n", ns], &content, denied(APPROVER_LABELS))?;
    token.patch("the labels of another Secret", &["secret/other", "-n", ns], &take_over, denied(APPROVER_LABELS))?;
    let owner = json!({ "metadata": { "ownerReferences": [missing_owner()] } });
    token.patch("a missing owner of a Secret", &["secret/own", "-n", ns], &owner, denied(APPROVER_OWNERS))?;
    let finalizer = json!({ "metadata": { "finalizers": ["example.com/keep"] } });
    token.patch("a finalizer of a Secret", &["secret/own", "-n", ns], &finalizer, denied(APPROVER_FINALIZERS))?;
    token.delete(&["secret/own", "-n", ns], Forbidden)?;

    let (other, no_token) = (format!("secret/other-{ns}"), format!("secret/no-token-{ns}"));
    for (name, expected) in [
        ("secret/bootstrap-token-stolen", Allowed),
        ("secret/bootstrap-token-others", denied(APPROVER_LABELS)),
        (&other, denied(APPROVER_LABELS)),
        (&no_token, denied("the approver deletes no Secrets but bootstrap tokens")),
    ] {
        token.delete(&[name, "-n", "kube-system"], expected)?;
    }
    Ok(())
}

fn approver_rbac(token: &mut Token<'_>, ns: &str) -> Result<()> {
    let (role, cluster_role) = (format!("{PREFIX}payments"), format!("{PREFIX}{ns}:payments"));
    let group = format!("system:bootstrappers:trustspan:{ns}:payments");
    let user = cluster_role.as_str();
    let requests = json!({ "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get"] });
    let of = |name: &str| {
        json!({
            "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/clientidentity"],
            "resourceNames": [name], "verbs": ["create"],
        })
    };
    let identity = format!("{ns}:payments");
    let deletes =
        json!({ "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["delete"] });
    let aggregated = json!({ "metadata": { "labels": { "rbac.authorization.k8s.io/aggregate-to-edit": "true" } }, "rules": [requests] });
    for (what, kind, namespace, name, content, expected) in [
        (
            "a ClusterRole of an identity",
            "ClusterRole",
            None,
            user,
            json!({ "rules": [requests, of(&identity)] }),
            Allowed,
        ),
        (
            "a ClusterRole for another identity",
            "ClusterRole",
            None,
            user,
            json!({ "rules": [of("a:b")] }),
            denied(APPROVER_RULES),
        ),
        (
            "a ClusterRole with other rights",
            "ClusterRole",
            None,
            user,
            json!({ "rules": [deletes] }),
            denied(APPROVER_RULES),
        ),
        ("an aggregated ClusterRole", "ClusterRole", None, user, aggregated, denied(APPROVER_RULES)),
        (
            "a ClusterRole of another name",
            "ClusterRole",
            None,
            "other",
            json!({ "rules": [requests] }),
            denied(APPROVER_NAMES),
        ),
        (
            "a ClusterRoleBinding of an identity",
            "ClusterRoleBinding",
            None,
            user,
            binding("ClusterRole", user, &[("User", user), ("Group", &group)]),
            Allowed,
        ),
        (
            "a ClusterRoleBinding of the approver's ClusterRole",
            "ClusterRoleBinding",
            None,
            user,
            binding("ClusterRole", "trustspan-approver", &[("User", user)]),
            denied(APPROVER_BINDINGS),
        ),
        (
            "a ClusterRoleBinding to another user",
            "ClusterRoleBinding",
            None,
            user,
            binding("ClusterRole", user, &[("User", "mallory")]),
            denied(APPROVER_BINDINGS),
        ),
        ("a Role of an identity", "Role", Some(ns), &role, json!({ "rules": [] }), Allowed),
        ("a Role of another name", "Role", Some(ns), "other", json!({ "rules": [] }), denied(APPROVER_NAMES)),
        (
            "a RoleBinding of an identity",
            "RoleBinding",
            Some(ns),
            &role,
            binding("Role", &role, &[("User", user)]),
            Allowed,
        ),
        (
            "a RoleBinding to another user",
            "RoleBinding",
            Some(ns),
            &role,
            binding("Role", &role, &[("User", "mallory")]),
            denied(APPROVER_BINDINGS),
        ),
        (
            "a RoleBinding of another Role",
            "RoleBinding",
            Some(ns),
            &role,
            binding("ClusterRole", "trustspan-approver-namespace", &[("User", user)]),
            denied(APPROVER_BINDINGS),
        ),
    ] {
        token.apply(what, &rbac(kind, namespace, name, &content), expected)?;
    }
    for name in ["clusterrole/trustspan-agent", "clusterrole/cluster-admin", "clusterrolebinding/cluster-admin"] {
        token.delete(&[name], denied(APPROVER_NAMES))?;
        token.own_and_keep(&[name], &denied(APPROVER_NAMES))?;
    }
    token.delete(&[&format!("clusterrole/{cluster_role}")], Allowed)
}

fn approver_others(token: &mut Token<'_>, ns: &str) -> Result<()> {
    for (name, expected) in [
        ("trustspan-approver", Allowed),
        ("trustspan-agent", denied("the approver writes no Lease but trustspan-approver")),
    ] {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": "trustspan-system", "name": name },
        });
        token.create(&format!("Lease {name}"), &lease, expected)?;
    }
    let pem = CertificateParams::default().serialize_request(&KeyPair::generate()?)?.pem()?;
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "stolen" },
        "spec": { "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], "request": base64(pem) },
    });
    token.create("a CertificateSigningRequest", &request, denied("the approver requests no certificates"))?;
    let on = ["clientidentity/payments", "-n", ns];
    for (what, patch, expected) in [
        (
            "the record of a certificate",
            json!({ "metadata": { "annotations": { "trustspan.dev/client-certificate": "{}" } } }),
            Allowed,
        ),
        (
            "another annotation of a ClientIdentity",
            json!({ "metadata": { "annotations": { "a": "b" } } }),
            denied(APPROVER_IDENTITIES),
        ),
        (
            "the spec of a ClientIdentity",
            json!({ "spec": { "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] } }),
            denied(APPROVER_IDENTITIES),
        ),
        (
            "an owner of a ClientIdentity",
            json!({ "metadata": { "ownerReferences": [missing_owner()] } }),
            denied(APPROVER_OWNERS),
        ),
    ] {
        token.patch(what, &on, &patch, expected)?;
    }
    token.delete(&on, Forbidden)
}

fn certgen(cluster: &Cluster) -> Result<()> {
    const NS: &str = "envoy-gateway-system";
    const OWNERS: &str = "certgen changes no owners and no finalizers";
    const SECRETS: &str = "certgen writes only the Secrets of the control plane, of types Opaque and kubernetes.io/tls";
    const DEPLOYMENT: &str = "certgen changes only the annotation of a Deployment by which it restarts it";
    let limiter = deployment("envoy-ratelimit", "envoy-rate-limit", &[]);
    for object in [&secret(NS, "envoy", "kubernetes.io/tls"), &limiter] {
        cluster.apply(NS, &object.to_string())?;
    }
    let mut token = Token::new(cluster, "envoy-gateway-system:trustspan-certgen");
    wait_for("the policy for certgen", SOON, || {
        let output = token.kubectl(&["create", "-f", "-"], &secret(NS, "none", "Opaque").to_string())?;
        Ok(output.stderr.contains("ValidatingAdmissionPolicy"))
    })?;
    for (name, type_, expected) in [
        ("envoy-gateway", "kubernetes.io/tls", Allowed),
        ("envoy-oidc-hmac", "Opaque", Allowed),
        ("envoy-gateway-certgen-pending", "Opaque", Allowed),
        ("envoy-gateway-certgen-pending", "kubernetes.io/service-account-token", denied(SECRETS)),
        ("envoy-gateway", "bootstrap.kubernetes.io/token", denied(SECRETS)),
        ("other", "Opaque", denied(SECRETS)),
    ] {
        token.create(&format!("Secret {name} of type {type_}"), &secret(NS, name, type_), expected)?;
    }
    token.own_and_keep(&["secret/envoy", "-n", NS], &denied(OWNERS))?;
    let on = ["deployment/envoy-ratelimit", "-n", NS];
    token.own_and_keep(&on, &denied(OWNERS))?;
    for (path, value, expected) in [
        ("/spec/template/metadata/annotations", json!({ "trustspan.dev/certgen-hash": "a" }), Allowed),
        ("/spec/template/metadata/annotations", json!({ "a": "b" }), denied(DEPLOYMENT)),
        ("/spec/template/spec/containers/0/image", json!("evil"), denied(DEPLOYMENT)),
        ("/spec/template/spec/volumes/0/secret/secretName", json!("other"), denied(DEPLOYMENT)),
        ("/spec/template/spec/serviceAccountName", json!("admin"), denied(DEPLOYMENT)),
        ("/spec/replicas", json!(0), denied(DEPLOYMENT)),
    ] {
        token.set(&format!("{path} = {value}"), &on, path, &value, expected)?;
    }
    let (kind, name) = (KINDS[0], "envoy-gateway-topology-injector.envoy-gateway-system");
    with_webhook_configurations(cluster, &[kind], name, || {
        let other = denied("certgen changes only caBundle of a webhook configuration");
        webhook_configuration(&mut token, kind, name, &denied(OWNERS), &other)
    })?;
    token.compare()
}

fn mirror(cluster: &Cluster) -> Result<()> {
    const NS: &str = "istio-ingress";
    const OWNERS: &str = "a mirror gives its report no other owner than the node";
    let report = |owner: &Value| {
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "MirroredFile",
            "metadata": { "namespace": NS, "name": "report", "ownerReferences": [owner] },
            "spec": {
                "node": "one", "path": "/etc/ca.crt",
                "source": { "kind": "Secret", "name": "ingress-gateway", "key": "ca.crt" },
            },
        })
    };
    let owner = |name: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": "1" });
    let mut token = Token::new(cluster, "trustspan-node:trustspan-mirror");
    token.wait_for_policy(&report(&missing_owner()))?;
    token.apply("a report", &report(&owner("one")), Allowed)?;
    token.apply("a report with another owner", &report(&missing_owner()), denied(OWNERS))?;
    token.apply("a report with the owner of another node", &report(&owner("two")), denied(OWNERS))?;
    let mut kept = report(&owner("one"));
    kept["metadata"]["finalizers"] = json!(["example.com/keep"]);
    token.apply("a report with a finalizer", &kept, denied("a mirror changes no finalizers"))?;
    token.as_pod_of_node = Some("one");
    token.apply("a report, by a pod of the node", &report(&owner("one")), Allowed)?;
    token.as_pod_of_node = Some("two");
    let expected = denied("a mirror reports only for the node of its pod");
    token.apply("a report, by a pod of another node", &report(&owner("one")), expected)?;
    token.apply("the source", &secret(NS, "ingress-gateway", "Opaque"), Forbidden)?;
    token.compare()
}
