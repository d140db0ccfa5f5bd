//! The certificate that a gateway presents, and the source of the CAs with which it verifies peers, for each server,
//! listener and upstream, as
//! istiod resolves them.
//!
//! Source: istiod's `pilot/pkg/security/model/authentication.go`, `pilot/pkg/credentials/kube/secrets.go` and
//! `pilot/pkg/config/kube/gateway/conversion.go`.

use super::Named;
use super::json_path::{JsonPath, field};
use crate::registry::Place;

/// The TLS settings of one server, listener or upstream.
#[derive(Clone, Debug)]
pub struct TlsSettings<'a> {
    /// The field that determines the CAs.
    pub(super) deciding_field: JsonPath<'a>,
    /// The Secrets whose certificates are presented, in order.
    pub presents: Vec<Named<'a>>,
    /// The source of the peers' CAs.
    pub trust: TrustSource<'a>,
    /// The gateway is the client, and presents a client certificate.
    pub is_upstream: bool,
    /// The hosts of the server or listener, as its object names them.
    pub hosts: Vec<&'a str>,
    /// SHA-256 hashes of the certificates, or of their public keys, to which peers are limited
    /// (`verifyCertificateHash`, `verifyCertificateSpki`).
    pub pins: Vec<&'a str>,
    /// The annotation by which cert-manager makes a Certificate for each Secret that is presented.
    pub issuer_annotation: Option<&'static str>,
}

/// The source of the CAs with which a gateway verifies peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource<'a> {
    /// Peers present no certificate.
    NotVerified,
    /// Secret `<name>-cacert`, or Secret `<name>` if that does not exist.
    Secret {
        /// The namespaces in which both are looked up.
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
    /// A Secret that istiod serves as a certificate: the proxy gets no CA, and in mode `MUTUAL` accepts every client (measured with Istio
    /// 1.29 and Envoy 1.40).
    Nothing(&'a str),
    /// A file in the proxy's pod, an SDS server, the mesh's own CA: its content is not in the cluster.
    Unknowable(&'a str),
}

impl TlsSettings<'_> {
    /// JSON Pointer of the field that determines the CAs.
    pub fn pointer(&self) -> String {
        self.deciding_field.pointer()
    }

    /// The field that determines the CAs, as users write it.
    pub fn field(&self) -> String {
        field(&self.pointer())
    }
}
