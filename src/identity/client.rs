//! What a client does next to have a kubeconfig that works. The order is the kubelet's (client-go `util/certificate` and the kubelet's bootstrap): a new
//! key, a certificate signing request whose name follows from the key, then the certificate. The old kubeconfig stays until the new one has worked.

use jiff::{SignedDuration, Timestamp};

use super::kubeconfig::{ClientCertificate, Server};

/// Time between two reads of a request that is not decided.
const POLL_INTERVAL: SignedDuration = SignedDuration::from_secs(1);

/// Delay after the first failure, doubled after each further one.
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(2);

/// The longest such delay.
const MAX_DELAY: SignedDuration = SignedDuration::from_secs(300);

/// The longest time in which a key is used for a request that may have been sent before. kube-controller-manager removes no request earlier:
/// a pending one after a day, a decided one after an hour or when its certificate has expired, which is valid for at least ten minutes.
const MAX_RESUME: SignedDuration = SignedDuration::from_secs(600);

/// Attempts with a new kubeconfig that the API server refuses, before it is discarded: replicas switch one after another.
const MAX_REFUSALS: u32 = 4;

/// An API server and its CAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL.
    pub endpoint: String,
    /// A hash of the set of CAs.
    pub ca_hash: String,
}

impl From<&Server> for Target {
    fn from(server: &Server) -> Self {
        Self { endpoint: server.endpoint.clone(), ca_hash: server.ca_hash() }
    }
}

/// The kubeconfig in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// Its server.
    pub target: Target,
    /// Its certificate.
    pub certificate: ClientCertificate,
}

impl Current {
    /// When its certificate is renewed: after 70 to 90 % of its life, at a time that follows from its fingerprint.
    pub fn renew_at(&self) -> Timestamp {
        let ClientCertificate { not_before, not_after, fingerprint, .. } = &self.certificate;
        let random = u32::from_str_radix(fingerprint.get(..8).unwrap_or_default(), 16).unwrap_or_default();
        let millionths = 700_000 + 200_000 * i128::from(random) / i128::from(u32::MAX);
        let life = i128::from(not_after.duration_since(*not_before).as_secs());
        let after = i64::try_from(life * millionths / 1_000_000).unwrap_or(i64::MAX);
        not_before.saturating_add(SignedDuration::from_secs(after)).unwrap_or(*not_after)
    }
}

/// A key without a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingKey {
    /// SHA-256 of the public key (SubjectPublicKeyInfo), lower-case hex.
    pub key_hash: String,
    /// When it was made.
    pub created: Timestamp,
}

/// By what a certificate is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By the bootstrap kubeconfig.
    Bootstrap,
    /// By the current kubeconfig.
    Renewal,
}

/// The state of the request for the pending key, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was sent, and is not decided.
    Waiting {
        /// When it is read next.
        poll_at: Timestamp,
    },
    /// A certificate was issued.
    Issued,
    /// It was denied, has failed or was removed.
    Lost,
}

/// What the API server says about the current kubeconfig.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceptance {
    /// Not known.
    #[default]
    Unknown,
    /// It authenticates the client with the expected name.
    Accepted,
    /// It does not, or presents a certificate of another CA.
    Refused,
}

/// What a process remembers between two steps. Nothing of it is needed after a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    acceptance: Acceptance,
    check_at: Option<Timestamp>,
    request: Option<(Via, Target, Progress)>,
    failures: u32,
    refusals: u32,
    retry_at: Option<Timestamp>,
}

impl Memory {
    /// Records a check of the current kubeconfig. `None`: the API server did not answer.
    pub fn record_check(&mut self, acceptance: Option<Acceptance>, now: Timestamp, interval: SignedDuration) {
        self.acceptance = acceptance.unwrap_or(self.acceptance);
        self.check_at = now.saturating_add(interval).ok();
    }

    /// Records the progress of the request.
    pub fn record_request(&mut self, via: Via, target: &Target, progress: Progress) {
        self.request = Some((via, target.clone(), progress));
    }

    /// Records that the request was read and is not decided.
    pub fn record_waiting(&mut self, via: Via, target: &Target, now: Timestamp) {
        let poll_at = now.saturating_add(POLL_INTERVAL).unwrap_or(now);
        self.record_request(via, target, Progress::Waiting { poll_at });
    }

