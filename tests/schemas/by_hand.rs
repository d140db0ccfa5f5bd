//! Fields and settings that are in no CRD's schema: built-in kinds of Kubernetes, settings of a mesh, annotations and
//! options.

/// A field of a built-in kind of Kubernetes.
pub(crate) struct BuiltIn {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kinds: &'static [&'static str],
    pub(crate) path: &'static str,
    /// Why trustspan does not handle it, and what a user should do. `None`: it is handled.
    pub(crate) unhandled: Option<(&'static str, &'static str)>,
}

const WORKLOADS: &[&str] = &["Deployment", "StatefulSet", "DaemonSet"];

const fn handled(path: &'static str) -> BuiltIn {
    BuiltIn { group: "apps", version: "v1", kinds: WORKLOADS, path, unhandled: None }
}

const fn unhandled(path: &'static str, why: &'static str, advice: &'static str) -> BuiltIn {
    BuiltIn { group: "apps", version: "v1", kinds: WORKLOADS, path, unhandled: Some((why, advice)) }
}

/// Fields of built-in kinds of Kubernetes.
pub(crate) const BUILT_IN: &[BuiltIn] = &[
    handled("spec.template.spec.volumes[].secret.secretName"),
    handled("spec.template.spec.volumes[].projected.sources[].secret.name"),
    handled("spec.template.spec.initContainers[].env[].valueFrom.secretKeyRef.name"),
    handled("spec.template.spec.containers[].env[].valueFrom.secretKeyRef.name"),
    handled("spec.template.spec.initContainers[].envFrom[].secretRef.name"),
    handled("spec.template.spec.containers[].envFrom[].secretRef.name"),
    unhandled(
        "spec.template.spec.volumes[].configMap.name",
        "a ConfigMap of CAs is not renamed; where spec.trustBundleTargets names it, trustspan writes both CAs into it",
        "have trustspan write the clients' bundle there (spec.trustBundleTargets)",
    ),
    unhandled(
        "spec.template.spec.volumes[].projected.sources[].configMap.name",
        "a ConfigMap of CAs is not renamed; where spec.trustBundleTargets names it, trustspan writes both CAs into it",
        "have trustspan write the clients' bundle there (spec.trustBundleTargets)",
    ),
    unhandled(
        "spec.template.spec.volumes[].projected.sources[].clusterTrustBundle.name",
        "an object of the signer's, for the whole cluster",
        "have its signer put both CAs there first",
    ),
    unhandled(
        "spec.template.spec.volumes[].csi.nodePublishSecretRef.name",
        "the credentials of a CSI driver; what it mounts is the driver's own affair",
        "a driver that issues certificates (cert-manager's csi-driver) rotates them itself: declare nothing, but keep the old CA",
    ),
    unhandled("spec.template.spec.imagePullSecrets[].name", "no certificate of a CA", "nothing"),
    BuiltIn {
        group: "",
        version: "v1",
        kinds: &["Pod", "ReplicationController"],
        path: "spec.**",
        unhandled: Some((
            "only workloads that roll are rewritten; a Pod made by one has the rewritten template",
            "name the managed Secret by hand in a Pod without an owner",
        )),
    },
    BuiltIn {
        group: "batch",
        version: "v1",
        kinds: &["Job", "CronJob"],
        path: "spec.**",
        unhandled: Some((
            "a Job cannot be changed after it was made, and serves nobody",
            "name the managed Secret by hand, or declare the Secret as a client (label trustspan.dev/client)",
        )),
    },
    BuiltIn {
        group: "networking.k8s.io",
        version: "v1",
        kinds: &["Ingress"],
        path: "spec.tls[].secretName",
        unhandled: Some((
            "an Ingress is not rewritten; Istio makes a Gateway of it that no API server stores",
            "name the managed Secret by hand, or replace the Ingress by a Gateway",
        )),
    },
];

/// A setting that is not a field of a schema.
pub(crate) struct Setting {
    pub(crate) place: &'static str,
    pub(crate) names: &'static str,
    pub(crate) why: &'static str,
    pub(crate) advice: &'static str,
}

const ISTIO_CLIENT: &str = "a text in a ConfigMap or in Helm values, read by istiod; the proxy is the client here";
const ISTIO_CLIENT_ADVICE: &str =
    "where that server's CA rotates with trustspan, declare the Secret behind it as a client";

