//! Annotations and labels of ours with a value that has no effect, which would be passed over in silence.

use serde_json::Value;

use super::carry_over;
use super::rules::VALUE_IGNORED;
use crate::api::names::{
    ADOPT, CARRY_OVER, GUARD, GUARD_ENABLED, MANAGED_LABEL, RELOAD, RELOAD_NEVER, REWRITE, REWRITE_DISABLED,
};
use crate::api::{Kind, shortened};
use crate::rewrite::is_rewritten;
use crate::trust::{Finding, Severity};

/// An annotation or label with a closed set of values.
struct Known {
    /// The map of metadata that it stands in.
    map: &'static str,
    key: &'static str,
    /// The objects on which it is read.
    is_read_of: fn(Kind<'_>) -> bool,
    counts: fn(&str) -> bool,
    /// The values, for people.
    expected: &'static str,
}

impl Known {
    /// Its value in an object's metadata, if that has no effect.
    fn odd<'v>(&self, metadata: &'v Value) -> Option<&'v Value> {
        metadata[self.map].get(self.key).filter(|value| !value.as_str().is_some_and(self.counts))
    }
}

const KNOWN: [Known; 6] = [
    Known {
        map: "annotations",
        key: CARRY_OVER,
        is_read_of: is_secret,
        counts: |value| value == "false" || carry_over::most(value).is_some(),
        expected: "\"true\", or how many old CAs to keep",
    },
    Known {
        map: "annotations",
        key: RELOAD,
        is_read_of: is_secret,
        counts: |value| value == RELOAD_NEVER,
        expected: "\"never\", or none",
    },
    Known {
        map: "annotations",
        key: ADOPT,
        is_read_of: is_kept,
        counts: |value| is_boolean(value) || value.split('/').filter(|part| !part.is_empty()).count() == 2,
        expected: "\"true\" or, for a GatewaySecret in another namespace, \"NAMESPACE/NAME\"",
    },
    Known { map: "labels", key: MANAGED_LABEL, is_read_of: is_secret, counts: is_boolean, expected: BOOLEAN },
    Known {
        map: "labels",
        key: GUARD,
        is_read_of: is_guardable,
        counts: |value| value == GUARD_ENABLED,
        expected: "\"enabled\", or none",
    },
    Known {
        map: "annotations",
        key: REWRITE,
        is_read_of: is_rewritten,
        counts: |value| value == REWRITE_DISABLED || value == "enabled",
        expected: "\"disabled\", or none",
    },
];

const BOOLEAN: &str = "\"true\", or none";

/// `"false"` says what is so without it.
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
    is_kept(kind) || matches!(kind, Kind { group: "", kind: "Namespace", .. })
}

fn is_kept(kind: Kind<'_>) -> bool {
    is_secret(kind) || is_config_map(kind)
}

const SECRET: Kind<'static> = Kind { group: "", version: "v1", kind: "Secret" };
/// Of a Certificate: the metadata of the Secret that cert-manager makes.
const TEMPLATE: &str = "/spec/secretTemplate";

