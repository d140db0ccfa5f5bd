//! The open connections of a port, and which of them is closed when there are too many.
//!
//! A new connection is never refused for one that has not sent a complete request: the oldest such connection of the address that has the most
//! of them is closed instead. A caller that sends its request within milliseconds is served, also next to a thousand slow
//! ones of the same address. While such connections are fewer than half, the one that is idle for the longest is closed, of the address that
//! has the most idle ones.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::time::Instant;

use super::limits::{CHEAP, CHEAP_BODY, COSTLY, Limits, SMALL_BODY};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client, for the TLS handshake.
    Handshake,
    /// The client, for the head of a request.
    Head,
    /// The client, for the body of a request.
    Body,
    /// The server, for a judging place.
    Queue,
    /// The server, for the response.
    Response,
    /// The client, for another request.
    Idle,
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    peer: IpAddr,
    state: Mutex<State>,
    is_evicted: AtomicBool,
    /// The task of the connection, which polls its stream and its request.
    task: AtomicWaker,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    since: Instant,
    /// Bytes of the body of its request.
    body: usize,
    /// How long its reviews take.
    cost: Option<Duration>,
}

impl State {
    /// Whether it has not sent a complete request.
    fn is_unfinished(&self) -> bool {
        matches!(self.phase, Phase::Handshake | Phase::Head | Phase::Body)
    }
}

impl Connection {
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        let state = State { phase: Phase::Handshake, since: Instant::now(), body: 0, cost: None };
        let (is_evicted, task) = Default::default();
        Arc::new(Self { peer, state: Mutex::new(state), is_evicted, task })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.state();
        (state.phase, state.since) = (phase, Instant::now());
    }

    /// What it waits for, and since when.
    pub(super) fn phase(&self) -> (Phase, Instant) {
        let state = self.state();
        (state.phase, state.since)
    }

    /// How long its reviews take, of late; `None` before the first.
    pub(super) fn cost(&self) -> Option<Duration> {
        self.state().cost
    }

    /// Records how long a review took.
    pub(super) fn reviewed(&self, took: Duration) {
        let mut state = self.state();
        state.cost = Some(state.cost.map_or(took, |cost| (cost * 7 + took) / 8));
    }

    /// Whether its next review, with a body of so many bytes, waits with the small ones.
    pub(super) fn is_small(&self, body: usize) -> bool {
        body <= SMALL_BODY && self.cost().is_none_or(|cost| cost <= COSTLY)
    }

    /// Whether its next review, with a body of so many bytes, takes less time than to pass it to another thread, and to wait for that.
    pub(super) fn is_cheap(&self, body: usize) -> bool {
        body <= CHEAP_BODY && self.cost().is_some_and(|cost| cost <= CHEAP)
    }

    /// Ready once the connection is to be closed.
    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.task.register(cx.waker());
        if self.is_evicted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the connection is to be closed.
    pub(super) async fn evicted(&self) {
        poll_fn(|cx| self.poll_evicted(cx)).await;
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// The open connections of a port.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: Vec<Arc<Connection>>,
    /// Bytes of all bodies.
    bodies: usize,
}

impl Connections {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, and closes another one if there are too many. `None` if all of them have sent a complete request and wait for the
    /// response.
    pub(super) fn open(self: &Arc<Self>, peer: IpAddr) -> Option<Open> {
        let mut table = self.table();
        let unfinished = table.open.iter().filter(|other| other.state().is_unfinished()).count();
        if unfinished >= self.limits.unfinished() {
            let victim = table.oldest(State::is_unfinished)?;
            table.evict(&victim);
        } else if table.open.len() >= self.limits.connections {
            // Idle and busy connections are too many, so one that just sends its request does not have to go.
            let victim =
                table.oldest(|state| state.phase == Phase::Idle).or_else(|| table.oldest(State::is_unfinished))?;
            table.evict(&victim);
        }
        let connection = Connection::new(peer);
        table.open.push(connection.clone());
        drop(table);
        Some(Open { connection, connections: self.clone() })
    }

    /// Counts bytes of a body before they are kept. While there are too many, another body goes: the oldest incomplete one of the address that
    /// has the most of them, then the largest that waits for a judging place. False if that is this body.
    pub(super) fn grow_body(&self, connection: &Arc<Connection>, bytes: usize) -> bool {
        let mut table = self.table();
        let is_small = connection.state().body + bytes <= SMALL_BODY;
        let limit = if is_small { self.limits.bodies } else { self.limits.large_bodies() };
        loop {
            if connection.is_evicted.load(Ordering::Acquire) {
                return false;
            }
            if table.bodies + bytes <= limit {
                break;
            }
            let victim =
                table.oldest(|state| state.phase == Phase::Body && state.body > 0).or_else(|| table.largest_waiting());
            // A router without a port has no connections.
            let Some(victim) = victim.filter(|victim| !Arc::ptr_eq(victim, connection)) else { return false };
            table.evict(&victim);
        }
        table.bodies += bytes;
        connection.state().body += bytes;
        true
    }

    /// Bytes of all bodies.
    #[cfg(test)]
    pub(super) fn bodies(&self) -> usize {
        self.table().bodies
    }

    /// The body of the connection's request is no longer kept.
    pub(super) fn release_body(&self, connection: &Connection) {
        let mut table = self.table();
        table.release_body(connection);
    }
}

