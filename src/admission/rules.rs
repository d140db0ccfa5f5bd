//! All rules: those on the content of Secrets ([`crate::trust::RULES`]), and those on other objects and on references.

use serde::Serialize;

use crate::trust::{self, FIXED, Finding, Severity};

/// A rule, as it is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RuleInfo {
    /// Stable id, in kebab case.
    pub id: &'static str,
    /// The severity of its findings; some of them only warn.
    pub severity: Severity,
    /// What it finds, in one line.
    pub summary: &'static str,
    /// Why it is a rule: the RFC, the program's source, or what was measured.
    pub source: &'static str,
    /// An example of its messages.
    pub example: &'static str,
    /// How to fix it, in a line.
    pub remedy: &'static str,
}

/// An object that cannot be read as a Secret.
pub(super) const UNREADABLE: RuleInfo = RuleInfo {
    id: "unreadable",
    severity: Severity::Deny,
    summary: "a manifest that is not a Secret of the Kubernetes API, or a caBundle that is not base64",
    source: "the API server rejects it, too: data is a map of base64, and caBundle is base64 (RFC 4648 section 4)",
    example: "not base64; put plain text under stringData",
    remedy: "write base64 under data, or plain text under stringData",
};

/// The deletion of a managed Secret that is in use.
pub(super) const MANAGED_IN_USE: RuleInfo = RuleInfo {
    id: "managed-in-use",
    severity: Severity::Deny,
    summary: "the deletion of a managed Secret that Gateways use",
    source: "without the Secret istiod sends nothing to a gateway that starts: its listener serves no certificate",
    example: "Secret gw is used by 1 Gateway; a gateway that starts without it serves no certificate. delete GatewaySecret gw \
              first, or let the Gateways use another Secret",
    remedy: "delete the GatewaySecret first, or change the Gateways to another Secret",
};

/// Another name for a managed Secret that is in use.
pub(super) const MANAGED_RENAMED: RuleInfo = RuleInfo {
    id: "managed-renamed",
    severity: Severity::Deny,
    summary: "another spec.secretName while the managed Secret exists under the previous one",
    source: "references to the managed Secret are not rewritten to another name, so they would miss all further rotations",
    example: "Secret gw is in use: Gateways and workloads that use it are not rewritten to gw-2. keep spec.secretName. to use \
              another name, wait for phase Steady, make them use the source Secret, delete this GatewaySecret and create one with \
              the other name",
    remedy: "keep the name; or, in phase Steady, delete the GatewaySecret and create one with another name",
};

/// A write to an object that the agent owns.
pub(super) const KEPT_BY_AGENT: RuleInfo = RuleInfo {
    id: "kept-by-agent",
    severity: Severity::Deny,
    summary: "a change or the deletion of an object that trustspan's agent owns",
    source: "the agent reverts it within seconds; during a rotation that is long enough to disconnect clients",
    example: "gw is written by trustspan for GatewaySecret gw, which reverts other writes. change the source Secret or the \
              GatewaySecret, or delete the GatewaySecret first",
    remedy: "change the source Secret or the GatewaySecret instead",
};

/// A managed Secret that is not protected during an outage of the webhook.
pub(super) const MANAGED_UNLABELLED: RuleInfo = RuleInfo {
    id: "managed-unlabelled",
    severity: Severity::Warn,
    summary: "a managed Secret without the label by which the API server selects it",
    source: "the webhook configuration fails closed only for objects with this label, and those in the Roles of trustspan rbac",
    example: "managed Secret gw lacks label trustspan.dev/managed=true. expected it: without it the API server may accept writes of this Secret \
              while the webhook is down, unless the Role of trustspan rbac is applied; the agent adds it, so let that run",
    remedy: "let the agent run, which writes the label; without an agent, kubectl label secret <name> trustspan.dev/managed=true",
};

/// A stored object that the mutating webhook missed.
pub(super) const NOT_REWRITTEN: RuleInfo = RuleInfo {
    id: "not-rewritten",
    severity: Severity::Warn,
    summary: "a stored Gateway or workload that still names a source Secret or ConfigMap",
    source: "the mutating webhook fails open, so that an outage blocks no write",
    example: "names a source Secret or ConfigMap: the webhook missed this write. write it again, such as with kubectl annotate",
    remedy: "write it again: kubectl annotate, or kubectl rollout restart for a workload",
};

