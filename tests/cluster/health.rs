//! Named health checks on the real API server: which one fails, with which code and text, on which port.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::testbed::{Agents, Authority, Cluster, Kept, SOON, Server, Source, User, rotation_policy, wait_for};

cases![
    alone health_names_the_api_server_while_it_is_stopped,
    health_names_the_source_secret_that_cannot_be_read,
    health_names_a_broken_serving_pair,
    health_ends_an_agent_whose_lease_is_refused,
];

/// Requests to a health endpoint, none of which may cause a log line.
const PROBES: usize = 1000;

type Answer = (u16, String);

/// Waits until an endpoint answers with a code, and returns the body.
fn wait_code(what: &str, code: u16, request: impl Fn() -> Result<Answer>) -> Result<String> {
    let mut body = String::new();
    wait_for(&format!("{what} to be {code}"), SOON, || {
        let answer = request()?;
        ensure!(answer.0 == code, "saw {answer:?}");
        body = answer.1;
        Ok(true)
    })?;
    Ok(body)
}

fn ensure_answer(what: &str, answer: &Answer, code: u16, words: &[&str]) -> Result<()> {
    let is_expected = answer.0 == code && words.iter().all(|word| answer.1.contains(word));
    ensure!(is_expected, "{what}: expected {code} with {words:?}, saw {answer:?}");
    Ok(())
}

/// The checks that a response lists as failed.
fn failed(body: &str) -> Vec<&str> {
    let names = body.lines().filter_map(|line| line.strip_prefix("[-]")?.strip_suffix(" failed: reason withheld"));
    names.collect()
}

/// Sends many probes. Their answers are the same, and none of them is logged.
fn probe_often(log: impl Fn() -> String, request: impl Fn() -> Result<Answer>) -> Result<()> {
    let (lines, first) = (log().lines().count(), request()?);
    for _ in 0..PROBES {
        let answer = request()?;
        ensure!(answer == first, "expected {first:?}, saw {answer:?}");
    }
    let log = log();
    let new: Vec<_> = log.lines().skip(lines).collect();
    ensure!(new.is_empty(), "{PROBES} probes without a change of state, and new lines: {new:?}");
    Ok(())
}

fn health_names_the_api_server_while_it_is_stopped(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let agents = Agents::new(cluster, ns)?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let agent = agents.start("a")?;
        let of_agent = |path: &str| Agents::request(&agent, path);
        wait_code("the webhook's /healthz", 200, || server.request("/healthz"))?;
        let body = wait_code("the agent's /healthz", 200, || of_agent("/healthz?verbose"))?;
        let expected =
            "[+]ping ok\n[+]api-server ok\n[+]gatewaysecret-cache ok\n[+]leader-lease ok\nhealthz check passed\n";
        ensure!(body == expected, "saw {body}");
        let before = [server.log().lines().count(), agent.log().lines().count()];
        cluster.without_api_server(|| {
            let all_failed = |request: &dyn Fn(&str) -> Result<Answer>, names: &[&str]| {
                wait_for(&format!("checks {names:?} to fail"), SOON, || {
                    let (code, body) = request("/healthz")?;
                    ensure!(code == 503 && failed(&body) == names, "saw {code} {body}");
                    Ok(true)
                })
            };
            all_failed(&|path| server.request(path), &["api-server", "gatewaysecret-cache"])?;
            all_failed(&of_agent, &["api-server", "gatewaysecret-cache", "leader-lease"])?;

            // Reasons by name, on the metrics port only.
            let unreachable = "service unavailable: unreachable, retrying: ";
            for name in ["api-server", "gatewaysecret-cache"] {
                let path = format!("/healthz/{name}");
                ensure_answer(name, &server.request(&path)?, 503, &[unreachable])?;
                ensure_answer(name, &server.https_request(&path)?, 404, &["404 page not found"])?;
            }
            ensure_answer("the Lease", &of_agent("/healthz/leader-lease")?, 503, &[unreachable])?;
            let totals = server.https_request("/healthz")?;
            ensure!(totals == (503, "2 of 4 checks ok\nhealthz check failed\n".to_owned()), "saw {totals:?}");

            // Another replica or a restart would be no better: ready, and alive.
            let excluded = ["[+]api-server excluded: ok\n", "[+]serving-certificate ok\n", "readyz check passed"];
            ensure_answer("/readyz", &server.request("/readyz?verbose")?, 200, &excluded)?;
            ensure_answer("/readyz", &of_agent("/readyz")?, 200, &["ok"])?;
            for path in ["/readyz", "/livez"] {
                let answer = server.https_request(path)?;
                ensure!(answer == (200, "ok".to_owned()), "{path}: saw {answer:?}");
            }
            let exclude = "/healthz?exclude=api-server&exclude=gatewaysecret-cache&exclude=nope&verbose";
            let warning = "warn: some health checks cannot be excluded: no matches for \"nope\"\n";
            ensure_answer("?exclude", &server.request(exclude)?, 200, &["[+]api-server excluded: ok\n", warning])?;

            probe_often(|| server.log(), || server.request("/healthz"))?;
            probe_often(|| agent.log(), || of_agent("/healthz"))?;
            for (log, before, changes) in [(server.log(), before[0], 2), (agent.log(), before[1], 3)] {
                let failures: Vec<_> =
                    log.lines().skip(before).filter(|line| line.contains("health check fails")).collect();
                ensure!(failures.len() == changes, "expected {changes} lines, saw {failures:?}");
            }
            Ok(())
        })?;
        wait_code("the webhook's /healthz", 200, || server.request("/healthz"))?;
        wait_code("the webhook's /healthz", 200, || server.https_request("/healthz"))?;
        wait_code("the agent's /healthz", 200, || of_agent("/healthz"))?;
        let metrics = Agents::metrics(&agent)?;
        ensure!(metrics.contains("\ntrustspan_health_check{check=\"leader-lease\"} 1\n"), "{metrics}");
        Ok(())
    })
}

