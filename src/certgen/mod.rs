//! Control-plane Secrets without cert-manager: one CA, leaves signed by it, and HMAC keys. Pure: a profile, the objects
//! and `now` in, the next step out. The caller generates keys and random bytes.
//!
//! A rotation has these stages. Each write of a stage is computed from the objects, so a rotation continues where it
//! was interrupted:
//!
//! 1. The pending Secret is created. It holds the new leaves and the new bundle; the key of the new CA is not stored
//!    anywhere.
//! 2. The new bundle (new CA, then the old one) is written everywhere, with the old leaves.
//! 3. After the propagation delay, workloads that load the bundle once are restarted.
//! 4. The new leaves are written, and workloads that load them once are restarted.
//! 5. After the propagation delay no old leaf is in use: the next rotation may drop the old CA. The pending Secret is
//!    deleted.

mod object;
mod pending;
mod plan;
mod profile;
mod upkeep;

pub use object::{Action, Change, ObjectKind, ObjectRef, Objects};
pub use pending::{GeneratedCertificates, KeyPairPem, PendingKind, pending_secret};
pub use plan::{Begin, Blocked, Intent, Next, Options, hmac_secret, next};
pub use profile::{
    BUILT_IN, CertificateProfile, HmacProfile, Profile, RestartProfile, TRUSTSPAN_WEBHOOK, Usage, built_in,
};
pub use upkeep::upkeep;

#[cfg(test)]
mod tests;
