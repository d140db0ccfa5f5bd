//! `trustspan observe`.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::inputs::unless_closed;
use super::severity::SeverityArgs;
use super::{Failure, Inputs};
use crate::api::GatewaySecret;
use crate::registry::Entry;
use crate::rotation::Outlook;
use crate::store::directory;

/// Compute the status of GatewaySecrets from manifests.
///
/// The command prints the GatewaySecrets with that status:
///
/// kubectl get gatewaysecrets,secrets,gateways -A -o yaml | trustspan observe -f - | kubectl apply --server-side --subresource=status -f -
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Time to evaluate validity at (RFC 3339). Default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
}

/// Runs the subcommand.
///
/// # Errors
/// When an input cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = args.now.unwrap_or_else(Timestamp::now);
    let severities = args.severity.severities();
    let collected = directory::collect(&args.inputs.open()?, &args.inputs.namespace, &severities, now);
    if let Some(error) = collected.errors.into_iter().next() {
        return Err(error.into());
    }
    let registry = collected.inventory.into_registry(Outlook::Part, now);
    unless_closed(print(registry.entries()).map(|()| ExitCode::SUCCESS))
}

fn print(entries: &[Arc<Entry>]) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    for entry in entries {
        let mut object = GatewaySecret::new(&entry.name, entry.spec.clone());
        object.metadata.namespace = Some(entry.namespace.clone());
        object.status = Some(entry.status.clone());
        write!(out, "---\n{}", serde_saphyr::to_string(&json!(object))?)?;
    }
    Ok(out.flush()?)
}
