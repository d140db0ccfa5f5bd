//! Probes of TLS servers in this process.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::rotation::planner::Answer;
use crate::trust::Secret;
use crate::trust::fixtures::{Authority, Leaf, ca_with, parsed, secret};

const HOST: &str = "shop.example.com";
const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// A CA whose certificates are valid by this machine's clock.
fn ca(name: &str) -> Authority {
    ca_with(name, |params| params.not_before = rcgen::date_time_ymd(2000, 1, 1))
}

fn leaf(authority: &Authority, name: &str) -> Leaf {
    authority.leaf_with(name, |params| params.not_before = rcgen::date_time_ymd(2000, 1, 1))
}

fn canary(authority: &Authority) -> Secret {
    let leaf = leaf(authority, "canary");
    secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])
}

/// A gateway's certificate and key, which need not match.
#[derive(Debug)]
struct Served(Arc<CertifiedKey>);

impl Served {
    fn new(leaf: &Leaf, key: &Leaf) -> Self {
        let key = PrivateKeyDer::from_pem_slice(key.key_pem().as_bytes()).unwrap();
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        Self(Arc::new(CertifiedKey::new(vec![leaf.der().to_vec().into()], key)))
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        (hello.server_name() == Some(HOST)).then(|| self.0.clone())
    }
}

/// A TLS server that requires client certificates of a CA, or none.
async fn gateway(
    served: Served,
    clients: Option<&Authority>,
    version: &'static SupportedProtocolVersion,
) -> SocketAddr {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[version]).unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().to_vec().into()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_cert_resolver(Arc::new(served))));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(stream).await else { return };
                let _ = tls.read(&mut [0; 64]).await;
                let _ = tls.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                let _ = tls.shutdown().await;
            });
        }
    });
    address
}

fn target(socket: SocketAddr) -> Target {
    Target { address: socket.to_string(), pod: None, socket: Ok(socket) }
}

async fn shown(socket: SocketAddr, canary: Option<&Secret>) -> Result<Shown, String> {
    let result = probe_all(vec![target(socket)], &[HOST.to_owned()], canary.and_then(canary::from_secret)).await;
    result.endpoints.into_iter().next().unwrap().shown
}

fn expected(leaf: &Leaf, canary: Option<Answer>) -> Result<Shown, String> {
    Ok(Shown { leaf: parsed(leaf.der()).fingerprint, canary })
}

#[tokio::test]
async fn reports_the_serving_certificate_and_the_answer_to_the_canary() {
    let (clients, servers, strangers) = (ca("clients"), ca("servers"), ca("strangers"));
    let leaf = leaf(&servers, HOST);
    for version in VERSIONS {
        let gateway = gateway(Served::new(&leaf, &leaf), Some(&clients), version).await;
        assert_eq!(
            shown(gateway, Some(&canary(&clients))).await,
            expected(&leaf, Some(Answer::Accepted)),
            "{version:?}"
        );
        assert_eq!(
            shown(gateway, Some(&canary(&strangers))).await,
            expected(&leaf, Some(Answer::Untrusted)),
            "{version:?}"
        );
        assert_eq!(shown(gateway, None).await, expected(&leaf, None), "{version:?}");
    }
}

#[tokio::test]
async fn a_gateway_that_requests_no_client_certificate_does_not_answer_to_the_canary() {
    let servers = ca("servers");
    let leaf = leaf(&servers, HOST);
    for version in VERSIONS {
        let gateway = gateway(Served::new(&leaf, &leaf), None, version).await;
        assert_eq!(shown(gateway, Some(&canary(&ca("clients")))).await, expected(&leaf, None), "{version:?}");
    }
}

#[tokio::test]
async fn rejects_a_certificate_without_proof_of_its_key() {
    let servers = ca("servers");
    let (shown_leaf, other) = (leaf(&servers, HOST), leaf(&servers, HOST));
    for version in VERSIONS {
        let gateway = gateway(Served::new(&shown_leaf, &other), None, version).await;
        let error = shown(gateway, None).await.unwrap_err();
        assert!(error.contains("signature") || error.contains("Signature"), "{error}");
    }
}

