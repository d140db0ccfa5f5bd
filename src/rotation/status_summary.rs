//! A summary of a GatewaySecret for people: what is going on, whether they have to act, which CA is used by what, and
//! until when.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::condition_types::{CONDITION_TYPES, CONNECT, GATEWAYS};
use super::name_list::sentence;
use crate::api::{
    Condition, ConditionStatus, Endpoints, Leaf, LeafKind, Mode, Phase, READY, StepName, TrustAnchor, Wait, WindowState,
};
use crate::connectivity;
use crate::registry::Entry;
use crate::trust::{AltName, Certificate, bundle};

/// What to do if an object has no status.
pub(crate) const NO_AGENT: &str = "Check that trustspan agent runs, and that the output of trustspan rbac is applied.";

/// A GatewaySecret in summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusSummary {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Name of the managed Secret.
    pub secret_name: String,
    /// The effective mode.
    pub mode: Mode,
    /// The phase of the rotation. Absent: no agent has reconciled the GatewaySecret yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Since when it is in that phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Timestamp>,
    /// The phase in words.
    pub headline: String,
    /// What a person has to do. Empty: nothing.
    pub actions: Vec<String>,
    /// When it has to be done, in a rotation: when gateways switch certificates, or one expires. Absent if a client is cut off already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_before: Option<Timestamp>,
    /// Conditions that are not `True`: type, status, reason and message.
    pub troubles: Vec<String>,
    /// The steps that wait, and for what.
    pub waits: Vec<Wait>,
    /// What probes of the gateways found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,
    /// Until when stale gateways are expected to load the managed Secret by themselves. After that a person has to act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateways_expected_by: Option<Timestamp>,
    /// The clients.
    pub clients: ClientSummary,
    /// The state of `changeWindows`, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_windows: Option<WindowState>,
    /// The CAs by which gateways verify clients, in the order of the bundle.
    pub bundle: Vec<CaSummary>,
    /// The certificate that gateways present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<Validity>,
    /// What expires next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_expiry: Option<Expiry>,
}

/// A CA, and what uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaSummary {
    /// The CA.
    #[serde(flatten)]
    pub validity: Validity,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
    /// Its part in the rotation.
    pub role: CaRole,
    /// Declared clients with a certificate of it.
    pub clients: Vec<String>,
    /// Whether the serving certificate is of it.
    pub serves: bool,
}

/// The part of a CA in a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CaRole {
    /// There is no rotation.
    Current,
    /// The rotation introduces it.
    New,
    /// The rotation removes it.
    Old,
}

/// The clients of the gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientSummary {
    /// How many are declared.
    pub declared: usize,
    /// How many of them have certificates of the new CA, or of the current one.
    pub migrated: usize,
    /// How many were asked to follow the rotation and have not yet.
    pub lagging: usize,
    /// How many of these take too long.
    pub overdue: usize,
    /// Whether there are no others.
    pub all_declared: bool,
}

/// The end of something's validity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expiry {
    /// What expires.
    pub what: String,
    /// When.
    pub at: Timestamp,
}

/// A certificate's dates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Validity {
    /// Subject (RFC 4514), or the first subject alternative name of a certificate without a subject.
    pub subject: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
}

impl CaRole {
    /// The role in words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Current => "current CA",
            Self::New => "new CA",
            Self::Old => "old CA",
        }
    }

    /// The role of a CA in a bundle. It depends on the age, not on the position: of CAs with one subject, the one that
    /// is needed comes first, whether it is new or old.
    fn of(anchor: &TrustAnchor, bundle: &[TrustAnchor], phase: Option<Phase>) -> Self {
        match bundle.iter().map(|anchor| anchor.not_before).max() {
            // Without a rotation, a bundle can have several CAs, too: those of `<source>-cacert`, for example.
            _ if bundle.len() == 1 || phase == Some(Phase::Steady) => Self::Current,
            Some(newest) if anchor.not_before == newest => Self::New,
            _ => Self::Old,
        }
    }
}