/// All settings.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        place: "meshConfig caCertificates[].pem, spiffeBundleUrl",
        names: "CAs that all proxies of the mesh trust beside the mesh's own, or where they are read",
        why: "the mesh's own trust, which trustspan does not rotate",
        advice: "put both CAs there before the new one signs; istiod gives them to proxies without a restart",
    },
    Setting {
        place: "meshConfig caCertificates[].certSigners, certificates[].secretName",
        names: "signers of Kubernetes' certificates API, and Secrets of the control plane's own certificates",
        why: "the mesh's own certificates, which trustspan does not rotate",
        advice: "nothing",
    },
    Setting {
        place: "meshConfig ca.tlsSettings, configSources[].tlsSettings",
        names: "files or Secrets by which istiod is a client of a CA or of a source of configuration",
        why: ISTIO_CLIENT,
        advice: ISTIO_CLIENT_ADVICE,
    },
    Setting {
        place: "meshConfig defaultConfig.tracing.tlsSettings, envoyMetricsService.tlsSettings, envoyAccessLogService.tlsSettings",
        names: "files or Secrets of a proxy's client certificate and of the CAs for servers",
        why: ISTIO_CLIENT,
        advice: ISTIO_CLIENT_ADVICE,
    },
    Setting {
        place: "meshConfig defaultConfig.caCertificatesPem",
        names: "CAs that all proxies trust when they talk to the control plane",
        why: "the mesh's own trust; a proxy reads it once, at its start",
        advice: "put both CAs there, and restart proxies, before the control plane's certificate changes",
    },
    Setting {
        place: "meshConfig defaultConfig.customConfigFile, proxyBootstrapTemplatePath",
        names: "files of Envoy's own configuration, which can name certificates",
        why: "free text",
        advice: "search them for tls_certificates and validation_context, and rotate those by hand",
    },
    Setting {
        place: "ProxyConfig spec.environmentVariables{}, and proxyMetadata of meshConfig",
        names: "files of certificates, by variables such as ISTIO_META_TLS_SERVER_CERT_CHAIN and PROV_CERT",
        why: "free text; the file comes from a volume of the pod",
        advice: "rewritten is the volume, of a workload that mounts the source Secret; check that the file's folder is its mount",
    },
    Setting {
        place: "annotation proxy.istio.io/config of a pod",
        names: "what meshConfig.defaultConfig names, for one workload",
        why: "free text in a pod template",
        advice: "as for meshConfig.defaultConfig",
    },
    Setting {
        place: "annotations sidecar.istio.io/userVolume, sidecar.istio.io/userVolumeMount of a pod",
        names: "Secrets and ConfigMaps that are mounted into the injected sidecar",
        why: "JSON in an annotation; the volume is added to the pod, behind the workload that is rewritten",
        advice: "name the managed Secret in the annotation by hand, or declare the Secret as a client (label trustspan.dev/client)",
    },
    Setting {
        place: "annotation sidecar.istio.io/bootstrapOverride of a pod",
        names: "a ConfigMap of Envoy's own configuration",
        why: "free text in the ConfigMap",
        advice: "search it for tls_certificates and validation_context, and rotate those by hand",
    },
    Setting {
        place: "Gateway (Gateway API) listeners[].tls.options gateway.istio.io/tls-terminate-mode",
        names: "no Secret: MUTUAL and OPTIONAL_MUTUAL have the certificateRefs' Secret (or its -cacert sibling) give the CAs for clients, too; \
                ISTIO_SIMPLE and ISTIO_MUTUAL have the mesh's own certificate served, and certificateRefs ignored",
        why: "the reference is renamed in any mode",
        advice: "with MUTUAL see that the managed Secret holds the clients' CA in ca.crt, which it does by default",
    },
    Setting {
        place: "annotations cert-manager.io/issuer, cert-manager.io/cluster-issuer of a Gateway (Gateway API), ListenerSet or Ingress",
        names: "an Issuer; cert-manager makes a Certificate for each Secret that the object's listeners name, and deletes it when they \
                name another",
        why: "such a Gateway is not rewritten: cert-manager would make a Certificate for the managed Secret, and delete the \
              one for the source Secret",
        advice: "write the Certificate by hand and take the annotation away, before a GatewaySecret names the Secret",
    },
    Setting {
        place: "EnvoyGateway configuration: rateLimit.backend.redis.tls.certificateRef, extensionManager.service.tls, SDS Secrets",
        names: "Secrets by which Envoy Gateway or its rate limit service is a client",
        why: "a file in a ConfigMap, read by Envoy Gateway at its start",
        advice: "put both CAs there, and restart Envoy Gateway, before the server's certificate changes",
    },
    Setting {
        place: "Secrets envoy-gateway, envoy, envoy-rate-limit of Envoy Gateway",
        names: "the control plane's own certificates, by fixed names",
        why: "no object names them; certgen or cert-manager writes them",
        advice: "annotate them with trustspan.dev/carry-over: \"true\", so that the old CA stays in the write that replaces it",
    },
];
