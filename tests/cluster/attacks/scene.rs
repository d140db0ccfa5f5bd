//! Two tenants with their gateways, all webhooks and policies, the real agent and a real mirror.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::Actor;
use super::objects::{DELETED, Kind, Kind::*, Object, Tenants, content, list};
use crate::policies::Policies;
use crate::rights::install_components;
use crate::stage::{deployment, istio};
use crate::testbed::{
    Authority, Cluster, Kept, Mirror, MirrorRights, Process, Registration, SOON, Scope, Server, Source, User, base64,
    wait_for, wait_for_value,
};
use crate::trust_consumer::consumer;

/// Kinds of which a tenant may create objects.
const CREATED: [Kind; 9] =
    [Secret, ConfigMap, Gateway, GatewaySecret, TrustConsumer, Deployment, ReferenceGrant, Role, RoleBinding];

pub(super) struct Scene<'c> {
    cluster: &'c Cluster,
    pub(super) tenants: Tenants,
    pub(super) runtime: Runtime,
    pub(super) admin: Client,
    /// The namespace controller, whose deletions are not judged.
    pub(super) cleaner: Client,
    pub(super) actors: BTreeMap<Actor, Client>,
    pub(super) evil: BTreeMap<Actor, Authority>,
    kept: Kept<'c>,
    kept_a: Kept<'c>,
    /// The CA of `b`, and the one of `a` and `c`.
    ca: Authority,
    other_ca: Authority,
    signers: PathBuf,
    pub(super) mirrored: PathBuf,
    /// What is restored between two batches.
    base: BTreeMap<Object, Value>,
    // Processes and registrations, in the order in which they end.
    _policies: Policies<'c>,
    _registration: Registration<'c>,
    server: Server<'c>,
    agent: Process,
    mirror: Mirror,
}

/// A client of the API server as another user, by the rights of the administrator.
async fn impersonate(cluster: &Cluster, user: &str, groups: &[&str]) -> Result<Client> {
    let text = fs::read_to_string(cluster.kubeconfig(User::Admin))?;
    let kubeconfig = Kubeconfig::from_yaml(&text)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(groups.iter().map(|&group| group.to_owned()).collect());
    Ok(Client::try_from(config)?)
}

fn config_map(name: &str, bundle: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "ca.crt": bundle } })
}

fn secret(name: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": { "name": name },
        "data": { "ca.crt": base64(bundle) },
    })
}