    /// Records a failed step: the next one follows after a delay.
    pub fn record_failure(&mut self, now: Timestamp) {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(8)).min(MAX_DELAY);
        self.failures += 1;
        self.retry_at = now.saturating_add(delay).ok();
    }

    /// Records that the API server refused the new kubeconfig.
    pub fn record_refusal(&mut self, via: Via, target: &Target, now: Timestamp) {
        self.refusals += 1;
        if self.refusals >= MAX_REFUSALS {
            self.record_request(via, target, Progress::Lost);
        }
        self.record_failure(now);
    }

    /// Records that the pending key was discarded.
    pub fn record_discarded(&mut self) {
        (self.request, self.refusals) = (None, 0);
    }

    /// Records that the new kubeconfig has worked and replaced the old one.
    pub fn record_installed(&mut self, now: Timestamp, interval: SignedDuration) {
        *self = Self::default();
        self.record_check(Some(Acceptance::Accepted), now, interval);
    }

    /// Ends the delay after failures: the bootstrap kubeconfig was replaced.
    pub fn record_new_bootstrap(&mut self) {
        (self.failures, self.retry_at) = (0, None);
    }

    /// What the API server says about the current kubeconfig.
    pub fn acceptance(&self) -> Acceptance {
        self.acceptance
    }
}

/// All that decides about the next step.
#[derive(Clone, Debug)]
pub struct View<'v> {
    /// The kubeconfig in use.
    pub current: Option<&'v Current>,
    /// The key without a certificate.
    pub pending: Option<&'v PendingKey>,
    /// The server of the bootstrap kubeconfig.
    pub bootstrap: Option<&'v Target>,
    /// What this process remembers.
    pub memory: &'v Memory,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until this time, unless the bootstrap kubeconfig changes. `None`: no kubeconfig exists.
    Idle(Option<Timestamp>),
    /// Check the current kubeconfig.
    Check,
    /// Make a key and store it as pending.
    CreateKey,
    /// Send the request for the pending key, or find it.
    Request(Via),
    /// Read the request.
    Poll(Via),
    /// Try the new kubeconfig, and replace the old one by it if it works.
    Install(Via),
    /// Remove the pending key.
    Discard,
}

/// Decides about the next step.
pub fn decide(view: &View<'_>, now: Timestamp) -> Step {
    let View { current, pending, memory, .. } = view;
    let check_at = current.map(|_| memory.check_at.unwrap_or(now));
    if let (Some(current), Some(pending)) = (current, pending)
        && current.certificate.key_hash == pending.key_hash
    {
        // The process ended after the new kubeconfig was stored.
        return Step::Discard;
    }
    if check_at.is_some_and(|at| at <= now) {
        return Step::Check;
    }
    let Some((via, target)) = wanted(view, now) else {
        if pending.is_some() {
            return Step::Discard;
        }
        let renew_at = current.map(Current::renew_at);
        return Step::Idle(check_at.into_iter().chain(renew_at).min());
    };
    let idle_until = |until: Timestamp| Step::Idle(check_at.into_iter().chain([until]).min());
    if let Some(retry_at) = memory.retry_at.filter(|retry_at| now < *retry_at) {
        return idle_until(retry_at);
    }
    let Some(pending) = pending else { return Step::CreateKey };
    let progress = memory.request.as_ref().filter(|(by, at, _)| *by == via && at == target).map(|(_, _, known)| *known);
    match progress {
        None if pending.created.saturating_add(MAX_RESUME).is_ok_and(|end| end <= now) => Step::Discard,
        None => Step::Request(via),
        Some(Progress::Waiting { poll_at }) if now < poll_at => idle_until(poll_at),
        Some(Progress::Waiting { .. }) => Step::Poll(via),
        Some(Progress::Issued) => Step::Install(via),
        Some(Progress::Lost) => Step::Discard,
    }
}

/// Whether the client needs nothing now.
pub fn needs_nothing(view: &View<'_>, now: Timestamp) -> bool {
    wanted(view, now).is_none() && view.pending.is_none()
}

/// Whether a certificate is needed, and from whom.
fn wanted<'v>(view: &View<'v>, now: Timestamp) -> Option<(Via, &'v Target)> {
    let bootstrap = view.bootstrap.map(|target| (Via::Bootstrap, target));
    let Some(current) = view.current else { return bootstrap };
    let is_refused = view.memory.acceptance == Acceptance::Refused || current.certificate.not_after < now;
    if is_refused {
        bootstrap
    } else if current.renew_at() <= now {
        Some((Via::Renewal, &current.target))
    } else {
        // The same server: this kubeconfig works, whatever token the bootstrap kubeconfig has.
        bootstrap.filter(|(_, target)| **target != current.target)
    }
}

#[cfg(test)]
mod tests;
