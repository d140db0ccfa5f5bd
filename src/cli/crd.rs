//! `trustspan crd`.

use std::io::{self, Write};
use std::process::ExitCode;

use kube::CustomResourceExt;

use super::Failure;
use super::inputs::unless_closed;
use crate::api::{ClientIdentity, ClusterRotationPolicy, GatewaySecret, MirroredFile, RotationPolicy, TrustConsumer};

/// Print the CustomResourceDefinitions.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    unless_closed(yaml().and_then(|yaml| {
        io::stdout().lock().write_all(yaml.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }))
}

/// The CustomResourceDefinitions. Maps are sorted, so equal types give equal text.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn yaml() -> Result<String, Failure> {
    let definitions = [
        GatewaySecret::crd(),
        RotationPolicy::crd(),
        ClusterRotationPolicy::crd(),
        TrustConsumer::crd(),
        MirroredFile::crd(),
        ClientIdentity::crd(),
    ];
    let documents = definitions.iter().map(serde_saphyr::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.join("---\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn committed_definitions_are_current() {
        let committed = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/base/crd.yaml"));
        assert_eq!(
            committed,
            super::yaml().expect("a definition"),
            "manifests/base/crd.yaml is stale: cargo run -- crd > manifests/base/crd.yaml"
        );
    }
}
