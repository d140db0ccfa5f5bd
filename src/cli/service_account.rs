//! The flag of the agent's ServiceAccount, for commands that print or apply its RBAC objects, or print policies that let its writes pass.

use crate::agent::ServiceAccount;

/// Whose requests are the agent's.
#[derive(Debug, clap::Args)]
pub(super) struct ServiceAccountArgs {
    /// ServiceAccount of the rotation controller.
    #[arg(long, value_name = "NAMESPACE:NAME", default_value_t)]
    pub(super) service_account: ServiceAccount,
}
