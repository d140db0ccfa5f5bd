//! Kubeconfigs in Secrets: the CA of each cluster, and the certificate of each user with its key, as client-go reads them.
//!
//! Cluster API writes them under `value`, others under `kubeconfig` or `config`. Sources: `clientcmd/api/v1` of client-go;
//! `rest.TLSConfigFor` and `tls.X509KeyPair` load what is in them.

use serde_json::Value;
use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations, Unreadable};
use crate::trust::{Secret, SecretUsage, TlsConsumer, decoded};

/// Keys of a Secret that hold kubeconfigs.
const KEYS: [&str; 3] = ["value", "kubeconfig", "config"];

/// YAML nodes of a kubeconfig that are read: enough for a thousand clusters with their users. A mebibyte of small nodes would take longer to
/// read than a review may.
pub(super) const NODES: usize = 20_000;

/// Bytes of all strings of a kubeconfig, each YAML alias counted as a copy. A Secret has at most one mebibyte.
const TEXT: usize = 2 << 20;

/// Private keys of a kubeconfig that are read. Each takes 0.1 ms (RSA of 2048 bits) to 0.25 ms (P-521). A generated kubeconfig has one user;
/// a merged one has about as many as clusters.
pub(super) const KEYS_READ: usize = 128;

/// A list of named entries in a kubeconfig.
struct List {
    name: &'static str,
    /// The field of an entry that has the certificates.
    entry: &'static str,
    /// The fields that are read together, each with the field that names a file instead, on the machine that uses the kubeconfig.
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

/// The locations in a Secret; `None` if it has no kubeconfig.
pub(super) fn locations(secret: &Secret) -> Option<BundleLocations> {
    let (mut locations, mut keys) = (None, KEYS_READ);
    for key in KEYS {
        let config = match secret.data.get(key).map(|text| read(text)) {
            None | Some(Ok(None)) => continue,
            Some(Ok(Some(config))) => config,
            Some(Err(TooLarge)) => {
                let locations = locations.get_or_insert_with(BundleLocations::default);
                locations.unreadable.push(Unreadable::TooLarge(format!("data[{key}]")));
                continue;
            }
        };
        let locations = locations.get_or_insert_with(BundleLocations::default);
        for List { name: list, entry, fields } in LISTS {
            for item in config[list].as_array().into_iter().flatten() {
                let Some(left) = keys.checked_sub(keys_cost(&item[entry])) else {
                    locations.unreadable.push(Unreadable::TooManyKeys(format!("data[{key}].{list}")));
                    break;
                };
                keys = left;
                let name = item["name"].as_str().unwrap_or_default();
                let prefix = format!("data[{key}].{list}[{name}].");
                add(locations, prefix, &item[entry], fields);
            }
        }
    }
    locations
}

/// The kubeconfig has more nodes or text than is read.
struct TooLarge;

/// A kubeconfig; `None` for a text without one of its lists: other programs store other data under these keys.
fn read(text: &[u8]) -> Result<Option<Value>, TooLarge> {
    let budget = serde_saphyr::budget! { max_nodes: NODES, max_total_scalar_bytes: TEXT };
    // The text may contain private keys, so an error must not quote it.
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    let Ok(text) = std::str::from_utf8(text) else { return Ok(None) };
    match serde_saphyr::from_str_with_options::<Value>(text, options) {
        Ok(config) => Ok(Some(config).filter(|config| LISTS.iter().any(|list| config[list.name].is_array()))),
        Err(serde_saphyr::Error::Budget { .. }) if mentions_content(text) => Err(TooLarge),
        Err(_) => Ok(None),
    }
}

/// Whether a text that was not read to its end may have certificates of a kubeconfig.
fn mentions_content(text: &str) -> bool {
    LISTS.iter().any(|list| text.contains(list.name) && list.fields.iter().any(|(data, _)| text.contains(data)))
}

/// How much of [`KEYS_READ`] the private key of an entry uses: a long one uses more.
fn keys_cost(entry: &Value) -> usize {
    entry["client-key-data"].as_str().map_or(0, |text| 1 + (text.len() / 4_000).pow(2))
}

fn add(locations: &mut BundleLocations, prefix: String, entry: &Value, fields: &[(&str, &str)]) {
    let content = |key: &str| entry[key].as_str().filter(|text| !text.is_empty());
    // A part is in a file, which the webhook cannot read.
    if fields.iter().any(|(data, file)| content(data).is_none() && content(file).is_some()) {
        return;
    }
    let mut location = BundleLocation::new(prefix, SecretUsage { reader: TlsConsumer::Go, ..SecretUsage::default() });
    for (key, _) in fields {
        let Some(text) = content(key) else { continue };
        match decoded(text) {
            Some(text) => drop(location.texts.data.insert((*key).to_owned(), Zeroizing::new(text))),
            None => return locations.unreadable.push(Unreadable::Kubeconfig(format!("{}{key}", location.prefix))),
        }
    }
    if !location.texts.data.is_empty() {
        locations.readable.push(location);
    }
}
