//! What the holder of a ServiceAccount's token can write, with the rights and the policies of the manifests. RBAC allows names and verbs; the
//! policies limit types, owners, finalizers and fields. `rights.rs` asks about RBAC alone.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{MANAGED, SOURCE, deployment, gateway_secret, trustspan};
use crate::testbed::{Cluster, Output, SOON, wait_for};

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
    /// What was tried, with the answer that was expected and the one that was seen.
    tried: BTreeMap<String, (Answer, Answer)>,
}

impl<'c> Token<'c> {
    /// The token of a ServiceAccount, given as `NAMESPACE:NAME`.
    fn new(cluster: &'c Cluster, account: &'static str) -> Self {
        Self { cluster, account, tried: BTreeMap::new() }
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Result<Output> {
        let user = format!("--as=system:serviceaccount:{}", self.account);
        let namespace = self.account.split(':').next().unwrap_or_default();
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"]
            .map(|group| format!("--as-group={group}"));
        let kubectl = self.cluster.kubectl(args).arg("--dry-run=server").arg(user);
        groups.into_iter().fold(kubectl, |kubectl, group| kubectl.arg(group)).stdin(stdin).run()
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

fn missing_owner() -> Value {
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

/// Applies what the default installation of a component has for its ServiceAccount.
fn install(cluster: &Cluster, component: &str) -> Result<()> {
    for file in ["rbac.yaml", "policy.yaml"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(component).join(file);
        cluster.kubectl(["apply", "--server-side", "--force-conflicts", "-f"]).arg(file).ok()?;
    }
    Ok(())
}

fn a_stolen_token_writes_only_what_its_account_writes(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        install(cluster, "base")?;
        agent(cluster, ns)
    })
}

/// Webhook configurations with the names of the base that send nothing to a webhook.
fn with_webhook_configurations(cluster: &Cluster, test: impl FnOnce() -> Result<()>) -> Result<()> {
    const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
    for kind in KINDS {
        let webhook = |name: &str| {
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "none" } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"] }],
                "clientConfig": { "service": { "name": "trustspan-webhook", "namespace": "trustspan-system" } },
            })
        };
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": "trustspan" },
            "webhooks": [webhook("one.trustspan.dev"), webhook("two.trustspan.dev")],
        });
        cluster.kubectl(["apply", "-f", "-"]).stdin(configuration.to_string()).ok()?;
    }
    let outcome = test();
    for kind in KINDS {
        cluster.kubectl(["delete", kind, "trustspan"]).ok()?;
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
    with_webhook_configurations(cluster, || {
        let mut token = Token::new(cluster, "trustspan-system:trustspan-agent");
        token.wait_for_policy(&secret(ns, &format!("{MANAGED}-cacert"), "kubernetes.io/service-account-token"))?;
        agent_secrets(&mut token, ns)?;
        agent_webhook_configurations(&mut token)?;
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

fn agent_webhook_configurations(token: &mut Token<'_>) -> Result<()> {
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let on = [&format!("{kind}/trustspan") as &str];
        token.own_and_keep(&on, &denied(OWNERS))?;
        let webhooks = token.cluster.get(kind, "", "trustspan")?["webhooks"].clone();
        let mut order = webhooks.clone();
        order.as_array_mut().context("webhooks")?.reverse();
        for (path, value, expected) in [
            ("/webhooks/0/clientConfig/caBundle", json!("eA=="), Allowed),
            ("/webhooks", order, denied(CA_BUNDLE)),
            ("/webhooks", json!([webhooks[0]]), denied(CA_BUNDLE)),
            ("/webhooks/0/clientConfig/service/name", json!("other"), denied(CA_BUNDLE)),
            ("/webhooks/0/rules/0/resources/0", json!("pods"), denied(CA_BUNDLE)),
            ("/webhooks/0/objectSelector", json!({ "matchLabels": { "a": "b" } }), denied(CA_BUNDLE)),
            ("/webhooks/0/matchConditions", json!([{ "name": "none", "expression": "false" }]), denied(CA_BUNDLE)),
            ("/webhooks/0/timeoutSeconds", json!(1), denied(CA_BUNDLE)),
            ("/metadata/labels", json!({ "a": "b" }), denied(CA_BUNDLE)),
        ] {
            token.set(&format!("{kind}{path} = {value}"), &on, path, &value, expected)?;
        }
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
