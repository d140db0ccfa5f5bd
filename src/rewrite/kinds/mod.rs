//! The table of kinds that are rewritten, or whose TLS settings are read. Each kind is a file.

mod destination_rule;
mod envoy_gateway;
mod gateway_api;
mod istio_gateway;
mod workload;

use super::json_path::JsonPath;
use super::tls_settings::{TlsSettings, TrustSource};
use crate::api::names::CACERT_SUFFIX;
use crate::api::{Kind, SourceKind};
use crate::json::Json;
use crate::registry::Place;

/// The references and TLS settings of a kind.
pub(super) struct RewriteRule {
    group: &'static str,
    versions: &'static [&'static str],
    kinds: &'static [&'static str],
    /// All references to a Secret, or to a ConfigMap with CAs, in an object of the kind, in a namespace.
    pub(super) references: for<'a> fn(&'a Json<'a>, &'a str) -> Vec<Reference<'a>>,
    /// The TLS settings of each server, listener or upstream in an object of the kind, in a namespace.
    pub(super) tls_settings: for<'a> fn(&'a Json<'a>, &'a str) -> Vec<TlsSettings<'a>>,
    /// Whether an object can have TLS settings whose CAs come from another object than their certificate.
    pub(super) can_trust_another_source: for<'a> fn(&'a Json<'a>) -> bool,
    /// Whether the object has a pod template, whose change causes a rollout.
    pub(super) has_template: bool,
}

/// All kinds. A version that is not listed may define the same fields differently, and is not rewritten.
const RULES: &[RewriteRule] = &[
    istio_gateway::RULE,
    destination_rule::RULE,
    gateway_api::GATEWAY,
    gateway_api::LISTENER_SET,
    envoy_gateway::CLIENT_TRAFFIC_POLICY,
    workload::RULE,
];

/// The rule for a kind.
pub(super) fn find(kind: Kind<'_>) -> Option<&'static RewriteRule> {
    let is = |rule: &&RewriteRule| {
        rule.group == kind.group && rule.versions.contains(&kind.version) && rule.kinds.contains(&kind.kind)
    };
    RULES.iter().find(is)
}

/// A field that names a Secret, or a ConfigMap with CAs.
#[derive(Clone, Debug)]
pub(super) struct Reference<'a> {
    /// Secret or ConfigMap.
    pub(super) kind: SourceKind,
    /// The field.
    pub(super) node: JsonPath<'a>,
    /// The text before the name in the field, which is kept: a scheme, a namespace.
    pub(super) prefix: &'a str,
    /// The object's name.
    pub(super) name: &'a str,
    /// The text after the name in the field, which is kept: `-cacert`, for the CAs of a Secret.
    pub(super) suffix: &'static str,
    /// The namespaces in which the name is looked up.
    pub(super) place: Place<'a>,
    /// The annotation by which cert-manager makes a Certificate for the Secret that the field names.
    pub(super) issuer_annotation: Option<&'static str>,
}

impl<'a> Reference<'a> {
    fn of(kind: SourceKind, node: JsonPath<'a>, name: &'a str, place: Place<'a>) -> Self {
        Self { kind, node, prefix: "", name, suffix: "", place, issuer_annotation: None }
    }

    /// A field that holds a bare name, looked up in one namespace.
    fn bare(node: &JsonPath<'a>, namespace: &'a str) -> Option<Self> {
        let place = Place::Namespace(namespace);
        Some(Self::of(SourceKind::Secret, *node, node.text()?, place))
    }

    /// Whether another field names the same object.
    pub(super) fn is_same_name(&self, other: &Self) -> bool {
        let is_renamed_alike = self.issuer_annotation == other.issuer_annotation;
        is_renamed_alike && (self.kind, self.name, &self.place) == (other.kind, other.name, &other.place)
    }

    /// Whether this is the field's value.
    pub(super) fn is(&self, value: &str) -> bool {
        let name = value.strip_prefix(self.prefix).and_then(|rest| rest.strip_suffix(self.suffix));
        name == Some(self.name)
    }

    /// The field's value with another name in it.
    pub(super) fn renamed(&self, name: &str) -> String {
        [self.prefix, name, self.suffix].concat()
    }
}

/// An Istio `credentialName`, read as by istiod (`pilot/pkg/model/credentials/resource.go`).
enum Credential<'a> {
    /// `name`, `namespace/name`, `kubernetes://[namespace/]name`, `kubernetes-gateway://namespace/name`.
    Secret { prefix: &'a str, namespace: Option<&'a str>, name: &'a str },
    /// `configmap://namespace/name`.
    ConfigMap { namespace: &'a str, name: &'a str },
    /// Another scheme (`sds://`, `builtin://`, `invalid://`), or a form that istiod does not support.
    Other,
}

impl<'a> Credential<'a> {
    fn parse(text: &'a str) -> Self {
        // A name has no colon.
        let with_scheme = text.split_once(':').and_then(|(scheme, rest)| Some((scheme, rest.strip_prefix("//")?)));
        let (scheme, rest) = with_scheme.unwrap_or(("kubernetes", text));
        let (namespace, name) = match rest.split_once('/') {
            None => (None, rest),
            Some((namespace, name)) => (Some(namespace), name),
        };
        let is_name = !name.is_empty() && !name.contains('/');
        match (scheme, namespace) {
            ("kubernetes" | "kubernetes-gateway", namespace) if is_name => {
                Self::Secret { prefix: &text[..text.len() - name.len()], namespace, name }
            }
            ("configmap", Some(namespace)) if is_name && !namespace.is_empty() => {
                Self::ConfigMap { namespace, name: name.strip_suffix(CACERT_SUFFIX).unwrap_or(name) }
            }
            _ => Self::Other,
        }
    }

    /// The Secret as a reference; a name without a namespace is looked up in `proxies`.
    fn reference(self, node: &JsonPath<'a>, proxies: &Place<'a>) -> Option<Reference<'a>> {
        let Self::Secret { prefix, namespace, name } = self else { return None };
        let place = namespace.map_or_else(|| proxies.clone(), Place::Namespace);
        Some(Reference { prefix, ..Reference::of(SourceKind::Secret, *node, name, place) })
    }

    /// The CAs that istiod serves as `<credential>-cacert`.
    fn cacert(self, node: &JsonPath<'a>, proxies: &Place<'a>) -> TrustSource<'a> {
        match self {
            Self::ConfigMap { namespace, name } => TrustSource::ConfigMap { namespace, name },
            Self::Other => TrustSource::Unknowable(node.text().unwrap_or_default()),
            secret => match secret.reference(node, proxies) {
                Some(Reference { name, place, .. }) => TrustSource::Secret { place, name },
                None => TrustSource::Unknowable(node.text().unwrap_or_default()),
            },
        }
    }
}
