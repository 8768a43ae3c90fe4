//! Admission of retrievals by what they may cost: light ones begin at once, heavy ones wait in one
//! queue for a turn, run to their end, and leave processors and memory to the others meanwhile.
//! Began they all at once, none would end in time, or what one has read would find no room.

use crate::memory::Memory;
use crate::retrieval::Plan;
use hopbine_proto::GraphId;
use hopbine_proto::limits::REPLY_BYTES_MAX;
use hopbine_proto::status::{Code, Problem};
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Retrievals of at most this weight are light: a few milliseconds each, or 32 MiB of reply. With
/// default bounds, up to four hops are.
const LIGHT_MAX: u64 = 64 * 1024;
/// So many bytes of a shown row weigh as much as a way.
const BYTES_A_WAY: usize = 512;
/// Heavy retrievals that run at once, for each processor: while one waits another works.
const TURNS_PER_PROCESSOR: usize = 2;
/// Heavy retrievals that wait at once. They leave most places of a server to light ones.
const WAITING_MAX: usize = 64;
/// When a retrieval that found the queue full should come back.
const RETRY_AFTER_MS: u64 = 1_000;
/// How often one that has its turn looks for room.
const LOOK: Duration = Duration::from_millis(5);
/// How long it looks at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// Graphs whose rows are known: beyond it all are learned anew.
const GRAPHS_MAX: usize = 4_096;

/// Who may begin now.
#[derive(Debug)]
pub(crate) struct Admission {
    turns: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
    /// What the replies of those that run may hold, as rows and as text.
    coming: AtomicUsize,
    /// About what replies from each graph held lately, bytes for each row that they might show.
    row_bytes: Mutex<HashMap<GraphId, usize>>,
}

/// A retrieval that has begun; what it keeps from others is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    admission: &'a Admission,
    coming: usize,
    _turn: Option<SemaphorePermit<'a>>,
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
        Self::new(processors * TURNS_PER_PROCESSOR, WAITING_MAX)
    }

    fn new(turns: usize, waiting_max: usize) -> Self {
        Self {
            turns: Semaphore::new(turns),
            waiting: AtomicUsize::new(0),
            waiting_max,
            coming: AtomicUsize::new(0),
            row_bytes: Mutex::default(),
        }
    }

    /// Waits until `plan` may run on `graph`; first come, first served. `overloaded` when too many
    /// wait already. `replies` is where its reply will be held.
    pub async fn begin(
        &self,
        graph: GraphId,
        plan: &Plan,
        replies: &Memory,
    ) -> Result<Begun<'_>, Problem> {
        let shown = plan.rows_fetched() as usize;
        let most = REPLY_BYTES_MAX.min(replies.bytes_max() / 4);
        let bytes = shown.saturating_mul(self.row_bytes(graph)).min(most);
        let weight = plan.ways() + plan.starts_given() + shown.max(bytes / BYTES_A_WAY) as u64;
        if weight <= LIGHT_MAX {
            return Ok(Begun { admission: self, coming: 0, _turn: None });
        }
        let turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                let _waits = self.wait()?;
                let turn = self.turns.acquire().await;
                turn.expect("nobody closes it")
            }
        };
        // Who holds the room may wait for a turn, too: the parts of a batch do. So it begins at
        // last, and is refused if it does not fit.
        let coming = 2 * bytes;
        let room = tokio::time::timeout(PATIENCE, self.room(coming, replies)).await;
        let coming = if room.is_ok() { coming } else { 0 };
        Ok(Begun { admission: self, coming, _turn: Some(turn) })
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

    fn wait(&self) -> Result<Waits<'_>, Problem> {
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = Waits(&self.waiting);
        if before < self.waiting_max {
            return Ok(waits);
        }
        let detail = format!("{} retrievals as large as this one wait already", self.waiting_max);
        Err(Problem::new(Code::Overloaded, detail)
            .retry_after_ms(RETRY_AFTER_MS)
            .hint("come back a little later, or ask for less: top_k, beam, ann_k"))
    }

    fn row_bytes(&self, graph: GraphId) -> usize {
        let known = self.row_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&graph).copied().unwrap_or(0)
    }

    /// Learns that a reply from `graph` that might show `rows` held `bytes`.
    pub fn ended(&self, graph: GraphId, rows: usize, bytes: usize) {
        let Some(new) = bytes.checked_div(rows) else { return };
        let mut known = self.row_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= GRAPHS_MAX && !known.contains_key(&graph) {
            known.clear();
        }
        let row = known.entry(graph).or_insert(new);
        *row = (*row * 7).saturating_add(new) / 8;
    }
}

/// A place in the queue, given back when it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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
        let begin = || admission.begin(GRAPH, &heavy, &replies);
        let first = begin().await.expect("begun");
        let (mut second, mut third) = (pin!(begin()), pin!(begin()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert_eq!(begin().await.expect_err("the queue is full").code, Code::Overloaded);
        let page = Output::Page { limit: PAGE_SIZE_DEFAULT, after: None };
        for light in [top(10_000), plan(4, BEAM_DEFAULT, page)] {
            let light = admission.begin(GRAPH, &light, &replies).now_or_never();
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
        let begin = || admission.begin(GRAPH, &heavy, &replies);
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
        let (one, begin) = (top(1_000), |plan| admission.begin(GRAPH, plan, &replies));
        drop(begin(&one).now_or_never().expect("light: nothing is known of its rows"));
        // 100 MiB as rows and as much as text.
        admission.ended(GRAPH, 10, MIB);
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
            admission.ended(GRAPH, 10, 0);
        }
        assert_eq!(admission.row_bytes(GRAPH), 0, "forgotten");
    }
}
