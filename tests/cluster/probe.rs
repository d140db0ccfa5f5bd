//! Probes of the real agent. The gateway is a TLS server of this process, behind an EndpointSlice.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde_json::json;

use crate::testbed::{Authority, Cluster, Kept, SOON, endpoint_slice, own_address, wait_for};

cases![what_a_gateway_shows_counts_and_not_the_clock];

const HOST: &str = "shop.example.com";

/// A gateway that has loaded its latest configuration.
struct Gateway {
    address: SocketAddr,
    loaded: Arc<Mutex<Arc<ServerConfig>>>,
}

impl Gateway {
    /// Starts with a serving certificate of this CA.
    fn start(authority: &Authority) -> Result<Self> {
        let listener = TcpListener::bind((own_address()?, 0))?;
        let (certificate, key) = authority.issue(&[HOST])?;
        let loaded = config(certificate.as_bytes(), key.as_bytes(), authority)?;
        let (address, loaded) = (listener.local_addr()?, Arc::new(Mutex::new(loaded)));
        let current = Arc::clone(&loaded);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&current.lock().unwrap_or_else(PoisonError::into_inner));
                // An error of a client is expected: a rejected client gets an alert.
                let _ = serve(stream, config);
            }
        });
        Ok(Self { address, loaded })
    }

    /// Loads the pair of the managed Secret, and trusts this CA.
    fn load(&self, kept: &Kept<'_>, trusted: &Authority) -> Result<()> {
        let managed = kept.cluster.get("secret", kept.ns, "managed")?;
        let value = |key: &str| anyhow::Ok(STANDARD.decode(managed["data"][key].as_str().context("no such key")?)?);
        let config = config(&value("tls.crt")?, &value("tls.key")?, trusted)?;
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }
}

fn serve(stream: TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut tls = StreamOwned::new(ServerConnection::new(config)?, stream);
    tls.read_exact(&mut [0])?;
    tls.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
    Ok(tls.flush()?)
}

/// A configuration with this pair that requires client certificates of this CA.
fn config(certificate: &[u8], key: &[u8], trusted: &Authority) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes())?)?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let chain = vec![CertificateDer::from_pem_slice(certificate)?];
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key)?)?;
    Ok(Arc::new(config))
}

fn what_a_gateway_shows_counts_and_not_the_clock(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let kept = Kept::new(cluster, ns, "1s")?;
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let gateway = Gateway::start(&old)?;
        cluster.apply(ns, &endpoint_slice("gateway", gateway.address).to_string())?;
        // Without the probe, the rotation would wait for an hour.
        kept.set_gateway_delay("1h")?;
        let target = json!({ "serviceName": "gateway", "host": HOST, "clientSecretName": "canary" });
        kept.set_policy("probe", &json!({ "target": target }))?;
        kept.write_client("canary", &new)?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        gateway.load(&kept, &old)?;

        kept.write_root(&new)?;
        let address = gateway.address.to_string();
        wait_for("status to name the gateway that is behind", SOON, || {
            let status = kept.status()?;
            let mut waits = status["waits"].as_array().into_iter().flatten();
            let named = waits.any(|wait| wait["reason"].as_str().is_some_and(|reason| reason.contains(&address)));
            Ok(named && status["endpoints"]["stale"] == 1)
        })?;
        ensure!(kept.status()?["phase"] == "TrustExpanded", "saw {}", kept.status()?["phase"]);

        // The gateway loads the new managed Secret.
        gateway.load(&kept, &new)?;
        kept.wait_phase("Steady")?;
        wait_for("status to count the gateway as current", SOON, || Ok(kept.status()?["endpoints"]["current"] == 1))?;
        kept.wait_bundle(&[&new])
    })
}
