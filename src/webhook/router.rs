//! Paths, and how a request becomes an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics, ReviewedObject};
use super::response::answer;
use super::review::Review;
use crate::admission::{self, Decision, Request};
use crate::registry::Registry;
use crate::store::RegistryCache;
use crate::trust::Severities;

/// Bytes of a review. An UPDATE carries two objects, each of at most the 1.5 MiB that etcd stores, and Go's JSON encoder writes `<`, `>`
/// and `&` in six bytes. One that is refused for its size would be stored without a judgement (`failurePolicy: Ignore`).
pub const BODY_LIMIT: usize = 20 * 1024 * 1024;

/// Time for a whole body. The webhook configurations give up after 5 s or less.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Requests in flight; more are refused.
const IN_FLIGHT: usize = 128;
/// Memory of the bodies in flight, in pieces of [`PIECE`]: 64 MiB. More are refused; the memory comes with the bytes, so
/// that announcing a body takes nothing from others.
const PIECES: usize = 1024;
const PIECE: usize = 64 * 1024;
/// Reviews parsed and judged at a time: a hostile 20 MiB of JSON takes 300 MiB and more once parsed.
const JUDGED: usize = 2;

/// The decisions that are asked for; [`Default`] is [`admission`]'s.
#[derive(Clone, Copy, Debug)]
pub struct Decide {
    /// The mutating webhook's.
    pub mutate: fn(&Request<'_>, &Registry, Timestamp) -> Decision,
    /// The validating webhook's.
    pub validate: fn(&Request<'_>, &Registry, &Severities, Timestamp) -> Decision,
}

impl Default for Decide {
    fn default() -> Self {
        Self { mutate: admission::mutate, validate: admission::validate }
    }
}

/// What all requests share.
#[derive(Debug)]
pub struct Webhook {
    live: Arc<RegistryCache>,
    metrics: Metrics,
    decide: Decide,
    severities: Severities,
    agent: String,
    draining: AtomicBool,
    in_flight: Semaphore,
    pieces: Semaphore,
    judged: Semaphore,
}

#[derive(Clone, Copy)]
enum Path {
    Mutate,
    Validate { in_guarded_namespace: bool, may_break_glass: bool },
}

/// What the HTTPS port answers. A path says what the API server has found out: to those with `-breakglass` it sends only requests
/// whose requester may override rules, to those with `-guarded` only those in namespaces with label `trustspan.dev/guard`.
const PATHS: [(&str, Path); 5] = [
    ("mutate", Path::Mutate),
    ("validate", Path::Validate { in_guarded_namespace: false, may_break_glass: false }),
    ("validate-breakglass", Path::Validate { in_guarded_namespace: false, may_break_glass: true }),
    ("validate-guarded", Path::Validate { in_guarded_namespace: true, may_break_glass: false }),
    ("validate-guarded-breakglass", Path::Validate { in_guarded_namespace: true, may_break_glass: true }),
];

/// A status and a sentence.
struct Refusal(StatusCode, String);

impl Webhook {
    /// A webhook that decides from `live`, with cluster-wide `severities`. `agent` is the username of trustspan's own agent.
    pub fn new(
        live: Arc<RegistryCache>,
        metrics: Metrics,
        decide: Decide,
        severities: Severities,
        agent: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            live,
            metrics,
            decide,
            severities,
            agent,
            draining: AtomicBool::new(false),
            in_flight: Semaphore::new(IN_FLIGHT),
            pieces: Semaphore::new(PIECES),
            judged: Semaphore::new(JUDGED),
        })
    }

    /// What the HTTPS port serves.
    pub fn router(self: &Arc<Self>) -> Router {
        let with = |router: Router<Arc<Self>>, (name, path)| {
            router.route(
                &format!("/{name}"),
                post(move |State(w): State<Arc<Self>>, request| w.admit(name, path, request)),
            )
        };
        self.finish(PATHS.into_iter().fold(Router::new(), with))
    }

    /// What the metrics port serves.
    pub fn metrics_router(self: &Arc<Self>) -> Router {
        self.finish(Router::new().route("/metrics", get(scrape)))
    }

