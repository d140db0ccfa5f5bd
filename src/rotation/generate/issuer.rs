//! Who issues a root Secret, and from which CA, as cert-manager's objects tell.

use std::collections::BTreeSet;

use serde_json::Value;

use super::roots::Root;
use super::{GenerateInput, SecretLookup};
use crate::registry::CLUSTER_RESOURCE_NAMESPACE;
use crate::rotation::gateway_service::namespace;

/// Where a root's certificate comes from.
#[derive(Debug, Default)]
pub(super) struct IssuerSource<'a> {
    certificate: Option<&'a Value>,
    /// `Issuer name` or `ClusterIssuer name`.
    issuer: Option<String>,
    /// The issuer's `spec`, where the issuer was found.
    spec: Option<&'a Value>,
    is_cluster_wide: bool,
    /// Where a ClusterIssuer's Secrets are: in the namespace of the Certificate that writes its CA; `None` where no Certificate does.
    cluster_resources: Option<&'a str>,
    /// It is a CA itself.
    is_ca: bool,
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["spec"][field].as_str().unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or("?")
}

/// Finds it.
pub(super) fn source<'a>(found: &'a GenerateInput, root: &Root<'_>) -> IssuerSource<'a> {
    let is_ca =
        found.facts(root.namespace, root.name).and_then(|facts| facts.chain.first()).is_some_and(|leaf| leaf.is_ca);
    let writes = |object: &&Value| {
        object["kind"] == "Certificate"
            && namespace(object) == root.namespace
            && text(object, "secretName") == root.name
    };
    let Some(certificate) = found.objects.iter().find(writes) else {
        return IssuerSource { is_ca, ..IssuerSource::default() };
    };
    let reference = &certificate["spec"]["issuerRef"];
    let kind = reference["kind"].as_str().unwrap_or("Issuer");
    let issuer = reference["name"].as_str().unwrap_or("?");
    let is_cluster_wide = kind == "ClusterIssuer";
    let issues = |object: &&Value| {
        object["kind"] == kind && name(object) == issuer && (is_cluster_wide || namespace(object) == root.namespace)
    };
    let spec = found.objects.iter().find(issues).map(|object| &object["spec"]);
    let writes_ca = |object: &&Value| {
        let ca = spec.and_then(|spec| spec["ca"]["secretName"].as_str());
        object["kind"] == "Certificate" && object["spec"]["isCA"] == true && ca == object["spec"]["secretName"].as_str()
    };
    let candidates: BTreeSet<_> =
        found.objects.iter().filter(|_| is_cluster_wide).filter(writes_ca).map(namespace).collect();
    // Any tenant can have a Certificate for a Secret of that name.
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
    /// The Secret of the CA, where that is another than the root.
    pub(super) fn ca_secret_name(&self) -> Option<&str> {
        self.spec.filter(|_| !self.is_ca)?["ca"]["secretName"].as_str()
    }

    /// The namespace of the CA's Secret, where that is not the root's.
    pub(super) fn ca_namespace(&self) -> Option<&str> {
        self.ca_secret_name().filter(|_| self.is_cluster_wide)?;
        Some(self.cluster_resources.unwrap_or(CLUSTER_RESOURCE_NAMESPACE))
    }

    /// Whether it may sign in every namespace.
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

    /// The Gateway or Ingress for which cert-manager keeps the Certificate (its gateway-shim and ingress-shim): it undoes changes of
    /// `spec.secretName`, and follows a rewritten Gateway to the new name.
    pub(super) fn kept_for(&self) -> Option<String> {
        let owners = self.certificate?["metadata"]["ownerReferences"].as_array()?;
        let is_shims = |owner: &&Value| {
            ["gateway.networking.k8s.io/", "networking.k8s.io/"]
                .iter()
                .any(|group| owner["apiVersion"].as_str().is_some_and(|version| version.starts_with(group)))
        };
        let owner = owners.iter().filter(is_shims).find(|owner| owner["controller"] == true)?;
        Some(format!("{} {}", owner["kind"].as_str()?, owner["name"].as_str()?))
    }

    /// The Certificate that writes the root.
    pub(super) fn certificate_name(&self) -> Option<&str> {
        self.certificate.map(name)
    }

    /// The issuer: its kind and name.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    /// Whether it is the Certificate that writes the root.
    pub(super) fn is_of(&self, certificate: &Value) -> bool {
        self.certificate == Some(certificate)
    }

    /// What is known of the CA.
    pub(super) fn comments(&self, found: &GenerateInput, root: &Root<'_>) -> Vec<String> {
        let Some(certificate) = self.certificate else {
            let by_hand =
                "no Certificate of cert-manager writes it: whoever does has to renew it when the CA is rotated";
            return vec![by_hand.to_owned()];
        };
        let (issuer, certificate) = (self.issuer().unwrap_or("?"), name(certificate));
        let written = format!("written by Certificate {certificate}, of {issuer}");
        let open = |why: &str| format!("{written}: {why}. The gateways learn of a new CA with the root's next issue");
        vec![match (self.spec, self.ca_secret_name()) {
            _ if self.is_ca => format!("{written}, and a CA itself: gateways serve with it"),
            (_, Some(ca)) => {
                let namespace = self.ca_namespace();
                let place = namespace.map_or_else(|| ca.to_owned(), |namespace| format!("{namespace}/{ca}"));
                let is_missing =
                    matches!(found.held(namespace.unwrap_or(root.namespace), ca), Some(SecretLookup::Missing));
                let guess = match namespace {
                    Some(_) if self.cluster_resources != Some(CLUSTER_RESOURCE_NAMESPACE) => {
                        ". That namespace is a guess: it has to be cert-manager's cluster resource namespace \
                         (--cluster-resource-namespace)"
                    }
                    _ => "",
                };
                format!(
                    "{written}, whose CA is in Secret {place}{}{guess}",
                    if is_missing { ", which does not exist yet" } else { "" }
                )
            }
            (None, _) => open("that issuer was not found, so where its CA stands is not known"),
            (Some(spec), _) if spec["selfSigned"].is_object() => open("it is signed by itself, and is no CA"),
            (Some(_), _) => open("its CA is not stored in a Secret"),
        }]
    }
}
