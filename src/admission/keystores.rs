//! Java truststores in the Secret of a cert-manager Certificate with `spec.keystores`. cert-manager renders them from the CA of the
//! CertificateRequest, so they lack the CAs that the webhook adds to `ca.crt`, and without their password the webhook cannot add any
//! (docs/adr/0038).
//!
//! The write keeps the stored truststores, and gets an annotation that does not fit its certificate. cert-manager corrects that at once, in a write
//! that renders every keystore from the whole `ca.crt` (cert-manager 1.21.2: `SecretCertificateDetailsAnnotationsMismatch` in
//! internal/controller/certificates/policies/checks.go, `ensureSecretData` in pkg/controller/certificates/issuing/secret_manager.go).

use json_patch::jsonptr::PointerBuf;

use crate::json::Json;
use crate::rewrite::PatchText;

/// The keystore and the truststore of each format.
const STORES: [[&str; 2]; 2] = [["keystore.jks", "truststore.jks"], ["keystore.p12", PKCS12_TRUSTSTORE]];
pub(super) const PKCS12_TRUSTSTORE: &str = "truststore.p12";

/// The annotation that is changed. cert-manager writes it into every Secret, empty for a certificate without IP addresses.
const DETAIL: &str = "cert-manager.io/ip-sans";
/// No list of IP addresses. A person who reads it finds a write that cert-manager has not followed up.
const TO_BE_RENDERED: &str = "trustspan.dev: cert-manager renders the keystores again";

/// Adds to the patch of a Secret's `ca.crt` what brings the same CAs into its truststores. `old` is the stored Secret, if any.
pub(super) fn render(object: &Json<'_>, old: Option<&Json<'_>>, patch: &mut PatchText) {
    // Anyone else wrote the truststores as they should be.
    let detail = &object["metadata"]["annotations"][DETAIL];
    let stores: Vec<_> = STORES.iter().filter(|names| names.iter().any(|name| holds(object, name))).collect();
    if !detail.is_string() || stores.is_empty() {
        return;
    }
    for [_, truststore] in stores {
        // An issuer without a CA writes no truststore, but the client may be reading the stored one.
        let stored = old.filter(|old| holds(old, truststore)).map(|old| &old["data"][*truststore]);
        if let Some(stored) = stored.filter(|stored| **stored != object["data"][*truststore]).and_then(Json::as_str) {
            patch.append(PointerBuf::from_tokens(["data", truststore]).as_str(), stored);
        }
    }
    patch.append(PointerBuf::from_tokens(["metadata", "annotations", DETAIL]).as_str(), TO_BE_RENDERED);
}

/// Whether a Secret has a value under a key.
pub(super) fn holds(object: &Json<'_>, key: &str) -> bool {
    object["data"][key].as_str().is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::json::json;

    /// A Secret as cert-manager writes it, with these truststores.
    fn secret(truststores: &[(&str, &str)]) -> Json<'static> {
        let mut object = json!({
            "metadata": { "annotations": { "cert-manager.io/certificate-name": "payments", DETAIL: "" } },
            "data": { "ca.crt": "bmV3" },
        });
        for (key, value) in truststores {
            object["data"][*key] = json!(*value);
        }
        object
    }

    fn rendered(object: &Json<'_>, old: Option<&Json<'_>>) -> Value {
        let mut patch = PatchText::add("/data/ca.crt", "Ym90aA==");
        render(object, old, &mut patch);
        let mut written = Value::from(object);
        json_patch::patch(&mut written, &patch.parse()).expect("a patch that applies");
        assert_eq!(written["data"]["ca.crt"], "Ym90aA==");
        written
    }

    fn is_rendered_again(written: &Value) -> bool {
        written["metadata"]["annotations"][DETAIL] == TO_BE_RENDERED
    }

    #[test]
    fn keeps_the_stored_truststores_until_cert_manager_renders_them_again() {
        let new = secret(&[("truststore.jks", "bmV3"), ("truststore.p12", "bmV3"), ("keystore.p12", "bmV3")]);
        let old = secret(&[("truststore.jks", "b2xk"), ("truststore.p12", "b2xk"), ("keystore.p12", "b2xk")]);
        let written = rendered(&new, Some(&old));
        assert_eq!(written["data"]["truststore.jks"], "b2xk");
        assert_eq!(written["data"]["truststore.p12"], "b2xk");
        assert_eq!(written["data"]["keystore.p12"], "bmV3", "the new key belongs to the new certificate");
        assert!(is_rendered_again(&written));
    }

    #[test]
    fn keeps_what_the_write_has_if_nothing_is_stored() {
        let new = secret(&[("truststore.jks", "bmV3")]);
        for old in [None, Some(secret(&[])), Some(secret(&[("truststore.jks", "")])), Some(json!({ "data": null }))] {
            let written = rendered(&new, old.as_ref());
            assert_eq!(written["data"]["truststore.jks"], "bmV3");
            assert!(is_rendered_again(&written), "{old:?}");
        }
    }

    #[test]
    fn keeps_the_stored_truststore_if_the_issuer_names_no_ca() {
        let new = secret(&[("keystore.jks", "bmV3")]);
        let written = rendered(&new, Some(&secret(&[("keystore.jks", "b2xk"), ("truststore.jks", "b2xk")])));
        assert_eq!(written["data"]["truststore.jks"], "b2xk");
        assert!(is_rendered_again(&written));
    }

    #[test]
    fn adds_no_truststore_that_is_no_longer_wanted() {
        let new = secret(&[("keystore.p12", "bmV3"), ("truststore.p12", "bmV3")]);
        let written = rendered(&new, Some(&secret(&[("keystore.jks", "b2xk"), ("truststore.jks", "b2xk")])));
        assert!(written["data"]["truststore.jks"].is_null());
        let without = rendered(&secret(&[]), Some(&new));
        assert!(without["data"]["truststore.p12"].is_null() && !is_rendered_again(&without));
    }

    #[test]
    fn does_not_change_truststores_of_other_writers() {
        let mut new = secret(&[("truststore.jks", "bmV3")]);
        new["metadata"]["annotations"] = json!({ "note": "by hand" });
        let written = rendered(&new, Some(&secret(&[("truststore.jks", "b2xk")])));
        assert_eq!(written["data"]["truststore.jks"], "bmV3");
        assert!(!is_rendered_again(&written));
    }
}
