//! The gateways' leaf: when it changes, what holds that back, and what becomes of those who do not follow.

use jiff::Timestamp;

use super::any_order::{is_unordered, orders};
use super::expiry;
use super::snapshot::Snapshot;
use super::view::{View, verifies_to_the_end};
use super::wait;
use crate::api::{OnServingCertificateExpiry, StepName, Wait};
use crate::rotation::name_list::few;
use crate::trust::Certificate;

/// Clients that hold the change of the gateways' leaf, and what becomes of them at its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafHold {
    /// The declared clients, for people; `None`: there may be some that are not declared.
    pub clients: Option<String>,
    /// When the leaf ends that gateways serve, or the CA behind it.
    pub end: Timestamp,
    /// When the gateways serve a new one all the same; `None`: not at all (`onServingCertificateExpiry: Keep`).
    pub switch: Option<Timestamp>,
}

impl LeafHold {
    pub(super) fn of(view: &View<'_>, served: &[Certificate], clients: Option<String>) -> Option<Self> {
        let end = expiry::of_served(view, served)?;
        Some(Self { clients, end, switch: deadline(view, served).filter(|_| !keeps(view)) })
    }
}

fn keeps(view: &View<'_>) -> bool {
    view.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep
}

/// Shortly before the end of the old leaf: after it nobody verifies that one either.
fn deadline(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let margin = view.policy().propagation_delays.gateways.duration().saturating_mul(2);
    expiry::of_served(view, served).map(|end| end.saturating_sub(margin).unwrap_or(view.now))
}

/// A wait for the change of the leaf, until the deadline at the latest.
fn hold(view: &View<'_>, deadline: Option<Timestamp>, until: Option<Timestamp>, reason: String) -> Option<Wait> {
    let until = until.into_iter().chain(deadline).min();
    deadline.is_none_or(|at| view.now < at).then(|| wait(StepName::SwitchServingCertificate, until, reason))
}

/// Why the gateways must not serve what a pause or a closed window holds back. Neither is worth an expired leaf.
pub(super) fn paused(view: &View<'_>, served: &[Certificate]) -> Option<Wait> {
    view.pause().and_then(|pause| hold(view, deadline(view, served), pause.until, pause.reason))
}

/// Why gateways must not serve another leaf in the place of `served` yet, and the clients that do not follow. `verifies_next`: whether
/// who trusts these CAs verifies the other.
pub(super) fn held(
    view: &View<'_>,
    served: &[Certificate],
    verifies_next: impl Fn(&[Certificate]) -> bool,
) -> (Option<Wait>, Option<LeafHold>) {
    let now = view.now;
    let breaks = |trust: &[Certificate]| verifies_to_the_end(trust, served, now) && !verifies_next(trust);
    let lags = |name: &str, trust: &[Certificate]| {
        breaks(trust) || is_unordered(view, name) && orders(trust).any(|order| breaks(&order))
    };
    let lagging =
        few(view.clients_in_use().filter(|(name, held)| lags(name, &held.trust)).map(|(name, _)| view.told(name)));
    let before: Vec<_> = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    let sufficed = |ca: &Certificate| verifies_to_the_end(std::slice::from_ref(ca), served, now);
    let sufficed: Vec<_> = before.into_iter().filter(sufficed).collect();
    let others = breaks(&sufficed);
    let since = view.journal.server_issuers.iter().filter(|a| a.current).map(|a| a.since).max().unwrap_or(now);
    let overlap = view.policy().propagation_delays.minimum_overlap.after(since);
    let of = |clients| LeafHold::of(view, served, clients);
    let (why, hold_by) = match lagging {
        Some(names) => {
            let reason = format!("clients that may not trust the new leaf's CA yet: {names}");
            (Some((None, reason)), of(Some(names)))
        }
        None if others && !view.seen.knows_all_clients() => {
            let reason = unlisted(view.seen).unwrap_or_else(|| {
                "there may be clients that are not declared: declare all, and say so with spec.clients.allDeclared"
                    .to_owned()
            });
            (Some((None, reason)), of(None))
        }
        None if others && now < overlap => {
            (Some((Some(overlap), "propagationDelays.minimumOverlap is not over".to_owned())), None)
        }
        None => (None, None),
    };
    let last = deadline(view, served).filter(|_| !keeps(view));
    let held = paused(view, served).or_else(|| why.and_then(|(until, reason)| hold(view, last, until, reason)));
    let hold = hold_by.filter(|_| held.is_some());
    (held, hold)
}

/// Namespaces of clients that the agent may not see, and what to do: a sentence.
pub(super) fn unlisted(seen: &Snapshot<'_>) -> Option<String> {
    let names = few(seen.unlisted_namespaces.iter().cloned())?;
    Some(format!(
        "cannot list Certificates in {names} (spec.clients.namespaces), so clients there are unknown. Apply the output of trustspan rbac"
    ))
}
