//! What to do next. Pure: what is seen, what is remembered and `now` in; writes to make, and what holds others back, out.
//!
//! Connections have two sides. What a side was given counts as in use until its successor has had time to settle; nothing is
//! given to one side that some content in use on the other would not get on with. So each order of events that this allows
//! is one without a failed handshake, whenever the process is killed, and however often the same step is decided anew.

mod blockers;
mod bundles;
mod history;
mod plan;
mod probe;
mod snapshot;

#[cfg(test)]
mod tests;

pub(super) use blockers::Pause;
pub use blockers::{LeafHold, ReaderHold};
pub use plan::{PairOf, Plan, Step, plan};
pub use snapshot::{
    Answer, CaConfigMap, Canary, ClientState, Endpoint, FurtherCertificate, Issuance, Pending, ProbeResult, Shown,
    Snapshot, SourceState, Trust, TrustCopy,
};
