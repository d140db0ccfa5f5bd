//! Every rule that a finding can name: those on Secrets ([`crate::trust::RULES`]), and those that look beyond the Secret.

use serde::Serialize;

use crate::trust::{self, FIXED, Finding, Severity};

/// A rule, as users read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RuleInfo {
    /// Stable id, in kebab case.
    pub id: &'static str,
    /// The weight of its findings, unless they say that they weigh less.
    pub severity: Severity,
    /// What it finds, in a line.
    pub summary: &'static str,
    /// Why it is a rule: the RFC, the program's source, or what was measured.
    pub source: &'static str,
    /// One of its messages.
    pub example: &'static str,
    /// What to do about it, in a line.
    pub mend: &'static str,
}

/// An object that is no Secret of the Kubernetes API.
pub(super) const UNREADABLE: RuleInfo = RuleInfo {
    id: "unreadable",
    severity: Severity::Deny,
    summary: "a manifest that is no Secret of the Kubernetes API, or a caBundle that is not base64",
    source: "the API server refuses it too: data is a map of base64, and caBundle is base64 (RFC 4648 section 4)",
    example: "not base64; put plain text under stringData",
    mend: "write base64 under data, or plain text under stringData",
};

/// The end of a managed Secret under its users.
pub(super) const MANAGED_IN_USE: RuleInfo = RuleInfo {
    id: "managed-in-use",
    severity: Severity::Deny,
    summary: "the deletion of a managed Secret that Gateways use",
    source: "istiod has nothing to send to a gateway that starts without the Secret: its listener serves no certificate",
    example: "Secret gw is used by 1 Gateway(s); their next pod would start without it. Delete GatewaySecret gw first, or let the \
              Gateways name another Secret",
    mend: "delete the GatewaySecret first, or let the Gateways name another Secret",
};

/// A managed Secret that gets another name under its users.
pub(super) const MANAGED_RENAMED: RuleInfo = RuleInfo {
    id: "managed-renamed",
    severity: Severity::Deny,
    summary: "another spec.secretName while the managed Secret stands under the former one",
    source: "what names the managed Secret is not rewritten to another, and would keep what the former holds, through no rotation",
    example: "Secret gw is in use: Gateways and workloads that name it would not follow to gw-2. keep spec.secretName; for another \
              name wait for phase Steady, let them name the root Secret, delete this GatewaySecret and make one of another name",
    mend: "keep the name; or, in phase Steady, delete the GatewaySecret and make one of another name",
};

/// A write of what the agent keeps.
pub(super) const KEPT_BY_AGENT: RuleInfo = RuleInfo {
    id: "kept-by-agent",
    severity: Severity::Deny,
    summary: "a change or the deletion of what trustspan's agent keeps",
    source: "the agent undoes it within seconds; in mid-rotation that is long enough to cut clients off",
    example: "gw is kept by trustspan for GatewaySecret gw: any other write is undone. change the root Secret or the \
              GatewaySecret, or delete the GatewaySecret first",
    mend: "change the root Secret or the GatewaySecret instead",
};

/// A managed Secret that an outage of the webhook leaves open.
pub(super) const MANAGED_UNLABELLED: RuleInfo = RuleInfo {
    id: "managed-unlabelled",
    severity: Severity::Warn,
    summary: "a managed Secret without the label by which the API server knows it",
    source: "the webhook configuration fails closed by this label only",
    example: "managed Secret gw lacks label trustspan.dev/managed=true: writes pass while the webhook is down",
    mend: "kubectl label secret <name> trustspan.dev/managed=true",
};

/// A stored object that the mutating webhook did not see.
pub(super) const NOT_REWRITTEN: RuleInfo = RuleInfo {
    id: "not-rewritten",
    severity: Severity::Warn,
    summary: "a stored Gateway or workload that still names a source Secret or ConfigMap",
    source: "the mutating webhook fails open, so that an outage blocks nobody",
    example: "names a source Secret or ConfigMap: the webhook did not see this write. Any write has it rewritten, such as kubectl annotate",
    mend: "write it once more: kubectl annotate, or kubectl rollout restart for a workload",
};

