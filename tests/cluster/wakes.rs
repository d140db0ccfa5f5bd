//! Which changes make the agent reconcile a GatewaySecret, measured by its requests to the API server.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::agent::kept;
use crate::testbed::{Cluster, Request, SOON, User, wait_for};

cases![a_change_of_one_gateway_secret_wakes_no_other];

/// The number of changes. Each could cause a reconcile of the other GatewaySecret, whose new status could cause a
/// second one.
const CHANGES: usize = 10;

fn a_change_of_one_gateway_secret_wakes_no_other(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let other = json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": "other" },
            "spec": { "sourceSecretName": "other-root" },
        });
        cluster.apply(kept.ns, &other.to_string())?;
        kept.agents.grant()?;
        // The resync interval is longer than this test.
        let _agent = kept.agents.start_with("a", &cluster.kubeconfig(User::Agent), "1h")?;
        wait_for("a reconcile of the other, with its workloads", SOON, || {
            let status = cluster.get("gatewaysecret", kept.ns, "other")?["status"].take();
            Ok(status["conditions"].to_string().contains("WorkloadsCurrent"))
        })?;

        let reconciles = || -> Result<usize> {
            let is_reconcile = |request: &&Request| {
                let asked = [&*request.namespace, &*request.verb, &*request.resource, &*request.name];
                asked == [kept.ns, "get", "gatewaysecrets", "other"]
            };
            Ok(cluster.requests(User::Agent)?.iter().filter(is_reconcile).count())
        };
        let before = reconciles()?;
        for change in 0..CHANGES {
            kept.set("paused", &json!(change % 2 == 0))?;
            wait_for("a reconcile of the changed one", SOON, || {
                let changed = cluster.get("gatewaysecret", kept.ns, "gateway")?;
                Ok(changed["status"]["observedGeneration"] == changed["metadata"]["generation"])
            })?;
        }
        // The last status write may still cause a reconcile.
        let made = reconciles()? - before;
        ensure!(made < CHANGES / 2, "{CHANGES} changes of one made for {made} reconciles of the other");

        let patch = json!({ "spec": { "paused": true } }).to_string();
        cluster.kubectl(["patch", "gatewaysecret", "other", "--type=merge", "--patch", &patch]).ns(kept.ns).ok()?;
        wait_for("a reconcile of the other when it is changed itself", SOON, || Ok(reconciles()? > before + made))
    })
}
