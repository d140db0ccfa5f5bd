//! Rules that need no certificate, and the trust of declared clients that are renewed, as ValidatingAdmissionPolicies: the API server enforces
//! them while no replica of the webhook runs (docs/adr/0035).
//!
//! The fields, names, users and messages are those of the functions that the webhook calls. `./test cluster policies` compares both.

use serde_json::{Value, json};

use super::gateway_secret::renamed_message;
use super::owned_objects::{self, CLEANUP_CONTROLLERS, OWNED_FIELDS};
use super::rules::{BREAK_GLASS, KEPT_BY_AGENT, MANAGED_RENAMED, RuleInfo};
use crate::api::GROUP;
use crate::api::names::{
    BREAK_GLASS_PREFIX, CACERT_SUFFIX, CLIENT_LABEL, GATEWAY_SECRET, journal_name, managed_config_map_name,
};
use crate::trust::{Severities, Severity};

/// Limit for the annotations of an object that breaks glass, and for owners that are compared one by one: no expression reads a list of a
/// developer's size.
const READ: usize = 100;

/// The policies and their bindings. `agent` is the username of trustspan's agent. Objects in `excluded` namespaces are not judged, except
/// GatewaySecrets. `severities` are those of the webhook; the status of a GatewaySecret has those of its policies.
pub fn policies(agent: &str, excluded: &[&str], severities: &Severities) -> [Value; 6] {
    // All GatewaySecrets of the request's namespace. Without one the policy is not evaluated.
    let for_each = |mut binding: Value| {
        binding["spec"]["paramRef"] = json!({ "selector": {}, "parameterNotFoundAction": "Allow" });
        binding
    };
    [
        kept_by_agent(agent, excluded, severities),
        for_each(binding(KEPT_BY_AGENT.id)),
        managed_renamed(),
        binding(MANAGED_RENAMED.id),
        client_bundle(agent, excluded),
        for_each(binding(CLIENT_BUNDLE)),
    ]
}

/// A change or the deletion of an object that the agent owns. It is evaluated once for each GatewaySecret of the namespace, `params`.
fn kept_by_agent(agent: &str, excluded: &[&str], severities: &Severities) -> Value {
    let others: Vec<_> = std::iter::once(agent).chain(CLEANUP_CONTROLLERS).collect();
    let matching = format!(
        "oldObject.metadata.?annotations[?{GATEWAY_SECRET:?}].orValue(\"\") == params.metadata.name\n\
         && !has(params.metadata.deletionTimestamp)\n\
         && !(request.userInfo.username in {others:?})"
    );
    let default = match severities.apply(KEPT_BY_AGENT.finding("", "")) {
        Some(finding) if finding.severity == Severity::Deny => "Deny",
        _ => "Warn",
    };
    let rule = KEPT_BY_AGENT.id;
    let key = format!("{BREAK_GLASS_PREFIX}{rule}");
    let variables = [
        ("name", "oldObject.metadata.name".to_owned()),
        ("managed", "params.spec.?secretName.orValue(params.metadata.name)".to_owned()),
        (
            "targets",
            "params.spec.?trustBundleTargets.orValue([]).filter(t, !has(t.namespace) && t.name == variables.name)"
                .to_owned(),
        ),
        ("isOwnedSecret", owned_secret()),
        ("isOwnedConfigMap", owned_config_map()),
        (
            "isOwned",
            "request.resource.resource == \"secrets\" ? variables.isOwnedSecret : variables.isOwnedConfigMap"
                .to_owned(),
        ),
        ("owners", "object.metadata.?ownerReferences.orValue([])".to_owned()),
        ("oldOwners", "oldObject.metadata.?ownerReferences.orValue([])".to_owned()),
        ("isChanged", changed()),
        ("severity", format!("params.?status.?severities[?{rule:?}].orValue({default:?})")),
        (
            "annotations",
            "(request.operation == \"DELETE\" ? oldObject : object).metadata.?annotations.orValue({})".to_owned(),
        ),
        (
            "mayBreakGlass",
            format!(
                "variables.annotations.size() <= {READ} && authorizer.group({GROUP:?}).resource(\"gatewaysecrets\")\n\
                 .namespace(request.namespace).check(\"breakglass\").allowed()"
            ),
        ),
        (
            "isOverridden",
            // A reason has a character that is neither a space nor a control character.
            format!(
                "variables.mayBreakGlass && variables.annotations[?{key:?}].orValue(\"\").matches({:?})",
                r"[^\pZ\p{Cc}]"
            ),
        ),
    ];
    let variables = variables.map(|(name, expression)| json!({ "name": name, "expression": expression }));
    let unoverridden = format!(
        "!variables.isOwned || variables.annotations[?{key:?}] == optional.none()\n\
         || variables.annotations[?{key:?}] == oldObject.metadata.?annotations[?{key:?}] || variables.mayBreakGlass"
    );
    let message = owned_objects::message(&spliced("variables.name"), &spliced("params.metadata.name"));
    json!({
        "apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name(KEPT_BY_AGENT.id) },
        "spec": {
            // Without the CustomResourceDefinition of GatewaySecrets this policy cannot be evaluated. With Fail, the API server would then reject
            // each write of a Secret or ConfigMap.
            "failurePolicy": "Ignore",
            "paramKind": param_kind(),
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": not_in(excluded),
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE", "DELETE"],
                    "resources": ["secrets", "configmaps"], "scope": "Namespaced",
                }],
            },
            "matchConditions": [{ "name": "written-for-this-gatewaysecret", "expression": matching }],
            "variables": variables,
            "validations": [
                {
                    "expression": "variables.severity != \"Deny\" || !variables.isOwned || !variables.isChanged\n|| variables.isOverridden",
                    "messageExpression": message_expression(&KEPT_BY_AGENT, &message),
                    "reason": "Forbidden",
                },
                {
                    "expression": unoverridden,
                    "message": format!("{}: {key} was added or changed by a user who may not override rules", BREAK_GLASS.id),
                    "reason": "Forbidden",
                },
            ],
        },
    })
}