/// A server that verifies no client although it asks for certificates.
pub(super) const ADMITS_EVERYBODY: RuleInfo = RuleInfo {
    id: "admits-everybody",
    severity: Severity::Deny,
    summary: "a Gateway server that names, for its clients' CAs, a Secret which istiod serves as a certificate",
    source: "istiod serves CAs only under names that end in -cacert and from ConfigMaps (pilot/pkg/xds/sds.go); measured with \
             Istio 1.29 and Envoy 1.40: mode MUTUAL then lets in every client, one without a certificate too",
    example: "partners: istiod serves this Secret as a certificate, so the gateway gets no CA and lets in every client. \
              Expected the name of a CA Secret with the suffix -cacert, or configmap://NAMESPACE/NAME",
    mend: "write NAME-cacert: istiod takes Secret NAME-cacert, or the CA in Secret NAME where there is none; or leave the field out",
};

/// A rename that waits.
pub(super) const REWRITE_HELD: RuleInfo = RuleInfo {
    id: "rewrite-held",
    severity: Severity::Warn,
    summary: "a Gateway or workload that keeps naming the root Secret for now",
    source: "docs/adr/0003: a name is changed only where it holds for every workload that it reaches",
    example: "not rewritten to Secret gw: GatewaySecret gw is not Ready (SecretMissing). See its conditions",
    mend: "do what the message says, then write the object once more",
};

/// Two GatewaySecrets for one name.
pub(super) const NAME_CONFLICT: RuleInfo = RuleInfo {
    id: "name-conflict",
    severity: Severity::Warn,
    summary: "a GatewaySecret that claims a Secret which an older one claims",
    source: "the older one wins, so that nobody takes a Secret over",
    example: "GatewaySecret gw is older and claims one of these names: this one has no effect",
    mend: "choose another spec.sourceSecretName or spec.secretName, or delete one of the two",
};

/// A GatewaySecret or policy that its CRD refuses.
pub(crate) const INVALID_RESOURCE: RuleInfo = RuleInfo {
    id: "invalid-resource",
    severity: Severity::Deny,
    summary: "a GatewaySecret or policy that its CustomResourceDefinition refuses, or with an unknown time zone",
    source: "manifests/base/crd.yaml; a schema does not know the IANA Time Zone Database",
    example: "the managed Secret needs another name than the source Secret: both are gw",
    mend: "correct the field that the message names",
};

/// An override by somebody who may not.
pub(super) const BREAK_GLASS: RuleInfo = RuleInfo {
    id: "break-glass",
    severity: Severity::Deny,
    summary: "an annotation that overrides a rule, set without the right to",
    source: "docs/adr/0006: whoever may edit an object can annotate it, and the next writer may hold wide rights",
    example: "breakglass.trustspan.dev/expired is new or changed, and its requester may not override rules. expected the \
              right to breakglass gatewaysecrets.trustspan.dev in this namespace; ask somebody who holds it, or take the \
              annotation off",
    mend: "have it written by somebody who is bound to the ClusterRole trustspan-breakglass",
};

/// An update that parts clients from gateways.
pub(super) const CONNECTIVITY: RuleInfo = RuleInfo {
    id: "connectivity",
    severity: Severity::Deny,
    summary: "an update after which live clients and gateways refuse each other; in mode Copy it warns",
    source: "GatewaySecret status says which leaves are in use; they are verified as Envoy does, before and after",
    example: "ca.crt: 1 live client certificate(s) (shop) chain only to what this update takes out; gateways would refuse \
              them, the last until 2031-01-01T00:00:00Z. keep their CA, wait until they are renewed from one that stays, \
              then take it out",
    mend: "expand trust first, renew the leaves, take the old CA out last",
};

