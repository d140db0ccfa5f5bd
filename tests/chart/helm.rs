//! The real Helm.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::testbed::{Cluster, Output, User, exported};

pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/trustspan");

/// Name and namespace of a release.
#[derive(Clone, Copy)]
pub(crate) struct Release {
    pub(crate) name: &'static str,
    pub(crate) namespace: &'static str,
}

/// The release whose names are those of the manifests.
pub(crate) const DEFAULT: Release = Release { name: "trustspan", namespace: "trustspan-system" };

/// The binary.
pub(crate) struct Helm(pub(crate) PathBuf);

impl Helm {
    /// Runs `tests/bed/setup helm` to find the binary.
    pub(crate) fn locate() -> Result<Self> {
        let [dir] = exported("setup", &["helm"], ["TRUSTSPAN_BED_HELM"])?;
        Ok(Self(Path::new(&dir).join("helm")))
    }

    /// A run of Helm, whether or not it succeeds.
    pub(crate) fn run(&self, cluster: &Cluster, args: &[&str], values: &Value) -> Result<Output> {
        let home = cluster.temp_dir("helm")?;
        let file = home.join("values.yaml");
        // JSON is YAML.
        fs::write(&file, values.to_string())?;
        let mut command = Command::new(&self.0);
        command.args(args);
        if values.is_object() {
            command.arg("--values").arg(&file);
        }
        // The developer's repositories, plugins and kubeconfig must not affect the test.
        let run = command
            .env_clear()
            .env("HOME", &home)
            .env("KUBECONFIG", cluster.kubeconfig(User::Admin))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", self.0.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { status: run.status.code(), stdout: text(&run.stdout), stderr: text(&run.stderr) })
    }

    /// A run of Helm that has to succeed.
    pub(crate) fn ok(&self, cluster: &Cluster, args: &[&str], values: &Value) -> Result<String> {
        let output = self.run(cluster, args, values)?;
        ensure!(output.success(), "helm {args:?}: {}{}", output.stdout, output.stderr);
        Ok(output.stdout)
    }

    /// What `helm template` prints, its hooks included.
    pub(crate) fn template(&self, cluster: &Cluster, release: Release, values: &Value) -> Result<String> {
        self.ok(cluster, &["template", release.name, CHART, "--namespace", release.namespace], values)
    }

    /// The objects that `helm template` prints.
    pub(crate) fn objects(&self, cluster: &Cluster, release: Release, values: &Value) -> Result<Vec<Value>> {
        parsed(&self.template(cluster, release, values)?)
    }
}

/// The objects in a stream of YAML documents.
pub(crate) fn parsed(yaml: &str) -> Result<Vec<Value>> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    objects.retain(|object| !object.is_null());
    Ok(objects)
}

/// Values that enable every component.
pub(crate) fn everything() -> Value {
    json!({
        "policies": { "enabled": true },
        "caBundles": { "enabled": true },
        "certgen": { "enabled": true },
        "mirror": { "enabled": true },
        "approver": { "enabled": true },
        "metrics": {
            "podMonitor": { "enabled": true }, "prometheusRule": { "enabled": true }, "dashboard": { "enabled": true },
        },
    })
}
