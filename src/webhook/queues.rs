//! Two judging places, and the queues of complete bodies that wait for them.
//!
//! One place is for small reviews only. The other one is for large ones, and for those of connections whose reviews have taken long; it takes a small one
//! when none of these waits. In each queue the connection whose reviews have taken the least time goes first, and new connections, whose next review may take
//! any time, go after all others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// What decides when a review is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Whether it waits in the queue of small reviews.
    pub(super) is_small: bool,
    /// How long reviews of its connection take; `None` before the first.
    pub(super) cost: Option<Duration>,
    /// Bytes of its body.
    pub(super) body: usize,
}

impl Ticket {
    /// Lower ones go first: of those that may have a place, large reviews, then cheap connections. Costs of the same magnitude are equal, so that no
    /// connection waits forever for slightly cheaper ones. Small bodies of new connections go first, as they are more often cheap.
    fn rank(&self) -> (bool, u32, usize) {
        match self.cost {
            Some(cost) => (self.is_small, (cost.as_millis() + 1).ilog2(), 0),
            None => (self.is_small, u32::MAX, self.body),
        }
    }
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Whether a review is judged in the place for small reviews, and in the other one.
    taken: [bool; 2],
    /// In the order of their arrival.
    tickets: Vec<(Ticket, oneshot::Sender<Place>)>,
}

/// A judging place, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    queues: Arc<Queues>,
    is_for_small: bool,
}

impl Queues {
    /// Waits for a place.
    pub(super) async fn place(self: &Arc<Self>, ticket: Ticket) -> Option<Place> {
        let (sender, place) = oneshot::channel();
        self.waiting(|waiting| waiting.tickets.push((ticket, sender)));
        self.fill();
        place.await.ok()
    }

    fn waiting<T>(&self, change: impl FnOnce(&mut Waiting) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives free places to those that wait.
    fn fill(self: &Arc<Self>) {
        for is_for_small in [true, false] {
            if let Some(sender) = self.waiting(|waiting| waiting.take(is_for_small)) {
                // If the connection was closed at this moment, the place is dropped, and that gives it to the next.
                drop(sender.send(Place { queues: self.clone(), is_for_small }));
            }
        }
    }
}

impl Waiting {
    /// Takes a place for the next review that may have it.
    fn take(&mut self, is_for_small: bool) -> Option<oneshot::Sender<Place>> {
        if self.taken[usize::from(is_for_small)] {
            return None;
        }
        self.tickets.retain(|(_, sender)| !sender.is_closed());
        let may = |(_, (ticket, _)): &(usize, &(Ticket, _))| ticket.is_small || !is_for_small;
        let (next, _) = self.tickets.iter().enumerate().filter(may).min_by_key(|(_, (ticket, _))| ticket.rank())?;
        self.taken[usize::from(is_for_small)] = true;
        Some(self.tickets.remove(next).1)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queues.waiting(|waiting| waiting.taken[usize::from(self.is_for_small)] = false);
        self.queues.fill();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn ticket(is_small: bool, millis: Option<u64>, body: usize) -> Ticket {
        Ticket { is_small, cost: millis.map(Duration::from_millis), body }
    }

    #[tokio::test]
    async fn large_reviews_leave_a_place_for_small_ones() {
        let queues = Arc::<Queues>::default();
        let _large = queues.place(ticket(false, None, 1)).await.unwrap();
        let mut second = Box::pin(queues.place(ticket(false, None, 1)));
        assert!((&mut second).now_or_never().is_none());
        let small = queues.place(ticket(true, None, 1)).await.unwrap();
        assert!(small.is_for_small);
        drop(small);
        assert!((&mut second).now_or_never().is_none());
    }

    #[tokio::test]
    async fn the_cheapest_connection_goes_first_and_new_ones_last() {
        let queues = Arc::<Queues>::default();
        // The one for small reviews is taken until the end, so that each place is for one of them.
        let (_kept, place) = (queues.place(ticket(true, None, 1)).await, queues.place(ticket(true, None, 1)).await);
        let tickets = [(None, 9), (None, 8), (Some(19), 1), (Some(1), 7), (Some(1), 6)];
        let mut waiting: Vec<_> = tickets.map(|(cost, body)| Box::pin(queues.place(ticket(true, cost, body)))).into();
        assert!(waiting.iter_mut().all(|place| place.now_or_never().is_none()));
        drop(place);
        let mut order = Vec::new();
        while order.len() < waiting.len() {
            let left = (0..waiting.len()).filter(|number| !order.contains(number));
            // Its place is free again at once.
            order.extend(
                left.collect::<Vec<_>>().into_iter().find(|&number| waiting[number].as_mut().now_or_never().is_some()),
            );
        }
        assert_eq!(order, [3, 4, 2, 1, 0]);
    }

    #[tokio::test]
    async fn a_closed_connection_takes_no_place() {
        let queues = Arc::<Queues>::default();
        let place = queues.place(ticket(false, None, 1)).await;
        let mut closed = Box::pin(queues.place(ticket(false, None, 1)));
        assert!((&mut closed).now_or_never().is_none());
        drop(closed);
        drop(place);
        assert!(queues.place(ticket(false, None, 1)).now_or_never().is_some());
    }
}
