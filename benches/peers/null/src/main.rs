//! `null PORT CERTIFICATE KEY`: answers every review with the same bytes, over HTTPS. `/parse` reads the body as JSON before,
//! `/allow` answers as an API server expects it, and `/patch/PATCH` does so with this JSON Patch, in base64.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::Path;
use axum::{Router, body::Bytes, http::StatusCode, http::header::CONTENT_TYPE, response::IntoResponse, routing::post};
use axum_server::tls_rustls::RustlsConfig;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ANSWER: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"bench","allowed":true}}"#;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("PORT CERTIFICATE KEY");
    let (port, certificate, key) = (next().parse().expect("a port"), next(), next());
    rustls::crypto::aws_lc_rs::default_provider().install_default().expect("no other provider");
    let tls = RustlsConfig::from_pem_file(certificate, key).await.expect("a certificate with its key");
    let app = Router::new()
        .route("/null", post(null))
        .route("/parse", post(parse))
        .route("/allow", post(|body| answer(body, json!({}))))
        .route("/patch/{*patch}", post(|Path(patch): Path<String>, body| answer(body, json!({ "patchType": "JSONPatch", "patch": patch }))));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    axum_server::bind_rustls(address, tls).serve(app.into_make_service()).await.expect("a free port");
}

async fn null(_body: Bytes) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], ANSWER)
}

async fn parse(body: Bytes) -> Result<impl IntoResponse, StatusCode> {
    let review: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    // The tree is used, so that no part of the work can be left out.
    if !review["request"]["uid"].is_string() {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(([(CONTENT_TYPE, "application/json")], ANSWER))
}

async fn answer(body: Bytes, mut response: Value) -> Result<impl IntoResponse, StatusCode> {
    let review: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    response["uid"] = review["request"]["uid"].clone();
    response["allowed"] = true.into();
    let answer = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
    Ok(([(CONTENT_TYPE, "application/json")], answer.to_string()))
}
