//! etcd, kube-apiserver and kube-controller-manager, as processes on loopback.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{
    assets::exported,
    audit,
    kubectl::Kubectl,
    pki::{Authority, token_keys},
    process::{Process, Scratch},
    users::{self, User},
    wait::{free_port, wait_for},
};

/// Longer than the start takes on any machine: 3 s are usual, a busy CI runner takes more.
const READY: Duration = Duration::from_secs(90);

/// The API server's audit log.
pub(super) const AUDIT_LOG: &str = "audit.log";

/// The paths of the binaries that `tests/bed/setup` has installed.
pub(super) struct Assets {
    path: Vec<PathBuf>,
    pub(super) crds: PathBuf,
}

impl Assets {
    /// Runs `tests/bed/setup` to find the binaries.
    pub(super) fn locate() -> Result<Self> {
        let [path, crds] = exported("setup", &[], ["TRUSTSPAN_BED_PATH", "TRUSTSPAN_BED_CRDS"])?;
        Ok(Self { path: path.split(':').map(PathBuf::from).collect(), crds: PathBuf::from(crds) })
    }

    pub(super) fn binary(&self, name: &str) -> Result<PathBuf> {
        let found = self.path.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
        found.with_context(|| format!("no {name} in {:?}", self.path))
    }
}

/// The three processes. The log of each is next to its data.
pub(super) struct ControlPlane {
    // Fields are dropped in this order: clients before the server, so that they do not retry.
    controller_manager: Mutex<Process>,
    api_server: Mutex<Process>,
    etcd_url: String,
    etcd: Mutex<Process>,
}

impl ControlPlane {
    /// Kills the API server, starts it again and waits until it is ready. Its data is in etcd.
    pub(super) fn restart_api_server(&self, scratch: &Scratch, kubectl: &Path) -> Result<()> {
        self.api_server().kill()?;
        self.start_api_server(scratch, kubectl)
    }

    /// Starts the API server after it was killed, and waits until it is ready.
    pub(super) fn start_api_server(&self, scratch: &Scratch, kubectl: &Path) -> Result<()> {
        let mut api_server = self.api_server();
        api_server.start_again(scratch)?;
        let ready = wait_for("the API server to be ready again", READY, || is_ready(scratch, kubectl));
        ready.with_context(|| api_server.log_tail(25))
    }

    /// Kills etcd and starts it again. Its data was given to the kernel, and is still there.
    pub(super) fn restart_etcd(&self, scratch: &Scratch) -> Result<()> {
        self.etcd().restart(scratch)
    }

