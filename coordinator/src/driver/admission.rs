//! Admission of retrievals by what they may cost: light ones begin at once, the others wait in a
//! queue for a turn, run to their end, and leave processors and memory to the rest meanwhile.
//! Began they all at once, none would end in time, or what one has read would find no room.
//!
//! What one takes is told by the last ones like it; until there were any, by the ways that it may
//! keep. Who would wait longer than its deadline bears is refused at once instead, so that those
//! who wait are answered (load shedding by expected wait, as in M. Welsh and D. Culler, "Adaptive
//! Overload Control for Busy Internet Servers", 2003).

use crate::memory::Memory;
use crate::retrieval::Plan;
use hopbine_proto::GraphId;
use hopbine_proto::limits::REPLY_BYTES_MAX;
use hopbine_proto::status::{Code, Problem};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Retrievals that take no longer are light.
const LIGHT_MAX: Duration = Duration::from_millis(2);
/// The least time that a kind took rises by one in so many with each slower one.
const LEAST_RISE: u64 = 64;
/// What a way, a start or a shown row takes, as long as nothing is known.
const NANOS_A_WAY: u64 = 1_000;
/// Retrievals of more weight than this are heavy, however short the last ones were: they may hold
/// 32 MiB of reply.
const HEAVY_MIN: u64 = 64 * 1024;
/// So many bytes of a shown row weigh as much as a way.
const BYTES_A_WAY: usize = 512;
/// Retrievals that run at once in a lane, for each processor: while one waits another works.
const TURNS_PER_PROCESSOR: usize = 2;
/// Heavy retrievals that wait at once. They leave most places of a server to others.
const HEAVY_WAITING_MAX: usize = 64;
/// Others that wait at once; the wait that they expect bounds them before.
const WAITING_MAX: usize = 4_096;
/// The bounds on when a retrieval that found the queue too long should come back.
const RETRY_AFTER_MS: (u64, u64) = (200, 10_000);
/// How often one that has its turn looks for room.
const LOOK: Duration = Duration::from_millis(5);
/// How long it looks at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// Graphs whose rows are known, and kinds of retrievals: beyond it all are learned anew.
const KNOWN_MAX: usize = 4_096;

/// Who may begin now.
#[derive(Debug)]
pub(crate) struct Admission {
    middle: Lane,
    heavy: Lane,
    /// What the replies of those that run may hold, as rows and as text.
    coming: AtomicUsize,
    known: Mutex<Known>,
}

/// What the last retrievals took.
#[derive(Debug, Default)]
struct Known {
    /// About what replies from each graph held lately, bytes for each row that they might show.
    row_bytes: HashMap<GraphId, usize>,
    /// How long each kind took lately.
    took: HashMap<Kind, Took>,
}

/// Nanoseconds of retrievals of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Took {
    /// About as many on a machine as busy as it is.
    mean: u64,
    /// Hardly any took less: what they take where nothing is in their way.
    least: u64,
}

/// Retrievals that take about as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    graph: GraphId,
    hops: usize,
    filtered: bool,
    /// Digits of its weight, to the base 2.
    size: u32,
}

/// One queue.
#[derive(Debug)]
struct Lane {
    turns: Semaphore,
    turns_max: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
    /// What those that wait or run are expected to take together.
    nanos: AtomicU64,
}

/// A retrieval that has begun; what it keeps from others is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    admission: &'a Admission,
    kind: Kind,
    coming: usize,
    _place: Option<(Expected<'a>, SemaphorePermit<'a>)>,
}

impl Begun<'_> {
    /// Learns how long it took; of one that broke off, that it takes at least as long.
    pub fn ended(&self, took: Duration, whole: bool) {
        let new = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut known = self.admission.known();
        if known.took.len() >= KNOWN_MAX && !known.took.contains_key(&self.kind) {
            known.took.clear();
        }
        let Took { mean, least } =
            known.took.entry(self.kind).or_insert(Took { mean: new, least: new });
        if !whole && new <= *mean {
            return;
        }
        // Upwards faster: who is let in too much is late, who is refused too much comes back.
        let share = if new > *mean { 4 } else { 8 };
        *mean = (*mean / share * (share - 1)).saturating_add(new / share);
        // Slowly upwards: light ones are slow beside heavy ones, and stay light.
        *least = new.min(least.saturating_add(*least / LEAST_RISE));
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.admission.coming.fetch_sub(self.coming, Ordering::SeqCst);
    }
}

