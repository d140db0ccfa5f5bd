//! `trustspan rbac`.

use std::io::{self, Write};
use std::process::ExitCode;

use jiff::Timestamp;

use super::inputs::unless_closed;
use super::{Failure, Inputs};
use crate::agent;
use crate::rotation::Outlook;
use crate::store::directory;
use crate::trust::Severities;

/// Prints a Role and a RoleBinding for each GatewaySecret of the manifests: what the agent may do, by name.
///
/// kubectl get gatewaysecrets -A -o yaml | trustspan rbac - | kubectl apply -f -
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,
}

/// Runs it.
///
/// # Errors
/// When an input cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let collected = directory::collect(
        &args.inputs.open()?,
        &args.inputs.namespace,
        Outlook::Part,
        &Severities::default(),
        Timestamp::now(),
    );
    if let Some(error) = collected.errors.into_iter().next() {
        return Err(error.into());
    }
    let print = || -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        for object in collected.context.registry.entries().iter().flat_map(agent::role) {
            write!(out, "---\n{}", serde_saphyr::to_string(&object)?)?;
        }
        Ok(out.flush()?)
    };
    unless_closed(print().map(|()| ExitCode::SUCCESS))
}
