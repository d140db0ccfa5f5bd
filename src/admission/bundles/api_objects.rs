//! `caBundle` of the objects by which the API server calls others: CRD conversion, aggregated APIs, webhooks.
//!
//! Read with `AppendCertsFromPEM` by client-go (`transport.rootCertPool`); an empty one means the system's roots. Sources:
//! `CustomResourceConversion`, `APIServiceSpec` and `WebhookClientConfig` of the Kubernetes API.

use std::cell::LazyCell;

use serde_json::Value;
use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations, Unreadable};
use crate::api::Kind;
use crate::trust::{Duty, TlsConsumer, decoded};

const KEY: &str = "caBundle";

/// By what cert-manager's cainjector is told to fill a caBundle in.
const INJECTED: &str = "cert-manager.io/inject-";

/// The places of an object; `None` for other kinds.
pub(super) fn places(kind: Kind<'_>, object: &Value) -> Option<BundleLocations> {
    let mut places = BundleLocations::default();
    // Asked once: a hostile object has thousands of annotations, and of webhooks.
    let is_filled_in = LazyCell::new(|| is_injected(object));
    let mut add = |prefix: String, holder: &Value| {
        let text = match &holder[KEY] {
            Value::Null => return,
            text => text.as_str().and_then(decoded),
        };
        let Some(text) = text else {
            return places.unreadable.push(Unreadable::NoBundle(format!("{prefix}{KEY}")));
        };
        if is_placeholder(kind, &is_filled_in, &text) {
            return;
        }
        let mut place = BundleLocation::new(prefix, Duty { reader: TlsConsumer::Go, ..Duty::default() });
        place.texts.data.insert(KEY.to_owned(), Zeroizing::new(text));
        places.readable.push(place);
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
    Some(places)
}

/// Nothing is there, or blanks that will be overwritten: manifests often have a line break where a caBundle is injected.
fn is_placeholder<F: FnOnce() -> bool>(kind: Kind<'_>, is_filled_in: &LazyCell<bool, F>, text: &[u8]) -> bool {
    // The conversion of a CRD takes blanks for nothing (apiextensions-apiserver, webhook_converter.go).
    let forgiven = || kind.kind == "CustomResourceDefinition" || **is_filled_in;
    text.is_empty() || (text.trim_ascii().is_empty() && forgiven())
}

/// Whether an object's annotations have cert-manager fill it in.
fn is_injected(object: &Value) -> bool {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations.into_iter().any(|(key, _)| key.starts_with(INJECTED))
}
