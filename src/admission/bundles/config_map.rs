//! ConfigMaps from which gateways take CAs: `ca.crt` or `cacert` under `data`, read by Envoy.
//!
//! istiod looks at `data` only, and prefers `cacert` (`GetConfigMapCaCert`, pilot/pkg/credentials/kube/secrets.go); the
//! Gateway API knows `ca.crt` (`caCertificateRefs`).

use serde_json::Value;
use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations};
use crate::api::Kind;
use crate::trust::Duty;
use crate::trust::credential::CA_KEYS;

pub(super) const KIND: Kind<'static> = Kind { group: "", version: "v1", kind: "ConfigMap" };

/// The place of its bundle; `None` when it has none, and had none.
pub(super) fn places(object: &Value, old: Option<&Value>) -> Option<BundleLocations> {
    let text = |object: &Value, key: &str| object["data"][key].as_str().map(|text| text.as_bytes().to_vec());
    let had_one = old.is_some_and(|old| CA_KEYS.iter().any(|key| text(old, key).is_some()));
    let mut place = BundleLocation::new(String::new(), Duty { ca_required: had_one, ..Duty::default() });
    for key in CA_KEYS {
        if let Some(text) = text(object, key) {
            place.texts.data.insert(key.to_owned(), Zeroizing::new(text));
        }
    }
    let counts = had_one || !place.texts.data.is_empty();
    counts.then(|| BundleLocations { readable: vec![place], ..BundleLocations::default() })
}
