//! What a GatewaySecret's status tells people: where its rotation stands, who depends on which CA, and until when.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::{ConditionStatus, Endpoints, Leaf, LeafKind, Mode, Phase, TrustAnchor, Wait, WindowState};
use crate::connectivity;
use crate::registry::Entry;
use crate::trust::{Certificate, bundle};

/// One GatewaySecret's story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusSummary {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The managed Secret's name.
    pub secret_name: String,
    /// The mode in force.
    pub mode: Mode,
    /// Where the rotation stands; absent when nobody has looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Timestamp>,
    /// Conditions that do not hold: reason and message.
    pub troubles: Vec<String>,
    /// What is held back, and why.
    pub waits: Vec<Wait>,
    /// What the gateways showed on the wire, while the agent looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,
    /// The change windows, where there are some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_windows: Option<WindowState>,
    /// The CAs that gateways trust, new first.
    pub bundle: Vec<Held>,
    /// The leaf that gateways serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<Validity>,
    /// The first date ahead at which something of it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<Timestamp>,
}

/// A CA, and who depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The CA.
    #[serde(flatten)]
    pub validity: Validity,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
    /// Declared clients whose leaves chain to it.
    pub clients: Vec<String>,
    /// Whether the leaf that gateways serve does.
    pub serves: bool,
}

/// A certificate's dates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Validity {
    /// Subject (RFC 4514).
    pub subject: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
}

impl StatusSummary {
    /// What is to tell at an instant.
    pub fn of(entry: &Entry, now: Timestamp) -> Self {
        let (status, windows) = (&entry.status, &entry.policy.change_windows);
        let leaves: Vec<_> = status
            .leaves
            .iter()
            .flatten()
            .map(|leaf| (leaf, bundle::read_chain(leaf.pem.as_bytes()).into_certificates()))
            .collect();
        let held: Vec<_> = status.bundle.iter().map(|anchor| held(anchor, &leaves, now)).collect();
        let served = leaves.iter().filter(|(leaf, _)| leaf.kind == LeafKind::Server);
        let served = served.filter_map(|(_, chain)| chain.first()).next().map(validity);
        let ends = held.iter().map(|held| held.validity.not_after).chain(served.as_ref().map(|leaf| leaf.not_after));
        let failing = status.conditions.iter().filter(|condition| condition.status != ConditionStatus::True);
        Self {
            namespace: entry.namespace.clone(),
            name: entry.name.clone(),
            secret_name: entry.managed_name().to_owned(),
            mode: status.mode.unwrap_or(entry.spec.mode),
            phase: status.phase,
            phase_since: status.phase_since,
            troubles: failing.map(|c| format!("{} ({}): {}", c.type_, c.reason, c.message)).collect(),
            waits: status.waits.clone(),
            endpoints: status.endpoints,
            change_windows: (!windows.is_empty()).then(|| WindowState::of(windows, now)),
            next_deadline: ends.filter(|end| *end > now).min(),
            bundle: held,
            served,
        }
    }
}

fn held(anchor: &TrustAnchor, leaves: &[(&Leaf, Vec<Certificate>)], now: Timestamp) -> Held {
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
    Held {
        validity: Validity {
            subject: anchor.subject.clone(),
            not_before: anchor.not_before,
            not_after: anchor.not_after,
        },
        fingerprint: anchor.fingerprint.clone(),
        clients,
        serves,
    }
}

fn validity(certificate: &Certificate) -> Validity {
    Validity {
        subject: certificate.subject.clone(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
    }
}
