//! `trustspan certgen` with the rights of `manifests/certgen`. There is no node: a thread acts as the kubelet and
//! reports that pods are ready.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::stage::{deployment, expect};
use crate::testbed::{Cluster, SOON, User, wait_for};

cases![
    rotations_that_are_killed_after_each_write_are_completed_by_the_next_run,
    two_runs_at_once_make_one_rotation,
    alone a_rotation_outlasts_a_restart_of_the_api_server,
    stops_with_what_to_do,
];

const SECRETS: [&str; 3] = ["envoy-gateway", "envoy", "envoy-rate-limit"];
const HMAC: &str = "envoy-oidc-hmac";
const PENDING: &str = "envoy-gateway-certgen-pending";
const LIMITER: &str = "envoy-ratelimit";
const PROFILE: &str = include_str!("../../src/certgen/envoy-gateway.yaml");
/// The namespace in the manifests.
const NAMESPACE: &str = "envoy-gateway-system";

struct Certgen<'c> {
    cluster: &'c Cluster,
    ns: &'c str,
    dir: PathBuf,
    profile: String,
    kubeconfig: String,
}

impl<'c> Certgen<'c> {
    /// Applies the manifests, with a shorter propagation delay than the default.
    fn new(cluster: &'c Cluster, ns: &'c str) -> Result<Self> {
        let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/certgen");
        let manifests = cluster.kubectl(["kustomize".as_ref(), manifests.as_os_str()]).ok()?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(manifests.replace(NAMESPACE, ns)).ok()?;
        let dir = cluster.temp_dir("certgen")?;
        let profile = dir.join("profile.yaml").display().to_string();
        fs::write(&profile, format!("{PROFILE}propagationDelay: 2s\n"))?;
        let kubeconfig = service_account(cluster, &dir, ns, "trustspan-certgen")?;
        Ok(Self { cluster, ns, dir, profile, kubeconfig })
    }

    fn spawn(&self, more: &[&str]) -> Result<Child> {
        Command::new(env!("CARGO_BIN_EXE_trustspan"))
            .args(["certgen", "-f", &self.profile, "-n", self.ns, "--kubeconfig", &self.kubeconfig])
            .args(more)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting trustspan")
    }

    fn run(&self, more: &[&str]) -> Result<(Option<i32>, String, String)> {
        let output = self.spawn(more)?.wait_with_output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    }

    /// Runs certgen, which must succeed, and returns its output.
    fn succeeds(&self, more: &[&str]) -> Result<String> {
        let (code, stdout, stderr) = self.run(more)?;
        ensure!(code == Some(0), "{more:?}: saw {code:?}: {stdout}{stderr}");
        Ok(stdout)
    }

    /// Runs certgen, which must fail with these words.
    fn fails(&self, more: &[&str], why: &[&str]) -> Result<()> {
        let (code, stdout, stderr) = self.run(more)?;
        ensure!(
            code == Some(1) && why.iter().all(|why| stderr.contains(why)),
            "{more:?}: saw {code:?}: {stdout}{stderr}"
        );
        Ok(())
    }

    /// Runs certgen until its first write, and kills it then. Returns false if it ended without being killed.
    fn kill_after_a_write(&self, more: &[&str]) -> Result<bool> {
        let mut child = self.spawn(more)?;
        let lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
        for line in lines {
            let line = line?;
            // After the last write of a rotation, the next run would begin another one.
            let is_other = ["waiting", "delete", "the rotation", "nothing"].iter().any(|word| line.starts_with(word));
            if !is_other {
                child.kill()?;
                child.wait()?;
                return Ok(true);
            }
        }
        let mut stderr = String::new();
        child.stderr.take().context("stderr")?.read_to_string(&mut stderr)?;
        let status = child.wait()?;
        ensure!(status.success(), "saw {status}: {stderr}");
        Ok(false)
    }

    fn secret(&self, name: &str) -> Result<Value> {
        self.cluster.get("secret", self.ns, name)
    }

    fn data(&self, name: &str, key: &str) -> Result<String> {
        let secret = self.secret(name)?;
        let value = secret["data"][key].as_str().with_context(|| format!("{name} has no {key}"))?;
        Ok(String::from_utf8(STANDARD.decode(value)?)?)
    }

    fn is_pending(&self) -> Result<bool> {
        self.cluster.exists("secret", self.ns, PENDING)
    }

    /// The CAs of the bundles, which must all be equal.
    fn cas(&self) -> Result<Vec<String>> {
        let bundles: BTreeSet<_> = SECRETS.iter().map(|name| self.data(name, "ca.crt")).collect::<Result<_>>()?;
        ensure!(bundles.len() == 1, "expected one bundle, saw {bundles:?}");
        let end = "-----END CERTIFICATE-----\n";
        Ok(bundles.iter().flat_map(|bundle| bundle.split_inclusive(end).map(str::to_owned)).collect())
    }

