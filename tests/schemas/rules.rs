//! Fields that resemble the name of a certificate, Secret, ConfigMap or file, and are none: rules on paths, each with
//! its reason.
//!
//! A pattern is an optional list of kinds and a path: `**` is any number of steps, `*` is part of one, `a|b` is either.
//! Rules are as narrow as possible, so that a field that is added later has to be classified.

/// Fields that name no object which a rotation changes.
pub(crate) struct Exclusion {
    /// Why they do not matter.
    pub(crate) reason: &'static str,
    /// Patterns of their paths.
    pub(crate) fields: &'static [&'static str],
}

/// All exclusions.
pub(crate) static EXCLUSIONS: &[Exclusion] = &[
    Exclusion { reason: "what an object says of itself", fields: &["apiVersion", "kind"] },
    Exclusion { reason: "what a controller reports, not what a user asks for", fields: &["status.**"] },
    Exclusion {
        reason: "names a Service, a route, a Gateway, a policy or a class, which names Secrets in fields of its own",
        fields: &[
            "spec.**.backendRef|backendRefs[]",
            "spec.**.targetRef|targetRefs[]|parentRef|parentRefs[]|parametersRef",
            "spec.**.extensionRef",
            "spec.gatewayClassName|controllerName",
            "VirtualService spec.http[].delegate",
            "AuthorizationPolicy spec.provider",
            "Telemetry spec.**.providers[]",
            "spec.**.ingressClassName|priorityClassName|storageClassName|volumeAttributesClassName",
            "spec.**.serviceAccountName",
            "spec.**.serviceAccountRef.name",
            "spec.**.volumeClaimTemplate.spec.dataSource|dataSourceRef|volumeName|accessModes[]",
            "Certificate|CertificateRequest|Order|Challenge spec.issuerRef",
            "EnvoyProxy spec.provider.kubernetes.envoyServiceAccount",
            "EnvoyProxy spec.provider.kubernetes.envoyHpa.metrics[].object.describedObject",
        ],
    },
    Exclusion {
        reason: "names a header, a cookie, a query parameter, a claim or an environment variable",
        fields: &[
            "HTTPRoute spec.rules[].matches[].headers[].value",
            "spec.**.headers[]|httpHeaders[]|responseHeaders[]|fromHeaders[]|queryParams[]|cookies[]|claims[].name",
            "spec.**.add[]|set[]|addIfAbsent[].name|value",
            "spec.**.remove[]",
            "spec.**.header|headers[]|queryParams[]",
            "spec.**.httpCookie|cookie|customHeader|requestHeader|environment|header.name",
            "spec.**.attributes[].name",
            "spec.**.httpHeaderName|httpQueryParameterName|sessionName",
            "spec.**.env[]|contextExtensions[].name",
            "spec.**.fieldRef.fieldPath",
            "spec.**.resourceFieldRef.containerName",
            "EnvoyExtensionPolicy spec.**.processingMode.request|response.attributes[]",
            "EnvoyExtensionPolicy spec.wasm[].env.hostKeys[]",
            "BackendTrafficPolicy spec.rateLimit.**.metadata|fromMetadata.key",
            "SecurityPolicy spec.oidc.cookieNames.*",
            "HTTPRouteFilter spec.credentialInjection.header",
            "spec.**.exposeHeaders[]",
        ],
    },
    Exclusion {
        reason: "matches or rewrites a request's path, host or origin",
        fields: &[
            "VirtualService spec.http[].**.regex|authority|scheme|uri|match|rewrite",
            "spec.**.replaceFullPath|allowOrigins[]|additionalOrigins[]",
            "spec.**.httpCookie|cookie|httpGet|http.path",
            "AuthorizationPolicy spec.rules[].to[].operation.paths[]|notPaths[]",
            "AuthorizationPolicy spec.rules[].from[].source.trustDomains[]|notTrustDomains[]",
            "spec.healthCheck.path",
            "HTTPRouteFilter spec.urlRewrite.**",
            "spec.**.matches[]",
        ],
    },
    Exclusion {
        reason: "the name of a list's element, by which it is told from the others",
        fields: &[
            "VirtualService spec.http[].name",
            "VirtualService spec.http[].match[].name",
            "DestinationRule spec.subsets[].name",
            "spec.**.port.name",
            "ServiceEntry spec.ports[].name",
            "Gateway|ListenerSet spec.servers[]|listeners[].name",
            "*Route spec.rules[].name",
            "SecurityPolicy spec.authorization.rules[].name",
            "EnvoyExtensionPolicy spec.wasm[].name",
            "WasmPlugin|TrafficExtension spec.**.pluginName",
            "EnvoyExtensionPolicy spec.dynamicModule[].filterName|name",
            "EnvoyProxy spec.dynamicModules[].name",
            "spec.**.loadBalancer.dynamicModule.name|lbPolicyName",
            "EnvoyProxy spec.provider.kubernetes.*.name",
            "EnvoyProxy spec.provider.kubernetes.envoyHpa.metrics[].**.name",
            "EnvoyProxy spec.provider.kubernetes.*.container|initContainers[]|sidecarContainers[].**.volumeName",
            "EnvoyProxy spec.provider.kubernetes.*.initContainers[]|sidecarContainers[].name",
            "EnvoyProxy spec.provider.kubernetes.*.initContainers[]|sidecarContainers[].ports[]|volumeDevices[].name",
            "EnvoyProxy spec.provider.kubernetes.**.volumeMounts[]|volumes[].name",
        ],
    },
    Exclusion {
        reason: "where pods run, and as whom: no pod gets a file by it",
        fields: &[
            "spec.**.affinity|securityContext|topologySpreadConstraints[]|tolerations[].**",
            "spec.**.matchExpressions[]|matchFields[].key",
            "spec.**.nodeSelector{}|matchLabels{}",
            "AuthorizationPolicy spec.rules[].when[].key",
            "EnvoyProxy spec.provider.kubernetes.*.initContainers[]|sidecarContainers[].image|imagePullPolicy|workingDir",
            "EnvoyProxy spec.provider.kubernetes.*.initContainers[]|sidecarContainers[].terminationMessagePath|terminationMessagePolicy",
            "EnvoyProxy spec.provider.kubernetes.**.livenessProbe|readinessProbe|startupProbe.grpc.service",
            "EnvoyProxy spec.provider.kubernetes.**.resizePolicy[].resourceName",
        ],
    },
    Exclusion {
        reason: "an address, where a certificate is looked up by other fields",
        fields: &[
            "Gateway|Sidecar spec.servers[]|ingress[].defaultEndpoint",
            "ServiceEntry spec.addresses[]",
            "ServiceEntry spec.endpoints[].address",
            "WorkloadEntry|WorkloadGroup spec.**.address",
            "Backend spec.endpoints[].**",
        ],
    },
    Exclusion {
        reason: "what a peer's certificate has to say, or how TLS is spoken; a rotation of CAs keeps it",
        fields: &[
            "spec.**.subjectAltNames[]",
            "spec.**.subjectAltNames[].uri",
            "spec.**.validation.hostname",
            "spec.**.ciphers[]",
        ],
    },
    Exclusion {
        reason: "how load is spread, what is logged, measured or limited",
        fields: &[
            "spec.**.http2.onInvalidMessage",
            "spec.**.loadBalancer.slowStart.window",
            "spec.**.healthCheckLog.sinks[].file.path",
            "spec.telemetry.accessLog.settings[].sinks[].file.path",
            "spec.telemetry.accessLog.settings[].sinks[].als.logName",
            "spec.telemetry.accessLog.settings[].format.text",
            "spec.telemetry.healthCheckLog.sinks[].file.path",
            "spec.telemetry.metrics.clusterStatName|routeStatName",
            "spec.telemetry.tracing.spanName.server",
            "spec.telemetry.tracing.provider.serviceName",
            "SecurityPolicy spec.authorization.rules[].cel",
            "spec.telemetry.**.tags{}|resources{}|resourceAttributes{}|json{}",
        ],
    },
    Exclusion {
        reason: "where a volume's files are put; what is in them is named by the volume's source",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.**.volumeMounts[].mountPath|subPath",
            "EnvoyProxy spec.provider.kubernetes.**.volumeDevices[].devicePath",
            "EnvoyProxy spec.provider.kubernetes.**.fileKeyRef.path|key",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].**.items[].path|key",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].clusterTrustBundle.path",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].podCertificate.*Path|keyType",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].serviceAccountToken.path",
        ],
    },
    Exclusion {
        reason: "a disk, a share or a data set; a Secret that it needs is named in a field beside it",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].*.fsType|volumeID|volumeName|volumePath|storagePolicyName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].azureDisk|azureFile.diskName|diskURI|shareName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].cephfs|rbd.monitors[]|user|path|image|pool",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].emptyDir.medium",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].flocker|gcePersistentDisk.datasetName|pdName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].glusterfs|nfs.endpoints|path|server",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].hostPath.type",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].iscsi.initiatorName",
        ],
    },
    Exclusion {
        reason: "which of Envoy's own resources a patch goes to",
        fields: &[
            "EnvoyFilter spec.configPatches[].match.**",
            "EnvoyPatchPolicy spec.jsonPatches[].name",
            "EnvoyPatchPolicy|EnvoyProxy spec.**.jsonPatches[].**.path|from|jsonPath",
        ],
    },
    Exclusion {
        reason: "what a certificate says, or how it is asked for; names no object",
        fields: &[
            "Certificate|Order spec.commonName|dnsNames[]|ipAddresses[]|emailAddresses[]|uris[]|duration|profile|replaces|request",
            "Certificate spec.literalSubject|renewBefore",
            "Certificate spec.secretTemplate.annotations{}|labels{}",
            "Certificate spec.subject|nameConstraints.**",
            "Certificate spec.renewal.windows[].windowDuration",
            "Certificate spec.keystores.jks.alias",
            "CertificateRequest spec.duration|request|groups[]|uid|username",
            "Issuer|ClusterIssuer spec.ca|selfSigned.crlDistributionPoints[]|issuingCertificateURLs[]|ocspServers[]",
            "Issuer|ClusterIssuer spec.acme.email|preferredChain|profile",
            "Issuer|ClusterIssuer spec.acme.externalAccountBinding.keyID",
            "Issuer|ClusterIssuer spec.venafi.zone",
            "Issuer|ClusterIssuer spec.vault.namespace|path|serverName",
            "Issuer|ClusterIssuer spec.vault.auth.*.path|mountPath",
            "Issuer|ClusterIssuer spec.vault.auth.clientCertificate.name",
            "Challenge spec.dnsName|key|token|url|authorizationURL",
        ],
    },
    Exclusion {
        reason: "how a challenge of ACME is solved: names a zone, a region or a role",
        fields: &[
            "spec.**.dns01.*.hostedZoneName|resourceGroupName|tsigKeyName|accessKeyID|region|role|groupName|solverName",
            "spec.**.http01.ingress.name",
            "spec.**.http01.gatewayHTTPRoute.labels{}",
            "spec.**.selector.dnsNames[]",
            "spec.**.waitInsteadOfSelfCheck",
        ],
    },
    Exclusion {
        reason: "what a token says, or where a browser is sent; names no object",
        fields: &[
            "RequestAuthentication spec.jwtRules[].audiences[]",
            "SecurityPolicy spec.jwt.providers[].audiences[]|issuer|name",
            "SecurityPolicy spec.authorization.rules[].principal.jwt.scopes[]",
            "SecurityPolicy spec.oidc.clientID|csrfTokenTTL|defaultRefreshTokenTTL|defaultTokenTTL|logoutPath|redirectURL|resources[]|scopes[]",
        ],
    },
];
