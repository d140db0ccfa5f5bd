//! `trustspan uninstall`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use kube::Client;
use serde_json::Value;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::inputs::{create, title, unless_closed};
use super::preflight::is_own_webhook;
use crate::api::names::{journal_name, managed_config_map_name};
use crate::api::{Kind, Phase};
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::rewrite;
use crate::store::{cluster, directory, objects};
use crate::text::printable;

/// Print what depends on trustspan, and the commands that undo it.
///
/// The output is a shell script: what needs a decision is a comment. Run its commands in this order. Nothing is changed.
///
/// Exit code: 0 if only the installation is left, 1 if something depends on it, 2 on an error.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: ClusterArgs,

    /// Required: trustspan changes nothing itself.
    #[arg(long, required = true)]
    dry_run: bool,
}

/// Group, version, kind and resource of the objects that are listed.
const KINDS: [(&str, &str, &str, &str); 11] = [
    ("networking.istio.io", "v1", "Gateway", "gateways.networking.istio.io"),
    ("networking.istio.io", "v1", "DestinationRule", "destinationrules.networking.istio.io"),
    ("gateway.networking.k8s.io", "v1", "Gateway", "gateways.gateway.networking.k8s.io"),
    ("gateway.networking.k8s.io", "v1", "ListenerSet", "listenersets.gateway.networking.k8s.io"),
    ("apps", "v1", "Deployment", "deployments.apps"),
    ("apps", "v1", "StatefulSet", "statefulsets.apps"),
    ("apps", "v1", "DaemonSet", "daemonsets.apps"),
    ("cert-manager.io", "v1", "Issuer", "issuers.cert-manager.io"),
    ("cert-manager.io", "v1", "ClusterIssuer", "clusterissuers.cert-manager.io"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
];

/// Runs the subcommand.
///
/// # Errors
/// When an input cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let (mut entries, mut objects) = match &args.source.directory {
        Some(dir) => in_directory(dir)?,
        None => args.source.on_cluster(in_cluster)?,
    };
    if let Some(namespace) = &args.source.namespace {
        entries.retain(|entry| entry.namespace == *namespace);
        objects.retain(|object| object["metadata"]["namespace"].as_str().is_none_or(|own| own == namespace));
    }
    let dependents = Dependents::of(Registry::new(entries), &objects);
    let mut out = io::stdout().lock();
    unless_closed(dependents.print(&mut out).map_err(Failure::from).map(|()| match dependents.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }))
}

fn in_directory(dir: &std::path::Path) -> Result<(Vec<Entry>, Vec<Value>), Failure> {
    let objects = directory::objects(&[dir.to_owned()])?;
    let gateway_secrets = objects.iter().filter(|object| directory::is_gateway_secret(object));
    let entries = gateway_secrets.map(|object| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        directory::entry(object, namespace).map_err(|error| Failure::Unreadable(error.to_string()))
    });
    Ok((entries.collect::<Result<_, _>>()?, objects))
}

async fn in_cluster(client: Client) -> Result<(Vec<Entry>, Vec<Value>), Failure> {
    // The kind is not installed.
    let is_unknown = |error: &kube::Error| cluster::has_code(error, 404);
    let mut listed = Vec::new();
    for (group, version, kind, _) in KINDS {
        match objects::list(&client, group, version, kind).await {
            Err(error) if is_unknown(&error) => {}
            objects => listed.extend(objects?),
        }
    }
    let (entries, unread) = match cluster::list(client).await {
        Err(error) if is_unknown(&error) => Default::default(),
        entries => entries?,
    };
    // Without its names, nothing can be said about what depends on it.
    if let Some(((namespace, name), why)) = unread.into_iter().next() {
        return Err(Failure::UnreadGatewaySecret { namespace, name, why });
    }
    Ok((entries, listed))
}