impl<'c> Scene<'c> {
    pub(super) fn new(cluster: &'c Cluster, a: &'c str, b: &'c str, c: &'c str) -> Result<Self> {
        let tenants = Tenants { a: a.to_owned(), b: b.to_owned(), c: c.to_owned() };
        install_components(cluster, &["rbac.yaml", "policy.yaml"])?;
        let (ca, other_ca) = (Authority::new("ca 0")?, Authority::new("other ca")?);
        let kept_a = Kept::new(cluster, a, "1s")?;
        kept_a.set("workloadLabels", &json!({ "istio": a }))?;
        kept_a.set("trustBundleTargets", &json!([{ "kind": "ConfigMap", "name": "trust" }]))?;
        kept_a.write_root(&other_ca)?;
        let mut kept = Kept::new(cluster, b, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": b }))?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["client"] }))?;
        let targets = json!([{ "kind": "ConfigMap", "name": "trust" }, { "kind": "Secret", "name": "trust" }]);
        kept.set("trustBundleTargets", &targets)?;
        kept.write_root(&ca)?;
        kept.write_client("client", &ca)?;
        kept.agents.more = vec!["--namespace".to_owned(), a.to_owned()];
        for ns in [a, b, c] {
            // A namespace with the label is guarded as a whole.
            cluster.kubectl(["label", "namespace", ns, "trustspan.dev/guard-"]).ok()?;
        }
        prepare(cluster, &tenants, &ca, &other_ca)?;
        kept_a.agents.grant()?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        kept_a.wait_phase("Steady")?;
        let sources =
            |kept: &Kept<'_>| anyhow::Ok(kept.status()?["trustSources"].as_array().cloned().unwrap_or_default());
        wait_for("sources of trust in the status", SOON, || Ok(sources(&kept)?.len() == 3))?;
        // These are read and guarded from now on.
        kept.agents.grant()?;
        wait_for("both sources of trust to accept the client", SOON, || {
            let sources: Vec<Value> = sources(&kept)?;
            Ok(sources.iter().filter(|source| source["acceptsClients"] == true).count() == 2)
        })
        .with_context(|| kept.status().unwrap_or_default()["trustSources"].to_string())?;

        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let namespaces = [a, b, c].map(str::to_owned).to_vec();
        let registration = Registration::as_shipped(cluster, &server, &Scope::Namespaces(namespaces))?;
        let policies = Policies::new(cluster, &[a, b, c])?;
        policies.wait_in_use(c)?;

        let rights = MirrorRights::grant_to(cluster, b, "secret", "managed", "trustspan-mirror")?;
        let signers = cluster.temp_dir("signers")?.join("ca.crt");
        fs::write(&signers, ca.pem())?;
        let directory = cluster.temp_dir("mirrored")?;
        let flags = ["--signers", signers.to_str().context("a path in UTF-8")?];
        let mirror = Mirror::start(cluster, &rights, &format!("secret/{b}/managed"), &directory, &flags)?;
        mirror.wait_answer("/readyz", 200, "ok")?;

        let runtime = Runtime::new()?;
        let mut actors = BTreeMap::new();
        for actor in Actor::ALL {
            let (user, groups) = actor.user();
            let groups: Vec<_> = groups.iter().map(String::as_str).collect();
            actors.insert(actor, runtime.block_on(impersonate(cluster, &user, &groups))?);
        }
        let cleaner = "system:serviceaccount:kube-system:namespace-controller";
        let evil = Actor::ALL.into_iter().map(|actor| Ok((actor, Authority::new(actor.name())?)));
        let mut scene = Self {
            cluster,
            admin: runtime.block_on(impersonate(cluster, "admin", &["system:masters"]))?,
            cleaner: runtime.block_on(impersonate(cluster, cleaner, &["system:masters"]))?,
            tenants,
            runtime,
            actors,
            evil: evil.collect::<Result<_>>()?,
            kept,
            kept_a,
            ca,
            other_ca,
            signers,
            mirrored: directory.join("ca.crt"),
            base: BTreeMap::new(),
            _policies: policies,
            _registration: registration,
            server,
            agent,
            mirror,
        };
        scene.remember(&[a, b, c])?;
        Ok(scene)
    }

    /// The CA that the clients of each namespace need.
    pub(super) fn good(&self) -> BTreeMap<String, String> {
        let Tenants { a, b, c } = &self.tenants;
        let of = |ns: &String, ca: &Authority| (ns.clone(), ca.pem());
        BTreeMap::from([of(a, &self.other_ca), of(b, &self.ca), of(c, &self.other_ca)])
    }

    /// Takes the objects in some namespaces as they are for those that are restored.
    fn remember(&mut self, namespaces: &[&str]) -> Result<()> {
        let b = self.tenants.b.clone();
        let base = self.runtime.block_on(async {
            let mut base = BTreeMap::new();
            for ns in namespaces {
                for kind in CREATED {
                    for stored in list(&self.admin, kind, ns).await? {
                        let name = stored["metadata"]["name"].as_str().unwrap_or_default();
                        base.insert(Object::new(kind, ns, name), stored);
                    }
                }
            }
            for (kind, ns, name) in [
                (ClientIdentity, b.as_str(), "payments"),
                (Secret, "kube-system", "bootstrap-token-kubead"),
                (Secret, "trustspan-system", "trustspan-webhook-tls"),
                (Secret, "envoy-gateway-system", "envoy-gateway"),
                (Secret, "envoy-gateway-system", "envoy"),
                (Secret, "envoy-gateway-system", "envoy-rate-limit"),
                (Secret, "envoy-gateway-system", "envoy-oidc-hmac"),
                (Deployment, "envoy-gateway-system", "envoy-ratelimit"),
                (MutatingWebhookConfiguration, "", "trustspan"),
                (ValidatingWebhookConfiguration, "", "trustspan"),
            ] {
                let object = Object::new(kind, ns, name);
                let stored = object.get(&self.admin).await?.with_context(|| object.to_string())?;
                base.insert(object, stored);
            }
            for (kind, name) in [(ClusterRole, "trustspan-agent"), (ClusterRoleBinding, "trustspan-agent")] {
                let object = Object::new(kind, "", name);
                let stored = object.get(&self.admin).await?.with_context(|| object.to_string())?;
                base.insert(object, stored);
            }
            for (object, stored) in &mut base {
                *stored = content(stored);
                stored["apiVersion"] = json!(object.kind.api_version());
                stored["kind"] = json!(object.kind.name());
            }
            anyhow::Ok(base)
        })?;
        self.base.extend(base);
        Ok(())
    }

    /// Whether the agent writes the object, and restores it.
    fn is_kept(&self, object: &Object) -> bool {
        let is_tenant = [&self.tenants.a, &self.tenants.b].contains(&&object.ns);
        let names = ["managed", "managed-cacert", "trust", "gateway.trustspan-journal"];
        is_tenant && [Secret, ConfigMap].contains(&object.kind) && names.contains(&object.name.as_str())
    }

    /// Restores the objects of some namespaces as they were, and removes what is new.
    pub(super) async fn restore(&self, namespaces: &[&str]) -> Result<()> {
        for ns in namespaces.iter().copied().filter(|ns| !ns.is_empty()) {
            for kind in CREATED.into_iter().chain([MirroredFile]) {
                for stored in list(&self.admin, kind, ns).await? {
                    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
                    let object = Object::new(kind, ns, name);
                    let managers = stored["metadata"]["managedFields"].as_array().into_iter().flatten();
                    let is_foreign = || {
                        managers.into_iter().any(|one| Actor::ALL.iter().any(|actor| one["manager"] == actor.name()))
                    };
                    let is_new = !self.base.contains_key(&object) && name != "kube-root-ca.crt";
                    // Outside of the tenants' namespaces others create objects, too.
                    let is_tenant = self.tenants.all().contains(&ns);
                    if is_new && (is_tenant || is_foreign()) {
                        object.remove(&self.cleaner).await?;
                    }
                }
            }
        }
        for (object, wanted) in self.base.iter().filter(|(object, _)| namespaces.contains(&object.ns.as_str())) {
            if self.is_kept(object) {
                let stored = object.get(&self.admin).await?;
                if stored.is_some_and(|stored| !stored["metadata"]["finalizers"].is_null()) {
                    let free = json!({ "metadata": { "finalizers": null } });
                    let patch = kube::api::Patch::Merge(&free);
                    object.api(&self.cleaner).patch(&object.name, &Default::default(), &patch).await?;
                }
                continue;
            }
            object.put(&self.admin, &self.cleaner, wanted).await?;
        }
        Ok(())
    }

    /// Restores one object as it was.
    pub(super) async fn restore_one(&self, object: &Object) -> Result<()> {
        let wanted = self.base.get(object).with_context(|| object.to_string())?;
        object.put(&self.admin, &self.cleaner, wanted).await
    }

    /// Removes what the approver created for the cluster.
    pub(super) async fn restore_cluster(&self) -> Result<()> {
        for kind in [ClusterRole, ClusterRoleBinding] {
            for stored in list(&self.admin, kind, "").await? {
                let name = stored["metadata"]["name"].as_str().unwrap_or_default();
                if name.starts_with("trustspan.dev:client-identity:") {
                    Object::new(kind, "", name).remove(&self.cleaner).await?;
                }
            }
        }
        self.restore(&["", "kube-system", "trustspan-system", "envoy-gateway-system"]).await
    }

    /// A rotation of `b` to a new CA, by its owner: each step takes less than a minute.
    pub(super) fn rotate(&mut self, round: usize) -> Result<()> {
        let what = |step: &str| format!("{step}\n{}", self.kept.status().unwrap_or_default()["waits"]);
        self.kept.wait_bundle(&[&self.ca]).with_context(|| what("the bundle as before"))?;
        self.kept.wait_phase("Steady").with_context(|| what("Steady before"))?;
        let new = Authority::new(&format!("ca {round}"))?;
        fs::write(&self.signers, new.pem() + &self.ca.pem())?;
        self.write_partners(&(new.pem() + &self.ca.pem()))?;
        self.kept.write_root(&new)?;
        self.kept.wait_bundle(&[&new, &self.ca]).with_context(|| what("the new CA"))?;
        wait_for_value("the client to be renewed", SOON, || {
            self.kept.write_client_with("client", &new, &[&new, &self.ca]).map(Some)
        })
        .with_context(|| what("the renewed client"))?;
        self.kept.wait_bundle(&[&new]).with_context(|| what("the end of the rotation"))?;
        self.kept.wait_phase("Steady").with_context(|| what("Steady afterwards"))?;
        wait_for("the file with the new CA", SOON, || {
            Ok(fs::read_to_string(&self.mirrored)? == new.pem().replace("\r\n", "\n"))
        })
        .with_context(|| self.mirror.log())?;
        self.ca = new;
        self.write_partners(&self.ca.pem())?;
        let b = self.tenants.b.clone();
        self.remember(&[&b])
    }

    /// Writes the two other sources of trust of `b`.
    fn write_partners(&self, bundle: &str) -> Result<()> {
        for object in [secret("partners-cacert", bundle), config_map("partners", bundle)] {
            self.cluster.kubectl(["replace", "-f", "-"]).ns(&self.tenants.b).stdin(object.to_string()).ok()?;
        }
        Ok(())
    }

    /// The processes under test still run.
    pub(super) fn ensure_running(&mut self) -> Result<()> {
        ensure!(self.server.status_of("/readyz")? == 200, "the webhook is not ready");
        ensure!(self.agent.exited()?.is_none(), "the agent has ended: {}", self.agent.log_tail(20));
        self.kept_a.status().map(drop)
    }
}

/// Everything in the namespaces that trustspan does not write itself.
fn prepare(cluster: &Cluster, tenants: &Tenants, ca: &Authority, other_ca: &Authority) -> Result<()> {
    let Tenants { a, b, c } = tenants;
    for (ns, editor) in [(a, Actor::EditorOfA), (b, Actor::EditorOfB), (c, Actor::EditorOfB)] {
        let user = format!("--user={}", editor.user().0);
        cluster.kubectl(["create", "rolebinding", "editor", "--clusterrole=edit", &user]).ns(ns).ok()?;
    }
    let approver = "--serviceaccount=trustspan-system:trustspan-approver";
    let bound = ["create", "rolebinding", "approver", "--clusterrole=trustspan-approver-namespace", approver];
    cluster.kubectl(bound).ns(b).ok()?;

    let with_cas = |name: &str, cas: &str| {
        let mut gateway = istio(name, "managed", b);
        gateway["spec"]["servers"][0]["tls"]["caCertCredentialName"] = json!(cas);
        gateway
    };
    let mut app = deployment("app", "managed", &[]);
    app["spec"]["replicas"] = json!(0);
    let identity = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "ClientIdentity", "metadata": { "name": "payments" },
        "spec": { "rules": [], "server": { "endpoint": "https://api.example.com" } },
    });
    let bundle = ca.pem();
    for object in [
        secret("partners-cacert", &bundle),
        config_map("partners", &bundle),
        config_map("settings", &bundle),
        istio("shop", "managed", b),
        with_cas("partners", "partners-cacert"),
        with_cas("partners-map", &format!("configmap://{b}/partners")),
        app,
        consumer(&[json!({ "kind": "ConfigMap", "name": "settings", "keys": ["ca.crt"] })]),
        identity,
    ] {
        cluster.kubectl(["create", "-f", "-"]).ns(b).stdin(object.to_string()).ok()?;
    }
    for (ns, object) in outside() {
        cluster.apply(ns, &object.to_string())?;
    }
    static_status(cluster, c, other_ca)
}

