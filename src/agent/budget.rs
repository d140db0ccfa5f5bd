//! What the objects of one namespace, and those of all together, may cost the agent and the API server. A namespace that exceeds its budget
//! waits; no other does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::watches::SharedWatches;

/// Requests in each resync interval, without a change.
const REQUESTS: u32 = 600;
/// Requests that may be made at once, after a quiet time: when the agent starts, or while all CAs of a namespace are rotated.
const BURST: u32 = 4_000;
/// Reconciles at the same time.
const RECONCILES: usize = 2;
/// Watches, and three that all GatewaySecrets share. Each has a connection. A GatewaySecret with 256 named clients has less than 300.
const WATCHES: usize = 384;
/// Time in which one request about a TrustConsumer is earned whose objects may not be read, over all namespaces.
const REFUSED_INTERVAL: Duration = Duration::from_millis(100);
/// Requests in flight for all namespaces, and as many for new watches. More would only wait in the API server, before those of others.
const IN_FLIGHT: usize = 32;
/// Longest wait of a request for others: an API server that answers slowly must not make reconciles reach their time-out.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Longest resync interval that the rate of requests is computed from.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// The budgets of all namespaces.
pub(super) struct Budgets {
    client: Client,
    /// Time in which one request is earned.
    interval: Duration,
    refused: RequestRate,
    in_flight: Arc<InFlight>,
    namespaces: Mutex<BTreeMap<String, Arc<NamespaceBudget>>>,
}

impl Budgets {
    /// Budgets of requests by this client.
    pub(super) fn new(client: Client, resync_interval: Duration) -> Self {
        let interval = resync_interval.min(MAX_INTERVAL) / REQUESTS;
        let refused = RequestRate::new(REFUSED_INTERVAL, 1);
        Self { client, interval, refused, in_flight: Arc::default(), namespaces: Mutex::default() }
    }

    /// Whether an object may be asked for now that was refused before. Counts it, if it may.
    pub(super) fn ask_again(&self) -> bool {
        let is_earned = self.refused.delay().is_zero();
        if is_earned {
            self.refused.count();
        }
        is_earned
    }

    /// The budget of a namespace.
    pub(super) fn of(&self, namespace: &str) -> Arc<NamespaceBudget> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = namespaces.get(namespace) {
            return known.clone();
        }
        namespaces.retain(|_, budget| Arc::strong_count(budget) > 1 || budget.is_in_use());
        let budget = Arc::new(NamespaceBudget::new(self.client.clone(), self.interval, self.in_flight.clone()));
        namespaces.insert(namespace.to_owned(), budget.clone());
        budget
    }
}

/// The budget of one namespace.
pub(super) struct NamespaceBudget {
    /// Counts each request against the budget.
    pub(super) client: Client,
    requests: Arc<RequestRate>,
    asking: Arc<Semaphore>,
    reconciling: Arc<Semaphore>,
    watching: Arc<Semaphore>,
    /// Watches of its GatewaySecrets.
    pub(super) shared_watches: SharedWatches,
}

impl NamespaceBudget {
    fn new(client: Client, interval: Duration, in_flight: Arc<InFlight>) -> Self {
        let requests = Arc::new(RequestRate::new(interval, BURST));
        let counted = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, requests, in_flight) = (client.clone(), counted.clone(), in_flight.clone());
            async move {
                requests.count();
                let _turn = timeout(MAX_WAIT, in_flight.of(&request).acquire()).await;
                client.send(request).await
            }
        });
        Self {
            client: Client::new(service, "default"),
            requests,
            asking: Arc::new(Semaphore::new(1)),
            reconciling: Arc::new(Semaphore::new(RECONCILES)),
            watching: Arc::new(Semaphore::new(WATCHES)),
            shared_watches: SharedWatches::default(),
        }
    }

    /// Whether a new budget would allow more.
    fn is_in_use(&self) -> bool {
        self.watching.available_permits() < WATCHES || !self.requests.is_earned()
    }

    /// Waits for the turn to ask for a permission: one object of the namespace at a time, in the order of arrival.
    pub(super) async fn ask(&self) -> Option<OwnedSemaphorePermit> {
        // An error would mean that the semaphore was closed, which never happens.
        self.asking.clone().acquire_owned().await.ok()
    }

    /// Waits for the turn to reconcile, and until the requests of earlier reconciles are earned.
    pub(super) async fn reconcile(&self) -> Option<OwnedSemaphorePermit> {
        let turn = self.reconciling.clone().acquire_owned().await.ok();
        sleep(self.requests.delay()).await;
        turn
    }

    /// Whether the requests so far are earned.
    pub(super) fn is_within(&self) -> bool {
        self.requests.delay().is_zero()
    }

    /// A permit for a number of watches; `None` when the namespace has too many.
    pub(super) fn watch(&self, number: usize) -> Option<OwnedSemaphorePermit> {
        self.watching.clone().try_acquire_many_owned(u32::try_from(number).unwrap_or(u32::MAX)).ok()
    }
}

/// The requests that the API server has not begun to answer. New watches are apart: a proxy can delay the answer to a watch until its first
/// event.
struct InFlight {
    watches: Semaphore,
    others: Semaphore,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { watches: Semaphore::new(IN_FLIGHT), others: Semaphore::new(IN_FLIGHT) }
    }
}

