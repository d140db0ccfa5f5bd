//! From what is seen to GatewaySecret status. Pure: objects, the former status and `now` in, the new status out.

mod config_maps;
mod in_use;
mod inventory;
pub mod journal;
pub mod next;
mod observe;
mod report;
mod story;

pub use inventory::{Inventory, Outlook, Uses};
pub use observe::{Facts, Observation, observe};
pub use report::{SOURCES, SYNCED, report, set};
pub use story::{Held, Story, Validity};

#[cfg(test)]
mod tests;
