//! The kinds of objects that are written, and requests for them as an administrator.

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use trustspan::store::cluster::has_code;

/// Sources of trust in `c` that were deleted. Each is created once before its content is protected.
pub(super) const DELETED: [&str; 4] = ["deleted-0", "deleted-1", "deleted-2", "deleted-3"];

/// The namespaces of the two tenants.
#[derive(Clone, Debug)]
pub(super) struct Tenants {
    /// The other tenant.
    pub(super) a: String,
    /// Gateways, whose rotation has to go on.
    pub(super) b: String,
    /// Of the same tenant as `b`: gateways whose source of trust was deleted.
    pub(super) c: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Secret,
    ConfigMap,
    Deployment,
    Gateway,
    GatewaySecret,
    RotationPolicy,
    TrustConsumer,
    MirroredFile,
    ClientIdentity,
    ReferenceGrant,
    Role,
    RoleBinding,
    ClusterRole,
    ClusterRoleBinding,
    Lease,
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
}

impl Kind {
    pub(super) fn name(self) -> String {
        format!("{self:?}")
    }

    /// Whether the API server calls webhooks by it.
    pub(super) fn is_called(self) -> bool {
        matches!(self, Self::MutatingWebhookConfiguration | Self::ValidatingWebhookConfiguration)
    }

    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::Secret | Self::ConfigMap => "v1",
            Self::Deployment => "apps/v1",
            Self::Gateway => "networking.istio.io/v1",
            Self::GatewaySecret
            | Self::RotationPolicy
            | Self::TrustConsumer
            | Self::MirroredFile
            | Self::ClientIdentity => "trustspan.dev/v1alpha1",
            Self::ReferenceGrant => "gateway.networking.k8s.io/v1beta1",
            Self::Role | Self::RoleBinding | Self::ClusterRole | Self::ClusterRoleBinding => {
                "rbac.authorization.k8s.io/v1"
            }
            Self::Lease => "coordination.k8s.io/v1",
            Self::MutatingWebhookConfiguration | Self::ValidatingWebhookConfiguration => {
                "admissionregistration.k8s.io/v1"
            }
        }
    }

    /// The API of this kind in a namespace; of all objects of the cluster if that is empty.
    pub(super) fn api(self, client: &Client, ns: &str) -> Api<DynamicObject> {
        let (group, version) = self.api_version().split_once('/').unwrap_or(("", self.api_version()));
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &self.name()));
        if self == Self::RotationPolicy || self == Self::ClientIdentity {
            resource.plural = self.name().to_lowercase().trim_end_matches('y').to_owned() + "ies";
        }
        match ns {
            "" => Api::all_with(client.clone(), &resource),
            ns => Api::namespaced_with(client.clone(), ns, &resource),
        }
    }
}

/// An object by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Object {
    pub(super) kind: Kind,
    /// Empty for an object of the cluster.
    pub(super) ns: String,
    pub(super) name: String,
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.ns, self.name)
    }
}

impl Object {
    pub(super) fn new(kind: Kind, ns: &str, name: &str) -> Self {
        Self { kind, ns: ns.to_owned(), name: name.to_owned() }
    }

    pub(super) fn api(&self, client: &Client) -> Api<DynamicObject> {
        self.kind.api(client, &self.ns)
    }

    pub(super) async fn get(&self, client: &Client) -> Result<Option<Value>> {
        let stored = self.api(client).get_opt(&self.name).await.with_context(|| self.to_string())?;
        Ok(stored.map(serde_json::to_value).transpose()?)
    }

    /// Deletes it, whatever finalizers it has. A cleaner is not judged.
    pub(super) async fn remove(&self, cleaner: &Client) -> Result<()> {
        let api = self.api(cleaner);
        let Some(stored) = self.get(cleaner).await? else { return Ok(()) };
        if !stored["metadata"]["finalizers"].is_null() {
            let free = json!({ "metadata": { "finalizers": null } });
            ignore_missing(api.patch(&self.name, &PatchParams::default(), &Patch::Merge(&free)).await)?;
        }
        ignore_missing(api.delete(&self.name, &DeleteParams::background()).await)
    }

    /// Stores this content, in place of one that is being deleted, too. An actor may write at the same time.
    pub(super) async fn put(&self, client: &Client, cleaner: &Client, wanted: &Value) -> Result<()> {
        const TRIES: usize = 20;
        let is_conflict = |error: &anyhow::Error| error.downcast_ref().is_some_and(|error| has_code(error, 409));
        for _ in 1..TRIES {
            match self.try_put(client, cleaner, wanted).await {
                Err(error) if is_conflict(&error) => {}
                result => return result.with_context(|| format!("restoring {self}")),
            }
        }
        self.try_put(client, cleaner, wanted).await.with_context(|| format!("restoring {self}"))
    }

    async fn try_put(&self, client: &Client, cleaner: &Client, wanted: &Value) -> Result<()> {
        let mut wanted = wanted.clone();
        let stored = self.get(client).await?;
        let is_replaceable = stored.as_ref().is_some_and(|stored| {
            stored["metadata"]["deletionTimestamp"].is_null()
                && stored["immutable"].is_null()
                && stored["type"] == wanted["type"]
                && stored["roleRef"] == wanted["roleRef"]
        });
        match stored {
            Some(stored) if is_replaceable => {
                if content(&stored) == wanted {
                    return Ok(());
                }
                wanted["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
                let params = PostParams::default();
                self.api(client).replace(&self.name, &params, &serde_json::from_value(wanted)?).await?;
            }
            stored => {
                if stored.is_some() {
                    self.remove(cleaner).await?;
                }
                self.api(client).create(&PostParams::default(), &serde_json::from_value(wanted)?).await?;
            }
        }
        Ok(())
    }
}

fn ignore_missing<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(error) if !has_code(&error, 404) => Err(error.into()),
        _ => Ok(()),
    }
}

/// All objects of a kind in a namespace.
pub(super) async fn list(client: &Client, kind: Kind, ns: &str) -> Result<Vec<Value>> {
    let listed =
        kind.api(client, ns).list(&ListParams::default()).await.with_context(|| format!("{kind:?} in {ns}"))?;
    listed.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
}

/// An object without what the API server and controllers add to it.
pub(super) fn content(stored: &Value) -> Value {
    let mut content = stored.clone();
    let metadata = ["name", "namespace", "labels", "annotations", "finalizers", "ownerReferences"]
        .map(|field| (field.to_owned(), stored["metadata"][field].clone()));
    content["metadata"] = Value::Object(metadata.into_iter().filter(|(_, value)| !value.is_null()).collect());
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    if let Some(annotations) = content["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("deployment.kubernetes.io/revision");
    }
    content
}
