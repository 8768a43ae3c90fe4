//! Places of connections: how many there are, and whose ends when a new one comes and all are
//! taken.
//!
//! A connection is idle while none of its requests is under way: before its first head is whole,
//! however slowly that comes, and between two requests. The one that has been idle longest gives
//! its place to a new one. While none is idle a few more are let in, of which only health, metrics
//! and the like are answered; beyond these nobody is let in.

use super::bounded_writes::Stalled;
use futures::task::AtomicWaker;
use hopbine_proto::status::{Code, Problem};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tokio::sync::Notify;

/// Connections beyond the bound: those that are about to end, and those that ask for health while
/// all others have requests under way.
pub const RESERVE: usize = 64;
/// Pause that refused clients are asked for, milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// What a request finds whose connection has a place of the reserve only.
#[derive(Clone, Copy, Debug)]
pub struct Crowded;

impl Crowded {
    /// Why it is refused, unless it asks for health and the like.
    pub fn problem() -> Problem {
        let detail = "every connection that there is room for has a request under way";
        Problem::new(Code::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS)
    }
}

/// The places of all connections of a server.
#[derive(Debug)]
pub struct Places {
    connections_max: usize,
    taken: Mutex<Taken>,
    /// Told when there may be room again.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    open: usize,
    /// Those among the open ones that have to end.
    leaving: usize,
    /// How often a connection became idle.
    turns: u64,
    /// The idle ones by when they became so.
    idle: BTreeMap<u64, Arc<Guest>>,
}

/// One connection. What is not `polled` or `waker` changes under the lock of [`Taken`] only.
#[derive(Debug, Default)]
struct Guest {
    /// Requests under way, to the last byte of their replies' bodies.
    requests: AtomicUsize,
    /// Its place among the idle ones; 0 while it has none.
    idle_since: AtomicU64,
    /// Whether it has to end.
    leaving: AtomicBool,
    /// Whether there was no place for it when it came, nor for a request of it since.
    reserve: AtomicBool,
    /// Whether its task looks after it right now.
    polled: AtomicBool,
    waker: AtomicWaker,
}

impl Places {
    /// Places for this many connections, and the reserve.
    pub fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { connections_max, taken: Mutex::default(), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once there is room for one more connection. Ends one when nothing else makes room.
    pub async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let mut taken = self.lock();
                if taken.open < self.connections_max.saturating_add(RESERVE) {
                    return;
                }
                if taken.leaving == 0 {
                    taken.end_oldest();
                }
            }
            changed.await;
        }
    }

    /// A place for a new connection: a free one, that of the connection which has been idle
    /// longest, or one of the reserve. Ends as many idle ones as there are too many, which is one
    /// as a rule; each costs the logarithm of how many are idle.
    pub fn take(self: &Arc<Self>) -> Place {
        let mut taken = self.lock();
        taken.open += 1;
        let reserve = !taken.bring_down_to(self.connections_max);
        let guest = Guest { reserve: AtomicBool::new(reserve), ..Guest::default() };
        Place { places: self.clone(), guest: Arc::new(guest) }
    }

    /// Lets those know who wait for room, if there can be any.
    fn tell(&self, taken: &Taken) {
        if taken.open + 1 >= self.connections_max.saturating_add(RESERVE) {
            self.changed.notify_waiters();
        }
    }
}

impl Taken {
    /// Ends idle connections, the oldest first, until so many stay; whether no more than that do.
    fn bring_down_to(&mut self, connections_max: usize) -> bool {
        while self.open - self.leaving > connections_max {
            if !self.end_oldest() {
                return false;
            }
        }
        true
    }

    /// Ends the connection that has been idle longest; whether there was one.
    fn end_oldest(&mut self) -> bool {
        let Some((_, guest)) = self.idle.pop_first() else { return false };
        guest.idle_since.store(0, SeqCst);
        guest.leaving.store(true, SeqCst);
        guest.waker.wake();
        self.leaving += 1;
        true
    }

    fn no_longer_idle(&mut self, guest: &Guest) {
        let since = guest.idle_since.swap(0, SeqCst);
        if since != 0 {
            self.idle.remove(&since);
        }
    }
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    guest: Arc<Guest>,
}

impl Place {
    /// What counts the connection's requests.
    pub fn desk(&self) -> Desk {
        Desk { places: self.places.clone(), guest: self.guest.clone() }
    }

