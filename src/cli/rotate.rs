//! `trustspan rotate`.

use std::process::ExitCode;

use jiff::Timestamp;
use kube::api::ListParams;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::sanitize::printable;
use crate::agent;
use crate::api::Phase;
use crate::rotation::counted;
use crate::store::cluster;

/// Start a rotation.
///
/// The command requests a new CA from cert-manager. The rotation controller completes the rotation.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the GatewaySecret.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    source: ClusterArgs,

    /// Print the planned changes and affected clients without applying them.
    #[arg(long)]
    dry_run: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// When the GatewaySecret does not exist, or no cert-manager Certificate writes its CA.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.source.is_directory() {
        let reason = "manifests have no issuer: write the new CA into the manifest of the source Secret";
        return Err(Failure::Impossible(reason.to_owned()));
    }
    let found = args.source.read(std::slice::from_ref(&args.name))?;
    let [entry] = found.as_slice() else {
        return Err(Failure::Impossible(format!("several GatewaySecrets are called {}: set --namespace", args.name)));
    };
    let ca = entry.server_ca_name();
    let (namespace, secret) = entry.place_of(&ca);
    let certificate = args.source.on_cluster(async |client| -> kube::Result<_> {
        let listed = cluster::certificates(client, namespace).list(&ListParams::default()).await?;
        let writes = |object: &kube::api::DynamicObject| object.data["spec"]["secretName"] == secret;
        Ok(listed.items.into_iter().find(writes).and_then(|object| object.metadata.name))
    })?;
    let Some(certificate) = certificate else {
        let reason = format!("no cert-manager Certificate writes Secret {ca}: have its issuer write a new CA there");
        return Err(Failure::Impossible(reason));
    };
    let clients = entry.status.leaves.iter().flatten().filter(|leaf| leaf.kind == crate::api::LeafKind::Client);
    let clients: usize = clients.map(crate::api::Leaf::count).sum();
    anstream::println!(
        "Certificate {} is reissued, then {}, then the serving certificate",
        printable(&certificate),
        counted(clients, "client certificate")
    );
    if entry.status.phase != Some(Phase::Steady) {
        anstream::println!("another rotation is in progress: its CAs stay trusted while they are needed");
    }
    if !args.dry_run {
        args.source
            .on_cluster(async |client| agent::reissue(&client, namespace, &certificate, Timestamp::now()).await)?;
        anstream::println!("to wait until it is complete: trustspan wait {} -n {}", args.name, entry.namespace);
    }
    Ok(ExitCode::SUCCESS)
}
