//! Target: the body of a request to the webhook, through its whole router.

use std::sync::{Arc, LazyLock};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tower::ServiceExt;
use trustspan::admission::Kind;
use trustspan::registry::Registry;
use trustspan::store::manifest::Chunks;
use trustspan::store::{RegistryCache, directory::entry};
use trustspan::trust::{Certificate, Severities};
use trustspan::webhook::{Decide, Limits, Webhook, metrics::Metrics};

use crate::{draw::Draw, json::object, mutate::mutate, pki::Identity, pool::POOL};

/// The GatewaySecret of the example, with clients and trust observed.
pub(crate) fn registry() -> Registry {
    Registry::new([entry(&claim(&POOL.leaves), "default").expect("an entry")])
}

static WEBHOOK: LazyLock<Arc<Webhook>> = LazyLock::new(|| {
    let live = Arc::new(RegistryCache::default());
    live.publish(registry());
    Webhook::new(
        live.clone(),
        Arc::default(),
        Metrics::new(live, None),
        Decide::default(),
        Severities::default(),
        "agent".to_owned(),
        Limits::default(),
    )
});

/// The example's GatewaySecret with the status of gateways whose clients have these leaves.
pub(crate) fn claim(leaves: &[Identity]) -> Value {
    let text = include_bytes!("../../manifests/example/gatewaysecret.yaml");
    let chunk = Chunks::new("example".into(), text.as_slice()).next();
    let chunk = chunk.expect("a document").expect("a text");
    let mut object = chunk.parse().expect("YAML").expect("an object").value().clone();
    let leaf = |(number, leaf): (usize, &Identity)| {
        let kind = if number % 8 == 7 { "Server" } else { "Client" };
        json!({"kind": kind, "namespace": "istio-system", "name": format!("client-{number}"), "pem": leaf.pem(),
            "subject": leaf.spec.subject, "notAfter": "2099-01-01T00:00:00Z"})
    };
    object["status"]["leaves"] = leaves.iter().enumerate().map(leaf).collect();
    let anchor = |ca: &Identity| {
        let read = Certificate::parse(&ca.der).expect("a CA");
        json!({"subject": read.subject, "fingerprint": read.fingerprint, "notBefore": read.not_before,
            "notAfter": read.not_after, "pem": read.pem()})
    };
    object["status"]["clientTrust"] = POOL.cas.iter().map(anchor).collect();
    object
}

pub(crate) fn case(draw: &mut Draw) {
    let path =
        *draw.of(&["/validate", "/mutate", "/validate-guarded", "/validate-guarded-breakglass", "/validate-trust"]);
    if draw.one_in(8) {
        let body = draw.rest();
        return drop(posted(path, body));
    }
    let (object, old) = (object(draw), object(draw));
    let review = review(draw, object, old);
    let mut body = review.to_string().into_bytes();
    if draw.one_in(6) {
        let count = 1 + draw.below(2);
        mutate(&mut body, count, draw);
    }
    draw.show("review.json", &body);
    let Some(answer) = posted(path, body.clone()) else { return };
    // The review, as the server has parsed it.
    let review: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(answer["uid"], review["request"]["uid"]);
    answered(path, &review, &answer);
}

fn review(draw: &mut Draw, object: Value, old: Value) -> Value {
    let operation = *draw.of(&["CREATE", "UPDATE", "UPDATE", "DELETE", "CONNECT", "PATCH"]);
    // In most cases both versions of an update are the same object.
    let old = if draw.one_in(3) { old } else { object.clone() };
    let Kind { group, version, kind } = Kind::of_value(&object);
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "operation": operation, "kind": {"group": group, "version": version, "kind": kind},
        "namespace": object["metadata"]["namespace"].as_str().unwrap_or("shop"),
        "name": object["metadata"]["name"].as_str(),
        "userInfo": {"username": draw.of(&["jane", "agent", ""])},
        "object": if operation == "DELETE" { Value::Null } else { object },
        "oldObject": if operation == "CREATE" { Value::Null } else { old },
    }})
}

fn answered(path: &str, review: &Value, answer: &Value) {
    let allowed = answer["allowed"].as_bool().expect("allowed");
    let message = answer["status"]["message"].as_str().unwrap_or_default();
    assert_eq!(allowed, message.is_empty(), "{answer}");
    let warnings: Vec<_> =
        answer["warnings"].as_array().into_iter().flatten().map(|w| w.as_str().expect("text")).collect();
    assert!(warnings.len() <= 5 && warnings.iter().all(|w| w.chars().count() <= 121), "{warnings:?}");
    assert!(!warnings.iter().any(|w| w.contains(char::is_control)), "{warnings:?}");
    let Some(patch) = answer["patch"].as_str() else { return };
    assert!(allowed && path == "/mutate");
    let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).expect("base64")).expect("a patch");
    let mut again = review.clone();
    json_patch::patch(&mut again["request"]["object"], &patch).expect("the patch applies");
    assert_ne!(again, *review, "a patch that changes nothing");
    let second = posted(path, again.to_string().into_bytes()).expect("an answer");
    assert_eq!(second["patch"], Value::Null, "the second patch is not empty");
}

/// The response in the AdmissionReview; `None` if the body is no valid review.
fn posted(path: &str, body: Vec<u8>) -> Option<Value> {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));
    let request =
        Request::post(path).header("content-type", "application/json").body(Body::from(body)).expect("a request");
    let (status, body) = RUNTIME.block_on(async {
        let response = WEBHOOK.router().oneshot(request).await.expect("an answer");
        (response.status(), to_bytes(response.into_body(), usize::MAX).await.expect("a body"))
    });
    if matches!(status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) {
        assert!(body.ends_with(b"\n") && body.len() > 10, "no sentence");
        return None;
    }
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    Some(answer["response"].take())
}
