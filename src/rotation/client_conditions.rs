//! Clients that do not follow a rotation, as status tells them.

use jiff::Timestamp;

use super::conditions::set;
use super::name_list::few;
use super::planner::{LeafHold, Plan, ReaderHold};
use super::status_limits::count;
use crate::api::{ConditionStatus, Endpoints, GatewaySecretStatus, LaggingClient, TrustBundleTarget};
use crate::registry::Entry;

/// The condition that tells whether the declared clients follow.
pub const CLIENTS: &str = "ClientsCurrent";
/// The condition that tells whether clients hold the change of the gateways' leaf, and what its deadline does to them.
pub const LEAF: &str = "ServingCertificateTrusted";
/// The condition that tells whether declared clients were cut off by a change of what gateways have.
pub const CONNECT: &str = "ClientsConnect";

/// The condition that tells whether every gateway takes its clients' CAs from a source that has the new CA.
pub const TRUST: &str = "TrustSourcesCurrent";

/// The condition that tells whether every gateway was seen with the newest content of the managed Secret.
pub const GATEWAYS: &str = "GatewaysConverged";

/// Adds to `status` who lags, since when, and whether that is too long.
pub(super) fn tell(entry: &Entry, plan: &Plan, status: &mut GatewaySecretStatus, now: Timestamp) {
    status.lagging = plan.lagging.iter().map(|name| lagging(entry, name, now)).collect();
    status.lagging_count = Some(count(status.lagging.len()));
    let overdue: Vec<_> = status.lagging.iter().filter(|client| client.overdue).map(|client| &*client.name).collect();
    let told = match (few(&overdue), &plan.pinned, &plan.unlisted_clients) {
        (None, Some(reason), _) => (ConditionStatus::False, "Pinned", reason.clone()),
        (None, None, Some(reason)) => (ConditionStatus::Unknown, "NotListed", reason.clone()),
        (None, None, None) => {
            (ConditionStatus::True, "Following", "no declared client takes longer to follow than it may".to_owned())
        }
        (Some(named), ..) => {
            let mut message = format!(
                "{} client(s) may still go by something of an old CA: {named}. Renew them, and restart those that read their \
                 Secret at start only",
                overdue.len()
            );
            if overdue.iter().any(|name| TrustBundleTarget::is_readers(name)) {
                message += ". For readers of an object of spec.trustBundleTargets, see condition Synced and status.waits: it was not written";
            }
            (ConditionStatus::False, "Lagging", message)
        }
    };
    set(entry, status, CLIENTS, told, now);
    set(entry, status, LEAF, leaf(plan, now), now);
    set(entry, status, CONNECT, connect(plan), now);
    set(entry, status, TRUST, trust_sources(entry, plan, now), now);
    set(entry, status, GATEWAYS, gateways(entry, plan), now);
}

fn gateways(entry: &Entry, plan: &Plan) -> (ConditionStatus, &'static str, String) {
    let settle = entry.policy.propagation_delays.gateways;
    let Some(reach) = &entry.policy.probe.target else {
        let why = plan.unprobed.as_deref().unwrap_or("probe.target is not set");
        let message = format!(
            "No gateway is probed ({why}): a write is assumed to be in use everywhere {settle} after it (propagationDelays.gateways), which \
             is wrong while istiod is away. Set probe.target to have gateways probed."
        );
        return (ConditionStatus::Unknown, "Assumed", message);
    };
    let Some(Endpoints { total, current, former, unreachable }) = plan.endpoints else {
        return (ConditionStatus::True, "Converged", "Gateways have no write to take over.".to_owned());
    };
    let (number, noun) = (|count: u32| format!("{count} of {total}"), if total == 1 { "gateway" } else { "gateways" });
    match () {
        () if former > 0 => {
            let message = format!(
                "{} {noun} have earlier content of the managed Secret; status.waits names them. Check that istiod runs and \
                 sends updates; restart a gateway only if others have the new content.",
                number(former)
            );
            (ConditionStatus::False, "EarlierContent", message)
        }
        () if total == 0 => {
            let message = format!("Service {} has no endpoint. Check probe.target.serviceName.", reach.service_name);
            (ConditionStatus::Unknown, "NoEndpoint", message)
        }
        () if unreachable > 0 => {
            let message = format!(
                "{} {noun} cannot be probed: {settle} (propagationDelays.gateways) is assumed for them. status.waits says why.",
                number(unreachable)
            );
            (ConditionStatus::Unknown, "Unreachable", message)
        }
        () if current == total => {
            (ConditionStatus::True, "Converged", format!("{} {noun} have the newest content.", number(total)))
        }
        () => {
            let message = format!("{} {noun} were seen with the newest content so far.", number(current));
            (ConditionStatus::Unknown, "Propagating", message)
        }
    }
}

