//! Computes the status and the next steps of a GatewaySecret. Pure: objects, the previous status and `now` in; status, plan, Events out.

mod active_certificates;
mod change_windows;
mod client_conditions;
mod condition_types;
mod conditions;
mod events;
mod forecast;
mod gateway_service;
pub mod generate;
mod grants;
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

pub use condition_types::{
    CLIENTS, COMPLETE, CONDITION_TYPES, CONNECT, ConditionType, DISTRUST, GATEWAYS, JOURNAL, LEAF, READINESS, SOURCES,
    SYNCED, TRUST, WINDOWS, WORKLOADS, set,
};
pub(crate) use condition_types::{PERMANENT, set_condition};
pub use conditions::{report, synced};
pub use events::{StatusEvent, notices, status_not_written};
pub(crate) use events::{normal, transition};
pub use forecast::{Forecast, TrialCa, forecast, report_readiness};
#[cfg(feature = "edge")]
pub(crate) use grants::{Grants, Referrer};
pub use inventory::{Inventory, Outlook};
#[cfg(feature = "edge")]
pub(crate) use name_list::sentence;
pub(crate) use name_list::{counted, few};
pub use observe::{ObservedState, SecretSummary, observe};
pub use renewal::RenewalPolicy;
pub use status_limits::{fit, reduced};
pub use status_summary::{CaRole, CaSummary, ClientSummary, Expiry, StatusSummary, Validity};
pub(crate) use status_summary::{NO_AGENT, problem};

#[cfg(test)]
mod tests;