/// Where a Secret, or a Certificate of cert-manager, has the Secret's metadata: a JSON Pointer (RFC 6901).
pub(super) fn metadata_of_secret(kind: Kind<'_>) -> Option<&'static str> {
    match kind {
        Kind { group: "cert-manager.io", kind: "Certificate", .. } => Some(TEMPLATE),
        kind => is_secret(kind).then_some("/metadata"),
    }
}

/// A label or annotation of the metadata at a JSON Pointer, as users write it.
pub(super) fn field(place: &str, map: &str, key: &str) -> String {
    format!("{}.{map}[{key}]", place[1..].replace('/', "."))
}

/// Values that nothing reads: on an object, or in the `secretTemplate` of a Certificate of cert-manager, which is the metadata of a
/// Secret. One that the stored object already had weighs no more than a warning.
pub(super) fn findings(kind: Kind<'_>, object: &Value, old: Option<&Value>) -> Vec<Finding> {
    let place = metadata_of_secret(kind).unwrap_or("/metadata");
    let kind = if place == TEMPLATE { SECRET } else { kind };
    let (metadata, old) = (object.pointer(place), old.and_then(|old| old.pointer(place)));
    let odd = KNOWN.iter().filter(|known| (known.is_read_of)(kind)).filter_map(|known| {
        let seen = known.odd(metadata?)?;
        let field = field(place, known.map, known.key);
        let finding = VALUE_IGNORED
            .finding(field, format!("{} has no effect. expected {}", shortened(&seen.to_string()), known.expected));
        let was_there = old.and_then(|old| known.odd(old)) == Some(seen);
        Some((finding, was_there))
    });
    odd.map(|(finding, was_there)| if was_there { Finding { severity: Severity::Warn, ..finding } } else { finding })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::{Context, Operation, Request, Verdict, check, mutate, validate};
    use crate::registry::Registry;
    use crate::trust::Severities;
    use crate::trust::fixtures::now;

    fn said(object: &Value) -> Vec<String> {
        let findings = findings(Kind::of(object), object, None);
        findings.iter().map(|finding| format!("{}: {}", finding.field, finding.message)).collect()
    }

    fn object(api_version: &str, kind: &str, map: &str, key: &str, value: Value) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "it", map: {key: value}}})
    }

    #[test]
    fn accepts_values_that_count_and_those_that_say_what_is_so() {
        for (api_version, kind, map, key, values) in [
            ("v1", "Secret", "annotations", CARRY_OVER, ["true", "2", "false"]),
            ("v1", "Secret", "annotations", RELOAD, ["never"; 3]),
            ("v1", "ConfigMap", "annotations", ADOPT, ["true", "mesh/gw", "false"]),
            ("v1", "Secret", "labels", MANAGED_LABEL, ["true", "true", "false"]),
            ("v1", "ConfigMap", "labels", GUARD, [GUARD_ENABLED; 3]),
            ("v1", "Namespace", "labels", GUARD, [GUARD_ENABLED; 3]),
            ("apps/v1", "Deployment", "annotations", REWRITE, ["disabled", "disabled", "enabled"]),
            // Nothing of ours is read there.
            ("v1", "Pod", "annotations", REWRITE, ["off"; 3]),
            ("v1", "Secret", "annotations", REWRITE, ["off"; 3]),
        ] {
            for value in values {
                assert_eq!(said(&object(api_version, kind, map, key, json!(value))), [""; 0], "{kind} {key} {value}");
            }
        }
        assert_eq!(said(&json!({"apiVersion": "v1", "kind": "Secret"})), [""; 0]);
    }

    #[test]
    fn rejects_others_with_what_was_seen_and_what_counts() {
        for value in ["yes", "True", "", "-1", "1.5"] {
            let said = said(&object("v1", "Secret", "annotations", CARRY_OVER, json!(value)));
            let expected = "has no effect. expected \"true\", or how many old CAs to keep";
            assert_eq!(said, [format!("metadata.annotations[trustspan.dev/carry-over]: \"{value}\" {expected}")]);
        }
        for (api_version, kind, map, key) in [
            ("v1", "Secret", "annotations", RELOAD),
            ("v1", "Secret", "annotations", ADOPT),
            ("v1", "Secret", "labels", MANAGED_LABEL),
            ("v1", "Secret", "labels", GUARD),
            ("v1", "Namespace", "labels", GUARD),
            ("apps/v1", "DaemonSet", "annotations", REWRITE),
            ("networking.istio.io/v1", "Gateway", "annotations", REWRITE),
        ] {
            for value in [json!("Yes"), json!(true), json!("disabled ")] {
                assert_eq!(said(&object(api_version, kind, map, key, value)).len(), 1, "{kind} {key}");
            }
        }
    }

    #[test]
    fn rejects_a_template_of_a_secret_too() {
        let template = json!({"annotations": {RELOAD: "Never"}, "labels": {MANAGED_LABEL: "true"}});
        let certificate =
            json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "spec": {"secretTemplate": template}});
        let expected = "spec.secretTemplate.annotations[trustspan.dev/reload]: \"Never\" has no effect. expected \"never\", or none";
        assert_eq!(said(&certificate), [expected]);
    }

    #[test]
    fn a_value_that_was_there_before_and_a_long_one_stay_small() {
        let odd = |value: &str| object("v1", "Secret", "annotations", CARRY_OVER, json!(value));
        let (old, long) = (odd("yes"), "y".repeat(5000));
        let of = |object: &Value| findings(Kind::of(object), object, Some(&old)).remove(0);
        assert_eq!(of(&old).severity, Severity::Warn);
        assert!(of(&odd(&long)).message.len() < 120, "{}", of(&odd(&long)).message);
    }

    #[test]
    fn both_webhooks_and_check_say_so() {
        let said = |findings: &[Finding]| findings.iter().filter(|finding| finding.rule == "value-ignored").count();
        let mut secret = object("v1", "Secret", "annotations", CARRY_OVER, json!("yes"));
        secret["data"] = json!({"note": ""});
        let gateway = object("networking.istio.io/v1", "Gateway", "annotations", REWRITE, json!("off"));
        let (registry, now) = (Registry::default(), now());
        for object in [&secret, &gateway] {
            let request = Request {
                operation: Operation::Create,
                kind: Kind::of(object),
                sub_resource: "",
                namespace: "mesh",
                name: "it",
                username: "jane",
                by_agent: false,
                may_break_glass: false,
                in_guarded_namespace: true,
                object: Some(object),
                old_object: None,
            };
            let validated = validate(&request, &registry, &Severities::default(), now);
            let mutated = mutate(&request, &registry, now);
            assert!(validated.verdict() != Verdict::Deny && mutated.verdict() != Verdict::Deny);
            assert_eq!(said(&validated.findings) + said(&mutated.findings), 1, "{object}");
            assert_eq!(said(&check(object, "mesh", &Context::default(), now).unwrap()), 1, "{object}");
        }
    }

    #[test]
    fn check_tells_of_break_glass_that_overrides_nothing() {
        let told = |rule: &str, reason: &str| -> Vec<String> {
            let annotations = json!({format!("breakglass.trustspan.dev/{rule}"): reason});
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"annotations": annotations}});
            let findings = check(&object, "mesh", &Context::default(), now()).unwrap_or_default();
            findings.into_iter().map(|finding| finding.message).collect()
        };
        assert_eq!(told("empty", "ticket 7"), [""; 0]);
        let none = ["breakglass.trustspan.dev/emty overrides nothing: no such rule; see `trustspan rules`"];
        assert_eq!(told("emty", "ticket 7"), none);
        assert_eq!(
            told("empty", " "),
            ["breakglass.trustspan.dev/empty overrides nothing: it needs a reason as its value"]
        );
    }
}