    /// Verifies the certificates with openssl.
    fn verify(&self) -> Result<()> {
        let newest = self.cas()?.into_iter().next().context("a CA")?;
        for name in SECRETS {
            let write = |file: &str, text: &str| fs::write(self.dir.join(file), text);
            write("ca.crt", &newest)?;
            write("tls.crt", &self.data(name, "tls.crt")?)?;
            write("tls.key", &self.data(name, "tls.key")?)?;
            let openssl = |args: &[&str]| -> Result<String> {
                let output = Command::new("openssl").args(args).current_dir(&self.dir).output()?;
                ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
                Ok(String::from_utf8(output.stdout)?)
            };
            openssl(&["verify", "-x509_strict", "-CAfile", "ca.crt", "tls.crt"])?;
            let of_key = openssl(&["pkey", "-in", "tls.key", "-pubout"])?;
            ensure!(
                of_key == openssl(&["x509", "-in", "tls.crt", "-noout", "-pubkey"])?,
                "{name}: the key of another certificate"
            );
            let shown = openssl(&["x509", "-in", "tls.crt", "-noout", "-text"])?;
            let host = if name == "envoy-gateway" {
                format!("envoy-gateway.{}.svc,", self.ns)
            } else {
                format!("*.{}\n", self.ns)
            };
            ensure!(shown.contains("(2048 bit)") && shown.contains(&format!("DNS:{host}")), "{name}: {shown}");
        }
        Ok(())
    }

    fn deploy(&self) -> Result<()> {
        self.cluster.apply(self.ns, &deployment(LIMITER, "envoy-rate-limit", &[]).to_string()).map(drop)
    }

    /// Acts as the kubelet: reports that the pods are ready.
    fn bring_up(&self) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
        let up = json!({ "status": { "phase": "Running", "conditions": [ready] } }).to_string();
        for pod in self.cluster.list("pods", self.ns, &format!("app={LIMITER}"))? {
            let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
            let args = ["patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", &up];
            // The pod may be deleted already.
            self.cluster.kubectl(args).ns(self.ns).run()?;
        }
        Ok(())
    }

    /// Runs `act` while pods become ready.
    fn while_pods_come_up<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let kubelet = scope.spawn(|| -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    self.bring_up()?;
                    thread::sleep(Duration::from_millis(200));
                }
                Ok(())
            });
            let result = act();
            is_over.store(true, Ordering::Relaxed);
            kubelet.join().map_err(|_| anyhow::anyhow!("the kubelet panicked"))??;
            result
        })
    }
}

/// Writes a kubeconfig for a ServiceAccount.
fn service_account(cluster: &Cluster, dir: &Path, ns: &str, name: &str) -> Result<String> {
    let mut kubeconfig: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig(User::Admin))?)?;
    kubeconfig["users"][0]["user"]["as"] = json!(format!("system:serviceaccount:{ns}:{name}"));
    let path = dir.join(format!("{name}.kubeconfig"));
    fs::write(&path, kubeconfig.to_string())?;
    Ok(path.display().to_string())
}

/// A webhook configuration that selects nothing.
fn injector(ns: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": format!("envoy-gateway-topology-injector.{ns}") },
        "webhooks": [{
            "name": "topology.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "clientConfig": { "service": { "name": "envoy-gateway", "namespace": ns } },
            "namespaceSelector": { "matchLabels": { "certgen-test": "nothing" } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"] }],
        }],
    })
}

fn rotations_that_are_killed_after_each_write_are_completed_by_the_next_run(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let certgen = Certgen::new(cluster, ns)?;
        while certgen.kill_after_a_write(&[])? {}
        let nothing = certgen.succeeds(&[])?;
        ensure!(nothing == "nothing to do: 4 Secrets exist\n", "saw {nothing}");
        for name in SECRETS {
            let secret = certgen.secret(name)?;
            expect(name, &secret["type"], "kubernetes.io/tls")?;
            expect(name, &secret["metadata"]["labels"]["control-plane"], "envoy-gateway")?;
        }
        certgen.verify()?;
        let hmac = certgen.secret(HMAC)?;
        ensure!(
            STANDARD.decode(hmac["data"]["hmac-secret"].as_str().context("hmac-secret")?)?.len() == 32,
            "its length"
        );
        certgen.deploy()?;
        let configuration = injector(ns);
        let injector = configuration["metadata"]["name"].as_str().context("a name")?;
        cluster.kubectl(["create", "-f", "-"]).stdin(configuration.to_string()).ok()?;

        let result = certgen.while_pods_come_up(|| {
            let mut newest = certgen.cas()?;
            ensure!(newest.len() == 1, "expected one CA, saw {newest:?}");
            for rotation in 1..=3 {
                let mut killed = 0;
                while certgen.kill_after_a_write(&["--overwrite"])? {
                    killed += 1;
                }
                let cas = certgen.cas()?;
                ensure!(
                    cas.len() == 2 && cas[1] == newest[0],
                    "rotation {rotation}: expected the new CA, then the last one"
                );
                newest = cas;
                certgen.verify()?;
                ensure!(killed >= 9, "rotation {rotation}: {killed} runs were killed");
                ensure!(!certgen.is_pending()?, "rotation {rotation}: the pending Secret is left");
                let rollouts = cluster.list("replicasets", ns, &format!("app={LIMITER}"))?.len();
                ensure!(rollouts == 1 + 2 * rotation, "rotation {rotation}: {rollouts} rollouts");
                let stored = cluster.get("mutatingwebhookconfiguration", "", injector)?;
                let bundle = stored["webhooks"][0]["clientConfig"]["caBundle"].as_str().context("caBundle")?;
                ensure!(
                    STANDARD.decode(bundle)? == newest.concat().as_bytes(),
                    "rotation {rotation}: another caBundle"
                );
            }
            Ok(())
        });
        cluster.kubectl(["delete", "mutatingwebhookconfiguration", injector]).ok()?;
        result?;
        // Neither the content of the Secret nor its metadata has changed.
        expect(HMAC, &certgen.secret(HMAC)?, hmac)
    })
}

