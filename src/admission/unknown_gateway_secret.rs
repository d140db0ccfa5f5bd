//! A client of a GatewaySecret that there is none of: no rotation waits for it, and nobody would say so.

use serde_json::Value;

use super::annotation_validation::{field, metadata_of_secret};
use super::connectivity::declared;
use super::rules::NO_SUCH_GATEWAY_SECRET;
use crate::api::Kind;
use crate::api::names::CLIENT_LABEL;
use crate::registry::Registry;
use crate::trust::{Finding, Severities, Severity};

/// Judges the label of a Secret, or of the one that a Certificate of cert-manager makes. Never more than a warning, whatever the
/// rule's weight: the GatewaySecret may be on its way.
pub(super) fn finding(
    kind: Kind<'_>,
    object: &Value,
    namespace: &str,
    registry: &Registry,
    severities: &Severities,
) -> Option<Finding> {
    let place = metadata_of_secret(kind)?;
    let named = object.pointer(place)?["labels"][CLIENT_LABEL].as_str()?;
    if registry.knows(namespace, named) || declared(Some(named), namespace, registry).is_some() {
        return None;
    }
    let field = field(place, "labels", CLIENT_LABEL);
    let message = match named.split_once('_').filter(|(elsewhere, _)| *elsewhere != namespace) {
        // The same words whether there is one that does not list it: its owner does not tell strangers.
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
    use serde_json::json;

    use super::*;
    use crate::admission::{Context, Operation, Request, Verdict, check, validate};
    use crate::api::Level;
    use crate::registry::Entry;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::now;

    fn secret(named: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "till", "labels": {CLIENT_LABEL: named}},
            "data": {"note": ""},
        })
    }

    fn certificate(named: &str) -> Value {
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": "till"},
            "spec": {"secretName": "till", "secretTemplate": {"labels": {CLIENT_LABEL: named}}},
        })
    }

    /// What the webhook says, and what `check` does, of an object in namespace `mesh`.
    fn said(object: &Value, entries: &[Entry], severities: &Severities) -> [Vec<String>; 2] {
        said_by(object, Registry::new(entries.to_vec()), severities)
    }

    fn said_by(object: &Value, registry: Registry, severities: &Severities) -> [Vec<String>; 2] {
        let request = Request {
            operation: Operation::Create,
            kind: Kind::of(object),
            sub_resource: "",
            namespace: "mesh",
            name: "till",
            username: "jane",
            by_agent: false,
            may_break_glass: false,
            in_guarded_namespace: true,
            object: Some(object),
            old_object: None,
        };
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
    fn accepts_a_client_of_one_that_there_is() {
        let known = [entry("mesh", "root", "gateway")];
        let mut going = known.clone();
        going[0].being_deleted = true;
        for object in [secret("gateway"), certificate("gateway"), json!({"apiVersion": "v1", "kind": "Secret"})] {
            for known in [&known, &going] {
                assert_eq!(said(&object, known, &Severities::default()), [[""; 0]; 2], "{object}");
            }
            let unread = Registry::new([]).with_unread([("mesh".to_owned(), "gateway".to_owned())]);
            assert_eq!(said_by(&object, unread, &Severities::default()), [[""; 0]; 2], "{object}");
        }
    }

    #[test]
    fn rejects_nothing_but_warns_of_another_name_or_namespace() {
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
                    assert_eq!(said(&object, &known, &raised.into_iter().collect()), [expected.clone(), expected]);
                }
            }
        }
        let off = [(NO_SUCH_GATEWAY_SECRET.id.to_owned(), Level::Off)].into_iter().collect();
        assert_eq!(said(&secret("gatway"), &known, &off), [[""; 0]; 2]);
    }

    #[test]
    fn warns_of_one_elsewhere_unless_it_lists_the_namespace() {
        let mut known = [entry("edge", "root", "public")];
        let [webhook, check] = said(&secret("edge_public"), &known, &Severities::default());
        assert!(webhook[0].contains("no GatewaySecret public in edge lists namespace mesh"), "{webhook:?}");
        let unknown = said(&secret("edge_none"), &known, &Severities::default());
        let alike = unknown[0][0].replace("none", "public");
        assert_eq!([webhook, check], [[alike.clone()], [alike]], "a stranger learns of no GatewaySecret by it");
        known[0].spec.clients.namespaces = vec!["mesh".to_owned()];
        assert_eq!(said(&secret("edge_public"), &known, &Severities::default()), [[""; 0]; 2]);
    }

    #[test]
    fn what_shows_no_gateway_secret_is_a_part_but_the_cluster_is_not() {
        let [webhook, check] = said(&certificate("gateway"), &[], &Severities::default());
        assert_eq!((webhook.len(), check.len()), (1, 0));
    }
}