fn health_names_the_source_secret_that_cannot_be_read(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let agents = Agents::new(cluster, ns)?;
        cluster.apply(ns, &rotation_policy(&json!({})).to_string())?;
        let names = ["checkout", "payments", "search"];
        let check = |name: &str| format!("source-secret/{ns}/root-{name}");
        for name in names {
            let mut root = Kept::root(&Authority::new(name)?)?;
            root["metadata"]["name"] = format!("root-{name}").into();
            cluster.apply(ns, &root.to_string())?;
            let spec = json!({ "sourceSecretName": format!("root-{name}"), "secretName": format!("managed-{name}") });
            let object = json!({
                "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": name }, "spec": spec,
            });
            cluster.apply(ns, &object.to_string())?;
        }
        agents.grant()?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let agent = agents.start("a")?;
        let health = |path: &str| Agents::request(&agent, path);
        wait_for("all checks to succeed", SOON, || {
            let (code, body) = health("/healthz?verbose")?;
            let all = names.iter().all(|name| {
                let own = format!("[+]gatewaysecret/{ns}/{name} ok\n");
                body.contains(&own) && body.contains(&format!("[+]{} ok\n", check(name)))
            });
            ensure!(code == 200 && all, "saw {code} {body}");
            Ok(true)
        })?;
        let fails_alone = |name: &str| {
            wait_for(&format!("check {name} to fail"), SOON, || {
                let (code, body) = health("/healthz")?;
                ensure!(code == 500 && failed(&body) == [check(name)], "saw {code} {body}");
                Ok(true)
            })
        };

        // A right is removed: one of three sources cannot be read.
        cluster.kubectl(["delete", "rolebinding", "trustspan-agent-payments"]).ns(ns).ok()?;
        fails_alone("payments")?;
        let path = |endpoint: &str, name: &str| format!("/{endpoint}/{}", check(name));
        let reason = ["internal server error: misconfigured: ", "\"root-payments\" is forbidden", "trustspan rbac"];
        ensure_answer("payments", &health(&path("healthz", "payments"))?, 500, &reason)?;
        for other in ["checkout", "search"] {
            ensure_answer(other, &health(&path("healthz", other))?, 200, &["ok"])?;
        }
        let excluded = format!("[+]{} excluded: ok\n", check("payments"));
        ensure_answer("/readyz", &health("/readyz?verbose")?, 200, &[&excluded])?;
        ensure_answer("?exclude", &health(&format!("/healthz?exclude={}", check("payments")))?, 200, &["ok"])?;
        let series = |name: &str, value: &str| format!("\ntrustspan_health_check{{check=\"{}\"}} {value}\n", check(name));
        let metrics = Agents::metrics(&agent)?;
        ensure!(metrics.contains(&series("payments", "-1")) && metrics.contains(&series("search", "1")), "{metrics}");
        probe_often(|| agent.log(), || health("/healthz"))?;

        // It is not read again before the right changes. The others are.
        let counts = || -> Result<[usize; 3]> {
            let requests = cluster.requests(User::Agent)?;
            let count = |resource: &str, name: &str| {
                let of_name = |one: &&_| -> bool {
                    let one: &crate::testbed::Request = one;
                    one.namespace == ns && one.resource == resource && one.name == name
                };
                requests.iter().filter(of_name).count()
            };
            let asked = requests.iter().filter(|one| one.resource == "selfsubjectaccessreviews").count();
            Ok([count("secrets", "root-payments"), count("secrets", "root-search"), asked])
        };
        let before = counts()?;
        wait_for("the agent to reconcile others, and to ask for the right", SOON, || {
            let now = counts()?;
            ensure!(now[1] >= before[1] + 3 && now[2] >= before[2] + 3, "saw {before:?}, then {now:?}");
            Ok(true)
        })?;
        let after = counts()?;
        ensure!(after[0] == before[0], "root-payments was requested again: {before:?}, then {after:?}");
        agents.grant()?;
        wait_code("/healthz", 200, || health("/healthz"))?;

        // One tenant's broken object.
        let broken = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "root-search" },
            "type": "kubernetes.io/tls", "stringData": { "ca.crt": "x", "tls.crt": "x", "tls.key": "x" },
        });
        let lines = agent.log().lines().count();
        cluster.apply(ns, &broken.to_string())?;
        fails_alone("search")?;
        let log = agent.log();
        let new: Vec<_> = log.lines().skip(lines).filter(|line| line.contains("health check")).collect();
        ensure!(new.len() == 1 && new[0].contains(&check("search")), "saw {new:?}");
        for answer in [server.request("/healthz")?, server.https_request("/healthz")?] {
            ensure_answer("the webhook", &answer, 200, &["ok"])?;
        }
        Ok(())
    })
}

