//! Finds the issuer of a source Secret and its CA, among cert-manager's objects.

use std::collections::BTreeSet;

use serde_json::Value;

use super::served_secrets::ServedSecret;
use super::{GenerateInput, SecretLookup};
use crate::registry::CLUSTER_RESOURCE_NAMESPACE;
use crate::rotation::gateway_service::namespace;

/// How a source Secret is issued.
#[derive(Debug, Default)]
pub(super) struct IssuerSource<'a> {
    certificate: Option<&'a Value>,
    /// `Issuer name` or `ClusterIssuer name`.
    issuer: Option<String>,
    /// The issuer's `spec`, where the issuer was found.
    spec: Option<&'a Value>,
    is_cluster_wide: bool,
    /// The namespace of a ClusterIssuer's Secrets, found by the Certificate that writes its CA. `None` without such a
    /// Certificate.
    cluster_resources: Option<&'a str>,
    /// Whether the source Secret holds a CA itself.
    is_ca: bool,
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["spec"][field].as_str().unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or("?")
}

/// Finds the origin of a source Secret.
pub(super) fn source<'a>(found: &'a GenerateInput, served: &ServedSecret<'_>) -> IssuerSource<'a> {
    let is_ca =
        found.facts(served.namespace, served.name).and_then(|facts| facts.chain.first()).is_some_and(|leaf| leaf.is_ca);
    let writes = |object: &&Value| {
        object["kind"] == "Certificate"
            && namespace(object) == served.namespace
            && text(object, "secretName") == served.name
    };
    let Some(certificate) = found.objects.iter().find(writes) else {
        return IssuerSource { is_ca, ..IssuerSource::default() };
    };
    let reference = &certificate["spec"]["issuerRef"];
    let kind = reference["kind"].as_str().unwrap_or("Issuer");
    let issuer = reference["name"].as_str().unwrap_or("?");
    let is_cluster_wide = kind == "ClusterIssuer";
    let issues = |object: &&Value| {
        object["kind"] == kind && name(object) == issuer && (is_cluster_wide || namespace(object) == served.namespace)
    };
    let spec = found.objects.iter().find(issues).map(|object| &object["spec"]);
    let writes_ca = |object: &&Value| {
        let ca = spec.and_then(|spec| spec["ca"]["secretName"].as_str());
        object["kind"] == "Certificate" && object["spec"]["isCA"] == true && ca == object["spec"]["secretName"].as_str()
    };
    let candidates: BTreeSet<_> =
        found.objects.iter().filter(|_| is_cluster_wide).filter(writes_ca).map(namespace).collect();
    // A tenant can also have a Certificate that writes a Secret with that name.
    let cluster_resources = match candidates.contains(CLUSTER_RESOURCE_NAMESPACE) {
        true => Some(CLUSTER_RESOURCE_NAMESPACE),
        false => candidates.first().copied().filter(|_| candidates.len() == 1),
    };
    IssuerSource {
        certificate: Some(certificate),
        issuer: Some(format!("{kind} {issuer}")),
        spec,
        is_cluster_wide,
        cluster_resources,
        is_ca: is_ca || certificate["spec"]["isCA"] == true,
    }
}

impl IssuerSource<'_> {
    /// The Secret of the CA, if that is another Secret.
    pub(super) fn ca_secret_name(&self) -> Option<&str> {
        self.spec.filter(|_| !self.is_ca)?["ca"]["secretName"].as_str()
    }

    /// The namespace of the CA's Secret, if that is another namespace.
    pub(super) fn ca_namespace(&self) -> Option<&str> {
        self.ca_secret_name().filter(|_| self.is_cluster_wide)?;
        Some(self.cluster_resources.unwrap_or(CLUSTER_RESOURCE_NAMESPACE))
    }

    /// Whether the issuer signs in every namespace.
    pub(super) fn is_cluster_wide(&self) -> bool {
        self.is_cluster_wide
    }

    /// Whether a Certificate is issued by the same issuer.
    pub(super) fn issues(&self, certificate: &Value) -> bool {
        let reference = |certificate: &Value| {
            let reference = &certificate["spec"]["issuerRef"];
            (reference["kind"].as_str().unwrap_or("Issuer").to_owned(), reference["name"].clone())
        };
        self.certificate.is_some_and(|own| reference(own) == reference(certificate))
    }

    /// The Gateway or Ingress for which cert-manager manages the Certificate (gateway-shim and ingress-shim).
    /// cert-manager then reverts changes of `spec.secretName`, and uses the new name when a Gateway is rewritten.
    pub(super) fn shim_owner(&self) -> Option<String> {
        let owners = self.certificate?["metadata"]["ownerReferences"].as_array()?;
        let is_shims = |owner: &&Value| {
            ["gateway.networking.k8s.io/", "networking.k8s.io/"]
                .iter()
                .any(|group| owner["apiVersion"].as_str().is_some_and(|version| version.starts_with(group)))
        };
        let owner = owners.iter().filter(is_shims).find(|owner| owner["controller"] == true)?;
        Some(format!("{} {}", owner["kind"].as_str()?, owner["name"].as_str()?))
    }

    /// The Certificate that writes the source Secret.
    pub(super) fn certificate_name(&self) -> Option<&str> {
        self.certificate.map(name)
    }

    /// The issuer: its kind and name.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    /// Whether this Certificate writes the source Secret.
    pub(super) fn is_of(&self, certificate: &Value) -> bool {
        self.certificate == Some(certificate)
    }

    /// Comments on what is known about the CA.
    pub(super) fn comments(&self, found: &GenerateInput, served: &ServedSecret<'_>) -> Vec<String> {
        let Some(certificate) = self.certificate else {
            let manually = "no cert-manager Certificate writes it: renew it manually when the CA is rotated";
            return vec![manually.to_owned()];
        };
        let (issuer, certificate) = (self.issuer().unwrap_or("?"), name(certificate));
        let written = format!("written by Certificate {certificate} of {issuer}");
        let open = |why: &str| format!("{written}: {why}. Gateways get a new CA when the source Secret is next issued");
        vec![match (self.spec, self.ca_secret_name()) {
            _ if self.is_ca => format!("{written}, and a CA itself: gateways present it"),
            (_, Some(ca)) => {
                let namespace = self.ca_namespace();
                let place = namespace.map_or_else(|| ca.to_owned(), |namespace| format!("{namespace}/{ca}"));
                let is_missing =
                    matches!(found.held(namespace.unwrap_or(served.namespace), ca), Some(SecretLookup::Missing));
                let guess = match namespace {
                    Some(_) if self.cluster_resources != Some(CLUSTER_RESOURCE_NAMESPACE) => {
                        ". That namespace is a guess: it must be cert-manager's cluster resource namespace \
                         (--cluster-resource-namespace)"
                    }
                    _ => "",
                };
                format!(
                    "{written}, whose CA is in Secret {place}{}{guess}",
                    if is_missing { ", which does not exist yet" } else { "" }
                )
            }
            (None, _) => open("that issuer was not found, so the Secret of its CA is unknown"),
            (Some(spec), _) if spec["selfSigned"].is_object() => open("it is self-signed, and is no CA"),
            (Some(_), _) => open("its CA is not stored in a Secret"),
        }]
    }
}
