//! Declared clients that are renewed while no replica of the webhook runs: the policy `client-bundle` decides.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trustspan::admission::{Request, mutate};
use trustspan::api::TrustAnchor;
use trustspan::json::Json;
use trustspan::registry::Registry;
use trustspan::store::cluster::connect;
use trustspan::store::directory::entry;
use trustspan::trust::bundle;

use crate::policies::{Policies, api};
use crate::stage::{MANAGED, declare, gateway_secret, set_status, status, trustspan};
use crate::testbed::{
    Authority, Cluster, Kubectl, Patience, Registration, SOON, Scope, Seed, Server, Source, User, shipped, wait_for,
};

cases![
    a_client_is_renewed_while_no_replica_runs_if_it_loses_no_trust,
    a_named_client_gets_the_bundle_by_the_agent_s_role,
    the_policy_of_clients_decides_as_the_webhook,
];

const CLIENT: &str = "trustspan.dev/client";
const RENEWALS: &str = "client-renewals.mutate.trustspan.dev";

/// A status with a bundle, as the agent publishes it.
fn published(authorities: &[&Authority]) -> Value {
    let data = (authorities.len() == 1).then(|| STANDARD.encode(canonical(authorities)));
    json!({ "clientBundle": anchors(authorities), "clientBundleData": data })
}

fn anchors(authorities: &[&Authority]) -> Value {
    let text: String = authorities.iter().map(|authority| authority.pem()).collect();
    let certificates = bundle::read(text.as_bytes()).into_certificates();
    certificates.iter().map(|ca| json!(TrustAnchor::from(ca))).collect()
}

/// A bundle as cert-manager and trustspan write it.
fn canonical(authorities: &[&Authority]) -> String {
    authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect()
}

/// The shipped webhooks, with the failurePolicy that the chart sets where it renders the policies.
fn webhooks() -> Result<String> {
    let mut configurations: Vec<Value> = serde_saphyr::from_multiple(&shipped("webhooks.yaml")?)?;
    let all = configurations.iter_mut().flat_map(|one| one["webhooks"].as_array_mut().into_iter().flatten());
    for webhook in all.filter(|webhook| webhook["name"] == RENEWALS) {
        webhook["failurePolicy"] = json!("Ignore");
    }
    Ok(configurations.iter().map(|one| format!("---\n{one}\n")).collect())
}

fn a_client_is_renewed_while_no_replica_runs_if_it_loses_no_trust(cluster: &Cluster) -> Result<()> {
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    cluster.with_temp_ns(|ns| {
        declare(cluster, ns)?;
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let _registration = Registration::of(&webhooks()?, cluster, &server, &scope, Patience::Longest)?;
        let policies = Policies::new(cluster, &[ns])?;
        policies.wait_in_use(ns)?;

        let publish = |bundle: &[&Authority]| set_status(cluster, ns, &published(bundle));
        let (certificate, key) = new.issue_client("payments")?;
        // As cert-manager writes it.
        let renew = |label: &str, cas: &[&Authority]| -> Kubectl {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": { "name": "payments", "labels": { CLIENT: label } },
                "stringData": { "ca.crt": canonical(cas), "tls.crt": certificate, "tls.key": key },
            });
            let user = ["--as=system:serviceaccount:cert-manager:cert-manager", "--as-group=system:masters"];
            let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
            cluster.kubectl([&apply[..], &user].concat()).ns(ns).stdin(secret.to_string())
        };
        let stored = || -> Result<String> {
            let secret = cluster.get("secret", ns, "payments")?;
            Ok(String::from_utf8(STANDARD.decode(secret["data"]["ca.crt"].as_str().context("no ca.crt")?)?)?)
        };

        publish(&[&new, &old])?;
        wait_for("the webhook to add the bundle", SOON, || {
            Ok(renew(MANAGED, &[&new]).run()?.success() && stored()? == canonical(&[&new, &old]))
        })?;

        server.kill();
        let refused = renew(MANAGED, &[&new]).fails()?;
        ensure!(refused.contains("client-bundle: ca.crt of payments is not the bundle of clients"), "saw {refused}");
        ensure!(stored()? == canonical(&[&new, &old]), "a rejected write was stored");
        // What the policy does not judge is sent with failurePolicy Fail.
        for (label, cas) in [(MANAGED, &[&new, &old][..]), ("mesh_gateway", &[&new]), (MANAGED, &[])] {
            let refused = renew(label, cas).fails()?;
            ensure!(
                refused.contains("failed calling webhook \"clients.mutate.trustspan.dev\""),
                "{label}: saw {refused}"
            );
        }

        publish(&[&new])?;
        wait_for("a renewal without the webhook", SOON, || Ok(renew(MANAGED, &[&new]).run()?.success()))?;
        ensure!(stored()? == canonical(&[&new]), "saw {}", stored()?);
        let refused = renew(MANAGED, &[&old]).fails()?;
        ensure!(refused.contains("client-bundle"), "a client of another CA: saw {refused}");

        server.start_again()?;
        renew(MANAGED, &[&old]).ok()?;
        ensure!(stored()? == canonical(&[&new, &old]), "saw {}", stored()?);
        policies.ensure_evaluated()
    })
}

