//! `trustspan extend-trust`.

use std::process::ExitCode;

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::service_account::ServiceAccountArgs;
use crate::agent::{self, ServiceAccount};
use crate::api::SourceKind;
use crate::api::names::CACERT_SUFFIX;
use crate::registry::Entry;
use crate::rotation::readers::extended;
use crate::text::printable;

const MANAGER: &str = "trustspan-extend-trust";

/// Add the CAs of a managed Secret to another trust source.
///
/// The object keeps its CAs: the missing ones are added before them, with your rights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the GatewaySecret.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    source: ClusterArgs,

    /// Object to extend: secret/NAME or configmap/NAME.
    #[arg(long, value_name = "KIND/NAME", value_parser = target)]
    to: Target,

    /// Namespace of that object. Default: the namespace of the GatewaySecret.
    #[arg(long, value_name = "NAMESPACE")]
    to_namespace: Option<String>,

    /// Also apply a Role and a RoleBinding that allow the rotation controller to read the object.
    #[arg(long)]
    grant: bool,

    #[command(flatten)]
    account: ServiceAccountArgs,

    /// Print the CAs to add without adding them.
    #[arg(long)]
    dry_run: bool,
}

/// A Secret or a ConfigMap, by name.
#[derive(Clone, Debug)]
struct Target {
    kind: SourceKind,
    name: String,
}

fn target(text: &str) -> Result<Target, String> {
    let (kind, name) =
        text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or("expected secret/NAME or configmap/NAME")?;
    let kind = match kind {
        "secret" | "secrets" => SourceKind::Secret,
        "configmap" | "configmaps" | "cm" => SourceKind::ConfigMap,
        _ => return Err("expected secret/NAME or configmap/NAME".to_owned()),
    };
    Ok(Target { kind, name: name.to_owned() })
}

/// Runs the subcommand.
///
/// # Errors
/// When the GatewaySecret or the object does not exist, or when the object may not be written or holds no readable CAs.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.source.is_directory() {
        let reason = "extend-trust changes objects of a cluster: edit the manifest, or omit -f";
        return Err(Failure::Impossible(reason.to_owned()));
    }
    let found = args.source.read(std::slice::from_ref(&args.name))?;
    let [entry] = found.as_slice() else {
        return Err(Failure::Impossible(format!("several GatewaySecrets are called {}: use --namespace", args.name)));
    };
    let pems: Vec<_> = entry.status.bundle.iter().filter_map(|anchor| anchor.pem.as_deref()).collect();
    if pems.is_empty() {
        let reason =
            format!("GatewaySecret {} has no CAs in its status: wait until the agent has reconciled it", entry.name);
        return Err(Failure::Impossible(reason));
    }
    let namespace = args.to_namespace.as_deref().unwrap_or(&entry.namespace);
    let label = format!("{} {namespace}/{}", args.to.kind.name(), args.to.name);
    let object =
        args.source.on_cluster(async |client| api(client, &args.to, namespace).get_opt(&args.to.name).await)?;
    let Some(object) = object.map(|object| serde_json::to_value(object).unwrap_or_default()) else {
        // istiod takes the Secret without the suffix where there is none with it.
        if let Some(name) = args.to.name.strip_suffix(CACERT_SUFFIX).filter(|_| args.to.kind == SourceKind::Secret) {
            let to = Target { name: name.to_owned(), ..args.to.clone() };
            return run(Args { to, ..args });
        }
        return Err(Failure::Impossible(format!("{label} does not exist: create it with the CAs of its clients")));
    };
    if args.grant && !args.dry_run {
        args.source.on_cluster(async |client| {
            grant(client, entry, &args.to, namespace, &args.account.service_account).await
        })?;
    }
    let Some((key, text, added)) = extended(args.to.kind, &object, &pems) else {
        return Err(Failure::Impossible(format!(
            "{label} holds no readable CAs under cacert or ca.crt: repair it first"
        )));
    };
    if added.is_empty() {
        anstream::println!("{label} has every CA of GatewaySecret {} already", entry.name);
        return Ok(ExitCode::SUCCESS);
    }
    for subject in &added {
        anstream::println!(
            "{}{label}[{key}]: {}",
            if args.dry_run { "would add to " } else { "added to " },
            printable(subject)
        );
    }
    if !args.dry_run {
        let value = if args.to.kind == SourceKind::Secret { STANDARD.encode(text) } else { text };
        // The API server rejects the patch if the object has changed since it was read.
        let version = &object["metadata"]["resourceVersion"];
        let patch: Value = json!({ "metadata": { "resourceVersion": version }, "data": { key: value } });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        args.source.on_cluster(async |client| {
            api(client, &args.to, namespace).patch(&args.to.name, &params, &Patch::Merge(&patch)).await
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn grant(
    client: Client,
    entry: &Entry,
    target: &Target,
    namespace: &str,
    account: &ServiceAccount,
) -> kube::Result<()> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), force: true, ..PatchParams::default() };
    for object in agent::reader_role(entry, target.kind.name(), namespace, &target.name, account) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", &kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &text(&metadata["namespace"]), &resource);
        api.patch(&text(&metadata["name"]), &params, &Patch::Apply(&object)).await?;
    }
    Ok(())
}

fn api(client: Client, target: &Target, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", target.kind.name()));
    Api::namespaced_with(client, namespace, &resource)
}
