//! The parts of charts/trustspan that are the same as the manifests, with the chart's names and namespaces in place of fixed ones.

use kube::CustomResourceExt;
use serde_json::{Value, json};
use trustspan::api::{ClientIdentity, GatewaySecret, RotationPolicy};

/// A template, the file of `manifests` from which it is made, and the condition under which it renders anything.
pub(crate) const TEMPLATES: [(&str, &str, Option<&str>); 15] = [
    ("crds", "base/crd", Some(".Values.crds.enabled")),
    ("rbac", "base/rbac", None),
    ("policy", "base/policy", None),
    ("policies", "policies/policies", Some(".Values.policies.enabled")),
    ("webhooks", "base/webhooks", None),
    ("ca-bundles", "ca-bundles/webhooks", Some(".Values.caBundles.enabled")),
    ("certificate", "cert-manager/certificate", Some("eq .Values.servingCertificate.mode \"certManager\"")),
    ("podmonitor", "monitoring/podmonitor", Some(".Values.metrics.podMonitor.enabled")),
    ("prometheusrule", "monitoring/prometheusrule", Some(".Values.metrics.prometheusRule.enabled")),
    ("approver-rbac", "approver/rbac", Some(".Values.approver.enabled")),
    ("approver-policy", "approver/policy", Some(".Values.approver.enabled")),
    ("certgen-rbac", "certgen/rbac", Some(".Values.certgen.enabled")),
    ("certgen-policy", "certgen/policy", Some(".Values.certgen.enabled")),
    ("mirror-rbac", "node/rbac", Some(".Values.mirror.enabled")),
    ("mirror-policy", "node/policy", Some(".Values.mirror.enabled")),
];

/// The condition of everything that the agent needs for the serving certificate.
const AGENT_KEEPS_CERTIFICATE: &str = "eq .Values.servingCertificate.mode \"agent\"";

const FULLNAME: &str = "{{ include \"trustspan.fullname\" . }}";