#[tokio::test]
async fn rejects_endpoints_that_do_not_complete_a_handshake_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let end = Instant::now() + Duration::from_millis(200);
    let error = tls_session::connect(silent.local_addr().unwrap(), HOST, None, end).await.unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    let error = shown(closed, None).await.unwrap_err();
    assert!(error.to_lowercase().contains("connection refused"), "{error}");
    let end = Instant::now() + CONNECTION_TIMEOUT;
    let error = tls_session::connect(closed, "a..b", None, end).await.unwrap_err();
    assert!(error.contains("a..b"), "{error}");
}

#[tokio::test]
async fn all_endpoints_are_reported() {
    let servers = ca("servers");
    let (old, new) = (leaf(&servers, HOST), leaf(&servers, HOST));
    let mut targets = Vec::new();
    for leaf in [&old, &new] {
        targets.push(target(gateway(Served::new(leaf, leaf), None, &version::TLS13).await));
    }
    targets.push(Target {
        address: "gateway".to_owned(),
        pod: None,
        socket: Err("its address is not an IP address".to_owned()),
    });
    let result = probe_all(targets.clone(), &[HOST.to_owned()], None).await;
    let shown: Vec<_> = result.endpoints.iter().map(|endpoint| endpoint.shown.clone()).collect();
    assert_eq!(shown, [expected(&old, None), expected(&new, None), Err("its address is not an IP address".to_owned())]);
    assert!(result.endpoints.iter().map(|endpoint| &endpoint.address).eq(targets.iter().map(|target| &target.address)));
}

#[tokio::test]
async fn a_canary_needs_a_certificate_with_its_key() {
    let clients = ca("clients");
    let (one, two) = (leaf(&clients, "canary"), leaf(&clients, "canary"));
    let other_key = secret(&[("tls.crt", &one.pem()), ("tls.key", &two.key_pem())]);
    for broken in [other_key, secret(&[("tls.crt", &one.pem())])] {
        assert!(canary::from_secret(&broken).is_none());
    }
    assert_eq!(canary::from_secret(&canary(&clients)).unwrap().chain.len(), 1);
}

#[tokio::test]
async fn a_signed_canary_is_accepted_by_gateways_that_trust_its_ca() {
    let (clients, others) = (ca("clients"), ca("others"));
    let leaf = leaf(&ca("servers"), HOST);
    for version in VERSIONS {
        let gateway = gateway(Served::new(&leaf, &leaf), Some(&clients), version).await;
        for (authority, answer) in [(&clients, Answer::Accepted), (&others, Answer::Untrusted)] {
            let pair = secret(&[("tls.crt", &authority.pem()), ("tls.key", &authority.key_pem())]);
            let signed = canary::sign(&pair, Timestamp::now()).unwrap();
            let result = probe_all(vec![target(gateway)], &[HOST.to_owned()], Some(signed)).await;
            assert_eq!(result.endpoints[0].shown, expected(&leaf, Some(answer)), "{version:?}");
            assert_eq!(result.canary.len(), 2, "with its CA");
        }
    }
}

#[test]
fn signing_a_canary_needs_the_key_of_a_ca() {
    let authority = ca("clients");
    let leaf = leaf(&authority, "client");
    for (chain, key) in [(authority.pem(), String::new()), (leaf.pem(), leaf.key_pem())] {
        let pair = secret(&[("tls.crt", &chain), ("tls.key", &key)]);
        assert!(canary::sign(&pair, Timestamp::now()).is_none());
    }
}

#[tokio::test]
async fn further_hosts_are_tried_until_a_gateway_presents_a_certificate() {
    let leaf = leaf(&ca("servers"), HOST);
    let gateway = gateway(Served::new(&leaf, &leaf), None, &version::TLS13).await;
    let result = probe_all(vec![target(gateway)], &["other.example.com".to_owned(), HOST.to_owned()], None).await;
    assert_eq!(result.endpoints[0].shown, expected(&leaf, None));
}
