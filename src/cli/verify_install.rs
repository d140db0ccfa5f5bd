//! `trustspan verify-install`.

use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Failure;
use super::kube_args::KubeArgs;
use crate::api::names::MANAGED_LABEL;
use crate::certgen::{GeneratedCertificates, Profile};
use crate::store::certgen::{KeyGenerationError, generate};
use crate::store::cluster;
use crate::text::printable;

/// Verify that the API server rejects a broken Secret, and accepts a rotation.
///
/// It creates Secrets by server-side dry runs, so nothing is stored: one with a bundle that Envoy rejects, and those of each step of a CA rotation. The permission to create Secrets in the namespace is needed.
///
/// Exit code: 0 if all verdicts are as expected, 1 if one is not, 2 on an error.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    kube: KubeArgs,

    /// Namespace of the Secrets. The webhooks must not exclude it.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
}

/// The name of the Secret that is never stored.
const NAME: &str = "trustspan-verify-install";
/// A part of the API server's message, from the name of the webhook.
const DENIED: &str = "\"trust.validate.trustspan.dev\" denied the request";

/// Runs the subcommand.
///
/// # Errors
/// When no certificate can be made, or the API server does not answer or refuses the request for another reason than the webhook's.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let profile = json!({
        "name": NAME, "duration": "24h", "ca": { "commonName": NAME },
        "certificates": [{ "secretName": NAME, "commonName": NAME, "dnsNames": ["gateway.example.com"], "usages": ["server auth"] }],
    });
    let profile = serde_json::from_value(profile).map_err(|error| Failure::Impossible(error.to_string()))?;
    let made = contents(&profile, Timestamp::now()).map_err(|error| Failure::Impossible(error.to_string()))?;
    let ok = super::block_on_this_thread(async {
        let client = args.kube.connect().await?;
        verify(client, &args.namespace, made).await
    })?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Content of the Secret: what it is, its data, and whether it is accepted.
type Content = (&'static str, Value, bool);

fn contents(profile: &Profile, now: Timestamp) -> Result<Vec<Content>, KeyGenerationError> {
    let (old, new) = (generate(profile, now)?, generate(profile, now)?);
    let content = |serving: &GeneratedCertificates, bundle: &str| {
        let pair = &serving.leaves[NAME];
        json!({ "tls.crt": pair.certificate, "tls.key": *pair.key, "ca.crt": bundle })
    };
    let both = format!("{}{}", new.ca, old.ca);
    let broken = format!("{}-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n", old.ca);
    Ok(vec![
        ("a bundle with a block that is no certificate", content(&old, &broken), false),
        ("the old CA alone", content(&old, &old.ca), true),
        ("the new and the old CA", content(&old, &both), true),
        ("the serving certificate of the new CA", content(&new, &both), true),
        ("the new CA alone", content(&new, &new.ca), true),
    ])
}

async fn verify(client: Client, namespace: &str, contents: Vec<Content>) -> Result<bool, Failure> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let mut ok = true;
    for (what, data, is_accepted) in contents {
        let secret = json!({
            "metadata": { "name": NAME, "labels": { MANAGED_LABEL: "true" } }, "type": "kubernetes.io/tls", "stringData": data,
        });
        let secret = serde_json::from_value(secret).map_err(|error| Failure::Impossible(error.to_string()))?;
        let verdict = match api.create(&params, &secret).await {
            Ok(_) => None,
            Err(error) if cluster::error_message(&error).contains(DENIED) => Some(cluster::error_message(&error)),
            Err(error) => return Err(error.into()),
        };
        let verb = if verdict.is_none() { "accepted" } else { "rejected" };
        if verdict.is_none() == is_accepted {
            anstream::println!("ok: {what} is {verb}");
            continue;
        }
        ok = false;
        let why = match verdict {
            Some(message) => format!("expected it to be accepted: {}", printable(&message)),
            None => format!("expected it to be rejected: no webhook judges Secrets in namespace {namespace}"),
        };
        anstream::println!("failed: {what} is {verb}, {why}");
    }
    Ok(ok)
}
