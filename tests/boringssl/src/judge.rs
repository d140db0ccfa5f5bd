//! BoringSSL in this process, configured as Envoy does it (source/common/tls/cert_validator/default_validator.cc). It
//! loads bundles, and makes handshakes in memory with clients and servers that are simulated by rustls.

use std::{
    fs,
    io::{self, Read, Write},
    path::PathBuf,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail};
use boring::{
    error::ErrorStack,
    pkey::{PKey, Private},
    ssl::{HandshakeError, Ssl, SslContext, SslContextBuilder, SslMethod, SslStream, SslVerifyMode},
    x509::{X509, X509Name, verify::X509VerifyFlags},
};
use jiff::Timestamp;
use rustls::{
    ClientConnection, Connection, ServerConfig, ServerConnection,
    crypto::aws_lc_rs,
    pki_types::ServerName,
    sign::{CertifiedKey, SingleCertAndKey},
};
use tempfile::TempDir;

use crate::{
    client::{self, Outcome},
    pki::Identity,
};

/// The error of `X509_load_cert_crl_file` for a text without blocks. Envoy treats such a text as an empty list.
const NOTHING: &str = "NO_CERTIFICATE_OR_CRL_FOUND";
/// More round trips than any handshake takes.
const ROUNDS: usize = 64;

/// BoringSSL for one thread.
pub(crate) struct Judge {
    certificate: X509,
    key: PKey<Private>,
    /// BoringSSL loads bundles only from files. They hold certificates and revocation lists, but no keys of this run.
    dir: TempDir,
}

/// The side of a handshake that BoringSSL plays.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Gateway,
    Client,
}

/// BoringSSL's reaction to a bundle.
pub(crate) enum Load {
    Accepted(Loaded),
    Rejected,
    /// The revocation lists contain certificates, which Envoy does not trust, but BoringSSL's file loader does. Or a line begins with NUL, which ends
    /// a file for that loader, while Envoy loads from memory.
    Unknown,
}

/// A loaded bundle.
pub(crate) struct Loaded {
    context: SslContext,
    side: Side,
    flags: X509VerifyFlags,
}

impl Judge {
    /// BoringSSL as a gateway with this serving certificate.
    pub(crate) fn new(gateway: &Identity) -> Result<Self> {
        let key = PKey::private_key_from_pem(gateway.key.pem().as_bytes())?;
        Ok(Self { certificate: X509::from_der(&gateway.der)?, key, dir: tempfile::tempdir()? })
    }

    pub(crate) fn load(&self, side: Side, ca: &[u8], crl: Option<&[u8]>) -> Result<Load> {
        let begins_with_nul = |text: &[u8]| text.split(|byte| *byte == b'\n').any(|line| line.first() == Some(&0));
        if [Some(ca), crl].into_iter().flatten().any(begins_with_nul) {
            return Ok(Load::Unknown);
        }
        let mut context = SslContext::builder(SslMethod::tls())?;
        let file = self.file("ca.crt", ca)?;
        if context.set_ca_file(&file).is_err() {
            return Ok(Load::Rejected);
        }
        // Envoy ignores an empty text.
        let crl = crl.filter(|crl| !crl.is_empty());
        if let Some(crl) = crl {
            let lists = self.file("ca.crl", crl)?;
            match certificates(&lists) {
                Err(error) if is(&error, NOTHING) => {}
                Err(_) => return Ok(Load::Rejected),
                Ok((0, _)) => context.set_ca_file(&lists)?,
                Ok(_) => return Ok(Load::Unknown),
            }
        }
        if side == Side::Gateway {
            context.set_certificate(&self.certificate)?;
            context.set_private_key(&self.key)?;
            // The gateway names its CAs in the certificate request.
            if let Ok(names) = X509Name::load_client_ca_file(&file) {
                context.set_client_ca_list(names);
            }
        }
        context.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
        let context = context.build();
        let (certificates, lists) = objects(&context);
        if certificates == 0 {
            return Ok(Load::Rejected);
        }
        let mut flags = X509VerifyFlags::PARTIAL_CHAIN;
        if crl.is_some() || lists > 0 {
            flags |= X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL;
        }
        Ok(Load::Accepted(Loaded { context, side, flags }))
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        let file = self.dir.path().join(name);
        fs::write(&file, bytes)?;
        Ok(file)
    }
}

