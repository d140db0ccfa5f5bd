//! Commands as a person enters them, in a folder that has the charts and the manifests of the repository.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::{Bed, testbed::User};

/// A working directory, and an environment with `kubectl`, `helm` and `trustspan`.
pub(crate) struct Shell {
    pub(crate) folder: PathBuf,
    kubeconfig: PathBuf,
    path: OsString,
}

impl Shell {
    pub(crate) fn new(bed: &Bed) -> Result<Self> {
        let folder = bed.cluster.temp_dir("shell")?;
        for name in ["charts", "manifests", "docs"] {
            symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join(name), folder.join(name))?;
        }
        let path = bed.cluster.path_with(&[&bed.helm.0])?;
        Ok(Self { folder, kubeconfig: bed.cluster.kubeconfig(User::Admin), path })
    }

    /// The environment, as arguments of `env`. Nothing of the developer's environment must affect a command.
    pub(crate) fn environment(&self) -> Result<[String; 3]> {
        let path = self.path.to_str().context("a PATH that is not UTF-8")?;
        let (home, kubeconfig) = (self.folder.display(), self.kubeconfig.display());
        Ok([format!("HOME={home}"), format!("KUBECONFIG={kubeconfig}"), format!("PATH={path}")])
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.folder.join(name), text)?)
    }

    /// Runs a script, prints it with its time, and returns what it prints. It ends with the first command that fails.
    pub(crate) fn run(&self, script: &str) -> Result<String> {
        let started = Instant::now();
        let mut shell = Command::new("env");
        shell.arg("-i").args(self.environment()?).args(["bash", "-euo", "pipefail", "-c", script]);
        let ran = shell.current_dir(&self.folder).stdin(Stdio::null()).output().context("starting bash")?;
        println!("$ {}\n  {:.1?}", script.trim().replace('\n', "\n  "), started.elapsed());
        let [stdout, stderr] = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(ran.status.success(), "{script}: {}\n{stdout}{stderr}", ran.status);
        Ok(stdout)
    }
}
