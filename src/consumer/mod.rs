//! Workloads that load CAs once, when they start (TrustConsumers). Pure: stored objects, the previous status and `now` in; what each workload
//! has loaded, which one is restarted next, status and Events out.
//!
//! What a workload has loaded is an annotation in its pod template, so a restart is one write, and a second one with the same content changes
//! nothing.

mod availability;
mod condition_types;
mod content;
mod report;
mod restarts;
mod state;
mod status_summary;
mod trust_loaders;

pub(crate) use availability::gap;
pub use condition_types::{AVAILABLE, CONDITION_TYPES, LOADED, RESTARTABLE, VALID};
pub use content::{Content, ContentFault, ReadFailure, value};
pub use report::{blocked, events, report, restarted};
pub use restarts::{Consumers, RestartBlocker, blocker, next, wake};
pub use state::{Absence, ConsumerState, Reader, WorkloadState, owners};
pub use status_summary::ConsumerSummary;
pub use trust_loaders::trust_loaders;

#[cfg(test)]
mod tests;
