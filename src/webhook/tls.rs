//! The serving certificate of the webhook. It is reloaded when its files change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, version};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use zeroize::Zeroizing;

use crate::health::{CheckResult, Requirement};
use crate::store::CheckHandle;

/// File name of the certificate chain in `--cert-dir`, leaf first.
pub const CERTIFICATE: &str = "tls.crt";
/// File name of the private key in `--cert-dir`.
pub const KEY: &str = "tls.key";

pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingCertificateError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The chain has no certificate, or one that cannot be parsed.
    #[error("{}: not a certificate chain in PEM", path.display())]
    Chain {
        /// The file.
        path: PathBuf,
    },
    /// The key file has no private key.
    #[error("{}: not a private key in PEM", path.display())]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// The files can be parsed, but do not belong together, or rustls cannot serve with them.
    #[error("{CERTIFICATE} and {KEY} in {}: {source}; expected the key of the first certificate", dir.display())]
    ServingPairFiles {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// A serving certificate cannot be generated.
    #[error("cannot generate a serving certificate: {0}")]
    Make(String),
}

/// The certificate for new connections.
#[derive(Debug)]
pub struct ServingCertificate {
    current: ArcSwap<ServingPairFiles>,
    reloads: AtomicU64,
    failures: AtomicU64,
}

/// A chain with its key, and a digest to detect changes.
#[derive(Debug)]
pub(super) struct ServingPairFiles {
    certified: Arc<CertifiedKey>,
    not_after: Timestamp,
    digest: [u8; 32],
}

impl ServingCertificate {
    pub(super) fn new(pair: ServingPairFiles) -> Self {
        Self { current: ArcSwap::from_pointee(pair), reloads: AtomicU64::new(0), failures: AtomicU64::new(0) }
    }

    /// Reads `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// If one is missing or cannot be parsed, or the key does not belong to the certificate.
    pub fn read(dir: &Path) -> Result<Self, ServingCertificateError> {
        Ok(Self::new(ServingPairFiles::read(dir)?))
    }

    /// End of validity of the serving certificate.
    pub fn not_after(&self) -> Timestamp {
        self.current.load().not_after
    }

    /// The number of changed pairs that were loaded.
    pub fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// The number of changed pairs that could not be loaded.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// TLS 1.2 and 1.3 with this certificate, for HTTP/1.1 only: the API server keeps connections and does not multiplex them. With `clients`,
    /// only they get further than the handshake.
    ///
    /// # Errors
    /// If the crypto provider lacks one of the versions.
    pub fn server_config(
        self: &Arc<Self>,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?;
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(clients),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self.clone());
        // A resumed session would not be verified again after a change of the clients' CAs. The API server keeps its connections.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }

    /// Reads the pair every few seconds, serves it if it is valid, and records in `check` what is wrong. It compares contents instead of
    /// watching files: a mounted Secret changes by a symbolic link (`..data`), and no file in it is written. Never returns.
    pub async fn follow(self: Arc<Self>, dir: Option<PathBuf>, check: CheckHandle) {
        let mut reported: Option<String> = None;
        let mut ticks = interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let failure = match &dir {
                Some(dir) => self.reload(dir.clone()).await.err(),
                None => None,
            };
            // Counted once for each cause, not at every interval.
            let message = failure.as_ref().map(ToString::to_string);
            if message.is_some() && message != reported {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            reported = message;
            let (requirement, result) = health(self.not_after(), failure.as_ref(), Timestamp::now());
            check.record_as(requirement, result);
        }
    }

