//! The content that workloads load: whether it is valid, and its hash.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::api::{ConditionStatus, KeyContent, LoadedObject, SourceKind, TrustConsumerSpec};
use crate::trust::{content_hash, fingerprint_of, loadable};

/// Valid content of all objects that a TrustConsumer names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Each key, sorted.
    pub keys: Vec<KeyContent>,
    /// When the first CA expires, of those that have not.
    pub first_expiry: Option<Timestamp>,
}

/// Why the content cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentFault {
    /// `False`, or `Unknown` if it could not be read.
    pub status: ConditionStatus,
    /// Reason of the condition.
    pub reason: &'static str,
    /// What was found, and what to do: a sentence.
    pub message: String,
}

/// Why the API server did not answer with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// Reason of the condition.
    pub reason: &'static str,
    /// What happened, and what to do: a sentence.
    pub message: String,
}

impl Content {
    /// Reads the objects of `spec.loads`, in their order.
    ///
    /// # Errors
    /// When one cannot be read, or what it holds cannot be loaded.
    pub fn read(
        spec: &TrustConsumerSpec,
        objects: &[Result<Option<Value>, ReadFailure>],
        now: Timestamp,
    ) -> Result<Self, ContentFault> {
        let mut content = Self { keys: Vec::new(), first_expiry: None };
        for (loaded, object) in spec.loads.iter().zip(objects) {
            let object = object.as_ref().map_err(|ReadFailure { reason, message }| ContentFault {
                status: ConditionStatus::Unknown,
                reason,
                message: message.clone(),
            })?;
            content.take(loaded, object.as_ref(), now)?;
        }
        content.keys.sort_unstable();
        Ok(content)
    }

    /// SHA-256 over all keys, lower-case hex.
    pub fn hash(&self) -> String {
        let mut text = String::new();
        for KeyContent { kind, name, key, sha256 } in &self.keys {
            // Names and keys contain no `/`, and hashes have one length. Writing to a String does not fail.
            let _ = write!(text, "{}/{name}/{key}/{sha256}", kind.name());
        }
        fingerprint_of(text.as_bytes())
    }

    /// Whether a TrustConsumer names other keys than it did before, while the content of those that it still names is the same.
    pub(super) fn extends(&self, before: &[KeyContent]) -> bool {
        let id = |one: &KeyContent| (one.kind, one.name.clone(), one.key.clone());
        let is_unchanged = |one: &KeyContent| before.iter().all(|other| id(other) != id(one) || other == one);
        !before.iter().map(id).eq(self.keys.iter().map(id)) && self.keys.iter().all(is_unchanged)
    }

    fn take(&mut self, loaded: &LoadedObject, object: Option<&Value>, now: Timestamp) -> Result<(), ContentFault> {
        let label = format!("{} {}", loaded.kind.name(), loaded.name);
        let fault = |reason, message| ContentFault { status: ConditionStatus::False, reason, message };
        let object = object.filter(|object| object["metadata"]["deletionTimestamp"].is_null()).ok_or_else(|| {
            fault("Missing", format!("{label} does not exist. Create it, or correct spec.loads of the TrustConsumer."))
        })?;
        for (key, is_ca) in loaded.all_keys() {
            let bytes = value(loaded.kind, object, key).ok_or_else(|| {
                fault(
                    "Missing",
                    format!("{label} has no key {key}. Add it, or correct spec.loads of the TrustConsumer."),
                )
            })?;
            let sha256 = if is_ca {
                let certificates = loadable::bundle_in_use(&bytes, now)
                    .map_err(|why| fault("Invalid", format!("{label}, key {key}: {why}. No workload is restarted.")))?;
                let end = loadable::first_expiry(&certificates, now);
                self.first_expiry = self.first_expiry.into_iter().chain(end).min();
                content_hash(&certificates)
            } else {
                fingerprint_of(&bytes)
            };
            let (kind, name) = (loaded.kind, loaded.name.clone());
            self.keys.push(KeyContent { kind, name, key: key.to_owned(), sha256 });
        }
        Ok(())
    }
}

/// The bytes under a key of a stored object.
pub fn value(kind: SourceKind, object: &Value, key: &str) -> Option<Zeroizing<Vec<u8>>> {
    let decoded = |field: &str| crate::trust::decoded(object[field][key].as_str()?).map(Zeroizing::new);
    match kind {
        SourceKind::Secret => decoded("data"),
        SourceKind::ConfigMap => {
            let text = object["data"][key].as_str().map(|text| Zeroizing::new(text.as_bytes().to_vec()));
            text.or_else(|| decoded("binaryData"))
        }
    }
}
