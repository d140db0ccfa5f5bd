//! Annotations and labels of trustspan whose value has no effect.

use serde_json::Value;

use super::carry_over;
use super::rules::VALUE_IGNORED;
use crate::api::names::{
    ADOPT, CARRY_OVER, GUARD, GUARD_ENABLED, MANAGED_LABEL, RELOAD, RELOAD_NEVER, RETIRED, REWRITE, REWRITE_DISABLED,
};
use crate::api::{Kind, shortened};
use crate::json::Json;
use crate::rewrite::is_rewritten;
use crate::trust::{Finding, Severity};

/// An annotation or label of trustspan, with its valid values.
struct Key {
    /// The map in the metadata that has it: `annotations` or `labels`.
    map: &'static str,
    name: &'static str,
    /// The kinds on which it is read.
    is_read_on: fn(Kind<'_>) -> bool,
    is_valid: fn(&str) -> bool,
    /// The valid values, for messages.
    expected: &'static str,
}

impl Key {
    /// The value in the metadata of an object, if the value has no effect.
    fn ignored_value<'v>(&self, metadata: &'v Json<'v>) -> Option<&'v Json<'v>> {
        metadata[self.map].get(self.name).filter(|value| !value.as_str().is_some_and(self.is_valid))
    }
}

const KEYS: [Key; 7] = [
    Key {
        map: "annotations",
        name: CARRY_OVER,
        is_read_on: is_secret,
        is_valid: |value| value == "false" || carry_over::most(value).is_some(),
        expected: "\"true\", or how many old CAs to keep",
    },
    Key {
        map: "annotations",
        name: RELOAD,
        is_read_on: is_secret,
        is_valid: |value| value == RELOAD_NEVER,
        expected: "\"never\", or no such entry",
    },
    Key { map: "annotations", name: RETIRED, is_read_on: is_secret, is_valid: is_boolean, expected: BOOLEAN },
    Key {
        map: "annotations",
        name: ADOPT,
        is_read_on: is_secret_or_config_map,
        is_valid: |value| is_boolean(value) || value.split('/').filter(|part| !part.is_empty()).count() == 2,
        expected: "\"true\" or, for a GatewaySecret in another namespace, \"NAMESPACE/NAME\"",
    },
    Key { map: "labels", name: MANAGED_LABEL, is_read_on: is_secret, is_valid: is_boolean, expected: BOOLEAN },
    Key {
        map: "labels",
        name: GUARD,
        is_read_on: is_guardable,
        is_valid: |value| value == GUARD_ENABLED,
        expected: "\"enabled\", or no such entry",
    },
    Key {
        map: "annotations",
        name: REWRITE,
        is_read_on: is_rewritten,
        is_valid: |value| value == REWRITE_DISABLED || value == "enabled",
        expected: "\"disabled\", or no such entry",
    },
];

const BOOLEAN: &str = "\"true\", or no such entry";

/// `"false"` is the same as no annotation.
fn is_boolean(value: &str) -> bool {
    matches!(value, "true" | "false")
}

fn is_secret(kind: Kind<'_>) -> bool {
    matches!(kind, Kind { group: "", kind: "Secret", .. })
}

fn is_config_map(kind: Kind<'_>) -> bool {
    matches!(kind, Kind { group: "", kind: "ConfigMap", .. })
}

fn is_guardable(kind: Kind<'_>) -> bool {
    is_secret_or_config_map(kind) || matches!(kind, Kind { group: "", kind: "Namespace", .. })
}

fn is_secret_or_config_map(kind: Kind<'_>) -> bool {
    is_secret(kind) || is_config_map(kind)
}

const SECRET: Kind<'static> = Kind { group: "", version: "v1", kind: "Secret" };
/// The metadata that a Certificate gives to its Secret.
const TEMPLATE: &str = "/spec/secretTemplate";

