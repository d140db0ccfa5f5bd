//! The whole router, without a socket.

use axum::body::to_bytes;
use axum::http::Method;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::health::{CheckResult, Requirement};
use crate::trust::{Finding, Severity};

const JSON: &str = "application/json";

fn allow(_: &Request<'_>, _: &Registry, _: Timestamp) -> Decision {
    Decision::default()
}

fn deny(request: &Request<'_>, _: &Registry, _: &Severities, _: Timestamp) -> Decision {
    let field = format!("{}/{}", request.namespace, request.name);
    let finding = Finding { rule: "no", severity: Severity::Deny, field, message: "not today".to_owned() };
    Decision { findings: vec![finding], ..Decision::default() }
}

fn panics(_: &Request<'_>, _: &Registry, _: &Severities, _: Timestamp) -> Decision {
    panic!("expected by the test")
}

fn webhook(decide: Decide) -> Arc<Webhook> {
    let cache = Arc::new(RegistryCache::default());
    cache.publish(Registry::default());
    with_cache(cache, decide)
}

fn with_cache(cache: Arc<RegistryCache>, decide: Decide) -> Arc<Webhook> {
    let (metrics, health) = (Metrics::new(cache.clone(), None), Arc::default());
    Webhook::new(cache, health, metrics, decide, Severities::default(), "agent".to_owned(), Limits::default())
}

fn denying() -> Arc<Webhook> {
    webhook(Decide { mutate: allow, validate: deny })
}

fn review() -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "operation": "CREATE", "namespace": "ns", "name": "n",
        "kind": {"group": "", "version": "v1", "kind": "Secret"}, "object": {"kind": "Secret"}}})
}

async fn send(router: Router, request: axum::http::request::Builder, body: impl Into<Body>) -> (StatusCode, String) {
    let response = router.oneshot(request.body(body.into()).unwrap()).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn post(webhook: &Arc<Webhook>, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
    send(webhook.router(), HttpRequest::post(path).header(CONTENT_TYPE, JSON), body).await
}

async fn get(router: Router, path: &str) -> (StatusCode, String) {
    send(router, HttpRequest::get(path), "").await
}

fn breaks_glass(request: &Request<'_>, _: &Registry, _: &Severities, _: Timestamp) -> Decision {
    let applied = || admission::Override { rule: "expired", reason: "ticket 7".to_owned() };
    Decision { overrides: request.may_break_glass.then(applied).into_iter().collect(), ..Decision::default() }
}

#[tokio::test]
async fn only_its_paths_allow_break_glass() {
    let webhook = webhook(Decide { mutate: allow, validate: breaks_glass });
    let overridden = || json!({"break-glass": "expired: ticket 7"});
    for (path, audit) in [
        ("/validate", Value::Null),
        ("/validate-breakglass", overridden()),
        ("/validate-guarded", Value::Null),
        ("/validate-guarded-breakglass", overridden()),
        ("/validate-trust", Value::Null),
        ("/validate-trust-breakglass", overridden()),
    ] {
        let (_, body) = post(&webhook, path, review().to_string()).await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["response"]["auditAnnotations"], audit, "{path}");
    }
    let (_, metrics) = get(webhook.metrics_router(), "/metrics").await;
    assert!(metrics.contains(r#"trustspan_break_glass_total{rule="expired"} 3"#), "{metrics}");
}

#[tokio::test]
async fn each_path_calls_its_decision() {
    let webhook = denying();
    let (status, body) = post(&webhook, "/mutate", review().to_string()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["response"], json!({"uid": "u-1", "allowed": true}));

    let (status, body) = post(&webhook, "/validate", review().to_string()).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["response"]["status"]["message"], "no: ns/n: not today");

    let (_, metrics) = get(webhook.metrics_router(), "/metrics").await;
    for line in [
        r#"trustspan_admission_findings_total{rule="no",severity="deny"} 1"#,
        r#"{webhook="validate",group="",kind="Secret",operation="create",result="denied"} 1"#,
        r#"trustspan_admission_duration_seconds_count{webhook="mutate"} 1"#,
        "trustspan_store_synced 1",
    ] {
        assert!(metrics.contains(line), "{line} not in:\n{metrics}");
    }
}

#[tokio::test]
async fn allows_unknown_kinds() {
    let mut review = review();
    review["request"]["kind"] = json!({"group": "example.com", "version": "v9", "kind": "Thing"});
    for path in ["/mutate", "/validate"] {
        let (status, body) = post(&webhook(Decide::default()), path, review.to_string()).await;
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["response"]), (StatusCode::OK, &json!({"uid": "u-1", "allowed": true})));
    }
}

