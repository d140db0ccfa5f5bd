//! As many and as long Gateways as another namespace can hold: they affect only that namespace.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::mirrored_client_ca::{signs_with, write_ca};
use crate::stage::{expect, istio};
use crate::testbed::{
    Authority, Cluster, Kept, Patience, Process, Registration, SOON, Scope, Server, Source, User, wait_for,
};

cases![
    gateways_of_another_namespace_neither_stop_a_rotation_nor_fill_the_status,
    a_gateway_of_another_namespace_with_its_own_cas_stops_a_rotation_only_by_a_grant,
    a_source_of_another_owner_is_protected_from_its_owner_only_by_a_grant,
    a_status_that_is_refused_for_its_size_is_reduced_and_stops_no_step,
];

/// Number of Gateways; `TRUSTSPAN_HOSTILE_GATEWAYS` sets another, such as 1000.
const GATEWAYS: usize = 150;
const HOSTS: usize = 480;
/// Gateways in one request, of a few MiB together.
const AT_ONCE: usize = 25;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(180);

fn gateways_of_another_namespace_neither_stop_a_rotation_nor_fill_the_status(cluster: &Cluster) -> Result<()> {
    let many = std::env::var("TRUSTSPAN_HOSTILE_GATEWAYS").map_or(Ok(GATEWAYS), |many| many.parse())?;
    let test = |ns: &str, hostile: &str| {
        let kept = &Kept::new(cluster, ns, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": ns }))?;
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.write_root(&old)?;
        cluster.apply(ns, &istio("shop", "managed", ns).to_string())?;
        for from in (0..many).step_by(AT_ONCE) {
            create(cluster, hostile, ns, from..many.min(from + AT_ONCE))?;
        }
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        wait_for("all Gateways to be counted", PATIENCE, || {
            let status = kept.status()?;
            Ok(status["gatewayCount"] == many + 1 && status["hostCount"] == many * HOSTS + 1)
        })?;
        let before = fits(kept, ns)?;

        // The same Gateways exist during a whole rotation.
        kept.rotate_and_hold(&new, &old)?;
        kept.wait_phase("TrustExpanded")?;
        fits(kept, ns)?;
        kept.set_gateway_delay("1s")?;
        kept.wait_bundle(&[&new])?;
        kept.wait_phase("Steady")?;
        let after = fits(kept, ns)?;
        println!("{many} Gateways with {HOSTS} hosts each: status of {before} bytes before a rotation, {after} after");
        ensure!(kept.events("StatusNotWritten")?.is_empty(), "a status could not be written");
        Ok(())
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|hostile| test(ns, hostile)))
}

fn a_gateway_of_another_namespace_with_its_own_cas_stops_a_rotation_only_by_a_grant(cluster: &Cluster) -> Result<()> {
    let test = |ns: &str, hostile: &str| {
        let kept = &Kept::new(cluster, ns, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": ns }))?;
        kept.set("caSecretRef", &json!({ "name": "ca" }))?;
        kept.set("issuerSecretName", &json!("issuer"))?;
        let (first, second, third) = (Authority::new("ca 1")?, Authority::new("ca 2")?, Authority::new("ca 3")?);
        write_ca(kept, &first)?;
        kept.write_root(&first)?;
        let mut gateway = istio("hostile", "root", ns);
        gateway["spec"]["servers"][0]["tls"]["caCertCredentialName"] = json!(format!("configmap://{hostile}/none"));
        cluster.apply(hostile, &gateway.to_string())?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        let (gateway, ungranted) =
            (format!("Gateway {hostile}/hostile"), format!("no ReferenceGrant in namespace {ns}"));
        kept.wait_condition("TrustSourcesCurrent", "Current", &[&gateway, &ungranted])?;
        write_ca(kept, &second)?;
        wait_for("the issuer to sign with the new CA", SOON, || signs_with(kept, &second))?;
        ensure!(!kept.status()?["waits"].to_string().contains(&gateway), "a step waits for {gateway}");

        // By a grant the same Gateway is waited for.
        let grant = json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": { "name": "hostile" },
            "spec": {
                "from": [{ "group": "networking.istio.io", "kind": "Gateway", "namespace": hostile }],
                "to": [{ "group": "", "kind": "Secret", "name": "root" }],
            },
        });
        cluster.apply(ns, &grant.to_string())?;
        kept.wait_condition("TrustSourcesCurrent", "UnreadableTrust", &[&gateway])?;
        write_ca(kept, &third)?;
        wait_for("the issuer to wait for the Gateway", SOON, || {
            let status = kept.status()?;
            let mut waits = status["waits"].as_array().into_iter().flatten();
            let names_it = |wait: &Value| wait["reason"].as_str().is_some_and(|reason| reason.contains(&gateway));
            Ok(waits.any(|wait| wait["step"] == "PromoteIssuer" && wait["needsAction"] == true && names_it(wait)))
        })?;
        ensure!(signs_with(kept, &second)?, "the issuer did not wait");
        cluster.kubectl(["delete", "referencegrants.gateway.networking.k8s.io", "hostile"]).ns(ns).ok()?;
        wait_for("the issuer to sign with the third CA", SOON, || signs_with(kept, &third))
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|hostile| test(ns, hostile)))
}

