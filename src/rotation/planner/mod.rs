//! What to do next. Pure: what is seen, what is remembered and `now` in; writes to make, and what holds others back, out.
//!
//! Connections have two sides. What a side was given counts as in use until its successor has had time to settle; nothing is
//! given to one side that some content in use on the other would not get on with. So each order of events that this allows
//! is one without a failed handshake, whenever the process is killed, and however often the same step is decided anew.

mod any_order;
mod copy;
mod cut_off;
mod expiry;
mod lagging;
mod leaf;
mod lost_journal;
mod pending;
mod probe;
mod readers;
mod record;
mod snapshot;
mod steps;
mod trust;
mod view;

#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};

use crate::api::{Endpoints, Period, Phase, StepName, TrustSourceUse, Wait, WindowState};
use crate::rotation::journal::{Journal, Version};
use crate::trust::Certificate;
pub use leaf::LeafHold;
pub use probe::{Answer, Endpoint, ProbeResult, Shown};
pub use readers::{ReaderHold, SourceState};
pub use snapshot::{
    CaConfigMap, Canary, ClientState, FurtherCertificate, Issuance, Pending, Snapshot, Trust, TrustCopy,
};
pub(super) use view::Pause;
use view::View;

/// What to do now.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the rotation stands.
    pub phase: Phase,
    /// What to remember; to be stored before the steps are taken.
    pub journal: Journal,
    /// What clients are to trust from now on.
    pub client_bundle: Vec<Certificate>,
    /// Why it may not stand where readers take its CAs in any order.
    pub unordered: Option<String>,
    /// CAs that every gateway has by now.
    pub converged: Vec<Certificate>,
    /// What to write, in this order.
    pub steps: Vec<Step>,
    /// What is held back, and why.
    pub waits: Vec<Wait>,
    /// Why the clients of some namespaces are not known: a sentence.
    pub unlisted_clients: Option<String>,
    /// Declared clients that were asked to follow, and do not yet, by name.
    pub lagging: Vec<String>,
    /// Declared clients that a server lets in by the hash of their certificate alone: what that holds, and what to do.
    pub pinned: Option<String>,
    /// Declared clients that gateways were changed in spite of, by name.
    pub cut_off: Vec<String>,
    /// What the gateways showed on the wire, when somebody looked.
    pub endpoints: Option<Endpoints>,
    /// Why they are not probed, when that is known.
    pub unprobed: Option<String>,
    /// What gateways use beside the managed Secret, for the rights that the agent needs.
    pub trust_sources: Vec<TrustSourceUse>,
    /// Why a source cannot be used: what was there before stays.
    pub trouble: Option<String>,
    /// Who holds the change of the gateways' leaf, and what becomes of them.
    pub leaf_hold: Option<LeafHold>,
    /// Gateways that take their clients' CAs from a source without the new CA, and the instant at which they are not waited
    /// for any more.
    pub reader_hold: Option<(ReaderHold, Option<Timestamp>)>,
    /// The root holds a leaf that gateways could serve.
    pub has_next_leaf: bool,
    /// All that is wrong with the managed Secret is that its leaf has ended, and `onServingCertificateExpiry` keeps it.
    pub keeps_ended_leaf: bool,
    /// Declared clients that mode `Copy` would cut off now.
    pub cut_off_by_copy: Vec<String>,
    /// Why `spec.distrustedCAs` is not carried out.
    pub undistrusted: Option<String>,
    /// RegistryCache leaves need more previous CAs than `maxPreviousCAs` allows. They are kept.
    pub over_cap: bool,
    /// Since when a journal that is lost leaves open what gateways had before.
    pub forgotten: Option<Timestamp>,
    /// The next instant at which time alone changes something.
    pub wake: Option<Timestamp>,
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The managed Secret holds this bundle, and this pair.
    WriteManaged {
        /// The bundle, new first.
        trust: Vec<Certificate>,
        /// Whose pair it serves.
        pair: PairOf,
    },
    /// `<managed>-cacert` holds these CAs: what `<source>-cacert` does, with our own as the managed Secret has them.
    WriteSibling {
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// The ConfigMap that is kept from another holds these CAs: what the other does, with our own as the managed Secret has them.
    WriteConfigMap {
        /// Name of the other.
        source: String,
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// The managed Secret is a copy of the root.
    CopyRoot,
    /// The Issuer's Secret is a copy of the CA's.
    PromoteIssuer,
    /// cert-manager issues a Certificate anew.
    Reissue {
        /// Its name.
        certificate: String,
    },
}

/// Where a serving pair comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairOf {
    /// It stays as it is.
    Managed,
    /// The root Secret.
    Root,
}