impl Table {
    /// Of the connections in some states, the one that is in it for the longest, of the address that has the most of them.
    fn oldest(&self, matches: impl Fn(&State) -> bool) -> Option<Arc<Connection>> {
        let states = self.open.iter().map(|connection| (connection, *connection.state()));
        let candidates: Vec<_> = states.filter(|(_, state)| matches(state)).collect();
        let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
        for (connection, _) in &candidates {
            *of_address.entry(connection.peer).or_default() += 1;
        }
        let age =
            |(connection, state): &(&Arc<Connection>, State)| (of_address[&connection.peer], state.since.elapsed());
        candidates.into_iter().max_by_key(age).map(|(connection, _)| connection.clone())
    }

    /// Of the connections that wait for a judging place, the one with the largest body.
    fn largest_waiting(&self) -> Option<Arc<Connection>> {
        let waiting = self.open.iter().filter(|connection| connection.phase().0 == Phase::Queue);
        waiting.max_by_key(|connection| connection.state().body).cloned()
    }

    /// Closes a connection. Its task gives its memory back as soon as it runs, so that counts as done.
    fn evict(&mut self, victim: &Arc<Connection>) {
        victim.evict();
        self.release_body(victim);
        self.open.retain(|other| !Arc::ptr_eq(other, victim));
    }

    fn release_body(&mut self, connection: &Connection) {
        self.bodies -= std::mem::take(&mut connection.state().body);
    }
}

/// A connection while it is open.
#[derive(Debug)]
pub(super) struct Open {
    connection: Arc<Connection>,
    connections: Arc<Connections>,
}

impl std::ops::Deref for Open {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.open.retain(|other| !Arc::ptr_eq(other, &self.connection));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::time::advance;

    use super::*;
    use crate::webhook::BODY_LIMIT;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    fn connections() -> Arc<Connections> {
        Connections::new(Limits { connections: 8, ..Limits::default() })
    }

    fn open(connections: &Arc<Connections>, peer: IpAddr, phase: Phase) -> Open {
        let open = connections.open(peer).unwrap();
        open.enter(phase);
        open
    }

    fn is_evicted(connection: &Connection) -> bool {
        connection.is_evicted.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn closes_the_oldest_unfinished_connection_of_the_address_with_the_most() {
        let connections = connections();
        let lone = open(&connections, B, Phase::Head);
        advance(Duration::from_secs(1)).await;
        let mut many = Vec::new();
        for phase in [Phase::Handshake, Phase::Head, Phase::Body] {
            many.push(open(&connections, A, phase));
            advance(Duration::from_secs(1)).await;
        }
        // It has made progress.
        many[0].enter(Phase::Head);
        let _fifth = open(&connections, A, Phase::Handshake);
        assert_eq!(many.iter().map(|open| is_evicted(open)).collect::<Vec<_>>(), [false, true, false]);
        assert!(!is_evicted(&lone));
    }

    #[tokio::test(start_paused = true)]
    async fn closes_the_longest_idle_connection_while_few_are_unfinished_and_busy_ones_never() {
        let connections = connections();
        let lone = open(&connections, B, Phase::Idle);
        let mut idle = Vec::new();
        for _ in 0..2 {
            advance(Duration::from_secs(1)).await;
            idle.push(open(&connections, A, Phase::Idle));
        }
        let busy: Vec<_> =
            (0..4).map(|n| open(&connections, B, if n > 2 { Phase::Queue } else { Phase::Response })).collect();
        let unfinished = open(&connections, B, Phase::Body);
        let all = || [&idle[0], &idle[1], &lone, &unfinished].map(|open| is_evicted(open));
        let mut more = Vec::new();
        for evicted in [[true, false, false, false], [true, false, true, false], [true, true, true, false], [true; 4]] {
            more.push(open(&connections, A, Phase::Response));
            assert_eq!(all(), evicted);
        }
        assert!(connections.open(A).is_none());
        assert!(!busy.iter().chain(&more).any(|open| is_evicted(open)));
        drop(more.pop());
        assert!(connections.open(A).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_takes_the_memory_of_the_oldest_incomplete_one() {
        let connections = connections();
        let older = open(&connections, A, Phase::Body);
        advance(Duration::from_secs(1)).await;
        let newer = open(&connections, A, Phase::Body);
        let half = connections.limits.large_bodies() / 2;
        assert!(connections.grow_body(&older, half) && connections.grow_body(&newer, half));
        assert!(connections.grow_body(&newer, 1) && is_evicted(&older));
        assert!(!connections.grow_body(&older, 1), "it was closed");
        // The older task ends.
        connections.release_body(&older);
        assert_eq!(connections.bodies(), half + 1);
        connections.release_body(&newer);
        assert_eq!(connections.bodies(), 0);
    }

    #[test]
    fn large_bodies_leave_memory_for_small_ones() {
        let connections = Connections::new(Limits::default());
        let large = open(&connections, A, Phase::Body);
        assert!(connections.grow_body(&large, BODY_LIMIT));
        large.enter(Phase::Response);
        let other = open(&connections, A, Phase::Body);
        assert!(!connections.grow_body(&other, BODY_LIMIT), "nothing else can go");
        let waiting = open(&connections, A, Phase::Body);
        assert!(connections.grow_body(&waiting, connections.limits.large_bodies() - BODY_LIMIT));
        waiting.enter(Phase::Queue);
        let mut small = Vec::new();
        while !is_evicted(&waiting) {
            small.push(open(&connections, B, Phase::Body));
            assert!(connections.grow_body(&small[small.len() - 1], SMALL_BODY));
            small[small.len() - 1].enter(Phase::Response);
        }
    }
}