/// Lines of manifests that a value replaces.
pub(crate) const REPLACED: [(&str, &str); 8] = [
    (
        "          values: [kube-system, kube-node-lease, trustspan-system]",
        "          values: {{ include \"trustspan.excludedNamespaces\" . }}",
    ),
    // The same in `trustspan policies`.
    (
        "        values:\n        - kube-system\n        - kube-node-lease\n        - trustspan-system",
        "        values: {{ include \"trustspan.excludedNamespaces\" . }}",
    ),
    (
        "    expression: params.?status.?severities[?\"kept-by-agent\"].orValue(\"Deny\")",
        "    expression: params.?status.?severities[?\"kept-by-agent\"].orValue({{ include \"trustspan.keptByAgentSeverity\" . }})",
    ),
    (
        "    clientConfig:",
        "    clientConfig:
      {{- with .Values.servingCertificate.caBundle }}
      caBundle: {{ . }}
      {{- end }}",
    ),
    (
        "    # Ignore with policies.\n    failurePolicy: Fail",
        "    failurePolicy: {{ ternary \"Ignore\" \"Fail\" .Values.policies.enabled }}",
    ),
    (
        "\nwebhooks:",
        "
  {{- with include \"trustspan.webhookAnnotations\" . }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
webhooks:",
    ),
    (
        "    resources: [secrets]\n    resourceNames: [ingress-gateway]",
        "    resources: [{{ lower .Values.mirror.source.kind }}s]\n    resourceNames: [{{ .Values.mirror.source.name }}]",
    ),
    (
        "      app.kubernetes.io/name: trustspan",
        "      {{- include \"trustspan.commonSelectorLabels\" . | nindent 6 }}",
    ),
];

/// A template of a manifest. Each object gets the chart's labels.
pub(crate) fn template(manifest: &str, text: &str, condition: Option<&str>) -> String {
    let mut text = text.replace("{{", "{{ \"{{\" }}");
    for (line, replacement) in REPLACED {
        text = text.replace(&format!("{line}\n"), &format!("{replacement}\n"));
    }
    let head = format!(
        "{{{{- /* Generated from manifests/{manifest}.yaml: TRUSTSPAN_WRITE=1 cargo test --test reference */ -}}}}\n"
    );
    let body = labelled(&with_names(&text), manifest);
    match condition {
        Some(condition) => head + &only_if(condition, &body),
        None => head + &conditional(&body),
    }
}

/// A text that is rendered only under a condition.
fn only_if(condition: &str, text: &str) -> String {
    format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")
}

/// Documents, of which those for the serving certificate are rendered only if the agent keeps it.
fn conditional(body: &str) -> String {
    let is_conditional = format!("\n  name: {FULLNAME}-agent-serving-certificate\n");
    let documents = body.split_inclusive("\n---\n").map(|document| match document.contains(&is_conditional) {
        true => only_if(AGENT_KEEPS_CERTIFICATE, document),
        false => document.to_owned(),
    });
    documents.collect()
}

/// The profile of the serving certificate, with the names and times of the release.
pub(crate) fn profile(text: &str) -> String {
    let (before, after) = text.split_once("\nduration: 8760h\n").unwrap();
    with_names(before)
        + "duration: {{ .Values.servingCertificate.duration }}\n\
           propagationDelay: {{ .Values.servingCertificate.propagationDelay }}\n"
        + &with_names(after)
}

/// A text with the names and namespaces of the release.
fn with_names(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", named(line))).collect()
}

/// A line with the names and namespaces of the release. Comments keep those of the manifests.
fn named(line: &str) -> String {
    if line.trim_start().starts_with('#') {
        return line.to_owned();
    }
    let line = [
        ("trustspan-system", "{{ .Release.Namespace }}"),
        ("envoy-gateway-system", "{{ .Values.certgen.namespace }}"),
        ("trustspan-node", "{{ .Values.mirror.namespace }}"),
        ("istio-ingress", "{{ .Values.mirror.source.namespace }}"),
        ("trustspan-", &format!("{FULLNAME}-")),
        // The end of a journal's name, whatever the release.
        (&format!(".{FULLNAME}-journal"), ".trustspan-journal"),
        // In a list of names.
        ("[trustspan]", &format!("[{FULLNAME}]")),
        ("[trustspan,", &format!("[{FULLNAME},")),
    ]
    .iter()
    .fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
    match line.strip_suffix(": trustspan") {
        Some(start) => format!("{start}: {FULLNAME}"),
        None => line,
    }
}

/// With the chart's labels, and what else a value adds to the metadata.
fn labelled(body: &str, manifest: &str) -> String {
    let mut labels = "  labels:\n    {{- include \"trustspan.labels\" . | nindent 4 }}\n".to_owned();
    if let Some(name) = manifest.strip_prefix("monitoring/") {
        let name = if name == "podmonitor" { "podMonitor" } else { "prometheusRule" };
        labels += &format!(
            "    {{{{- with .Values.metrics.{name}.labels }}}}\n    {{{{- toYaml . | nindent 4 }}}}\n    {{{{- end }}}}\n"
        );
    }
    if manifest.starts_with("certgen/") {
        labels += "    app.kubernetes.io/component: certgen\n";
    }
    if manifest == "base/crd" {
        labels += "  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n";
    }
    let documents = format!("\n{body}");
    let documents = documents.split("\n---").map(|document| {
        let labels = labels.clone() + &service_account_annotations(document);
        match document.contains("\n  labels:\n") {
            true => document.replacen("\n  labels:\n", &format!("\n{labels}"), 1),
            false => document.replacen("\nmetadata:\n", &format!("\nmetadata:\n{labels}"), 1),
        }
    });
    documents.collect::<Vec<_>>().join("\n---").trim_start().to_owned()
}

/// The annotations of a ServiceAccount are those of the component that is the end of its name.
fn service_account_annotations(document: &str) -> String {
    let name = document.split("\nkind: ServiceAccount\n").nth(1).and_then(|rest| rest.split("\n  namespace: ").next());
    let Some((_, component)) = name.and_then(|name| name.rsplit_once('-')) else { return String::new() };
    format!(
        "  {{{{- with .Values.{component}.serviceAccountAnnotations }}}}\n  annotations:\n    {{{{- toYaml . | nindent 4 }}}}\n  {{{{- end }}}}\n"
    )
}

/// The schema of values, with the schemas of trustspan's kinds, in which an unknown field is an error.
pub(crate) fn values_schema(committed: &str) -> String {
    let mut schema: Value = serde_json::from_str(committed).unwrap();
    let part = |definition: Value, part: &str| {
        let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part].clone();
        strict(&mut schema);
        schema
    };
    let gateway_secret = json!(GatewaySecret::crd());
    let defs = schema["$defs"].as_object_mut().unwrap();
    defs.insert("gatewaySecretSpec".to_owned(), part(gateway_secret, "spec"));
    defs.insert("rotationPolicySpec".to_owned(), part(json!(RotationPolicy::crd()), "spec"));
    defs.insert("clientIdentitySpec".to_owned(), part(json!(ClientIdentity::crd()), "spec"));
    serde_json::to_string_pretty(&schema).unwrap() + "\n"
}

/// Refuses unknown fields, and drops what only the API server reads.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, _| !key.starts_with("x-kubernetes-") && key != "description" && key != "nullable");
            map.values_mut().for_each(strict);
            if map.get("properties").is_some_and(Value::is_object) && map.get("type") == Some(&json!("object")) {
                map.insert("additionalProperties".to_owned(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(strict),
        _ => {}
    }
}

const HEAD: &str = "<!-- Generated: TRUSTSPAN_WRITE=1 cargo test --test reference -->
# Values of the Helm chart

What [the chart](../install.md) can be given, from `charts/trustspan/values.yaml`. `values.schema.json` refuses every other value.

| value | default | description |
|---|---|---|
";

/// docs/reference/values.md: each value with its comment.
pub(crate) fn values_page(yaml: &str) -> String {
    let values: Value = serde_saphyr::from_str(yaml).unwrap();
    let (mut page, mut path, mut comment) = (HEAD.to_owned(), Vec::<&str>::new(), None);
    for line in yaml.lines() {
        let text = line.trim_start();
        match (text.strip_prefix("# "), text.split_once(':')) {
            (Some(text), _) => comment = Some(text),
            (None, Some((key, _))) => {
                path.truncate((line.len() - text.len()) / 2);
                path.push(key);
                let Some(description) = comment.take() else { continue };
                let default = values.pointer(&format!("/{}", path.join("/"))).unwrap();
                page += &format!("| `{}` | `{default}` | {description} |\n", path.join("."));
            }
            // A paragraph that is about no single value.
            (None, None) => comment = None,
        }
    }
    page
}

/// The values without a comment on them or on a value around them.
pub(crate) fn undescribed(page: &str, value: &Value, path: &str) -> Vec<String> {
    if !path.is_empty() && page.contains(&format!("\n| `{path}` | ")) {
        return Vec::new();
    }
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| undescribed(page, value, format!("{path}.{key}").trim_start_matches('.')))
            .collect(),
        _ => vec![path.to_owned()],
    }
}
