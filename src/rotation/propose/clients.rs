//! Who may be a client of a root's gateways, as far as Certificates tell.

use serde_json::Value;

use super::Found;
use super::issued::Source;
use super::roots::{Root, namespace};
use crate::api::names::CLIENT_LABEL;
use crate::rotation::name_list::first;

/// Names that one comment gives.
const NAMED: usize = 5;

/// What to do about clients, and what is not known of them.
pub(super) fn comments(found: &Found, root: &Root<'_>, source: &Source<'_>, name: &str) -> Vec<String> {
    if !root.asks_clients() {
        return Vec::new();
    }
    let may_be_client = |object: &&Value| {
        let usages = object["spec"]["usages"].as_array().into_iter().flatten();
        object["kind"] == "Certificate"
            && namespace(object) == root.namespace
            && !source.is_of(object)
            && usages.into_iter().any(|usage| usage == "client auth")
            && object["spec"]["secretTemplate"]["labels"][CLIENT_LABEL].is_null()
    };
    let clients: Vec<_> = found.objects.iter().filter(may_be_client).collect();
    let mut comments = Vec::new();
    let names = first(NAMED, clients.iter().filter_map(|object| object["metadata"]["name"].as_str()));
    match names {
        None => comments.push(format!(
            "no Certificate for client auth was found here that is not declared: who the clients are is not known. Declare them \
             by the label {CLIENT_LABEL}: {name} in secretTemplate of their Certificates, or in spec.clients.secretNames"
        )),
        Some(names) => comments.push(format!(
            "Certificates that may be clients': {names}. Declare those that are by the label {CLIENT_LABEL}: {name} in their \
             secretTemplate"
        )),
    }
    comments.push(
        "once all clients are declared, say so with clients: {complete: true}: an old CA then goes when none needs it"
            .to_owned(),
    );
    if let (Some(ca), Some(issuer)) = (source.ca_secret_name(), source.issuer())
        && clients.iter().any(|client| source.issues(client))
    {
        comments.push(format!(
            "{issuer} signs clients' certificates, too: with issuerSecretName: {name}-issuer, and an Issuer of theirs that refers \
             to that Secret in the place of {ca}, none is signed before the gateways trust its CA"
        ));
    }
    comments
}