/// Whether the agent writes a Secret of this name, as [`owned_objects`] decides it.
fn owned_secret() -> String {
    format!(
        "variables.name == variables.managed || variables.name == variables.managed + {CACERT_SUFFIX:?}\n\
         || (params.?status.?bundle.orValue([]).size() > 0 && params.?status.?secretName.orValue(\"\") == variables.name)\n\
         || variables.targets.exists(t, t.kind == \"Secret\")\n\
         || (params.spec.?issuerSecretName.orValue(\"\") == variables.name\n\
         && params.spec.?clients.?caSecretRef.or(params.spec.?caSecretRef)\n\
         .or(has(params.spec.certificateRef) ? params.?status.?resolved.?caSecretRef : optional.none())\n\
         .?namespace.orValue(request.namespace) == request.namespace)"
    )
}

/// Whether the agent writes a ConfigMap of this name.
fn owned_config_map() -> String {
    let (journal, copy) = (journal_name(""), managed_config_map_name(""));
    format!(
        "variables.name == params.metadata.name + {journal:?} || variables.targets.exists(t, t.kind == \"ConfigMap\")\n\
         || params.spec.?clients.?caConfigMapNames.orValue([]).exists(source, variables.name == source + {copy:?})"
    )
}

/// Whether a request deletes the object, changes a field that only the agent may change, or adds an owner.
fn changed() -> String {
    let fields = OWNED_FIELDS.map(|path| format!("{} != {}\n|| ", field("object", path), field("oldObject", path)));
    format!(
        "request.operation == \"DELETE\"\n|| {}(variables.owners != variables.oldOwners\n\
         && (variables.owners.size() > {READ} || variables.oldOwners.size() > {READ}\n\
         || !variables.owners.all(owner, variables.oldOwners.exists(old, old.uid == owner.uid))))",
        fields.concat()
    )
}