fn two_runs_at_once_make_one_rotation(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let certgen = Certgen::new(cluster, ns)?;
        let both = |more: &[&str]| -> Result<()> {
            let children = [certgen.spawn(more)?, certgen.spawn(more)?];
            for child in children {
                let output = child.wait_with_output()?;
                ensure!(output.status.success(), "saw {}", String::from_utf8_lossy(&output.stderr));
            }
            certgen.verify()
        };
        both(&[])?;
        let first = certgen.cas()?;
        both(&["--overwrite"])?;
        let cas = certgen.cas()?;
        ensure!(first.len() == 1 && cas.len() == 2 && cas[1] == first[0], "expected one rotation");
        ensure!(!certgen.is_pending()?, "the pending Secret is left");
        certgen.succeeds(&["--overwrite", "--single-write"])?;
        ensure!(certgen.cas()?[1] == cas[0], "expected the last CA to be kept");
        certgen.verify()
    })
}

fn a_rotation_outlasts_a_restart_of_the_api_server(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let certgen = Certgen::new(cluster, ns)?;
        certgen.succeeds(&[])?;
        let first = certgen.cas()?;
        let child = certgen.spawn(&["--overwrite"])?;
        wait_for("the rotation to begin", SOON, || certgen.is_pending())?;
        cluster.restart_api_server()?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "saw {}", String::from_utf8_lossy(&output.stderr));
        let cas = certgen.cas()?;
        ensure!(cas.len() == 2 && cas[1] == first[0], "expected one rotation");
        certgen.verify()
    })
}

fn stops_with_what_to_do(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let mut certgen = Certgen::new(cluster, ns)?;
        let granted = certgen.kubeconfig.clone();
        certgen.kubeconfig = service_account(cluster, &certgen.dir, ns, "stranger")?;
        certgen.fails(&[], &["cannot read Secret envoy-gateway", "forbidden", "manifests/certgen"])?;
        certgen.kubeconfig = granted;
        certgen.succeeds(&[])?;
        certgen.deploy()?;

        let pause = |paused: bool| {
            let verb = if paused { "pause" } else { "resume" };
            cluster.kubectl(["rollout", verb, "deployment", LIMITER]).ns(ns).ok()
        };
        pause(true)?;
        certgen.fails(&["--overwrite"], &["deployment/envoy-ratelimit", "kubectl rollout resume"])?;
        ensure!(!certgen.is_pending()?, "a rotation was begun");
        pause(false)?;

        // No thread makes its pods ready.
        let leaf = certgen.data("envoy", "tls.crt")?;
        certgen
            .fails(&["--overwrite", "--timeout=2s"], &["waited 2s for the rollout of deployment/envoy-ratelimit"])?;
        ensure!(certgen.is_pending()? && certgen.data("envoy", "tls.crt")? == leaf, "the certificate was written");
        ensure!(certgen.cas()?.len() == 2, "expected both CAs");
        let said = certgen.succeeds(&[])?;
        ensure!(said.contains("run with --overwrite to resume it"), "saw {said}");
        certgen.while_pods_come_up(|| certgen.succeeds(&["--overwrite"]))?;
        ensure!(!certgen.is_pending()? && certgen.data("envoy", "tls.crt")? != leaf, "the rotation is not complete");
        certgen.verify()?;

        cluster.kubectl(["delete", "secret", "envoy"]).ns(ns).ok()?;
        certgen.fails(&[], &["Secret envoy is missing", "--overwrite"])?;
        cluster.kubectl(["create", "secret", "generic", "envoy", "--from-literal=a=b"]).ns(ns).ok()?;
        for more in [&[][..], &["--overwrite"]] {
            certgen.fails(more, &["Secret envoy has type Opaque, expected kubernetes.io/tls"])?;
        }
        ensure!(!certgen.is_pending()?, "a rotation was begun");
        Ok(())
    })
}
