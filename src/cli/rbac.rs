//! `trustspan rbac`.

use std::io::{self, Write};
use std::process::ExitCode;

use jiff::Timestamp;

use super::consent::ConsentArgs;
use super::inputs::unless_closed;
use super::service_account::ServiceAccountArgs;
use super::{Failure, Inputs};
use crate::agent;
use crate::registry::Entry;
use crate::rotation::Outlook;
use crate::store::directory;
use crate::text::printable;
use crate::trust::Severities;

/// Print the Roles and RoleBindings that the agent needs for GatewaySecrets and TrustConsumers.
///
/// They grant access to the objects of the GatewaySecrets in the manifests. Who may write a GatewaySecret chooses names in other namespaces, so rights there need consent: each that is left out is
/// reported on stderr, with the reason. Include cert-manager objects for GatewaySecrets with spec.certificateRef whose status.resolved is not set yet:
///
/// kubectl get trustspan,certificates,issuers,clusterissuers -A -o yaml | trustspan rbac -f - | kubectl apply -f -
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    #[command(flatten)]
    account: ServiceAccountArgs,

    #[command(flatten)]
    consent: ConsentArgs,
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
    let consent = args.consent.consent(collected.inventory.grants().clone());
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
    let mut objects = Vec::new();
    for entry in entries {
        let rights = agent::role(entry, account, &consent);
        objects.extend(rights.objects);
        for left_out in rights.left_out {
            anstream::eprintln!("warning: {}", printable(&left_out));
        }
    }
    objects.extend(
        consumers.iter().flat_map(|(namespace, name, spec)| agent::consumer_role(namespace, name, spec, account)),
    );
    let print = || -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        for object in &objects {
            write!(out, "---\n{}", serde_saphyr::to_string(object)?)?;
        }
        Ok(out.flush()?)
    };
    unless_closed(print().map(|()| ExitCode::SUCCESS))
}