/// Another name for the managed Secret, as [`super::gateway_secret::findings`] decides it.
fn managed_renamed() -> Value {
    let variables = [
        ("managed", "object.spec.?secretName.orValue(object.metadata.name)"),
        ("hadAnotherName", "oldObject.spec.?secretName.orValue(oldObject.metadata.name) != variables.managed"),
        ("stored", "oldObject.?status.?secretName.orValue(variables.managed)"),
        ("exists", "oldObject.?status.?bundle.orValue([]).size() > 0"),
    ];
    let variables = variables.map(|(name, expression)| json!({ "name": name, "expression": expression }));
    let message = renamed_message(&spliced("variables.stored"), &spliced("variables.managed"));
    json!({
        "apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name(MANAGED_RENAMED.id) },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [{
                    "apiGroups": [GROUP], "apiVersions": ["v1alpha1"], "operations": ["UPDATE"],
                    "resources": ["gatewaysecrets"], "scope": "Namespaced",
                }],
            },
            "matchConditions": [{
                "name": "not-draining",
                "expression": "!has(object.metadata.deletionTimestamp)\n\
                    || object.spec != oldObject.spec\n\
                    || object.metadata.?labels != oldObject.metadata.?labels\n\
                    || object.metadata.?annotations != oldObject.metadata.?annotations",
            }],
            "variables": variables,
            "validations": [{
                "expression": "!variables.hadAnotherName || !variables.exists || variables.stored == variables.managed",
                "messageExpression": message_expression(&MANAGED_RENAMED, &message),
                "reason": "Forbidden",
            }],
        },
    })
}

/// The policy on the Secrets of declared clients. It has the name of no rule: the webhook never denies them, it adds what they lack.
const CLIENT_BUNDLE: &str = "client-bundle";

/// Whether `ca.crt`, in base64, is a single certificate: it starts with `-----BEGIN CERTIFICATE-----`, and no other text after that begins with
/// `-----BEGIN `, which base64 writes in three ways. Without decoding: text that is not UTF-8 would be an error.
const ONE_CERTIFICATE: &str = "[object.?data[?\"ca.crt\"].orValue(\"\")].exists(c, c.size() <= 8192\n\
    && c.startsWith(\"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\")\n\
    && ![\"LS0tLS1CRUdJTi\", \"0tLS0tQkVHSU4g\", \"tLS0tLUJFR0lOI\"].exists(b, c.substring(36).contains(b)))";

/// Judges the Secret of a declared client whose `ca.crt` is one CA, as an issuer writes it: that has to be the whole bundle. A webhook that runs
/// adds the rest before, so several CAs are not judged. What the agent writes is no Secret of a client, whatever its labels are.
fn client_bundle(agent: &str, excluded: &[&str]) -> Value {
    let of_this = format!(
        "object.metadata.?labels[?{CLIENT_LABEL:?}].orValue(\"\") == params.metadata.name\n\
         && params.spec.?mode.orValue(\"Bundle\") == \"Bundle\""
    );
    let message = format!(
        "\"{CLIENT_BUNDLE}: ca.crt of \" + object.metadata.name + \" is not the bundle of clients of GatewaySecret \" + params.metadata.name + \
         \", and no webhook has added it. write it again when the webhook runs\""
    );
    json!({
        "apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name(CLIENT_BUNDLE) },
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": param_kind(),
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": not_in(excluded),
                "objectSelector": { "matchExpressions": [{ "key": CLIENT_LABEL, "operator": "Exists" }] },
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["secrets"], "scope": "Namespaced",
                }],
            },
            "matchConditions": [
                {
                    "name": "not-draining",
                    "expression": "request.operation != \"UPDATE\" || !has(object.metadata.deletionTimestamp)\n\
                        || object.?data != oldObject.?data",
                },
                { "name": "not-the-agent", "expression": format!("request.userInfo.username != {agent:?}") },
                { "name": "client-of-this-gatewaysecret", "expression": of_this },
                { "name": "one-ca", "expression": ONE_CERTIFICATE },
            ],
            "validations": [{
                "expression": "params.?status.?clientBundle.orValue([]).size() == 0\n\
                    || object.data[\"ca.crt\"] == params.status.?clientBundleData.orValue(\"\")",
                "messageExpression": message,
                "reason": "Forbidden",
            }],
        },
    })
}