    /// etcd's process.
    pub(super) fn etcd(&self) -> MutexGuard<'_, Process> {
        self.etcd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts another API server, with separate data, that accepts every client with a certificate of a CA in a file. Waits until it listens.
    /// Returns its port. Its serving certificate is the one of the first.
    pub(super) fn second_api_server(
        &self,
        scratch: &Scratch,
        name: &str,
        client_ca: &Path,
        flags: &[String],
    ) -> Result<(Process, u16)> {
        let port = free_port()?;
        let file = |name: &str| scratch.join(name).display().to_string();
        let mut process = scratch.spawn(
            name,
            &Assets::locate()?.binary("kube-apiserver")?,
            [
                format!("--etcd-servers={}", self.etcd_url),
                format!("--etcd-prefix=/{name}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file("apiserver/tls.crt")),
                format!("--tls-private-key-file={}", file("apiserver/tls.key")),
                format!("--client-ca-file={}", client_ca.display()),
                "--authorization-mode=AlwaysAllow".to_owned(),
                "--anonymous-auth=false".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", file("service-accounts.pub")),
                format!("--service-account-signing-key-file={}", file("service-accounts.key")),
                "--profiling=false".to_owned(),
            ]
            .into_iter()
            .chain(flags.iter().cloned()),
            &[],
        )?;
        wait_for("the second API server to listen", READY, || {
            if let Some(status) = process.exited()? {
                bail!("exit status {status}\n{}", process.log_tail(25));
            }
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        })?;
        Ok((process, port))
    }

    /// Restarts kube-controller-manager, which reads its kubeconfig and the root CA when it starts.
    pub(super) fn restart_controller_manager(&self, scratch: &Scratch) -> Result<()> {
        self.controller_manager.lock().unwrap_or_else(PoisonError::into_inner).restart(scratch)
    }

    /// The API server's process.
    pub(super) fn api_server(&self) -> MutexGuard<'_, Process> {
        self.api_server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts all three processes, the API server with more flags, and waits for the API server. Another process may take a
    /// port between its choice and its use, in which case the start is retried.
    pub(super) fn start(assets: &Assets, scratch: &Scratch, flags: &[&str]) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::try_start(assets, scratch, flags, tries) {
                Err(error) if tries < 3 && format!("{error:#}").contains("address already in use") => {
                    eprintln!("cluster: a port was taken meanwhile, trying again");
                }
                result => return result,
            }
        }
    }

    fn try_start(assets: &Assets, scratch: &Scratch, flags: &[&str], attempt: u32) -> Result<Self> {
        let (etcd_port, port) = (free_port()?, free_port()?);
        let (etcd_url, url) = (format!("http://127.0.0.1:{etcd_port}"), format!("https://127.0.0.1:{port}"));
        let file = |name: &str| scratch.join(name).display().to_string();

        let authority = Authority::new("trustspan test bed")?;
        authority.issue_to(&scratch.join("apiserver"))?;
        let clients = Authority::new("trustspan test bed clients")?;
        fs::create_dir_all(scratch.join("clients"))?;
        clients.write_ca(&scratch.join("clients"), ["ca.key", "ca.crt", "root.crt", "chain.crt"])?;
        let (certificate, key) = clients.issue_client("kube-apiserver")?;
        fs::write(scratch.join("clients/kubelet.crt"), certificate)?;
        fs::write(scratch.join("clients/kubelet.key"), key)?;
        let (private, public) = token_keys()?;
        fs::write(scratch.join("service-accounts.key"), private)?;
        fs::write(scratch.join("service-accounts.pub"), public)?;
        users::write_all(scratch.path(), &url, &authority.pem())?;
        // JSON is YAML.
        fs::write(scratch.join("audit-policy.yaml"), audit::policy().to_string())?;

        // The data is not needed after a crash, so etcd does not sync it to disk.
        let mut etcd = scratch.spawn(
            "etcd",
            &assets.binary("etcd")?,
            [
                "--unsafe-no-fsync".to_owned(),
                format!("--data-dir={}", file(&format!("etcd-{attempt}"))),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
                "--log-level=warn".to_owned(),
            ],
            &[],
        )?;
        let mut api_server = scratch.spawn(
            "kube-apiserver",
            &assets.binary("kube-apiserver")?,
            [
                format!("--etcd-servers={etcd_url}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                // Loopback is not a valid address for the Service `kubernetes`, which no test uses.
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file("apiserver/tls.crt")),
                format!("--tls-private-key-file={}", file("apiserver/tls.key")),
                format!("--token-auth-file={}", file("tokens.csv")),
                format!("--client-ca-file={}", file("clients/ca.crt")),
                // For `kubectl logs` and `kubectl exec` of pods on a node.
                format!("--kubelet-client-certificate={}", file("clients/kubelet.crt")),
                format!("--kubelet-client-key={}", file("clients/kubelet.key")),
                "--kubelet-preferred-address-types=InternalIP".to_owned(),
                "--enable-bootstrap-token-auth".to_owned(),
                "--authorization-mode=RBAC".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", file("service-accounts.pub")),
                format!("--service-account-signing-key-file={}", file("service-accounts.key")),
                format!("--audit-policy-file={}", file("audit-policy.yaml")),
                format!("--audit-log-path={}", file(AUDIT_LOG)),
                // Megabytes. A log that is rotated would lose requests that tests count.
                "--audit-log-maxsize=10000".to_owned(),
                // Kubernetes 1.36 serves ClusterTrustBundles only with this feature gate.
                "--feature-gates=ClusterTrustBundle=true".to_owned(),
                "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true".to_owned(),
                "--profiling=false".to_owned(),
            ]
            .into_iter()
            .chain(flags.iter().map(|&flag| flag.to_owned())),
            &[],
        )?;
        let kubectl = assets.binary("kubectl")?;
        let ready = wait_for("the API server to be ready", READY, || {
            for process in [&mut etcd, &mut api_server] {
                if let Some(status) = process.exited()? {
                    // Counts as success, which ends the wait.
                    eprintln!("cluster: exit status {status} while starting");
                    return Ok(true);
                }
            }
            is_ready(scratch, &kubectl)
        });
        let logs = || format!("{}{}", etcd.log_tail(15), api_server.log_tail(25));
        ready.with_context(logs)?;
        if etcd.exited()?.is_some() || api_server.exited()?.is_some() {
            bail!("the control plane did not start\n{}{}", etcd.log_tail(15), api_server.log_tail(25));
        }

        let controller_manager = scratch.spawn(
            "kube-controller-manager",
            &assets.binary("kube-controller-manager")?,
            [
                format!("--kubeconfig={}", file(User::Admin.kubeconfig())),
                // Controllers get separate user names for namespace deletion and garbage collection, as in a real
                // cluster.
                "--use-service-account-credentials".to_owned(),
                format!("--service-account-private-key-file={}", file("service-accounts.key")),
                format!("--root-ca-file={}", file("apiserver/ca.crt")),
                format!("--cluster-signing-cert-file={}", file("clients/ca.crt")),
                format!("--cluster-signing-key-file={}", file("clients/ca.key")),
                "--leader-elect=false".to_owned(),
                "--secure-port=0".to_owned(),
                // A test run creates and deletes namespaces continuously; the default limit is 20 requests per second.
                "--kube-api-qps=200".to_owned(),
                "--kube-api-burst=400".to_owned(),
            ],
            &[],
        )?;
        let (api_server, controller_manager) = (Mutex::new(api_server), Mutex::new(controller_manager));
        Ok(Self { controller_manager, api_server, etcd_url, etcd: Mutex::new(etcd) })
    }
}

fn is_ready(scratch: &Scratch, kubectl: &Path) -> Result<bool> {
    Ok(Kubectl::new(kubectl, scratch.path(), ["get", "--raw=/readyz"]).run()?.success())
}
