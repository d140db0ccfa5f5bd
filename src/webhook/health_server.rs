//! Health endpoints and their metric, for all ports; and the plain HTTP port of processes without admission requests.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::metrics::CONTENT_TYPE as METRICS_TYPE;
use crate::health::{Detail, Endpoint, Health, HealthRequest};
use crate::store::HealthState;

/// The port of a process without admission requests: `/metrics` with what `encode` returns, and the health endpoints with names and reasons.
pub fn router(
    health: Arc<HealthState>,
    encode: impl Fn() -> Result<String, std::fmt::Error> + Clone + Send + Sync + 'static,
) -> Router {
    let router = Router::new().route("/metrics", get(move || std::future::ready(scraped(encode()))));
    with_health(router, move || health.health(), Detail::Names)
}

/// The response to a scrape of Prometheus.
pub(super) fn scraped(encoded: Result<String, std::fmt::Error>) -> Response {
    match encoded {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Adds the health endpoints to a port.
pub(super) fn with_health<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    health: impl Fn() -> Health + Clone + Send + Sync + 'static,
    detail: Detail,
) -> Router<S> {
    let handler = get(move |uri: Uri| std::future::ready(respond(&health(), &uri, detail)));
    Endpoint::ALL.into_iter().fold(router, |router, endpoint| {
        let path = format!("/{}", endpoint.name());
        router.route(&path, handler.clone()).route(&format!("{path}/{{*check}}"), handler.clone())
    })
}

fn respond(health: &Health, uri: &Uri, detail: Detail) -> Response {
    let Some(request) = HealthRequest::parse(uri.path(), uri.query().unwrap_or_default()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let response = health.respond(&request, detail);
    let status = StatusCode::from_u16(response.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // As the API server sends them: the text quotes names and errors.
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, response.text).into_response()
}

/// A gauge for each health check.
pub fn collector(health: Arc<HealthState>) -> Box<dyn Collector> {
    Box::new(HealthCollector(health))
}

#[derive(Debug)]
struct HealthCollector(Arc<HealthState>);

impl Collector for HealthCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help =
            "1 while the health check succeeds, 0 while its dependency is unreachable, -1 while it is misconfigured";
        let mut family = encoder.encode_descriptor("health_check", help, None, MetricType::Gauge)?;
        for check in self.0.health().checks {
            let gauge = ConstGauge::new(check.result.gauge_value());
            gauge.encode(family.encode_family(&[("check", check.name.as_str())])?)?;
        }
        Ok(())
    }
}
