//! One GatewaySecret, `gateway`, that the agent reconciles: source Secret `root`, managed Secret `managed`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    agent::Agents,
    cluster::{Cluster, SOON},
    pki::Authority,
    process::Process,
    server::{Server, Source},
    users::User,
    wait::wait_for,
    webhooks::{Patience, Registration, Scope},
};

/// The RotationPolicy that GatewaySecrets of a namespace use by default.
pub(crate) fn rotation_policy(spec: &Value) -> Value {
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "RotationPolicy", "metadata": { "name": "default" }, "spec": spec,
    })
}

/// The keys of a client's Secret: its CAs, its certificate and its private key.
const TLS_KEYS: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// A namespace with a GatewaySecret that an agent reconciles.
pub(crate) struct Kept<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) ns: &'c str,
    pub(crate) agents: Agents<'c>,
}

impl<'c> Kept<'c> {
    /// Creates the GatewaySecret, and a RotationPolicy that uses `delay` for every propagation delay.
    pub(crate) fn new(cluster: &'c Cluster, ns: &'c str, delay: &str) -> Result<Self> {
        let kept = Self { cluster, ns, agents: Agents::new(cluster, ns)? };
        let delays = json!({ "gateways": delay, "clients": delay, "admission": delay });
        cluster.apply(ns, &rotation_policy(&json!({ "propagationDelays": delays })).to_string())?;
        let spec = json!({ "sourceSecretName": "root", "secretName": "managed", "clients": { "allDeclared": true } });
        let object = json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": "gateway" }, "spec": spec,
        });
        cluster.apply(ns, &object.to_string())?;
        Ok(kept)
    }

    /// The source Secret as an issuer writes it: a leaf and its CA.
    pub(crate) fn root(authority: &Authority) -> Result<Value> {
        let (certificate, key) = authority.issue(&["shop.example.com"])?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "root" },
            "stringData": { "ca.crt": authority.pem(), "tls.crt": certificate, "tls.key": key },
        }))
    }

    /// Writes the source Secret, signed by this CA.
    pub(crate) fn write_root(&self, authority: &Authority) -> Result<()> {
        self.cluster.apply(self.ns, &Self::root(authority)?.to_string()).map(drop)
    }

    /// Writes a client's Secret, as for a client that is renewed manually.
    pub(crate) fn write_client(&self, name: &str, authority: &Authority) -> Result<()> {
        self.write_client_with(name, authority, &[authority])
    }

    /// The same, for a client that trusts other CAs than its own issuer.
    pub(crate) fn write_client_with(&self, name: &str, authority: &Authority, trust: &[&Authority]) -> Result<()> {
        self.write_client_under(&[TLS_KEYS], name, authority, trust)
    }

    /// The same with the keys of Istio's generic Secrets, which take precedence: admission adds CAs to `ca.crt` only.
    pub(crate) fn write_generic_client(&self, name: &str, authority: &Authority, trust: &[&Authority]) -> Result<()> {
        self.write_client_under(&[TLS_KEYS, ["cacert", "cert", "key"]], name, authority, trust)
    }

    fn write_client_under(
        &self,
        keys: &[[&str; 3]],
        name: &str,
        authority: &Authority,
        trust: &[&Authority],
    ) -> Result<()> {
        let (certificate, key) = authority.issue_client(name)?;
        let bundle: String = trust.iter().map(|authority| authority.pem()).collect();
        let values = [bundle, certificate, key];
        let data: BTreeMap<_, _> = keys.iter().flat_map(|keys| keys.iter().zip(&values)).collect();
        let client = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": name }, "stringData": data,
        });
        self.cluster.apply(self.ns, &client.to_string()).map(drop)
    }

    /// Sets a field of the GatewaySecret's spec.
    pub(crate) fn set(&self, field: &str, value: &Value) -> Result<()> {
        self.patch("gatewaysecret/gateway", field, value)
    }

    /// Sets a field of the policy's spec.
    pub(crate) fn set_policy(&self, field: &str, value: &Value) -> Result<()> {
        self.patch("rotationpolicy/default", field, value)
    }

    /// Sets `propagationDelays.gateways` of the policy.
    pub(crate) fn set_gateway_delay(&self, delay: &str) -> Result<()> {
        self.set_policy("propagationDelays", &json!({ "gateways": delay }))
    }

    /// Sets `propagationDelays.clients` of the policy.
    pub(crate) fn set_client_delay(&self, delay: &str) -> Result<()> {
        self.set_policy("propagationDelays", &json!({ "clients": delay }))
    }

    fn patch(&self, object: &str, field: &str, value: &Value) -> Result<()> {
        let patch = json!({ "spec": { field: value } }).to_string();
        let args = ["patch", object, "--type=merge", "--patch", &patch];
        self.cluster.kubectl(args).ns(self.ns).ok().map(drop)
    }

    /// Starts a webhook server, and registers both webhooks for this namespace.
    pub(crate) fn judged(&self) -> Result<(Server<'c>, Registration<'c>)> {
        let server = Server::start_with(self.cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration =
            Registration::new(self.cluster, &server, &Scope::Namespaces(vec![self.ns.to_owned()]), Patience::Longest)?;
        Ok((server, registration))
    }

    /// Waits until the bundle of the managed Secret is exactly these CAs, in this order.
    pub(crate) fn wait_bundle(&self, authorities: &[&Authority]) -> Result<()> {
        let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
        wait_for(&format!("a managed Secret with CAs: {}", authorities.len()), SOON, || {
            Ok(self.bundle()?.is_some_and(|bundle| bundle == wanted))
        })
    }

    /// Begins a rotation, and waits until the managed Secret has both CAs. The rotation stays in that state until the
    /// test shortens `propagationDelays.gateways` again; otherwise the state could have passed before a test reads it.
    pub(crate) fn rotate_and_hold(&self, new: &Authority, old: &Authority) -> Result<()> {
        self.set_gateway_delay("1h")?;
        self.write_root(new)?;
        self.wait_bundle(&[new, old])
    }

    /// The bundle of the managed Secret in PEM; `None` while there is no managed Secret.
    pub(crate) fn bundle(&self) -> Result<Option<String>> {
        let path = "-o=jsonpath={.data.ca\\.crt}";
        let out = self.cluster.kubectl(["get", "secret", "managed", "--ignore-not-found", path]).ns(self.ns).ok()?;
        let text = String::from_utf8(STANDARD.decode(out.trim())?)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// The `status` of the GatewaySecret.
    pub(crate) fn status(&self) -> Result<Value> {
        Ok(self.cluster.get("gatewaysecret", self.ns, "gateway")?["status"].take())
    }

    /// Waits until the rotation is in a phase.
    pub(crate) fn wait_phase(&self, phase: &str) -> Result<()> {
        let waited = wait_for(&format!("phase {phase}"), SOON, || Ok(self.status()?["phase"] == phase));
        waited
            .with_context(|| self.status().map_or_else(|error| error.to_string(), |status| status["waits"].to_string()))
    }

    /// Waits until a condition has this reason, and a message with these words.
    pub(crate) fn wait_condition(&self, type_: &str, reason: &str, words: &[&str]) -> Result<()> {
        wait_for(&format!("condition {type_} to say {reason}: {words:?}"), SOON, || {
            let status = self.status()?;
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let said = conditions.find(|condition| condition["type"] == type_).context("no such condition")?;
            let message = said["message"].as_str().unwrap_or_default();
            let is_said = said["reason"] == reason && words.iter().all(|word| message.contains(word));
            ensure!(is_said, "saw {said}");
            Ok(true)
        })
    }

    /// The Events of the GatewaySecret with a reason.
    pub(crate) fn events(&self, reason: &str) -> Result<Vec<Value>> {
        let mut events = self.cluster.list("events.v1.events.k8s.io", self.ns, "")?;
        events.retain(|event| event["regarding"]["kind"] == "GatewaySecret" && event["reason"] == reason);
        Ok(events)
    }

    /// Waits for an Event whose note contains these words.
    pub(crate) fn wait_event(&self, type_: &str, reason: &str, words: &str) -> Result<()> {
        wait_for(&format!("Event {reason} to say {words:?}"), SOON, || {
            let says = |event: &Value| event["note"].as_str().is_some_and(|note| note.contains(words));
            Ok(self.events(reason)?.iter().any(|event| event["type"] == type_ && says(event)))
        })
    }

    /// Waits for a line of the agent's metrics on this GatewaySecret: `trustspan_METRIC{namespace="…",name="gateway"LABELS} VALUE`.
    pub(crate) fn wait_metric(
        &self,
        agent: &Process,
        metric: &str,
        labels: &str,
        is_wanted: impl Fn(f64) -> bool,
    ) -> Result<()> {
        let series = format!("trustspan_{metric}{{namespace=\"{}\",name=\"gateway\"{labels}}} ", self.ns);
        wait_for(&format!("another value of {series}"), SOON, || {
            let text = Agents::metrics(agent)?;
            let value = text.lines().find_map(|line| line.strip_prefix(&series)).context("no such series")?;
            Ok(is_wanted(value.parse()?))
        })
    }
}
