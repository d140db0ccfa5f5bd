//! The control plane that tests use.

use std::{
    any::Any,
    ffi::{OsStr, OsString},
    fs,
    panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    assets::trustspan,
    audit::{self, Request},
    control_plane::{AUDIT_LOG, Assets, ControlPlane},
    dump, keys,
    kubectl::Kubectl,
    pki::Authority,
    process::{Process, Scratch, forget_started},
    users::{self, User},
    wait::wait_for,
};

/// A file of `manifests/base`.
pub(crate) fn shipped(name: &str) -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/base").join(name);
    fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// All YAML files of a directory, as one text.
pub(crate) fn documents(dir: &Path) -> Result<String> {
    let mut text = String::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        text += &format!("---\n{}\n", fs::read_to_string(entry?.path())?);
    }
    Ok(text)
}

/// Limit for an action of a controller: it takes seconds on an idle machine, more on a busy one.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A running control plane with the CRDs of Istio and of the Gateway API.
pub(crate) struct Cluster {
    control_plane: ControlPlane,
    kubectl: PathBuf,
    counter: AtomicU32,
    /// The number of lines that the API server logged before the first test.
    boot_lines: usize,
    // Declared last, so that it is dropped last: the processes above must end before their files are removed.
    scratch: Scratch,
}

impl Cluster {
    /// Boots a control plane. It ends when this value is dropped, or when this process ends for any reason.
    pub(crate) fn boot() -> Result<Self> {
        let assets = Assets::locate()?;
        let started = Instant::now();
        let scratch = Scratch::new()?;
        let control_plane = ControlPlane::start(&assets, &scratch, &[])?;
        let ready = started.elapsed();
        let boot_lines = control_plane.api_server().log().lines().count();
        let (kubectl, counter) = (assets.binary("kubectl")?, AtomicU32::new(0));
        let cluster = Self { control_plane, kubectl, counter, boot_lines, scratch };
        let mut crds = documents(&assets.crds)?;
        crds += &format!("---\n{}\n", shipped("crd.yaml")?);
        cluster.apply_crds(&crds)?;
        for manifest in ["namespace.yaml", "rbac.yaml", "policy.yaml"] {
            cluster.kubectl(["apply", "-f", "-"]).stdin(shipped(manifest)?).ok()?;
        }
        cluster.kubectl(["apply", "-f", "-"]).stdin(users::RIGHTS).ok()?;
        // A controller aggregates the ClusterRole `edit` some time after start.
        wait_for("dev's rights", SOON, || {
            let can = cluster.kubectl(["auth", "can-i", "patch", "gateways.networking.istio.io"]);
            Ok(can.user(User::Dev).run()?.success())
        })?;
        eprintln!("cluster: API server ready after {ready:.1?}, CRDs after {:.1?}", started.elapsed());
        Ok(cluster)
    }

    /// Boots a control plane without anything of trustspan.
    pub(crate) fn boot_empty() -> Result<Self> {
        Self::boot_with(&[])
    }

    /// The same, with more flags of the API server.
    pub(crate) fn boot_with(flags: &[&str]) -> Result<Self> {
        let (assets, scratch) = (Assets::locate()?, Scratch::new()?);
        let control_plane = ControlPlane::start(&assets, &scratch, flags)?;
        let (kubectl, counter) = (assets.binary("kubectl")?, AtomicU32::new(0));
        Ok(Self { control_plane, kubectl, counter, boot_lines: 0, scratch })
    }

    /// Boots a control plane with trustspan's CRDs alone.
    pub(crate) fn boot_small() -> Result<Self> {
        let cluster = Self::boot_empty()?;
        cluster.apply_crds(&shipped("crd.yaml")?)?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(shipped("namespace.yaml")?).ok()?;
        Ok(cluster)
    }