/// A server that requests client certificates but verifies none.
pub(super) const ADMITS_EVERYBODY: RuleInfo = RuleInfo {
    id: "admits-everybody",
    severity: Severity::Deny,
    summary: "a Gateway server that names, for its clients' CAs, a Secret which istiod serves as a certificate",
    source: "istiod serves CAs only under names that end in -cacert and from ConfigMaps (pilot/pkg/xds/sds.go); measured with \
             Istio 1.29 and Envoy 1.40: mode MUTUAL then accepts every client, even without a certificate",
    example: "partners: istiod serves this Secret as a certificate, so the gateway gets no CA and accepts every client. expected \
              the name of a CA Secret with the suffix -cacert, or configmap://NAMESPACE/NAME",
    remedy: "write NAME-cacert: istiod uses Secret NAME-cacert, or else the CA in Secret NAME; or remove the field",
};

/// A rewrite that is blocked.
pub(super) const REWRITE_HELD: RuleInfo = RuleInfo {
    id: "rewrite-held",
    severity: Severity::Warn,
    summary: "a Gateway or workload that is not rewritten yet and still names the source Secret",
    source: "docs/adr/0003: a name is changed only if the new Secret exists for every workload that reads it",
    example: "GatewaySecret gw is not Ready (SecretMissing), so Secret gw cannot be used yet; do what its condition Ready says",
    remedy: "do what the message says, then write the object again",
};

/// Two GatewaySecrets for one name.
pub(super) const NAME_CONFLICT: RuleInfo = RuleInfo {
    id: "name-conflict",
    severity: Severity::Warn,
    summary: "a GatewaySecret that claims a Secret which an older one claims",
    source: "the older one wins, so that no GatewaySecret takes over the Secret of another",
    example: "GatewaySecret gw is older and claims one of these names: this one has no effect",
    remedy: "choose another spec.sourceSecretName or spec.secretName, or delete one of the two",
};

/// A GatewaySecret or policy that its CRD rejects.
pub(crate) const INVALID_RESOURCE: RuleInfo = RuleInfo {
    id: "invalid-resource",
    severity: Severity::Deny,
    summary: "a GatewaySecret or policy that its CustomResourceDefinition rejects, or with an unknown time zone",
    source: "manifests/base/crd.yaml; a schema cannot check names of the IANA Time Zone Database",
    example: "two of the Secrets that it names are called gw. expected different names for the source Secret, the managed Secret and the \
              Issuer's Secret; rename one of them",
    remedy: "correct the field that the message names",
};

/// An override without permission.
pub(super) const BREAK_GLASS: RuleInfo = RuleInfo {
    id: "break-glass",
    severity: Severity::Deny,
    summary: "an annotation that overrides a rule, set without the permission to do so",
    source: "docs/adr/0006: everyone who may edit an object can annotate it, and the next writer may have more permissions",
    example: "breakglass.trustspan.dev/expired was added or changed by a user who may not override rules. expected the right \
              breakglass on gatewaysecrets.trustspan.dev in this namespace; ask a user with this right, or remove the annotation",
    remedy: "ask a user who is bound to the ClusterRole trustspan-breakglass to write it",
};

/// An update that disconnects clients from gateways.
pub(super) const CONNECTIVITY: RuleInfo = RuleInfo {
    id: "connectivity",
    severity: Severity::Deny,
    summary: "an update after which active clients and gateways refuse each other; in mode Copy it warns",
    source: "GatewaySecret status says which leaves are in use; they are verified as by Envoy, before and after",
    example: "ca.crt: this update removes every CA of 1 active client certificate (shop), so gateways would refuse them until \
              2031-01-01T00:00:00Z. expected a CA of each active client to stay; keep it until they are renewed from another CA, \
              then remove it",
    remedy: "add the new CA first, renew the leaves, remove the old CA last",
};

/// A GatewaySecret whose source Secret is not judged.
pub(super) const NAMESPACE_UNGUARDED: RuleInfo = RuleInfo {
    id: "namespace-unguarded",
    severity: Severity::Warn,
    summary: "a GatewaySecret in a namespace whose Secrets are not judged at admission",
    source: "the API server sends Secrets of labelled namespaces only (docs/guard.md); the agent rejects an invalid one, and waits",
    example: "namespace mesh is not guarded: label it trustspan.dev/guard=enabled. without this label an invalid source Secret is \
              accepted, and blocks the next rotation",
    remedy: "kubectl label namespace NAMESPACE trustspan.dev/guard=enabled",
};

