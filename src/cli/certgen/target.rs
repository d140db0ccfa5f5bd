//! Where the objects are: a namespace of a cluster, or a directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use crate::certgen::{Action, Change, ObjectKind, ObjectRef, Objects, Profile};
use crate::cli::Failure;
use crate::store::{atomic_file, cluster};

const MANAGER: &str = "trustspan-certgen";

/// A namespace or a directory.
pub(super) enum Target {
    /// A namespace.
    Cluster { client: Client, namespace: String },
    /// A directory: one file for each Secret.
    Directory(PathBuf),
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// It was made.
    Yes,
    /// Somebody else has changed the object since it was read.
    Conflict,
    /// The API server did not answer.
    Unknown,
}

/// Whether the API server may answer later.
fn is_outage(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

impl Target {
    /// Whether it is a namespace of a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Reads the objects of a profile.
    pub(super) async fn read(&self, profile: &Profile) -> Result<Objects, Failure> {
        let mut objects = Objects::default();
        for reference in profile.objects() {
            let found = match self {
                Self::Cluster { client, namespace } => {
                    let api = api(client, namespace, reference.kind);
                    let found =
                        api.get_opt(&reference.name).await.map_err(|error| refused(error, "read", &reference))?;
                    found
                        .map(serde_json::to_value)
                        .transpose()
                        .map_err(|error| Failure::Unreadable(error.to_string()))?
                }
                Self::Directory(dir) if reference.kind == ObjectKind::Secret => read(dir, &reference)?,
                Self::Directory(_) => None,
            };
            if let Some(object) = found {
                objects.0.insert(reference, object);
            }
        }
        Ok(objects)
    }

    /// Makes a change. `objects` are those from which it was computed.
    pub(super) async fn write(&self, objects: &Objects, change: Change) -> Result<Written, Failure> {
        let reference = change.target.clone();
        match self {
            Self::Cluster { client, namespace } => match send(&api(client, namespace, reference.kind), change).await {
                Ok(()) => Ok(Written::Yes),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Written::Conflict),
                // Whether it was made shows when the objects are read again.
                Err(error) if is_outage(&error) => Ok(Written::Unknown),
                Err(error) => Err(refused(error, "write", &reference)),
            },
            Self::Directory(dir) => {
                let mut objects = objects.clone();
                objects.apply(change);
                let path = path(dir, &reference);
                let written = match objects.0.get(&reference) {
                    // It may contain a private key.
                    Some(object) => atomic_file::replace(&path, serde_saphyr::to_string(object)?.as_bytes(), 0o600),
                    None => fs::remove_file(&path),
                };
                written.map(|()| Written::Yes).map_err(|error| unusable(&path, "write", &error))
            }
        }
    }
}

fn api(client: &Client, namespace: &str, kind: ObjectKind) -> Api<DynamicObject> {
    let (group, version, name) = kind.gvk();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name));
    if kind.is_namespaced() {
        Api::namespaced_with(client.clone(), namespace, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

async fn send(api: &Api<DynamicObject>, change: Change) -> kube::Result<()> {
    let name = &change.target.name;
    match change.action {
        Action::Create(object) => {
            let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
            let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            api.create(&params, &object).await.map(drop)
        }
        Action::Patch(mut patch) => {
            // The API server rejects the patch if the object has changed since it was read.
            patch["metadata"]["resourceVersion"] = change.resource_version.into();
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            api.patch(name, &params, &Patch::Merge(patch)).await.map(drop)
        }
        Action::Delete => {
            let preconditions = Preconditions { resource_version: change.resource_version, uid: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            api.delete(name, &params).await.map(drop)
        }
    }
}

fn refused(error: kube::Error, verb: &str, reference: &ObjectRef) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let message = cluster::error_message(&kube::Error::Api(status));
            Failure::Impossible(format!(
                "cannot {verb} {reference}: {message}. Grant the rights of manifests/certgen, then run again"
            ))
        }
        error => Failure::Cluster(error),
    }
}

fn path(dir: &Path, reference: &ObjectRef) -> PathBuf {
    dir.join(format!("{}.yaml", reference.name))
}

fn unusable(path: &Path, verb: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::Unreadable(format!("{}: cannot {verb} it: {error}", path.display()))
}

fn read(dir: &Path, reference: &ObjectRef) -> Result<Option<Value>, Failure> {
    let path = path(dir, reference);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(&path, "read", &error)),
    };
    // An error of the parser quotes the text, which may hold a key.
    let object: Value =
        serde_saphyr::from_str(&text).map_err(|_| unusable(&path, "read", &"expected YAML with one Secret"))?;
    if object["kind"] != "Secret" || object["metadata"]["name"] != reference.name.as_str() {
        return Err(unusable(&path, "use", &format!("expected {reference}: move the file away")));
    }
    Ok(Some(object))
}
