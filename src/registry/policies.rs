//! RotationPolicies and ClusterRotationPolicies.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::{GROUP, Kind, RotationPolicySpec};

/// The `spec` of each policy, by namespace (none for a ClusterRotationPolicy) and name.
#[derive(Clone, Debug, Default)]
pub struct Policies(BTreeMap<PolicyKey, Value>);

/// Namespace, none for a ClusterRotationPolicy, and name.
pub type PolicyKey = (Option<String>, String);

impl Policies {
    /// The key of a policy object. `namespace` is the default for an object without one.
    pub fn key(object: &Value, namespace: &str) -> Option<PolicyKey> {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str()?.to_owned();
        match Kind::of_value(object) {
            Kind { group: GROUP, kind: "RotationPolicy", .. } => {
                Some((Some(metadata["namespace"].as_str().unwrap_or(namespace).to_owned()), name))
            }
            Kind { group: GROUP, kind: "ClusterRotationPolicy", .. } => Some((None, name)),
            _ => None,
        }
    }

    /// Adds an object if it is a policy.
    pub fn take(&mut self, object: &Value, namespace: &str) {
        if let Some(key) = Self::key(object, namespace) {
            self.insert(key, object["spec"].clone());
        }
    }

    /// Adds or replaces a policy.
    pub fn insert(&mut self, key: PolicyKey, spec: Value) {
        // `spec` is optional: a policy without one changes nothing.
        self.0.insert(key, if spec.is_null() { Value::Object(serde_json::Map::new()) } else { spec });
    }

    /// Removes a policy.
    pub fn remove(&mut self, key: &PolicyKey) {
        self.0.remove(key);
    }

    /// Replaces all policies of a kind: those with a namespace, or those without.
    pub fn replace(&mut self, have_namespace: bool, policies: Self) {
        self.0.retain(|(namespace, _), _| namespace.is_some() != have_namespace);
        self.0.extend(policies.0);
    }

    /// The policies of a name, merged for a namespace.
    ///
    /// # Errors
    /// When one cannot be parsed.
    pub fn policy(&self, namespace: &str, name: &str) -> Result<RotationPolicySpec, serde_json::Error> {
        let of = |namespace: Option<&str>| self.0.get(&(namespace.map(str::to_owned), name.to_owned()));
        RotationPolicySpec::merged([of(None), of(Some(namespace))].into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_the_policies_of_the_namespace_and_the_cluster() {
        let mut policies = Policies::default();
        let object = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        policies.take(
            &object(
                "ClusterRotationPolicy",
                json!({"name": "default"}),
                json!({"clusterResourceNamespace": "certs", "oldestEnvoy": "1.40"}),
            ),
            "",
        );
        policies.take(
            &object("RotationPolicy", json!({"name": "default"}), json!({"clusterResourceNamespace": "mesh"})),
            "mesh",
        );
        policies.take(&object("RotationPolicy", json!({"name": "default", "namespace": "other"}), Value::Null), "mesh");
        let found = |policies: &Policies, namespace: &str, name: &str| {
            policies.policy(namespace, name).unwrap().cluster_resource_namespace
        };
        for (namespace, name, expected) in
            [("mesh", "default", Some("mesh")), ("other", "default", Some("certs")), ("mesh", "night", None)]
        {
            assert_eq!(found(&policies, namespace, name).as_deref(), expected, "{namespace}/{name}");
        }
        assert_eq!(policies.policy("mesh", "default").unwrap().oldest_envoy.as_deref(), Some("1.40"));
        policies.remove(&(Some("mesh".to_owned()), "default".to_owned()));
        assert_eq!(found(&policies, "mesh", "default").as_deref(), Some("certs"));
    }

    #[test]
    fn replaces_the_policies_of_one_kind() {
        let policies = |names: &[(Option<&str>, &str)]| {
            let mut policies = Policies::default();
            for (namespace, name) in names {
                policies.insert((namespace.map(str::to_owned), (*name).to_owned()), json!({}));
            }
            policies
        };
        let stored = [(Some("mesh"), "default"), (None, "default"), (None, "night")];
        for (have_namespace, listed, expected) in [
            (true, vec![(Some("shop"), "day")], vec![(Some("shop"), "day"), (None, "default"), (None, "night")]),
            (false, vec![(None, "day")], vec![(Some("mesh"), "default"), (None, "day")]),
        ] {
            let mut replaced = policies(&stored);
            replaced.replace(have_namespace, policies(&listed));
            assert_eq!(replaced.0, policies(&expected).0);
        }
    }
}