/// A severity without effect.
pub(super) const SEVERITY_IGNORED: RuleInfo = RuleInfo {
    id: "severity-ignored",
    severity: Severity::Warn,
    summary: "a severity in a RotationPolicy for a rule that does not exist, or whose severity is fixed",
    source: "rules depend on the version of trustspan, so the CustomResourceDefinition cannot list their ids",
    example: "there is no rule expird: this severity changes nothing. expected an id that `trustspan rules` lists",
    remedy: "take an id from `trustspan rules`, or remove the line",
};

/// An annotation or label without effect.
pub(super) const VALUE_IGNORED: RuleInfo = RuleInfo {
    id: "value-ignored",
    severity: Severity::Warn,
    summary: "an annotation or label of trustspan with a value that has no effect",
    source: "values are compared as strings: \"True\" and \"yes\" are not \"true\"",
    example: "\"yes\" has no effect. expected \"true\", or how many old CAs to keep",
    remedy: "write one of the values that the message names, or remove it",
};

/// A client that no rotation waits for.
pub(super) const NO_SUCH_GATEWAY_SECRET: RuleInfo = RuleInfo {
    id: "no-such-gatewaysecret",
    severity: Severity::Warn,
    summary: "the label of a client whose GatewaySecret does not exist, or does not list the client's namespace; never more than a \
              warning",
    source: "a client in another namespace needs both owners, so that no team delays another team's rotation",
    example: "no GatewaySecret gatway here: the client is not declared. expected the name of one in namespace shop, or \
              NAMESPACE_NAME of one in another namespace",
    remedy: "name a GatewaySecret of this namespace, or NAMESPACE_NAME of one that lists this namespace in spec.clients.namespaces",
};

/// A kubeconfig that client-go cannot read.
pub(super) const KUBECONFIG_UNREADABLE: RuleInfo = RuleInfo {
    id: "kubeconfig-unreadable",
    severity: Severity::Deny,
    summary: "a kubeconfig in a Secret with data that is not base64; one too large to be judged warns",
    source: "client-go reads these fields as base64; it rejects the whole kubeconfig if one is not",
    example: "not base64. client-go refuses the whole kubeconfig; expected base64 of a PEM text",
    remedy: "write it with kubectl config set-credentials and set-cluster, with --embed-certs",
};

/// The rules that are not on the content of one Secret.
const BEYOND: &[RuleInfo] = &[
    UNREADABLE,
    MANAGED_IN_USE,
    MANAGED_RENAMED,
    KEPT_BY_AGENT,
    MANAGED_UNLABELLED,
    NOT_REWRITTEN,
    ADMITS_EVERYBODY,
    REWRITE_HELD,
    NAME_CONFLICT,
    INVALID_RESOURCE,
    NAMESPACE_UNGUARDED,
    SEVERITY_IGNORED,
    VALUE_IGNORED,
    NO_SUCH_GATEWAY_SECRET,
    BREAK_GLASS,
    CONNECTIVITY,
    KUBECONFIG_UNREADABLE,
];

/// All rules, in the order in which findings are reported.
pub fn rules() -> impl Iterator<Item = RuleInfo> {
    let on_secrets = trust::RULES.iter().map(|rule| RuleInfo {
        id: rule.id,
        severity: rule.severity,
        summary: rule.summary,
        source: rule.source,
        example: rule.example,
        remedy: rule.remedy,
    });
    on_secrets.chain(BEYOND.iter().copied())
}

impl RuleInfo {
    /// The rule with this id.
    pub fn find(id: &str) -> Option<Self> {
        rules().find(|rule| rule.id == id)
    }

    /// Whether its severity cannot be changed.
    pub fn is_fixed(&self) -> bool {
        FIXED.contains(&self.id)
    }

    pub(crate) fn finding(&self, field: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { rule: self.id, severity: self.severity, field: field.into(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let ids: BTreeSet<_> = rules().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), rules().count(), "an id occurs twice");
        for rule in rules() {
            assert_eq!(RuleInfo::find(rule.id), Some(rule));
            for text in [rule.summary, rule.source, rule.example, rule.remedy] {
                assert!(!text.is_empty() && !text.contains(['\n', '|']), "{}: {text}", rule.id);
            }
        }
        assert_eq!(RuleInfo::find("no-such-rule"), None);
    }
}
