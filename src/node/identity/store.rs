//! Where the kubeconfig and the pending key are kept.

use std::path::{Path, PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rcgen::{KeyPair, PublicKeyData};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::error::{StepError, api_error, within};
use super::read_file;
use crate::identity::client::{Current, PendingKey, Target};
use crate::identity::kubeconfig::{self, ClientKubeconfig};
use crate::store::atomic_file;
use crate::trust::fingerprint_of;

/// Name of the file and of the key of a Secret with the kubeconfig.
pub(super) const KUBECONFIG: &str = "kubeconfig";

/// The same for a key without a certificate: the time at which it was made, and the key in PEM.
const PENDING_KEY: &str = "pending.key";

/// A private key that has no certificate yet.
pub(super) struct StoredKey {
    pub(super) key: KeyPair,
    pub(super) pending: PendingKey,
}

impl StoredKey {
    /// A new P-256 key.
    pub(super) fn generate(now: Timestamp) -> Result<Self, StepError> {
        let key = KeyPair::generate().map_err(|_| StepError::misconfigured("cannot make a key".to_owned()))?;
        Ok(Self::new(key, now))
    }

    fn new(key: KeyPair, created: Timestamp) -> Self {
        let key_hash = fingerprint_of(&key.subject_public_key_info());
        Self { key, pending: PendingKey { key_hash, created } }
    }

    pub(super) fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.key.serialize_pem())
    }

    fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}\n{}", self.pending.created, *self.pem()))
    }

    /// Reads what [`text`](Self::text) wrote. `None`: it is not readable, and another key is made.
    fn parse(text: &str) -> Option<Self> {
        let (created, pem) = text.split_once('\n')?;
        Some(Self::new(KeyPair::from_pem(pem).ok()?, created.parse().ok()?))
    }
}

/// What a store holds.
pub(super) struct Stored {
    pub(super) current: Option<(ClientKubeconfig, Current)>,
    pub(super) pending: Option<StoredKey>,
}

impl Stored {
    fn parse(kubeconfig: Option<&str>, pending: Option<&str>) -> Self {
        // A kubeconfig that another program wrote is replaced when a new one has worked.
        let current = kubeconfig.and_then(|text| kubeconfig::parse(text).ok()).and_then(|(kubeconfig, certificate)| {
            let current = Current { target: Target::from(&kubeconfig.server), certificate: certificate? };
            Some((kubeconfig, current))
        });
        Self { current, pending: pending.and_then(StoredKey::parse) }
    }
}

/// A directory, or a Secret.
pub(super) enum IdentityStore {
    Directory(PathBuf),
    Secret(Box<Api<Secret>>, String),
}

impl IdentityStore {
    pub(super) async fn read(&self) -> Result<Stored, StepError> {
        let (kubeconfig, pending) = match self {
            Self::Directory(directory) => {
                (read_file(&directory.join(KUBECONFIG))?, read_file(&directory.join(PENDING_KEY))?)
            }
            Self::Secret(api, name) => {
                let secret = secret(api, name).await?;
                (text(&secret, KUBECONFIG)?, text(&secret, PENDING_KEY)?)
            }
        };
        Ok(Stored::parse(kubeconfig.as_ref().map(|text| text.as_str()), pending.as_ref().map(|text| text.as_str())))
    }

    /// Stores or removes the pending key.
    pub(super) async fn set_pending(&self, key: Option<&StoredKey>) -> Result<(), StepError> {
        let text = key.map(StoredKey::text);
        match (self, &text) {
            (Self::Directory(directory), Some(text)) => write(directory.join(PENDING_KEY), text),
            (Self::Directory(directory), None) => remove(directory.join(PENDING_KEY)),
            (Self::Secret(api, name), text) => {
                let value = text.as_ref().map(|text| STANDARD.encode(text.as_str()));
                patch(api, name, json!({ PENDING_KEY: value })).await
            }
        }
    }

    /// Replaces the kubeconfig, then removes the key, which is in it.
    pub(super) async fn install(&self, new: &ClientKubeconfig) -> Result<(), StepError> {
        match self {
            Self::Directory(directory) => {
                write(directory.join(KUBECONFIG), &new.text)?;
                remove(directory.join(PENDING_KEY))
            }
            Self::Secret(api, name) => {
                let data = json!({ KUBECONFIG: STANDARD.encode(new.text.as_str()), PENDING_KEY: Value::Null });
                patch(api, name, data).await
            }
        }
    }
}

/// A killed process leaves what it was writing in hidden files, which only their owner can read.
pub(super) fn remove_temporary_files(directory: &Path) {
    for name in [KUBECONFIG, PENDING_KEY] {
        if let Err(error) = atomic_file::remove_temporary_files(&directory.join(name)) {
            tracing::warn!("temporary files of earlier runs not removed: {error}");
        }
    }
}

fn write(path: PathBuf, text: &str) -> Result<(), StepError> {
    atomic_file::replace(&path, text.as_bytes(), 0o600)
        .map_err(|error| StepError::misconfigured(format!("cannot write {}: {error}", path.display())))
}

fn remove(path: PathBuf) -> Result<(), StepError> {
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StepError::misconfigured(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

pub(super) async fn secret(api: &Api<Secret>, name: &str) -> Result<Option<Secret>, StepError> {
    within(api.get_opt(name)).await.map_err(|error| api_error(&format!("read Secret {name}"), &error))
}

/// The text under a key of a Secret.
pub(super) fn text(secret: &Option<Secret>, key: &str) -> Result<Option<Zeroizing<String>>, StepError> {
    let bytes = secret.as_ref().and_then(|secret| secret.data.as_ref()?.get(key));
    let text = bytes.map(|bytes| String::from_utf8(bytes.0.clone()).map(Zeroizing::new)).transpose();
    text.map_err(|_| StepError::misconfigured(format!("key {key} of the Secret is not UTF-8")))
}

async fn patch(api: &Api<Secret>, name: &str, data: Value) -> Result<(), StepError> {
    let failed = |error: kube::Error| api_error(&format!("write Secret {name}"), &error);
    let change = json!({ "data": data });
    match within(api.patch(name, &PatchParams::default(), &Patch::Merge(&change))).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        result => return result.map(drop).map_err(failed),
    }
    let new = json!({ "metadata": { "name": name }, "data": without_nulls(&data) });
    let new: Secret =
        serde_json::from_value(new).map_err(|_| StepError::misconfigured("cannot encode a Secret".to_owned()))?;
    within(api.create(&PostParams::default(), &new)).await.map(drop).map_err(failed)
}

fn without_nulls(data: &Value) -> Value {
    let fields = data.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    fields.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_pending_key_is_resumed_and_only_its_owner_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = IdentityStore::Directory(directory.path().join("identity"));
        let stored = store.read().await.unwrap();
        assert!(stored.current.is_none() && stored.pending.is_none());
        let key = StoredKey::generate("2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        store.set_pending(Some(&key)).await.unwrap();
        let file = directory.path().join("identity").join(PENDING_KEY);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let resumed = store.read().await.unwrap().pending.unwrap();
        assert_eq!(resumed.pending, key.pending);
        assert_eq!(resumed.pem(), key.pem());
        store.set_pending(None).await.unwrap();
        store.set_pending(None).await.unwrap();
        assert!(store.read().await.unwrap().pending.is_none());
    }
}
