//! The real `trustspan-node mirror`, with the rights of `manifests/node`.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    assets::trustspan_node,
    cluster::{Cluster, SOON},
    server::http_get,
    users::{User, base64},
    wait::{free_port, wait_for},
};

/// The rights of `manifests/node` for the objects of one namespace, and a kubeconfig of the ServiceAccount.
pub(crate) struct MirrorRights {
    pub(crate) account: String,
    pub(crate) kubeconfig: PathBuf,
}

impl MirrorRights {
    /// Grants them for an object that has this kind and name.
    pub(crate) fn grant(cluster: &Cluster, ns: &str, kind: &str, name: &str) -> Result<Self> {
        Self::grant_to(cluster, ns, kind, name, &format!("mirror-{}", cluster.unique()))
    }

    /// The same for a ServiceAccount that may exist.
    pub(crate) fn grant_to(cluster: &Cluster, ns: &str, kind: &str, name: &str, account: &str) -> Result<Self> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/node");
        let rights =
            fs::read_to_string(dir.join("rbac.yaml"))? + "---\n" + &fs::read_to_string(dir.join("policy.yaml"))?;
        let rights = rights
            .replace("istio-ingress", ns)
            .replace("[secrets]", &format!("[{kind}s]"))
            .replace("[ingress-gateway]", &format!("[{name}]"))
            .replace("trustspan-mirror", account);
        cluster.kubectl(["apply", "-f", "-"]).stdin(fs::read_to_string(dir.join("namespace.yaml"))?).ok()?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(rights).ok()?;
        let token = cluster.kubectl(["create", "token", account, "-n", "trustspan-node", "--duration=2h"]).ok()?;
        // JSON is YAML.
        let mut kubeconfig: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig(User::Admin))?)?;
        kubeconfig["users"][0]["user"] = json!({ "token": token.trim() });
        let file = cluster.temp_dir("mirror-rights")?.join("kubeconfig");
        fs::write(&file, kubeconfig.to_string())?;
        Ok(Self { account: account.to_owned(), kubeconfig: file })
    }

    /// A kubeconfig for a server that does not exist.
    pub(crate) fn unreachable(cluster: &Cluster) -> Result<Self> {
        let server = format!("https://127.0.0.1:{}", free_port()?);
        let ca = base64(&cluster.bed_ca()?);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [{ "name": "bed", "cluster": { "server": server, "certificate-authority-data": ca } }],
            "users": [{ "name": "mirror", "user": { "token": "none" } }],
            "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "mirror" } }],
        });
        let file = cluster.temp_dir("mirror-rights")?.join("kubeconfig");
        fs::write(&file, kubeconfig.to_string())?;
        Ok(Self { account: String::new(), kubeconfig: file })
    }
}

/// Kills a process, by its id, when its standard input ends: when this process does, in whatever way.
const GUARD: &str = r#"while read -r _; do :; done; kill -KILL "$1""#;

/// A running mirror. Dropping it kills it.
pub(crate) struct Mirror {
    child: Child,
    guard: Child,
    port: u16,
    log: PathBuf,
}

impl Mirror {
    /// Mirrors key `ca.crt` of an object to `ca.crt` in a directory. It is a direct child, so that it can be killed within microseconds.
    pub(crate) fn start(
        cluster: &Cluster,
        rights: &MirrorRights,
        source: &str,
        directory: &Path,
        flags: &[&str],
    ) -> Result<Self> {
        let port = free_port()?;
        let log = cluster.temp_dir("mirror")?.join("log");
        let child = Command::new(trustspan_node())
            .args(["mirror", "--from", source, "--node", "node-1", "--poll", "100ms", "--log-level", "info"])
            .args([&format!("--metrics-listen=127.0.0.1:{port}"), "--to"])
            .arg(directory)
            .arg("--kubeconfig")
            .arg(&rights.kubeconfig)
            .args(flags)
            .args((!flags.contains(&"--signers")).then_some("--any-signer"))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .context("starting trustspan-node")?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting sh")?;
        Ok(Self { child, guard, port, log })
    }

    /// SIGKILL, and the end of the process.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.reap()
    }

    /// Waits for the end of the process. Its guard ends first: afterwards the process id may be that of another process.
    fn reap(&mut self) -> Result<()> {
        self.guard.kill()?;
        self.guard.wait()?;
        self.child.wait().map(drop).map_err(Into::into)
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let pid = self.child.id().to_string();
        ensure!(
            Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid]).status()?.success(),
            "{name}"
        );
        Ok(())
    }

    /// Sends SIGTERM, and waits for a clean exit.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.signal("TERM")?;
        self.guard.kill()?;
        self.guard.wait()?;
        wait_for("the mirror to exit", SOON, || Ok(self.child.try_wait()?.is_some()))?;
        ensure!(self.child.wait()?.success(), "{}", self.log());
        Ok(())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Status code and body of a path of its port.
    pub(crate) fn request(&self, path: &str) -> Result<(u16, String)> {
        http_get(self.port, path)
    }

    /// Waits until a path of its port answers with a code and these words.
    pub(crate) fn wait_answer(&self, path: &str, code: u16, words: &str) -> Result<()> {
        let waited = wait_for(&format!("{path} to answer {code} {words}"), SOON, || {
            let (seen, body) = self.request(path)?;
            ensure!(seen == code && body.contains(words), "saw {seen} {body}");
            Ok(true)
        });
        waited.with_context(|| self.log())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.reap();
    }
}
