//! `trustspan rbac`.

use std::io::{self, Write};
use std::process::ExitCode;

use jiff::Timestamp;

use super::inputs::unless_closed;
use super::service_account::ServiceAccountArgs;
use super::{Failure, Inputs};
use crate::agent;
use crate::registry::Entry;
use crate::rotation::Outlook;
use crate::store::directory;
use crate::trust::Severities;

/// Print the Roles and RoleBindings that the agent needs for GatewaySecrets and TrustConsumers.
///
/// They grant access to the objects of the GatewaySecrets in the manifests. Include cert-manager objects for GatewaySecrets with spec.certificateRef whose status.resolved is not set yet:
///
/// kubectl get trustspan,certificates,issuers,clusterissuers -A -o yaml | trustspan rbac -f - | kubectl apply -f -
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    #[command(flatten)]
    account: ServiceAccountArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When an input cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = Timestamp::now();
    let sources = args.inputs.open()?;
    let collected = directory::collect(&sources, &args.inputs.namespace, &Severities::default(), now);
    if let Some(error) = collected.errors.into_iter().next() {
        return Err(error.into());
    }
    let registry = collected.inventory.into_registry(Outlook::Part, now);
    let entries = registry.entries();
    for entry in entries.iter().filter(|entry| entry.source_name().is_empty()) {
        let Entry { namespace, name, .. } = entry.as_ref();
        anstream::eprintln!(
            "warning: the Certificate of GatewaySecret {namespace}/{name} is not in the manifests, so no Role for its Secret is printed. \
             Include certificates, issuers and clusterissuers"
        );
    }
    let consumers = directory::trust_consumers(&sources, &args.inputs.namespace)?;
    let account = &args.account.service_account;
    let of_consumers =
        consumers.iter().flat_map(|(namespace, name, spec)| agent::consumer_role(namespace, name, spec, account));
    let print = || -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        for object in entries.iter().flat_map(|entry| agent::role(entry, account)).chain(of_consumers) {
            write!(out, "---\n{}", serde_saphyr::to_string(&object)?)?;
        }
        Ok(out.flush()?)
    };
    unless_closed(print().map(|()| ExitCode::SUCCESS))
}
