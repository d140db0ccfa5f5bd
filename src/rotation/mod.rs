//! From what is seen to GatewaySecret status. Pure: objects, the former status and `now` in, the new status out.

mod inventory;
pub mod journal;
pub mod next;
mod observe;
mod report;

pub use inventory::{Inventory, Outlook, Uses};
pub use observe::{Facts, Observation, observe};
pub use report::{SOURCES, SYNCED, report, set};

#[cfg(test)]
mod tests;
