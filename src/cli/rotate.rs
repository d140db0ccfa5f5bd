//! `trustspan rotate`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::ListParams;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::controller_args::duration;
use super::wait;
use crate::agent;
use crate::api::Phase;
use crate::rotation::{StatusSummary, counted};
use crate::store::cluster;
use crate::text::printable;
use crate::trust::Certificate;

/// Start a rotation.
///
/// The command requests a new CA from cert-manager. The rotation controller completes the rotation.
///
/// Exit code with --wait: 0 when the rotation to that CA is complete, 1 on timeout, 2 on an error.
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

    /// Wait until the rotation to the new CA is complete.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,

    /// With --wait: the longest time to wait.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration, requires = "wait")]
    timeout: Duration,
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
        let found = listed.items.into_iter().find(writes);
        Ok(found.and_then(|object| Some((object.metadata.name?, object.data["status"]["revision"].as_i64()))))
    })?;
    let Some((certificate, revision)) = certificate else {
        let reason = format!("no cert-manager Certificate writes Secret {ca}: have its issuer write a new CA there");
        return Err(Failure::Impossible(reason));
    };
    let clients = StatusSummary::of(entry, Timestamp::now()).clients.declared;
    anstream::println!(
        "Certificate {} is reissued, then {}, then the serving certificate",
        printable(&certificate),
        counted(clients, "declared client")
    );
    if entry.status.phase != Some(Phase::Steady) {
        anstream::println!("another rotation is in progress: its CAs stay trusted while they are needed");
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    args.source.on_cluster(async |client| agent::reissue(&client, namespace, &certificate, Timestamp::now()).await)?;
    if !args.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let is_over = || started.elapsed() >= args.timeout;
    let Some(issued) = issued(&args.source, namespace, &certificate, revision, is_over)? else {
        anstream::eprintln!("Certificate {} has not been issued: see its conditions", printable(&certificate));
        return Ok(ExitCode::FAILURE);
    };
    let mut is_seen = false;
    let read = || {
        let mut found = args.source.read(std::slice::from_ref(&args.name))?;
        found.retain(|one| one.namespace == entry.namespace);
        Ok(found)
    };
    // While the agent has not seen the new CA, the phase is still that of the last rotation.
    wait::until(started, args.timeout, read, |entry| {
        let bundle = &entry.status.client_bundle;
        is_seen |= issued.iter().all(|ca| bundle.iter().any(|anchor| anchor.fingerprint == ca.fingerprint));
        is_seen && entry.status.phase == Some(Phase::Steady)
    })
}

/// The CAs of the first issuance of a Certificate after this revision; `None` on timeout.
fn issued(
    source: &ClusterArgs,
    namespace: &str,
    certificate: &str,
    revision: Option<i64>,
    is_over: impl Fn() -> bool,
) -> Result<Option<Vec<Certificate>>, Failure> {
    loop {
        let (last, issued) =
            source.on_cluster(async |client| agent::issued_ca(&client, namespace, certificate).await)?;
        if last > revision.unwrap_or_default() && !issued.is_empty() {
            return Ok(Some(issued));
        }
        if is_over() {
            return Ok(None);
        }
        std::thread::sleep(wait::EVERY);
    }
}