impl InFlight {
    fn of(&self, request: &Request<Body>) -> &Semaphore {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if is_watch { &self.watches } else { &self.others }
    }
}

/// A rate of requests with a burst (the generic cell rate algorithm, ITU-T I.371). Requests are never delayed by it: a reconcile
/// that was interrupted between two of them would be repeated.
struct RequestRate {
    interval: Duration,
    burst: u32,
    /// When all requests so far are earned.
    spent_until: Mutex<Instant>,
}

impl RequestRate {
    fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, spent_until: Mutex::new(Instant::now()) }
    }

    fn count(&self) {
        let mut spent_until = self.spent_until.lock().unwrap_or_else(PoisonError::into_inner);
        *spent_until = Instant::now().max(*spent_until) + self.interval;
    }

    fn is_earned(&self) -> bool {
        *self.spent_until.lock().unwrap_or_else(PoisonError::into_inner) <= Instant::now()
    }

    /// Time until all requests but a burst are earned.
    fn delay(&self) -> Duration {
        let spent_until = *self.spent_until.lock().unwrap_or_else(PoisonError::into_inner);
        spent_until.saturating_duration_since(Instant::now()).saturating_sub(self.interval * self.burst)
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    fn budgets() -> Budgets {
        let answer = |_: Request<Body>| async { Ok::<_, kube::Error>(axum::http::Response::new(Body::empty())) };
        Budgets::new(Client::new(tower::service_fn(answer), "default"), MAX_INTERVAL)
    }

    async fn request(budget: &NamespaceBudget, times: u32) {
        for _ in 0..times {
            budget.client.send(Request::new(Body::empty())).await.expect("an answer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_exceeds_its_budget_waits_and_another_does_not() {
        let (budgets, start) = (budgets(), Instant::now());
        let (hostile, other) = (budgets.of("hostile"), budgets.of("other"));
        request(&hostile, BURST).await;
        drop(hostile.reconcile().await);
        assert!(start.elapsed() < Duration::from_millis(10), "within the budget, {:?}", start.elapsed());
        request(&hostile, REQUESTS).await;
        drop(other.reconcile().await);
        assert!(start.elapsed() < Duration::from_millis(10), "another namespace, {:?}", start.elapsed());
        drop(hostile.reconcile().await);
        let waited = start.elapsed();
        assert!(waited > MAX_INTERVAL - Duration::from_secs(1) && waited <= MAX_INTERVAL, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_exceeded_budget_is_not_forgotten_between_two_uses() {
        let (budgets, start) = (budgets(), Instant::now());
        request(&budgets.of("hostile"), BURST + REQUESTS).await;
        drop(budgets.of("other"));
        assert!(!budgets.of("hostile").is_within());
        drop(budgets.of("hostile").reconcile().await);
        assert!(start.elapsed() > MAX_INTERVAL - Duration::from_secs(1));
        tokio::time::sleep(MAX_INTERVAL * (BURST / REQUESTS + 1)).await;
        drop(budgets.of("third"));
        assert_eq!(budgets.namespaces.lock().expect("no panic").len(), 1, "what is earned is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_objects_are_asked_for_at_a_limited_rate() {
        let (budgets, start) = (budgets(), Instant::now());
        let mut asked = 0;
        while start.elapsed() < Duration::from_secs(10) {
            asked += u32::from(budgets.ask_again());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!((90..=102).contains(&asked), "{asked} in ten seconds");
    }

    #[tokio::test]
    async fn a_namespace_has_a_limited_number_of_watches_and_reconciles() {
        let budgets = budgets();
        let budget = budgets.of("hostile");
        let all = budget.watch(WATCHES).expect("within the budget");
        assert!(budget.watch(1).is_none() && budgets.of("other").watch(1).is_some());
        drop(all);
        assert!(budget.watch(1).is_some());
        let mut turns = Vec::new();
        for _ in 0..RECONCILES {
            turns.push(budget.reconcile().await);
        }
        let next = tokio::time::timeout(Duration::from_millis(10), budget.reconcile());
        assert!(next.await.is_err(), "a third reconcile at the same time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_number_of_requests_is_in_flight_for_all_namespaces_and_watches_take_none_of_them() {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let counted = in_flight.clone();
        let unanswered = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            future::pending::<kube::Result<axum::http::Response<Body>>>()
        });
        let budgets = Budgets::new(Client::new(unanswered, "default"), MAX_INTERVAL);
        let mut sent = JoinSet::new();
        let mut send = |uri: &'static str| {
            for number in 0..2 * IN_FLIGHT {
                let client = budgets.of(&format!("namespace-{number}")).client.clone();
                sent.spawn(async move { client.send(Request::get(uri).body(Body::empty()).expect("a request")).await });
            }
        };
        send("/api/v1/secrets?&watch=true");
        sleep(MAX_WAIT / 4).await;
        assert_eq!(in_flight.load(Ordering::SeqCst), IN_FLIGHT);
        send("/api/v1/secrets");
        sleep(MAX_WAIT / 4).await;
        assert_eq!(in_flight.load(Ordering::SeqCst), 2 * IN_FLIGHT);
        sleep(MAX_WAIT).await;
        assert_eq!(in_flight.load(Ordering::SeqCst), 4 * IN_FLIGHT, "an API server that answers slowly");
    }
}
