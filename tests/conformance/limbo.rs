//! x509-limbo (github.com/C2SP/x509-limbo): paths, extensions and names of RFC 5280 and of the Web PKI.
//!
//! A client's `expected_peer_names` are not compared, since a verdict on a client has no names.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde::Deserialize;

use crate::case::{Case, Role, Suite};

#[derive(Deserialize)]
struct Limbo {
    testcases: Vec<TestCase>,
}

#[derive(Deserialize)]
struct TestCase {
    id: String,
    validation_kind: Kind,
    trusted_certs: Vec<String>,
    untrusted_intermediates: Vec<String>,
    peer_certificate: String,
    peer_certificate_key: Option<String>,
    validation_time: Option<Timestamp>,
    signature_algorithms: Vec<String>,
    key_usage: Vec<String>,
    extended_key_usage: Vec<String>,
    expected_result: ExpectedResult,
    expected_peer_name: Option<PeerName>,
    max_chain_depth: Option<u32>,
    #[serde(default)]
    crls: Vec<String>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Client,
    Server,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum ExpectedResult {
    Success,
    Failure,
}

#[derive(Deserialize)]
struct PeerName {
    value: String,
}

/// The cases of limbo.json in a checkout.
pub(crate) fn suite(checkout: &Path) -> Result<Suite> {
    let path = checkout.join("limbo.json");
    let text =
        fs::read(&path).with_context(|| format!("{}: expected a checkout of C2SP/x509-limbo", path.display()))?;
    let limbo: Limbo = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let mut suite = Suite { cases: Vec::new(), skipped: BTreeMap::new() };
    for case in limbo.testcases {
        match case.unsupported() {
            Some(reason) => *suite.skipped.entry(reason).or_default() += 1,
            None => suite.cases.push(case.read()?),
        }
    }
    Ok(suite)
}

impl TestCase {
    /// What the case asks for and a verdict does not take.
    fn unsupported(&self) -> Option<&'static str> {
        let usage = if self.validation_kind == Kind::Client { "clientAuth" } else { "serverAuth" };
        match self {
            _ if self.id.starts_with("bettertls::") => Some("a copy of a case of BetterTLS"),
            Self { max_chain_depth: Some(_), .. } => Some("the verifier limits the length of paths"),
            // Only the key can show that a gateway accepts a client.
            Self { validation_kind: Kind::Client, peer_certificate_key: None, .. } => Some("the client has no key"),
            _ if !self.signature_algorithms.is_empty() => Some("the verifier limits signature algorithms"),
            _ if self.key_usage.iter().any(|usage| usage != "digitalSignature") => {
                Some("another key usage is required")
            }
            _ if self.extended_key_usage.iter().any(|other| other != usage) => Some("another purpose is required"),
            _ => None,
        }
    }

    fn read(self) -> Result<Case> {
        let context = || self.id.clone();
        let chain = [&self.peer_certificate].into_iter().chain(&self.untrusted_intermediates);
        let chain = chain.map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()));
        // rustls reads no DSA keys.
        let key = self.peer_certificate_key.as_ref().and_then(|key| PrivateKeyDer::from_pem_slice(key.as_bytes()).ok());
        Ok(Case {
            ca: self.trusted_certs.join("\n").into_bytes(),
            crl: (!self.crls.is_empty()).then(|| self.crls.join("\n").into_bytes()),
            chain: chain.collect::<Result<_, _>>().with_context(context)?,
            key,
            role: match self.validation_kind {
                Kind::Client => Role::Client,
                Kind::Server => {
                    Role::Server { hosts: self.expected_peer_name.into_iter().map(|name| name.value).collect() }
                }
            },
            at: self.validation_time,
            is_valid: self.expected_result == ExpectedResult::Success,
            id: self.id,
        })
    }
}