    /// The URL of the API server, and the CAs of its certificate in PEM.
    pub(crate) fn server(&self) -> Result<(String, String)> {
        let config: Value = serde_json::from_str(&fs::read_to_string(self.kubeconfig(User::Admin))?)?;
        let url = config["clusters"][0]["cluster"]["server"].as_str().context("no server")?.to_owned();
        Ok((url, fs::read_to_string(self.scratch.join("apiserver/ca.crt"))?))
    }

    /// Publishes these CAs of the API server: to all users, and by a restarted kube-controller-manager to all namespaces.
    pub(crate) fn publish_server_cas(&self, pem: &str) -> Result<()> {
        for user in User::ALL {
            let mut config: Value = serde_json::from_str(&fs::read_to_string(self.kubeconfig(user))?)?;
            config["clusters"][0]["cluster"]["certificate-authority-data"] = users::base64(pem).into();
            fs::write(self.kubeconfig(user), config.to_string())?;
        }
        fs::write(self.scratch.join("apiserver/ca.crt"), pem)?;
        self.control_plane.restart_controller_manager(&self.scratch)
    }

    /// Gives the API server a certificate of another CA. It reloads the files.
    pub(crate) fn serve_certificate_of(&self, authority: &Authority) -> Result<()> {
        let (certificate, key) = authority.issue(&["localhost", "127.0.0.1"])?;
        for (name, content) in [("tls.key", key), ("tls.crt", certificate)] {
            let unnamed = self.scratch.join(&format!("apiserver/.{name}.new"));
            fs::write(&unnamed, content)?;
            fs::rename(&unnamed, self.scratch.join(&format!("apiserver/{name}")))?;
        }
        Ok(())
    }

    /// Fails if a log of this run, which has what trustspan wrote and answered, has part of a private key.
    pub(crate) fn scan_for_keys(&self) -> Result<()> {
        keys::scan(self.scratch.path())
    }

    /// Stops the API server for good.
    pub(crate) fn stop_api_server(&self) -> Result<()> {
        self.control_plane.api_server().kill()
    }

    /// Runs one test on the calling thread.
    pub(crate) fn run(&self, test: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
        forget_started();
        test(self)
    }

    /// kubectl against this cluster, as [`User::Admin`] by default.
    pub(crate) fn kubectl<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Kubectl {
        Kubectl::new(&self.kubectl, self.scratch.path(), args)
    }

