//! How carefully CAs are rotated: a `RotationPolicy` in a namespace, and a `ClusterRotationPolicy` for all of them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schema::{DNS_SUBDOMAIN, is_default, without_default};
use super::{ChangeWindow, Level, Period};

/// How carefully CAs are rotated.
///
/// A GatewaySecret uses the RotationPolicy in its namespace that `spec.policyName` names. Fields that this does not set are those of the
/// ClusterRotationPolicy of the same name, or the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "RotationPolicy",
        plural = "rotationpolicies",
        category = "trustspan",
        namespaced,
        doc = "RotationPolicy says how carefully the CAs of GatewaySecrets in its namespace are rotated. Fields that it does not set are those of the ClusterRotationPolicy of the same name, or the defaults."
    )
)]
pub struct RotationPolicySpec {
    /// The longest times that a change takes to reach its readers. Each step waits this long for the previous one.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub propagation_delays: PropagationDelays,

    /// When disruptive steps may be taken. At all other times a GatewaySecret counts as paused. Default: always.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16), transform = without_default)]
    pub change_windows: Vec<ChangeWindow>,

    /// Severities of rules for the Secrets of the GatewaySecrets, by rule id (see `trustspan rules`). Write "Off" with quotes, because
    /// YAML 1.1 reads it as a boolean otherwise.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64), transform = without_default)]
    pub severities: BTreeMap<String, Level>,

    /// Whether the agent restarts workloads that still use an earlier CA or certificate.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub workload_restarts: WorkloadRestarts,

    /// How the agent verifies over TLS what gateways have loaded.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub probe: Probe,

    /// The longest lifetime of a client's certificate: a retired CA is dropped this long after it issued its last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub max_certificate_lifetime: Option<Period>,

    /// The oldest version of Envoy among the gateways, such as `1.40`: it determines which CAs are accepted. Default: the oldest supported
    /// version, 1.37.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", regex(pattern = r"^1\.(3[6-9]|[4-9][0-9]|[1-9][0-9]{2})$"))]
    pub oldest_envoy: Option<String>,

    /// cert-manager's cluster resource namespace (its flag `--cluster-resource-namespace`), which holds the Secrets of ClusterIssuers.
    /// Default: `cert-manager`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 63), regex(pattern = super::schema::DNS_LABEL))]
    pub cluster_resource_namespace: Option<String>,

    /// The number of policy objects that were merged into this one.
    #[serde(skip)]
    #[schemars(skip)]
    pub objects: usize,
}

/// How carefully CAs are rotated in all namespaces. It has the fields of a RotationPolicy.
#[cfg(feature = "edge")]
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, kube::CustomResource)]
#[kube(
    group = "trustspan.dev",
    version = "v1alpha1",
    kind = "ClusterRotationPolicy",
    plural = "clusterrotationpolicies",
    category = "trustspan",
    doc = "ClusterRotationPolicy says how carefully the CAs of GatewaySecrets in all namespaces are rotated, for the fields that their RotationPolicy does not set."
)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct ClusterRotationPolicySpec(RotationPolicySpec);

/// The longest times that a change takes to reach its readers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PropagationDelays {
    /// From a write of the managed Secret to its use by every gateway proxy. Default: 30s. istiod delays pushes for up to 10s
    /// (`PILOT_DEBOUNCE_MAX`), and sends them to a few proxies at a time (`PILOT_PUSH_THROTTLE`).
    #[schemars(transform = without_default)]
    pub gateways: Period,
    /// From a write of a client's Secret, or of a bundle, to its use by the client. Default: 3m. The kubelet syncs a pod every 60 to 90 s
    /// (`syncFrequency` and up to half of it), possibly from a minute-old cache, and the program reads the file after that.
    #[schemars(transform = without_default)]
    pub clients: Period,
    /// From a change of a GatewaySecret's status to its use by every replica of the webhook, plus the difference of the clocks of the agent
    /// and cert-manager. Default: 10s. A client's Secret that was written earlier counts as one without the new bundle.
    #[schemars(transform = without_default)]
    pub admission: Period,
}

impl Default for PropagationDelays {
    fn default() -> Self {
        Self { gateways: Period::from_secs(30), clients: Period::from_secs(180), admission: Period::from_secs(10) }
    }
}

impl PropagationDelays {
    /// When everything is to follow that depends on a CA which expires at `end`: earlier by twice the sum of the delays.
    pub fn deadline(&self, end: Timestamp) -> Timestamp {
        end.saturating_sub(self.sum().saturating_mul(2)).unwrap_or(Timestamp::MIN)
    }

    /// The time that all steps take.
    pub fn sum(&self) -> SignedDuration {
        let delays = [self.gateways, self.admission, self.clients].map(|delay| delay.duration());
        delays.into_iter().fold(SignedDuration::ZERO, SignedDuration::saturating_add)
    }
}

