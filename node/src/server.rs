//! Answers the calls of coordinators: which shard, which view, on which thread.
//!
//! Small reads run on the calling thread; longer ones on a worker, so that no async thread is
//! held for more than about half a millisecond. A dropped call stops its work at the next look, or
//! behind the read under way where its own thread became the worker.

use crate::driver::{Hosted, Node, problem_of};
use crate::error::{MAKE_SPACE, NodeError, not_hosted};
use crate::replica::{BatchReply, encode_ops};
use hopbine_proto::call::{
    CountReply, EntityReply, FetchReply, FetchRequest, Freshness, HopReply, HopRequest,
    ReadContext, ScanReply, ScanRequest, SeedReply, SeedRequest, ShardStats, Wait, Work,
    WriteBatch, WriteContext, WriteReply,
};
use hopbine_proto::driver::apart;
use hopbine_proto::filter::Filter;
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::{Clock, EntityId, GraphId, KeyRange, LogIndex, RequestId};
use hopbine_raft::{Command, RaftError};
use hopbine_shard_store::{Pressure, StoreError, View};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::{Handle, RuntimeFlavor};
use tracing::error;

/// Rows that a hop or fetch is assumed to read per entity or key before it is looked at.
const ROWS_PER_ENTITY: u64 = 16;
/// A read on an async thread may look whether to stop so often: some 4,000 rows.
const INLINE_LOOKS_MAX: u32 = 4;