    /// Waits for the end of `connection`. `None`: it was idle and its place is another's now; it is
    /// dropped. While a write of its stream is `stalled` it is not idle.
    pub async fn serve<C: Future>(&self, connection: C, stalled: &Stalled) -> Option<C::Output> {
        let mut connection = pin!(connection);
        let guest = &*self.guest;
        poll_fn(|context| {
            guest.waker.register(context.waker());
            guest.polled.store(true, SeqCst);
            // Also one that has to end: what was written before goes out first.
            let polled = connection.as_mut().poll(context);
            guest.polled.store(false, SeqCst);
            match polled {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending if guest.leaving.load(SeqCst) => Poll::Ready(None),
                Poll::Pending => {
                    if !stalled.is_set() {
                        self.rest();
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The connection is idle, unless one of its requests is under way.
    fn rest(&self) {
        let guest = &self.guest;
        let rests = || guest.requests.load(SeqCst) == 0 && guest.idle_since.load(SeqCst) == 0;
        if !rests() {
            return;
        }
        let mut taken = self.places.lock();
        if rests() && !guest.leaving.load(SeqCst) {
            taken.turns += 1;
            guest.idle_since.store(taken.turns, SeqCst);
            let turns = taken.turns;
            taken.idle.insert(turns, guest.clone());
            self.places.tell(&taken);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.no_longer_idle(&self.guest);
        taken.open -= 1;
        taken.leaving -= usize::from(self.guest.leaving.load(SeqCst));
        self.places.tell(&taken);
    }
}

/// Where the requests of one connection are counted.
#[derive(Clone, Debug)]
pub struct Desk {
    places: Arc<Places>,
    guest: Arc<Guest>,
}

impl Desk {
    /// Counts a request as under way; `None` when its connection has to end and takes no more. One
    /// of the reserve takes a free place, or that of an idle connection, if there is one by now.
    pub fn request(&self) -> Option<Turn> {
        let mut taken = self.places.lock();
        if self.guest.leaving.load(SeqCst) {
            return None;
        }
        taken.no_longer_idle(&self.guest);
        self.guest.requests.fetch_add(1, SeqCst);
        // Some that were not idle when this one came may be so now.
        if self.guest.reserve.load(SeqCst) && taken.bring_down_to(self.places.connections_max) {
            self.guest.reserve.store(false, SeqCst);
        }
        Some(Turn { guest: self.guest.clone() })
    }
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    guest: Arc<Guest>,
}

impl Turn {
    /// Whether its connection has a place of the reserve only.
    pub fn is_crowded(&self) -> bool {
        self.guest.reserve.load(SeqCst)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Whoever looks after the connection looks whether it is idle; over HTTP/2 the last byte of
        // a reply may be taken while nobody does.
        let last = self.guest.requests.fetch_sub(1, SeqCst) == 1;
        if last && !self.guest.polled.load(SeqCst) {
            self.guest.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending};

    /// A connection that does nothing of itself, looked after for the first time.
    fn seated(places: &Arc<Places>) -> (Desk, BoxFuture<'static, bool>) {
        let place = places.take();
        let desk = place.desk();
        let mut served =
            async move { place.serve(pending::<()>(), &Stalled::default()).await.is_some() }
                .boxed();
        assert!((&mut served).now_or_never().is_none());
        (desk, served)
    }

    #[test]
    fn the_one_that_was_idle_longest_gives_its_place() {
        let places = Places::new(3);
        let mut three = [seated(&places), seated(&places), seated(&places)];
        let turn = three[0].0.request().expect("it stays");
        drop(three[1].0.request());
        // Its task looks after it, and it is idle anew: the third has been so for longer.
        assert!((&mut three[1].1).now_or_never().is_none());
        let fourth = seated(&places);
        assert!(three[2].0.request().is_none(), "it has to end");
        assert_eq!((&mut three[2].1).now_or_never(), Some(false));
        let fifth = seated(&places);
        assert_eq!((&mut three[1].1).now_or_never(), Some(false));
        assert!((&mut three[0].1).now_or_never().is_none(), "its request is under way");
        assert!(![&fourth, &fifth].iter().any(|(desk, _)| desk.request().is_none()));
        drop((turn, three, fourth, fifth));
        let taken = places.lock();
        assert_eq!((taken.open, taken.leaving, taken.idle.len()), (0, 0, 0));
    }

    #[test]
    fn while_none_is_idle_a_reserve_is_let_in_and_nobody_beyond() {
        let places = Places::new(1);
        let first = seated(&places);
        let under_way = first.0.request().expect("it stays");
        let crowd: Vec<_> = (0..RESERVE).map(|_| seated(&places)).collect();
        // Each took the place of the one before it, which was idle.
        assert_eq!(crowd.iter().filter(|(desk, _)| desk.request().is_some()).count(), 1);
        drop(crowd);
        let crowd: Vec<_> = (0..RESERVE)
            .map(|_| {
                let seat = seated(&places);
                let turn = seat.0.request().expect("it stays");
                assert!(turn.is_crowded());
                (seat, turn)
            })
            .collect();
        let mut room = Box::pin(places.room());
        assert!((&mut room).now_or_never().is_none(), "all are taken");
        drop(crowd);
        assert!(room.now_or_never().is_some());
        let late = seated(&places);
        assert!(late.0.request().expect("it stays").is_crowded());
        drop((under_way, first));
        assert!(!late.0.request().expect("it stays").is_crowded(), "there is room again");
    }

    #[test]
    fn one_that_becomes_idle_makes_room_where_nothing_else_does() {
        let places = Places::new(0);
        let mut crowd: Vec<_> = (0..RESERVE)
            .map(|_| {
                let seat = seated(&places);
                let turn = seat.0.request().expect("it stays");
                (seat, turn)
            })
            .collect();
        let mut room = Box::pin(places.room());
        assert!((&mut room).now_or_never().is_none());
        let ((_, mut served), turn) = crowd.pop().expect("one of them");
        drop(turn);
        assert!((&mut served).now_or_never().is_none(), "it is idle");
        assert!((&mut room).now_or_never().is_none(), "it is told to end");
        assert_eq!(served.now_or_never(), Some(false));
        assert!(room.now_or_never().is_some());
    }

    #[test]
    fn a_connection_whose_reply_waits_for_its_reader_is_not_idle() {
        let (places, stalled) = (Places::new(1), Stalled::default());
        let place = places.take();
        let mut served = Box::pin(place.serve(pending::<()>(), &stalled));
        stalled.set(true);
        assert!((&mut served).now_or_never().is_none());
        assert!(places.lock().idle.is_empty());
        stalled.set(false);
        assert!((&mut served).now_or_never().is_none());
        assert_eq!(places.lock().idle.len(), 1);
    }
}
