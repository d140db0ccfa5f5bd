//! The kinds that are rewritten: a table; a kind is a file.

mod gateway_api;
mod istio_gateway;
mod workload;

use serde_json::Value;

use super::node::Node;
use crate::api::Kind;
use crate::registry::Place;

/// How a kind names Secrets.
pub(super) struct Rule {
    group: &'static str,
    versions: &'static [&'static str],
    kinds: &'static [&'static str],
    /// Every reference to a Secret in an object of the kind, in a namespace.
    pub(super) references: for<'a> fn(&'a Value, &'a str) -> Vec<Reference<'a>>,
    /// Whether the object has a pod template, whose change is a rollout.
    pub(super) has_template: bool,
}

/// All kinds. A version that is not listed may mean something else by the same fields, and passes untouched.
const RULES: &[Rule] = &[istio_gateway::RULE, gateway_api::RULE, workload::RULE];

/// The rule for a kind.
pub(super) fn find(kind: Kind<'_>) -> Option<&'static Rule> {
    let is = |rule: &&Rule| {
        rule.group == kind.group && rule.versions.contains(&kind.version) && rule.kinds.contains(&kind.kind)
    };
    RULES.iter().find(is)
}

/// A field that names a Secret.
#[derive(Clone, Debug)]
pub(super) struct Reference<'a> {
    /// The field.
    pub(super) node: Node<'a>,
    /// What stands before the name in the field, and is kept: a scheme, a namespace.
    pub(super) prefix: &'a str,
    /// The Secret's name.
    pub(super) name: &'a str,
    /// Where the name is looked up.
    pub(super) place: Place<'a>,
}

impl<'a> Reference<'a> {
    /// A field that holds a bare name, looked up in one namespace.
    fn bare(node: &Node<'a>, namespace: &'a str) -> Option<Self> {
        let place = Place::Namespace(namespace);
        Some(Self { node: *node, prefix: "", name: node.text()?, place })
    }

    /// Whether this is the field's value.
    pub(super) fn is(&self, value: &str) -> bool {
        value.strip_prefix(self.prefix) == Some(self.name)
    }

    /// The field's value with another name in it.
    pub(super) fn renamed(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}
