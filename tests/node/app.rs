//! Deployment `app`, whose pod copies its CAs when it starts, as a server does that loads them once.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    testbed::{Cluster, NODE, SOON, wait_for, wait_for_value},
};

/// The file that the kubelet updates.
const MOUNTED: &str = "/ca/ca.crt";
/// What the pod loaded when it started.
const LOADED: &str = "/tmp/loaded";

/// Deployment `app` with a volume of a Secret.
pub(crate) struct App<'b> {
    bed: &'b Bed,
    ns: &'b str,
}

impl<'b> App<'b> {
    /// Creates it, and waits until its pod is ready.
    pub(crate) fn create(bed: &'b Bed, ns: &'b str, secret: &str) -> Result<Self> {
        let labels = json!({ "app": "app" });
        let load = format!("cp {MOUNTED} {LOADED}; exec sleep 2147483647");
        let container = json!({
            "name": "app", "image": "bed.local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", load],
            "readinessProbe": { "exec": { "command": ["test", "-s", LOADED] }, "periodSeconds": 1 },
            "volumeMounts": [{ "name": "ca", "mountPath": "/ca" }],
        });
        let pod = json!({
            // There is no scheduler, and no network besides the machine's.
            "nodeName": NODE, "hostNetwork": true,
            "automountServiceAccountToken": false, "enableServiceLinks": false, "terminationGracePeriodSeconds": 1,
            "containers": [container], "volumes": [{ "name": "ca", "secret": { "secretName": secret } }],
        });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "app" },
            "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } },
        });
        bed.cluster.apply(ns, &deployment.to_string())?;
        let app = Self { bed, ns };
        app.wait_complete()?;
        Ok(app)
    }

    fn cluster(&self) -> &Cluster {
        &self.bed.cluster
    }

    /// Waits until the kubelet has started the pod of the newest template, and the rollout is complete.
    pub(crate) fn wait_complete(&self) -> Result<()> {
        let args = ["rollout", "status", "deployment/app", "--timeout=100s"];
        self.cluster().kubectl(args).ns(self.ns).ok().map(drop)
    }

    pub(crate) fn pause(&self) -> Result<()> {
        self.cluster().kubectl(["rollout", "pause", "deployment/app"]).ns(self.ns).ok().map(drop)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        self.cluster().kubectl(["rollout", "resume", "deployment/app"]).ns(self.ns).ok().map(drop)
    }

    /// `spec.template` of the Deployment.
    pub(crate) fn template(&self) -> Result<Value> {
        Ok(self.cluster().get("deployment", self.ns, "app")?["spec"]["template"].take())
    }

    /// The names of its ReplicaSets: one for each rollout.
    pub(crate) fn replica_sets(&self) -> Result<Vec<Value>> {
        let sets = self.cluster().list("replicasets", self.ns, "app=app")?;
        Ok(sets.into_iter().map(|mut set| set["metadata"]["name"].take()).collect())
    }

    /// Waits for this many rollouts.
    pub(crate) fn wait_rollouts(&self, count: usize) -> Result<()> {
        wait_for(&format!("{count} ReplicaSets"), SOON, || Ok(self.replica_sets()?.len() >= count))?;
        self.wait_complete()
    }

    /// Its only pod that is not about to end.
    pub(crate) fn pod(&self) -> Result<Value> {
        let mut pods = self.cluster().list("pods", self.ns, "app=app")?;
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        ensure!(pods.len() == 1, "expected one pod, saw {}", pods.len());
        pods.pop().context("no pod")
    }

    /// The content of the mounted file, as the pod sees it.
    pub(crate) fn mounted(&self) -> Result<String> {
        self.bed.node.exec(&self.pod()?, &["cat", MOUNTED])
    }

    /// What the pod loaded when it started.
    pub(crate) fn loaded(&self) -> Result<String> {
        self.bed.node.exec(&self.pod()?, &["cat", LOADED])
    }

    /// Waits until the kubelet has updated the mounted file.
    pub(crate) fn wait_mounted(&self, content: &str) -> Result<()> {
        wait_for("the new content in the pod's file", SOON, || Ok(self.mounted()? == content))
    }

    /// Checks that the pod has loaded this content, in this many rollouts.
    pub(crate) fn expect(&self, rollouts: usize, content: &str) -> Result<()> {
        let sets = self.replica_sets()?;
        ensure!(sets.len() == rollouts, "expected {rollouts} ReplicaSets, saw {sets:?}");
        ensure!(self.loaded()? == content, "the pod has loaded another content");
        ensure!(self.mounted()? == content, "the pod's file has another content");
        Ok(())
    }
}

/// TrustConsumer `limits`: Deployment `app` loads `ca.crt` of a Secret once.
pub(crate) fn consumer(secret: &str) -> Value {
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "TrustConsumer", "metadata": { "name": "limits" },
        "spec": {
            "workloads": [{ "kind": "Deployment", "name": "app" }],
            "loads": [{ "kind": "Secret", "name": secret, "keys": ["ca.crt"] }],
        },
    })
}

/// Waits until a condition of the TrustConsumer gives a reason, and returns it.
pub(crate) fn wait_condition(cluster: &Cluster, ns: &str, type_: &str, reason: &str) -> Result<Value> {
    wait_for_value(&format!("condition {type_} to say {reason}"), SOON, || {
        let stored = cluster.get("trustconsumer", ns, "limits")?;
        let said = stored["status"]["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == type_);
        let said = said.context("no such condition")?;
        ensure!(said["reason"] == reason, "saw {said}");
        Ok(Some(said.clone()))
    })
}
