//! Fields that name a Secret, a ConfigMap, a certificate, a CA or a file, and that trustspan does not handle: each with its reason.

/// Fields that are used for the same purpose.
pub(crate) struct Group {
    /// What these fields name.
    pub(crate) names: &'static str,
    /// Why trustspan does not handle them.
    pub(crate) why: &'static str,
    /// What a user should do at a rotation.
    pub(crate) advice: &'static str,
    /// Patterns of the fields, as in [`crate::rules`].
    pub(crate) fields: &'static [&'static str],
}

/// All groups.
pub(crate) static GROUPS: &[Group] = &[
    Group {
        names: "a file of the serving certificate or its key in the proxy",
        why: "the file comes from a volume of the proxy's pod",
        advice: "mount the managed Secret instead of the source Secret: the volume of a Deployment, StatefulSet or DaemonSet is rewritten",
        fields: &[
            "Gateway spec.servers[].tls.serverCertificate|privateKey",
            "Gateway spec.servers[].tls.tlsCertificates[].serverCertificate|privateKey",
            "Sidecar spec.ingress[].tls.serverCertificate|privateKey",
        ],
    },
    Group {
        names: "a file of the CAs that clients' certificates are verified with",
        why: "the file comes from a volume of the proxy's pod",
        advice: "mount the managed Secret, whose ca.crt holds the old and the new CA, or use credentialName",
        fields: &[
            "Gateway spec.servers[].tls.caCertificates",
            "Gateway spec.servers[].tls.tlsCertificates[].caCertificates",
            "Sidecar spec.ingress[].tls.caCertificates",
        ],
    },
    Group {
        names: "a file of revocation lists",
        why: "the file comes from a volume of the proxy's pod; with credentialName Envoy takes ca.crl of the Secret",
        advice: "add a list of the new CA before its certificates are used: once one CA has a list, Envoy refuses all others without one",
        fields: &["Gateway|Sidecar|DestinationRule spec.**.tls.caCrl"],
    },
    Group {
        names: "hashes of clients' certificates or of their keys",
        why: "the value is not a name; the agent does not reissue a client whose certificate a Gateway names so",
        advice: "add the hashes of new certificates before clients present them; with rotationPolicy Never a key's hash stays",
        fields: &[
            "Gateway|Sidecar spec.**.tls.verifyCertificateHash[]|verifyCertificateSpki[]",
            "ClientTrafficPolicy spec.tls.clientValidation.certificateHashes[]|spkiHashes[]",
        ],
    },
    Group {
        names: "a Secret",
        why: "Istio's own validation refuses it: Sidecar ingress takes files only",
        advice: "use files from a volume that mounts the managed Secret",
        fields: &["Sidecar spec.ingress[].tls.credentialName|credentialNames[]|caCertCredentialName"],
    },
    Group {
        names: "files of several certificates for one port of a Sidecar",
        why: "Istio's own validation refuses it: Sidecar ingress takes one certificate",
        advice: "use one certificate",
        fields: &["Sidecar spec.ingress[].tls.tlsCertificates[].*"],
    },
    Group {
        names: "a file of a proxy's client certificate, its key, or the CAs for servers",
        why: "the file comes from a volume of the proxy's pod",
        advice: "declare the Secret behind the volume as a client (label trustspan.dev/client); Envoy follows a changed file",
        fields: &["DestinationRule spec.**.tls.clientCertificate|privateKey|caCertificates"],
    },
    Group {
        names: "anything that Envoy's configuration can name: SDS secrets, files, inline certificates",
        why: "a patch of Envoy's own configuration; its meaning depends on where it goes",
        advice: "search patches for transport_socket, tls_certificates, validation_context and trusted_ca, and rotate those by hand",
        fields: &[
            "EnvoyFilter spec.configPatches[].patch.value",
            "EnvoyPatchPolicy spec.jsonPatches[].operation.value",
            "EnvoyProxy spec.bootstrap.jsonPatches[].value",
        ],
    },
    Group {
        names: "arguments of Envoy, which can name files",
        why: "free text of a command line",
        advice: "check --config-path and --config-yaml for certificates, and rotate those by hand",
        fields: &["EnvoyProxy spec.extraArgs[]"],
    },
    Group {
        names: "configuration of an extension, or a patch of a Deployment or Service, which can name anything",
        why: "its meaning is the extension's own",
        advice: "check it for Secrets and certificates, and rotate those by hand",
        fields: &[
            "WasmPlugin spec.pluginConfig",
            "TrafficExtension spec.wasm.pluginConfig",
            "EnvoyExtensionPolicy spec.dynamicModule[].config",
            "EnvoyExtensionPolicy spec.wasm[].config",
            "EnvoyExtensionPolicy spec.lua[].filterContext",
            "spec.**.loadBalancer.dynamicModule.config",
            "EnvoyProxy spec.provider.kubernetes.*.patch.value",
            "spec.**.dns01.webhook.config",
        ],
    },
    Group {
        names: "the ConfigMap, or with some implementations the Secret, of the CAs that a gateway verifies backends with",
        why: "not rewritten: the gateway is the client here; Istio takes a ConfigMap only, and the first one",
        advice: "have trustspan write the clients' bundle there (spec.trustBundleTargets), so that it holds the old and the new CA",
        fields: &[
            "BackendTLSPolicy spec.validation.caCertificateRefs[]",
            "XBackend spec.tls.validation.caCertificateRefs[]",
            "Backend spec.tls.caCertificateRefs[]",
        ],
    },
    Group {
        names: "the CAs of the proxy's system",
        why: "no object: they are part of the image",
        advice: "do nothing, unless a private CA was built into the image: then build one with both CAs",
        fields: &["BackendTLSPolicy|XBackend|Backend spec.**.wellKnownCACertificates"],
    },
    Group {
        names: "the Secret of a client certificate that a gateway presents to backends",
        why: "not rewritten: what backends accept is not what this GatewaySecret rotates",
        advice: "declare the Secret as a client (label trustspan.dev/client) where the backends' CA rotates with trustspan",
        fields: &["Backend|XBackend spec.tls.clientCertificateRef", "EnvoyProxy spec.backendTLS.clientCertificateRef"],
    },
    Group {
        names: "the Secrets or ConfigMaps of the CAs that clients' certificates are verified with",
        why: "Envoy Gateway's own kind is read, not rewritten: a rotation waits for each; of several references it takes all",
        advice: "name the managed Secret, or the ConfigMap that is kept from yours, by hand: both hold the old and the new CA",
        fields: &["ClientTrafficPolicy spec.tls.clientValidation.caCertificateRefs[]"],
    },
    Group {
        names: "the Secrets or ConfigMaps of revocation lists",
        why: "Envoy Gateway's own kind is not rewritten",
        advice: "add a list of the new CA before its certificates are used: once one CA has a list, Envoy refuses all others without one",
        fields: &["ClientTrafficPolicy spec.tls.clientValidation.crl.refs[]"],
    },
    Group {
        names: "which Secrets other namespaces may refer to",
        why: "read, not rewritten: a reference from another namespace is renamed only where a ReferenceGrant allows the managed Secret",
        advice: "grant the managed Secret beside the source Secret, or leave the name out",
        fields: &["ReferenceGrant spec.to[]"],
    },
    Group {
        names: "the Secret that cert-manager writes a certificate to",
        why: "the issuer's side: it is read to find what is to be reissued, and never renamed",
        advice: "keep it: the source Secret and the clients' Secrets stay the issuer's",
        fields: &["Certificate spec.secretName"],
    },
    Group {
        names: "the Secret of a keystore's password, or the password",
        why: "a password, which no rotation of CAs changes",
        advice: "keep it; what loads the keystore has to load it once more after a reissue",
        fields: &["Certificate spec.keystores.jks|pkcs12.passwordSecretRef|password"],
    },
    Group {
        names: "the Secret of the CA that an Issuer signs with",
        why: "not rewritten: when the Issuer signs with the new CA is the rotation's own step",
        advice: "name the Secret of spec.issuerSecretName, which trustspan changes when all gateways trust the new CA",
        fields: &["Issuer|ClusterIssuer spec.ca.secretName"],
    },
    Group {
        names: "the CAs that cert-manager verifies an issuing server with, or the Secret of them",
        why: "cert-manager is the client here, of a server that trustspan does not rotate",
        advice: "where that server's CA rotates, put both CAs here first",
        fields: &[
            "Issuer|ClusterIssuer spec.acme|vault.caBundle",
            "Issuer|ClusterIssuer spec.venafi.tpp.caBundle|caBundleSecretRef",
            "Issuer|ClusterIssuer spec.vault.caBundleSecretRef",
        ],
    },
    Group {
        names: "the Secret of a client certificate by which cert-manager logs in to Vault",
        why: "a client of a server that trustspan does not rotate",
        advice: "declare the Secret as a client (label trustspan.dev/client) where Vault stands behind a gateway of a GatewaySecret",
        fields: &[
            "Issuer|ClusterIssuer spec.vault.clientCertSecretRef|clientKeySecretRef",
            "Issuer|ClusterIssuer spec.vault.auth.clientCertificate.secretName",
        ],
    },
    Group {
        names: "the Secret of a password, a token or an account's key",
        why: "no certificate of a CA",
        advice: "nothing",
        fields: &[
            "WasmPlugin|TrafficExtension spec.**.imagePullSecret",
            "EnvoyExtensionPolicy spec.wasm[].code.image.pullSecretRef",
            "spec.**.imagePullSecrets[]",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].*.secretRef|nodePublishSecretRef",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].azureFile.secretName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].cephfs|rbd.secretFile|keyring",
            "HTTPRouteFilter spec.credentialInjection.credential.valueRef",
            "SecurityPolicy spec.apiKeyAuth.credentialRefs[]",
            "SecurityPolicy spec.basicAuth.users",
            "SecurityPolicy spec.oidc.clientIDRef|clientSecret",
            "spec.**.dns01.*.*SecretRef",
            "Issuer|ClusterIssuer spec.acme.externalAccountBinding.keySecretRef",
            "Issuer|ClusterIssuer spec.acme.privateKeySecretRef",
            "Issuer|ClusterIssuer spec.vault.auth.appRole|kubernetes.secretRef",
            "Issuer|ClusterIssuer spec.vault.auth.tokenSecretRef",
            "Issuer|ClusterIssuer spec.venafi.*.apiTokenSecretRef|credentialsRef",
        ],
    },
    Group {
        names: "a ConfigMap or Secret of text: a body, a script, a value",
        why: "no certificate of a CA",
        advice: "nothing",
        fields: &[
            "BackendTrafficPolicy spec.responseOverride[].response.body.valueRef",
            "HTTPRouteFilter spec.directResponse.body.valueRef",
            "EnvoyExtensionPolicy spec.lua[].valueRef",
            "SecurityPolicy spec.extAuth.contextExtensions[].valueRef",
            "EnvoyProxy spec.telemetry.**.openTelemetry.headers[].value",
        ],
    },
    Group {
        names: "keys that sign tokens or extensions, their ConfigMap or their text",
        why: "keys of their own, which no rotation of CAs changes",
        advice: "nothing",
        fields: &[
            "RequestAuthentication spec.jwtRules[].jwks",
            "SecurityPolicy spec.jwt.providers[].localJWKS.valueRef",
            "WasmPlugin|TrafficExtension spec.**.verificationKey",
        ],
    },
    Group {
        names: "a URL of a server that is verified with CAs of the control plane or of the proxy's image",
        why: "no object is named; istiod takes such CAs from meshConfig.caCertificates and its own image",
        advice: "where that server's CA rotates, give the control plane or the image both CAs first",
        fields: &[
            "WasmPlugin|TrafficExtension spec.**.url",
            "EnvoyExtensionPolicy spec.wasm[].code.*.url",
            "EnvoyProxy spec.dynamicModules[].source.remote.url",
            "RequestAuthentication spec.jwtRules[].jwks_uri|jwksUri",
            "SecurityPolicy spec.jwt.providers[].remoteJWKS.uri",
            "SecurityPolicy spec.oidc.provider.issuer|*Endpoint",
            "Issuer|ClusterIssuer spec.acme|vault.server",
            "Issuer|ClusterIssuer spec.venafi.*.url|tokenEndpoint",
        ],
    },
    Group {
        names: "the Secret or ConfigMap of the CAs that Envoy Gateway verifies a registry of extensions with",
        why: "Envoy Gateway is the client here, of a server that trustspan does not rotate",
        advice: "where that server's CA rotates, put both CAs there first",
        fields: &["EnvoyExtensionPolicy spec.wasm[].code.http|image.tls.caCertificateRef"],
    },
    Group {
        names: "a file of a module or a data base in the proxy",
        why: "no certificate",
        advice: "nothing",
        fields: &[
            "EnvoyProxy spec.dynamicModules[].source.local.path",
            "EnvoyProxy spec.geoIP.provider.maxMind.*.local.path",
        ],
    },
    Group {
        names: "a Secret or ConfigMap that Envoy Gateway mounts into its proxies, or gives them in an environment variable",
        why: "an EnvoyProxy is not rewritten; the Deployment or DaemonSet that Envoy Gateway makes of it is, whenever it is written",
        advice: "name the managed Secret here by hand, so that both say the same",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].secret.secretName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].configMap",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].secret|configMap",
            "EnvoyProxy spec.provider.kubernetes.**.valueFrom.secretKeyRef|configMapKeyRef",
            "EnvoyProxy spec.provider.kubernetes.**.envFrom[].secretRef|configMapRef",
        ],
    },
    Group {
        names: "a ClusterTrustBundle, or the signer of a pod's certificate",
        why: "an object of the signer's, for the whole cluster",
        advice: "have its signer put both CAs there first",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].clusterTrustBundle.name|signerName",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].projected.sources[].podCertificate.signerName",
        ],
    },
    Group {
        names: "files of a node, of an image, of a volume claim or of a repository, which may be certificates",
        why: "what is in them no object of the cluster says",
        advice: "rotate certificates there by hand",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].hostPath.path",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].image.reference",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].gitRepo.directory|repository",
            "EnvoyProxy spec.provider.kubernetes.*.pod.volumes[].persistentVolumeClaim.claimName",
        ],
    },
    Group {
        names: "a command line of a container, which can name files",
        why: "free text",
        advice: "check it for certificates; the Secret behind them is named by a volume",
        fields: &[
            "EnvoyProxy spec.provider.kubernetes.*.initContainers[]|sidecarContainers[].args[]|command[]",
            "EnvoyProxy spec.provider.kubernetes.**.exec.command[]",
        ],
    },
];