impl Node {
    /// The facts nearest to a vector.
    pub async fn seeds(
        &self,
        at: ReadContext,
        ask: Arc<SeedRequest>,
    ) -> Result<SeedReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows = hosted.shard.rows();
        let clock = self.parts.clock.clone();
        let work = move |stop: &dyn Fn() -> bool| {
            timed(&*clock, || view.seeds(&ask, stop), |reply: &mut SeedReply| &mut reply.work)
        };
        self.read(&at, hosted, rows, work).await
    }

    /// One hop from the frontier entities that a shard owns.
    pub async fn hop(&self, at: ReadContext, ask: HopRequest) -> Result<HopReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows = ask.frontier.len() as u64 * ROWS_PER_ENTITY;
        let clock = self.parts.clock.clone();
        let work = move |stop: &dyn Fn() -> bool| {
            timed(&*clock, || view.hop(&ask, stop), |reply: &mut HopReply| &mut reply.work)
        };
        self.read(&at, hosted, rows, work).await
    }

    /// Facts by key.
    pub async fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Result<FetchReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows = ask.keys.len() as u64 * ROWS_PER_ENTITY;
        let clock = self.parts.clock.clone();
        let work = move |stop: &dyn Fn() -> bool| {
            timed(&*clock, || view.fetch(&ask, stop), |reply: &mut FetchReply| &mut reply.work)
        };
        self.read(&at, hosted, rows, work).await
    }

    /// Facts of a range in key order.
    pub async fn scan(&self, at: ReadContext, ask: ScanRequest) -> Result<ScanReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows =
            if ask.filter.is_some() { hosted.shard.rows() } else { u64::from(ask.limit) * 4 };
        self.read(&at, hosted, rows, move |stop| view.scan(&ask, stop)).await
    }

    /// Number of live facts of a range that pass.
    pub async fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Result<CountReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows = hosted.shard.rows();
        self.read(&at, hosted, rows, move |stop| view.count(&range, filter.as_deref(), stop)).await
    }

    /// Name and degrees of one entity.
    pub async fn entity(
        &self,
        at: ReadContext,
        entity: EntityId,
    ) -> Result<EntityReply, CallError> {
        let (hosted, view) = self.view(&at).await?;
        let rows = hosted.shard.rows();
        self.read(&at, hosted, rows, move |stop| view.entity(entity, stop)).await
    }

    /// Sizes and state of a shard.
    pub async fn stats(&self, at: ReadContext) -> Result<ShardStats, CallError> {
        let hosted = self.hosted_at(at.graph, at.shard, at.epoch)?;
        let shard = hosted.shard.clone();
        // Never on an async thread: it may have to wait for the end of a flush.
        self.read(&at, hosted, u64::MAX, move |_| shard.stats()).await
    }

    /// Lets go of what `request` pinned.
    pub fn release(&self, request: RequestId) {
        self.views.release(request);
    }

    /// Applies a batch at one log index, or not at all. `Unknown` fates are `outcome_unknown`.
    pub async fn write(
        &self,
        at: WriteContext,
        batch: WriteBatch,
    ) -> Result<WriteReply, CallError> {
        let hosted = self.hosted_at(at.graph, at.shard, at.epoch)?;
        if let Some(problem) = self.write_refusal(&hosted) {
            return Err(problem.into());
        }
        let idempotency = batch.idempotency;
        let body = apart(batch.bytes(), move || encode_ops(&batch.ops)).await;
        let command = Command { idempotency, ..Command::new(at.epoch, body) };
        let proposed = hosted.group.propose(command, at.deadline).await;
        let reply = proposed.map_err(|error| match error {
            RaftError::NotLeader { .. } => CallError::NotLeader { shard: at.shard, leader: None },
            other => self.shard_problem(&hosted, other).into(),
        })?;
        let mut reply =
            match apart(reply.bytes.len(), move || BatchReply::decode(&reply.bytes)).await {
                Ok(BatchReply::Done(reply)) => reply,
                Ok(BatchReply::Stale { current }) => {
                    let (shard, sent) = (at.shard, at.epoch);
                    return Err(CallError::StaleEpoch { shard, sent, current });
                }
                Ok(BatchReply::Refused(problem)) => return Err(problem.into()),
                Err(_) => {
                    let detail = "the reply of the log cannot be read: it may have been applied";
                    return Err(Problem::new(Code::OutcomeUnknown, detail).into());
                }
            };
        reply.index = reply.index.max(LogIndex(0));
        if at.wait == Wait::Indexed {
            // The write itself is durable whatever happens while waiting.
            let settled = self.upkeep.settled(&hosted);
            let left = at.deadline.saturating_sub(self.parts.clock.monotonic());
            if tokio::time::timeout(left, settled).await.is_err() {
                let detail = "written and searchable by scan, but not sealed within the deadline";
                return Err(Problem::new(Code::DeadlineExceeded, detail).into());
            }
        }
        Ok(reply)
    }

    /// Seals everything written so far into segments with their graphs, and compacts what is due.
    pub async fn settle(&self) -> Result<(), NodeError> {
        for hosted in self.all_hosted() {
            self.upkeep.settled(&hosted).await;
            if hosted.replica.freeze() {
                self.upkeep.settled(&hosted).await;
            }
        }
        Ok(())
    }

    pub(crate) fn refuse_when_stopping(&self) -> Result<(), Problem> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Problem::new(Code::ShuttingDown, "the process is on its way out")
                .retry_after_ms(1_000));
        }
        Ok(())
    }

    fn hosted_at(
        &self,
        graph: GraphId,
        shard: hopbine_proto::ShardId,
        sent: hopbine_proto::Epoch,
    ) -> Result<Arc<Hosted>, CallError> {
        self.refuse_when_stopping()?;
        let hosted = self.find(shard).filter(|hosted| hosted.graph == graph);
        let hosted = hosted.ok_or_else(|| not_hosted(shard))?;
        if hosted.epoch != sent {
            return Err(CallError::StaleEpoch { shard, sent, current: hosted.epoch });
        }
        if let Some(reason) = hosted.damaged.get() {
            return Err(damaged(reason).into());
        }
        Ok(hosted)
    }

    /// The view that this request reads on this shard, pinned by its first read.
    async fn view(&self, at: &ReadContext) -> Result<(Arc<Hosted>, View), CallError> {
        let hosted = self.hosted_at(at.graph, at.shard, at.epoch)?;
        if let Some(view) = self.views.get(at.request, at.shard) {
            return Ok((hosted, view));
        }
        if at.freshness == Freshness::Strong {
            let barrier = hosted.group.read_barrier(at.deadline).await;
            barrier.map_err(|error| self.shard_problem(&hosted, error))?;
        }
        let applied = hosted.shard.applied().1;
        if applied < at.min_index {
            // One voter: what it acknowledged it has applied. A token from the future is not ours.
            let (shard, needed) = (at.shard, at.min_index);
            return Err(CallError::Behind { shard, applied, needed });
        }
        let now = self.parts.clock.monotonic();
        let view = hosted.shard.view();
        let view = self.views.pin(at.request, at.shard, view, at.deadline, now)?;
        Ok((hosted, view))
    }

    /// Runs `work` here when it reads few rows, else on a worker thread.
    async fn read<T: Send + 'static>(
        &self,
        at: &ReadContext,
        hosted: Arc<Hosted>,
        rows: u64,
        work: impl Fn(&dyn Fn() -> bool) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, CallError> {
        let clock = self.parts.clock.clone();
        let deadline = at.deadline;
        if rows <= self.config.inline_rows_max {
            // The number of rows was a guess: a read that turns out long begins again on a worker.
            let looks = Cell::new(0);
            let result = work(&|| {
                looks.set(looks.get() + 1);
                looks.get() > INLINE_LOOKS_MAX || clock.monotonic() >= deadline
            });
            if looks.get() <= INLINE_LOOKS_MAX {
                return result.map_err(|error| read_error(&hosted, error));
            }
        }
        let left = deadline.saturating_sub(clock.monotonic());
        let place = tokio::time::timeout(left, self.workers.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(read_error(&hosted, StoreError::Stopped));
        };
        if hosted.alone && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
            // Nothing of this request could run beside it, so its thread becomes the worker: that
            // spares two wake-ups, a tenth of a millisecond where cores fall asleep.
            let result = tokio::task::block_in_place(|| work(&|| clock.monotonic() >= deadline));
            drop(place);
            // Whoever drives this call gets a chance to see that its client has gone.
            tokio::task::yield_now().await;
            return result.map_err(|error| read_error(&hosted, error));
        }
        let dropped = DropFlag::default();
        let flag = dropped.0.clone();
        let result = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&|| flag.load(Ordering::Relaxed) || clock.monotonic() >= deadline)
        });
        match result.await {
            Ok(result) => result.map_err(|error| read_error(&hosted, error)),
            Err(_) => {
                error!(shard = %at.shard, "a read panicked");
                let detail = format!("a read of shard {} failed", at.shard);
                Err(Problem::new(Code::ShardUnavailable, detail).into())
            }
        }
    }

    fn write_refusal(&self, hosted: &Hosted) -> Option<Problem> {
        if let Some(reason) = self.failure() {
            // What is synced from now on proves nothing about what failed to be.
            let detail = format!("the process must stop and start again: {reason}");
            return Some(Problem::new(Code::ShardUnavailable, detail).retry_after_ms(1_000));
        }
        if self.upkeep.disk_full() {
            let problem = Problem::new(Code::DiskFull, "there is no space for new data");
            return Some(problem.hint(MAKE_SPACE).retry_after_ms(5_000));
        }
        let full = hosted.shard.write_pressure() == Pressure::Full;
        full.then(|| {
            let detail = "the memtable is full and the last one is still being flushed";
            Problem::new(Code::Overloaded, detail).retry_after_ms(200)
        })
    }

    /// What a call to a shard's group failed with. A shard that met damage while it applied what is
    /// in the log stops alone: log and other shards are well.
    fn shard_problem(&self, hosted: &Hosted, error: RaftError) -> Problem {
        if self.groups.failed().is_none() {
            match (&error, hosted.group.failure()) {
                (RaftError::Failed { .. }, _) => return stopped(hosted, error.to_string()),
                // The fate of this one is still not known.
                (RaftError::Unknown(_), Some(failure @ RaftError::Failed { .. })) => {
                    stopped(hosted, failure.to_string());
                }
                _ => {}
            }
        }
        self.group_problem(error)
    }

    fn group_problem(&self, error: RaftError) -> Problem {
        if matches!(error, RaftError::Failed { .. } | RaftError::Lost { .. } | RaftError::Log(_)) {
            error!(%error, "a raft group failed");
            self.upkeep.fail(error.to_string());
        }
        problem_of(error)
    }
}

