//! Generates GatewaySecrets from existing Gateways. Pure: objects in, GatewaySecrets out, with comments on the reasons
//! and on what is unknown.

mod clients;
mod issuer;
mod name;
mod probe_comment;
mod served_secrets;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::SecretSummary;
use crate::api::names::{ADOPT, CACERT_SUFFIX, check_object_name};
use crate::api::{GatewaySecretSpec, Resolved, SecretRef};
use crate::json::Json;
use crate::registry::{CLUSTER_RESOURCE_NAMESPACE, CertManagerObjects, Entry};

use served_secrets::{ServedSecret, ServedSecrets};

/// The objects of a cluster or a directory.
#[derive(Debug, Default)]
pub struct GenerateInput {
    /// Only Secrets in this namespace are considered. `None`: all.
    pub only: Option<String>,
    /// Gateways, pods and workloads, Services, cert-manager's Certificates, Issuers and ClusterIssuers.
    pub objects: Vec<Value>,
    /// Whether Gateways are rewritten to another Secret even if the issuer could write another Secret instead.
    pub rewrite: bool,
    /// The existing GatewaySecrets.
    pub known: Vec<Entry>,
    /// The Secrets of [`GenerateInput::secrets_to_read`] that were looked up, by namespace and name.
    pub secrets: BTreeMap<(String, String), SecretLookup>,
}

/// The result of looking up a Secret.
#[derive(Clone, Debug)]
pub enum SecretLookup {
    /// It does not exist.
    Missing,
    /// The user has no permission to read it.
    Refused,
    /// What it holds.
    Read(SecretSummary),
}

/// The generated GatewaySecrets.
#[derive(Debug, Default)]
pub struct Proposals {
    /// One for each Secret that Gateways present and no GatewaySecret names.
    pub gateway_secrets: Vec<Proposal>,
    /// What was left out, and why.
    pub left_out: Vec<String>,
}

/// A generated GatewaySecret.
#[derive(Debug)]
pub struct Proposal {
    /// The Secret that Gateways present now.
    pub secret_name: String,
    /// The GatewaySecret, without a status.
    pub entry: Entry,
    /// Comments on the reasons, and on what is unknown.
    pub comments: Vec<String>,
}

impl GenerateInput {
    /// The selectors of Istio Gateways. Istio reads Secrets in the namespaces of the pods that they select.
    pub fn selectors(&self) -> BTreeSet<BTreeMap<String, String>> {
        let gateways = served_secrets::gateways(&self.objects);
        let owned = |selector: BTreeMap<&str, &str>| {
            selector.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        served_secrets::selectors(&gateways).into_iter().map(owned).collect()
    }

    /// The namespaces and names of the Secrets that the result depends on.
    pub fn secrets_to_read(&self) -> BTreeSet<(String, String)> {
        let mut keys = BTreeSet::new();
        let gateways = served_secrets::gateways(&self.objects);
        for served in self.served_secrets(&gateways).by_place.values() {
            let mut names = vec![served.name.to_owned(), format!("{}{CACERT_SUFFIX}", served.name)];
            names.extend(
                [name::MANAGED, name::SOURCE].into_iter().flat_map(|suffixes| name::candidates(served.name, suffixes)),
            );
            keys.extend(names.into_iter().map(|name| (served.namespace.to_owned(), name)));
            let source = issuer::source(self, served);
            let namespace = source.ca_namespace().unwrap_or(served.namespace);
            keys.extend(source.ca_secret_name().map(|name| (namespace.to_owned(), name.to_owned())));
        }
        keys
    }

    fn served_secrets<'a>(&'a self, gateways: &'a [Json<'a>]) -> ServedSecrets<'a> {
        let mut served = ServedSecrets::of(&self.objects, gateways);
        served.by_place.retain(|(namespace, _), _| self.only.as_ref().is_none_or(|only| only == namespace));
        served
    }

    /// The existing GatewaySecrets, resolved by the Certificates among the objects.
    fn known(&self) -> impl Iterator<Item = Entry> {
        let mut issuance = CertManagerObjects::default();
        self.objects.iter().for_each(|object| issuance.take(object, "default"));
        self.known.iter().map(move |entry| {
            let resolved = issuance.resolve(entry).unwrap_or_else(|_| entry.resolved.clone());
            Entry { resolved, ..entry.clone() }
        })
    }

    fn held(&self, namespace: &str, name: &str) -> Option<&SecretLookup> {
        self.secrets.get(&(namespace.to_owned(), name.to_owned()))
    }

    fn facts(&self, namespace: &str, name: &str) -> Option<&SecretSummary> {
        match self.held(namespace, name) {
            Some(SecretLookup::Read(facts)) => Some(facts),
            _ => None,
        }
    }
}