/// The objects outside of the tenants' namespaces, each with its namespace.
fn outside() -> Vec<(&'static str, Value)> {
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": { "name": "bootstrap-token-kubead" },
        "data": { "token-id": base64("kubead"), "token-secret": base64("0123456789abcdef") },
    });
    let mut limiter = deployment("envoy-ratelimit", "envoy-rate-limit", &[]);
    limiter["spec"]["replicas"] = json!(0);
    let envoys = ["envoy-gateway", "envoy", "envoy-rate-limit", "envoy-oidc-hmac"].map(|name| secret(name, ""));
    let envoys = envoys.into_iter().chain([limiter]).map(|object| ("envoy-gateway-system", object));
    let serving = ("trustspan-system", secret("trustspan-webhook-tls", ""));
    [("kube-system", token), serving].into_iter().chain(envoys).collect()
}

/// Other tests begin without them.
pub(super) fn remove_outside(cluster: &Cluster) -> Result<()> {
    for (ns, object) in outside() {
        cluster.kubectl(["delete", "--ignore-not-found", "-f", "-"]).ns(ns).stdin(object.to_string()).ok()?;
    }
    Ok(())
}

/// A GatewaySecret that no agent reconciles. Its gateways took CAs from a Secret and a ConfigMap that were deleted.
fn static_status(cluster: &Cluster, ns: &str, ca: &Authority) -> Result<()> {
    let mut object = crate::stage::gateway_secret(ns);
    object["metadata"]["name"] = json!("static");
    object["spec"]["secretName"] = json!("gateway");
    cluster.apply(ns, &object.to_string())?;
    let mut managed = secret("gateway", &ca.pem());
    managed["metadata"]["annotations"] = json!({ "trustspan.dev/gateway-secret": "static" });
    managed["metadata"]["labels"] = json!({ "trustspan.dev/managed": "true" });
    cluster.apply(ns, &managed.to_string())?;
    let mut status = crate::stage::status(ns, &[]);
    status["secretName"] = json!("gateway");
    status["bundle"] = json!([{ "subject": "CN=ca", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
        "notAfter": "2099-01-01T00:00:00Z", "pem": ca.pem() }]);
    status["leaves"] = json!([{ "kind": "Client", "namespace": ns, "name": "shop", "subject": "CN=shop",
        "notAfter": "2099-01-01T00:00:00Z", "pem": ca.issue_client("shop")?.0 }]);
    let source = |kind: &'static str| {
        DELETED.map(|name| {
            json!({ "kind": kind, "namespace": ns, "name": name, "usedBy": "Gateway apps/public spec.servers[0]",
                "acceptsClients": true })
        })
    };
    status["trustSources"] = json!([source("Secret"), source("ConfigMap")].concat());
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", "gatewaysecret", "static", "--subresource=status", "--type=merge", "--patch", &patch];
    cluster.kubectl(args).ns(ns).ok()?;
    crate::testbed::Agents::new(cluster, ns)?.grant()
}
