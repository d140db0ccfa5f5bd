//! What is seen and what is remembered, as the steps ask for it.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::snapshot::{ClientState, Issuance, Snapshot, usable};
use super::{expiry, wait};
use crate::api::{GatewaySecretSpec, OnServingCertificateExpiry, RotationPolicySpec, StepName, Wait, WindowState};
use crate::connectivity;
use crate::registry::Entry;
use crate::rotation::journal::{Authority, Journal, Version};
use crate::trust::credential::CA_KEYS;
use crate::trust::{Certificate, EXPIRED, Finding, field, is_distrusted};

/// What holds back every step that takes something away from anybody.
pub(in crate::rotation) struct Pause {
    /// When time alone ends it.
    pub(super) until: Option<Timestamp>,
    pub(in crate::rotation) reason: String,
}

impl Pause {
    /// `spec.paused`, or a time outside the policy's `changeWindows`, of which `windows` is the state.
    pub(in crate::rotation) fn of(entry: &Entry, windows: WindowState) -> Option<Self> {
        if entry.spec.paused {
            return Some(Self { until: None, reason: "spec.paused is set".to_owned() });
        }
        let change_windows = &entry.policy.change_windows;
        if windows.is_open || change_windows.is_empty() {
            return None;
        }
        let reason = match (windows.until, change_windows.iter().find_map(|window| window.zone().err())) {
            (None, Some(unknown)) => format!("no change window of the RotationPolicy ever opens: {unknown}"),
            _ => "no change window of the RotationPolicy is open".to_owned(),
        };
        Some(Self { until: windows.until, reason })
    }
}

pub(super) struct View<'a> {
    pub(super) seen: &'a Snapshot<'a>,
    pub(super) journal: &'a Journal,
    /// Of the policy's `changeWindows`.
    pub(super) windows: WindowState,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    pub(super) fn spec(&self) -> &'a GatewaySecretSpec {
        &self.seen.entry.spec
    }

    /// How carefully it is rotated.
    pub(super) fn policy(&self) -> &'a RotationPolicySpec {
        &self.seen.entry.policy
    }

    /// `spec.paused`, or a time outside the policy's `changeWindows`.
    pub(super) fn pause(&self) -> Option<Pause> {
        Pause::of(self.seen.entry, self.windows)
    }

    /// The same, for a step that has to be taken at a deadline.
    pub(super) fn pause_until(&self, deadline: Option<Timestamp>) -> Option<Pause> {
        let pause = self.pause().filter(|_| deadline.is_none_or(|at| self.now < at))?;
        Some(Pause { until: pause.until.into_iter().chain(deadline).min(), ..pause })
    }

    /// What holds back the re-issue of a Certificate that has to be made at a deadline: the same, or the Certificate's own
    /// `spec.renewal`, which cert-manager does not apply to an issue that is asked for.
    pub(super) fn reissue_pause(&self, certificate: Option<&Issuance>, deadline: Option<Timestamp>) -> Option<Pause> {
        self.pause_until(deadline).or_else(|| self.renewal_pause(certificate?, deadline))
    }

    fn renewal_pause(&self, certificate: &Issuance, deadline: Option<Timestamp>) -> Option<Pause> {
        // One that is under way is its owner's wish.
        let is_open = certificate.is_issuing || deadline.is_some_and(|at| self.now >= at);
        let hold = certificate.renewal.hold(self.now).filter(|_| !is_open)?;
        let name = &certificate.name;
        let renew = match name.split_once('/') {
            Some((namespace, name)) => format!("cmctl renew {name} -n {namespace}"),
            None => format!("cmctl renew {name}"),
        };
        let advice = match deadline {
            Some(at) => format!(
                "Renew it ({renew}) before {at}: then it is re-issued all the same, since a CA that it depends on ends"
            ),
            None => format!("Renew it: {renew}"),
        };
        let reason = format!("Certificate {name}: {}. {advice}", hold.reason);
        Some(Pause { until: hold.until.into_iter().chain(deadline).min(), reason })
    }

    /// What holds back the re-issue of a client's Certificate.
    pub(super) fn client_pause(&self, client: &ClientState) -> Option<Pause> {
        let is_held = |certificate: &Issuance| !certificate.is_issuing && certificate.renewal.hold(self.now).is_some();
        // Deadlines cost signatures to be verified.
        if self.pause().is_none() && !client.certificate.as_ref().is_some_and(is_held) {
            return None;
        }
        let held = self.journal.clients.get(&client.name).and_then(|known| known.newest());
        self.reissue_pause(client.certificate.as_ref(), held.and_then(|held| expiry::of_client(self, held)))
    }

    /// What gateways may still go by.
    pub(super) fn gateways_in_use(&self) -> impl Iterator<Item = &'a Version> {
        let (settle, now) = (self.policy().propagation_delays.gateways, self.now);
        self.journal.gateways.iter().filter(move |version| version.may_be_in_use(settle, now))
    }

    /// What declared clients may still go by, with their names.
    pub(super) fn clients_in_use(&self) -> impl Iterator<Item = (&'a str, &'a Version)> {
        let (settle, now) = (self.policy().propagation_delays.clients, self.now);
        let clients = self.journal.clients.iter();
        clients.flat_map(move |(name, client)| client.in_use(settle, now).map(move |version| (name.as_str(), version)))
    }

    /// A client's name, and why it counts where nobody can see that.
    pub(super) fn told(&self, name: &str) -> String {
        if self.seen.all_clients().any(|client| client.name == name) {
            return name.to_owned();
        }
        let held = self.clients_in_use().filter(|(held_by, _)| *held_by == name);
        let end = held.filter_map(|(_, version)| version.chain.first()).map(|leaf| leaf.not_after).max();
        let until = end.map_or("its certificate ends, which is not known".to_owned(), |end| end.to_string());
        format!("{name} (its Secret is not declared any more, but whoever loaded it may go on until {until})")
    }

    /// The chain in the root Secret, when it can be served.
    pub(super) fn root_chain(&self) -> Option<&'a [Certificate]> {
        let root = usable((self.seen.root, self.seen.entry.source_name())).ok()?;
        Some(root.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// The chain in the managed Secret, when its pair is sound: a broken bundle beside it is no reason to change the leaf, nor is its
    /// end with `onServingCertificateExpiry: Keep`.
    pub(super) fn served_chain(&self) -> Option<&'a [Certificate]> {
        let is_kept = self.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep;
        let is_no_reason = |finding: &Finding| {
            CA_KEYS.iter().any(|key| finding.field == field(key)) || is_kept && finding.rule == EXPIRED
        };
        let managed = self.seen.managed.filter(|managed| managed.denials.iter().all(is_no_reason))?;
        Some(managed.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// Whether nothing is wrong with the managed Secret but that its leaf has ended, with `onServingCertificateExpiry: Keep`.
    pub(super) fn keeps_ended_leaf(&self) -> bool {
        let is_ended = |denials: &[Finding]| !denials.is_empty() && denials.iter().all(|found| found.rule == EXPIRED);
        self.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep
            && self.seen.managed.is_some_and(|managed| is_ended(&managed.denials))
    }

    /// The CAs that now sign, or shall sign, what clients present.
    pub(super) fn client_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.client_issuers)
    }

    /// The CAs that now sign, or shall sign, what gateways serve.
    pub(super) fn server_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.server_issuers)
    }

    /// What the source holds, without what is distrusted, unless nothing were left.
    pub(super) fn sound(&self, issuers: &[Authority]) -> Vec<Certificate> {
        let current =
            issuers.iter().filter(|authority| authority.current).map(|authority| authority.certificate.clone());
        let (distrusted, sound): (Vec<_>, Vec<_>) =
            current.partition(|certificate| is_distrusted(certificate, &self.spec().distrusted_cas));
        if sound.is_empty() { distrusted } else { sound }
    }
}

