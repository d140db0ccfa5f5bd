//! From what is seen to GatewaySecret status. Pure: objects, the former status and `now` in, the new status out.

mod inventory;
mod observe;

pub use inventory::{Inventory, Outlook, Uses};
#[cfg(test)]
pub(crate) use observe::anchor;
pub use observe::{Facts, Observation, observe};

#[cfg(test)]
mod tests;