    /// Reads the pair, and serves it from now on if it is another one.
    async fn reload(&self, dir: PathBuf) -> Result<(), ServingCertificateError> {
        let Ok(read) = spawn_blocking(move || ServingPairFiles::read(&dir)).await else { return Ok(()) };
        let pair = read?;
        if pair.digest != self.current.load().digest {
            tracing::info!(not_after = %pair.not_after, "new serving certificate");
            self.current.store(Arc::new(pair));
            self.reloads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The health of the certificate that is served until `not_after`, when the files last failed to load with `failure`.
///
/// A pair that cannot be loaded makes nothing unready while the previous one is valid: all replicas mount the same Secret, so all of them
/// would leave the Service, and working admission would end.
fn health(
    not_after: Timestamp,
    failure: Option<&ServingCertificateError>,
    now: Timestamp,
) -> (Requirement, CheckResult) {
    let result = match failure {
        _ if not_after <= now => {
            let reason = failure.map(|failure| format!("; its files cannot be loaded: {failure}")).unwrap_or_default();
            let reason = format!("the serving certificate expired at {not_after}{reason}");
            return (Requirement::Always, CheckResult::Misconfigured(reason));
        }
        None => CheckResult::Ok,
        Some(failure) => {
            let reason = format!("{failure}; the previous pair is served, until {not_after}");
            match failure {
                ServingCertificateError::File { .. } => CheckResult::Unreachable(reason),
                _ => CheckResult::Misconfigured(reason),
            }
        }
    };
    (Requirement::AtStart, result)
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load().certified.clone())
    }
}

impl ServingPairFiles {
    fn read(dir: &Path) -> Result<Self, ServingCertificateError> {
        // Both files from one version of the mount: the link may change between two reads.
        let from = dir.join("..data").canonicalize().unwrap_or_else(|_| dir.to_owned());
        let from = if from.join(CERTIFICATE).exists() { from } else { dir.to_owned() };
        let file = |name| {
            let path = dir.join(name);
            match fs::read(from.join(name)) {
                Ok(bytes) => Ok((path, Zeroizing::new(bytes))),
                Err(source) => Err(ServingCertificateError::File { path, source }),
            }
        };
        let (chain_path, chain_pem) = file(CERTIFICATE)?;
        let (key_path, key_pem) = file(KEY)?;
        let chain = CertificateDer::pem_slice_iter(&chain_pem).collect::<Result<Vec<_>, _>>().unwrap_or_default();
        let Some(not_after) = chain.first().and_then(not_after) else {
            return Err(ServingCertificateError::Chain { path: chain_path });
        };
        let key =
            PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| ServingCertificateError::Key { path: key_path })?;
        let digest =
            Sha256::new().chain_update(&*chain_pem).chain_update([0]).chain_update(&*key_pem).finalize().into();
        Self::new(chain, key, not_after, digest)
            .map_err(|source| ServingCertificateError::ServingPairFiles { dir: dir.to_owned(), source })
    }

    pub(super) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        not_after: Timestamp,
        digest: [u8; 32],
    ) -> Result<Self, rustls::Error> {
        // This fails if the key does not belong to the first certificate.
        let certified = Arc::new(CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?);
        Ok(Self { certified, not_after, digest })
    }
}

pub(super) fn not_after(leaf: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, leaf) = x509_parser::parse_x509_certificate(leaf).ok()?;
    Timestamp::from_second(leaf.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let (crt, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        fs::write(dir.join(CERTIFICATE), &crt).unwrap();
        fs::write(dir.join(KEY), &key).unwrap();
        (crt, key)
    }

    #[test]
    fn loads_certificate_and_key_together() {
        let dir = tempfile::tempdir().unwrap();
        let read = || ServingPairFiles::read(dir.path()).map(|p| p.digest).map_err(|e| e.to_string());
        assert!(read().unwrap_err().contains("tls.crt: No such file"));
        let (_, key) = write(dir.path(), "one");
        let one = read().unwrap();
        assert_eq!(read().unwrap(), one);
        write(dir.path(), "two");
        assert_ne!(read().unwrap(), one);
        fs::write(dir.path().join(KEY), key).unwrap();
        assert!(read().unwrap_err().contains("expected the key of the first certificate"));
        fs::write(dir.path().join(KEY), "").unwrap();
        assert!(read().unwrap_err().ends_with("tls.key: not a private key in PEM"));
        fs::write(dir.path().join(CERTIFICATE), "x").unwrap();
        assert!(read().unwrap_err().ends_with("tls.crt: not a certificate chain in PEM"));
    }

    #[test]
    fn broken_files_make_it_unready_only_when_the_served_certificate_has_expired() {
        let (now, hour) = (Timestamp::now(), jiff::SignedDuration::from_hours(1));
        let broken = ServingCertificateError::Key { path: "tls.key".into() };
        let unread = ServingCertificateError::File { path: "tls.key".into(), source: io::ErrorKind::NotFound.into() };
        assert_eq!(health(now + hour, None, now), (Requirement::AtStart, CheckResult::Ok));
        let (requirement, result) = health(now + hour, Some(&broken), now);
        assert_eq!(requirement, Requirement::AtStart);
        let CheckResult::Misconfigured(reason) = result else { panic!("{result:?}") };
        assert!(
            reason.contains("tls.key: not a private key in PEM") && reason.contains("is served, until"),
            "{reason}"
        );
        let (_, result) = health(now + hour, Some(&unread), now);
        assert!(matches!(result, CheckResult::Unreachable(_)), "{result:?}");
        for failure in [None, Some(&broken)] {
            let (requirement, result) = health(now - hour, failure, now);
            assert_eq!(requirement, Requirement::Always);
            assert!(matches!(result, CheckResult::Misconfigured(reason) if reason.contains("expired at")));
        }
    }
}
