//! Computes the next steps of a rotation. Pure: a snapshot of the cluster, the journal and `now` in; a [`Plan`] out.
//!
//! A connection has two sides. A content that was written for one side counts as in use until its successor has had time to reach all
//! readers. Nothing is written for one side that cannot connect with some content in use on the other. So no order of events fails a
//! handshake, whenever the process is killed and however often a step is repeated.
//!
//! The files in the order in which a snapshot passes through them: `snapshot` (what was read), `history` (what the journal records of it, and the
//! view of both that all steps take), `deleted` (clients and namespaces that were deleted), `probe` (what gateways showed over TLS), `consumers` (what
//! TrustConsumers have loaded), `deadlines` (when a step is taken regardless), `bundles` (which CAs are in which bundle), `revocation` (which of them
//! have a list), `clients` and `shared_clients` (which clients a step waits for), `keystores` (which of them would not find a CA), `blockers` (what a
//! step waits for), `pace` (when a certificate is requested again) and `plan` (the steps).

mod blockers;
mod bundles;
mod clients;
mod consumers;
mod deadlines;
mod deleted;
mod history;
mod keystores;
mod pace;
mod pause;
mod plan;
mod probe;
mod revocation;
pub(super) mod rules;
mod shared_clients;
mod snapshot;
mod truststores;

#[cfg(test)]
mod tests;

pub use blockers::{SwitchBlocker, TrustSourceBlocker};
pub(super) use keystores::successor_wait;
pub(super) use pause::Pause;
pub use plan::{PairOf, Plan, Step, plan};
pub(super) use revocation::list_source;
#[cfg(feature = "edge")]
pub(crate) use shared_clients::{share_a_ca, shared_clients};
pub use snapshot::{
    AdditionalSource, Answer, CaConfigMap, Canary, ClientState, Endpoint, FurtherCertificate, Issuance, LoadedTrust,
    NamespaceState, Pending, ProbeResult, REPORT_TIMEOUT, Shown, Snapshot, SourceState, Trust, TrustCopy, TrustLoader,
};
