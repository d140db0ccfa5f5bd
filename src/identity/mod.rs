//! Clients with kubeconfigs: which certificate signing requests are approved, when a client needs a bootstrap kubeconfig, and what the client does next.
//!
//! ```text
//!  ClientIdentity ─► plan ─► token, bootstrap kubeconfig ──► client ─► key, CertificateSigningRequest
//!                     ▲                                                        │
//!                     └── certificate ◄── kube-controller-manager ◄── approval ◄┘
//! ```

pub mod approval;
pub mod client;
pub mod kubeconfig;
mod names;
pub mod plan;

pub use names::IdentityName;

/// Group of all clients of ClientIdentities: the organization of their certificates.
pub const GROUP: &str = "trustspan.dev:client-identities";

/// The signer of the certificates (kube-controller-manager).
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Subresource of certificatesigningrequests whose `create`, with the name of an identity, allows requests for that identity.
pub const SUBRESOURCE: &str = "clientidentity";

/// Life of a bootstrap token, in seconds.
pub const TOKEN_SECONDS: i64 = 3600;
