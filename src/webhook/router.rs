//! Paths, and the way from a request to its response.

use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use jiff::Timestamp;
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use super::connections::{Connection, Connections, Phase};
use super::health_server::{scraped, with_health};
use super::limits::{BODY_LIMIT, BODY_TIMEOUT, Limits, SMALL_BODY};
use super::metrics::{Metrics, ReviewedObject};
use super::queues::{Place, Queues, Ticket};
use super::response::answer;
use super::review::{Review, ReviewError};
use crate::admission::{self, Decision, Override, Request};
use crate::health::{Detail, Health};
use crate::registry::Registry;
use crate::store::{HealthState, RegistryCache};
use crate::trust::Severities;

/// The functions that decide. [`Default`] gives those of [`admission`].
#[derive(Clone, Copy, Debug)]
pub struct Decide {
    /// The decision of the mutating webhook.
    pub mutate: fn(&Request<'_>, &Registry, Timestamp) -> Decision,
    /// The decision of the validating webhook.
    pub validate: fn(&Request<'_>, &Registry, &Severities, Timestamp) -> Decision,
}

impl Default for Decide {
    fn default() -> Self {
        Self { mutate: admission::mutate, validate: admission::validate }
    }
}

/// The state that all requests share.
#[derive(Debug)]
pub struct Webhook {
    cache: Arc<RegistryCache>,
    health: Arc<HealthState>,
    metrics: Metrics,
    decide: Decide,
    severities: Severities,
    agent: String,
    draining: AtomicBool,
    limits: Limits,
    connections: Arc<Connections>,
    queues: Arc<Queues>,
}

#[derive(Clone, Copy)]
enum Path {
    Mutate,
    Validate { in_guarded_namespace: bool, decides_trust: bool, may_break_glass: bool },
}

/// The paths of the HTTPS port. A path says what the API server has checked: it sends requests of users who may override rules to those with
/// `-breakglass`, objects from which gateways take CAs to those with `-trust`, and other requests in namespaces with label
/// `trustspan.dev/guard` to those with `-guarded`.
const PATHS: [(&str, Path); 7] = [
    ("mutate", Path::Mutate),
    ("validate", validate(false, false, false)),
    ("validate-breakglass", validate(false, false, true)),
    ("validate-guarded", validate(true, false, false)),
    ("validate-guarded-breakglass", validate(true, false, true)),
    ("validate-trust", validate(false, true, false)),
    ("validate-trust-breakglass", validate(false, true, true)),
];

const fn validate(in_guarded_namespace: bool, decides_trust: bool, may_break_glass: bool) -> Path {
    Path::Validate { in_guarded_namespace, decides_trust, may_break_glass }
}

/// A decision, and the answer with it.
struct Judged {
    subject: ReviewedObject,
    decision: Decision,
    answer: String,
}

/// A status and its message.
struct HttpError(StatusCode, String);

impl Webhook {
    /// A webhook that decides from `cache` and shows `health`, with cluster-wide `severities`. `agent` is the username of trustspan's agent.
    pub fn new(
        cache: Arc<RegistryCache>,
        health: Arc<HealthState>,
        metrics: Metrics,
        decide: Decide,
        severities: Severities,
        agent: String,
        limits: Limits,
    ) -> Arc<Self> {
        Arc::new(Self {
            cache,
            health,
            metrics,
            decide,
            severities,
            agent,
            draining: AtomicBool::new(false),
            limits,
            connections: Connections::new(limits),
            queues: Arc::default(),
        })
    }

    /// The connections of the HTTPS port.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// The routes of the HTTPS port. Any caller can reach it, so health is shown without names and reasons.
    pub fn router(self: &Arc<Self>) -> Router {
        let with = |router: Router<Arc<Self>>, (name, path)| {
            router.route(
                &format!("/{name}"),
                post(move |State(w): State<Arc<Self>>, request| w.admit(name, path, request)),
            )
        };
        self.finish(PATHS.into_iter().fold(Router::new(), with), Detail::Totals)
    }

    /// The routes of the metrics port.
    pub fn metrics_router(self: &Arc<Self>) -> Router {
        self.finish(Router::new().route("/metrics", get(scrape)), Detail::Names)
    }

    /// From now on this process is not ready, and every answer to a review closes its connection, so that the caller connects to another replica.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    fn finish(self: &Arc<Self>, router: Router<Arc<Self>>, detail: Detail) -> Router {
        let webhook = self.clone();
        with_health(router, move || webhook.health(), detail).with_state(self.clone())
    }

    fn health(&self) -> Health {
        Health { is_shutting_down: self.draining.load(Ordering::Acquire), ..self.health.health() }
    }

    async fn admit(self: Arc<Self>, name: &'static str, path: Path, request: HttpRequest) -> Response {
        let start = Instant::now();
        let mut subject = ReviewedObject::UNREAD;
        let mut response = match self.clone().judge(name, path, request, &mut subject).await {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(HttpError(status, message)) => {
                // No message quotes an object, so it is safe to log.
                tracing::warn!(webhook = name, status = status.as_u16(), "{message}");
                self.metrics.failed(name, subject);
                (status, message + "\n").into_response()
            }
        };
        if self.draining.load(Ordering::Acquire) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.metrics.took(name, start.elapsed());
        response
    }

    async fn judge(
        self: Arc<Self>,
        name: &'static str,
        path: Path,
        request: HttpRequest,
        subject: &mut ReviewedObject,
    ) -> Result<String, HttpError> {
        if !is_json(request.headers()) {
            return Err(HttpError(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the Content-Type is not application/json".to_owned(),
            ));
        }
        // A router without a port has no connections.
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let connection = connection.unwrap_or_else(|| Connection::new(Ipv4Addr::UNSPECIFIED.into()));
        let mut body = RequestBody { bytes: Vec::new(), connection, connections: self.connections.clone() };
        match timeout(BODY_TIMEOUT, body.read(request)).await {
            Ok(read) => read?,
            Err(_) => {
                let message = format!("the body was not complete after {} s", BODY_TIMEOUT.as_secs());
                return Err(HttpError(StatusCode::REQUEST_TIMEOUT, message));
            }
        }
        // An empty registry would allow every request.
        let registry = self.cache.registry().ok_or_else(|| unavailable("GatewaySecrets have not been read yet"))?;
        // A panic is contained in both cases.
        let judged = if body.connection.is_cheap(body.bytes.len()) {
            body.connection.enter(Phase::Response);
            catch_unwind(AssertUnwindSafe(|| self.answer(path, body, &registry))).unwrap_or_else(|_| Err(internal()))?
        } else {
            // Not on the I/O threads: parsing, judging and dropping 7 MiB takes a while. The place is taken until the end, also if the connection is
            // closed before.
            let (place, webhook) = (body.place(&self.queues).await?, self.clone());
            let judged = spawn_blocking(move || {
                let _place = place;
                webhook.answer(path, body, &registry)
            });
            judged.await.unwrap_or_else(|_| Err(internal()))?
        };
        *subject = judged.subject;
        self.metrics.decided(name, judged.subject, &judged.decision);
        Ok(judged.answer)
    }

    /// Parses a body, decides, and writes the answer.
    fn answer(&self, path: Path, body: RequestBody, registry: &Registry) -> Result<Judged, HttpError> {
        let _took = Stopwatch { start: Instant::now(), connection: body.connection.clone() };
        let review = Review::parse(&body.bytes, self.limits.review).map_err(|error| {
            let status = match error {
                ReviewError::TooCostly(_) => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            };
            HttpError(status, error.to_string())
        })?;
        let mut request = review.request(&self.agent);
        let subject = ReviewedObject::of(request.kind, request.operation);
        let now = Timestamp::now();
        let decision = match path {
            Path::Mutate => (self.decide.mutate)(&request, registry, now),
            Path::Validate { in_guarded_namespace, decides_trust, may_break_glass } => {
                request = Request { in_guarded_namespace, decides_trust, may_break_glass, ..request };
                (self.decide.validate)(&request, registry, &self.severities, now)
            }
        };
        if !review.is_dry_run() {
            for Override { rule, .. } in decision.effective_overrides() {
                let Request { namespace, name, username, .. } = request;
                tracing::warn!(rule, namespace, name, username, "a denial was overridden");
            }
            self.metrics.overrode(&decision);
        }
        let answer = answer(review.uid(), &decision).map_err(|_| internal())?;
        Ok(Judged { subject, decision, answer })
    }
}

async fn scrape(State(webhook): State<Arc<Webhook>>) -> Response {
    scraped(webhook.metrics.encode())
}

fn unavailable(reason: &str) -> HttpError {
    HttpError(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}; try again"))
}

fn internal() -> HttpError {
    HttpError(StatusCode::INTERNAL_SERVER_ERROR, "internal error in trustspan; see its log".to_owned())
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    let essence = value.split_once(';').map_or(value, |(essence, _)| essence);
    essence.trim().eq_ignore_ascii_case("application/json")
}

/// Records how long a review takes. Its destructor runs also after an error, and after a panic.
struct Stopwatch {
    start: Instant,
    connection: Arc<Connection>,
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.connection.reviewed(self.start.elapsed());
    }
}

