//! containerd and the kubelet, as `tests/bed/node` runs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Cluster, Process, SOON, User, exported, free_port, own_address, wait_for};

/// The name of the node.
pub(crate) const NODE: &str = "node";
/// How often the kubelet updates the files of a pod, apart from changes of the pod: `syncFrequency`. The default is a minute.
pub(crate) const SYNC_FREQUENCY: &str = "10s";
/// The folder of a node, and its cgroup; the process id of the test run follows.
const FOLDER: &str = "trustspan-node-";

/// A node that runs pods. Dropping it ends all its containers.
pub(crate) struct Node {
    process: Option<Process>,
    folder: PathBuf,
}

impl Node {
    /// Starts a node, whose pods have a network by the configuration of a CNI plugin, and waits until it is ready.
    pub(crate) fn start(cluster: &Cluster, network: &Value) -> Result<Self> {
        let [assets] = exported("setup", &["node"], ["TRUSTSPAN_BED_NODE"])?;
        remove_cgroups(|run| !Path::new("/proc").join(run).exists())?;
        let folder = cluster.temp_dir(&format!("{FOLDER}{}", std::process::id()))?;
        let address = own_address()?.to_string();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", folder.join("containerd.sock").display()),
            "address": address, "port": free_port()?, "healthzPort": 0,
            // The API server's certificate is one of this CA.
            "authentication": {
                "anonymous": { "enabled": false }, "webhook": { "enabled": false },
                "x509": { "clientCAFile": cluster.client_ca() },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "syncFrequency": SYNC_FREQUENCY,
            "podLogsDir": folder.join("logs"),
            "resolvConf": "",
            "cgroupDriver": "cgroupfs", "enforceNodeAllocatable": [], "failCgroupV1": false,
            "failSwapOn": false,
            // What would change the machine itself.
            "makeIPTablesUtilChains": false, "protectKernelDefaults": true, "oomScoreAdj": 0,
            "evictionHard": { "memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
        });
        fs::write(folder.join("kubelet.yaml"), config.to_string())?;
        fs::create_dir(folder.join("cni"))?;
        fs::write(folder.join("cni/network.conf"), network.to_string())?;
        let assets = Path::new(&assets);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bed/node");
        let kubeconfig = cluster.kubeconfig(User::Admin);
        let (kubelet, image) = (assets.join("kubelet"), assets.join("image.tar"));
        let args = [folder.as_os_str(), kubelet.as_os_str(), image.as_os_str(), kubeconfig.as_os_str()];
        let process = cluster.spawn("node", &script, args.into_iter().chain([NODE.as_ref(), address.as_ref()]), &[])?;
        let mut node = Self { process: Some(process), folder };
        let ready = wait_for("the node to be ready", SOON, || node.is_ready(cluster));
        ready.with_context(|| node.log_tail(40))?;
        Ok(node)
    }

    fn is_ready(&mut self, cluster: &Cluster) -> Result<bool> {
        if let Some(process) = &mut self.process {
            ensure!(process.exited()?.is_none(), "containerd or the kubelet does not start");
        }
        let node: Value = serde_json::from_str(&cluster.kubectl(["get", "node", NODE, "-o", "json"]).ok()?)?;
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        let is_ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        // The kubelet rejects pods as long as the taint of a node that is not ready is there.
        Ok(is_ready && node["spec"]["taints"].is_null())
    }

    /// Loads an image from an archive. Its tag is in the archive.
    pub(crate) fn load(&self, archive: &Path, repository: &str) -> Result<()> {
        let mut ctr = self.ctr();
        let import = ctr.args(["images", "import", "--snapshotter", "native", "--base-name", repository]).arg(archive);
        let ran = import.output().context("starting ctr")?;
        ensure!(ran.status.success(), "{}: {}", archive.display(), String::from_utf8_lossy(&ran.stderr));
        Ok(())
    }

    fn ctr(&self) -> Command {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.folder.join("containerd.sock")).args(["--namespace", "k8s.io"]);
        ctr
    }

    /// A file of the node, as it is outside of its mount namespace.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        let process = self.process.as_ref().map(Process::pid).unwrap_or_default();
        PathBuf::from(format!("/proc/{process}/root{path}"))
    }

    /// The last lines of containerd and the kubelet.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        self.process.as_ref().map(|process| process.log_tail(lines)).unwrap_or_default()
    }

    /// Runs a program in the container of a pod, and returns its output.
    pub(crate) fn exec(&self, pod: &Value, command: &[&str]) -> Result<String> {
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().context("no container yet")?;
        let id = id.trim_start_matches("containerd://");
        let exec = format!("exec-{}", fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim());
        let ran = self
            .ctr()
            .args(["tasks", "exec", "--exec-id", &exec, "--fifo-dir"])
            .arg(self.folder.join("fifo"))
            .arg(id)
            .args(command)
            .output()
            .context("starting ctr")?;
        ensure!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(String::from_utf8(ran.stdout)?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process ids of its namespace end with it, and so do its mounts.
        self.process = None;
        let own = std::process::id().to_string();
        let removed =
            wait_for("the node's cgroups to be empty", SOON, || remove_cgroups(|run| run == own).map(|()| true));
        if let Err(error) = removed {
            eprintln!("{error:#}");
        }
    }
}

/// Removes the cgroups of nodes, of those test runs that `is_over` picks by their process ids. None of their processes may be left.
fn remove_cgroups(is_over: impl Fn(&str) -> bool) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    // With version 1, a folder for each controller.
    let controllers: Vec<_> = fs::read_dir(root)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    for hierarchy in controllers.into_iter().chain([root.to_owned()]).filter(|path| path.is_dir()) {
        for entry in fs::read_dir(hierarchy)? {
            let entry = entry?;
            let name = entry.file_name();
            let run = name.to_str().and_then(|name| name.strip_prefix(FOLDER)).and_then(|name| name.split('-').next());
            if run.is_some_and(&is_over) {
                remove_cgroup(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn remove_cgroup(cgroup: &Path) -> Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup).with_context(|| cgroup.display().to_string())
}
