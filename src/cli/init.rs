//! `trustspan init`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::consent::ConsentArgs;
use super::inputs::unless_closed;
use super::service_account::ServiceAccountArgs;
use crate::agent::{self, Rights};
use crate::api::GatewaySecret;
use crate::api::names::{GUARD, GUARD_ENABLED};
use crate::rotation::generate::{GenerateInput, Proposal, Proposals, SecretLookup, propose};
use crate::rotation::{Grants, SecretSummary};
use crate::store::{cluster, directory, objects};
use crate::text::printable;
use crate::trust::{Secret, SecretUsage, Severities};

/// Generate GatewaySecrets from existing Gateways.
///
/// There is one for each Secret that Gateways serve, with its RBAC objects. The command only prints manifests: review, edit and apply them. It lists Gateways, the pods that they select, Services,
/// Namespaces, Certificates and Issuers. It reads Secrets by name only.
///
/// If a Certificate writes the Secret, the managed Secret takes over its name, and the Certificate has to write another Secret.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: ClusterArgs,

    /// Generate new names for the managed Secrets, for Certificates that cannot be changed. The webhook rewrites Gateways to them.
    #[arg(long)]
    rewrite: bool,

    #[command(flatten)]
    account: ServiceAccountArgs,

    #[command(flatten)]
    consent: ConsentArgs,
}

/// Group, version and kind of the objects to list, and whether `init` continues without them.
const KINDS: [(&str, &str, &str, bool); 7] = [
    ("networking.istio.io", "v1", "Gateway", false),
    ("gateway.networking.k8s.io", "v1", "Gateway", false),
    ("cert-manager.io", "v1", "Certificate", true),
    ("cert-manager.io", "v1", "Issuer", true),
    ("cert-manager.io", "v1", "ClusterIssuer", true),
    ("", "v1", "Service", true),
    ("", "v1", "Namespace", true),
];

/// Runs the subcommand.
///
/// # Errors
/// When an input cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = Timestamp::now();
    let empty =
        GenerateInput { only: args.source.namespace.clone(), rewrite: args.rewrite, ..GenerateInput::default() };
    let (input, unread) = match &args.source.directory {
        Some(dir) => (in_directory(empty, dir, now)?, Vec::new()),
        None => args.source.on_cluster(async |client| in_cluster(empty, &client, now).await)?,
    };
    let consent = args.consent.consent(Grants::of(&input.objects));
    let proposals = propose(&input);
    let rights = |proposal: &Proposal| agent::role(&proposal.entry, &args.account.service_account, &consent);
    let rights: Vec<_> = proposals.gateway_secrets.iter().map(rights).collect();
    unless_closed(print(&proposals, &input.objects, &unread, &rights).map(|()| ExitCode::SUCCESS))
}

fn in_directory(mut input: GenerateInput, dir: &Path, now: Timestamp) -> Result<GenerateInput, Failure> {
    input.objects = directory::objects(&[dir.to_owned()])?;
    for object in &input.objects {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or("default");
        if directory::is_gateway_secret(object) {
            let entry = directory::entry(object, namespace);
            input.known.push(entry.map_err(|error| Failure::Unreadable(error.to_string()))?);
        }
        if object["kind"] == "Secret" && object["apiVersion"] == "v1" {
            let name = metadata["name"].as_str().unwrap_or_default();
            input.secrets.insert((namespace.to_owned(), name.to_owned()), read(object, now)?);
        }
    }
    Ok(input)
}