/// The JSON Pointer (RFC 6901) to the metadata of a Secret, in the Secret itself or in the cert-manager Certificate
/// that creates it.
pub(super) fn metadata_of_secret(kind: Kind<'_>) -> Option<&'static str> {
    match kind {
        Kind { group: "cert-manager.io", kind: "Certificate", .. } => Some(TEMPLATE),
        kind => is_secret(kind).then_some("/metadata"),
    }
}

/// A label or annotation in the metadata at a JSON Pointer, as users write it.
pub(super) fn field(metadata: &str, map: &str, key: &str) -> String {
    format!("{}.{map}[{key}]", metadata[1..].replace('/', "."))
}

/// Annotations and labels without effect, on an object or in the `secretTemplate` of a Certificate, which becomes the
/// metadata of a Secret. One that the stored object already has only warns.
pub(super) fn findings(kind: Kind<'_>, object: &Json<'_>, old: Option<&Json<'_>>) -> Vec<Finding> {
    let pointer = metadata_of_secret(kind).unwrap_or("/metadata");
    let kind = if pointer == TEMPLATE { SECRET } else { kind };
    let (metadata, old) = (object.pointer(pointer), old.and_then(|old| old.pointer(pointer)));
    let findings = KEYS.iter().filter(|key| (key.is_read_on)(kind)).filter_map(|key| {
        let value = key.ignored_value(metadata?)?;
        let message =
            format!("{} has no effect. expected {}", shortened(&Value::from(value).to_string()), key.expected);
        let finding = VALUE_IGNORED.finding(field(pointer, key.map, key.name), message);
        let is_stored = old.and_then(|old| key.ignored_value(old)) == Some(value);
        Some(if is_stored { Finding { severity: Severity::Warn, ..finding } } else { finding })
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Context, Request, Verdict, check, mutate, validate};
    use crate::json::json;
    use crate::registry::Registry;
    use crate::trust::Severities;
    use crate::trust::fixtures::now;

    fn shown(object: &Json<'_>) -> Vec<String> {
        let findings = findings(Kind::of(object), object, None);
        findings.iter().map(|finding| format!("{}: {}", finding.field, finding.message)).collect()
    }

    fn object(api_version: &str, kind: &str, map: &str, key: &str, value: Json<'static>) -> Json<'static> {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "it", map: {key: value}}})
    }

    #[test]
    fn accepts_valid_values() {
        for (api_version, kind, map, key, values) in [
            ("v1", "Secret", "annotations", CARRY_OVER, ["true", "2", "false"]),
            ("v1", "Secret", "annotations", RELOAD, ["never"; 3]),
            ("v1", "Secret", "annotations", RETIRED, ["true", "true", "false"]),
            ("v1", "ConfigMap", "annotations", ADOPT, ["true", "mesh/gw", "false"]),
            ("v1", "Secret", "labels", MANAGED_LABEL, ["true", "true", "false"]),
            ("v1", "ConfigMap", "labels", GUARD, [GUARD_ENABLED; 3]),
            ("v1", "Namespace", "labels", GUARD, [GUARD_ENABLED; 3]),
            ("apps/v1", "Deployment", "annotations", REWRITE, ["disabled", "disabled", "enabled"]),
            // The annotation is not read on these kinds.
            ("v1", "Pod", "annotations", REWRITE, ["off"; 3]),
            ("v1", "Secret", "annotations", REWRITE, ["off"; 3]),
        ] {
            for value in values {
                assert_eq!(shown(&object(api_version, kind, map, key, json!(value))), [""; 0], "{kind} {key} {value}");
            }
        }
        assert_eq!(shown(&json!({"apiVersion": "v1", "kind": "Secret"})), [""; 0]);
    }

    #[test]
    fn reports_other_values_with_the_expected_ones() {
        for value in ["yes", "True", "", "-1", "1.5"] {
            let shown = shown(&object("v1", "Secret", "annotations", CARRY_OVER, json!(value)));
            let expected = "has no effect. expected \"true\", or how many old CAs to keep";
            assert_eq!(shown, [format!("metadata.annotations[trustspan.dev/carry-over]: \"{value}\" {expected}")]);
        }
        for (api_version, kind, map, key) in [
            ("v1", "Secret", "annotations", RELOAD),
            ("v1", "Secret", "annotations", ADOPT),
            ("v1", "Secret", "annotations", RETIRED),
            ("v1", "Secret", "labels", MANAGED_LABEL),
            ("v1", "Secret", "labels", GUARD),
            ("v1", "Namespace", "labels", GUARD),
            ("apps/v1", "DaemonSet", "annotations", REWRITE),
            ("networking.istio.io/v1", "Gateway", "annotations", REWRITE),
        ] {
            for value in [json!("Yes"), json!(true), json!("disabled ")] {
                assert_eq!(shown(&object(api_version, kind, map, key, value)).len(), 1, "{kind} {key}");
            }
        }
    }

    #[test]
    fn reports_values_in_a_secret_template() {
        let template = json!({"annotations": {RELOAD: "Never"}, "labels": {MANAGED_LABEL: "true"}});
        let certificate =
            json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "spec": {"secretTemplate": template}});
        let expected = "spec.secretTemplate.annotations[trustspan.dev/reload]: \"Never\" has no effect. expected \"never\", or no such entry";
        assert_eq!(shown(&certificate), [expected]);
    }

    #[test]
    fn warns_about_a_stored_value_and_shortens_a_long_one() {
        let secret = |value: &str| object("v1", "Secret", "annotations", CARRY_OVER, json!(value));
        let (old, long) = (secret("yes"), "y".repeat(5000));
        let of = |object: &Json<'_>| findings(Kind::of(object), object, Some(&old)).remove(0);
        assert_eq!(of(&old).severity, Severity::Warn);
        assert!(of(&secret(&long)).message.len() < 120, "{}", of(&secret(&long)).message);
    }

    #[test]
    fn both_webhooks_and_check_report_ignored_values() {
        let count = |findings: &[Finding]| findings.iter().filter(|finding| finding.rule == "value-ignored").count();
        let mut secret = object("v1", "Secret", "annotations", CARRY_OVER, json!("yes"));
        secret["data"] = json!({"note": ""});
        let gateway = object("networking.istio.io/v1", "Gateway", "annotations", REWRITE, json!("off"));
        let (registry, now) = (Registry::default(), now());
        for object in [&secret, &gateway] {
            let request = Request::fixture(Kind::of(object), Some(object), None);
            let validated = validate(&request, &registry, &Severities::default(), now);
            let mutated = mutate(&request, &registry, now);
            assert!(validated.verdict() != Verdict::Deny && mutated.verdict() != Verdict::Deny);
            assert_eq!(count(&validated.findings) + count(&mutated.findings), 1, "{object}");
            assert_eq!(count(&check(object, "mesh", &Context::default(), now).unwrap()), 1, "{object}");
        }
    }

    #[test]
    fn check_reports_break_glass_annotations_without_effect() {
        let messages = |rule: &str, reason: &str| -> Vec<String> {
            let annotations = json!({format!("breakglass.trustspan.dev/{rule}"): reason});
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": annotations}});
            let findings = check(&object, "mesh", &Context::default(), now()).unwrap_or_default();
            findings.into_iter().map(|finding| finding.message).collect()
        };
        assert_eq!(messages("empty", "ticket 7"), [""; 0]);
        let none = ["breakglass.trustspan.dev/emty overrides nothing: no such rule; see `trustspan rules`"];
        assert_eq!(messages("emty", "ticket 7"), none);
        assert_eq!(
            messages("empty", " "),
            ["breakglass.trustspan.dev/empty overrides nothing: it needs a reason as its value"]
        );
    }
}
