//! The pending Secret: what the later stages of a run write, and which stages are complete.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::{Change, ObjectKind, ObjectRef, Objects, Profile};
use crate::api::names::PREFIX;
use crate::trust::{Certificate, Secret, bundle, certificates_under};

/// The keys of a Secret of type `kubernetes.io/tls`, and the key of the bundle.
pub(super) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
pub(super) const BUNDLE: &str = "ca.crt";

/// Annotation of the pending Secret: whether it is for an installation or a rotation.
const KIND: &str = "certgen";
/// Annotations of the pending Secret: when a stage was completed.
pub(super) const TRUST_WRITTEN_AT: &str = "certgen-trust-written-at";
pub(super) const CERTIFICATES_WRITTEN_AT: &str = "certgen-certificates-written-at";

/// The purpose of a pending Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingKind {
    /// The first installation: no process uses the Secrets yet.
    Install,
    /// A rotation.
    Rotation,
}

impl PendingKind {
    fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Rotation => "rotation",
        }
    }
}

/// A leaf and its key. Has no `Debug`; the key is wiped when dropped.
pub struct KeyPairPem {
    /// The leaf.
    pub certificate: String,
    /// Its private key.
    pub key: Zeroizing<String>,
}

/// The certificates that were generated for a run: a CA, whose key is not stored, and its leaves, by the name of their
/// Secret.
pub struct GeneratedCertificates {
    /// The CA.
    pub ca: String,
    /// The leaves.
    pub leaves: BTreeMap<String, KeyPairPem>,
}

/// The change that creates the pending Secret.
///
/// `previous` are the old CAs that stay trusted.
pub fn pending_secret(
    profile: &Profile,
    kind: PendingKind,
    previous: &[Certificate],
    generated: &GeneratedCertificates,
) -> Change {
    let new = bundle::read(generated.ca.as_bytes()).into_certificates();
    let bundle: String = new.iter().chain(previous).map(Certificate::pem).collect();
    let mut data = Map::from_iter([(BUNDLE.to_owned(), json!(STANDARD.encode(bundle)))]);
    for (secret, pair) in &generated.leaves {
        data.insert(format!("{secret}.{CERTIFICATE}"), json!(STANDARD.encode(&pair.certificate)));
        data.insert(format!("{secret}.{KEY}"), json!(STANDARD.encode(&*pair.key)));
    }
    let mut labels = json!(profile.labels);
    labels["app.kubernetes.io/managed-by"] = json!("trustspan-certgen");
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": profile.pending_secret_name, "namespace": profile.namespace, "labels": labels,
            "annotations": { annotation(KIND): kind.name() },
        },
        "data": data,
    });
    Change::create(ObjectRef::secret(&profile.pending_secret_name), object)
}

fn annotation(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The parsed pending Secret.
pub(super) struct Pending<'a> {
    object: &'a Value,
    secret: Secret,
    pub(super) kind: PendingKind,
    /// The new CA, and the old ones that stay trusted.
    pub(super) bundle: Vec<Certificate>,
}

impl<'a> Pending<'a> {
    /// Reads the pending Secret, if it exists.
    pub(super) fn read(profile: &Profile, objects: &'a Objects) -> Result<Option<Self>, String> {
        let name = &profile.pending_secret_name;
        let Some(object) = objects.get(ObjectKind::Secret, name) else { return Ok(None) };
        let kind = match object["metadata"]["annotations"][annotation(KIND)].as_str() {
            Some("install") => PendingKind::Install,
            Some("rotation") => PendingKind::Rotation,
            _ => {
                return Err(format!(
                    "Secret {name} was not written by certgen: set pendingSecretName in the profile to another name"
                ));
            }
        };
        let damaged =
            || format!("Secret {name} has been changed by somebody else: delete it to give up what it was for");
        let secret = Secret::from_value(object).map_err(|_| damaged())?;
        let bundle = certificates_under(&secret, BUNDLE);
        let whole = Self { object, secret, kind, bundle };
        let is_whole = |key: &String| {
            key.strip_suffix(CERTIFICATE).is_none_or(|secret| whole.secret.data.contains_key(&format!("{secret}{KEY}")))
        };
        if whole.bundle.is_empty() || !whole.secret.data.keys().all(is_whole) {
            Err(damaged())
        } else {
            Ok(Some(whole))
        }
    }

    /// The new certificate and key for a Secret. `None` if the profile did not have the Secret when the run began.
    pub(super) fn leaf(&self, secret: &str) -> Option<(&[u8], &[u8])> {
        let data = |key: &str| self.secret.data.get(&format!("{secret}.{key}")).map(|bytes| bytes.as_slice());
        Some((data(CERTIFICATE)?, data(KEY)?))
    }

    /// The new leaf certificates.
    pub(super) fn leaves(&self) -> impl Iterator<Item = Certificate> {
        let texts = self.secret.data.iter().filter(|(key, _)| key.ends_with(CERTIFICATE));
        texts.flat_map(|(_, text)| bundle::read_chain(text).into_certificates())
    }

    /// The bundle in PEM.
    pub(super) fn bundle_pem(&self) -> &[u8] {
        self.secret.data.get(BUNDLE).map(|bytes| bytes.as_slice()).unwrap_or_default()
    }

    /// When a stage was completed. A time in the future is due to a wrong clock, and is ignored.
    pub(super) fn time(&self, name: &str, now: Timestamp) -> Option<Timestamp> {
        let time: Timestamp = self.object["metadata"]["annotations"][annotation(name)].as_str()?.parse().ok()?;
        (time <= now).then_some(time)
    }

    /// A change that records when a stage was completed, or that it no longer is.
    pub(super) fn record(&self, name: &str, time: Option<Timestamp>) -> Change {
        let time = time.map(|time| time.to_string());
        let patch = json!({ "metadata": { "annotations": { annotation(name): time } } });
        Change::patch(ObjectRef::secret(&self.secret.name), self.object, patch)
    }

    /// A change that deletes the pending Secret.
    pub(super) fn delete(&self) -> Change {
        Change::delete(ObjectRef::secret(&self.secret.name), self.object)
    }
}