impl StatusSummary {
    /// The summary at an instant.
    pub fn of(entry: &Entry, now: Timestamp) -> Self {
        let (status, windows) = (&entry.status, &entry.policy.change_windows);
        let leaves: Vec<_> = status
            .leaves
            .iter()
            .flatten()
            .map(|leaf| (leaf, bundle::read_chain(leaf.pem.as_bytes()).into_certificates()))
            .collect();
        let role = |anchor| CaRole::of(anchor, &status.bundle, status.phase);
        let bundle: Vec<_> = status.bundle.iter().map(|anchor| ca(anchor, role(anchor), &leaves, now)).collect();
        let served = leaves.iter().filter(|(leaf, _)| leaf.kind == LeafKind::Server);
        let served = served.filter_map(|(_, chain)| chain.first()).next().map(validity);
        let of_clients = leaves.iter().filter(|(leaf, _)| leaf.kind == LeafKind::Client);
        // A client whose certificate was just renewed has two.
        let listed: BTreeSet<_> = of_clients.flat_map(|(leaf, _)| leaf.names()).collect();
        let clients = ClientSummary {
            declared: listed.len() + status.unlisted_clients.unwrap_or_default() as usize,
            migrated: bundle.iter().filter(|ca| ca.role != CaRole::Old).map(|ca| ca.clients.len()).max().unwrap_or(0),
            lagging: status.lagging_count.map_or(status.lagging.len(), |count| count as usize),
            overdue: status.lagging.iter().filter(|client| client.overdue).count(),
            all_declared: entry.spec.clients.all_declared,
        };
        let troubles = status.conditions.iter().filter(|condition| condition.status != ConditionStatus::True);
        let next_expiry = next_expiry(&bundle, served.as_ref(), now);
        let actions = actions(entry, now);
        let is_dated = |wait: &&Wait| wait.needs_action || wait.step == StepName::SwitchServingCertificate;
        let dates = status
            .waits
            .iter()
            .filter(is_dated)
            .filter_map(|wait| wait.until)
            .chain(next_expiry.as_ref().map(|expiry| expiry.at));
        // A client that is cut off cannot wait for a date.
        let is_cut_off = status.condition(CONNECT).is_some_and(|condition| condition.status == ConditionStatus::False);
        let is_due = !actions.is_empty() && status.phase != Some(Phase::Steady) && !is_cut_off;
        Self {
            namespace: entry.namespace.clone(),
            name: entry.name.clone(),
            secret_name: entry.managed_name().to_owned(),
            mode: status.mode.unwrap_or(entry.spec.mode),
            phase: status.phase,
            phase_since: status.phase_since,
            headline: headline(entry),
            act_before: dates.min().filter(|_| is_due),
            actions,
            troubles: troubles.map(problem).collect(),
            waits: status.waits.clone(),
            endpoints: status.endpoints,
            gateways_expected_by: gateways_expected_by(entry, now),
            clients,
            change_windows: (!windows.is_empty()).then(|| WindowState::of(windows, now)),
            next_expiry,
            bundle,
            served,
        }
    }
}

/// A condition that is not `True`: type, status, reason and message.
pub(crate) fn problem(Condition { type_, status, reason, message, .. }: &Condition) -> String {
    format!("{type_} is {status:?} ({reason}): {message}")
}

fn headline(entry: &Entry) -> String {
    let status = &entry.status;
    let said = match status.phase {
        None => "Unknown: no agent has reconciled it yet",
        Some(Phase::Pending) if status.bundle.len() > 1 => {
            "Rotation interrupted until the managed Secret is sound again"
        }
        Some(Phase::Pending) => "Not ready",
        Some(Phase::Steady) if entry.spec.mode == Mode::Copy => "The managed Secret is a copy of the source Secret",
        Some(Phase::Steady) => "No rotation is in progress",
        Some(_) if status.mode.unwrap_or(entry.spec.mode) == Mode::Copy => {
            "The managed Secret is a copy of the source Secret, and certificates of another CA are in use"
        }
        Some(Phase::TrustExpanded) => "Rotating: gateways are getting the new CA",
        Some(Phase::Converged) => "Rotating: gateways trust the new CA, client certificates are being reissued",
        Some(Phase::ClientsMigrated) => "Rotating: clients use the new CA, the serving certificate is next",
        Some(Phase::ServingCertificateSwitched) => {
            "Rotating: the serving certificate is switched, the old CA is removed next"
        }
    };
    let ready = status.condition(READY).filter(|_| status.phase == Some(Phase::Pending));
    match ready {
        Some(ready) => format!("{said}: {}", ready.message.trim_end_matches('.')),
        None => said.to_owned(),
    }
}