/// Waits of a status for each reason that re-issues are held for.
const REASONS: usize = 3;

/// The waits of a step for what holds it: the first of each reason, those that end first, and how many more there are.
pub(super) fn waits(step: StepName, mut pauses: Vec<Pause>) -> Vec<Wait> {
    pauses.sort_by_key(|pause| pause.until.unwrap_or(Timestamp::MAX));
    let mut reasons = BTreeSet::new();
    pauses.retain(|pause| reasons.insert(pause.reason.clone()));
    let more = pauses.len().saturating_sub(REASONS);
    let mut waits: Vec<_> =
        pauses.into_iter().take(REASONS).map(|pause| wait(step, pause.until, pause.reason)).collect();
    if let Some(last) = waits.last_mut().filter(|_| more > 0) {
        let noun = if more == 1 { "Certificate" } else { "Certificates" };
        last.reason += &format!(". {more} more {noun} may not be renewed now");
    }
    waits
}

/// Whether gateways with this bundle accept a client's chain.
pub(super) fn admits(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::admits(trust, chain, begun(chain, now))
}

/// Whether a client that trusts these CAs verifies a gateway's chain.
pub(super) fn verifies(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::verifies(trust, chain, begun(chain, now))
}

/// Whether a client verifies a gateway's chain, or did so at its end: whoever does not look at dates still does.
pub(super) fn verifies_to_the_end(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    // For BoringSSL a certificate has ended in its last second (X509_cmp_time).
    let ends = chain.iter().map(|certificate| certificate.not_after - SignedDuration::from_secs(1));
    verifies(trust, chain, ends.fold(now, Timestamp::min))
}

/// By a clock that is behind, what is in use seems not to be valid yet. It is needed all the same.
fn begun(chain: &[Certificate], now: Timestamp) -> Timestamp {
    chain.iter().map(|certificate| certificate.not_before).fold(now, Timestamp::max)
}
