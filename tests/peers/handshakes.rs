//! Mutual TLS between the parties of Envoy Gateway's control plane while their Secrets are rotated. All parties reload
//! their Secrets, so a failed handshake is due to the different times at which they do.

use std::{sync::Arc, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, RootCertStore, ServerConfig, ServerConnection, SideData,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{ParsedCertificate, WebPkiClientVerifier},
};

use crate::{
    control_plane::{ControlPlane, Reader, Rotator},
    shelf::{Delivered, names},
    testbed::{Cluster, Seed},
};
use trustspan::trust::{anchors, certificates_under};

const ROTATIONS: usize = 5;
/// The processes, each with the Secret that it mounts. Each of the three proxies of a Deployment has its own copy of
/// the files.
const PARTIES: [&str; 5] = ["envoy", "envoy", "envoy", "envoy-gateway", "envoy-rate-limit"];
/// Which process connects to which: proxies and the rate limit service get their configuration from Envoy Gateway, and
/// proxies call the service.
const LINKS: [(usize, usize); 7] = [(0, 3), (1, 3), (2, 3), (4, 3), (0, 4), (1, 4), (2, 4)];
/// The pause between two rounds of handshakes.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) fn staged(cluster: &Cluster) -> Result<()> {
    let counted = count(cluster, Rotator::Staged)?;
    ensure!(counted.failed == 0, "{} of {} handshakes failed", counted.failed, counted.made);
    ensure!(counted.made > 1_000, "{} handshakes prove too little", counted.made);
    Ok(())
}

/// Shows that handshakes fail with `--single-write`, and so that failures are detected.
pub(crate) fn single_write(cluster: &Cluster) -> Result<()> {
    ensure!(count(cluster, Rotator::SingleWrite)?.failed > 0, "no handshake failed");
    Ok(())
}

pub(crate) fn envoy_gateway(cluster: &Cluster) -> Result<()> {
    // Failures are printed. A release of Envoy Gateway with fewer failures does not fail this test.
    count(cluster, Rotator::EnvoyGateway).map(drop)
}

/// Handshakes of some rotations.
#[derive(Default)]
struct Count {
    made: usize,
    failed: usize,
}

fn count(cluster: &Cluster, rotator: Rotator) -> Result<Count> {
    cluster.with_temp_ns(|ns| {
        let control_plane = ControlPlane::new(cluster, ns)?;
        let mut seed = Seed::of_run("parties");
        let readers: Result<Vec<_>> = PARTIES.iter().map(|secret| Reader::new(&control_plane, secret)).collect();
        let mut parties: Vec<_> = readers?.into_iter().map(Party::new).collect::<Result<_>>()?;
        let mut counted = Count::default();
        for rotation in 1..=ROTATIONS {
            let before = control_plane.newest("envoy")?;
            let mut process = control_plane.rotate(rotator)?;
            loop {
                for party in &mut parties {
                    party.sync(&control_plane, &mut seed)?;
                }
                counted.add(&parties, rotator)?;
                if let Some(status) = process.exited()? {
                    ensure!(status == 0, "rotation {rotation} ended with {status}\n{}", process.log_tail(10));
                    if are_synced(&parties, &control_plane)? && control_plane.is_delivered()? {
                        break;
                    }
                }
                thread::sleep(PAUSE);
            }
            let after = control_plane.newest("envoy")?;
            ensure!(
                before.secret.data["tls.crt"].as_slice() != after.secret.data["tls.crt"].as_slice(),
                "rotation {rotation} changed no certificate"
            );
            // After all parties have loaded the newest Secrets, no handshake may fail.
            let mut synced = Count::default();
            synced.add(&parties, rotator)?;
            ensure!(synced.failed == 0, "rotation {rotation}: handshakes fail after all parties have loaded it");
        }
        println!(
            "{rotator:?}: {} handshakes in {ROTATIONS} rotations, {} failed; TRUSTSPAN_SEED={}",
            counted.made,
            counted.failed,
            Seed::number()
        );
        Ok(counted)
    })
}