/// The objects of a cluster, and the reasons why others could not be read.
async fn in_cluster(
    mut input: GenerateInput,
    client: &Client,
    now: Timestamp,
) -> Result<(GenerateInput, Vec<String>), Failure> {
    let mut unread = Vec::new();
    for (group, version, kind, is_optional) in KINDS {
        match objects::list(client, group, version, kind).await {
            Ok(listed) => input.objects.extend(listed),
            // Not installed.
            Err(error) if cluster::has_code(&error, 404) => {}
            Err(error) if is_optional => {
                unread.push(format!("{}: {}", plural_of(kind, group), cluster::error_message(&error)))
            }
            Err(error) => return Err(error.into()),
        }
    }
    input.known = match cluster::list(client.clone()).await {
        Err(error) if cluster::has_code(&error, 404) => Vec::new(),
        listed => {
            let (known, unreadable) = listed?;
            unread.extend(
                unreadable.iter().map(|((namespace, name), why)| format!("GatewaySecret {namespace}/{name}: {why}")),
            );
            known
        }
    };
    let mut pods = Vec::new();
    for selector in input.selectors() {
        match objects::pods(client, selector.iter().map(|(key, value)| (key.as_str(), value.as_str()))).await {
            Ok(selected) => pods.extend(selected),
            Err(error) => unread.push(format!("pods with {selector:?}: {}", cluster::error_message(&error))),
        }
    }
    input.objects.extend(pods);
    for (namespace, name) in input.secrets_to_read() {
        let lookup = match objects::secret(client, &namespace, &name).await {
            Ok(None) => SecretLookup::Missing,
            Ok(Some(object)) => read(&object, now)?,
            Err(error) if cluster::has_code(&error, 403) => SecretLookup::Refused,
            Err(error) => return Err(error.into()),
        };
        input.secrets.insert((namespace, name), lookup);
    }
    Ok((input, unread))
}

fn read(secret: &Value, now: Timestamp) -> Result<SecretLookup, Failure> {
    let name = &secret["metadata"]["name"];
    let secret = Secret::from_value(secret).map_err(|error| Failure::Unreadable(format!("Secret {name}: {error}")))?;
    Ok(SecretLookup::Read(SecretSummary::of(&secret, SecretUsage::default(), &Severities::default(), now)))
}

fn plural_of(kind: &str, group: &str) -> String {
    if group.is_empty() { format!("{kind}s") } else { format!("{kind}s of {group}") }
}

fn print(proposals: &Proposals, objects: &[Value], unread: &[String], rights: &[Rights]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let comment = |out: &mut io::StdoutLock<'_>, title: &str, sentences: &[String]| -> io::Result<()> {
        if !sentences.is_empty() {
            writeln!(out, "# {title}:")?;
        }
        // A line break in a name must not end the comment.
        sentences.iter().try_for_each(|sentence| writeln!(out, "# - {}", printable(sentence)))
    };
    writeln!(out, "# Generated by trustspan init: review, edit and apply it. Nothing was written to the cluster.")?;
    comment(&mut out, "Not readable, so it may be missing below", unread)?;
    comment(&mut out, "Left out", &proposals.left_out)?;
    let without_consent: Vec<_> = rights.iter().flat_map(|rights| rights.left_out.clone()).collect();
    comment(&mut out, "Rights without consent", &without_consent)?;
    if proposals.gateway_secrets.is_empty() {
        writeln!(out, "# Nothing to generate.")?;
    }
    let guarded =
        |object: &&Value| object["kind"] == "Namespace" && object["metadata"]["labels"][GUARD] == GUARD_ENABLED;
    let guarded: BTreeSet<_> =
        objects.iter().filter(guarded).filter_map(|object| object["metadata"]["name"].as_str()).collect();
    let namespaces = proposals.gateway_secrets.iter().map(|proposal| &proposal.entry.namespace);
    let namespaces: BTreeSet<_> = namespaces.filter(|namespace| !guarded.contains(namespace.as_str())).collect();
    let label = |namespace: &&String| format!("kubectl label namespace {namespace} {GUARD}={GUARD_ENABLED}");
    let labels: Vec<_> = namespaces.iter().map(label).collect();
    comment(&mut out, "Run first, so that no invalid Secret is stored there", &labels)?;
    // The agent notices a right that follows the GatewaySecret only at its next poll.
    for object in rights.iter().flat_map(|rights| &rights.objects) {
        write!(out, "---\n{}", serde_saphyr::to_string(object)?)?;
    }
    for Proposal { secret_name, entry, comments } in &proposals.gateway_secrets {
        writeln!(out, "---")?;
        comment(&mut out, &format!("For Secret {}/{secret_name}", entry.namespace), comments)?;
        let mut object = GatewaySecret::new(&entry.name, entry.spec.clone());
        object.metadata.namespace = Some(entry.namespace.clone());
        write!(out, "{}", serde_saphyr::to_string(&json!(object))?)?;
    }
    Ok(out.flush()?)
}
