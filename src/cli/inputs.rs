//! What the offline subcommands share: paths, the request that an object stands for, and how they end.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::sanitize::printable_lines;
use crate::admission::{Kind, Request};
use crate::store::cluster;
use crate::store::directory::StoreError;
use crate::store::manifest::{self, Files, ManifestError, Source};

/// The manifests to read.
#[derive(Debug, clap::Args)]
pub struct Inputs {
    /// Files, directories (every *.yaml, *.yml, *.json below), or - for stdin.
    #[arg(value_name = "PATH", default_value = "-")]
    pub paths: Vec<PathBuf>,

    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
}

impl Inputs {
    /// Opens them.
    ///
    /// # Errors
    /// When a path cannot be read.
    pub fn open(&self) -> Result<Vec<Source>, ManifestError> {
        self.open_each(Files::Manifests).into_iter().collect()
    }

    /// Opens them, one by one; a pipe is spooled, so that it can be read twice.
    pub fn open_each(&self, files: Files) -> Vec<Result<Source, ManifestError>> {
        let from_terminal = self.paths.iter().any(|path| path.as_os_str() == "-") && io::stdin().is_terminal();
        if from_terminal {
            anstream::eprintln!(
                "reading manifests from the terminal, up to Ctrl-D; name files or directories to read those"
            );
        }
        manifest::open_each(&self.paths, files)
    }
}

/// Why an offline subcommand stops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// An input cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// An input is no state to decide from.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The named GatewaySecret does not exist.
    #[error("no GatewaySecret {0}")]
    NoGatewaySecret(String),
    /// A GatewaySecret does not fit the type.
    #[error(
        "GatewaySecret {namespace}/{name} cannot be read: {why}. the agent goes by the last that could be, if it knows one"
    )]
    UnreadGatewaySecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// There is no client for the cluster.
    #[error(transparent)]
    Connect(#[from] cluster::ConnectError),
    /// The cluster does not answer, or refuses.
    #[error("the cluster: {}", cluster::error_message(.0))]
    Cluster(#[from] kube::Error),
    /// A directory is no state to decide from.
    #[error(transparent)]
    Directory(#[from] crate::agent::directory::DirectoryError),
    /// The cluster refuses a write.
    #[error(transparent)]
    Write(#[from] crate::agent::AgentError),
    /// What was asked for cannot be done.
    #[error("{0}")]
    Impossible(String),
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
    /// An object cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
}

/// A reader that closes the pipe (`| head`) is not an error. The exit code is the one that a shell reports for a program that SIGPIPE ended.
pub(super) fn unless_closed(result: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    match result {
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::from(128 + 13)),
        result => result,
    }
}

/// Tells of a document that cannot be read; true, as what is then so.
pub(super) fn tell(error: &ManifestError) -> bool {
    anstream::eprintln!("error: {}", printable_lines(&error.to_string()));
    true
}

/// API groups whose objects have no namespace.
const CLUSTER_WIDE: [&str; 3] = ["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"];

/// The CREATE that would bring an object into the cluster.
pub(super) fn create<'a>(object: &'a Value, namespace: &'a str) -> Request<'a> {
    let kind = Kind::of(object);
    let is_cluster_wide = CLUSTER_WIDE.contains(&kind.group) || (kind.group, kind.kind) == ("", "Namespace");
    let own = || object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    Request::create(object, if is_cluster_wide { "" } else { own() })
}

/// `Kind namespace/name`, as people say it.
pub(super) fn title(request: &Request<'_>) -> String {
    let generated = || request.object.and_then(|o| o["metadata"]["generateName"].as_str()).unwrap_or("?");
    let name = if request.name.is_empty() { generated() } else { request.name };
    let kind = request.kind.kind;
    if request.namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {}/{name}", request.namespace) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_objects() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
        let request = create(&object, "team");
        assert_eq!(request.kind, Kind { group: "apps", version: "v1", kind: "Deployment" });
        assert_eq!(title(&request), "Deployment team/d");
        let object =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "s-", "namespace": "n"}});
        assert_eq!(title(&create(&object, "team")), "Secret n/s-");
        let object =
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.a"}});
        assert_eq!(title(&create(&object, "team")), "APIService v1.a");
    }
}