/// Generates a GatewaySecret for each Secret that Gateways present, unless one names it already.
pub fn propose(found: &GenerateInput) -> Proposals {
    let known: Vec<_> = found.known().collect();
    let gateways = served_secrets::gateways(&found.objects);
    let ServedSecrets { by_place, left_out } = found.served_secrets(&gateways);
    let mut proposals = Proposals { left_out, ..Proposals::default() };
    let mut taken = name::taken(found);
    for served in by_place.into_values() {
        let title = format!("Secret {}/{}", served.namespace, served.name);
        let names = |entry: &&Entry| {
            entry.namespace == served.namespace && [entry.source_name(), entry.managed_name()].contains(&served.name)
        };
        if let Some(entry) = known.iter().find(names) {
            proposals.left_out.push(format!("{title}: GatewaySecret {} names it already", entry.name));
            continue;
        }
        match proposal(found, &served, &mut taken) {
            Ok(proposal) => proposals.gateway_secrets.push(proposal),
            Err(why) => proposals.left_out.push(format!("{title}: {why}")),
        }
    }
    proposals
}

fn proposal(
    found: &GenerateInput,
    served: &ServedSecret<'_>,
    taken: &mut BTreeSet<(String, String)>,
) -> Result<Proposal, String> {
    let ServedSecret { namespace, name: served_name, .. } = *served;
    check_object_name(namespace)?;
    check_object_name(served_name)?;
    let source = issuer::source(found, served);
    if let Some((certificate, owner)) = source.certificate_name().zip(source.shim_owner()) {
        return Err(format!(
            "cert-manager manages Certificate {certificate} for {owner}: create a separate Certificate, and remove the annotation \
             cert-manager.io/issuer or cluster-issuer from {owner}"
        ));
    }
    let facts = found.facts(namespace, served_name);
    let sibling = format!("{served_name}{CACERT_SUFFIX}");
    let has_sibling = found.facts(namespace, &sibling).is_some();
    let holds_ca = facts.is_none_or(|facts| !facts.anchors.is_empty() || facts.chain.iter().any(|leaf| leaf.is_ca));
    if !holds_ca && source.ca_secret_name().is_none() && !has_sibling && !served.asks_clients() {
        return Err("it holds no CA, and no Gateway verifies clients: there is nothing to rotate".to_owned());
    }
    // If the issuer can write another Secret, the one that Gateways name becomes the managed Secret. Except if
    // `<name>-cacert` exists: Istio would prefer its CAs to those of a managed Secret with that name.
    let is_taken = found.known.iter().any(|entry| entry.namespace == namespace && entry.name == served_name);
    let certificate = source.certificate_name().filter(|_| !found.rewrite && !has_sibling && !is_taken);
    let (name, source_name) = match certificate {
        Some(_) => (served_name.to_owned(), name::free(found, served, name::SOURCE, taken)?),
        None => (name::free(found, served, name::MANAGED, taken)?, served_name.to_owned()),
    };
    let mut comments = served.comments();
    comments.extend(source.comments(found, served));
    match found.held(namespace, served_name) {
        Some(SecretLookup::Read(facts)) => comments.extend(unsound(served_name, facts)),
        Some(SecretLookup::Refused) => comments.push(format!(
            "you may not read Secret {served_name}: its content is unknown, and so is whether {name} is free"
        )),
        Some(SecretLookup::Missing) => comments.push(format!("Secret {served_name} does not exist yet")),
        None => comments.push(format!("Secret {served_name} is not among the manifests: its content is unknown")),
    }
    if has_sibling {
        comments.push(format!(
            "Istio verifies clients by Secret {sibling}: clients.caSecretRef names it. No Gateway is rewritten before {name} holds all of \
             its CAs"
        ));
    } else if !holds_ca && source.ca_secret_name().is_none() {
        comments.push(format!(
            "no CA was found for it: set caSecretRef to the Secret that holds one, or add it under ca.crt of {served_name}"
        ));
    }
    if let Some(certificate) = certificate {
        comments.extend(adoption_steps(namespace, served_name, &source_name, certificate));
    }
    comments.extend(clients::comments(found, served, &source, &name));
    comments.push(probe_comment::comment(found, served));
    let mut spec = match source.certificate_name() {
        Some(certificate) => json!({ "certificateRef": { "name": certificate } }),
        None => json!({ "sourceSecretName": source_name }),
    };
    spec["workloadLabels"] = json!(served.workload_labels());
    let ca = source
        .ca_secret_name()
        .map(|ca| SecretRef { namespace: source.ca_namespace().map(str::to_owned), name: ca.to_owned() });
    // The agent derives the default.
    if source.ca_namespace().is_some_and(|namespace| namespace != CLUSTER_RESOURCE_NAMESPACE) {
        spec["caSecretRef"] = json!(ca);
    }
    let namespaces = clients::namespaces(found, served, &source);
    if !namespaces.is_empty() {
        spec["clients"]["namespaces"] = json!(namespaces);
    }
    if has_sibling {
        spec["clients"]["caSecretRef"] = json!({ "name": sibling });
    }
    let config_maps = served.config_maps();
    if !config_maps.is_empty() {
        comments.push(format!(
            "Gateways verify clients by ConfigMap {}: the agent writes a copy with all CAs of a rotation, and Gateways are rewritten to \
             name the copy",
            config_maps.iter().copied().collect::<Vec<_>>().join(", ")
        ));
        spec["clients"]["caConfigMapNames"] = json!(config_maps);
    }
    let spec = GatewaySecretSpec::deserialize(spec).map_err(|error| error.to_string())?;
    let mut entry = Entry::unstored(namespace.to_owned(), name, spec);
    entry.resolved = Resolved { source_secret_name: source_name, ca_secret_ref: ca, derived_from: Vec::new() };
    Ok(Proposal { secret_name: served_name.to_owned(), entry, comments })
}

/// The steps by which the managed Secret takes over the name that Gateways use.
fn adoption_steps(namespace: &str, name: &str, source: &str, certificate: &str) -> [String; 3] {
    [
        format!(
            "Secret {name} keeps its name and becomes the managed Secret, so that no Gateway changes. Before this is applied, let the \
             agent take it over: kubectl annotate secret {name} -n {namespace} {ADOPT}=true"
        ),
        format!(
            "then let the issuer write Secret {source}, here and in the Certificate's manifest: kubectl patch certificate \
             {certificate} -n {namespace} --type=merge --patch '{{\"spec\":{{\"secretName\":\"{source}\"}}}}'"
        ),
        "if the Certificate cannot be changed, use trustspan init --rewrite".to_owned(),
    ]
}

fn unsound(name: &str, facts: &SecretSummary) -> Option<String> {
    let finding = facts.denials.first()?;
    let said = format!("Secret {name}: {}: {}: {}", finding.rule, finding.field, finding.message);
    Some(format!("{}. It is not used until this is fixed", said.trim_end_matches('.')))
}

#[cfg(test)]
mod tests;