impl Count {
    /// Makes a handshake on each link.
    fn add(&mut self, parties: &[Party], rotator: Rotator) -> Result<()> {
        for (from, to) in LINKS {
            let (client, server) = (&parties[from], &parties[to]);
            self.made += 1;
            if let Err(error) = handshake(&client.client, &server.server) {
                self.failed += 1;
                // Only the first failure is printed, since all are alike.
                if self.failed == 1 || rotator == Rotator::Staged {
                    eprintln!("{rotator:?}: {} connects to {}: {error:#}", client.summary()?, server.summary()?);
                }
            }
        }
        Ok(())
    }
}

fn are_synced(parties: &[Party], control_plane: &ControlPlane<'_>) -> Result<bool> {
    let mut synced = true;
    for party in parties {
        synced &= party.reader.is_synced(control_plane)?;
    }
    Ok(synced)
}

/// A process with what it has loaded.
struct Party {
    reader: Reader,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Party {
    fn new(reader: Reader) -> Result<Self> {
        let (client, server) = configs(&reader.loaded)?;
        Ok(Self { reader, client, server })
    }

    fn sync(&mut self, control_plane: &ControlPlane<'_>, seed: &mut Seed) -> Result<()> {
        if self.reader.sync(control_plane, seed)? {
            (self.client, self.server) = configs(&self.reader.loaded)?;
        }
        Ok(())
    }

    /// The content that it has loaded, for messages.
    fn summary(&self) -> Result<String> {
        let secret = &self.reader.loaded.secret;
        let leaf = certificates_under(secret, "tls.crt").into_iter().next().context("no certificate in tls.crt")?;
        Ok(format!("{} with {}, which trusts {},", self.reader.secret, names(&[leaf]), names(&anchors(secret))))
    }
}

/// The configurations of both sides of mutual TLS with a Secret. Sessions are not resumed, since a resumed one presents
/// no certificate.
fn configs(delivered: &Delivered) -> Result<(Arc<ClientConfig>, Arc<ServerConfig>)> {
    let data = &delivered.secret.data;
    let pem = |key: &str| data.get(key).map(|bytes| bytes.as_slice()).with_context(|| format!("no {key}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem("ca.crt")?) {
        roots.add(certificate?)?;
    }
    let roots = Arc::new(roots);
    let chain = CertificateDer::pem_slice_iter(pem("tls.crt")?).collect::<Result<Vec<_>, _>>()?;
    let key = || PrivateKeyDer::from_pem_slice(pem("tls.key")?).context("tls.key");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = ServerChain { roots: Arc::clone(&roots), provider: Arc::clone(&provider) };
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain.clone(), key()?)?;
    client.resumption = Resumption::disabled();
    let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key()?)?;
    server.send_tls13_tickets = 0;
    Ok((Arc::new(client), Arc::new(server)))
}

/// Makes a handshake in memory, until both sides have accepted each other.
fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<()> {
    let name = ServerName::try_from("control-plane.example.com")?;
    let mut client = ClientConnection::new(Arc::clone(client), name)?;
    let mut server = ServerConnection::new(Arc::clone(server))?;
    while client.is_handshaking() || server.is_handshaking() {
        deliver(&mut client, &mut server).context("the server")?;
        deliver(&mut server, &mut client).context("the client")?;
    }
    Ok(())
}

/// Passes the bytes that one side has written to the other.
fn deliver<A: SideData, B: SideData>(from: &mut ConnectionCommon<A>, to: &mut ConnectionCommon<B>) -> Result<()> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes)?;
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest)?;
        to.process_new_packets()?;
    }
    Ok(())
}

/// Verifies a server's chain, but not its name: a rotation does not change names, and webpki does not accept a wildcard
/// like `*.NAMESPACE`.
#[derive(Debug)]
struct ServerChain {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerChain {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let leaf = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
