//! From what is seen to GatewaySecret status. Pure: objects, the former status and `now` in, the new status out.

mod active_certificates;
mod change_windows;
mod client_conditions;
mod conditions;
mod cron;
mod events;
mod forecast;
pub mod generate;
mod inventory;
pub mod journal;
mod name_list;
mod observe;
pub mod planner;
pub mod probe_target;
pub mod readers;
mod renewal;
pub mod rollouts;
mod status_limits;
mod status_summary;

pub use change_windows::WINDOWS;
pub use client_conditions::{CLIENTS, CONNECT, GATEWAYS, LEAF, TRUST};
pub use conditions::{DISTRUST, JOURNAL, PREVIOUS_CAS, SOURCES, SYNCED, report, set, synced};
pub use events::{StatusEvent, notices, status_not_written};
pub use forecast::{Forecast, READINESS, TrialCa, forecast, report_readiness};
pub use inventory::{Inventory, Outlook};
pub(crate) use name_list::counted;
pub use observe::{ObservedState, SecretSummary, observe};
pub use renewal::{RenewalPolicy, RenewalWindow};
pub use rollouts::WORKLOADS;
pub use status_limits::{COMPLETE, fit, reduced};
pub use status_summary::{Held, StatusSummary, Validity};

#[cfg(test)]
mod tests;