fn a_named_client_gets_the_bundle_by_the_agent_s_role(cluster: &Cluster) -> Result<()> {
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    cluster.with_temp_ns(|ns| {
        let mut declared = gateway_secret(ns);
        declared["spec"]["clients"] = json!({ "secretNames": ["payments"] });
        cluster.apply(ns, &declared.to_string())?;
        set_status(cluster, ns, &status(ns, &[]))?;
        set_status(cluster, ns, &published(&[&new, &old]))?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Longest)?;

        let (certificate, key) = new.issue_client("payments")?;
        let written = |name: &str| -> Result<String> {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": name },
                "stringData": { "ca.crt": canonical(&[&new]), "tls.crt": certificate, "tls.key": key },
            });
            let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
            cluster.kubectl(apply).ns(ns).stdin(secret.to_string()).ok()?;
            let stored = cluster.get("secret", ns, name)?;
            Ok(String::from_utf8(STANDARD.decode(stored["data"]["ca.crt"].as_str().context("no ca.crt")?)?)?)
        };
        ensure!(written("payments")? == canonical(&[&new]), "the webhook was asked without a Role");
        declared["metadata"]["namespace"] = json!(ns);
        let (code, role) = trustspan(&["rbac", "-f", "-"], &declared.to_string())?;
        ensure!(code == Some(0), "trustspan rbac: {role}");
        cluster.kubectl(["apply", "-f", "-"]).stdin(role).ok()?;
        wait_for("the webhook to add the bundle", SOON, || Ok(written("payments")? == canonical(&[&new, &old])))?;
        ensure!(written("checkout")? == canonical(&[&new]), "another Secret was changed");
        Ok(())
    })
}

/// Number of generated Secrets.
const SECRETS: usize = 400;