/// The numbers of certificates and of revocation lists in a file.
fn certificates(file: &PathBuf) -> Result<(usize, usize), ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_ca_file(file)?;
    Ok(objects(&context.build()))
}

// Deprecated because another thread could change the store. This store is not shared.
#[allow(deprecated)]
fn objects(context: &SslContext) -> (usize, usize) {
    let objects = context.cert_store().objects();
    let certificates = objects.iter().filter(|object| object.x509().is_some()).count();
    (certificates, objects.len() - certificates)
}

fn is(error: &ErrorStack, reason: &str) -> bool {
    error.errors().last().is_some_and(|error| error.reason() == Some(reason))
}

impl Loaded {
    /// Whether BoringSSL accepts the other side of a handshake at an instant.
    pub(crate) fn meet(&self, other: &Arc<CertifiedKey>, now: Timestamp) -> Result<Outcome> {
        let mut ssl = Ssl::new(&self.context)?;
        let parameters = ssl.verify_param_mut();
        parameters.set_flags(self.flags);
        parameters.set_time(now.as_second());
        match self.side {
            Side::Gateway => {
                let config = Arc::new(client::config(Some(Arc::clone(other)))?);
                let name = ServerName::try_from("gateway.example")?;
                handshake(ClientConnection::new(config, name)?.into(), |wire| ssl.accept(wire))
            }
            Side::Client => {
                let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                    .with_protocol_versions(&[&rustls::version::TLS13])?
                    .with_no_client_auth()
                    .with_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::clone(other))));
                handshake(ServerConnection::new(Arc::new(config))?.into(), |wire| ssl.connect(wire))
            }
        }
    }
}

/// Two buffers in place of a socket: the bytes that BoringSSL has not read yet, and those that it has written.
#[derive(Debug, Default)]
struct Wire {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.input.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buffer.len().min(self.input.len());
        buffer[..count].copy_from_slice(&self.input[..count]);
        self.input.drain(..count);
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Step = Result<SslStream<Wire>, HandshakeError<Wire>>;

fn handshake(mut other: Connection, start: impl FnOnce(Wire) -> Step) -> Result<Outcome> {
    let mut wire = Wire::default();
    exchange(&mut other, &mut wire)?;
    let mut step = start(wire);
    for _ in 0..ROUNDS {
        let mut pending = match step {
            Ok(_) => return Ok(Outcome::Passed(Vec::new())),
            Err(HandshakeError::SetupFailure(error)) => return Err(error.into()),
            Err(HandshakeError::Failure(failed)) => return Ok(Outcome::Refused(reason(&failed))),
            Err(HandshakeError::WouldBlock(pending)) => pending,
        };
        match exchange(&mut other, pending.get_mut()) {
            Ok(()) => step = pending.handshake(),
            // BoringSSL does not offer a signature algorithm that the other side's key supports.
            Err(error) if matches!(error.downcast_ref(), Some(rustls::Error::PeerIncompatible(_))) => {
                return Ok(Outcome::Refused(error.to_string()));
            }
            Err(error) => return Err(error).context("rustls"),
        }
    }
    bail!("expected a handshake of at most {ROUNDS} rounds")
}

fn reason(failed: &boring::ssl::MidHandshakeSslStream<Wire>) -> String {
    match failed.ssl().verify_result() {
        Err(error) => error.to_string(),
        Ok(()) => failed.error().to_string(),
    }
}

/// Passes the bytes that BoringSSL has written to rustls, and its answer back.
fn exchange(other: &mut Connection, wire: &mut Wire) -> Result<()> {
    let output = std::mem::take(&mut wire.output);
    let mut unread = output.as_slice();
    while !unread.is_empty() {
        if other.read_tls(&mut unread)? == 0 {
            return Err(anyhow!("expected rustls to read"));
        }
        other.process_new_packets()?;
    }
    while other.wants_write() {
        other.write_tls(&mut wire.input)?;
    }
    Ok(())
}