    /// Starts a kubectl that runs until it is dropped, such as a watch. Its log has what it printed.
    pub(crate) fn start_kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Result<Process> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig(User::Admin).display());
        let args = args.into_iter().map(str::to_owned).chain([kubeconfig]);
        self.spawn(&format!("kubectl-{}", self.unique()), &self.kubectl, args, &[])
    }

    /// Runs a command line of `kubectl` and `trustspan` from a message, as a person would.
    pub(crate) fn run_command(&self, line: &str) -> Result<()> {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("PATH", self.path_with(&[])?).env("KUBECONFIG", self.kubeconfig(User::Admin));
        let ran = shell.output()?;
        ensure!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(())
    }

    /// `PATH` with `kubectl`, `trustspan` and these programs.
    pub(crate) fn path_with(&self, programs: &[&Path]) -> Result<OsString> {
        let trustspan = trustspan();
        let programs = [&self.kubectl, &*trustspan].into_iter().chain(programs.iter().copied());
        let folders = programs.filter_map(Path::parent).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        Ok(std::env::join_paths(folders.chain(std::env::split_paths(&path)))?)
    }

    /// The kubeconfig of a user.
    pub(crate) fn kubeconfig(&self, user: User) -> PathBuf {
        self.scratch.join(user.kubeconfig())
    }

    /// A copy of a user's kubeconfig with another address.
    pub(crate) fn kubeconfig_for(&self, user: User, server: &str) -> Result<PathBuf> {
        let mut config: Value = serde_json::from_str(&fs::read_to_string(self.kubeconfig(user))?)?;
        *config.pointer_mut("/clusters/0/cluster/server").context("a kubeconfig without server")? = server.into();
        let file = self.temp_dir("kubeconfig")?.join("kubeconfig");
        fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// A directory for one test, deleted after the run.
    pub(crate) fn temp_dir(&self, hint: &str) -> Result<PathBuf> {
        let dir = self.scratch.join(&format!("{hint}-{}", self.unique()));
        fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// A number that is unique in this run.
    pub(crate) fn unique(&self) -> u32 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    /// Applies CustomResourceDefinitions and waits until the API server serves them.
    pub(crate) fn apply_crds(&self, yaml: &str) -> Result<()> {
        // Server-side apply, because client-side apply would copy the whole CRD into an annotation, beyond its size
        // limit.
        self.kubectl(["apply", "--server-side", "--force-conflicts", "-f", "-"]).stdin(yaml).ok()?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "-f", "-"];
        self.kubectl(wait).stdin(yaml).ok().map(drop)
    }

    /// `kubectl apply` into a namespace.
    pub(crate) fn apply(&self, ns: &str, yaml: &str) -> Result<String> {
        self.kubectl(["apply", "-f", "-"]).ns(ns).stdin(yaml).ok()
    }

    /// The stored object. `kind` may carry version and group: `gateways.v1beta1.networking.istio.io`.
    pub(crate) fn get(&self, kind: &str, ns: &str, name: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(["get", kind, name, "-o", "json"]).ns(ns).ok()?)?)
    }

    /// The stored objects of a kind in a namespace, those that `selector` picks (all when it is empty).
    pub(crate) fn list(&self, kind: &str, ns: &str, selector: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(["get", kind, "-o", "json", "--selector", selector]).ns(ns).ok()?;
        let mut list: Value = serde_json::from_str(&text)?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Acts as the kubelet: reports that the pods of a Deployment are ready, until its rollout is complete.
    pub(crate) fn come_up(&self, ns: &str, name: &str) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
        let up = json!({ "status": { "phase": "Running", "conditions": [ready] } }).to_string();
        wait_for(&format!("the rollout of {name} to be complete"), SOON, || {
            for pod in self.list("pods", ns, &format!("app={name}"))? {
                let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
                let args = ["patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", &up];
                // The pod may be deleted already.
                self.kubectl(args).ns(ns).run()?;
            }
            let stored = self.get("deployment", ns, name)?;
            let status = &stored["status"];
            Ok(status["observedGeneration"] == stored["metadata"]["generation"]
                && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|count| status[count] == 1))
        })
    }

    /// Whether an object exists.
    pub(crate) fn exists(&self, kind: &str, ns: &str, name: &str) -> Result<bool> {
        Ok(!self.kubectl(["get", kind, name, "--ignore-not-found", "-o", "name"]).ns(ns).ok()?.is_empty())
    }

    /// Runs `test` in a new guarded namespace, and deletes that afterwards without waiting. If the test fails, the
    /// objects of the namespace and the log of the API server are printed to standard error.
    #[track_caller]
    pub(crate) fn with_temp_ns<T>(&self, test: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        // The namespace is named after the calling test, for readers of logs.
        let caller = Location::caller();
        let file = Path::new(caller.file()).file_stem().and_then(OsStr::to_str).unwrap_or("test").replace('_', "-");
        let ns = format!("{file}-{}-{}", caller.line(), self.unique());
        let guard = json!({ "trustspan.dev/guard": "enabled" });
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ns, "labels": guard } });
        self.kubectl(["create", "-f", "-"]).stdin(namespace.to_string()).ok()?;
        // A controller creates the ServiceAccount, which Pods need.
        wait_for("the ServiceAccount", SOON, || self.exists("serviceaccount", &ns, "default"))?;
        // A failed assertion panics. It gets the same report as an error.
        let result = catch_unwind(AssertUnwindSafe(|| test(&ns)));
        if !matches!(result, Ok(Ok(_))) {
            eprint!("{}", dump::namespace(self, &ns));
        }
        // The error is printed last, so that it is at the end of a long log.
        if let Ok(Err(error)) = &result {
            eprintln!("{ns}: {error:#}");
        }
        let deleted = self.kubectl(["delete", "namespace", &ns, "--wait=false", "--ignore-not-found"]).run();
        let value = result.unwrap_or_else(|panic: Box<dyn Any + Send>| resume_unwind(panic))?;
        ensure!(deleted.as_ref().is_ok_and(|output| output.success()), "deleting namespace {ns}: {deleted:?}");
        Ok(value)
    }

    /// The last warnings and errors of the API server since boot, without those of its connections to etcd.
    pub(crate) fn api_server_log_tail(&self, lines: usize) -> String {
        let log = self.control_plane.api_server().log();
        let lines_of_log: Vec<_> = log
            .lines()
            .skip(self.boot_lines)
            .filter(|line| !line.starts_with('I') && !line.contains("] [core] "))
            .collect();
        format!("--- kube-apiserver\n{}\n", lines_of_log[lines_of_log.len().saturating_sub(lines)..].join("\n"))
    }

    /// The requests of one of trustspan's users to the API server in this run, oldest first.
    pub(crate) fn requests(&self, user: User) -> Result<Vec<Request>> {
        audit::requests(&self.scratch.join(AUDIT_LOG), user)
    }

    /// The deletions by a user of kinds that a release has, oldest first.
    pub(crate) fn deletions(&self, user: User) -> Result<Vec<Request>> {
        let mut requests = self.requests(user)?;
        requests.retain(|request| request.verb == "delete");
        Ok(requests)
    }

    /// The audit annotations of each write of the Secret [`audit::AUDITED`] in a namespace, oldest first.
    pub(crate) fn audit_annotations(&self, ns: &str) -> Result<Vec<Value>> {
        audit::annotations(&self.scratch.join(AUDIT_LOG), ns)
    }

    /// Kills the API server and starts it again.
    pub(crate) fn restart_api_server(&self) -> Result<()> {
        self.control_plane.restart_api_server(&self.scratch, &self.kubectl)
    }

    /// Kills etcd and starts it again.
    pub(crate) fn restart_etcd(&self) -> Result<()> {
        self.control_plane.restart_etcd(&self.scratch)
    }

    /// Stops etcd with SIGSTOP for a while: the API server does not answer.
    pub(crate) fn stop_etcd(&self, lasts: Duration) -> Result<()> {
        self.control_plane.etcd().signal("STOP")?;
        std::thread::sleep(lasts);
        self.control_plane.etcd().signal("CONT")
    }

    /// Runs something while the API server is stopped, and waits until it is ready again.
    pub(crate) fn without_api_server(&self, run: impl FnOnce() -> Result<()>) -> Result<()> {
        self.control_plane.api_server().kill()?;
        let result = run();
        self.control_plane.start_api_server(&self.scratch, &self.kubectl)?;
        result
    }

    /// Another API server with more flags, whose clients have certificates of the CAs in a file; and its port. `bed_ca` verifies it.
    pub(crate) fn second_api_server(&self, client_ca: &Path, flags: &[String]) -> Result<(Process, u16)> {
        let name = format!("second-api-server-{}", self.unique());
        self.control_plane.second_api_server(&self.scratch, &name, client_ca, flags)
    }

    /// The CA of the API servers' certificates, in PEM.
    pub(crate) fn bed_ca(&self) -> Result<String> {
        Ok(fs::read_to_string(self.scratch.join("apiserver/ca.crt"))?)
    }

    /// The file with the CA of the API server's clients.
    pub(crate) fn client_ca(&self) -> PathBuf {
        self.scratch.join("clients/ca.crt")
    }

    /// Starts a process that lives no longer than this run; its log is among the cluster's files.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        &self,
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        env: &[(&str, &str)],
    ) -> Result<Process> {
        self.scratch.spawn(name, program, args, env)
    }
}