fn the_policy_of_clients_decides_as_the_webhook(cluster: &Cluster) -> Result<()> {
    let mut seed = Seed::of_run("client renewals");
    let cas = ["a", "b", "c"].map(Authority::new).into_iter().collect::<Result<Vec<_>>>()?;
    let some = |seed: &mut Seed| cas.iter().filter(|_| seed.below(2) == 0).collect::<Vec<_>>();
    let runtime = Runtime::new()?;
    let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Admin))))?;
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    cluster.with_temp_ns(|ns| {
        let mut gateways = Vec::new();
        for number in 0..6 {
            let name = format!("gateway-{number}");
            let mut spec = json!({ "sourceSecretName": format!("root-{number}"), "secretName": format!("managed-{number}") });
            if seed.below(4) == 0 {
                spec["mode"] = json!("Copy");
            }
            let bundle = some(&mut seed);
            if let Some(distrusted) = anchors(&some(&mut seed))[0]["fingerprint"].as_str().filter(|_| number % 2 == 0) {
                spec["distrustedCAs"] = json!([distrusted]);
            }
            // Each CA is the bundle of one.
            let bundle = cas.get(number).map_or(bundle, |ca| vec![ca]);
            let object = json!({
                "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": name }, "spec": spec,
            });
            cluster.apply(ns, &object.to_string())?;
            let patch = json!({ "status": published(&bundle) }).to_string();
            let args = ["patch", "gatewaysecret", &name, "--subresource=status", "--type=merge", "--patch", &patch];
            cluster.kubectl(args).ns(ns).ok()?;
            gateways.push(entry(&cluster.get("gatewaysecret", ns, &name)?, ns)?);
        }
        let registry = Registry::new(gateways);
        let policies = Policies::new(cluster, &[ns])?;
        policies.wait_in_use(ns)?;
        let allows = |object: &Value| -> Result<bool> {
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            let created = runtime.block_on(api(&client, ns, "Secret").create(&dry, &serde_json::from_value(object.clone())?));
            match created {
                Ok(_) => Ok(true),
                Err(error) if error.to_string().contains("client-bundle: ") => Ok(false),
                Err(error) => Err(error).context(object.to_string()),
            }
        };
        for _ in 0..SECRETS {
            let text = canonical(&some(&mut seed));
            let text = layout(&mut seed, &text);
            let label = match seed.below(10) {
                0 => format!("{ns}_gateway-0"),
                1 => "missing".to_owned(),
                _ => format!("gateway-{}", seed.below(6)),
            };
            let mut object = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "client", "labels": { CLIENT: label } },
                "data": { "other": "MQ==" },
            });
            if seed.below(20) > 0 {
                object["data"]["ca.crt"] = json!(STANDARD.encode(&text));
            }
            let mut written = object.clone();
            let json = Json::from(&object);
            json_patch::patch(&mut written, &mutate(&Request::create(&json, ns), &registry, Timestamp::now()).patch.parse())?;
            let seen = |object: &Value| fingerprints(object["data"]["ca.crt"].as_str().unwrap_or_default());

            // With the webhook nothing is rejected, except a single certificate that no program reads.
            let is_readable = seen(&object).is_some();
            ensure!(allows(&written)? || !is_readable, "the policy rejects what the webhook wrote: {written}");
            let alone = allows(&object)?;
            // The API server sends other Secrets with failurePolicy Fail.
            let is_renewal = !label.contains('_') && is_one_certificate(&object);
            if alone && is_renewal {
                ensure!(seen(&object) == seen(&written), "without the webhook the policy allows {object}\nwebhook: {written}");
            }
            let answer = match (is_renewal, alone) {
                (false, _) => "left to the webhook",
                (true, true) if written == object => "allowed",
                (true, true) => "allowed in another layout",
                (true, false) => "rejected",
            };
            ensure!(is_renewal || alone, "the policy judges a Secret that is sent with failurePolicy Fail: {object}");
            *tally.entry(answer).or_default() += 1;
        }
        policies.ensure_evaluated()
    })?;
    println!("{tally:?}");
    for answer in ["left to the webhook", "allowed", "rejected"] {
        ensure!(tally.get(answer).is_some_and(|count| *count > 10), "too few Secrets were {answer}: {tally:?}");
    }
    Ok(())
}

/// A bundle as it is, or written by somebody else.
fn layout(seed: &mut Seed, text: &str) -> Vec<u8> {
    match seed.below(12) {
        0 => text.replace('\n', "\r\n").into_bytes(),
        1 => text.trim_end().as_bytes().to_vec(),
        2 => format!("# ours\n{text}").into_bytes(),
        3 => [text.as_bytes(), b"# \xff\n"].concat(),
        4 => text.replacen("MII", "MI", 1).into_bytes(),
        _ => text.as_bytes().to_vec(),
    }
}

/// The CAs of a bundle in base64; `None` if a program would not load all of it.
fn fingerprints(base64: &str) -> Option<BTreeSet<String>> {
    let read = bundle::read(&STANDARD.decode(base64).ok()?);
    read.rejected.is_none().then(|| read.into_certificates().into_iter().map(|ca| ca.fingerprint).collect())
}

/// Whether `ca.crt` starts with a certificate, and no other PEM block follows.
fn is_one_certificate(object: &Value) -> bool {
    let text = STANDARD.decode(object["data"]["ca.crt"].as_str().unwrap_or_default()).unwrap_or_default();
    let begins = text.windows(11).filter(|window| window == b"-----BEGIN ").count();
    text.starts_with(b"-----BEGIN CERTIFICATE-----") && begins == 1
}
