//! ConfigMaps from which gateways take CAs: `ca.crt` or `cacert` under `data`, loaded by Envoy.
//!
//! istiod reads `data` only, and prefers `cacert` (`GetConfigMapCaCert`, pilot/pkg/credentials/kube/secrets.go); the Gateway API defines
//! `ca.crt` (`caCertificateRefs`).

use zeroize::Zeroizing;

use super::{BundleLocation, BundleLocations};
use crate::api::Kind;
use crate::json::Json;
use crate::trust::SecretUsage;
use crate::trust::credential::CA_KEYS;

pub(super) const KIND: Kind<'static> = Kind { group: "", version: "v1", kind: "ConfigMap" };

/// The location of its bundle; `None` if neither version has one.
pub(super) fn locations(object: &Json<'_>, old: Option<&Json<'_>>) -> Option<BundleLocations> {
    let text = |object: &Json<'_>, key: &str| object["data"][key].as_str().map(|text| text.as_bytes().to_vec());
    let had_bundle = old.is_some_and(|old| CA_KEYS.iter().any(|key| text(old, key).is_some()));
    let mut location = BundleLocation::new(String::new(), SecretUsage::default());
    for key in CA_KEYS {
        if let Some(text) = text(object, key) {
            location.texts.data.insert(key.to_owned(), Zeroizing::new(text));
        }
    }
    let is_source = had_bundle || !location.texts.data.is_empty();
    is_source.then(|| BundleLocations { readable: vec![location], ..BundleLocations::default() })
}
