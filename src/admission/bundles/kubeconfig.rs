//! Kubeconfigs in Secrets: the CA of each cluster, and the certificate of each user with its key, as client-go reads them.
//!
//! Cluster API writes them under `value`, others under `kubeconfig` or `config`. Sources: `clientcmd/api/v1` of client-go;
//! `rest.TLSConfigFor` and `tls.X509KeyPair` load what is in them.

use serde_json::Value;
use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations, Unreadable};
use crate::trust::{Duty, Secret, TlsConsumer, decoded};

/// Keys of a Secret under which kubeconfigs are kept.
const KEYS: [&str; 3] = ["value", "kubeconfig", "config"];

/// YAML nodes of a kubeconfig, which are enough for a thousand clusters with their users. A mebibyte of small nodes takes
/// longer to read than an answer may.
pub(super) const NODES: usize = 20_000;

/// Bytes of its texts, what aliases repeat included: a Secret holds a mebibyte.
const TEXT: usize = 2 << 20;

/// Private keys of a kubeconfig that are read, each of which takes 0.1 ms (RSA of 2048 bits) to 0.25 ms (P-521). Kubeconfigs are written
/// for one user; those that people merge have as many as they have clusters.
pub(super) const KEYS_READ: usize = 128;

/// A list in a kubeconfig, of entries with a name.
struct List {
    name: &'static str,
    /// What each entry holds.
    entry: &'static str,
    /// The fields that are read together, and those that name a file instead, on the machine that uses the kubeconfig.
    fields: &'static [(&'static str, &'static str)],
}

const LISTS: [List; 2] = [
    List { name: "clusters", entry: "cluster", fields: &[("certificate-authority-data", "certificate-authority")] },
    List {
        name: "users",
        entry: "user",
        fields: &[("client-certificate-data", "client-certificate"), ("client-key-data", "client-key")],
    },
];

/// The places of a Secret; `None` when no kubeconfig is in it.
pub(super) fn places(object: &Value) -> Option<BundleLocations> {
    let secret = Secret::from_value(object).ok()?;
    let (mut places, mut keys) = (None, KEYS_READ);
    for key in KEYS {
        let config = match secret.data.get(key).map(|text| read(text)) {
            None | Some(Ok(None)) => continue,
            Some(Ok(Some(config))) => config,
            Some(Err(TooLarge)) => {
                let places = places.get_or_insert_with(BundleLocations::default);
                places.unreadable.push(Unreadable::TooLarge(format!("data[{key}]")));
                continue;
            }
        };
        let places = places.get_or_insert_with(BundleLocations::default);
        for List { name: list, entry, fields } in LISTS {
            for item in config[list].as_array().into_iter().flatten() {
                let Some(left) = keys.checked_sub(keys_cost(&item[entry])) else {
                    places.unreadable.push(Unreadable::TooManyKeys(format!("data[{key}].{list}")));
                    break;
                };
                keys = left;
                let name = item["name"].as_str().unwrap_or_default();
                let prefix = format!("data[{key}].{list}[{name}].");
                take(places, prefix, &item[entry], fields);
            }
        }
    }
    places
}

/// There is more of it than is read.
struct TooLarge;

/// What client-go takes for a kubeconfig has one of its lists; other programs keep other things under these keys.
fn read(text: &[u8]) -> Result<Option<Value>, TooLarge> {
    let budget = serde_saphyr::budget! { max_nodes: NODES, max_total_scalar_bytes: TEXT };
    // The text may hold private keys, and an error shall hold none of it.
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    let Ok(text) = std::str::from_utf8(text) else { return Ok(None) };
    match serde_saphyr::from_str_with_options::<Value>(text, options) {
        Ok(config) => Ok(Some(config).filter(|config| LISTS.iter().any(|list| config[list.name].is_array()))),
        Err(serde_saphyr::Error::Budget { .. }) if mentions_content(text) => Err(TooLarge),
        Err(_) => Ok(None),
    }
}

/// Whether a text that is not read to its end could hold what is judged here.
fn mentions_content(text: &str) -> bool {
    LISTS.iter().any(|list| text.contains(list.name) && list.fields.iter().any(|(data, _)| text.contains(data)))
}

/// What the private key of an entry costs of [`KEYS_READ`]: a long one several times as much.
fn keys_cost(entry: &Value) -> usize {
    entry["client-key-data"].as_str().map_or(0, |text| 1 + (text.len() / 4_000).pow(2))
}

fn take(places: &mut BundleLocations, prefix: String, entry: &Value, fields: &[(&str, &str)]) {
    let content = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
    // Half of it is in a file that nobody sees from here.
    if fields.iter().any(|(data, file)| content(data).is_none() && content(file).is_some()) {
        return;
    }
    let mut place = BundleLocation::new(prefix, Duty { reader: TlsConsumer::Go, ..Duty::default() });
    for (key, _) in fields {
        let Some(text) = content(key) else { continue };
        match decoded(text) {
            Some(text) => drop(place.texts.data.insert((*key).to_owned(), Zeroizing::new(text))),
            None => return places.unreadable.push(Unreadable::NotBase64(format!("{}{key}", place.prefix))),
        }
    }
    if !place.texts.data.is_empty() {
        places.readable.push(place);
    }
}
