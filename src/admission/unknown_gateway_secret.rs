//! A client whose label names no GatewaySecret: no rotation waits for it.

use super::annotation_validation::{field, metadata_of_secret};
use super::connectivity::declared;
use super::rules::NO_SUCH_GATEWAY_SECRET;
use crate::api::Kind;
use crate::api::names::CLIENT_LABEL;
use crate::json::Json;
use crate::registry::Registry;
use crate::trust::{Finding, Severities, Severity};

/// Judges the client label of a Secret, or of the Secret that a Certificate of cert-manager makes. Only warns, whatever the severity of the
/// rule: the GatewaySecret may be created later.
pub(super) fn finding(
    kind: Kind<'_>,
    object: &Json<'_>,
    namespace: &str,
    registry: &Registry,
    severities: &Severities,
) -> Option<Finding> {
    let metadata = metadata_of_secret(kind)?;
    let named = object.pointer(metadata)?["labels"][CLIENT_LABEL].as_str()?;
    if registry.knows(namespace, named) || declared(Some(named), namespace, registry).is_some() {
        return None;
    }
    let field = field(metadata, "labels", CLIENT_LABEL);
    let message = match named.split_once('_').filter(|(elsewhere, _)| *elsewhere != namespace) {
        // The same message whether it exists or not, so that it reveals nothing about another namespace.
        Some((elsewhere, name)) => format!(
            "no GatewaySecret {name} in {elsewhere} lists namespace {namespace}: the client is not declared. expected {namespace} in its \
             spec.clients.namespaces; ask its owner"
        ),
        None => format!(
            "no GatewaySecret {named} here: the client is not declared. expected the name of one in namespace {namespace}, or \
             NAMESPACE_NAME of one in another namespace"
        ),
    };
    let finding = severities.apply(NO_SUCH_GATEWAY_SECRET.finding(field, message))?;
    Some(Finding { severity: Severity::Warn, ..finding })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Context, Request, Verdict, check, validate};
    use crate::api::Level;
    use crate::json::json;
    use crate::registry::Entry;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::now;

    fn secret(named: &str) -> Json<'static> {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "payments", "labels": {CLIENT_LABEL: named}},
            "data": {"note": ""},
        })
    }

    fn certificate(named: &str) -> Json<'static> {
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "payments"},
            "spec": {"secretName": "payments", "secretTemplate": {"labels": {CLIENT_LABEL: named}}},
        })
    }

    /// The messages of the webhook and of `check` on an object in namespace `mesh`.
    fn messages(object: &Json<'_>, entries: &[Entry], severities: &Severities) -> [Vec<String>; 2] {
        messages_with(object, Registry::new(entries.to_vec()), severities)
    }

    fn messages_with(object: &Json<'_>, registry: Registry, severities: &Severities) -> [Vec<String>; 2] {
        let request = Request::fixture(Kind::of(object), Some(object), None);
        let decision = validate(&request, &registry, severities, now());
        assert_ne!(decision.verdict(), Verdict::Deny);
        let context = Context { registry, severities: severities.clone(), ..Context::default() };
        let checked = check(object, "mesh", &context, now()).unwrap_or_default();
        [decision.findings, checked].map(|findings| {
            let ours = findings.iter().filter(|finding| finding.rule == NO_SUCH_GATEWAY_SECRET.id);
            ours.map(|finding| format!("{}: {}", finding.field, finding.message)).collect()
        })
    }

    #[test]
    fn accepts_a_client_of_an_existing_gateway_secret() {
        let known = [entry("mesh", "root", "gateway")];
        let mut deleted = known.clone();
        deleted[0].being_deleted = true;
        for object in [secret("gateway"), certificate("gateway"), json!({"apiVersion": "v1", "kind": "Secret"})] {
            for known in [&known, &deleted] {
                assert_eq!(messages(&object, known, &Severities::default()), [[""; 0]; 2], "{object}");
            }
            let unread = Registry::default().with_unread([("mesh".to_owned(), "gateway".to_owned())]);
            assert_eq!(messages_with(&object, unread, &Severities::default()), [[""; 0]; 2], "{object}");
        }
    }

    #[test]
    fn warns_about_an_unknown_name_or_namespace() {
        let known = [entry("mesh", "root", "gateway"), entry("edge", "root", "public")];
        for named in ["gatway", "public"] {
            let message = format!(
                "no GatewaySecret {named} here: the client is not declared. expected the name of one in namespace mesh, or NAMESPACE_NAME of \
                 one in another namespace"
            );
            for (object, place) in [(secret(named), "metadata"), (certificate(named), "spec.secretTemplate")] {
                for level in [None, Some(Level::Deny)] {
                    let raised = level.map(|level| (NO_SUCH_GATEWAY_SECRET.id.to_owned(), level));
                    let expected = [format!("{place}.labels[trustspan.dev/client]: {message}")];
                    assert_eq!(messages(&object, &known, &raised.into_iter().collect()), [expected.clone(), expected]);
                }
            }
        }
        let off = [(NO_SUCH_GATEWAY_SECRET.id.to_owned(), Level::Off)].into_iter().collect();
        assert_eq!(messages(&secret("gatway"), &known, &off), [[""; 0]; 2]);
    }

    #[test]
    fn warns_about_another_namespace_unless_it_lists_the_clients() {
        let mut known = [entry("edge", "root", "public")];
        let [webhook, check] = messages(&secret("edge_public"), &known, &Severities::default());
        assert!(webhook[0].contains("no GatewaySecret public in edge lists namespace mesh"), "{webhook:?}");
        let unknown = messages(&secret("edge_none"), &known, &Severities::default());
        let same = unknown[0][0].replace("none", "public");
        assert_eq!([webhook, check], [[same.clone()], [same]], "it reveals no GatewaySecret");
        known[0].spec.clients.namespaces = vec!["mesh".to_owned()];
        assert_eq!(messages(&secret("edge_public"), &known, &Severities::default()), [[""; 0]; 2]);
    }

    #[test]
    fn check_does_not_warn_without_gateway_secrets_in_the_input() {
        let [webhook, check] = messages(&certificate("gateway"), &[], &Severities::default());
        assert_eq!((webhook.len(), check.len()), (1, 0));
    }
}
