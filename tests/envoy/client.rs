//! A TLS 1.3 client that presents a certificate and accepts any server.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    StreamOwned,
    client::{
        ResolvesClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime},
    sign::CertifiedKey,
};

/// Longer than any handshake on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// Whether the gateway accepted a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It responded, and presented this chain.
    Passed(Vec<CertificateDer<'static>>),
    /// It closed the connection.
    Refused(String),
}

impl Outcome {
    pub(crate) fn passed(&self) -> bool {
        matches!(self, Self::Passed(_))
    }
}

/// The configuration of a client that presents this certificate.
pub(crate) fn config(identity: Option<Arc<CertifiedKey>>) -> Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone));
    Ok(match identity {
        Some(identity) => config.with_client_cert_resolver(Arc::new(Always(identity))),
        None => config.with_no_client_auth(),
    })
}

/// Makes a handshake with the gateway of `host`, and one request.
pub(crate) fn visit(address: SocketAddr, host: &str, identity: Option<Arc<CertifiedKey>>) -> Result<Outcome> {
    let tls = ClientConnection::new(Arc::new(config(identity)?), ServerName::try_from(host.to_owned())?)?;
    let stream = TcpStream::connect(address).context("connecting to Envoy")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut stream = StreamOwned::new(tls, stream);
    match request(&mut stream) {
        Ok(response) if response.starts_with(b"HTTP/1.1 200") => {
            let chain = stream.conn.peer_certificates().unwrap_or_default().to_vec();
            Ok(Outcome::Passed(chain.into_iter().map(CertificateDer::into_owned).collect()))
        }
        Ok(response) => bail!("{host}: expected a response 200, got {:?}", String::from_utf8_lossy(&response)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(error).with_context(|| format!("{host}: no response within {PATIENCE:?}"))
        }
        Err(error) => Ok(Outcome::Refused(error.to_string())),
    }
}

/// Whether a client that trusts only `root` finds no path to it in a served chain. Other errors are ignored.
pub(crate) fn lacks_issuer(chain: &[CertificateDer<'static>], root: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    let Some((leaf, others)) = chain.split_first() else { return true };
    if roots.add(root.clone()).is_err() {
        return false;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&PROVIDER)).build();
    let Ok((verifier, host)) =
        verifier.map_err(drop).and_then(|v| Ok((v, ServerName::try_from("gateway.example").map_err(drop)?)))
    else {
        return false;
    };
    let verdict = verifier.verify_server_cert(leaf, others, &host, &[], UnixTime::now());
    matches!(verdict, Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)))
}

fn request(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> std::io::Result<Vec<u8>> {
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    // In TLS 1.3 the client finishes before the gateway has verified its certificate, so the first read shows the result. A gateway that
    // refuses may have closed the socket, but its alert can still be read.
    let sent =
        stream.write_all(b"GET / HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n").and_then(|()| stream.flush());
    let mut response = vec![0; 12];
    stream.read_exact(&mut response).map_err(|error| sent.err().unwrap_or(error))?;
    Ok(response)
}

/// Presents this certificate, whatever CAs the gateway names.
#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesClientCert for Always {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Accepts any server: its certificate is not tested here.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}
