//! Which clients a step has to wait for.

use super::deleted;
use super::history::{View, admits};
use crate::rotation::journal::Version;
use crate::rotation::name_list::few;

/// Whether a CA of clients that gateways know, taken alone, accepts a version of a client.
pub(super) fn is_admitted(view: &View<'_>, version: &Version) -> bool {
    let mut known = view.journal.client_issuers.iter().map(|issuer| std::slice::from_ref(&issuer.certificate));
    known.any(|ca| admits(ca, &version.chain, view.now))
}

/// The names of clients that may use a version for which `is` holds, as text.
pub(super) fn clients_that(view: &View<'_>, is: impl Fn(&str, &Version) -> bool) -> Option<String> {
    let label = |name: &str| {
        if view.snapshot.all_clients().any(|client| client.name == name) {
            return name.to_owned();
        }
        deleted::described(view.snapshot, view.journal, name, view.now)
    };
    few(view.clients_in_use.iter().filter(|(name, version)| is(name, version)).map(|(name, _)| label(name)))
}

/// Whether a client may use a version for which `is` holds although its Secret has a newer one for which it does not,
/// until the client is restarted.
pub(super) fn needs_restart(view: &View<'_>, is: impl Fn(&str, &Version) -> bool) -> bool {
    let loads_once =
        |name: &str| view.snapshot.declared_clients().any(|client| client.name == name && client.loads_once);
    let has_it = |name: &str| view.journal.newest_of(name).is_some_and(|newest| !is(name, newest));
    view.clients_in_use.iter().any(|(name, version)| is(name, version) && has_it(name) && loads_once(name))
}

/// What follows the names of clients that do not trust a CA yet. `needs_action`: see [`needs_restart`].
pub(super) fn restart_help(needs_action: bool) -> &'static str {
    if needs_action { ". Restart those that read their CAs only at startup" } else { "" }
}