#[tokio::test]
async fn rejects_bodies_that_are_no_review() {
    let webhook = denying();
    for (body, expected) in [
        (String::new(), "not JSON"),
        ("{\"apiVersion\": \"admis".to_owned(), "an unexpected end"),
        (review().to_string().replace("k8s.io/v1", "k8s.io/v1beta1"), "expected admission.k8s.io/v1 AdmissionReview"),
        (review().to_string().replace("u-1", ""), "has no request.uid"),
        (
            review().to_string().replace(r#"{"kind":"Secret"}"#, &("[".repeat(10_000) + &"]".repeat(10_000))),
            "more than 128 levels",
        ),
    ] {
        let (status, message) = post(&webhook, "/validate", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let (_, metrics) = get(webhook.metrics_router(), "/metrics").await;
    assert!(metrics.contains(r#"kind="other",operation="other",result="error"} 5"#), "{metrics}");
}

#[tokio::test]
async fn accepts_only_posts_of_json() {
    let webhook = denying();
    for (given, expected) in [
        ("application/json", StatusCode::OK),
        ("Application/JSON; charset=utf-8", StatusCode::OK),
        ("text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("application/json-patch+json", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let request = HttpRequest::post("/mutate").header(CONTENT_TYPE, given);
        assert_eq!(send(webhook.router(), request, review().to_string()).await.0, expected, "{given}");
    }
    let (status, _) = send(webhook.router(), HttpRequest::post("/mutate"), review().to_string()).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let request = HttpRequest::builder().method(method).uri("/validate").header(CONTENT_TYPE, JSON);
        assert_eq!(send(webhook.router(), request, "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    }
    assert_eq!(get(webhook.router(), "/metrics").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_body_limit_is_exact() {
    let webhook = denying();
    let mut body = review().to_string().into_bytes();
    body.resize(BODY_LIMIT, b' ');
    assert_eq!(post(&webhook, "/mutate", body.clone()).await.0, StatusCode::OK);
    body.push(b' ');
    assert_eq!(post(&webhook, "/mutate", body.clone()).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // A body without Content-Length.
    let chunks = body.chunks(64 * 1024).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect::<Vec<_>>();
    let chunked = Body::from_stream(futures::stream::iter(chunks));
    assert_eq!(post(&webhook, "/mutate", chunked).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // A body that is too long by its Content-Length is rejected before a byte of it is read.
    let request = HttpRequest::post("/mutate")
        .header(CONTENT_TYPE, JSON)
        .header(CONTENT_LENGTH, BODY_LIMIT + 1)
        .header(EXPECT, "100-continue");
    let endless = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    assert_eq!(send(webhook.router(), request, endless).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_times_out() {
    let endless = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    assert_eq!(post(&denying(), "/mutate", endless).await.0, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn answers_500_to_a_panic_and_serves_the_next_request() {
    let webhook = webhook(Decide { mutate: allow, validate: panics });
    let (status, message) = post(&webhook, "/validate", review().to_string()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!message.contains("expected by the test"), "{message}");
    assert_eq!(post(&webhook, "/mutate", review().to_string()).await.0, StatusCode::OK);
}

/// A review with an object of many lists.
fn costly() -> String {
    review().to_string().replace(r#"{"kind":"Secret"}"#, &format!("[{}0]", r#"{"":[0]},"#.repeat(1 << 20)))
}

#[tokio::test]
async fn rejects_a_review_that_takes_too_much_memory() {
    let webhook = denying();
    let (status, message) = post(&webhook, "/mutate", costly()).await;
    let expected = "parsed, the review would take more than 67108864 bytes of memory\n";
    assert_eq!((status, message.as_str()), (StatusCode::PAYLOAD_TOO_LARGE, expected));
    assert_eq!(post(&webhook, "/mutate", review().to_string()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bodies_of_answered_requests_take_no_memory() {
    let webhook = denying();
    let mut large = review().to_string().into_bytes();
    large.resize(BODY_LIMIT, b' ');
    // One after the other they are larger than all bodies may be at once.
    for _ in 0..4 {
        assert_eq!(post(&webhook, "/mutate", large.clone()).await.0, StatusCode::OK);
    }
    for body in ["{}", "[", &costly()] {
        assert_ne!(post(&webhook, "/mutate", body.to_owned()).await.0, StatusCode::OK);
    }
    assert_eq!(webhook.connections().bodies(), 0);
}

#[tokio::test]
async fn answers_no_review_before_the_store_is_read() {
    let cache = Arc::new(RegistryCache::default());
    let webhook = with_cache(cache.clone(), Decide::default());
    assert_eq!(post(&webhook, "/validate", review().to_string()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    cache.publish(Registry::default());
    assert_eq!(post(&webhook, "/validate", review().to_string()).await.0, StatusCode::OK);
}

#[tokio::test]
async fn shows_names_and_reasons_on_the_metrics_port_only() {
    let (cache, health) = (Arc::new(RegistryCache::default()), Arc::new(HealthState::default()));
    let server = health.add("api-server", Requirement::AtStart);
    let metrics = Metrics::new(cache.clone(), None).with(super::super::health_server::collector(health.clone()));
    let (decide, agent) = (Decide::default(), "agent".to_owned());
    let webhook = Webhook::new(cache, health, metrics, decide, Severities::default(), agent, Limits::default());
    let text = async |router, path| get(router, path).await.1;
    for router in [webhook.router(), webhook.metrics_router()] {
        assert_eq!(get(router.clone(), "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(get(router.clone(), "/livez").await, (StatusCode::OK, "ok".to_owned()));
        assert_eq!(get(router, "/readyz/").await.0, StatusCode::NOT_FOUND);
    }
    server.record(CheckResult::Misconfigured("401: Unauthorized".to_owned()));
    assert_eq!(text(webhook.router(), "/healthz").await, "1 of 2 checks ok\nhealthz check failed\n");
    assert_eq!(get(webhook.router(), "/healthz/api-server").await.0, StatusCode::NOT_FOUND);
    let expected = "[+]ping ok\n[-]api-server failed: reason withheld\nhealthz check failed\n";
    assert_eq!(text(webhook.metrics_router(), "/healthz").await, expected);
    let expected = "internal server error: misconfigured: 401: Unauthorized\n";
    assert_eq!(text(webhook.metrics_router(), "/healthz/api-server?verbose").await, expected);
    let line = r#"trustspan_health_check{check="api-server"} "#;
    assert!(text(webhook.metrics_router(), "/metrics").await.contains(&format!("{line}-1\n")));
    server.record(CheckResult::Ok);
    assert!(text(webhook.metrics_router(), "/metrics").await.contains(&format!("{line}1\n")));
    assert_eq!(get(webhook.router(), "/readyz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn serves_while_draining_and_closes_connections() {
    let webhook = denying();
    webhook.drain();
    for router in [webhook.router(), webhook.metrics_router()] {
        assert_eq!(get(router.clone(), "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(get(router, "/livez").await.0, StatusCode::OK);
    }
    let request =
        HttpRequest::post("/mutate").header(CONTENT_TYPE, JSON).body(Body::from(review().to_string())).unwrap();
    let response = webhook.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[CONNECTION], "close");
}

#[tokio::test]
async fn a_dry_run_gets_the_same_response() {
    let cache = Arc::new(RegistryCache::default());
    cache.publish(Registry::new([crate::registry::tests::entry("mesh", "root", "gw")]));
    let webhook = with_cache(cache, Decide::default());
    let mut review: Value = serde_json::from_str(include_str!("../../../manifests/reviews/gateway.json")).unwrap();
    review["request"]["object"]["spec"]["servers"][0]["tls"]["credentialName"] = json!("root");
    let mut answers = Vec::new();
    for dry_run in [json!(false), json!(true), Value::Null] {
        review["request"]["dryRun"] = dry_run;
        answers.push(post(&webhook, "/mutate", review.to_string()).await);
    }
    assert!(answers[0].1.contains("JSONPatch"), "{}", answers[0].1);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}
