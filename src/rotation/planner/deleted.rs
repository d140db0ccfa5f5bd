//! Clients that are not declared any more, and namespaces of clients that were deleted.

use jiff::{SignedDuration, Timestamp};

use super::rules::{Rule, applies};
use super::snapshot::{NamespaceState, Snapshot};
use crate::api::names::RETIRED;
use crate::rotation::journal::Journal;

/// How long the clients of a namespace count after it was deleted: a restored backup must find them known.
const RESTORED_WITHIN: SignedDuration = SignedDuration::from_hours(24);

/// When the clients of a namespace are forgotten that was deleted at this instant.
pub(super) fn forgotten_at(deleted: Timestamp) -> Timestamp {
    let time = if applies(Rule::DeletedNamespacesAreRemembered) { RESTORED_WITHIN } else { SignedDuration::ZERO };
    deleted.saturating_add(time).unwrap_or(Timestamp::MAX)
}

/// Records which namespaces of clients were deleted, and forgets their clients after a while: no pod runs in a namespace that does not exist.
pub(super) fn record_namespaces(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let may_be_deleted =
        |name: &str| snapshot.namespaces.get(name).is_some_and(|state| *state != NamespaceState::Exists);
    journal.deleted_namespaces.retain(|namespace, _| may_be_deleted(namespace));
    let deleted = snapshot.namespaces.iter().filter(|(_, state)| **state == NamespaceState::Deleted);
    for (namespace, _) in deleted {
        let since = *journal.deleted_namespaces.entry(namespace.clone()).or_insert(now);
        if now >= forgotten_at(since) {
            let is_declared = |name: &str| snapshot.all_clients().any(|client| client.name == name);
            journal.clients.retain(|name, _| namespace_of(name) != Some(namespace) || is_declared(name));
        }
    }
}

/// The namespaces of `spec.clients.namespaces` that may have unknown clients.
pub(super) fn unlisted_namespaces<'s>(
    snapshot: &'s Snapshot<'_>,
    journal: &Journal,
    now: Timestamp,
) -> impl Iterator<Item = &'s str> {
    let unlisted = snapshot.unlisted_namespaces.iter().map(String::as_str);
    unlisted.filter(move |namespace| deleted_until(snapshot, journal, namespace).is_none_or(|until| now < until))
}

/// Until when the clients of a deleted namespace count.
pub(super) fn deleted_until(snapshot: &Snapshot<'_>, journal: &Journal, namespace: &str) -> Option<Timestamp> {
    let state = snapshot.namespaces.get(namespace);
    state.filter(|state| **state == NamespaceState::Deleted)?;
    journal.deleted_namespaces.get(namespace).map(|since| forgotten_at(*since))
}

/// A client that is not declared, with how long it counts and what helps.
pub(super) fn described(snapshot: &Snapshot<'_>, journal: &Journal, name: &str, now: Timestamp) -> String {
    let Some(client) = journal.clients.get(name) else { return name.to_owned() };
    let delay = snapshot.entry.policy.propagation_delays.clients;
    let in_use = || client.in_use(delay, now);
    let end = in_use().map(|version| version.chain.first().map(|leaf| leaf.not_after).or(version.ends)).max().flatten();
    let ends = end.map_or("its certificate expires, at an unknown time".to_owned(), |end| end.to_string());
    if !client.loads_once {
        let replaced = in_use().filter_map(|version| version.replaced).max();
        let until = replaced.map_or(ends, |at| delay.after(at).to_string());
        return format!("{name} (retired: it counts until {until})");
    }
    if client.is_absent {
        return format!(
            "{name} (deleted: it counts until {ends}, or until you take it out of spec.clients.secretNames)"
        );
    }
    let namespace = namespace_of(name);
    if let Some(until) = namespace.and_then(|namespace| deleted_until(snapshot, journal, namespace)) {
        let until = end.map_or(until, |end| until.min(end));
        return format!("{name} (its namespace was deleted: it counts until {until})");
    }
    let or = namespace.map(|namespace| format!(", or delete namespace {namespace}")).unwrap_or_default();
    format!(
        "{name} (deleted or no longer declared: it counts until {ends}; to have it forgotten before, create it again with annotation \
         {RETIRED}: \"true\"{or})"
    )
}

/// The namespace of a client's qualified name, if that is not the GatewaySecret's own.
fn namespace_of(name: &str) -> Option<&str> {
    name.split_once('/').map(|(namespace, _)| namespace)
}
