//! TLS clients that use only their own Secret, in the version that was delivered to them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{self, CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};
use tokio_rustls::TlsConnector;
use trustspan::trust::{Certificate, Secret, certificates_under};

use crate::{
    journal::{Failure, Journal, Side},
    pace::{KUBELET, Pace},
    shelf::{Delivered, Shelf, names},
    testbed::Seed,
};

/// Time between two handshakes of a client. Twenty clients make 200 handshakes a second, twice the required rate.
const EVERY: Duration = Duration::from_millis(100);
/// Longer than any handshake on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long before its certificate expires a client that loads once is restarted. Certificates have whole seconds.
const AHEAD: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);

/// A host to connect to, and the address.
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) address: SocketAddr,
}

/// Describes the gateway that served a connection, by the client's port, and its certificates. For messages.
type Served = Box<dyn Fn(u16) -> String + Send + Sync>;

/// Reads the CAs that a client trusts from its Secret.
pub(crate) type ReadTrust = fn(&Secret) -> Result<Vec<CertificateDer<'static>>>;

/// State that all clients of a run share.
pub(crate) struct ClusterSnapshot {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) served: Served,
    pub(crate) pace: Pace,
    /// Incremented when clients that load once are restarted by a test.
    pub(crate) restarts: AtomicU32,
    pub(crate) over: AtomicBool,
}

/// What a client has loaded.
pub(crate) struct Identity {
    pub(crate) config: Arc<ClientConfig>,
    version: String,
    not_after: Timestamp,
    story: String,
}

/// A client, with the name of its Secret.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) load_once: bool,
    pub(crate) trust: ReadTrust,
    /// The hosts to which it connects, one after the other.
    pub(crate) targets: Arc<[Target]>,
    pub(crate) around: Arc<ClusterSnapshot>,
}

impl Client {
    /// Makes handshakes until the run ends.
    ///
    /// # Errors
    /// When the Secret cannot be used at all.
    pub(crate) async fn run(self) -> Result<()> {
        let around = &*self.around;
        let mut seed = Seed::of_run(&self.name);
        let mut restarts = around.restarts.load(Ordering::SeqCst);
        let mut identity = self.load()?;
        let mut due = None;
        let start = Instant::now() + EVERY.mul_f64(seed.below(1000) as f64 / 1000.0);
        let mut turns = interval_at(start, EVERY);
        // Handshakes that a busy machine delays are made up for later.
        turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut targets = self.targets.iter().cycle();
        while !around.over.load(Ordering::SeqCst) {
            turns.tick().await;
            let ordered = around.restarts.load(Ordering::SeqCst);
            if self.load_once {
                if ordered != restarts || Timestamp::now() + AHEAD >= identity.not_after {
                    restarts = ordered;
                    identity = self.load()?;
                }
            } else if self.newest()?.version != identity.version {
                let at = *due.get_or_insert_with(|| Instant::now() + around.pace.delay(KUBELET, &mut seed));
                if Instant::now() >= at {
                    (due, identity) = (None, self.load()?);
                }
            }
            let target = targets.next().context("a client without targets")?;
            let began = std::time::Instant::now();
            let (port, result) = visit(target, &identity.config).await;
            around.journal.ended(
                began,
                result.err().map(|error| Failure {
                    side: Side::of(&error),
                    client: self.name.clone(),
                    load_once: self.load_once,
                    host: target.host.clone(),
                    story: format!("{} at {}: {error}", identity.story, (around.served)(port)),
                }),
            );
        }
        Ok(())
    }

    fn newest(&self) -> Result<Arc<Delivered>> {
        self.around.shelf.newest(&self.name).with_context(|| format!("{}: no such Secret", self.name))
    }

    fn load(&self) -> Result<Identity> {
        let delivered = self.newest()?;
        let identity = identity(&delivered, self.trust).with_context(|| self.name.clone())?;
        self.around.shelf.loaded(&self.name, &self.name, &identity.version, self.load_once);
        Ok(identity)
    }
}

/// Verifies gateways by the roots that have not expired. rustls ignores the dates of a root; OpenSSL and Go do not.
#[derive(Debug)]
struct ValidRoots {
    /// Each root and the end of its validity.
    roots: Vec<(CertificateDer<'static>, Timestamp)>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ValidRoots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let second = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let mut valid = RootCertStore::empty();
        for (root, _) in self.roots.iter().filter(|(_, end)| second <= end.as_second()) {
            valid.add(root.clone())?;
        }
        if valid.is_empty() {
            return Err(CertificateError::Expired.into());
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(valid), Arc::clone(&self.provider)).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The bytes under a key of a Secret.
pub(crate) fn value<'s>(secret: &'s Secret, key: &str) -> Result<&'s [u8]> {
    secret.data.get(key).map(|bytes| bytes.as_slice()).with_context(|| format!("no {key}"))
}

/// The CAs in `ca.crt`.
pub(crate) fn ca_crt(secret: &Secret) -> Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(value(secret, "ca.crt")?).collect::<Result<_, _>>()?)
}

/// The TLS identity in a Secret.
pub(crate) fn identity(delivered: &Delivered, trust: ReadTrust) -> Result<Identity> {
    let secret = &delivered.secret;
    let pem = |key: &str| value(secret, key);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = ValidRoots { roots: Vec::new(), provider: Arc::clone(&provider) };
    let mut trusted = Vec::new();
    for root in trust(secret)? {
        let parsed = Certificate::parse(&root)?;
        roots.roots.push((root, parsed.not_after));
        trusted.push(parsed);
    }
    let chain = CertificateDer::pem_slice_iter(pem("tls.crt")?).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(pem("tls.key")?)?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(roots))
        .with_client_auth_cert(chain, key)?;
    // A resumed session shows no certificate.
    config.resumption = Resumption::disabled();
    let shown = certificates_under(secret, "tls.crt");
    let leaf = shown.first().context("no certificate in tls.crt")?;
    Ok(Identity {
        config: Arc::new(config),
        version: delivered.version.clone(),
        not_after: leaf.not_after,
        story: format!("{}, trusts {}", names(std::slice::from_ref(leaf)), names(&trusted)),
    })
}

/// Makes a handshake and one request. Returns the local port.
pub(crate) async fn visit(target: &Target, config: &Arc<ClientConfig>) -> (u16, io::Result<()>) {
    let stream = match TcpStream::connect(target.address).await {
        Ok(stream) => stream,
        Err(error) => return (0, Err(error)),
    };
    let port = stream.local_addr().map_or(0, |local| local.port());
    let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}")));
    (port, timeout(PATIENCE, request(stream, &target.host, config)).await.unwrap_or_else(late))
}

async fn request(stream: TcpStream, host: &str, config: &Arc<ClientConfig>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut tls = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    // A gateway that has refused the client may have closed the socket, but its alert can still be read.
    let _ = tls.write_all(request.as_bytes()).await;
    let _ = tls.flush().await;
    let mut answer = [0; 12];
    tls.read_exact(&mut answer).await?;
    match answer.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(io::Error::other(format!("expected 200, got {}", String::from_utf8_lossy(&answer)))),
    }
}