const API_VERSION: &str = "admissionregistration.k8s.io/v1";

fn name(policy: &str) -> String {
    format!("trustspan-{policy}")
}

fn param_kind() -> Value {
    json!({ "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret" })
}

fn not_in(excluded: &[&str]) -> Value {
    json!({ "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded }] })
}

fn binding(policy: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name(policy) },
        "spec": { "policyName": name(policy), "validationActions": ["Deny"] },
    })
}

/// The CEL expression of an optional field.
fn field(object: &str, path: &[&str]) -> String {
    path.iter().fold(object.to_owned(), |expression, key| match key.contains(|c: char| !c.is_ascii_alphanumeric()) {
        true => format!("{expression}[?{key:?}]"),
        false => format!("{expression}.?{key}"),
    })
}

/// An expression in the place of a word of a message, which [`message_expression`] puts in quotes.
fn spliced(expression: &str) -> String {
    format!("\" + {expression} + \"")
}

/// The CEL expression of a message that starts with its rule, as the webhook's.
fn message_expression(rule: &RuleInfo, message: &str) -> String {
    format!("\"{}: {message}\"", rule.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::{Level, PUBLISHED};

    #[test]
    fn published_severities_are_those_of_the_policies_with_a_parameter() {
        let policies = policies("agent", &[], &Severities::default()).map(|object| object.to_string());
        for rule in PUBLISHED {
            assert!(RuleInfo::find(rule).is_some_and(|rule| !rule.is_fixed()), "{rule}");
            assert!(policies[0].contains(&format!("severities[?\\\"{rule}\\\"]")), "{}", policies[0]);
        }
    }

    /// A webhook that may not answer, and the policy, have to agree on which Secrets are judged: neither judges what the other leaves to it.
    #[test]
    fn webhooks_of_clients_decide_by_the_condition_of_the_policy() {
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/base/webhooks.yaml"));
        let configurations: Vec<Value> = serde_saphyr::from_multiple(manifest).expect("manifests");
        let condition = |webhook: &str| {
            let webhooks = configurations.iter().flat_map(|one| one["webhooks"].as_array().into_iter().flatten());
            let webhook = webhooks.into_iter().find(|one| one["name"] == webhook).expect("a webhook");
            let conditions = webhook["matchConditions"].as_array().expect("conditions");
            let mut texts = conditions.iter().filter_map(|one| one["expression"].as_str());
            texts.find(|text| text.contains("ca.crt")).map(|text| text.split_whitespace().collect::<String>())
        };
        let one: String = ONE_CERTIFICATE.split_whitespace().collect();
        let own = format!("!object.metadata.?labels[?{CLIENT_LABEL:?}].orValue(\"_\").contains(\"_\")&&{one}");
        assert_eq!(condition("clients.mutate.trustspan.dev"), Some(format!("!({own})")));
        assert_eq!(condition("client-renewals.mutate.trustspan.dev"), Some(own));
    }

    #[test]
    fn the_severity_of_the_webhook_is_that_of_gateway_secrets_without_one() {
        let severity = |level: Option<Level>| {
            let severities = level.map(|level| (KEPT_BY_AGENT.id.to_owned(), level)).into_iter().collect();
            let [kept, ..] = policies("agent", &[], &severities);
            let variables = kept["spec"]["variables"].as_array().cloned().unwrap_or_default();
            let severity = variables.into_iter().find(|variable| variable["name"] == "severity");
            severity.and_then(|variable| variable["expression"].as_str().map(str::to_owned)).unwrap_or_default()
        };
        for (level, expected) in
            [(None, "Deny"), (Some(Level::Deny), "Deny"), (Some(Level::Warn), "Warn"), (Some(Level::Off), "Warn")]
        {
            assert!(severity(level).ends_with(&format!(".orValue({expected:?})")), "{level:?}: {}", severity(level));
        }
    }
}