/// A GatewaySecret whose source Secret anybody may break.
pub(super) const NAMESPACE_UNGUARDED: RuleInfo = RuleInfo {
    id: "namespace-unguarded",
    severity: Severity::Warn,
    summary: "a GatewaySecret in a namespace whose Secrets are not judged at admission",
    source: "the API server sends Secrets of labelled namespaces only (docs/guard.md); the agent takes over no bad one, and waits",
    example: "namespace mesh is not guarded: label it trustspan.dev/guard=enabled. until then an invalid Secret root is stored, and \
              blocks the next rotation",
    mend: "kubectl label namespace NAMESPACE trustspan.dev/guard=enabled",
};

/// A weight that changes nothing.
pub(super) const SEVERITY_IGNORED: RuleInfo = RuleInfo {
    id: "severity-ignored",
    severity: Severity::Warn,
    summary: "a severity in a RotationPolicy for a rule that does not exist, or whose severity is fixed",
    source: "rules come with versions of trustspan, so that the CustomResourceDefinition cannot list their ids",
    example: "there is no rule expird: this severity changes nothing. expected an id that `trustspan rules` lists",
    mend: "take an id from `trustspan rules`, or remove the line",
};

/// An annotation or label that nobody reads as it was meant.
pub(super) const VALUE_IGNORED: RuleInfo = RuleInfo {
    id: "value-ignored",
    severity: Severity::Warn,
    summary: "an annotation or label of trustspan with a value that has no effect",
    source: "values are compared as they are written: \"True\" and \"yes\" are other strings than \"true\"",
    example: "\"yes\" has no effect. expected \"true\", or how many old CAs to keep",
    mend: "write one of the values that the message names, or take it off",
};

/// A client that no rotation waits for.
pub(super) const NO_SUCH_GATEWAY_SECRET: RuleInfo = RuleInfo {
    id: "no-such-gatewaysecret",
    severity: Severity::Warn,
    summary: "the label of a client whose GatewaySecret does not exist, or does not list the client's namespace; never more than a warning",
    source: "a client in another namespace needs both owners, so that no team delays another team's rotation",
    example: "no GatewaySecret gatway here: the client is not declared. expected the name of one in namespace shop, or NAMESPACE_NAME of one in another namespace",
    mend: "name a GatewaySecret of this namespace, or NAMESPACE_NAME of one that lists this namespace in spec.clients.namespaces",
};

/// A kubeconfig that its users cannot read.
pub(super) const KUBECONFIG_UNREADABLE: RuleInfo = RuleInfo {
    id: "kubeconfig-unreadable",
    severity: Severity::Deny,
    summary: "a kubeconfig in a Secret with data that is not base64; one too large to be judged warns",
    source: "client-go reads these fields as bytes, which are base64 in YAML and JSON; one that is not spoils the whole",
    example: "not base64. client-go refuses the whole kubeconfig; expected base64 of a PEM text",
    mend: "kubectl config set-credentials and set-cluster with --embed-certs write it right",
};

/// The rules that look beyond one Secret's content.
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

/// All rules, in the order in which findings are told.
pub fn rules() -> impl Iterator<Item = RuleInfo> {
    let on_secrets = trust::RULES.iter().map(|rule| RuleInfo {
        id: rule.id,
        severity: rule.severity,
        summary: rule.summary,
        source: rule.source,
        example: rule.example,
        mend: rule.mend,
    });
    on_secrets.chain(BEYOND.iter().copied())
}

impl RuleInfo {
    /// The rule with this id.
    pub fn find(id: &str) -> Option<Self> {
        rules().find(|rule| rule.id == id)
    }

    /// Whether its weight cannot be changed.
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
    fn accepts_the_whole_table() {
        let ids: BTreeSet<_> = rules().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), rules().count(), "an id stands twice");
        for rule in rules() {
            assert_eq!(RuleInfo::find(rule.id), Some(rule));
            for text in [rule.summary, rule.source, rule.example, rule.mend] {
                assert!(!text.is_empty() && !text.contains(['\n', '|']), "{}: {text}", rule.id);
            }
        }
        assert_eq!(RuleInfo::find("no-such-rule"), None);
    }
}