/// What depends on trustspan.
#[derive(Debug, Default)]
struct Dependents {
    /// GatewaySecrets, all of them.
    entries: Vec<Entry>,
    /// Names of webhook configurations, by resource.
    webhooks: BTreeMap<&'static str, Vec<String>>,
    /// Resource, namespace and name of what was rewritten.
    rewritten: Vec<(&'static str, String, String)>,
    /// What names a managed object, and would after all is undone: a sentence.
    naming: Vec<String>,
}

impl Dependents {
    fn of(registry: Registry, objects: &[Value]) -> Self {
        let mut found = Self::default();
        for object in objects {
            let Kind { group, kind, .. } = Kind::of_value(object);
            let Some((.., resource)) = KINDS.iter().find(|known| (known.0, known.2) == (group, kind)) else { continue };
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            let title = title(&create(&Json::from(object), ""));
            if object["webhooks"].as_array().is_some_and(|webhooks| webhooks.iter().any(is_own_webhook)) {
                found.webhooks.entry(resource).or_default().push(name);
                continue;
            }
            if kind.ends_with("Issuer") {
                found.naming.extend(copy_of_issuer(&registry, object, &namespace).map(|why| format!("{title}: {why}")));
                continue;
            }
            let mut object = object.clone();
            if let Some(undo) = rewrite::undo(&Json::from(&object)) {
                // A record that does not fit is reported by `rewrite --undo`.
                let _ = json_patch::patch(&mut object, &undo.patch);
                found.rewritten.push((resource, namespace.clone(), name));
            }
            let object = Json::from(&object);
            for named in rewrite::names(Kind::of(&object), &object, &namespace) {
                let user = registry.user_of(&named.place, named.name).filter(|user| user.managed_name() == named.name);
                let Some(user) = user else { continue };
                let field = named.pointer().trim_start_matches('/').replace('/', ".");
                found.naming.push(format!("{title}: {field} names {}, of {}", named.name, titled(user)));
            }
        }
        found.entries = registry.entries().iter().map(|entry| Entry::clone(entry)).collect();
        found
    }

    fn is_empty(&self) -> bool {
        let is_steady = self.rotating().next().is_none();
        // The webhook configurations are part of the installation.
        is_steady && self.rewritten.is_empty() && self.naming.is_empty()
    }

    fn rotating(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.status.phase.is_some_and(|phase| phase != Phase::Steady))
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let comment = |out: &mut dyn Write, text: &str| writeln!(out, "# {}", printable(text));
        if self.rotating().next().is_some() {
            comment(out, "A source Secret has only the new CA, so clients must not need the old one:")?;
        }
        for Entry { namespace, name, .. } in self.rotating() {
            writeln!(out, "trustspan wait {name} -n {namespace} --for Steady --timeout 1h")?;
        }
        if !self.webhooks.is_empty() {
            comment(out, "The webhooks would rewrite objects again. This ends the guard of Secrets:")?;
        }
        for (resource, names) in &self.webhooks {
            writeln!(out, "kubectl delete {resource} {}", names.join(" "))?;
        }
        if !self.rewritten.is_empty() {
            comment(out, "Rewritten objects. Workloads restart:")?;
        }
        for (resource, namespace, name) in &self.rewritten {
            writeln!(
                out,
                "kubectl get {resource} {name} -n {namespace} -o yaml | trustspan rewrite --undo -f - | kubectl replace -f -"
            )?;
        }
        if !self.naming.is_empty() {
            comment(
                out,
                "These objects name what the agent keeps, and no rewrite did that. It stays, and is not renewed.",
            )?;
            comment(
                out,
                "Let them name the source, or let its issuer write the Secret that they name (docs/leaving.md):",
            )?;
            self.naming.iter().try_for_each(|naming| comment(out, &format!("- {naming}")))?;
        }
        let kept: Vec<_> = self.entries.iter().flat_map(kept_for_others).collect();
        if !kept.is_empty() {
            comment(out, "Copies for other programs. They stay, and are not renewed:")?;
            kept.iter().try_for_each(|kept| comment(out, &format!("- {kept}")))?;
        }
        comment(out, "The installation: helm uninstall, or kubectl delete -k with the directory that you applied.")?;
        if !self.entries.is_empty() {
            comment(out, "What stays, when nothing names it any more:")?;
        }
        for entry in &self.entries {
            let Entry { namespace, name, .. } = entry;
            writeln!(out, "# kubectl delete secret {} -n {namespace}", entry.managed_name())?;
            writeln!(out, "# kubectl delete configmap {} -n {namespace}", journal_name(name))?;
        }
        Ok(())
    }
}

fn titled(entry: &Entry) -> String {
    format!("GatewaySecret {}/{}", entry.namespace, entry.name)
}

/// Says that an issuer signs with the copy of a CA that the agent keeps (`spec.issuerSecretName`).
fn copy_of_issuer(registry: &Registry, issuer: &Value, namespace: &str) -> Option<String> {
    let secret = issuer["spec"]["ca"]["secretName"].as_str()?;
    let keeps = |entry: &&Arc<Entry>| {
        let copy = entry.issuer_name();
        let place = copy.as_deref().map(|name| entry.place_of(name));
        // A ClusterIssuer reads the namespace of cert-manager, which is not known here.
        place.is_some_and(|(own, name)| name == secret && (namespace.is_empty() || own == namespace))
    };
    let entry = registry.entries().iter().find(keeps)?;
    Some(format!("spec.ca.secretName names {secret}, the copy of a CA of {}", titled(entry)))
}

