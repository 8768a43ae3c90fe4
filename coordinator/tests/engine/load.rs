//! More questions at once than the machine can answer in time, in simulated time: as many are
//! answered as it can, the others are told at once.

use super::fake::World;
use super::worlds::*;
use hopbine_coordinator::Engine;
use hopbine_coordinator::client::{Reply, Shards};
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::CallOptions;
use hopbine_proto::call::*;
use hopbine_proto::filter::Filter;
use hopbine_proto::status::Code;
use hopbine_proto::{Clock, EntityId, KeyRange, RequestId};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// What each hop takes of a processor's time.
const HOP: Duration = Duration::from_millis(25);
/// Processors pass from one hop to the next after so long.
const SLICE: Duration = Duration::from_millis(1);

/// A world whose hops share so many processors as this machine has, in slices.
struct Busy {
    world: Arc<World>,
    processors: Semaphore,
}

impl Shards for Busy {
    fn hop(&self, at: ReadContext, ask: HopRequest) -> Reply<'_, HopReply> {
        Box::pin(async move {
            for _ in 0..HOP.as_millis() / SLICE.as_millis() {
                let _one = self.processors.acquire().await.expect("never closed");
                sleep(SLICE).await;
            }
            self.world.hop(at, ask).await
        })
    }

    fn seeds(&self, at: ReadContext, ask: Arc<SeedRequest>) -> Reply<'_, SeedReply> {
        self.world.seeds(at, ask)
    }

    fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Reply<'_, FetchReply> {
        self.world.fetch(at, ask)
    }

    fn scan(&self, at: ReadContext, ask: ScanRequest) -> Reply<'_, ScanReply> {
        self.world.scan(at, ask)
    }

    fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Reply<'_, CountReply> {
        self.world.count(at, range, filter)
    }

    fn entity(&self, at: ReadContext, entity: EntityId) -> Reply<'_, EntityReply> {
        self.world.entity(at, entity)
    }

    fn stats(&self, at: ReadContext) -> Reply<'_, ShardStats> {
        self.world.stats(at)
    }

    fn write(&self, at: WriteContext, batch: WriteBatch) -> Reply<'_, WriteReply> {
        self.world.write(at, batch)
    }

    fn release(&self, request: RequestId) {
        self.world.release(request);
    }
}

/// The runtime's clock, which jumps to the next thing to do.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        0
    }
}

/// Answers, refusals as overloaded, and questions whose deadline passed, of `clients` that ask at
/// once.
async fn burst(engine: &Engine, clients: usize) -> (usize, usize, usize) {
    let options = CallOptions { timeout: Duration::from_secs(5), ..CallOptions::default() };
    let question = two_hops();
    let asks = (0..clients).map(|_| engine.graph_rag("g", &question, &options));
    let (mut answers, mut refused, mut late) = (0, 0, 0);
    for outcome in futures::future::join_all(asks).await {
        match outcome {
            Ok(_) => answers += 1,
            Err(problem) if problem.code == Code::Overloaded => {
                assert!(problem.retry_after_ms.is_some());
                refused += 1;
            }
            Err(problem) => {
                assert_eq!(problem.code, Code::DeadlineExceeded);
                late += 1;
            }
        }
    }
    (answers, refused, late)
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_answered_in_time_is_refused_at_once() {
    let (world, _) = numbers().await;
    let processors = available_parallelism().map_or(1, NonZero::get);
    let busy = Arc::new(Busy { world: world.clone(), processors: Semaphore::new(processors) });
    let clock = Arc::new(RuntimeClock(Instant::now()));
    let engine = Engine::new(busy, world, clock, CoordinatorConfig::default());
    // Two hops take 50 ms of one processor: in 5 s each can answer 100.
    let can = processors * 100;
    let (answers, _, late) = burst(&engine, 2 * can).await;
    assert!(answers >= can * 9 / 10, "{answers} of {can} answers, {late} late");
    // Now it is known what they take.
    let begun = Instant::now();
    let (answers, refused, late) = burst(&engine, 2 * can).await;
    assert_eq!((answers + refused, late), (2 * can, 0));
    assert!(answers >= can * 2 / 5, "{answers} of {can} answers");
    assert!(begun.elapsed() < Duration::from_secs(5));
}