/// Its owner removes a CA that clients of a GatewaySecret in another namespace use.
fn a_source_of_another_owner_is_protected_from_its_owner_only_by_a_grant(cluster: &Cluster) -> Result<()> {
    let test = |ns: &str, owner: &str| {
        let kept = &Kept::new(cluster, ns, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": ns }))?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["client"] }))?;
        let (compromised, new) = (Authority::new("compromised")?, Authority::new("new")?);
        let write = |authorities: &[&Authority]| {
            let bundle: String = authorities.iter().map(|authority| authority.pem()).collect();
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "cas" }, "data": { "ca.crt": bundle },
            });
            cluster.kubectl(["apply", "-f", "-"]).ns(owner).stdin(object.to_string()).run()
        };
        ensure!(write(&[&compromised, &new])?.success());
        kept.write_root(&compromised)?;
        kept.write_client("client", &compromised)?;
        let mut gateway = istio("hostile", "managed", ns);
        gateway["spec"]["servers"][0]["tls"]["caCertCredentialName"] = json!(format!("configmap://{owner}/cas"));
        cluster.apply(ns, &gateway.to_string())?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        let is_listed = |granted: &Value| {
            let status = kept.status()?;
            let mut sources = status["trustSources"].as_array().into_iter().flatten();
            Ok(sources.any(|source| source["name"] == "cas" && source["granted"] == *granted))
        };
        wait_for("the agent to list the ConfigMap", SOON, || is_listed(&Value::Null))?;
        // The administrator allows rights in all namespaces.
        kept.agents.grant_with(&[format!("--allow-namespace={owner}")])?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned(), owner.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Longest)?;
        wait_for("the webhook to warn the owner", SOON, || {
            ensure!(write(&[&compromised, &new])?.success());
            let output = write(&[&new])?;
            ensure!(output.success(), "the owner cannot remove a CA: {}", output.stderr);
            Ok(output
                .stderr
                .contains("not rejected without a ReferenceGrant: ca.crt: this update removes every CA of 1"))
        })?;

        ensure!(write(&[&compromised, &new])?.success());
        let grant = json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": { "name": "tenant" },
            "spec": {
                "from": [{ "group": "networking.istio.io", "kind": "Gateway", "namespace": ns }],
                "to": [{ "group": "", "kind": "ConfigMap", "name": "cas" }],
            },
        });
        cluster.apply(owner, &grant.to_string())?;
        wait_for("the agent to see the grant", SOON, || is_listed(&json!(true)))?;
        wait_for("the webhook to reject the write", SOON, || {
            let output = write(&[&new])?;
            if output.success() {
                ensure!(write(&[&compromised, &new])?.success());
            }
            Ok(output.stderr.contains("denied the request") && output.stderr.contains("takes its clients' CAs from it"))
        })
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|owner| test(ns, owner)))
}

fn create(cluster: &Cluster, namespace: &str, label: &str, numbers: std::ops::Range<usize>) -> Result<()> {
    let gateway = |number: usize| {
        let mut gateway = istio(&format!("hostile-{number}"), "managed", label);
        let label = "x".repeat(60);
        let host = |host: usize| format!("{host}.{number}.{label}.{label}.{label}.example.com");
        gateway["spec"]["servers"][0]["hosts"] = (0..HOSTS).map(host).collect();
        gateway
    };
    let items: Vec<_> = numbers.map(gateway).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    cluster.kubectl(["create", "-f", "-"]).ns(namespace).stdin(list.to_string()).ok().map(drop)
}

