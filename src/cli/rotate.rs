//! `trustspan rotate`.

use std::process::ExitCode;

use jiff::Timestamp;
use kube::api::ListParams;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::sanitize::printable;
use crate::agent;
use crate::api::Phase;
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
/// When there is no such GatewaySecret, or no Certificate of cert-manager stands for its CA.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.source.is_directory() {
        let reason = "manifests have no issuer: write the new CA into the root Secret's manifest";
        return Err(Failure::Impossible(reason.to_owned()));
    }
    let found = args.source.read(std::slice::from_ref(&args.name))?;
    let [entry] = found.as_slice() else {
        return Err(Failure::Impossible(format!("several GatewaySecrets are called {}: say --namespace", args.name)));
    };
    let ca = entry.server_ca_name();
    let (namespace, secret) = entry.place_of(&ca);
    let certificate = args.source.on_cluster(async |client| -> kube::Result<_> {
        let listed = cluster::certificates(client, namespace).list(&ListParams::default()).await?;
        let writes = |object: &kube::api::DynamicObject| object.data["spec"]["secretName"] == secret;
        Ok(listed.items.into_iter().find(writes).and_then(|object| object.metadata.name))
    })?;
    let Some(certificate) = certificate else {
        let reason = format!("no Certificate of cert-manager writes Secret {ca}: have its issuer write a new CA there");
        return Err(Failure::Impossible(reason));
    };
    let clients = entry.status.leaves.iter().flatten().filter(|leaf| leaf.kind == crate::api::LeafKind::Client);
    let clients: usize = clients.map(crate::api::Leaf::count).sum();
    anstream::println!(
        "Certificate {} is issued anew; {clients} client certificate(s) follow, then the gateways' leaf",
        printable(&certificate)
    );
    if entry.status.phase != Some(Phase::Steady) {
        anstream::println!("a rotation is under way: its CAs stay trusted while they are needed");
    }
    if !args.dry_run {
        args.source
            .on_cluster(async |client| agent::reissue(&client, namespace, &certificate, Timestamp::now()).await)?;
        anstream::println!("trustspan wait {} -n {} tells when it is over", args.name, entry.namespace);
    }
    Ok(ExitCode::SUCCESS)
}
