//! Finds Certificates that may belong to clients of the gateways.

use std::collections::BTreeSet;

use serde_json::Value;

use super::GenerateInput;
use super::issuer::IssuerSource;
use super::served_secrets::ServedSecret;
use crate::api::Clients;
use crate::api::names::CLIENT_LABEL;
use crate::rotation::gateway_service::namespace;
use crate::rotation::name_list::first;

/// The most items that `spec.clients.namespaces` may have.
const NAMESPACES: usize = 64;
/// The number of names in one comment.
const NAMED: usize = 5;

/// Certificates that may belong to clients: those in the namespace of the gateways, and those of the same
/// ClusterIssuer.
fn clients<'f>(
    found: &'f GenerateInput,
    served: &'f ServedSecret<'_>,
    source: &'f IssuerSource<'_>,
) -> impl Iterator<Item = &'f Value> {
    let may_be = move |object: &&Value| {
        let usages = object["spec"]["usages"].as_array().into_iter().flatten();
        object["kind"] == "Certificate"
            && (namespace(object) == served.namespace || source.is_cluster_wide() && source.issues(object))
            && !source.is_of(object)
            && usages.into_iter().any(|usage| usage == "client auth")
    };
    found.objects.iter().filter(move |_| served.asks_clients()).filter(may_be)
}

/// The other namespaces with possible clients.
pub(super) fn namespaces(
    found: &GenerateInput,
    served: &ServedSecret<'_>,
    source: &IssuerSource<'_>,
) -> BTreeSet<String> {
    let namespaces = clients(found, served, source).map(namespace);
    let elsewhere: BTreeSet<_> =
        namespaces.filter(|namespace| *namespace != served.namespace).map(str::to_owned).collect();
    elsewhere.into_iter().take(NAMESPACES).collect()
}

/// Comments on what to do about clients, and on what is unknown.
pub(super) fn comments(
    found: &GenerateInput,
    served: &ServedSecret<'_>,
    source: &IssuerSource<'_>,
    name: &str,
) -> Vec<String> {
    if !served.asks_clients() {
        return Vec::new();
    }
    let clients: Vec<_> = clients(found, served, source)
        .filter(|object| object["spec"]["secretTemplate"]["labels"][CLIENT_LABEL].is_null())
        .collect();
    let (here, elsewhere): (Vec<_>, Vec<_>) = clients.iter().partition(|object| namespace(object) == served.namespace);
    let mut comments = Vec::new();
    let full_name = |object: &&Value| Some(format!("{}/{}", namespace(object), object["metadata"]["name"].as_str()?));
    if let Some(names) = first(NAMED, elsewhere.into_iter().filter_map(full_name)) {
        comments.push(format!(
            "possible client Certificates in other namespaces, which clients.namespaces lists: {names}. To declare a client, its owner adds \
             the label {CLIENT_LABEL}: {}_{name} in its secretTemplate",
            served.namespace
        ));
    }
    let names = first(NAMED, here.iter().filter_map(|object| object["metadata"]["name"].as_str()));
    match names {
        None if !comments.is_empty() => {}
        None => comments.push(format!(
            "the clients are unknown: no undeclared Certificate for client auth was found here. Declare clients by the label \
             {CLIENT_LABEL}: {name} in secretTemplate of their Certificates, or in spec.clients.secretNames"
        )),
        Some(names) => comments.push(format!(
            "possible client Certificates: {names}. To declare a client, add the label {CLIENT_LABEL}: {name} in its secretTemplate"
        )),
    }
    comments.push(Clients::INCOMPLETE.to_owned());
    if let (Some(ca), Some(issuer)) = (source.ca_secret_name(), source.issuer())
        && clients.iter().any(|client| source.issues(client))
    {
        comments.push(format!(
            "{issuer} signs clients, too. To have a new CA sign clients only when gateways trust it, set issuerSecretName: {name}-issuer \
             and caSecretRef: {{name: {ca}}}, and give clients an Issuer with Secret {name}-issuer in place of {ca}"
        ));
    }
    comments
}