/// How the agent verifies over TLS what gateways have loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Probe {
    /// `Auto` opens TLS connections to each gateway until it uses a change. `Disabled` relies on `propagationDelays` alone, which fails
    /// while istiod is unavailable. Default: `Auto`.
    #[schemars(transform = without_default)]
    pub mode: ProbeMode,
    /// The Service and host to probe. Default: derived from Services and Gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ProbeTarget")]
    pub target: Option<ProbeTarget>,
}

/// Whether the agent probes gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ProbeMode {
    /// The agent opens TLS connections to each gateway.
    #[default]
    Auto,
    /// The agent relies on `propagationDelays` alone.
    Disabled,
}

/// The gateways to probe: every endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeTarget {
    /// The Service of the gateways, in the GatewaySecret's namespace. Every address of its EndpointSlices (label
    /// `kubernetes.io/service-name`) is probed.
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_SUBDOMAIN))]
    pub service_name: String,
    /// Name of the port of the Service on which gateways present the managed Secret. Empty for an unnamed port. Default: `https`, as in
    /// Istio's charts.
    #[serde(default = "https")]
    #[schemars(length(max = 63), regex(pattern = "^[-a-z0-9]*$"), transform = without_default)]
    pub port_name: String,
    /// The host to request (SNI, RFC 6066): one for which Gateways present the managed Secret, without a wildcard.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub host: String,
    /// Secret (`tls.crt`, `tls.key`) with a client certificate for probes: if it is of a new CA, the result shows whether gateways trust
    /// that CA. Nothing else may use it. Default: the agent signs one that is valid for some minutes, if the Secret of the clients' CA
    /// holds its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub client_secret_name: Option<String>,
}

fn https() -> String {
    "https".to_owned()
}

/// Whether the agent restarts workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadRestarts {
    /// `Disabled` reports the workloads. `Enabled` restarts them one by one while the GatewaySecret is not paused. Default: `Disabled`.
    #[schemars(transform = without_default)]
    pub mode: RestartMode,
}

/// What the agent does about workloads that name the source Secret, or run with earlier content of the managed Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RestartMode {
    /// Workloads with outdated certificates are only reported.
    #[default]
    Disabled,
    /// They are restarted one by one: the next when no rollout is in progress.
    Enabled,
}

impl RotationPolicySpec {
    /// Merges policies, the most general first: a field of a later one replaces that of an earlier one (JSON Merge Patch, RFC 7396, so
    /// that members of an object and entries of a map are merged one by one).
    ///
    /// # Errors
    /// When a field does not fit the type.
    pub fn merged<'v>(specs: impl IntoIterator<Item = &'v Value>) -> Result<Self, serde_json::Error> {
        let (mut merged, mut objects) = (Value::Object(serde_json::Map::new()), 0);
        for spec in specs {
            json_patch::merge(&mut merged, spec);
            objects += 1;
        }
        Ok(Self { objects, ..Self::deserialize(merged)? })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_later_policy_wins_field_by_field() {
        let cluster = json!({
            "propagationDelays": {"gateways": "60s", "clients": "5m"}, "severities": {"expired": "Warn", "sha1": "Warn"},
            "changeWindows": [{"from": "22:00", "to": "04:00"}], "oldestEnvoy": "1.40",
        });
        let near = json!({
            "propagationDelays": {"clients": "10m"}, "severities": {"expired": "Deny"},
            "changeWindows": [{"from": "01:00", "to": "02:00"}],
        });
        let policy = RotationPolicySpec::merged([&cluster, &near]).unwrap();
        let delays = &policy.propagation_delays;
        assert_eq!([delays.gateways, delays.clients, delays.admission], [60, 600, 10].map(Period::from_secs));
        assert_eq!(policy.severities.values().collect::<Vec<_>>(), [&Level::Deny, &Level::Warn]);
        assert!(policy.change_windows.len() == 1 && policy.oldest_envoy.as_deref() == Some("1.40"), "{policy:?}");
    }

    #[test]
    fn without_a_policy_the_defaults_apply() {
        let none: [&Value; 0] = [];
        assert_eq!(RotationPolicySpec::merged(none).unwrap(), RotationPolicySpec::default());
        let explicit = json!({"probe": {"mode": "Auto"}});
        let cluster = json!({"probe": {"mode": "Disabled"}});
        assert_eq!(RotationPolicySpec::merged([&cluster, &explicit]).unwrap().probe.mode, ProbeMode::Auto);
    }

    #[test]
    fn rejects_what_does_not_fit() {
        let error = RotationPolicySpec::merged([&json!({"propagationDelays": {"gateways": "soon"}})]).unwrap_err();
        assert!(error.to_string().contains("expected a duration"), "{error}");
    }
}