/// Computes what to do now. Doing it and asking again gives the next steps; asking twice gives the same.
pub fn plan(seen: &Snapshot<'_>, before: &Journal, now: Timestamp) -> Plan {
    let mut journal = record::record(seen, before, now);
    let windows = WindowState::of(&seen.entry.policy.change_windows, now);
    let clients = trust::of_clients(&View { seen, journal: &journal, windows, now });
    if !clients.trust.is_empty() {
        record::offer(&mut journal, &clients.trust);
    }
    let gateways = trust::of_gateways(&View { seen, journal: &journal, windows, now });
    // Before anything is decided: asked again, the planner knows no more than what is stored.
    let kept: Vec<_> = gateways.trust.iter().chain(&clients.trust).cloned().collect();
    record::forget_authorities(seen, &mut journal, &kept, now);
    let view = View { seen, journal: &journal, windows, now };
    let decided = steps::decide(&view, &gateways);
    let converged = steps::converged(&view, &gateways.trust);
    let wake = wake(&view, &decided.waits, [gateways.until, clients.until]);
    let lagging = lagging::lagging(&view);
    let phase = decided.phase;
    let endpoints = probe::count(&view, &before.gateways);
    let cut_off_by_copy = copy::cuts_off(&view);
    let cut_off = journal.clients.iter().filter(|(_, client)| !client.cut_off.is_none());
    let cut_off = cut_off.map(|(name, _)| name.clone()).collect();
    let (has_next_leaf, keeps_ended_leaf) = (view.root_chain().is_some(), view.keeps_ended_leaf());
    let over_cap = gateways.over_cap || clients.over_cap;
    let reader_hold = readers::of_all(&view).map(|hold| (hold, expiry::of_issuer(&view)));
    let client_bundle = clients.trust;
    let unordered = any_order::refusal(&view, &client_bundle);
    let forgotten = view.gateways_in_use().find(|version| version.guessed).map(|version| version.since);
    record::forget_versions(seen, &mut journal, now);
    let mut waits = decided.waits;
    waits.extend(unordered.iter().map(|reason| wait(StepName::ExpandTrust, None, reason.as_str())));
    Plan {
        phase,
        journal,
        client_bundle,
        unordered,
        converged,
        steps: decided.steps,
        waits,
        unlisted_clients: leaf::unlisted(seen),
        lagging,
        pinned: decided.pinned,
        leaf_hold: decided.leaf_hold,
        reader_hold,
        trust_sources: readers::uses(seen),
        has_next_leaf,
        keeps_ended_leaf,
        cut_off,
        undistrusted: decided.undistrusted,
        cut_off_by_copy,
        endpoints,
        unprobed: seen.unprobed.clone(),
        trouble: decided.trouble,
        over_cap,
        forgotten,
        wake,
    }
}

/// The next instant at which something that is in use now is not any more, or a certificate's validity begins or ends.
fn wake(view: &View<'_>, waits: &[Wait], until: [Option<Timestamp>; 2]) -> Option<Timestamp> {
    let (seen, journal, settle) = (view.seen, view.journal, &view.policy().propagation_delays);
    let settled = |versions: &[Version], period: Period| {
        versions.iter().filter_map(|version| version.replaced).map(|at| period.after(at)).collect::<Vec<_>>()
    };
    let mut at = settled(&journal.gateways, settle.gateways);
    let beside = journal.trust_sources.values().chain(journal.presented_also.values());
    at.extend(beside.flat_map(|versions| settled(versions, settle.gateways)));
    at.extend(journal.clients.values().flat_map(|client| settled(&client.versions, settle.clients)));
    at.extend(waits.iter().filter_map(|wait| wait.until));
    at.extend(until.into_iter().flatten());
    at.extend(view.windows.until);
    let sources = [seen.root, seen.ca, seen.client_ca].into_iter().flatten().flat_map(|facts| &facts.chain);
    let leaves =
        journal.clients.values().flat_map(|client| &client.versions).filter_map(|version| version.chain.first());
    let issuers = journal.client_issuers.iter().chain(&journal.server_issuers).map(|authority| &authority.certificate);
    for certificate in sources.chain(leaves).chain(issuers) {
        // The last second still counts.
        let end = certificate.not_after.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
        at.extend([certificate.not_before, end]);
    }
    at.into_iter().filter(|at| *at > view.now).min()
}

fn wait(step: StepName, until: Option<Timestamp>, reason: impl Into<String>) -> Wait {
    Wait { step, reason: reason.into(), until }
}
