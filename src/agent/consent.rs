//! Whose consent is known to rights outside of the namespace of a GatewaySecret: its editors choose the names there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::{GROUP, Kind};
use crate::registry::Entry;
use crate::rotation::{Grants, Referrer};

/// Its objects are those of the control plane. No ReferenceGrant is enough for them.
const CONTROL_PLANE: &str = "kube-system";

/// Consent of the owners of other namespaces, and of the operator.
#[derive(Clone, Debug, Default)]
pub struct Consent {
    is_to_everything: bool,
    grants: Grants,
    namespaces: BTreeSet<String>,
    cluster_trust_bundles: BTreeSet<String>,
}

impl Consent {
    /// The consent of the operator to everything that GatewaySecrets name.
    pub fn to_everything() -> Self {
        Self { is_to_everything: true, ..Self::default() }
    }

    /// The consent of the operator to rights in these namespaces and to these ClusterTrustBundles, and of owners by ReferenceGrants.
    pub(crate) fn new(namespaces: &[String], cluster_trust_bundles: &[String], grants: Grants) -> Self {
        Self {
            is_to_everything: false,
            grants,
            namespaces: namespaces.iter().cloned().collect(),
            cluster_trust_bundles: cluster_trust_bundles.iter().cloned().collect(),
        }
    }

    fn allows_namespace(&self, namespace: &str) -> bool {
        self.is_to_everything || self.namespaces.contains(namespace)
    }

    pub(super) fn allows_cluster_trust_bundle(&self, name: &str) -> bool {
        self.is_to_everything || self.cluster_trust_bundles.contains(name)
    }
}

/// Rules for other namespaces than that of a GatewaySecret.
pub(super) struct OtherNamespaces<'e> {
    entry: &'e Entry,
    consent: &'e Consent,
    from: Referrer,
    rules: BTreeMap<&'e str, Vec<Value>>,
    /// What is left out, as text.
    left_out: BTreeMap<&'e str, Vec<String>>,
}

impl<'e> OtherNamespaces<'e> {
    pub(super) fn new(entry: &'e Entry, consent: &'e Consent) -> Self {
        let kind = Kind { group: GROUP, version: "", kind: "GatewaySecret" };
        let from = Referrer::new(kind, &entry.namespace);
        Self { entry, consent, from, rules: BTreeMap::new(), left_out: BTreeMap::new() }
    }

    /// Adds a rule on objects that the GatewaySecret names, as far as there is consent.
    pub(super) fn add(&mut self, namespace: &'e str, rule: Value) {
        let kind = match rule["resources"][0].as_str() {
            Some("secrets") => ("", "Secret"),
            Some("configmaps") => ("", "ConfigMap"),
            _ => ("cert-manager.io", "Certificate"),
        };
        let (from, grants) = (self.from.clone(), &self.consent.grants);
        self.add_if(namespace, rule, |name| grants.allow_any(&from, kind, namespace, name));
    }

    /// The same for other objects. `is_granted`: whether their owner consents to a name, or to all.
    pub(super) fn add_if(&mut self, namespace: &'e str, rule: Value, is_granted: impl Fn(Option<&str>) -> bool) {
        let allowed = self.consent.allows_namespace(namespace);
        let has_consent = |name: Option<&str>| allowed || namespace != CONTROL_PLANE && is_granted(name);
        let names: Option<Vec<String>> = rule["resourceNames"]
            .as_array()
            .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        let Some(names) = names else {
            match has_consent(None) {
                true => self.rules.entry(namespace).or_default().push(rule),
                false => self.leave_out(namespace, &rule, &[]),
            }
            return;
        };
        let (granted, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| has_consent(Some(name)));
        if !others.is_empty() {
            self.leave_out(namespace, &rule, &others);
        }
        if !granted.is_empty() {
            let rule = with_names(rule, &granted);
            self.rules.entry(namespace).or_default().push(rule);
        }
    }

    fn leave_out(&mut self, namespace: &'e str, rule: &Value, names: &[String]) {
        let list = |field: &str| {
            let items = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            items.collect::<Vec<_>>().join(", ")
        };
        let names = if names.is_empty() { String::new() } else { format!(" {}", names.join(", ")) };
        let right = format!("{} {}{names}", list("verbs"), list("resources"));
        let rights = self.left_out.entry(namespace).or_default();
        if !rights.contains(&right) {
            rights.push(right);
        }
    }

    /// The rules by namespace, and a sentence for each namespace in which some are left out.
    pub(super) fn finish(self) -> (BTreeMap<&'e str, Vec<Value>>, Vec<String>) {
        let Entry { namespace: own, name, .. } = self.entry;
        let sentence = |(namespace, rights): (&str, Vec<String>)| {
            let (why, consent) = match namespace {
                CONTROL_PLANE => ("it is the control plane's".to_owned(), String::new()),
                _ => (
                    format!("no ReferenceGrant there lets GatewaySecrets of namespace {own} use these objects"),
                    ", or let the owner of the namespace add the ReferenceGrant".to_owned(),
                ),
            };
            format!(
                "GatewaySecret {own}/{name} gets no rights in namespace {namespace}: {}. Reason: {why}. If the names are right, add \
                 --allow-namespace {namespace}{consent}",
                rights.join("; ")
            )
        };
        (self.rules, self.left_out.into_iter().map(sentence).collect())
    }
}

fn with_names(mut rule: Value, names: &[String]) -> Value {
    rule["resourceNames"] = json!(names);
    rule
}
