//! Chooses a name for the new Secret: the managed Secret, whose name the GatewaySecret gets too, or the source Secret,
//! which the issuer is to write.

use std::collections::BTreeSet;

use super::served_secrets::ServedSecret;
use super::{GenerateInput, SecretLookup};
use crate::api::names::NAME_LENGTH;
use crate::rotation::gateway_service::namespace;

/// Suffixes of names, in the order in which they are tried.
pub(super) type Suffixes = [&'static str; 3];
/// Suffixes for a managed Secret.
pub(super) const MANAGED: Suffixes = ["-managed", "-managed-2", "-managed-3"];
/// Suffixes for a new source Secret.
pub(super) const SOURCE: Suffixes = ["-source", "-source-2", "-source-3"];

/// The names to try for the new Secret next to an existing one.
pub(super) fn candidates(existing: &str, suffixes: Suffixes) -> impl Iterator<Item = String> {
    let room = |suffix: &str| existing.floor_char_boundary(NAME_LENGTH - suffix.len());
    suffixes.into_iter().map(move |suffix| format!("{}{suffix}", &existing[..room(suffix)]))
}

/// The names that objects other than Secrets claim, by namespace.
pub(super) fn taken(found: &GenerateInput) -> BTreeSet<(String, String)> {
    let mut taken = BTreeSet::new();
    for entry in &found.known {
        let issuer = entry.issuer_name();
        let names = [Some(entry.name.as_str()), Some(entry.managed_name()), issuer.as_deref()];
        let places = names.into_iter().flatten().map(|name| entry.place_of(name));
        taken.extend(places.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())));
    }
    for object in found.objects.iter().filter(|object| object["kind"] == "Certificate") {
        if let Some(name) = object["spec"]["secretName"].as_str() {
            taken.insert((namespace(object).to_owned(), name.to_owned()));
        }
    }
    taken
}

/// Takes the first free name.
pub(super) fn free(
    found: &GenerateInput,
    served: &ServedSecret<'_>,
    suffixes: Suffixes,
    taken: &mut BTreeSet<(String, String)>,
) -> Result<String, String> {
    let namespace = served.namespace;
    let is_free = |name: &String| {
        let exists = matches!(found.held(namespace, name), Some(SecretLookup::Read(_)));
        !exists && !taken.contains(&(namespace.to_owned(), name.clone()))
    };
    let name = candidates(served.name, suffixes).find(is_free);
    let name = name.ok_or_else(|| {
        let tried = candidates(served.name, suffixes).collect::<Vec<_>>().join(", ");
        format!("no free name for the new Secret ({tried} exist): write a GatewaySecret with another name")
    })?;
    taken.insert((namespace.to_owned(), name.clone()));
    Ok(name)
}
