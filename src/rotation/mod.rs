//! From what is seen to GatewaySecret status. Pure: objects, the former status and `now` in, the new status out.

mod cron;
mod followers;
mod forecast;
mod in_use;
mod inventory;
pub mod journal;
mod name_list;
pub mod next;
mod notices;
mod observe;
pub mod propose;
pub mod reach;
pub mod readers;
mod renewal;
mod report;
pub mod rollouts;
mod status_limits;
mod story;
mod windows;

pub use followers::{CLIENTS, CONNECT, GATEWAYS, LEAF, TRUST};
pub use forecast::{Forecast, READINESS, TrialCa, forecast, report_readiness};
pub use inventory::{Inventory, Outlook};
pub use notices::{Notice, notices, status_not_written};
pub use observe::{Facts, Observation, observe};
pub use renewal::{RenewalPolicy, RenewalWindow};
pub use report::{CAP, DISTRUST, JOURNAL, SOURCES, SYNCED, report, set, synced};
pub use rollouts::WORKLOADS;
pub use status_limits::{COMPLETE, fit, reduced};
pub use story::{Held, Story, Validity};
pub use windows::WINDOWS;

#[cfg(test)]
mod tests;
