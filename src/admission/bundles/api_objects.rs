//! `caBundle` of the objects that configure calls of the API server: CRD conversion, aggregated APIs, webhooks.
//!
//! client-go parses it with `AppendCertsFromPEM` (`transport.rootCertPool`); an empty one means the roots of the system. Sources:
//! `CustomResourceConversion`, `APIServiceSpec` and `WebhookClientConfig` of the Kubernetes API.

use std::cell::LazyCell;

use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations, Unreadable};
use crate::api::Kind;
use crate::api::names::is_ca_injected;
use crate::json::Json;
use crate::trust::{SecretUsage, TlsConsumer, decoded};

const KEY: &str = "caBundle";

/// The locations in an object; `None` for other kinds.
pub(super) fn locations(kind: Kind<'_>, object: &Json<'_>) -> Option<BundleLocations> {
    let mut locations = BundleLocations::default();
    // Computed once: a hostile object has thousands of annotations, and of webhooks.
    let is_filled_in = LazyCell::new(|| is_ca_injected(object));
    let mut add = |prefix: String, parent: &Json<'_>| {
        let text = match &parent[KEY] {
            Json::Null => return,
            text => text.as_str().and_then(decoded),
        };
        let Some(text) = text else {
            return locations.unreadable.push(Unreadable::CaBundle(format!("{prefix}{KEY}")));
        };
        if is_placeholder(kind, &is_filled_in, &text) {
            return;
        }
        let mut location =
            BundleLocation::new(prefix, SecretUsage { reader: TlsConsumer::Go, ..SecretUsage::default() });
        location.texts.data.insert(KEY.to_owned(), Zeroizing::new(text));
        locations.readable.push(location);
    };
    let spec = &object["spec"];
    match (kind.group, kind.kind) {
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            add("spec.conversion.webhook.clientConfig.".to_owned(), &spec["conversion"]["webhook"]["clientConfig"]);
        }
        ("apiregistration.k8s.io", "APIService") => add("spec.".to_owned(), spec),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            for webhook in object["webhooks"].as_array().into_iter().flatten() {
                let name = webhook["name"].as_str().unwrap_or_default();
                add(format!("webhooks[{name}].clientConfig."), &webhook["clientConfig"]);
            }
        }
        _ => return None,
    }
    Some(locations)
}

/// Whether a caBundle is empty, or whitespace that will be overwritten: manifests often have a line break where a caBundle is injected.
fn is_placeholder<F: FnOnce() -> bool>(kind: Kind<'_>, is_filled_in: &LazyCell<bool, F>, text: &[u8]) -> bool {
    // The conversion of a CRD treats whitespace as empty (apiextensions-apiserver, webhook_converter.go).
    let may_be_blank = || kind.kind == "CustomResourceDefinition" || **is_filled_in;
    text.is_empty() || (text.trim_ascii().is_empty() && may_be_blank())
}
