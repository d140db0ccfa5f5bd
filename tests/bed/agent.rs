//! The real `trustspan agent`, with exactly the rights that `trustspan rbac` prints.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{assets::trustspan, cluster::Cluster, process::Process, server::http_get, users::User};

/// Agents for the GatewaySecrets of one namespace, with their Lease in it.
pub(crate) struct Agents<'c> {
    cluster: &'c Cluster,
    ns: String,
    /// The lease duration, for tests that kill many agents: shorter than the default. A leader on a machine that stalls
    /// for this long loses its Lease.
    pub(crate) lease: Option<&'static str>,
    /// Further command-line arguments.
    pub(crate) more: Vec<String>,
}

impl<'c> Agents<'c> {
    /// Creates the rights that agents need for the Lease.
    pub(crate) fn new(cluster: &'c Cluster, ns: &str) -> Result<Self> {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "lease" },
            "rules": [{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"] }],
        });
        cluster.apply(ns, &role.to_string())?;
        let user = format!("--user={}", User::Agent.name());
        cluster.kubectl(["create", "rolebinding", "lease", "--role=lease", &user]).ns(ns).ok()?;
        Ok(Self { cluster, ns: ns.to_owned(), lease: None, more: Vec::new() })
    }

    /// Applies the output of `trustspan rbac`, as an administrator does after the GatewaySecrets were created.
    pub(crate) fn grant(&self) -> Result<()> {
        self.grant_with(&[])
    }

    /// The same with flags, such as those of the administrator's consent to rights in other namespaces.
    pub(crate) fn grant_with(&self, flags: &[String]) -> Result<()> {
        // These kinds do not exist on a cluster without cert-manager.
        let all = ["get", "trustspan,certificates,issuers,clusterissuers", "-o", "yaml"];
        let all = self.cluster.kubectl(all).ns(&self.ns).run()?;
        let ours = || self.cluster.kubectl(["get", "trustspan", "-o", "yaml"]).ns(&self.ns).ok();
        let objects = if all.success() { all.stdout } else { ours()? };
        let file = self.cluster.temp_dir("rbac")?.join("objects.yaml");
        std::fs::write(&file, objects)?;
        let printed = Command::new(trustspan()).args(["rbac", "-f"]).arg(&file).args(flags).output()?;
        ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        self.cluster.kubectl(["apply", "-f", "-"]).stdin(printed.stdout).ok().map(drop)
    }

    /// Starts an agent with identity `name`. Dropping it kills it.
    pub(crate) fn start(&self, name: &str) -> Result<Process> {
        self.start_with(name, &self.cluster.kubeconfig(User::Agent), "2s")
    }

    /// The same with another kubeconfig and another `--poll`.
    pub(crate) fn start_with(&self, name: &str, kubeconfig: &Path, poll: &str) -> Result<Process> {
        self.start_program(&trustspan(), name, kubeconfig, poll)
    }

    /// The same with another binary of trustspan, if one is given.
    pub(crate) fn start_version(&self, binary: Option<&Path>, name: &str, kubeconfig: &Path) -> Result<Process> {
        self.start_program(binary.unwrap_or(&trustspan()), name, kubeconfig, "2s")
    }

    fn start_program(&self, program: &Path, name: &str, kubeconfig: &Path, poll: &str) -> Result<Process> {
        let kubeconfig = kubeconfig.display().to_string();
        let mut args = vec!["agent", "--kubeconfig", &kubeconfig, "--identity", name];
        args.extend(["--bind-address=127.0.0.1", "--metrics-port=0"]);
        args.extend(["--namespace", &self.ns, "--lease-namespace", &self.ns, "--poll", poll]);
        args.extend(self.lease.iter().flat_map(|lease| ["--lease-duration", lease]));
        args.extend(self.more.iter().map(String::as_str));
        let log = format!("agent-{}-{name}", self.cluster.unique());
        self.cluster.spawn(&log, program, args, &[("RUST_BACKTRACE", "1")])
    }

    /// The text of `/metrics` of a running agent.
    pub(crate) fn metrics(agent: &Process) -> Result<String> {
        let (status, body) = Self::request(agent, "/metrics")?;
        ensure!(status == 200, "/metrics: expected 200, saw {status}\n{body}");
        agent.log_metrics(&body)?;
        Ok(body)
    }

    /// Status code and body of a path on the port of one that runs.
    pub(crate) fn request(agent: &Process, path: &str) -> Result<(u16, String)> {
        http_get(Self::port(agent)?, path)
    }

    /// The port of `/metrics` of one that runs.
    pub(crate) fn port(agent: &Process) -> Result<u16> {
        let log = agent.log();
        let address = log.split("listening on http://127.0.0.1:").nth(1).context("the agent does not listen yet")?;
        address.split(':').next().unwrap_or_default().parse().with_context(|| address.to_owned())
    }
}
