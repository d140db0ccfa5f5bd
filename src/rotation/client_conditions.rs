//! Conditions on clients, and on the gateways that verify them.

use jiff::{SignedDuration, Timestamp};

use super::condition_types::{CLIENTS, CONNECT, GATEWAYS, LEAF, TRUST, set};
use super::name_list::{counted, few, sentence};
use super::planner::{Plan, SwitchBlocker, TrustSourceBlocker};
use super::status_limits::count;
use crate::api::{ConditionStatus, Endpoints, GatewaySecretStatus, LaggingClient, Period, TrustBundleTarget};
use crate::registry::Entry;

type Said = (ConditionStatus, &'static str, String);

/// Adds to `status` which clients lag and since when, and sets the conditions on clients.
pub(super) fn report(entry: &Entry, plan: &Plan, status: &mut GatewaySecretStatus, now: Timestamp) {
    status.lagging = plan.lagging.iter().map(|name| lagging(entry, name, now)).collect();
    status.lagging_count = Some(count(status.lagging.len()));
    let overdue: Vec<_> = status.lagging.iter().filter(|client| client.overdue).map(|client| &*client.name).collect();
    let clients = clients(plan, &overdue);
    let leaf = serving_certificate(entry, plan, !overdue.is_empty(), now);
    set(entry, status, CLIENTS, clients, now);
    set(entry, status, LEAF, leaf, now);
    set(entry, status, CONNECT, connect(plan), now);
    set(entry, status, TRUST, trust_sources(entry, plan, now), now);
    set(entry, status, GATEWAYS, gateways(entry, plan), now);
}

fn clients(plan: &Plan, overdue: &[&str]) -> Said {
    if let Some(reason) = &plan.hidden {
        return (ConditionStatus::False, "TruststoreHidesCA", sentence(reason));
    }
    if let Some(named) = few(overdue) {
        return (ConditionStatus::False, "Lagging", lagging_clients(overdue, &named));
    }
    if let Some(reason) = &plan.unlisted_clients {
        return (ConditionStatus::Unknown, "NotListed", sentence(reason));
    }
    if let Some(reason) = &plan.pinned {
        return (ConditionStatus::False, "Pinned", sentence(reason));
    }
    if let Some(names) = few(plan.unknown_clients.iter().map(|client| client.name.as_str())) {
        let message = format!(
            "The certificates of {} are unknown, because cert-manager has no CertificateRequest of the current revision: {names}. A rotation \
             has them reissued first; to know them before, renew them (cmctl renew NAME).",
            counted(plan.unknown_clients.len(), "declared client")
        );
        return (ConditionStatus::Unknown, "UnknownCertificates", message);
    }
    (ConditionStatus::True, "Following", "All declared clients are up to date, or have time left.".to_owned())
}

fn lagging_clients(overdue: &[&str], named: &str) -> String {
    let verbs = if overdue.len() == 1 { "uses or trusts" } else { "use or trust" };
    let mut message = format!("{} still {verbs} only an old CA: {named}.", counted(overdue.len(), "client"));
    let readers = overdue.iter().filter(|name| TrustBundleTarget::is_readers(name)).count();
    if readers < overdue.len() {
        message += " Check that cert-manager has reissued their certificates (kubectl describe certificate), then restart clients that load \
                    their Secret only at start.";
    }
    if readers > 0 {
        message += " Objects of spec.trustBundleTargets were not written: see condition Synced and status.waits.";
    }
    message
}

fn gateways(entry: &Entry, plan: &Plan) -> Said {
    let delay = entry.policy.propagation_delays.gateways;
    let Some(target) = &entry.policy.probe.target else {
        let why = plan.unprobed.as_deref().unwrap_or("probe.target is not set");
        let message = format!(
            "No gateway is probed ({why}): a write is assumed to be in use everywhere {delay} after it (propagationDelays.gateways), which \
             is wrong while istiod is away. Set probe.target to have gateways probed."
        );
        return (ConditionStatus::Unknown, "Assumed", message);
    };
    let Some(Endpoints { total, current, stale, unreachable }) = plan.endpoints else {
        return (ConditionStatus::Unknown, "NotProbed", "No gateway was probed yet.".to_owned());
    };
    let (number, noun) = (|count: u32| format!("{count} of {total}"), if total == 1 { "gateway" } else { "gateways" });
    match () {
        () if stale > 0 => {
            let message = format!(
                "{} {noun} have earlier content of the managed Secret; status.waits names them. If this lasts longer than {delay} \
                 (propagationDelays.gateways), check that istiod runs and sends updates; restart a gateway only if others have the \
                 new content.",
                number(stale)
            );
            (ConditionStatus::False, "EarlierContent", message)
        }
        () if total == 0 => {
            let message = format!("Service {} has no endpoint. Check probe.target.serviceName.", target.service_name);
            (ConditionStatus::Unknown, "NoEndpoint", message)
        }
        () if unreachable > 0 => {
            let message = format!(
                "{} {noun} cannot be probed: {delay} (propagationDelays.gateways) is assumed for them. status.waits says why.",
                number(unreachable)
            );
            (ConditionStatus::Unknown, "Unreachable", message)
        }
        () if current == total => {
            (ConditionStatus::True, "Converged", format!("{} {noun} have the newest content.", number(total)))
        }
        () => {
            let message = format!(
                "{} {noun} have the newest content so far. The agent keeps probing the others: no action is needed.",
                number(current)
            );
            (ConditionStatus::Unknown, "Propagating", message)
        }
    }
}

fn trust_sources(entry: &Entry, plan: &Plan, now: Timestamp) -> Said {
    let (status, reason, message) = trust_source_blocker(entry, plan, now);
    match &plan.ungranted {
        None => (status, reason, message),
        Some(ungranted) => (status, reason, format!("{message} {}", sentence(ungranted))),
    }
}

fn trust_source_blocker(entry: &Entry, plan: &Plan, now: Timestamp) -> Said {
    let Some((TrustSourceBlocker { reason, message, .. }, deadline)) = &plan.trust_source_blocker else {
        let message = "Every known gateway verifies its clients by a source that has the CA which signs them.";
        return (ConditionStatus::True, "Current", message.to_owned());
    };
    // If the CAs of a source are unknown or still propagating, that is not an error yet.
    let status = match *reason {
        "OtherTrustSource" | "TrustSourceDeleted" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    let then = match deadline {
        Some(at) if *at > now => format!(
            "While this lasts, clients keep certificates of the old CA. At {at} they are reissued regardless, because the old CA \
             expires soon after. From then on this gateway rejects them."
        ),
        Some(_) => "The old CA is about to expire: clients are reissued now, and this gateway rejects them.".to_owned(),
        None => "While this lasts, no client is reissued by a new CA.".to_owned(),
    };
    // The agent can delay only the reissues that it requests, and those of an Issuer whose Secret it writes.
    let by_themselves = match entry.spec.issuer_secret_name {
        Some(_) => "",
        None => {
            " Clients that renew on their own get the new CA already: set spec.issuerSecretName to have their Issuer wait, too."
        }
    };
    (status, reason, format!("{} {then}{by_themselves}", sentence(message)))
}

fn connect(plan: &Plan) -> Said {
    let Some(named) = few(&plan.cut_off) else {
        let message = "No declared client was cut off by a change of the gateways.";
        return (ConditionStatus::True, "Connected", message.to_owned());
    };
    let number = counted(plan.cut_off.len(), "client");
    let message = format!(
        "{number} cannot connect to gateways any longer: {named}. Gateways switched their serving certificate, or stopped trusting a \
         CA, before they followed. Renew their certificates, and restart clients that load their Secret only at start."
    );
    (ConditionStatus::False, "CutOff", message)
}

fn lagging(entry: &Entry, name: &str, now: Timestamp) -> LaggingClient {
    let listed = &entry.status.lagging;
    let known = listed.iter().find(|client| client.name == name).map(|client| client.since);
    // Status lists the clients that lag longest, so a client that did not fit lags no longer than any of them.
    let has_unlisted = entry.status.lagging_count.is_some_and(|all| all > count(listed.len()));
    let unlisted = || listed.iter().map(|client| client.since).max().filter(|_| has_unlisted);
    let since = known.or_else(unlisted).unwrap_or(now);
    let overdue = now.duration_since(since) >= time_to_follow(entry);
    LaggingClient { name: name.to_owned(), since, overdue }
}

/// The longest time that a client may take, after its reissue was requested, until it uses the new certificate.
fn time_to_follow(entry: &Entry) -> SignedDuration {
    let delays = &entry.policy.propagation_delays;
    delays.admission.duration().saturating_add(delays.clients.duration()).saturating_mul(2)
}

/// Whether gateways may switch their serving certificate, and what happens to clients that do not trust the next one.
fn serving_certificate(entry: &Entry, plan: &Plan, is_overdue: bool, now: Timestamp) -> Said {
    let Some(SwitchBlocker { clients, end, switch }) = &plan.switch_blocker else {
        if !plan.has_next_leaf {
            let message =
                "The source Secret has no serving certificate to switch to, so whether clients trust it is not known.";
            return (ConditionStatus::Unknown, "NoNextCertificate", message.to_owned());
        }
        let message = "All clients trust the CA of the next serving certificate.";
        return (ConditionStatus::True, "Trusted", message.to_owned());
    };
    let time_to_follow = time_to_follow(entry);
    let is_late = is_overdue || switch.duration_since(now) < time_to_follow;
    let (status, reason, who, action) = match clients {
        Some(names) => {
            let who = format!("Clients do not trust the CA of the new serving certificate yet: {names}.");
            let (reason, action) = match is_late {
                true => ("Lagging", "Renew their certificates and restart them.".to_owned()),
                false => {
                    let action = format!(
                        "The agent has the certificates reissued that cert-manager manages. Act on entries of status.waits with \
                         needsAction: true, and on clients that are still named here after {}.",
                        Period::from_secs(time_to_follow.as_secs())
                    );
                    ("Reissuing", action)
                }
            };
            (ConditionStatus::False, reason, who, action)
        }
        None => {
            let who = "Clients that are not declared may trust only the old CA.".to_owned();
            let action = match &plan.unlisted_clients {
                Some(reason) => sentence(reason),
                None => "Declare all clients, then set spec.clients.allDeclared to true.".to_owned(),
            };
            (ConditionStatus::Unknown, "Undeclared", who, action)
        }
    };
    let then = format!(
        "At {switch} gateways switch certificates (the current one expires at {end}), and clients that do not trust the new one fail to \
         connect."
    );
    (status, reason, format!("{who} {action} {then}"))
}