fn health_names_a_broken_serving_pair(cluster: &Cluster) -> Result<()> {
    let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
    wait_code("/healthz", 200, || server.request("/healthz"))?;
    fs::write(server.cert_dir().join("tls.key"), "no key")?;
    let body = wait_code("/healthz", 500, || server.request("/healthz"))?;
    ensure!(failed(&body) == ["serving-certificate"], "saw {body}");
    let reason = ["internal server error: misconfigured: ", "tls.key: not a private key in PEM", "is served, until"];
    ensure_answer("by name", &server.request("/healthz/serving-certificate")?, 500, &reason)?;
    let totals = server.https_request("/healthz")?;
    ensure!(totals == (500, "3 of 4 checks ok\nhealthz check failed\n".to_owned()), "saw {totals:?}");
    // All replicas mount the same files, and the previous pair still works.
    let excluded = "[+]serving-certificate excluded: ok\n";
    ensure_answer("/readyz", &server.request("/readyz?verbose")?, 200, &[excluded])?;
    ensure_answer(
        "/readyz",
        &server.https_request("/readyz?verbose")?,
        200,
        &["5 of 5 checks ok\nreadyz check passed\n"],
    )?;
    probe_often(|| server.log(), || server.request("/healthz"))?;
    server.renew_certificate()?;
    wait_code("/healthz", 200, || server.request("/healthz"))?;
    wait_code("/healthz", 200, || server.https_request("/healthz"))?;
    let log = server.log();
    let changes: Vec<_> = log.lines().filter(|line| line.contains("health check")).collect();
    ensure!(changes.len() == 2, "expected a failure and a success, saw {changes:?}");
    Ok(())
}

fn health_ends_an_agent_whose_lease_is_refused(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let mut agents = Agents::new(cluster, ns)?;
        cluster.kubectl(["delete", "rolebinding", "lease"]).ns(ns).ok()?;
        // Long enough for the requests below on a busy machine.
        agents.lease = Some("10s");
        let mut agent = agents.start("a")?;
        wait_for("check leader-lease to fail alone", SOON, || {
            let (code, body) = Agents::request(&agent, "/healthz")?;
            ensure!(code == 500 && failed(&body) == ["leader-lease"], "saw {code} {body}");
            Ok(true)
        })?;
        ensure!(Agents::request(&agent, "/readyz")?.0 == 500, "it has not started");
        let code = agent.wait(SOON)?;
        let log = agent.log();
        ensure!(
            code == 1 && log.contains("error: cannot acquire Lease ") && log.contains("is forbidden"),
            "{code}: {log}"
        );
        Ok(())
    })
}