/// What the agent writes for programs other than the gateways.
fn kept_for_others(entry: &Entry) -> Vec<String> {
    let targets = entry.spec.trust_bundle_targets.iter().map(|target| {
        let namespace = target.namespace.as_deref().unwrap_or(&entry.namespace);
        format!("{:?} {namespace}/{}", target.kind, target.name)
    });
    let copies = entry.spec.clients.ca_config_map_names.iter();
    let copies = copies.map(|name| format!("ConfigMap {}/{}", entry.namespace, managed_config_map_name(name)));
    targets.chain(copies).map(|kept| format!("{kept}, of {}", titled(entry))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;

    fn gateway(name: &str, secret: &str) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": { "namespace": "mesh", "name": name },
            "spec": {
                "selector": { "istio": "ingressgateway" },
                "servers": [{ "tls": { "mode": "MUTUAL", "credentialName": secret } }],
            },
        })
    }

    fn printed(registry: Registry, objects: &[Value]) -> (bool, String) {
        let (found, mut out) = (Dependents::of(registry, objects), Vec::new());
        found.print(&mut out).expect("memory");
        (found.is_empty(), String::from_utf8(out).expect("text"))
    }

    #[test]
    fn prints_commands_for_what_was_rewritten_and_a_comment_for_what_a_user_wrote() {
        let written = gateway("shop", "root");
        let registry = || Registry::new([entry("mesh", "root", "gateway")]);
        let object = &Json::from(&written);
        let write = rewrite::Write { kind: Kind::of(object), namespace: "mesh", object, old: None, by_agent: false };
        let mut rewritten = written.clone();
        let patch = rewrite::rewrite(&write, &registry()).patch.parse();
        json_patch::patch(&mut rewritten, &patch).expect("a patch");
        let (is_empty, text) = printed(registry(), &[rewritten, gateway("by-hand", "gateway"), gateway("other", "x")]);
        assert!(!is_empty);
        let undo = "kubectl get gateways.networking.istio.io shop -n mesh -o yaml | trustspan rewrite --undo -f -";
        assert!(text.contains(undo), "{text}");
        let named = "# - Gateway mesh/by-hand: spec.servers.0.tls.credentialName names gateway, of GatewaySecret mesh/";
        assert!(text.contains(named), "{text}");
        assert!(!text.contains("other") && text.matches("# - ").count() == 1, "{text}");
    }

    #[test]
    fn prints_a_wait_for_each_rotation_and_what_stays() {
        let mut rotating = entry("mesh", "root", "gateway");
        rotating.status.phase = Some(Phase::Converged);
        rotating.spec.clients.ca_config_map_names = vec!["partners".to_owned()];
        let name = rotating.name.clone();
        let (_, text) = printed(Registry::new([rotating]), &[]);
        assert!(text.contains(&format!("\ntrustspan wait {name} -n mesh --for Steady")), "{text}");
        assert!(text.contains(&format!("# - ConfigMap mesh/{}, of", managed_config_map_name("partners"))), "{text}");
        assert!(text.contains("# kubectl delete secret gateway -n mesh"), "{text}");
    }

    #[test]
    fn names_own_webhook_configurations_and_issuers_of_copies() {
        let mut staged = entry("mesh", "root", "gateway");
        staged.spec.issuer_secret_name = Some("copy".to_owned());
        let webhooks = |name: &str, webhook: &str| {
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                "metadata": { "name": name }, "webhooks": [{ "name": webhook }],
            })
        };
        let issuer = |name: &str, secret: &str| {
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": { "namespace": "mesh", "name": name },
                "spec": { "ca": { "secretName": secret } },
            })
        };
        let objects = [
            webhooks("trustspan", "trust.validate.trustspan.dev"),
            webhooks("istiod", "validation.istio.io"),
            issuer("staged", "copy"),
            issuer("plain", "root"),
        ];
        let (_, text) = printed(Registry::new([staged]), &objects);
        assert!(text.contains("kubectl delete validatingwebhookconfigurations trustspan\n"), "{text}");
        assert!(text.contains("# - Issuer mesh/staged: ") && !text.contains("plain"), "{text}");
    }

    #[test]
    fn nothing_depends_on_an_empty_cluster() {
        let (is_empty, text) = printed(Registry::default(), &[gateway("other", "x")]);
        assert!(is_empty && text.lines().count() == 1, "{text}");
    }
}