/// A body, whose bytes count as long as it is there.
struct RequestBody {
    bytes: Vec<u8>,
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.connections.release_body(&self.connection);
    }
}

impl RequestBody {
    async fn read(&mut self, request: HttpRequest) -> Result<(), HttpError> {
        let too_large =
            || HttpError(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {BODY_LIMIT} bytes"));
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        // A client that waits for `100 Continue` has not sent its body yet.
        let waits = request.headers().contains_key(EXPECT);
        if announced.is_some_and(|length| length > BODY_LIMIT) {
            if !waits {
                skip(request.into_body(), 0).await;
            }
            return Err(too_large());
        }
        let mut chunks = request.into_body().into_data_stream();
        loop {
            let chunk = tokio::select! {
                biased;
                () = self.connection.evicted() => return Err(evicted()),
                chunk = chunks.next() => chunk,
            };
            let Some(chunk) = chunk else { return Ok(()) };
            let chunk = chunk.map_err(|_| HttpError(StatusCode::BAD_REQUEST, "the body ended early".to_owned()))?;
            if self.bytes.len() + chunk.len() > BODY_LIMIT {
                skip(Body::from_stream(chunks), self.bytes.len()).await;
                return Err(too_large());
            }
            self.keep(&chunk, announced)?;
            // Others go first: a fast client always has the next chunk ready.
            if self.bytes.len() > SMALL_BODY {
                yield_now().await;
            }
        }
    }

    fn keep(&mut self, chunk: &Bytes, announced: Option<usize>) -> Result<(), HttpError> {
        if !self.connections.grow_body(&self.connection, chunk.len()) {
            return Err(evicted());
        }
        // Announcing a long body takes no memory. The last allocation is as large as the body, and few copies precede it, since an allocator
        // keeps them for a while.
        let needed = self.bytes.len() + chunk.len();
        if needed > self.bytes.capacity() {
            let wanted = announced.unwrap_or(BODY_LIMIT).min(16 * needed).max(needed);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// Waits for a judging place.
    async fn place(&self, queues: &Arc<Queues>) -> Result<Place, HttpError> {
        let body = self.bytes.len();
        let ticket = Ticket { is_small: self.connection.is_small(body), cost: self.connection.cost(), body };
        self.connection.enter(Phase::Queue);
        let place = tokio::select! {
            biased;
            () = self.connection.evicted() => return Err(evicted()),
            place = queues.place(ticket) => place,
        };
        self.connection.enter(Phase::Response);
        place.ok_or_else(internal)
    }
}

fn evicted() -> HttpError {
    unavailable("too many requests, and this one was the slowest or the largest")
}

/// Reads and discards as many bytes as a valid body can have. A connection that is closed with unread bytes is reset,
/// and the client would not get the response.
async fn skip(body: Body, mut read: usize) {
    let mut chunks = body.into_data_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        read += chunk.len();
        if read > 2 * BODY_LIMIT {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
