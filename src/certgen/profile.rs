//! The profile: which Secrets are generated. It is built in, or read from a file.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{ObjectKind, ObjectRef};
use crate::api::Period;
use crate::api::names::{NAME_LENGTH, check_object_name};

/// The names of the built-in profiles.
pub const BUILT_IN: [&str; 2] = ["envoy-gateway", "trustspan-webhook"];

/// The profile of the serving certificate of trustspan's own webhook, which the agent keeps.
pub const TRUSTSPAN_WEBHOOK: &str = include_str!("trustspan-webhook.yaml");

/// The text of a built-in profile.
pub fn built_in(name: &str) -> Option<&'static str> {
    match name {
        "envoy-gateway" => Some(include_str!("envoy-gateway.yaml")),
        "trustspan-webhook" => Some(TRUSTSPAN_WEBHOOK),
        _ => None,
    }
}

/// The keys and certificates of a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Profile {
    /// Its name. The pending Secret is called after it.
    pub name: String,
    /// How long the CA and the leaves are valid.
    pub duration: Period,
    /// The CA.
    pub ca: CaProfile,
    /// The leaves, each with the Secret that holds it.
    pub certificates: Vec<CertificateProfile>,
    /// HMAC keys, which are never changed.
    #[serde(default)]
    pub hmacs: Vec<HmacProfile>,
    /// Labels of the Secrets that are created.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How many old CAs a bundle keeps.
    #[serde(default = "one", rename = "maxPreviousCAs")]
    pub max_previous_cas: usize,
    /// The longest time that a write of a Secret takes to be in use by all its readers that reload it. Default: 3m. The kubelet syncs its pods each
    /// minute (`syncFrequency`), possibly from a cache that is a minute old (the time to live of its Secret cache, or a watch that was interrupted),
    /// and the program reads the file after that.
    #[serde(default = "propagation_delay")]
    pub propagation_delay: Period,
    /// The Secret that holds what is written in later stages.
    #[serde(default)]
    pub pending_secret_name: String,
    /// The Deployments that do not reload.
    #[serde(default)]
    pub restart: RestartProfile,
    /// MutatingWebhookConfigurations whose `caBundle` is the bundle.
    #[serde(default)]
    pub mutating_webhook_configurations: Vec<String>,
    /// ValidatingWebhookConfigurations whose `caBundle` is the bundle.
    #[serde(default)]
    pub validating_webhook_configurations: Vec<String>,
    /// The namespace of the Secrets; not a field of the file.
    #[serde(skip)]
    pub namespace: String,
}

/// The CA.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaProfile {
    /// Common name of its subject. A serial number that differs with each CA is added.
    pub common_name: String,
}

/// A leaf.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CertificateProfile {
    /// The Secret that holds it: `tls.crt`, `tls.key` and `ca.crt`.
    pub secret_name: String,
    /// Common name of its subject.
    pub common_name: String,
    /// DNS names.
    #[serde(default)]
    pub dns_names: Vec<String>,
    /// What it is used for.
    #[serde(default = "both_usages")]
    pub usages: BTreeSet<Usage>,
}

/// An extended key usage, with its name in cert-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[non_exhaustive]
pub enum Usage {
    /// `serverAuth`.
    #[serde(rename = "server auth")]
    ServerAuth,
    /// `clientAuth`.
    #[serde(rename = "client auth")]
    ClientAuth,
}

/// An HMAC key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HmacProfile {
    /// The Secret that holds it.
    pub secret_name: String,
    /// Its key in the Secret.
    pub key: String,
    /// Its length.
    #[serde(default = "hmac_bytes")]
    pub bytes: usize,
}

/// Deployments that have to be restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartProfile {
    /// Those that read `ca.crt` only at start.
    #[serde(default)]
    pub loads_trust_once: Vec<String>,
    /// Those that read `tls.crt` and `tls.key` only at start.
    #[serde(default)]
    pub loads_certificate_once: Vec<String>,
}

fn one() -> usize {
    1
}

fn propagation_delay() -> Period {
    Period::from_secs(180)
}

fn both_usages() -> BTreeSet<Usage> {
    [Usage::ServerAuth, Usage::ClientAuth].into()
}

fn hmac_bytes() -> usize {
    32
}

/// A hundred years. A longer validity could exceed the year 9999, the last that a certificate can express.
const LONGEST: Period = Period::from_secs(100 * 365 * 24 * 60 * 60);
/// Bytes of a common name (RFC 5280 appendix A.1, `ub-common-name`).
const COMMON_NAME_LENGTH: usize = 64;
/// The longest suffix after a Secret's name in a key of the pending Secret. Keys may be no longer than names of
/// objects.
const KEY_SUFFIX_LENGTH: usize = ".tls.crt".len();
/// The shortest HMAC key that is accepted, and the longest.
const HMAC_BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

