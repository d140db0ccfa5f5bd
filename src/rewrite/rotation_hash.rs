//! The rotation hash of a pod template, which changes if and only if the certificates change that the pod loads.

use std::fmt;

use crate::json::Json;
use sha2::{Digest, Sha256};

use super::mounted_keys;
use crate::registry::{Entry, Registry};
use crate::trust::certificate::hex;

/// The annotation's value: `<revision>-<scope>-<SHA-256>`, the last two in hex.
///
/// The revision is the sum of the revisions of the keys that the pod loads, and the scope identifies these keys.
/// Within a scope the revision only grows, so a stale webhook replica recognizes that another value is newer than
/// its own. Revisions of different scopes cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RotationHash {
    pub(super) revision: u64,
    scope: String,
    sha256: String,
}

/// The largest difference to a newer value: revisions are Unix times in seconds, and no replica is outdated by a year.
/// A greater value was not written by trustspan, and would prevent all further restarts.
const FARTHEST: u64 = 366 * 24 * 60 * 60;

impl RotationHash {
    /// Reads an annotation; `None` if it is not a rotation hash.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (revision, scope, sha256) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
        (parts.next().is_none() && is_hex(scope, 8) && is_hex(sha256, 64)).then_some(())?;
        Some(Self { revision: revision.parse().ok()?, scope: scope.to_owned(), sha256: sha256.to_owned() })
    }

    /// Whether this hash is of the same keys as `other`, and of a later and plausible revision.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        let ahead = self.revision.saturating_sub(other.revision);
        self.scope == other.scope && ahead > 0 && ahead <= FARTHEST
    }

    /// The hash of the certificates that a pod template loads from Ready managed Secrets; `None` if it loads none.
    ///
    /// Gateway proxies get no hash for the GatewaySecret that serves them: they reload credentials over SDS.
    pub(super) fn of(template: &Json<'_>, namespace: &str, registry: &Registry) -> Option<Self> {
        let (mut revision, mut scope, mut content) = (0_u64, Sha256::new(), Sha256::new());
        let mut any = false;
        for (name, keys) in mounted_keys::of(&template["spec"]) {
            let Some(entry) = registry.managed(namespace, name) else { continue };
            if !entry.is_ready() || is_gateway_proxy(template, entry) {
                continue;
            }
            for (key, hash) in entry.status.hashes.iter().filter(|(key, _)| keys.contains(key)) {
                any = true;
                revision = revision.saturating_add(hash.revision);
                scope.update(format!("{name}\0{key}\n"));
                content.update(format!("{name}\0{key}\0{}\n", hash.sha256));
            }
        }
        any.then(|| Self { revision, scope: hex(&scope.finalize()[..4]), sha256: hex(&content.finalize()) })
    }
}

impl fmt::Display for RotationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.revision, self.scope, self.sha256)
    }
}

fn is_gateway_proxy(template: &Json<'_>, entry: &Entry) -> bool {
    !entry.spec.workload_labels.is_empty() && entry.serves(|label| template["metadata"]["labels"][label].as_str())
}
