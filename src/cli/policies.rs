//! `trustspan policies`.

use std::io::{self, Write};
use std::process::ExitCode;

use super::Failure;
use super::inputs::unless_closed;
use super::service_account::ServiceAccountArgs;
use super::severity::SeverityArgs;
use crate::admission;
use crate::agent::ServiceAccount;
use crate::trust::Severities;

/// Print ValidatingAdmissionPolicies, which enforce rules while no replica of the webhook runs.
///
/// They reject other users' writes of objects that the agent owns (kept-by-agent), and another name for a managed Secret (managed-renamed). A third one (client-bundle) judges renewals of declared clients, for webhooks that then need not answer. Pass the flags of trustspan serve that change kept-by-agent.
///
/// trustspan policies | kubectl apply -f -
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    severity: SeverityArgs,

    #[command(flatten)]
    account: ServiceAccountArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    unless_closed(yaml(&args.account.service_account, &args.severity.severities()).and_then(|yaml| {
        io::stdout().lock().write_all(yaml.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }))
}

/// The policies and their bindings. Like the webhooks, they do not judge the agent's namespace.
///
/// # Errors
/// When they cannot be written as YAML.
pub fn yaml(account: &ServiceAccount, severities: &Severities) -> Result<String, Failure> {
    let excluded = ["kube-system", "kube-node-lease", account.namespace()];
    let objects = admission::policies(&account.username(), &excluded, severities);
    let documents = objects.iter().map(serde_saphyr::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_policies_are_current() {
        let committed = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/policies/policies.yaml"));
        assert_eq!(
            committed,
            yaml(&ServiceAccount::default(), &Severities::default()).expect("policies"),
            "manifests/policies/policies.yaml is stale: cargo run -- policies > manifests/policies/policies.yaml"
        );
    }
}