impl Profile {
    /// Reads a profile, for a namespace.
    ///
    /// # Errors
    /// When the text is not YAML, has an unknown field, or a value that cannot be used.
    pub fn read(text: &str, namespace: &str, cluster_domain: &str) -> Result<Self, String> {
        let mut profile: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        profile.namespace = namespace.to_owned();
        if profile.pending_secret_name.is_empty() {
            profile.pending_secret_name = format!("{}-certgen-pending", profile.name);
        }
        let resolve = |text: &mut String, field: &str| {
            *text = text.replace("{namespace}", namespace).replace("{clusterDomain}", cluster_domain);
            let is_resolved = !text.contains(['{', '}']);
            is_resolved.then_some(()).ok_or_else(|| {
                format!("{field}: {text:?}: expected no placeholders other than {{namespace}} and {{clusterDomain}}")
            })
        };
        for certificate in &mut profile.certificates {
            certificate.dns_names.iter_mut().try_for_each(|name| resolve(name, "certificates[].dnsNames"))?;
        }
        for name in &mut profile.mutating_webhook_configurations {
            resolve(name, "mutatingWebhookConfigurations")?;
        }
        for name in &mut profile.validating_webhook_configurations {
            resolve(name, "validatingWebhookConfigurations")?;
        }
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        if self.certificates.is_empty() {
            return Err("certificates: expected at least one".to_owned());
        }
        if self.max_previous_cas == 0 {
            return Err("maxPreviousCAs: expected 1 or more: the certificates in use are of an old CA".to_owned());
        }
        if self.duration == Period::default() || self.duration > LONGEST {
            return Err(format!("duration: {}: expected more than 0s, and at most {LONGEST}", self.duration));
        }
        let names = self.certificates.iter().map(|certificate| &certificate.common_name);
        for name in names.chain([&self.ca.common_name]) {
            if name.is_empty() || name.len() > COMMON_NAME_LENGTH {
                return Err(format!("commonName: {name:?}: expected 1 to {COMMON_NAME_LENGTH} bytes"));
            }
        }
        for hmac in &self.hmacs {
            if !HMAC_BYTES.contains(&hmac.bytes) {
                let (least, most) = (HMAC_BYTES.start(), HMAC_BYTES.end());
                return Err(format!("hmacs[].bytes: {}: expected {least} to {most}", hmac.bytes));
            }
            let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if hmac.key.is_empty() || hmac.key.len() > NAME_LENGTH || !hmac.key.bytes().all(is_key) {
                return Err(format!("hmacs[].key: {:?}: expected letters, digits, -, _ and .", hmac.key));
            }
        }
        for reference in self.objects() {
            check_object_name(&reference.name)?;
        }
        if let Some(long) = self.certificates.iter().find(|one| one.secret_name.len() > NAME_LENGTH - KEY_SUFFIX_LENGTH)
        {
            let most = NAME_LENGTH - KEY_SUFFIX_LENGTH;
            return Err(format!("certificates[].secretName: {}: expected at most {most} bytes", long.secret_name));
        }
        let mut distinct = BTreeSet::new();
        match self.objects().into_iter().find(|reference| !distinct.insert(reference.clone())) {
            Some(repeated) => Err(format!("{repeated} is named more than once: expected one entry for each")),
            None => Ok(()),
        }
    }

    /// The objects that a run reads, in this order. The pending Secret is read first: if it is absent, the other
    /// Secrets are read after that.
    pub fn objects(&self) -> Vec<ObjectRef> {
        use ObjectKind::{Deployment, MutatingWebhookConfiguration, Secret, ValidatingWebhookConfiguration};
        let secrets = self.certificates.iter().map(|one| &one.secret_name);
        let secrets = [&self.pending_secret_name].into_iter().chain(secrets);
        let secrets = secrets.chain(self.hmacs.iter().map(|one| &one.secret_name));
        let deployments = self.restart.loads_trust_once.iter().chain(&self.restart.loads_certificate_once);
        let deployments: BTreeSet<_> = deployments.collect();
        let all = secrets.map(|name| (Secret, name));
        all.chain(deployments.into_iter().map(|name| (Deployment, name)))
            .chain(self.mutating_webhook_configurations.iter().map(|name| (MutatingWebhookConfiguration, name)))
            .chain(self.validating_webhook_configurations.iter().map(|name| (ValidatingWebhookConfiguration, name)))
            .map(|(kind, name)| ObjectRef::new(kind, name))
            .collect()
    }
}
