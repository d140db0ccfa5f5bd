//! Registers the shipped webhook configurations, with the URL of a [`Server`] on loopback.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, shipped},
    server::Server,
    users::base64,
    wait::wait_for,
};

/// The name of the webhook that [`probe`] registers, to distinguish its rejection from others.
const PROBE: &str = "bed-probe";

/// The largest `timeoutSeconds` that the API server accepts.
const LONGEST: u32 = 30;

/// The requests that the API server sends to the webhooks.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// Requests in these namespaces, so that other tests are not affected.
    Namespaces(Vec<String>),
    /// All requests that the shipped selectors match. A test that uses this runs alone.
    Everything,
}

/// The timeout of the webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The shipped timeout of five seconds, after which most requests are accepted without a verdict.
    Shipped,
    /// The longest timeout, so that a slow machine does not change a verdict.
    Longest,
}

/// Registered webhook configurations. Dropping the value deletes them.
pub(crate) struct Registration<'c> {
    cluster: &'c Cluster,
    /// Resource and name.
    configurations: Vec<(String, String)>,
    /// The namespace in which [`probe`] requests are sent.
    namespace: String,
}

impl<'c> Registration<'c> {
    /// Registers `manifests/base/webhooks.yaml`, and waits until the API server uses it.
    pub(crate) fn new(cluster: &'c Cluster, server: &Server<'_>, scope: &Scope, patience: Patience) -> Result<Self> {
        Self::of(&shipped("webhooks.yaml")?, cluster, server, scope, patience)
    }

    /// The same for other configurations than those of the base.
    pub(crate) fn of(
        yaml: &str,
        cluster: &'c Cluster,
        server: &Server<'_>,
        scope: &Scope,
        patience: Patience,
    ) -> Result<Self> {
        Self::named(yaml, &format!("-{}", cluster.unique()), cluster, server, scope, patience)
    }

    /// The base with its own names, which RBAC knows. A test that uses this runs alone.
    pub(crate) fn as_shipped(cluster: &'c Cluster, server: &Server<'_>, scope: &Scope) -> Result<Self> {
        Self::named(&shipped("webhooks.yaml")?, "", cluster, server, scope, Patience::Longest)
    }

    fn named(
        yaml: &str,
        suffix: &str,
        cluster: &'c Cluster,
        server: &Server<'_>,
        scope: &Scope,
        patience: Patience,
    ) -> Result<Self> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
        let namespace = match scope {
            Scope::Namespaces(names) => names.first().context("a scope of no namespace")?.clone(),
            Scope::Everything => "default".to_owned(),
        };
        let mut registration = Self { cluster, configurations: Vec::new(), namespace };
        let mut manifests = String::new();
        for mut configuration in documents {
            let kind = configuration["kind"].as_str().context("a document without kind")?;
            let resource = match kind {
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => kind.to_lowercase(),
                _ => continue,
            };
            let name = configuration["metadata"]["name"].as_str().unwrap_or(PROBE).to_owned() + suffix;
            configuration["metadata"]["name"] = name.as_str().into();
            let webhooks = configuration["webhooks"].as_array_mut().context("a configuration without webhooks")?;
            for webhook in webhooks.iter_mut() {
                point(webhook, server, scope)?;
                if patience == Patience::Longest {
                    webhook["timeoutSeconds"] = json!(LONGEST);
                }
            }
            webhooks.push(probe(&resource, &name));
            manifests += &format!("---\n{configuration}\n");
            registration.configurations.push((resource, name));
        }
        ensure!(!registration.configurations.is_empty(), "webhooks.yaml: no webhook configuration");
        cluster.kubectl(["create", "-f", "-"]).stdin(manifests).ok()?;
        registration.wait_heeded(true)?;
        Ok(registration)
    }

    /// Waits until the API server uses all configurations as they are now. It learns of changes of a kind in their order, so it registers a
    /// [`probe`] of each kind after them.
    pub(crate) fn wait_current(cluster: &'c Cluster, namespace: &str) -> Result<()> {
        let mut probes = Self { cluster, configurations: Vec::new(), namespace: namespace.to_owned() };
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            let (resource, name) = (kind.to_lowercase(), format!("{PROBE}-{}", cluster.unique()));
            let configuration = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": name }, "webhooks": [probe(&resource, &name)],
            });
            probes.configurations.push((resource, name));
            cluster.kubectl(["create", "-f", "-"]).stdin(configuration.to_string()).ok()?;
        }
        probes.wait_heeded(true)
    }

    /// Deletes the configurations, and waits until the API server no longer uses them.
    pub(crate) fn unregister(mut self) -> Result<()> {
        self.delete()?;
        self.wait_heeded(false)?;
        self.configurations.clear();
        Ok(())
    }

    /// Resource and name of each configuration, for a test that changes one.
    pub(crate) fn configurations(&self) -> &[(String, String)] {
        &self.configurations
    }

    fn delete(&self) -> Result<()> {
        for (resource, name) in &self.configurations {
            self.cluster.kubectl(["delete", resource, name, "--ignore-not-found"]).ok()?;
        }
        Ok(())
    }

    /// The API server learns of configurations through a watch, some time after the write. Each configuration therefore
    /// ends with a webhook at an address without a server, which rejects its requests. When it rejects one, the
    /// webhooks before it are in use too.
    fn wait_heeded(&self, heeded: bool) -> Result<()> {
        for (resource, name) in &self.configurations {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": PROBE, "labels": { PROBE: format!("{resource}.{name}") } },
            });
            let what = format!("the API server to {} {name}", if heeded { "heed" } else { "forget" });
            wait_for(&what, Duration::from_secs(30), || {
                let create = self.cluster.kubectl(["create", "--dry-run=server", "-f", "-"]);
                let output = create.ns(&self.namespace).stdin(object.to_string()).run()?;
                let refused = !output.success() && output.stderr.contains(PROBE);
                ensure!(refused || output.success(), "{}", output.stderr);
                Ok(refused == heeded)
            })?;
        }
        Ok(())
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            eprintln!("unregistering webhooks: {error:#}");
        }
    }
}

/// Replaces the Service by the server's URL, and limits the namespaces.
fn point(webhook: &mut Value, server: &Server<'_>, scope: &Scope) -> Result<()> {
    let path = webhook["clientConfig"]["service"]["path"].as_str().context("a webhook without service.path")?;
    webhook["clientConfig"] = json!({ "url": server.url(path), "caBundle": base64(server.ca_bundle()) });
    if let Scope::Namespaces(names) = scope {
        // Expressions are joined by AND, so what the shipped selector excludes stays excluded.
        let selector = &mut webhook["namespaceSelector"];
        if selector.is_null() {
            *selector = json!({});
        }
        let only = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": names });
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(only),
            None => selector["matchExpressions"] = json!([only]),
        }
    }
    Ok(())
}

/// A webhook that rejects every ConfigMap with its label, because no server listens at its address.
fn probe(resource: &str, configuration: &str) -> Value {
    json!({
        "name": format!("{PROBE}.trustspan.dev"),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 1,
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
        "objectSelector": { "matchLabels": { PROBE: format!("{resource}.{configuration}") } },
        // Port 1 (tcpmux) is privileged and unused, so the connection is refused at once.
        "clientConfig": { "url": format!("https://127.0.0.1:1/{PROBE}") },
    })
}
