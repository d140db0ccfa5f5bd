//! Checks from which object a Gateway takes its clients' CAs.

use super::rules::ADMITS_EVERYBODY;
use crate::api::Kind;
use crate::api::names::managed_config_map_name;
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::rewrite::{TlsSettings, TrustSource, can_trust_another_source, tls_settings};
use crate::trust::{Finding, Severity};

/// Servers that accept every client, or reset every connection. One that the stored object already has only warns, so that its other fields
/// can still be changed.
pub(super) fn findings(kind: Kind<'_>, object: &Json<'_>, old: Option<&Json<'_>>) -> Vec<Finding> {
    let before = old.map(|old| names_without_cas(kind, old)).unwrap_or_default();
    let finding = |(field, name): (String, &str)| {
        let message = format!(
            "{name}: istiod serves this Secret as a certificate, so the gateway gets no CA and accepts every client. \
             expected the name of a CA Secret with the suffix -cacert, or configmap://NAMESPACE/NAME"
        );
        let is_stored = before.iter().any(|(_, stored)| *stored == name);
        let finding = ADMITS_EVERYBODY.finding(field, message);
        if is_stored { Finding { severity: Severity::Warn, ..finding } } else { finding }
    };
    names_without_cas(kind, object).into_iter().map(finding).collect()
}

fn names_without_cas<'a>(kind: Kind<'_>, object: &'a Json<'a>) -> Vec<(String, &'a str)> {
    let of = |settings: TlsSettings<'a>| match settings.trust {
        TrustSource::Nothing(name) => Some((settings.field(), name)),
        _ => None,
    };
    tls_settings(kind, object, "").into_iter().filter_map(of).collect()
}

/// Servers with a managed certificate that take their clients' CAs from another object, for which every rotation has to
/// wait if they are granted that.
pub(super) fn notes(kind: Kind<'_>, object: &Json<'_>, namespace: &str, registry: &Registry) -> Vec<String> {
    if !can_trust_another_source(kind, object) {
        return Vec::new();
    }
    let of = |settings: TlsSettings<'_>| {
        let entry = settings.presents.iter().find_map(|named| registry.user_of(&named.place, named.name))?;
        let source = match &settings.trust {
            TrustSource::Secret { place, name } if registry.user_of(place, name).is_some() => return None,
            TrustSource::NotVerified | TrustSource::Nothing(_) => return None,
            TrustSource::Secret { name, .. } => format!("Secret {name}-cacert or {name}"),
            TrustSource::ConfigMap { namespace, name } if is_managed_source(entry, namespace, name) => return None,
            TrustSource::ConfigMap { namespace, name } => format!("ConfigMap {namespace}/{name}"),
            TrustSource::Unknowable(what) => (*what).to_owned(),
        };
        let (own, name) = (&entry.namespace, entry.name_in(namespace));
        let is_allowed = entry.client_namespaces().any(|listed| listed == namespace);
        let condition = if is_allowed {
            String::new()
        } else {
            format!(" only if a ReferenceGrant in namespace {own} allows that")
        };
        let wait = format!("rotations of {name} wait for it{condition}");
        Some(format!("{}: client CAs come from {source}; {wait}", settings.field()))
    };
    let mut notes: Vec<_> = tls_settings(kind, object, namespace).into_iter().filter_map(of).collect();
    notes.dedup();
    // A response has room for a few warnings, and a hostile Gateway has thousands of servers.
    notes.truncate(3);
    notes
}

/// Whether the agent writes this ConfigMap or a copy of it. The message about a blocked rewrite then names it.
fn is_managed_source(entry: &Entry, namespace: &str, name: &str) -> bool {
    let is_named = |source: &String| source == name || managed_config_map_name(source) == name;
    entry.namespace == namespace && entry.spec.clients.ca_config_map_names.iter().any(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;
    use crate::registry::tests::entry;

    fn gateway(tls: Json<'static>) -> Json<'static> {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"tls": tls}]},
        })
    }

    #[test]
    fn rejects_a_secret_without_cas_and_warns_about_a_stored_one() {
        let mutual =
            |name: &str| gateway(json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": name}));
        let of = |object: &Json<'_>, old: Option<&Json<'_>>| findings(Kind::of(object), object, old);
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
    fn does_not_warn_about_a_config_map_that_the_agent_writes() {
        let mut entry = entry("mesh", "root", "gw");
        entry.spec.clients.ca_config_map_names = vec!["cas".to_owned()];
        let registry = Registry::new([entry]);
        let warns = |name: &str| {
            let tls = json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": name});
            !notes(Kind::of(&gateway(json!({}))), &gateway(tls), "apps", &registry).is_empty()
        };
        assert!(!warns("configmap://mesh/cas") && !warns("configmap://mesh/cas.trustspan"));
        assert!(warns("configmap://apps/cas") && warns("configmap://mesh/others"));
    }

    #[test]
    fn warns_about_another_source_of_cas_only_with_a_managed_certificate() {
        let registry = Registry::new([entry("mesh", "root", "gw")]);
        let in_namespace = |namespace: &str, tls: Json<'static>| {
            notes(Kind::of(&gateway(json!({}))), &gateway(tls), namespace, &registry)
        };
        let of = |tls: Json<'static>| in_namespace("mesh", tls);
        for name in ["root", "gw"] {
            let tls =
                json!({"mode": "MUTUAL", "credentialName": name, "caCertCredentialName": "configmap://apps/partners"});
            let expected = "spec.servers[0].tls.caCertCredentialName: client CAs come from ConfigMap apps/partners; rotations of gw wait for it";
            assert_eq!(of(tls.clone()), [expected]);
            let elsewhere = in_namespace("apps", tls.clone());
            assert!(elsewhere[0].contains("only if a ReferenceGrant in namespace mesh"), "{elsewhere:?}");
            let mut listing = entry("mesh", "root", "gw");
            listing.spec.clients.namespaces = vec!["apps".to_owned()];
            let listed = notes(Kind::of(&gateway(json!({}))), &gateway(tls), "apps", &Registry::new([listing]));
            assert!(listed[0].ends_with("rotations of mesh/gw wait for it"), "{listed:?}");
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
