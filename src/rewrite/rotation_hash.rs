//! The rotation hash: one value per pod template that changes when, and only when, what the pod loads has changed.

use std::fmt;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::loads;
use crate::registry::{Entry, Registry};

/// The annotation's value: `<revision>-<SHA-256, hex>`.
///
/// The revision is the sum of the revisions of the keys that the pod loads. For a pod that loads the same keys it only
/// grows, so a webhook replica that is behind can tell that the stored value is newer than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RotationHash {
    pub(super) revision: u64,
    sha256: String,
}

impl RotationHash {
    /// Reads an annotation; `None` when it is none of ours.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (revision, sha256) = text.split_once('-')?;
        let hex = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
        hex.then_some(())?;
        Some(Self { revision: revision.parse().ok()?, sha256: sha256.to_owned() })
    }

    /// The hash of what a pod template loads from Ready managed Secrets; `None` when it loads no certificate from them.
    ///
    /// Gateway proxies take their credentials over SDS, live: for the GatewaySecret that serves them they get no hash.
    pub(super) fn of(template: &Value, namespace: &str, registry: &Registry) -> Option<Self> {
        let (mut revision, mut digest, mut any) = (0_u64, Sha256::new(), false);
        for (name, keys) in loads::of(&template["spec"]) {
            let Some(entry) = registry.managed(namespace, name) else { continue };
            if !entry.status.is_ready() || is_gateway_proxy(template, entry) {
                continue;
            }
            for (key, hash) in entry.status.hashes.iter().filter(|(key, _)| keys.contains(key)) {
                any = true;
                revision = revision.saturating_add(hash.revision);
                digest.update(format!("{name}\0{key}\0{}\n", hash.sha256));
            }
        }
        any.then(|| Self { revision, sha256: digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect() })
    }
}

impl fmt::Display for RotationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.revision, self.sha256)
    }
}

fn is_gateway_proxy(template: &Value, entry: &Entry) -> bool {
    let labels = &template["metadata"]["labels"];
    let carries = |(key, value): (&String, &String)| labels[key].as_str() == Some(value);
    !entry.spec.workload_labels.is_empty() && entry.spec.workload_labels.iter().all(carries)
}
