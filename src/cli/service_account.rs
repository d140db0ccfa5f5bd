//! The flag of the agent's ServiceAccount, for commands that print or apply its RBAC objects.

use crate::agent::ServiceAccount;

/// To whom Roles are bound.
#[derive(Debug, clap::Args)]
pub(super) struct ServiceAccountArgs {
    /// ServiceAccount of the rotation controller, to which the Roles are bound.
    #[arg(long, value_name = "NAMESPACE:NAME", default_value_t)]
    pub(super) service_account: ServiceAccount,
}
