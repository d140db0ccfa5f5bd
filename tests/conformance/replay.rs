//! The verdicts of the real Envoy, as a client and as a gateway.
//!
//! Suites may lack the key of a server's leaf, and then the server signs the handshake with another one. BoringSSL verifies the chain
//! before that signature (`do_read_server_certificate_verify` in ssl/tls13_client.cc), so a failure of the signature shows that it
//! accepts the chain.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};

use crate::{
    case::{Case, Role},
    client::{self, Outcome},
    testbed::{Content, Envoy, Gateway, Scratch},
    upstream::{BATCH, Client, Upstream},
};

/// The most gateways of one Envoy, which opens an inotify instance for each secret; Linux allows a user 128 of them.
const GATEWAYS: usize = 48;

/// What Envoy says about a handshake that is signed with another key than the leaf's. For the signature of a certificate it says
/// CERTIFICATE_VERIFY_FAILED.
const HANDSHAKE_SIGNATURE: &[&str] =
    &["SSL_routines:OPENSSL_internal:BAD_SIGNATURE:", "SSL_routines:OPENSSL_internal:WRONG_SIGNATURE_TYPE:"];

/// Whether Envoy accepts each chain now: `None`, or why it refuses it.
pub(crate) fn refusals(cases: &[Case]) -> Result<Vec<Option<String>>> {
    let mut refusals: Vec<_> = cases.iter().map(|_| None).collect();
    let signer = Signer::new()?;
    let (servers, clients): (Vec<_>, Vec<_>) =
        cases.iter().enumerate().partition(|(_, case)| matches!(case.role, Role::Server { .. }));
    for batch in servers.chunks(BATCH) {
        let upstreams: Vec<_> = batch.iter().map(|(_, case)| upstream(case, &signer)).collect::<Result<_>>()?;
        let client = Client::start(&upstreams)?;
        for (number, (at, _)) in batch.iter().enumerate() {
            refusals[*at] = client.ask(number)?.err();
        }
    }
    for batch in clients.chunks(GATEWAYS) {
        let scratch = Scratch::new()?;
        let envoy = gateways(&scratch, batch)?;
        for (at, case) in batch {
            let outcome = client::visit(envoy.address(), &sni(*at), Some(signer.identity(case)?))?;
            refusals[*at] = match outcome {
                Outcome::Passed(_) => None,
                Outcome::Refused(why) => Some(why),
            };
        }
    }
    let is_of_chain = |why: &String| !HANDSHAKE_SIGNATURE.iter().any(|failure| why.contains(failure));
    Ok(refusals.into_iter().map(|why| why.filter(is_of_chain)).collect())
}

fn upstream<'a>(case: &'a Case, signer: &Signer) -> Result<Upstream<'a>> {
    let hosts = match &case.role {
        Role::Client => &[],
        Role::Server { hosts } => hosts.as_slice(),
    };
    Ok(Upstream { ca: &case.ca, crl: case.crl.as_deref(), hosts, identity: signer.identity(case)? })
}

/// The SNI of the gateway of a case, and the name of its bundle.
fn sni(at: usize) -> String {
    format!("case-{at}.test")
}

fn gateways(scratch: &Scratch, cases: &[(usize, &Case)]) -> Result<Envoy> {
    let serving = rcgen::generate_simple_self_signed(["gateway.example".to_owned()])?;
    let pair =
        Content::Pair { chain: serving.cert.pem().into_bytes(), key: serving.signing_key.serialize_pem().into_bytes() };
    let mut contents = BTreeMap::from([("serving".to_owned(), pair)]);
    contents.extend(
        cases.iter().map(|(at, case)| (sni(*at), Content::Trust { ca: case.ca.clone(), crl: case.crl.clone() })),
    );
    let gateway = |at: usize| Gateway { host: sni(at), pair: "serving".to_owned(), trust: Some(sni(at)) };
    let gateways: Vec<_> = cases.iter().map(|(at, _)| gateway(*at)).collect();
    Envoy::start(scratch, "gateway", &gateways, &contents)
}

/// Makes the identities of peers.
struct Signer {
    /// The key of peers whose own one is missing.
    other: PrivateKeyDer<'static>,
}

impl Signer {
    fn new() -> Result<Self> {
        Ok(Self { other: PrivatePkcs8KeyDer::from(rcgen::KeyPair::generate()?.serialize_der()).into() })
    }

    fn identity(&self, case: &Case) -> Result<Arc<CertifiedKey>> {
        // rustls does not sign with every key that it reads.
        let own = case.key.as_ref().and_then(|key| any_supported_type(key).ok());
        let key = own.map_or_else(|| any_supported_type(&self.other), Ok)?;
        Ok(Arc::new(CertifiedKey::new(case.chain.clone(), key)))
    }
}