/// The size of the status in bytes. The status has to list the GatewaySecret's own Gateway and some of the others,
/// without a sign that something is missing.
fn fits(kept: &Kept<'_>, ns: &str) -> Result<usize> {
    let status = kept.status()?;
    let bytes = status.to_string().len();
    ensure!(bytes < 256 << 10, "the status has {bytes} bytes");
    let listed = status["gateways"].as_array().context("no Gateways")?;
    let own = listed.iter().find(|gateway| gateway["namespace"] == ns).context("the own Gateway is not listed")?;
    expect("its hosts", &own["hosts"], json!(["shop.example.com"]))?;
    ensure!(listed.len() > 1, "no other Gateway is listed");
    let incomplete = |condition: &Value| condition["type"] == "StatusComplete";
    let conditions = status["conditions"].as_array().context("no conditions")?;
    ensure!(!conditions.iter().any(incomplete), "something of a verdict is missing: {conditions:?}");
    Ok(bytes)
}

fn a_status_that_is_refused_for_its_size_is_reduced_and_stops_no_step(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let kept = Kept::new(cluster, ns, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": ns }))?;
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.write_root(&old)?;
        cluster.apply(ns, &istio("shop", "managed", ns).to_string())?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        let result = no_status_is_taken(&kept, &agent, &old, &new);
        let name = &format!("--field-selector=metadata.name={ns}");
        for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
            cluster.kubectl(["delete", kind, name]).ok()?;
        }
        result?;
        wait_for("the whole status", SOON, || Ok(hosts(&kept)? == json!(["shop.example.com"])))?;
        kept.wait_condition("Synced", "Synced", &[])
    })
}

fn no_status_is_taken(kept: &Kept<'_>, agent: &Process, old: &Authority, new: &Authority) -> Result<()> {
    refuse_status(kept, "false")?;
    // It takes a while until the API server applies the policy.
    wait_for("a status to be refused", SOON, || {
        let patch = r#"{"status":{"workloadsBehind":7}}"#;
        let args = ["patch", "gatewaysecret", "gateway", "--subresource=status", "--type=merge", "--dry-run=server"];
        let out = kept.cluster.kubectl([args[0], args[1], args[2], args[3], args[4], args[5], "--patch", patch]);
        Ok(out.ns(kept.ns).ok().is_err())
    })?;
    kept.rotate_and_hold(new, old)?;
    kept.wait_event("Warning", "StatusNotWritten", "steps go on")?;
    kept.wait_metric(agent, "agent_failures_total", ",reason=\"StatusNotWritten\"", |failures| failures >= 1.0)?;
    expect("the phase in the old status", &kept.status()?["phase"], json!("Steady"))?;
    refuse_status(kept, "!has(object.status.gateways) || object.status.gateways.all(g, !has(g.hosts))")?;
    kept.wait_phase("TrustExpanded")?;
    expect("the hosts in a reduced status", &hosts(kept)?, Value::Null)
}

/// The hosts of the first Gateway in the status.
fn hosts(kept: &Kept<'_>) -> Result<Value> {
    Ok(kept.status()?["gateways"][0]["hosts"].take())
}

/// Makes the API server reject a status as too large (413) unless an expression is true of it.
fn refuse_status(kept: &Kept<'_>, unless: &str) -> Result<()> {
    let (api, name) = ("admissionregistration.k8s.io/v1", kept.ns);
    let rule = json!({
        "apiGroups": ["trustspan.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["gatewaysecrets/status"],
    });
    let policy = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [rule] },
            "validations": [{ "expression": unless, "reason": "RequestEntityTooLarge", "message": "too large" }],
        },
    });
    let only = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } } });
    let binding = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"], "matchResources": only },
    });
    for object in [policy, binding] {
        kept.cluster.kubectl(["apply", "-f", "-"]).stdin(object.to_string()).ok()?;
    }
    Ok(())
}