impl Admission {
    /// Turns for this machine.
    pub fn of_machine() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self::new(processors * TURNS_PER_PROCESSOR, HEAVY_WAITING_MAX)
    }

    fn new(turns: usize, heavy_waiting_max: usize) -> Self {
        Self {
            middle: Lane::new(turns, WAITING_MAX),
            heavy: Lane::new(turns, heavy_waiting_max),
            coming: AtomicUsize::new(0),
            known: Mutex::default(),
        }
    }

    /// Waits until `plan` may run on `graph`; first come, first served. `overloaded` when too many
    /// wait already, or too long for a deadline that is `left` away. `replies` is where its reply
    /// will be held.
    pub async fn begin(
        &self,
        graph: GraphId,
        plan: &Plan,
        left: Duration,
        replies: &Memory,
    ) -> Result<Begun<'_>, Problem> {
        let shown = plan.rows_fetched() as usize;
        let most = REPLY_BYTES_MAX.min(replies.bytes_max() / 4);
        let bytes = shown.saturating_mul(self.row_bytes(graph)).min(most);
        let asked = plan.ways() + plan.starts_given();
        let weight = asked + shown.max(bytes / BYTES_A_WAY) as u64;
        let kind = Kind {
            graph,
            hops: plan.hops.len(),
            filtered: plan.filter.is_some(),
            size: u64::BITS - (asked + shown as u64).leading_zeros(),
        };
        let Took { mean, least } = self.took(kind, weight);
        let heavy = weight > HEAVY_MIN;
        if !heavy && u128::from(least) <= LIGHT_MAX.as_nanos() {
            return Ok(Begun { admission: self, kind, coming: 0, _place: None });
        }
        let lane = if heavy { &self.heavy } else { &self.middle };
        let place = lane.turn(mean, left).await?;
        // Who holds the room may wait for a turn, too: the parts of a batch do. So it begins at
        // last, and is refused if it does not fit.
        let coming = if heavy { 2 * bytes } else { 0 };
        let room = tokio::time::timeout(PATIENCE, self.room(coming, replies)).await;
        let coming = if room.is_ok() { coming } else { 0 };
        Ok(Begun { admission: self, kind, coming, _place: Some(place) })
    }

    /// Waits until a reply that may hold `coming` bytes fits, and keeps room for it. What is held
    /// may be rows that are yet to be written down, and counts twice.
    async fn room(&self, coming: usize, replies: &Memory) {
        let most = replies.bytes_max();
        loop {
            let held = replies.bytes().saturating_mul(2);
            let fits = |before: usize| {
                let all = held.saturating_add(before).saturating_add(coming);
                (all <= most || coming == 0).then_some(before + coming)
            };
            if self.coming.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok() {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row_bytes(&self, graph: GraphId) -> usize {
        self.known().row_bytes.get(&graph).copied().unwrap_or(0)
    }

    fn took(&self, kind: Kind, weight: u64) -> Took {
        let guess = weight.saturating_mul(NANOS_A_WAY);
        let known = self.known().took.get(&kind).copied();
        known.unwrap_or(Took { mean: guess, least: guess })
    }

    /// Learns that a reply from `graph` that might show `rows` held `bytes`.
    pub fn replied(&self, graph: GraphId, rows: usize, bytes: usize) {
        let Some(new) = bytes.checked_div(rows) else { return };
        let mut known = self.known();
        if known.row_bytes.len() >= KNOWN_MAX && !known.row_bytes.contains_key(&graph) {
            known.row_bytes.clear();
        }
        let row = known.row_bytes.entry(graph).or_insert(new);
        *row = (*row * 7).saturating_add(new) / 8;
    }
}

impl Lane {
    fn new(turns: usize, waiting_max: usize) -> Self {
        Self {
            turns: Semaphore::new(turns),
            turns_max: turns,
            waiting: AtomicUsize::new(0),
            waiting_max,
            nanos: AtomicU64::new(0),
        }
    }

    /// Waits for a turn of one that is expected to take `nanos` and has `left` for all.
    async fn turn(
        &self,
        nanos: u64,
        left: Duration,
    ) -> Result<(Expected<'_>, SemaphorePermit<'_>), Problem> {
        if let Ok(turn) = self.turns.try_acquire() {
            return Ok((Expected::new(self, nanos), turn));
        }
        let ahead = self.nanos.load(Ordering::SeqCst) / self.turns_max as u64;
        let wait = Duration::from_nanos(ahead);
        let place = Waits::new(&self.waiting);
        // What is left after the wait must do for its own work, and the estimate may be short.
        if place.before >= self.waiting_max || wait > left / 2 {
            let (least, most) = RETRY_AFTER_MS;
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let detail = format!(
                "{} retrievals like this one wait already, for about {wait_ms} ms",
                place.before
            );
            return Err(Problem::new(Code::Overloaded, detail)
                .retry_after_ms(wait_ms.clamp(least, most))
                .hint("come back a little later, or ask for less: top_k, beam, ann_k, hops"));
        }
        let expected = Expected::new(self, nanos);
        let turn = self.turns.acquire().await;
        Ok((expected, turn.expect("nobody closes it")))
    }
}

/// A place in the queue, given back when it is dropped.
struct Waits<'a> {
    waiting: &'a AtomicUsize,
    before: usize,
}

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        Self { waiting, before: waiting.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What one that waits or runs is expected to take, until it is dropped.
#[derive(Debug)]
struct Expected<'a> {
    lane: &'a Lane,
    nanos: u64,
}

impl<'a> Expected<'a> {
    fn new(lane: &'a Lane, nanos: u64) -> Self {
        // A day is more than any deadline, and so many never add up beyond the number's end.
        let nanos = nanos.min(86_400_000_000_000);
        lane.nanos.fetch_add(nanos, Ordering::SeqCst);
        Self { lane, nanos }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.lane.nanos.fetch_sub(self.nanos, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::WithParts;
    use crate::retrieval::{Hop, Output, Starts};
    use futures::{FutureExt, poll};
    use hopbine_proto::EntityId;
    use hopbine_proto::call::Relations;
    use hopbine_proto::limits::{BEAM_DEFAULT, PAGE_SIZE_DEFAULT};
    use hopbine_proto::score::ScoreMode;
    use std::pin::pin;

    const GRAPH: GraphId = GraphId(1);
    const LONG: Duration = Duration::from_secs(600);

    fn plan(hops: usize, beam: u32, output: Output) -> Plan {
        let hop = Hop { relations: Relations::Any, weight: 1.0 };
        Plan {
            query: None,
            starts: Starts::Entities(vec![EntityId(1)]),
            hops: vec![hop; hops],
            filter: None,
            limit_per_entity: 1,
            beam,
            limit_rows: 1,
            return_to_start: false,
            output,
            with: WithParts::PAYLOAD,
            allow_partial: false,
        }
    }

    fn top(top_k: u32) -> Plan {
        plan(1, 1, Output::Top { top_k, score: ScoreMode::Path })
    }

    /// Heavy whatever its rows are.
    fn heavy() -> Plan {
        top(100_000)
    }

    #[tokio::test]
    async fn heavy_retrievals_take_turns_in_order_and_light_ones_begin_at_once() {
        let (admission, replies, heavy) = (Admission::new(1, 2), Memory::new(1), heavy());
        let begin = || admission.begin(GRAPH, &heavy, LONG, &replies);
        let first = begin().await.expect("begun");
        let (mut second, mut third) = (pin!(begin()), pin!(begin()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert_eq!(begin().await.expect_err("the queue is full").code, Code::Overloaded);
        let page = Output::Page { limit: PAGE_SIZE_DEFAULT, after: None };
        for light in [top(1_000), plan(1, BEAM_DEFAULT, page)] {
            let light = admission.begin(GRAPH, &light, LONG, &replies).now_or_never();
            assert!(light.expect("at once").is_ok());
        }
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second one comes first");
        drop(second.await.expect("its turn"));
        assert!(third.await.is_ok(), "its turn");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_queue() {
        let (admission, replies, heavy) = (Admission::new(1, 1), Memory::new(1), heavy());
        let begin = || admission.begin(GRAPH, &heavy, LONG, &replies);
        let first = begin().await.expect("begun");
        for _ in 0..3 {
            assert!(begin().now_or_never().is_none(), "waits, and is dropped");
        }
        drop(first);
        assert!(begin().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_waits_for_room_for_rows_like_the_last_ones() {
        const MIB: usize = 1 << 20;
        let (admission, replies) = (Admission::new(3, 3), Memory::new(1_000 * MIB));
        let (one, begin) = (top(1_000), |plan| admission.begin(GRAPH, plan, LONG, &replies));
        drop(begin(&one).now_or_never().expect("light: nothing is known of its rows"));
        // 100 MiB as rows and as much as text.
        admission.replied(GRAPH, 10, MIB);
        let first = begin(&one).now_or_never().expect("there is room");
        let mut held = replies.hold();
        held.settle(350 * MIB);
        let mut second = pin!(begin(&one));
        assert!(poll!(&mut second).is_pending(), "700 and 400 are more than 1,000");
        held.settle(300 * MIB);
        let second = second.await.expect("begun");
        let mut third = pin!(begin(&one));
        assert!(poll!(&mut third).is_pending());
        let since = tokio::time::Instant::now();
        assert!(third.await.is_ok(), "at last");
        assert!(since.elapsed() >= PATIENCE);
        drop((first, second));
        assert_eq!(admission.coming.load(Ordering::SeqCst), 0);
        for _ in 0..200 {
            admission.replied(GRAPH, 10, 0);
        }
        assert_eq!(admission.row_bytes(GRAPH), 0, "forgotten");
    }

    #[tokio::test]
    async fn what_a_retrieval_took_decides_whether_the_next_one_waits() {
        let (admission, replies) = (Admission::new(1, 1), Memory::new(1));
        let page = Output::Page { limit: PAGE_SIZE_DEFAULT, after: None };
        let (two, one) = (plan(2, BEAM_DEFAULT, page), plan(1, 1, page));
        let begin = |plan| admission.begin(GRAPH, plan, LONG, &replies).now_or_never();
        let begun = begin(&two).expect("the first").expect("begun");
        assert!(begin(&two).is_none(), "by its ways it is not light");
        begun.ended(Duration::from_micros(300), true);
        assert!(begin(&two).is_some(), "it is");
        drop(begun);
        let begun = begin(&one).expect("light").expect("begun");
        begun.ended(Duration::from_millis(1), true);
        for _ in 0..20 {
            begun.ended(Duration::from_millis(700), true);
        }
        let beside = [begin(&one).expect("light"), begin(&one).expect("still")];
        assert!(beside.iter().all(Result::is_ok), "others have slowed it down");
        for _ in 0..80 {
            begun.ended(Duration::from_millis(40), true);
        }
        drop((begun, beside));
        let begun = begin(&one).expect("the turn is free");
        assert!(begin(&one).is_none(), "it is not");
        drop(begun);
        let begun = begin(&one).expect("the turn is free").expect("begun");
        for _ in 0..100 {
            begun.ended(Duration::from_micros(1), false);
        }
        assert!(begin(&one).is_none(), "what broke off tells nothing of that");
    }

    #[tokio::test]
    async fn who_would_not_begin_in_time_is_refused_and_told_when_to_come_back() {
        let (admission, replies) = (Admission::new(2, 64), Memory::new(1));
        let page = Output::Page { limit: PAGE_SIZE_DEFAULT, after: None };
        let four = plan(4, BEAM_DEFAULT, page);
        let begin = |left| admission.begin(GRAPH, &four, left, &replies);
        let first = begin(LONG).await.expect("begun");
        first.ended(Duration::from_millis(100), true);
        drop(first);
        let running = [begin(LONG).await.expect("begun"), begin(LONG).await.expect("begun")];
        let left = Duration::from_secs(1);
        let mut waiting = Vec::new();
        let problem = loop {
            let mut next = Box::pin(begin(left));
            match poll!(&mut next) {
                std::task::Poll::Pending => waiting.push(next),
                std::task::Poll::Ready(outcome) => break outcome.expect_err("too many"),
            }
        };
        // Half of it is five times 100 ms, two at a time.
        assert_eq!((waiting.len(), problem.code), (9, Code::Overloaded));
        assert_eq!(problem.retry_after_ms, Some(550));
        drop(waiting.split_off(4));
        assert!(begin(left).now_or_never().is_none(), "those who gave up are not waited for");
        drop(running);
        for next in waiting {
            drop(next.await.expect("its turn"));
        }
        assert_eq!(admission.middle.nanos.load(Ordering::SeqCst), 0);
    }
}
