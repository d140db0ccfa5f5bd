//! Guarding without rotation: the webhook, the CustomResourceDefinitions and one label, without a GatewaySecret and an
//! agent.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::named_bundles::{Bench, TRUST};
use crate::secrets::{reviews, with};
use crate::stage::{expect, gateway_secret, sound, trustspan};
use crate::testbed::{Cluster, Kubectl, Patience, Registration, Scope, Server, Source, User};

cases![
    the_webhook_refuses_what_check_denies,
    secrets_of_other_namespaces_are_never_sent,
    a_label_on_a_secret_guards_it_alone,
    a_gateway_secret_without_a_guard_gets_a_warning,
];

/// Number of unrelated Secrets that are written; `TRUSTSPAN_STRANGERS` sets another number.
const STRANGERS: usize = 100;

/// A guarded namespace, one without a label, and the webhook for both.
struct Guarded<'c> {
    cluster: &'c Cluster,
    ns: String,
    /// The namespace without the label.
    plain: String,
    server: Server<'c>,
    _registration: Registration<'c>,
}

#[track_caller]
fn guarded(cluster: &Cluster, test: impl FnOnce(&Guarded<'_>) -> Result<()>) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.with_temp_ns(|plain| {
            cluster.kubectl(["label", "namespace", plain, "trustspan.dev/guard-"]).ok()?;
            let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
            let scope = Scope::Namespaces(vec![ns.to_owned(), plain.to_owned()]);
            let registration = Registration::new(cluster, &server, &scope, Patience::Longest)?;
            let (ns, plain) = (ns.to_owned(), plain.to_owned());
            test(&Guarded { cluster, ns, plain, server, _registration: registration })
        })
    })
}

impl Guarded<'_> {
    fn put(&self, ns: &str, object: &Value) -> Kubectl {
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.cluster.kubectl(apply).ns(ns).user(User::Dev).stdin(object.to_string())
    }
}

/// The rules by which `trustspan check` denies an object.
fn denied_by_check(object: &Value) -> Result<BTreeSet<String>> {
    let (_, printed) = trustspan(&["check", "--output", "json", "-f", "-"], &object.to_string())?;
    let judged: Value = serde_json::from_str(&printed)?;
    let findings = judged[0]["findings"].as_array().with_context(|| format!("findings in {printed}"))?;
    let denials = findings.iter().filter(|finding| finding["severity"] == "deny");
    denials.map(|finding| Ok(finding["rule"].as_str().context("a rule")?.to_owned())).collect()
}

/// The bundles that were measured with Envoy, each as a Secret and as a ConfigMap.
fn the_webhook_refuses_what_check_denies(cluster: &Cluster) -> Result<()> {
    guarded(cluster, |bed| {
        let mut bench = Bench::new()?;
        let (mut refused, mut allowed) = (0, 0);
        for (name, _, make) in TRUST {
            let bundle = bench.make(name, *make)?;
            let mut data = json!({ "ca.crt": bundle.ca });
            let config_map =
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
            if let Some(crl) = &bundle.crl {
                data["ca.crl"] = json!(crl);
            }
            let secret =
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data });
            for object in [secret, config_map] {
                let denied = denied_by_check(&object)?;
                let output = bed.put(&bed.ns, &object).run()?;
                let agree = output.success() == denied.is_empty()
                    && denied.iter().all(|rule| output.stderr.contains(&format!("{rule}: data[")));
                ensure!(agree, "{name}, {}: check denies by {denied:?}, saw {output:?}", object["kind"]);
                *(if denied.is_empty() { &mut allowed } else { &mut refused }) += 1;
                bed.put(&bed.plain, &object).ok()?;
            }
        }
        println!("{refused} refused, {allowed} allowed, each as check says");
        ensure!(refused > TRUST.len() / 2 && allowed > TRUST.len() / 2, "{refused} refused, {allowed} allowed");
        Ok(())
    })
}