/// Does `read` and notes in its reply how long it took.
fn timed<T>(
    clock: &dyn Clock,
    read: impl FnOnce() -> Result<T, StoreError>,
    work: impl FnOnce(&mut T) -> &mut Work,
) -> Result<T, StoreError> {
    let begun = clock.monotonic();
    let mut reply = read()?;
    let took = clock.monotonic().saturating_sub(begun);
    work(&mut reply).nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    Ok(reply)
}

/// Tells the worker of a call that was dropped.
#[derive(Default)]
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Marks a shard as damaged: it serves no more.
fn stopped(hosted: &Hosted, reason: String) -> Problem {
    let shard = hosted.shard.config().shard;
    let reason = hosted.damaged.get_or_init(|| {
        error!(%shard, %reason, "a damaged shard stops serving");
        reason
    });
    damaged(reason)
}

fn damaged(reason: &str) -> Problem {
    Problem::new(Code::DataDamaged, reason)
        .hint("verify the folder with hopbine check, then restore it")
}

fn read_error(hosted: &Hosted, failure: StoreError) -> CallError {
    let shard = hosted.shard.config().shard;
    let problem = match failure {
        StoreError::Stopped => {
            Problem::new(Code::DeadlineExceeded, format!("shard {shard} did not finish in time"))
        }
        StoreError::Damaged { .. }
        | StoreError::DamagedManifest { .. }
        | StoreError::UnknownVersion { .. } => stopped(hosted, format!("shard {shard}: {failure}")),
        StoreError::TooLarge { .. } => {
            Problem::new(Code::PayloadTooLarge, format!("shard {shard}: {failure}"))
                .hint("ask for fewer facts at once, or for fewer parts of each")
        }
        StoreError::DiskFull(_) | StoreError::Io(_) | StoreError::SyncFailed(_) => {
            error!(%shard, error = %failure, "a read failed");
            Problem::new(Code::ShardUnavailable, format!("shard {shard}: {failure}"))
                .retry_after_ms(1_000)
        }
    };
    problem.into()
}
