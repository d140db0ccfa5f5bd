//! A GatewaySecret in the registry.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::names::CACERT_SUFFIX;
use crate::api::{GatewaySecretSpec, GatewaySecretStatus, READY, Resolved, RotationPolicySpec, SecretRef, SourceKind};
use crate::trust::{Proxy, SecretUsage, UsageKind};

/// Identity, spec, policy and status of a GatewaySecret, without the rest of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.uid`, which Events refer to. `None` in a manifest.
    pub uid: Option<String>,
    /// `metadata.creationTimestamp`: of two GatewaySecrets that claim the same name, the older one has effect. `None`
    /// (a manifest) counts as newest.
    pub created: Option<Timestamp>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// It has a `metadata.deletionTimestamp`.
    pub being_deleted: bool,
    /// Why the stored object cannot be parsed: `spec` is then the last valid one.
    pub unread: Option<String>,
    /// Spec.
    pub spec: GatewaySecretSpec,
    /// The source Secret and the CA's Secret, explicit or derived from `certificateRef`.
    pub resolved: Resolved,
    /// Its policy: RotationPolicy, ClusterRotationPolicy and defaults, merged.
    pub policy: RotationPolicySpec,
    /// Status.
    pub status: GatewaySecretStatus,
}

impl Entry {
    /// A GatewaySecret that is not stored, with the default policy and an empty status.
    pub fn unstored(namespace: String, name: String, spec: GatewaySecretSpec) -> Self {
        let status = GatewaySecretStatus::default();
        Self {
            resolved: spec.resolved(None),
            policy: RotationPolicySpec::default(),
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

    /// The source Secret's name. Empty until it is derived from the Certificate.
    pub fn source_name(&self) -> &str {
        &self.resolved.source_secret_name
    }

    /// The Secret of the canary, the client certificate that the agent presents to gateways.
    pub fn canary_name(&self) -> Option<&str> {
        self.policy.probe.target.as_ref()?.client_secret_name.as_deref()
    }

    /// The managed Secret's name.
    pub fn managed_name(&self) -> &str {
        self.spec.managed_name(&self.name)
    }

    /// A name that two of its Secrets share although they must differ: the managed Secret or the Issuer's Secret would
    /// overwrite another one.
    pub fn doubled_name(&self) -> Option<&str> {
        let sources = [Some(self.source_name().to_owned()), self.ca_name(), self.own_client_ca_name()];
        let is_source = |name: &str| sources.iter().flatten().any(|source| source == name);
        let issuer = self.issuer_name();
        let issuer = issuer.filter(|issuer| issuer == self.managed_name() || is_source(issuer));
        match is_source(self.managed_name()) {
            true => Some(self.managed_name()),
            false => issuer.and(self.spec.issuer_secret_name.as_deref()),
        }
    }

    /// The Secret of the serving certificate's CA, where that is not the source Secret: see [`Self::qualified`].
    pub fn ca_name(&self) -> Option<String> {
        self.named(self.resolved.ca_secret_ref.as_ref())
    }

    /// The Secret of `spec.issuerSecretName`. It is in the namespace of its CA: a GatewaySecret must not copy that CA's key to another
    /// namespace.
    pub fn issuer_name(&self) -> Option<String> {
        let ca = self.spec.clients.ca_secret_ref.as_ref().or(self.resolved.ca_secret_ref.as_ref());
        let namespace = ca.and_then(|ca| ca.namespace.as_deref()).unwrap_or(&self.namespace);
        self.spec.issuer_secret_name.as_deref().map(|name| self.qualified(namespace, name))
    }

    /// The Secret of `spec.clients.caSecretRef`.
    pub fn own_client_ca_name(&self) -> Option<String> {
        self.named(self.spec.clients.ca_secret_ref.as_ref())
    }

    /// The Secret of the CA that signs the serving certificate.
    pub fn server_ca_name(&self) -> String {
        self.ca_name().unwrap_or_else(|| self.source_name().to_owned())
    }

    /// The Secret of the CA that signs the clients' certificates.
    pub fn client_ca_name(&self) -> String {
        self.own_client_ca_name().unwrap_or_else(|| self.server_ca_name())
    }

    fn named(&self, secret: Option<&SecretRef>) -> Option<String> {
        secret.map(|secret| self.qualified(secret.namespace.as_deref().unwrap_or(&self.namespace), &secret.name))
    }

    /// The other namespaces of the CAs' Secrets.
    pub fn ca_namespaces(&self) -> BTreeSet<&str> {
        let secrets = [&self.resolved.ca_secret_ref, &self.spec.clients.ca_secret_ref];
        let namespaces = secrets.into_iter().flatten().filter_map(|secret| secret.namespace.as_deref());
        namespaces.filter(|namespace| *namespace != self.namespace).collect()
    }

    /// The namespaces of cert-manager's objects that are read: those of clients and CAs.
    pub fn issuing_namespaces(&self) -> impl Iterator<Item = &str> {
        let of_cas = self.ca_namespaces().into_iter();
        self.client_namespaces()
            .chain(of_cas.filter(|namespace| !self.client_namespaces().any(|known| known == *namespace)))
    }

    /// Whether a Secret in `namespace` with this value of label `trustspan.dev/client` is a client. In another namespace, that namespace
    /// must also be in `spec.clients.namespaces`. Names cannot contain the separator `_`.
    pub fn has_client(&self, namespace: &str, label: &str) -> bool {
        let is_qualified = label.split_once('_') == Some((self.namespace.as_str(), self.name.as_str()));
        match namespace == self.namespace {
            true => is_qualified || label == self.name,
            false => is_qualified && self.spec.clients.namespaces.iter().any(|granted| granted == namespace),
        }
    }

    /// The namespaces of its clients: its own first.
    pub fn client_namespaces(&self) -> impl Iterator<Item = &str> {
        let granted = self.spec.clients.namespaces.iter().map(String::as_str);
        std::iter::once(self.namespace.as_str()).chain(granted.filter(|granted| *granted != self.namespace))
    }

    /// The qualified name of an object: `namespace/name`, or `name` in the GatewaySecret's own namespace.
    pub fn qualified(&self, namespace: &str, name: &str) -> String {
        if namespace == self.namespace { name.to_owned() } else { format!("{namespace}/{name}") }
    }

    /// The name of the GatewaySecret as written in a namespace: `namespace/name`, or `name` in its own.
    pub fn name_in(&self, namespace: &str) -> String {
        if namespace == self.namespace { self.name.clone() } else { format!("{}/{}", self.namespace, self.name) }
    }

    /// The namespace and name of an object with this qualified name: see [`Self::qualified`].
    pub fn place_of<'n>(&'n self, qualified: &'n str) -> (&'n str, &'n str) {
        qualified.split_once('/').unwrap_or((&self.namespace, qualified))
    }

    /// The oldest proxy among its gateways.
    pub fn oldest_proxy(&self) -> Proxy {
        let declared = self.policy.oldest_envoy.as_deref().and_then(|version| version.split_once('.'));
        let version = declared.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        version.map_or_else(Proxy::default, |(major, minor)| Proxy::envoy(major, minor))
    }

    /// How a Secret is used, by its qualified name.
    pub fn usage(&self, name: &str) -> SecretUsage<'static> {
        let signing = [self.ca_name(), self.own_client_ca_name()];
        let is_source_of_cas = name == self.source_name() || signing.iter().flatten().any(|ca| ca == name);
        let (kind, oldest_proxy) = (self.usage_kind(name), self.oldest_proxy());
        SecretUsage { kind, oldest_proxy, is_source_of_cas, ..SecretUsage::default() }
    }

