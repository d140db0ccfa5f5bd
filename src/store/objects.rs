//! Lists objects of a cluster.

use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// The objects of a kind in all namespaces, from the API server's watch cache.
///
/// # Errors
/// When they cannot be listed, for example because the kind is not installed (404).
pub async fn list(client: &Client, group: &str, version: &str, kind: &str) -> kube::Result<Vec<Value>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = api.list(&ListParams::default().match_any()).await?;
    Ok(listed.items.into_iter().filter_map(|object| typed(&resource, &object)).collect())
}

/// Objects of a page of [`each`], which are in memory at the same time. A Deployment has about ten KiB.
const PAGE_SIZE: u32 = 100;

/// Visits every object of a kind in a namespace, page by page.
///
/// # Errors
/// When a page cannot be listed.
pub async fn each(
    client: &Client,
    namespace: &str,
    (group, version, kind): (&str, &str, &str),
    mut visit: impl FnMut(Value),
) -> kube::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    // Not from the watch cache (`resourceVersion=0`): the API server ignores the limit for it.
    let mut params = ListParams::default().limit(PAGE_SIZE);
    loop {
        let page = api.list(&params).await?;
        page.items.iter().filter_map(|object| typed(&resource, object)).for_each(&mut visit);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Adds `apiVersion` and `kind`, which the items of a list lack.
fn typed(resource: &ApiResource, object: &DynamicObject) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Some(value)
}

/// The metadata of pods with these labels in all namespaces, without those that have ended.
///
/// # Errors
/// When they cannot be listed.
pub async fn pods<'l>(
    client: &Client,
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
) -> kube::Result<Vec<Value>> {
    pods_of(Api::all(client.clone()), labels).await
}

/// The metadata of pods with these labels in one namespace, without those that have ended.
///
/// # Errors
/// When they cannot be listed.
pub async fn pods_in<'l>(
    client: &Client,
    namespace: &str,
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
) -> kube::Result<Vec<Value>> {
    pods_of(Api::namespaced(client.clone(), namespace), labels).await
}

async fn pods_of<'l>(
    api: Api<k8s_openapi::api::core::v1::Pod>,
    labels: impl IntoIterator<Item = (&'l str, &'l str)>,
) -> kube::Result<Vec<Value>> {
    let selector = labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    // No Service has pods that have ended (`podutil.IsPodTerminal`), so they could not be probed.
    let running = "status.phase!=Succeeded,status.phase!=Failed";
    let listed = api.list_metadata(&ListParams::default().match_any().labels(&selector).fields(running)).await?;
    let pod = |metadata| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
    Ok(listed.items.into_iter().map(|item| pod(item.metadata)).collect())
}

/// A Secret.
///
/// # Errors
/// When it cannot be read.
pub async fn secret(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Value>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    Ok(api.get_opt(name).await?.and_then(|object| typed(&resource, &object)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn pods_that_have_ended_are_not_listed() {
        let requested = Arc::new(Mutex::new(String::new()));
        let log = Arc::clone(&requested);
        let service = tower::service_fn(move |request: Request<Body>| {
            *log.lock().expect("no panic") = request.uri().to_string();
            let list = json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [] });
            async move { Response::builder().body(Body::from(list.to_string().into_bytes())) }
        });
        let client = Client::new(service, "default");
        assert_eq!(pods(&client, [("istio", "gw")]).await.expect("a list"), [Value::Null; 0]);
        let requested = requested.lock().expect("no panic").clone();
        assert!(requested.contains("status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"), "{requested}");
    }
}
