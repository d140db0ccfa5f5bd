//! A case of a suite, and trustspan's verdict on it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use trustspan::trust::{
    Certificate, bundle,
    chain::{Purpose, verify},
};

/// The verdict on a chain that is accepted. On others it is the id of the reason.
pub(crate) const ACCEPTED: &str = "accepted";

/// A chain, and whether a suite says that it is valid.
pub(crate) struct Case {
    pub(crate) id: String,
    /// The trust anchors, in PEM.
    pub(crate) ca: Vec<u8>,
    /// Revocation lists, in PEM.
    pub(crate) crl: Option<Vec<u8>>,
    /// The leaf, then other certificates in any order.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The key of the leaf, if the suite has it and rustls reads it.
    pub(crate) key: Option<PrivateKeyDer<'static>>,
    pub(crate) role: Role,
    /// When the chain is presented, if it is not now.
    pub(crate) at: Option<Timestamp>,
    /// Whether the suite expects that the chain is accepted.
    pub(crate) is_valid: bool,
}

/// Who presents the chain.
pub(crate) enum Role {
    Client,
    /// A server, to clients that use these names.
    Server {
        hosts: Vec<String>,
    },
}

/// The cases of a suite that are judged, and the number of the others by reason.
pub(crate) struct Suite {
    pub(crate) cases: Vec<Case>,
    pub(crate) skipped: BTreeMap<&'static str, usize>,
}

impl Case {
    /// The verdict at an instant.
    pub(crate) fn verdict(&self, at: Timestamp) -> &'static str {
        let bundle = bundle::read(&self.ca);
        let lists = self.crl.as_deref().map(bundle::read);
        let chain: Result<Vec<_>, _> = self.chain.iter().map(|der| Certificate::parse(der)).collect();
        let is_rejected = bundle.rejected.is_some() || lists.as_ref().is_some_and(|lists| lists.rejected.is_some());
        let Some(chain) = chain.ok().filter(|_| !is_rejected) else { return "unreadable" };
        let purpose = match &self.role {
            Role::Client => Purpose::Client,
            Role::Server { hosts } => Purpose::Server { hosts },
        };
        let crls = lists.as_ref().map(|lists| lists.crls.as_slice());
        let verdict = verify(&bundle.into_certificates(), crls, &chain, purpose, at);
        verdict.map_or_else(|refused| refused.id(), |_| ACCEPTED)
    }
}