    /// The kind of use of a Secret, by its name. A Secret that gateways serve counts as that, even if it is also a CA's.
    pub fn usage_kind(&self, name: &str) -> UsageKind {
        let signing = [self.ca_name(), self.issuer_name(), self.own_client_ca_name()];
        let mut further = self.spec.additional_trust.iter().filter(|named| named.kind == SourceKind::Secret);
        let bundled = name.strip_suffix(CACERT_SUFFIX);
        let serves = |name| [self.source_name(), self.managed_name()].contains(&name);
        match name {
            name if serves(name) => UsageKind::Serving,
            name if signing.iter().flatten().any(|ca| ca == name) => UsageKind::SigningCa,
            _ if bundled.is_some_and(serves) => UsageKind::TrustBundle,
            name if further.any(|named| named.name == name) => UsageKind::SigningCa,
            _ => UsageKind::Serving,
        }
    }

    /// The managed Secret's earlier name, if the spec now has another one. Objects that still name the earlier one are
    /// not rewritten.
    pub fn left_behind(&self) -> Option<&str> {
        let stored = self.status.secret_name.as_deref()?;
        (stored != self.managed_name() && !self.status.bundle.is_empty()).then_some(stored)
    }

    /// Whether a pod or pod template with these labels has all workload labels, and so belongs to the gateways.
    pub fn serves<'v>(&self, label: impl Fn(&str) -> Option<&'v str>) -> bool {
        self.spec.workload_labels.iter().all(|(key, value)| label(key) == Some(value))
    }

    /// Whether a selector contains all workload labels, so that it selects no other pods.
    pub fn is_asked_for(&self, selector: &BTreeMap<&str, &str>) -> bool {
        self.spec.workload_labels.iter().all(|(key, value)| selector.get(key.as_str()) == Some(&value.as_str()))
    }

    /// Whether the managed Secret is Ready. A status of an earlier generation or for another name does not count.
    pub fn is_ready(&self) -> bool {
        self.unready().is_none()
    }

    /// Why the managed Secret is not Ready: a reason for messages.
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

    /// Sort key, oldest first. Name and namespace break ties, so that every replica has the same order.
    pub(super) fn seniority(&self) -> (bool, Option<Timestamp>, &str, &str) {
        (self.created.is_none(), self.created, &self.name, &self.namespace)
    }
}
