//! Where a Gateway takes its clients' CAs from, judged at admission.

use serde_json::Value;

use super::rules::ADMITS_EVERYBODY;
use crate::api::Kind;
use crate::api::names::managed_config_map_name;
use crate::registry::{Entry, Registry};
use crate::rewrite::{TlsSettings, TrustSource, tls_settings};
use crate::trust::{Finding, Severity};

/// Servers that let in every client, or reset every connection. One that the stored object already had only warns: its other
/// fields can still be changed.
pub(super) fn findings(kind: Kind<'_>, object: &Value, old: Option<&Value>) -> Vec<Finding> {
    let before = old.map(|old| named_for_nothing(kind, old)).unwrap_or_default();
    let finding = |(field, name): (String, &str)| {
        let message = format!(
            "{name}: istiod serves this Secret as a certificate, so the gateway gets no CA and lets in every client. \
             Expected the name of a CA Secret with the suffix -cacert, or configmap://NAMESPACE/NAME"
        );
        let is_known = before.iter().any(|(_, known)| *known == name);
        let finding = ADMITS_EVERYBODY.finding(field, message);
        if is_known { Finding { severity: Severity::Warn, ..finding } } else { finding }
    };
    named_for_nothing(kind, object).into_iter().map(finding).collect()
}

fn named_for_nothing<'a>(kind: Kind<'_>, object: &'a Value) -> Vec<(String, &'a str)> {
    let of = |settings: TlsSettings<'a>| match settings.trust {
        TrustSource::Nothing(name) => Some((settings.field(), name)),
        _ => None,
    };
    tls_settings(kind, object, "").into_iter().filter_map(of).collect()
}

/// Servers that present a managed certificate and take their clients' CAs from elsewhere: a rotation waits for that source.
pub(super) fn notes(kind: Kind<'_>, object: &Value, namespace: &str, registry: &Registry) -> Vec<String> {
    let of = |settings: TlsSettings<'_>| {
        let entry = settings.presents.iter().find_map(|named| registry.user_of(&named.place, named.name))?;
        let source = match &settings.trust {
            TrustSource::Secret { place, name } if registry.user_of(place, name).is_some() => return None,
            TrustSource::NotVerified | TrustSource::Nothing(_) => return None,
            TrustSource::Secret { name, .. } => format!("Secret {name}-cacert or {name}"),
            TrustSource::ConfigMap { namespace, name } if keeps(entry, namespace, name) => return None,
            TrustSource::ConfigMap { namespace, name } => format!("ConfigMap {namespace}/{name}"),
            TrustSource::Unknowable(what) => (*what).to_owned(),
        };
        Some(format!("{}: client CAs come from {source}; rotations of {} wait for it", settings.field(), entry.name))
    };
    let mut notes: Vec<_> = tls_settings(kind, object, namespace).into_iter().filter_map(of).collect();
    notes.dedup();
    // The API server shows a few; a hostile Gateway has thousands.
    notes.truncate(3);
    notes
}

/// Whether the agent keeps a ConfigMap, or keeps another from it: what holds the rename is said then.
fn keeps(entry: &Entry, namespace: &str, name: &str) -> bool {
    let is_kept = |source: &String| source == name || managed_config_map_name(source) == name;
    entry.namespace == namespace && entry.spec.clients.ca_config_map_names.iter().any(is_kept)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;

    fn gateway(tls: Value) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"tls": tls}]},
        })
    }

    #[test]
    fn a_plain_secret_for_cas_is_denied_and_a_stored_one_only_warns() {
        let mutual =
            |name: &str| gateway(json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": name}));
        let of = |object: &Value, old: Option<&Value>| findings(Kind::of(object), object, old);
        let denied = of(&mutual("partners"), None);
        assert_eq!(denied.len(), 1);
        assert_eq!(
            (denied[0].severity, &*denied[0].field),
            (Severity::Deny, "spec.servers[0].tls.caCertCredentialName")
        );
        assert_eq!(of(&mutual("partners"), Some(&mutual("partners")))[0].severity, Severity::Warn);
        assert_eq!(of(&mutual("partners"), Some(&mutual("others")))[0].severity, Severity::Deny);
        for name in ["partners-cacert", "configmap://apps/partners", "sds://partners"] {
            assert_eq!(of(&mutual(name), None), [], "{name}");
        }
        let simple = gateway(json!({"mode": "SIMPLE", "credentialName": "gw", "caCertCredentialName": "partners"}));
        assert_eq!(of(&simple, None), []);
    }

    #[test]
    fn a_config_map_that_is_kept_is_not_noted() {
        let mut entry = entry("mesh", "root", "gw");
        entry.spec.clients.ca_config_map_names = vec!["cas".to_owned()];
        let registry = Registry::new([entry]);
        let noted = |name: &str| {
            let tls = json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": name});
            !notes(Kind::of(&gateway(json!({}))), &gateway(tls), "apps", &registry).is_empty()
        };
        assert!(!noted("configmap://mesh/cas") && !noted("configmap://mesh/cas.trustspan"));
        assert!(noted("configmap://apps/cas") && noted("configmap://mesh/others"));
    }

    #[test]
    fn another_source_of_cas_is_noted_beside_a_managed_certificate_alone() {
        let registry = Registry::new([entry("mesh", "root", "gw")]);
        let of = |tls: Value| notes(Kind::of(&gateway(json!({}))), &gateway(tls), "apps", &registry);
        for name in ["root", "gw"] {
            let tls =
                json!({"mode": "MUTUAL", "credentialName": name, "caCertCredentialName": "configmap://apps/partners"});
            let expected = "spec.servers[0].tls.caCertCredentialName: client CAs come from ConfigMap apps/partners; rotations of gw wait for it";
            assert_eq!(of(tls), [expected]);
        }
        assert_eq!(of(json!({"mode": "MUTUAL", "credentialName": "gw"})), [""; 0]);
        assert_eq!(
            of(json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": "root-cacert"})),
            [""; 0]
        );
        assert_eq!(of(json!({"mode": "MUTUAL", "credentialName": "x", "caCertCredentialName": "y-cacert"})), [""; 0]);
        assert_eq!(of(json!({"mode": "MUTUAL", "credentialNames": ["x", "gw"]})).len(), 1, "the first name decides");
    }
}
