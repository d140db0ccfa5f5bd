//! ReferenceGrants: in one, the owner of a namespace allows objects of another namespace to use objects in it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::{Kind, SourceKind};

const GATEWAY_API: &str = "gateway.networking.k8s.io";
const ENVOY_GATEWAY: &str = "gateway.envoyproxy.io";

/// All ReferenceGrants that are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants(Vec<Grant>);

#[derive(Clone, Debug)]
struct Grant {
    namespace: String,
    from: Vec<Referrer>,
    to: Vec<Target>,
}

/// An object that uses another one, or all of its kind in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Referrer {
    /// API group.
    pub(crate) group: String,
    /// Kind.
    pub(crate) kind: String,
    /// Namespace.
    pub(crate) namespace: String,
}

#[derive(Clone, Debug)]
struct Target {
    group: String,
    kind: String,
    /// `None`: all.
    name: Option<String>,
}

impl Referrer {
    /// Objects of a kind in a namespace.
    pub(crate) fn new(kind: Kind<'_>, namespace: &str) -> Self {
        Self { group: kind.group.to_owned(), kind: kind.kind.to_owned(), namespace: namespace.to_owned() }
    }

    /// The Gateways of the Gateway API in a namespace. A grant to them applies to ListenerSets and policies there, too.
    fn gateways(namespace: &str) -> Self {
        Self { group: GATEWAY_API.to_owned(), kind: "Gateway".to_owned(), namespace: namespace.to_owned() }
    }
}

impl Target {
    /// Whether it covers an object of a kind, or all of them.
    fn covers(&self, (group, kind): (&str, &str), name: Option<&str>) -> bool {
        (self.group.as_str(), self.kind.as_str()) == (group, kind)
            && (self.name.is_none() || self.name.as_deref() == name)
    }
}

impl Grants {
    /// The ReferenceGrants among these objects.
    pub(crate) fn of<'o>(objects: impl IntoIterator<Item = &'o Value>) -> Self {
        let mut grants = Self::default();
        for object in objects {
            grants.take(object, object["metadata"]["namespace"].as_str().unwrap_or_default());
        }
        grants
    }

    /// Adds an object of a namespace if it is a ReferenceGrant.
    pub(crate) fn take(&mut self, object: &Value, namespace: &str) {
        if !matches!(Kind::of_value(object), Kind { group: GATEWAY_API, kind: "ReferenceGrant", .. }) {
            return;
        }
        let items = |list: &str| object["spec"][list].as_array().into_iter().flatten();
        let field = |item: &Value, name: &str| item[name].as_str().map(str::to_owned);
        let from = items("from").filter_map(|item| {
            Some(Referrer {
                group: field(item, "group")?,
                kind: field(item, "kind")?,
                namespace: field(item, "namespace")?,
            })
        });
        let to = items("to").filter_map(|item| {
            Some(Target { group: field(item, "group")?, kind: field(item, "kind")?, name: field(item, "name") })
        });
        self.0.push(Grant { namespace: namespace.to_owned(), from: from.collect(), to: to.collect() });
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a Secret or ConfigMap may be used by an object: in the same namespace, or by a grant.
    pub(crate) fn allow(&self, from: &Referrer, kind: SourceKind, namespace: &str, name: &str) -> bool {
        from.namespace == namespace || self.allow_any(from, ("", kind.name()), namespace, Some(name))
    }

    /// Whether a grant lets an object use another one of a group and kind, or all of them.
    pub(crate) fn allow_any(&self, from: &Referrer, kind: (&str, &str), namespace: &str, name: Option<&str>) -> bool {
        let gateways = Referrer::gateways(&from.namespace);
        let is_like_a_gateway = [GATEWAY_API, ENVOY_GATEWAY].contains(&from.group.as_str());
        let is_from = |known: &Referrer| known == from || is_like_a_gateway && *known == gateways;
        self.to(kind, namespace, name).any(|grant| grant.from.iter().any(is_from))
    }

    /// The namespaces whose Gateways of the Gateway API may use a Secret or ConfigMap.
    pub(crate) fn gateway_namespaces(&self, kind: SourceKind, namespace: &str, name: &str) -> BTreeSet<&str> {
        let from = self.to(("", kind.name()), namespace, Some(name)).flat_map(|grant| &grant.from);
        let gateways = from.filter(|from| **from == Referrer::gateways(&from.namespace));
        gateways.map(|from| from.namespace.as_str()).collect()
    }

    fn to(&self, kind: (&str, &str), namespace: &str, name: Option<&str>) -> impl Iterator<Item = &Grant> {
        let covers = move |grant: &&Grant| {
            grant.namespace == namespace && grant.to.iter().any(|target| target.covers(kind, name))
        };
        self.0.iter().filter(covers)
    }
}
