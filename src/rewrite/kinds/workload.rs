//! [`WorkloadKind`]s: all references to a Secret in the pod template, except `imagePullSecrets`.
//!
//! Source: <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodSpec>.

use super::{JsonPath, Reference, RewriteRule};
use crate::api::WorkloadKind;
use crate::json::Json;

pub(super) const RULE: RewriteRule = RewriteRule {
    group: "apps",
    versions: &["v1"],
    kinds: &WorkloadKind::NAMES,
    references,
    // Workloads have no TLS settings of a gateway.
    tls_settings: |_, _| Vec::new(),
    can_trust_another_source: |_| false,
    has_template: true,
};

fn references<'a>(object: &'a Json<'a>, namespace: &'a str) -> Vec<Reference<'a>> {
    let pod = JsonPath::root(object).path(&["spec", "template", "spec"]);
    let volumes = pod.get("volumes").items().flat_map(|volume| {
        let projected = volume.path(&["projected", "sources"]);
        let sources = projected.items().map(|source| source.path(&["secret", "name"]));
        std::iter::once(volume.path(&["secret", "secretName"])).chain(sources)
    });
    let containers = ["initContainers", "containers"].map(|list| pod.get(list));
    let environment = containers.iter().flat_map(JsonPath::items).flat_map(|container| {
        let env = container.get("env");
        let env = env.items().map(|variable| variable.path(&["valueFrom", "secretKeyRef", "name"]));
        let from = container.get("envFrom");
        let from = from.items().map(|source| source.path(&["secretRef", "name"]));
        env.chain(from)
    });
    volumes.chain(environment).filter_map(|node| Reference::bare(&node, namespace)).collect()
}