fn secrets_of_other_namespaces_are_never_sent(cluster: &Cluster) -> Result<()> {
    guarded(cluster, |bed| {
        let count = match std::env::var("TRUSTSPAN_STRANGERS") {
            Ok(count) => count.parse()?,
            Err(_) => STRANGERS,
        };
        let (_, mut secret) = sound("stranger", false)?;
        let strangers = (0..count).map(|number| {
            let mut secret = secret.clone();
            secret["metadata"]["name"] = json!(format!("stranger-{number}"));
            secret
        });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": strangers.collect::<Vec<_>>() });
        let before = reviews(&bed.server)?;
        bed.cluster.kubectl(["create", "-f", "-"]).ns(&bed.plain).stdin(list.to_string()).ok()?;
        bed.cluster.kubectl(["label", "secrets", "--all", "team=checkout"]).ns(&bed.plain).ok()?;
        bed.cluster.kubectl(["delete", "secrets", "--all"]).ns(&bed.plain).ok()?;
        let after = reviews(&bed.server)?;
        println!("{count} Secrets created, changed and deleted: {} sent to the webhook", after - before);
        expect("reviews of Secrets", &json!(after), before)?;
        // A guarded Secret is counted, which shows that the counter works.
        bed.put(&bed.ns, &secret).ok()?;
        expect("reviews of Secrets", &json!(reviews(&bed.server)?), before + 1)?;
        // The API server reads no more than 100 annotations.
        for (count, sent) in [(100, before + 1), (101, before + 2)] {
            let notes = (0..count).map(|number| (format!("note-{number}"), json!(""))).collect();
            secret["metadata"]["annotations"] = Value::Object(notes);
            bed.put(&bed.plain, &secret).ok()?;
            expect("reviews of Secrets", &json!(reviews(&bed.server)?), sent)?;
        }
        Ok(())
    })
}

fn a_label_on_a_secret_guards_it_alone(cluster: &Cluster) -> Result<()> {
    guarded(cluster, |bed| {
        let labelled = |secret: &Value| {
            let mut secret = secret.clone();
            secret["metadata"]["labels"] = json!({ "trustspan.dev/guard": "enabled" });
            secret
        };
        let (_, secret) = sound("partners", false)?;
        let unsound = with(&secret, "ca.crt", "no PEM at all");
        bed.put(&bed.plain, &unsound).ok()?;
        // A Secret that was stored before only warns.
        let output = bed.put(&bed.plain, &labelled(&unsound)).run()?;
        ensure!(output.success() && output.stderr.contains("empty: data[ca.crt]"), "saw {output:?}");
        bed.put(&bed.plain, &labelled(&secret)).ok()?;
        for worse in [labelled(&unsound), unsound.clone()] {
            let refused = bed.put(&bed.plain, &worse).fails()?;
            ensure!(refused.contains("empty: data[ca.crt]"), "{}: saw {refused}", worse["metadata"]);
        }
        let odd = bed.cluster.kubectl(["label", "secret", "partners", "trustspan.dev/guard=on", "--overwrite"]);
        let output = odd.ns(&bed.plain).run()?;
        ensure!(output.success() && output.stderr.contains("value-ignored"), "saw {output:?}");
        bed.put(&bed.plain, &unsound).ok().map(drop)
    })
}

fn a_gateway_secret_without_a_guard_gets_a_warning(cluster: &Cluster) -> Result<()> {
    guarded(cluster, |bed| {
        let put = |ns: &str| -> Result<String> {
            let object = gateway_secret(ns).to_string();
            let output = bed.cluster.kubectl(["apply", "-f", "-"]).ns(ns).stdin(object).run()?;
            ensure!(output.success(), "{ns}: saw {output:?}");
            Ok(output.stderr)
        };
        let (warned, quiet) = (put(&bed.plain)?, put(&bed.ns)?);
        let remedy = format!("{} is not guarded: label it trustspan.dev/guard=enabled", bed.plain);
        ensure!(warned.contains("namespace-unguarded") && warned.contains(&remedy), "saw {warned}");
        ensure!(!quiet.contains("namespace-unguarded"), "saw {quiet}");
        Ok(())
    })
}
