//! Clients that do not follow a rotation, as status tells them.

use jiff::Timestamp;

use super::next::Plan;
use super::report::set;
use crate::api::{ConditionStatus, GatewaySecretStatus, LaggingClient};
use crate::registry::Entry;

/// The condition that tells whether the declared clients follow.
pub const CLIENTS: &str = "ClientsFollow";
/// Names that its message gives.
const NAMED: usize = 3;

/// Adds to `status` who lags, since when, and whether that is too long.
pub(super) fn tell(entry: &Entry, plan: &Plan, status: &mut GatewaySecretStatus, now: Timestamp) {
    status.lagging = plan.lagging.iter().map(|name| lagging(entry, name, now)).collect();
    let overdue: Vec<_> = status.lagging.iter().filter(|client| client.overdue).map(|client| &*client.name).collect();
    let told = if overdue.is_empty() {
        (ConditionStatus::True, "Following", "no declared client takes longer to follow than it may".to_owned())
    } else {
        let more = if overdue.len() > NAMED { ", …" } else { "" };
        let named = overdue.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let message = format!(
            "{} client(s) may still go by something of an old CA: {named}{more}. Renew them, and restart those that read \
             their Secret at start only",
            overdue.len()
        );
        (ConditionStatus::False, "Lagging", message)
    };
    set(entry, status, CLIENTS, told, now);
}

fn lagging(entry: &Entry, name: &str, now: Timestamp) -> LaggingClient {
    let known = entry.status.lagging.iter().find(|client| client.name == name);
    let since = known.map_or(now, |client| client.since);
    let settle = &entry.spec.settle;
    let once = settle.admission.duration().saturating_add(settle.clients.duration());
    let overdue = now.duration_since(since) >= once.saturating_mul(2);
    LaggingClient { name: name.to_owned(), since, overdue }
}