    /// From now on not ready, and every answer closes its connection, so that the caller opens its next one elsewhere.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn finish(self: &Arc<Self>, router: Router<Arc<Self>>) -> Router {
        router
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .layer(from_fn_with_state(self.clone(), close_while_draining))
            .with_state(self.clone())
    }

    async fn admit(self: Arc<Self>, name: &'static str, path: Path, request: HttpRequest) -> Response {
        let start = Instant::now();
        let mut subject = ReviewedObject::UNREAD;
        let response = match self.clone().judge(name, path, request, &mut subject).await {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(Refusal(status, sentence)) => {
                // Sentences quote no object, so this is safe to log.
                tracing::warn!(webhook = name, status = status.as_u16(), "{sentence}");
                self.metrics.failed(name, subject);
                (status, sentence + "\n").into_response()
            }
        };
        self.metrics.took(name, start.elapsed());
        response
    }

    async fn judge(
        self: Arc<Self>,
        name: &'static str,
        path: Path,
        request: HttpRequest,
        subject: &mut ReviewedObject,
    ) -> Result<Vec<u8>, Refusal> {
        if !is_json(request.headers()) {
            return Err(Refusal(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the Content-Type is not application/json".to_owned(),
            ));
        }
        let Ok(_place) = self.in_flight.try_acquire() else {
            return Err(unavailable("too many requests in flight"));
        };
        let (body, _memory) = match timeout(BODY_TIME, read(request, &self.pieces)).await {
            Ok(body) => body?,
            Err(_) => {
                let sentence = format!("the body was not complete after {} s", BODY_TIME.as_secs());
                return Err(Refusal(StatusCode::REQUEST_TIMEOUT, sentence));
            }
        };
        // Better no answer than one from an empty registry: it would let everything pass.
        let registry = self.live.registry().ok_or_else(|| unavailable("the GatewaySecrets are not read yet"))?;
        let Ok(_turn) = self.judged.acquire().await else { return Err(unavailable("shutting down")) };

        // Off the I/O threads: parsing, judging and dropping 7 MiB takes a while. A panic ends there as well.
        let (webhook, decide) = (self.clone(), self.decide);
        let judged = spawn_blocking(move || {
            let review = Review::parse(&body).map_err(|e| Refusal(StatusCode::BAD_REQUEST, e.to_string()))?;
            drop(body);
            let (mut request, is_dry_run) = (review.request(&webhook.agent), review.is_dry_run());
            let subject = ReviewedObject::of(request.kind, request.operation);
            let (severities, now) = (&webhook.severities, Timestamp::now());
            let decision = match path {
                Path::Mutate => (decide.mutate)(&request, &registry, now),
                Path::Validate { in_guarded_namespace, may_break_glass } => {
                    request = Request { in_guarded_namespace, may_break_glass, ..request };
                    (decide.validate)(&request, &registry, severities, now)
                }
            };
            let body = answer(&review.uid, &decision).map_err(|_| internal())?;
            Ok((subject, decision, body, is_dry_run))
        });
        let (about, decision, body, is_dry_run) = judged.await.unwrap_or_else(|_| Err(internal()))?;
        *subject = about;
        self.metrics.decided(name, about, &decision);
        if !is_dry_run {
            self.metrics.overrode(&decision);
        }
        Ok(body)
    }
}

async fn ready(State(webhook): State<Arc<Webhook>>) -> (StatusCode, &'static str) {
    if webhook.draining.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
    } else {
        readiness(&webhook.live)
    }
}

/// Ready once all GatewaySecrets were read.
pub(super) fn readiness(live: &RegistryCache) -> (StatusCode, &'static str) {
    match live.registry() {
        None => (StatusCode::SERVICE_UNAVAILABLE, "the GatewaySecrets are not read yet\n"),
        Some(_) => (StatusCode::OK, "ok\n"),
    }
}

async fn scrape(State(webhook): State<Arc<Webhook>>) -> Response {
    scraped(&webhook.metrics)
}

/// What Prometheus gets.
pub(super) fn scraped(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn close_while_draining(State(webhook): State<Arc<Webhook>>, request: HttpRequest, next: Next) -> Response {
    let mut response = next.run(request).await;
    if webhook.draining.load(Ordering::Acquire) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn unavailable(why: &str) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("{why}; try again"))
}

fn internal() -> Refusal {
    Refusal(StatusCode::INTERNAL_SERVER_ERROR, "the request met a fault in trustspan; its log says where".to_owned())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    let essence = value.split_once(';').map_or(value, |(essence, _)| essence);
    essence.trim().eq_ignore_ascii_case("application/json")
}

async fn read(request: HttpRequest, pieces: &Semaphore) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), Refusal> {
    let too_large = || Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes"));
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    // A client that waits for `100 Continue` sends nothing before its body is asked for.
    let waits = request.headers().contains_key(EXPECT);
    if announced.is_some_and(|length| length > BODY_LIMIT) {
        if !waits {
            skip(request.into_body(), 0).await;
        }
        return Err(too_large());
    }
    let mut body = Vec::new();
    let mut memory = Vec::new();
    let mut chunks = request.into_body().into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refusal(StatusCode::BAD_REQUEST, "the body ended early".to_owned()))?;
        if body.len() + chunk.len() > BODY_LIMIT {
            skip(Body::from_stream(chunks), body.len()).await;
            return Err(too_large());
        }
        while (body.len() + chunk.len()).div_ceil(PIECE) > memory.len() {
            memory.push(pieces.try_acquire().map_err(|_| unavailable("too many large requests in flight"))?);
        }
        body.extend_from_slice(&chunk);
    }
    Ok((body, memory))
}

/// Reads on for as much as a legal body, and forgets it: a connection closed on unread bytes is reset, and the client
/// would not see the answer.
async fn skip(body: Body, mut seen: usize) {
    let mut chunks = body.into_data_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        seen += chunk.len();
        if seen > 2 * BODY_LIMIT {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