fn trust_sources(entry: &Entry, plan: &Plan, now: Timestamp) -> (ConditionStatus, &'static str, String) {
    let Some((ReaderHold { reason, message, .. }, deadline)) = &plan.reader_hold else {
        let message = "Every known gateway takes its clients' CAs from a source that has the CA which signs them.";
        return (ConditionStatus::True, "Current", message.to_owned());
    };
    // What is not known, and what only takes its time, is no fault yet.
    let status = match *reason {
        "OtherTrustSource" | "TrustSourceDeleted" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    let then = match deadline {
        Some(at) if *at > now => format!(
            "While this lasts, clients keep certificates of the old CA. At {at} they are re-issued all the same, because the old \
             CA ends soon after, and this gateway refuses them then"
        ),
        Some(_) => "The old CA is about to end: clients are re-issued now, and this gateway refuses them".to_owned(),
        None => "While this lasts, no client is re-issued by a new CA".to_owned(),
    };
    // The agent holds what it asks for, and what an Issuer signs whose Secret it keeps.
    let by_themselves = match entry.spec.issuer_secret_name {
        Some(_) => "",
        None => {
            " Clients that renew by themselves get the new CA already: set spec.issuerSecretName to have the Issuer wait, too."
        }
    };
    (status, reason, format!("{message}. {then}.{by_themselves}"))
}

fn connect(plan: &Plan) -> (ConditionStatus, &'static str, String) {
    let Some(named) = few(&plan.cut_off) else {
        let message = "no declared client is known to be cut off by a change of what gateways have";
        return (ConditionStatus::True, "Connected", message.to_owned());
    };
    let message = format!(
        "{} client(s) are cut off by what gateways have now (the leaf changed in spite of them, or their CA is gone): {named}. Renew \
         them, and restart those that read their Secret at start only",
        plan.cut_off.len()
    );
    (ConditionStatus::False, "CutOff", message)
}

fn lagging(entry: &Entry, name: &str, now: Timestamp) -> LaggingClient {
    let listed = &entry.status.lagging;
    let known = listed.iter().find(|client| client.name == name).map(|client| client.since);
    // Those that lag longest are listed: one that did not fit lags no longer than they do, and is reported no later.
    let has_unlisted = entry.status.lagging_count.is_some_and(|all| all > count(listed.len()));
    let unlisted = || listed.iter().map(|client| client.since).max().filter(|_| has_unlisted);
    let since = known.or_else(unlisted).unwrap_or(now);
    let settle = &entry.policy.propagation_delays;
    let once = settle.admission.duration().saturating_add(settle.clients.duration());
    let overdue = now.duration_since(since) >= once.saturating_mul(2);
    LaggingClient { name: name.to_owned(), since, overdue }
}

/// Whether the gateways' leaf may change for all that is known of clients, and what becomes of those who hold it.
fn leaf(plan: &Plan, now: Timestamp) -> (ConditionStatus, &'static str, String) {
    let Some(LeafHold { clients, end, switch }) = &plan.leaf_hold else {
        if !plan.has_next_leaf {
            let message =
                "the root Secret holds no leaf that gateways could serve: whether a client holds it is not known";
            return (ConditionStatus::Unknown, "NoNextLeaf", message.to_owned());
        }
        return (ConditionStatus::True, "NotHeld", "no client holds the gateways' leaf".to_owned());
    };
    let (status, reason, who) = match clients {
        Some(names) => (ConditionStatus::False, "Lagging", format!("may not trust the new leaf's CA yet: {names}")),
        None => (
            ConditionStatus::Unknown,
            "Undeclared",
            "clients that are not declared may trust the old CA only".to_owned(),
        ),
    };
    let then = match switch {
        Some(at) => format!(
            "those that do not by then are cut off at {at}: the old leaf ends at {end}, and the gateways change theirs (onServingCertificateExpiry: Switch)"
        ),
        None if *end <= now => format!(
            "the old leaf is kept (onServingCertificateExpiry: Keep): it ended at {end}, and whoever looks at dates refuses it"
        ),
        None => format!(
            "the old leaf is kept (onServingCertificateExpiry: Keep): it ends at {end}, and whoever looks at dates refuses it from then on"
        ),
    };
    let mend = match (clients, &plan.unlisted_clients) {
        (Some(_), _) => "renew and restart them",
        (None, Some(reason)) => reason,
        (None, None) => "declare all, and say so with spec.clients.allDeclared",
    };
    (status, reason, format!("{who}. {then}. {mend}"))
}