/// What a person has to do, each with its reason.
fn actions(entry: &Entry, now: Timestamp) -> Vec<String> {
    let status = &entry.status;
    if status.phase.is_none() {
        return vec![NO_AGENT.to_owned()];
    }
    let is_expected = |condition: &Condition| condition.type_ == GATEWAYS && gateways_expected_by(entry, now).is_some();
    let needs_action = |condition: &&Condition| {
        let type_ = CONDITION_TYPES.iter().find(|type_| type_.name == condition.type_);
        type_.is_some_and(|type_| type_.needs_action(condition)) && !is_expected(condition)
    };
    let conditions = status.conditions.iter().filter(needs_action);
    let mut actions: Vec<_> = conditions.map(|condition| condition.message.clone()).collect();
    for reason in status.waits.iter().filter(|wait| wait.needs_action).map(|wait| sentence(&wait.reason)) {
        if !actions.iter().any(|action| action.contains(reason.trim_end_matches('.'))) {
            actions.push(reason);
        }
    }
    actions
}

/// Until when stale gateways are expected to update by themselves: each change of the managed Secret takes some time to
/// reach them.
fn gateways_expected_by(entry: &Entry, now: Timestamp) -> Option<Timestamp> {
    let condition = entry.status.condition(GATEWAYS).filter(|found| found.status != ConditionStatus::True)?;
    let delay = entry.policy.propagation_delays.gateways.duration().saturating_mul(2);
    condition.last_transition_time.checked_add(delay).ok().filter(|at| *at > now)
}

fn next_expiry(bundle: &[CaSummary], served: Option<&Validity>, now: Timestamp) -> Option<Expiry> {
    let cas = bundle.iter().map(|ca| (ca.role.words(), &ca.validity));
    let all = cas.chain(served.map(|served| ("serving certificate", served)));
    let next = all.filter(|(_, validity)| validity.not_after > now).min_by_key(|(_, validity)| validity.not_after);
    next.map(|(what, validity)| Expiry { what: format!("{what} {}", validity.subject), at: validity.not_after })
}

fn ca(anchor: &TrustAnchor, role: CaRole, leaves: &[(&Leaf, Vec<Certificate>)], now: Timestamp) -> CaSummary {
    let ca = bundle::read(anchor.pem.as_deref().unwrap_or_default().as_bytes()).into_certificates();
    let mut clients: Vec<_> = leaves
        .iter()
        .filter(|(leaf, chain)| leaf.kind == LeafKind::Client && connectivity::admits(&ca, chain, now))
        .flat_map(|(leaf, _)| leaf.names().map(str::to_owned))
        .collect();
    clients.sort();
    clients.dedup();
    let serves =
        leaves.iter().any(|(leaf, chain)| leaf.kind == LeafKind::Server && connectivity::verifies(&ca, chain, now));
    let (subject, not_before, not_after) = (anchor.subject.clone(), anchor.not_before, anchor.not_after);
    let validity = Validity { subject, not_before, not_after };
    CaSummary { validity, fingerprint: anchor.fingerprint.clone(), role, clients, serves }
}

fn validity(certificate: &Certificate) -> Validity {
    let name = || {
        certificate.names.first().map(|name| match name {
            AltName::Dns(name) | AltName::Uri(name) | AltName::Email(name) => name.clone(),
            AltName::Ip(address) => address.to_string(),
        })
    };
    let subject = Some(certificate.subject.clone()).filter(|subject| !subject.is_empty());
    Validity {
        subject: subject.or_else(name).unwrap_or_default(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
    }
}
