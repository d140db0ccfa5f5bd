//! Inputs, errors and requests that the offline subcommands share.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::admission::{Kind, Request};
use crate::json::Json;
use crate::store::cluster;
use crate::store::directory::StoreError;
use crate::store::manifest::{self, Files, ManifestError, Source};
use crate::text::printable_lines;

/// The manifests to read.
#[derive(Debug, clap::Args)]
pub struct Inputs {
    /// Manifests to read: files, directories (their *.yaml, *.yml and *.json files, recursively) or - for stdin. Repeatable. Default: -.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-", num_args = 1..)]
    pub filenames: Vec<PathBuf>,

    /// Namespace of objects without metadata.namespace.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
}

impl Inputs {
    /// Opens all inputs.
    ///
    /// # Errors
    /// When an input cannot be read.
    pub fn open(&self) -> Result<Vec<Source>, ManifestError> {
        self.open_each(Files::Manifests).into_iter().collect()
    }

    /// Opens each input. A pipe is spooled to a file, so it can be read twice.
    pub fn open_each(&self, files: Files) -> Vec<Result<Source, ManifestError>> {
        let stdin = [PathBuf::from("-")];
        let paths = if self.filenames.is_empty() { &stdin } else { self.filenames.as_slice() };
        if paths.contains(&stdin[0]) && io::stdin().is_terminal() {
            anstream::eprintln!(
                "reading manifests from the terminal until Ctrl-D; use -f to read files or directories"
            );
        }
        manifest::open_each(paths, files)
    }
}

/// Why an offline subcommand fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// An input cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The inputs are not a consistent state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The requested GatewaySecret does not exist.
    #[error("GatewaySecret {0} not found")]
    NoGatewaySecret(String),
    /// A GatewaySecret does not match its schema.
    #[error(
        "cannot read GatewaySecret {namespace}/{name}: {why}. until it is fixed, the agent uses the last version that it could read"
    )]
    UnreadGatewaySecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// No client for the cluster could be created.
    #[error(transparent)]
    Connect(#[from] cluster::ConnectError),
    /// The cluster does not answer, or refuses.
    #[error("the cluster: {}", cluster::error_message(.0))]
    Cluster(#[from] kube::Error),
    /// The manifests of a directory are not a consistent state.
    #[error(transparent)]
    Directory(#[from] crate::agent::directory::DirectoryError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] crate::agent::state_directory::StateDirectoryError),
    /// A write to the cluster failed.
    #[error(transparent)]
    Write(#[from] crate::agent::AgentError),
    /// The request cannot be carried out.
    #[error("{0}")]
    Impossible(String),
    /// A file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Output(#[from] io::Error),
    /// An object cannot be written as YAML.
    #[error("cannot write the object as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
}

/// A reader that closes the pipe (`| head`) is not an error. The exit code is the one that a shell reports for a program that SIGPIPE ended.
pub(super) fn unless_closed(result: Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    match result {
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::from(128 + 13)),
        result => result,
    }
}

/// Prints the error of a document that cannot be read.
pub(super) fn print_error(error: &ManifestError) {
    anstream::eprintln!("error: {}", printable_lines(&error.to_string()));
}

/// API groups of cluster-scoped objects.
const CLUSTER_SCOPED: [&str; 3] = ["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"];

/// The CREATE request for an object.
pub(super) fn create<'a>(object: &'a Json<'a>, namespace: &'a str) -> Request<'a> {
    let kind = Kind::of(object);
    let is_cluster_scoped = CLUSTER_SCOPED.contains(&kind.group) || (kind.group, kind.kind) == ("", "Namespace");
    let own_namespace = || object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    Request::create(object, if is_cluster_scoped { "" } else { own_namespace() })
}

/// `Kind namespace/name`.
pub(super) fn title(request: &Request<'_>) -> String {
    let generated = || request.object.and_then(|o| o["metadata"]["generateName"].as_str()).unwrap_or("?");
    let name = if request.name.is_empty() { generated() } else { request.name };
    let kind = request.kind.kind;
    if request.namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {}/{name}", request.namespace) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

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
