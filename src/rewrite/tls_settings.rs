//! Which certificate a gateway presents, and where it takes the CAs from by which it verifies its peers: for each server,
//! listener and upstream, as istiod resolves it.
//!
//! Source: istiod's `pilot/pkg/security/model/authentication.go`, `pilot/pkg/credentials/kube/secrets.go` and
//! `pilot/pkg/config/kube/gateway/conversion.go`.

use super::Named;
use super::json_path::field;
use crate::registry::Place;

/// The TLS settings of one server, listener or upstream.
#[derive(Clone, Debug)]
pub struct TlsSettings<'a> {
    /// JSON Pointer of the field that decides about the CAs.
    pub pointer: String,
    /// The Secrets whose certificates are presented, in order.
    pub presents: Vec<Named<'a>>,
    /// Where the peers' CAs come from.
    pub trust: TrustSource<'a>,
    /// The gateway is the client, and what it presents is a client's certificate.
    pub is_upstream: bool,
    /// The hosts that the server or listener is for, as its object names them.
    pub hosts: Vec<&'a str>,
    /// SHA-256 hashes of the certificates, or of their public keys, to which peers are limited
    /// (`verifyCertificateHash`, `verifyCertificateSpki`).
    pub pins: Vec<&'a str>,
}

/// Where a gateway takes the CAs from by which it verifies its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource<'a> {
    /// Peers show no certificate.
    NotVerified,
    /// Secret `<name>-cacert`, or Secret `<name>` where there is none of that name.
    Secret {
        /// Where both are looked up.
        place: Place<'a>,
        /// The name without the suffix.
        name: &'a str,
    },
    /// A ConfigMap.
    ConfigMap {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A Secret that istiod serves as a certificate: the proxy gets no CA at all, and in mode `MUTUAL` lets everybody in
    /// (measured with Istio 1.29 and Envoy 1.40).
    Nothing(&'a str),
    /// A file in the proxy's pod, an SDS server, the mesh's own CA: nothing in the cluster says what it holds.
    Unknowable(&'a str),
}

impl TlsSettings<'_> {
    /// The deciding field, as users write it.
    pub fn field(&self) -> String {
        field(&self.pointer)
    }
}
