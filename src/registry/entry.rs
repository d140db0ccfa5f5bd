//! A GatewaySecret as the registry takes it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::api::names::CACERT_SUFFIX;
use crate::api::{GatewaySecretSpec, GatewaySecretStatus, READY};
use crate::trust::{Duty, Proxy, SecretUsage};

/// Identity, spec and status of a GatewaySecret, without the rest of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.uid`, by which Events name it. `None` in a manifest.
    pub uid: Option<String>,
    /// `metadata.creationTimestamp`: of two that claim the same name, the older wins. `None` (a manifest) counts as newest.
    pub created: Option<Timestamp>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// It has a `metadata.deletionTimestamp`.
    pub being_deleted: bool,
    /// Why the object cannot be read as it stands now: `spec` is the last that could be.
    pub unread: Option<String>,
    /// Spec.
    pub spec: GatewaySecretSpec,
    /// Status.
    pub status: GatewaySecretStatus,
}

impl Entry {
    /// One that no API server has seen, and of which nothing is observed.
    pub fn unstored(namespace: String, name: String, spec: GatewaySecretSpec) -> Self {
        let status = GatewaySecretStatus::default();
        Self {
            namespace,
            name,
            uid: None,
            created: None,
            generation: None,
            being_deleted: false,
            unread: None,
            spec,
            status,
        }
    }

    /// The root Secret's name.
    pub fn root_name(&self) -> &str {
        &self.spec.root_secret_name
    }

    /// The managed Secret's name.
    pub fn managed_name(&self) -> &str {
        self.spec.managed_name(&self.name)
    }

    /// A name that stands for two Secrets which have to be apart: the managed Secret's is also the root's, or the Secret that
    /// the agent keeps for the Issuer is one of the others. One would be written over the other.
    pub fn doubled_name(&self) -> Option<&str> {
        let spec = &self.spec;
        let sources = [
            Some(self.root_name()),
            spec.ca_secret_name.as_deref(),
            spec.client_ca.as_ref().map(|ca| ca.secret_name.as_str()),
        ];
        let kept = [Some(self.managed_name()), spec.issuer_secret_name.as_deref()];
        let twice = kept[1].filter(|issuer| Some(*issuer) == kept[0]);
        kept.into_iter().flatten().find(|name| sources.contains(&Some(name))).or(twice)
    }

    /// The oldest proxy among its gateways.
    pub fn oldest_proxy(&self) -> Proxy {
        let declared = self.spec.oldest_envoy.as_deref().and_then(|version| version.split_once('.'));
        let version = declared.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        version.map_or_else(Proxy::default, |(major, minor)| Proxy::envoy(major, minor))
    }

    /// What a Secret of its namespace, by name, is relied on for.
    pub fn duty(&self, name: &str) -> Duty<'static> {
        Duty { usage: self.usage(name), oldest_proxy: self.oldest_proxy(), ..Duty::default() }
    }

    /// What a Secret of its namespace, by name, is for. What gateways serve is that first, whatever else names it.
    pub fn usage(&self, name: &str) -> SecretUsage {
        let spec = &self.spec;
        let client_ca = spec.client_ca.as_ref().map(|ca| ca.secret_name.as_str());
        let signing = [spec.ca_secret_name.as_deref(), spec.issuer_secret_name.as_deref(), client_ca];
        let bundled = name.strip_suffix(CACERT_SUFFIX);
        let serves = |name| [self.root_name(), self.managed_name()].contains(&name);
        match name {
            name if serves(name) => SecretUsage::Serving,
            name if signing.contains(&Some(name)) => SecretUsage::SigningCa,
            _ if bundled.is_some_and(serves) => SecretUsage::TrustBundle,
            _ => SecretUsage::Serving,
        }
    }

    /// The managed Secret that was seen under another name than the spec has now. Those who use it would not follow.
    pub fn left_behind(&self) -> Option<&str> {
        let former = self.status.secret_name.as_deref()?;
        (former != self.managed_name() && !self.status.bundle.is_empty()).then_some(former)
    }

    /// Whether a pod, or a pod template, carries all workload labels.
    pub fn serves(&self, pod: &Value) -> bool {
        let labels = &pod["metadata"]["labels"];
        self.spec.workload_labels.iter().all(|(key, value)| labels[key].as_str() == Some(value))
    }

    /// Whether a selector asks for all workload labels, so that it picks no other pods.
    pub fn is_asked_for(&self, selector: &BTreeMap<&str, &str>) -> bool {
        self.spec.workload_labels.iter().all(|(key, value)| selector.get(key.as_str()) == Some(&value.as_str()))
    }

    /// Whether the managed Secret, as the spec names it now, was seen and found sound. A status of another generation, or
    /// for another name, says nothing of it.
    pub fn is_ready(&self) -> bool {
        self.unready().is_none()
    }

    /// Why the managed Secret cannot be relied on: a word for people.
    pub(super) fn unready(&self) -> Option<&str> {
        let status = &self.status;
        let observed_before = status.observed_generation.zip(self.generation).is_some_and(|(seen, now)| seen < now);
        let other_name = status.secret_name.as_deref().is_some_and(|name| name != self.managed_name());
        match status.condition(READY) {
            _ if self.being_deleted => Some("BeingDeleted"),
            None => Some("no status"),
            Some(_) if observed_before || other_name => Some("status of an earlier spec"),
            Some(ready) if !status.is_ready() => Some(&ready.reason),
            Some(_) => None,
        }
    }

    /// Sorts the oldest first; name and namespace decide between equals, so that every replica comes to the same order.
    pub(super) fn seniority(&self) -> (bool, Option<Timestamp>, &str, &str) {
        (self.created.is_none(), self.created, &self.name, &self.namespace)
    }
}
