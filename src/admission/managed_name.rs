//! Another name for the managed Secret. Nothing rewrites a Gateway or workload that names the former one; and in mid-rotation the
//! agent, which reads Secrets by the names in the spec only, could not make the new one with the pair that is served.

use serde::Deserialize;
use serde_json::Value;

use super::rules::MANAGED_RENAMED;
use crate::api::GatewaySecretSpec;
use crate::trust::Finding;

/// Judges the change of a GatewaySecret: the way back to the name under which the managed Secret stands is free.
pub(super) fn change(object: &Value, old: &Value) -> Option<Finding> {
    let is_new = managed_name(object)? != managed_name(old)?;
    is_new.then(|| left_behind(object, &old["status"])).flatten()
}

/// Judges a GatewaySecret by the status that is stored in it.
pub(super) fn stored(object: &Value) -> Option<Finding> {
    left_behind(object, &object["status"])
}

fn left_behind(object: &Value, status: &Value) -> Option<Finding> {
    let (former, name) = (status["secretName"].as_str()?, managed_name(object)?);
    let stands = status["bundle"].as_array().is_some_and(|bundle| !bundle.is_empty());
    (stands && former != name).then(|| {
        let message = format!(
            "Secret {former} is in use: Gateways and workloads that name it would not follow to {name}. keep spec.secretName; for \
             another name wait for phase Steady, let them name the root Secret, delete this GatewaySecret and make one of another \
             name"
        );
        MANAGED_RENAMED.finding("spec.secretName", message)
    })
}

fn managed_name(object: &Value) -> Option<String> {
    let spec = GatewaySecretSpec::deserialize(&object["spec"]).ok()?;
    Some(spec.managed_name(object["metadata"]["name"].as_str()?).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A GatewaySecret `gw` whose managed Secret was seen as `gw` with a CA.
    fn named(secret_name: Option<&str>) -> Value {
        let mut object = json!({
            "metadata": {"name": "gw"}, "spec": {"sourceSecretName": "root"},
            "status": {"secretName": "gw", "bundle": [{"fingerprint": "00"}]},
        });
        if let Some(name) = secret_name {
            object["spec"]["secretName"] = name.into();
        }
        object
    }

    #[test]
    fn rejects_another_name_while_the_managed_secret_stands() {
        let finding = change(&named(Some("gw-2")), &named(None)).unwrap();
        assert_eq!((finding.rule, finding.field.as_str()), ("managed-renamed", "spec.secretName"));
        assert!(finding.message.contains("Secret gw is in use") && finding.message.contains("to gw-2"), "{finding:?}");
        assert_eq!(stored(&named(Some("gw-2"))), Some(finding), "it slipped by");
    }

    #[test]
    fn accepts_the_same_name_the_way_back_and_one_that_nothing_has_yet() {
        assert_eq!(change(&named(Some("gw")), &named(None)), None, "the default, written out");
        assert_eq!(change(&named(None), &named(Some("gw-2"))), None);
        assert_eq!(change(&named(Some("gw-2")), &named(Some("gw-2"))), None, "a label can still be changed");
        let mut unmade = named(None);
        unmade["status"]["bundle"] = json!([]);
        assert_eq!(change(&named(Some("gw-2")), &unmade), None);
        assert_eq!(stored(&named(None)), None);
    }
}
