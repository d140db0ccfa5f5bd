//! The objects of a profile in a cluster.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use crate::certgen::{Action, Change, ObjectKind, ObjectRef, Objects, Profile};
use crate::store::cluster;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was made.
    Yes,
    /// Somebody else has changed the object since it was read.
    Conflict,
    /// The API server did not answer. Whether it was made shows when the objects are read again.
    Unknown,
}

/// A request about an object failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {object}: {}", cluster::error_message(source))]
pub struct RequestError {
    /// `read` or `write`.
    pub verb: &'static str,
    /// The object.
    pub object: ObjectRef,
    /// The cause.
    pub source: Box<kube::Error>,
}

impl RequestError {
    /// Whether a permission is missing.
    pub fn is_forbidden(&self) -> bool {
        matches!(&*self.source, kube::Error::Api(status) if status.code == 403)
    }
}

/// Reads the objects of a profile that exist.
///
/// # Errors
/// When the API server refuses a request or does not answer.
pub async fn read(client: &Client, profile: &Profile) -> Result<Objects, RequestError> {
    let mut objects = Objects::default();
    for object in profile.objects() {
        let found = api(client, &profile.namespace, object.kind).get_opt(&object.name).await;
        let found =
            found.and_then(|found| found.map(serde_json::to_value).transpose().map_err(kube::Error::SerdeError));
        match found {
            Ok(found) => objects.0.extend(found.map(|found| (object, found))),
            Err(error) => return Err(RequestError { verb: "read", object, source: Box::new(error) }),
        }
    }
    Ok(objects)
}

/// Makes a change of a profile's object, as this field manager.
///
/// # Errors
/// When the API server refuses it.
pub async fn write(client: &Client, profile: &Profile, manager: &str, change: Change) -> Result<Written, RequestError> {
    let object = change.target.clone();
    match send(&api(client, &profile.namespace, object.kind), manager, change).await {
        Ok(()) => Ok(Written::Yes),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Written::Conflict),
        Err(error) if is_outage(&error) => Ok(Written::Unknown),
        Err(error) => Err(RequestError { verb: "write", object, source: Box::new(error) }),
    }
}

/// Whether the API server may answer later.
fn is_outage(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

/// Objects of a kind; `namespace` is ignored for one without namespaces.
pub fn api(client: &Client, namespace: &str, kind: ObjectKind) -> Api<DynamicObject> {
    let (group, version, name) = kind.gvk();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name));
    if kind.is_namespaced() {
        Api::namespaced_with(client.clone(), namespace, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

async fn send(api: &Api<DynamicObject>, manager: &str, change: Change) -> kube::Result<()> {
    let name = &change.target.name;
    match change.action {
        Action::Create(object) => {
            let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
            let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
            api.create(&params, &object).await.map(drop)
        }
        Action::Patch(mut patch) => {
            // The API server rejects the patch if the object has changed since it was read.
            patch["metadata"]["resourceVersion"] = change.resource_version.into();
            let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
            api.patch(name, &params, &Patch::Merge(patch)).await.map(drop)
        }
        Action::Delete => {
            let preconditions = Preconditions { resource_version: change.resource_version, uid: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            api.delete(name, &params).await.map(drop)
        }
    }
}
