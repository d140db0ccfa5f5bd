//! Where the objects are: a namespace of a cluster, or a directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::Client;
use serde_json::Value;

use crate::certgen::{Change, ObjectKind, ObjectRef, Objects, Profile};
use crate::cli::Failure;
use crate::store::atomic_file;
use crate::store::certgen::{self, RequestError, Written};

const MANAGER: &str = "trustspan-certgen";

/// A namespace or a directory.
pub(super) enum Target {
    /// The profile's namespace.
    Cluster(Client),
    /// A directory: one file for each Secret.
    Directory(PathBuf),
}

impl Target {
    /// Whether it is a namespace of a cluster.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Reads the objects of a profile.
    pub(super) async fn read(&self, profile: &Profile) -> Result<Objects, Failure> {
        let dir = match self {
            Self::Cluster(client) => return certgen::read(client, profile).await.map_err(refused),
            Self::Directory(dir) => dir,
        };
        let mut objects = Objects::default();
        for reference in profile.objects().into_iter().filter(|reference| reference.kind == ObjectKind::Secret) {
            let found = read(dir, &reference)?;
            objects.0.extend(found.map(|object| (reference, object)));
        }
        Ok(objects)
    }

    /// Makes a change. `objects` are those from which it was computed.
    pub(super) async fn write(&self, profile: &Profile, objects: &Objects, change: Change) -> Result<Written, Failure> {
        match self {
            Self::Cluster(client) => certgen::write(client, profile, MANAGER, change).await.map_err(refused),
            Self::Directory(dir) => {
                let (mut objects, reference) = (objects.clone(), change.target.clone());
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

fn refused(error: RequestError) -> Failure {
    if error.is_forbidden() {
        return Failure::Impossible(format!("{error}. Grant the rights of manifests/certgen, then run again"));
    }
    Failure::Cluster(*error.source)
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
