//! Work that no request waits for: flush, compaction, purge of the log, scrub, and the making of
//! shards that graphs lack.
//!
//! Three threads, so that a long compaction never holds up the flush that writers depend on, and
//! neither of the two a scrub, which takes longest and is never urgent. The first two go over all
//! shards when woken, and once a second in any case.

use super::node::{Hosted, Node};
use hopbine_proto::ShardId;
use hopbine_shard_store::{Shard, StoreError};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

/// Longest pause of an idle thread.
const TICK: Duration = Duration::from_secs(1);
/// How long a stop waits for a compaction under way.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a merge that failed: doubles with each further one, up to 32 times.
const MERGE_PAUSE: Duration = Duration::from_secs(30);
const MERGE_DOUBLINGS_MAX: u32 = 5;
/// How long a stop waits for what is in memory to be sealed; the log has it, too.
const SEAL_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between tries to make shards that graphs lack: each takes space that the log may need.
const MAKE_PAUSE: Duration = Duration::from_secs(5);
/// How soon the drop of a graph looks again whether that work has ended: first, and at most. The
/// end of a group, which is what it mostly waits for, takes a millisecond.
const FORGET_LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Pause of the scrub after about every mebibyte.
const SCRUB_PAUSE: Duration = Duration::from_millis(20);

/// State shared by the threads, the replicas that wake them and the calls that wait.
pub(crate) struct Upkeep {
    signal: Mutex<Signal>,
    woken: Condvar,
    /// Grows with every finished piece of work.
    progress: watch::Sender<u64>,
    disk_full: AtomicBool,
    /// Monotonic milliseconds before which no missing shard is made; the largest while one is.
    make_due: AtomicU64,
    /// Whether a piece of work failed since a stop last looked.
    troubled: AtomicBool,
    failure: Mutex<Option<String>>,
    running: AtomicU64,
    /// Set first: what is frozen is still flushed, but no compaction or scrub begins.
    closing: AtomicBool,
    /// Set last: the threads end.
    stopping: AtomicBool,
}

#[derive(Default)]
struct Signal {
    flush: bool,
    compact: bool,
}

/// Which of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Flush,
    Compact,
    Scrub,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            signal: Mutex::default(),
            woken: Condvar::new(),
            progress: watch::Sender::new(0),
            disk_full: AtomicBool::new(false),
            make_due: AtomicU64::new(0),
            troubled: AtomicBool::new(false),
            failure: Mutex::default(),
            running: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }
}

impl Upkeep {
    /// Starts the threads. They hold the node weakly, so that it can go.
    pub fn run(node: &Arc<Node>) {
        let duties = [(Duty::Flush, "flush"), (Duty::Compact, "compact"), (Duty::Scrub, "scrub")];
        for (duty, name) in duties {
            let upkeep = node.upkeep.clone();
            let weak = Arc::downgrade(node);
            let runtime = tokio::runtime::Handle::current();
            upkeep.running.fetch_add(1, Ordering::SeqCst);
            node.parts.spawn.spawn(
                name,
                Box::new(move || {
                    let served = AssertUnwindSafe(|| upkeep.serve(duty, &weak, &runtime));
                    if std::panic::catch_unwind(served).is_err() {
                        error!(?duty, "background work panicked");
                        upkeep.fail(format!("the {name} thread panicked"));
                    }
                    upkeep.running.fetch_sub(1, Ordering::SeqCst);
                    upkeep.advance();
                }),
            );
        }
    }

    /// There is something to flush. Cheap.
    pub fn wake(&self) {
        let mut signal = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
        signal.flush = true;
        signal.compact = true;
        drop(signal);
        self.woken.notify_all();
    }

    /// Whether the last flush found no space.
    pub fn disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Why the process must stop, when it must.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the process must stop: nothing unsynced can be trusted any more.
    pub fn fail(&self, reason: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.advance();
    }

    /// Resolves once `fail` was called, with the reason.
    pub async fn failed(&self) -> String {
        let mut progress = self.progress.subscribe();
        loop {
            if let Some(reason) = self.failure() {
                return reason;
            }
            if progress.changed().await.is_err() {
                return "the node is gone".to_owned();
            }
        }
    }

    /// Resolves once nothing of a shard waits for a flush or a compaction, or nothing more is done
    /// for it: it is damaged or dropped, or its last merge failed and is tried again much later.
    pub async fn settled(&self, hosted: &Hosted) {
        let mut progress = self.progress.subscribe();
        while self.failure().is_none() && is_busy(hosted).await {
            self.wake();
            self.progressed(&mut progress, TICK).await;
        }
    }

    /// Flushes what is frozen and ends the threads. Returns whether all have ended.
    pub async fn stop(&self, node: &Node) -> bool {
        self.closing.store(true, Ordering::SeqCst);
        let mut progress = self.progress.subscribe();
        // A damaged shard is not flushed: what it was told is in the log.
        let waits = |hosted: &Arc<Hosted>| {
            hosted.damaged.get().is_none() && hosted.shard.frozen_memtables() > 0
        };
        let frozen = || node.all_hosted().iter().any(waits);
        self.troubled.store(false, Ordering::SeqCst);
        // What cannot be flushed now is in the log, for the next start.
        let sealing = async {
            while frozen() && node.failure().is_none() && !self.troubled.load(Ordering::SeqCst) {
                self.wake();
                self.progressed(&mut progress, TICK).await;
            }
        };
        if tokio::time::timeout(SEAL_PATIENCE, sealing).await.is_err() {
            warn!("not all is sealed: the next start reads the rest from the log");
        }
        self.stopping.store(true, Ordering::SeqCst);
        let ended = async {
            while self.running.load(Ordering::SeqCst) > 0 {
                self.wake();
                self.progressed(&mut progress, TICK).await;
            }
        };
        // A long compaction is left to the end of the process: the next start removes its file.
        tokio::time::timeout(STOP_PATIENCE, ended).await.is_ok()
    }

    /// Resolves once no thread works on `shard`, which is hosted no more, or after `patience`;
    /// returns whether none does.
    pub async fn forget(&self, shard: &Arc<Shard>, patience: Duration) -> bool {
        let mut progress = self.progress.subscribe();
        let idle = async {
            let mut look = FORGET_LOOK.0;
            // Each thread holds the shard only while it works on it.
            while Arc::strong_count(shard) > 1 {
                self.progressed(&mut progress, look).await;
                look = (look * 2).min(FORGET_LOOK.1);
            }
        };
        tokio::time::timeout(patience, idle).await.is_ok()
    }

    /// Waits for the next finished piece of work, at most for `patience`.
    async fn progressed(&self, progress: &mut watch::Receiver<u64>, patience: Duration) {
        // The sender is part of `self`, so the channel cannot be closed.
        let _ = tokio::time::timeout(patience, progress.changed()).await;
    }

    fn advance(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    fn serve(&self, duty: Duty, weak: &Weak<Node>, runtime: &tokio::runtime::Handle) {
        let mut scrubbed: Option<ShardId> = None;
        while !self.stopping.load(Ordering::SeqCst) {
            self.wait(duty);
            let Some(node) = weak.upgrade() else {
                return;
            };
            if self.failure().is_some() {
                continue;
            }
            match duty {
                Duty::Flush => self.flush_all(&node, runtime),
                Duty::Compact => self.compact_all(&node),
                Duty::Scrub => {
                    let Some(hosted) = self.next_to_scrub(&node, scrubbed) else { continue };
                    // A node that is let go of must not wait for the end of a pass.
                    drop(node);
                    scrubbed = Some(hosted.shard.config().shard);
                    self.scrub(&hosted, weak);
                }
            }
        }
    }

    /// Waits for a wake-up, at most for a while.
    fn wait(&self, duty: Duty) {
        let signal = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |signal: &mut Signal| match duty {
            Duty::Flush => !std::mem::take(&mut signal.flush),
            Duty::Compact => !std::mem::take(&mut signal.compact),
            Duty::Scrub => !self.stopping.load(Ordering::SeqCst),
        };
        drop(self.woken.wait_timeout_while(signal, TICK, waits));
    }

    fn flush_all(&self, node: &Arc<Node>, runtime: &tokio::runtime::Handle) {
        let mut full = false;
        let pinning = node.groups.pinning();
        for hosted in node.hosted_ids().into_iter().filter_map(|id| node.find(id)) {
            if pinning.contains(&hosted.group.id()) {
                hosted.replica.freeze();
            }
            let mut flushed = false;
            while self.step(&hosted, &mut full, |shard| shard.flush_oldest()) {
                flushed = true;
                self.advance();
            }
            // A purge can be lost to another under way, so a pinned log is asked again.
            if flushed || pinning.contains(&hosted.group.id()) {
                self.purge(&hosted.group, runtime);
            }
        }
        let pinned = pinning.contains(&node.meta_group.id());
        if node.meta.wants_saving() || pinned {
            match node.meta.save() {
                Ok(true) => self.purge(&node.meta_group, runtime),
                Ok(false) if pinned => self.purge(&node.meta_group, runtime),
                Ok(false) => {}
                Err(failure) => error!(error = %failure, "the catalogue could not be saved"),
            }
        }
        let was_full = self.disk_full.swap(full, Ordering::Relaxed);
        if full && !was_full {
            error!("no space for new data: writes are refused until there is some");
        } else if was_full && !full {
            info!("there is space again");
            self.make_due.store(0, Ordering::Relaxed);
        }
        if !full {
            self.make_missing(node, runtime);
        }
        node.views.drop_expired(node.parts.clock.monotonic());
    }

    /// Has the shards made that graphs lack, when it is time to try; nothing waits for them.
    fn make_missing(&self, node: &Arc<Node>, runtime: &tokio::runtime::Handle) {
        let due = now_ms(node) >= self.make_due.load(Ordering::Relaxed);
        let closing = self.closing.load(Ordering::SeqCst);
        if !due || closing || node.groups.space_pressure() || !node.lacks_shards() {
            return;
        }
        self.make_due.store(u64::MAX, Ordering::Relaxed);
        let node = node.clone();
        runtime.spawn(async move {
            node.host_missing().await;
            let due = now_ms(&node) + MAKE_PAUSE.as_millis() as u64;
            node.upkeep.make_due.store(due, Ordering::Relaxed);
        });
    }

    fn compact_all(&self, node: &Node) {
        for hosted in node.hosted_ids().into_iter().filter_map(|id| node.find(id)) {
            // A disk too full for a merge stays as it is; trying again at once would only take the
            // space that the log needs, time after time.
            while !self.closing.load(Ordering::SeqCst)
                && now_ms(node) >= hosted.merge_due.load(Ordering::Relaxed)
                && self.step(&hosted, &mut false, |shard| {
                    let merged = shard.compact_paced(&mut |bytes| self.pace(node, &hosted, bytes));
                    let failed = match &merged {
                        Ok(_) | Err(StoreError::Stopped) => 0,
                        Err(_) => hosted.merges_failed.load(Ordering::Relaxed) + 1,
                    };
                    hosted.merges_failed.store(failed, Ordering::Relaxed);
                    if let Some(doublings) = failed.checked_sub(1) {
                        let pause = MERGE_PAUSE * 2u32.pow(doublings.min(MERGE_DOUBLINGS_MAX));
                        let due = now_ms(node) + pause.as_millis() as u64;
                        hosted.merge_due.store(due, Ordering::Relaxed);
                    }
                    merged
                })
            {
                self.advance();
            }
        }
    }

    /// Waits as long as writing so many bytes may take; not while the process stops, nor for a
    /// shard that is dropped.
    fn pace(&self, node: &Node, hosted: &Hosted, bytes: u64) {
        let rate = node.config.merge_bytes_per_s_max;
        if rate == 0 {
            return;
        }
        let clock = &node.parts.clock;
        let until = clock.monotonic() + Duration::from_secs_f64(bytes as f64 / rate as f64);
        while !self.closing.load(Ordering::SeqCst) && !hosted.dropped.load(Ordering::SeqCst) {
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return;
            }
            let signal = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.woken.wait_timeout(signal, left.min(TICK));
        }
    }

    /// One piece of work on one shard; returns whether there may be more.
    fn step(
        &self,
        hosted: &Hosted,
        full: &mut bool,
        work: impl FnOnce(&Shard) -> Result<bool, StoreError>,
    ) -> bool {
        let shard = hosted.shard.config().shard;
        if hosted.damaged.get().is_some() || hosted.dropped.load(Ordering::SeqCst) {
            return false;
        }
        let result = work(&hosted.shard);
        // What only was told to end says nothing about the disk.
        if !matches!(result, Ok(_) | Err(StoreError::Stopped)) {
            self.troubled.store(true, Ordering::SeqCst);
            self.advance();
        }
        match result {
            Ok(done) => done,
            Err(failure) if hosted.dropped.load(Ordering::SeqCst) => {
                debug!(%shard, error = %failure, "work on a dropped shard ended");
                false
            }
            Err(StoreError::Stopped) => false,
            Err(StoreError::DiskFull(_)) => {
                *full = true;
                false
            }
            Err(failure @ StoreError::SyncFailed(_)) => {
                error!(%shard, error = %failure, "the disk cannot be trusted any more");
                self.fail(failure.to_string());
                false
            }
            Err(failure @ StoreError::Io(_)) => {
                warn!(%shard, error = %failure, "background work failed; it is tried again");
                false
            }
            Err(failure) => {
                error!(%shard, error = %failure, "a damaged shard stops serving");
                let reason = format!("shard {shard}: {failure}");
                hosted.damaged.get_or_init(|| reason);
                false
            }
        }
    }

    fn purge(&self, group: &Arc<hopbine_raft::Group>, runtime: &tokio::runtime::Handle) {
        let group = group.clone();
        runtime.spawn(async move {
            if let Err(failure) = group.purge_to_checkpoint().await {
                warn!(group = %group.id(), error = %failure, "the log could not be purged");
            }
        });
    }

    /// The shard after `last`, in the order of their numbers, when it is time to scrub one.
    fn next_to_scrub(&self, node: &Node, last: Option<ShardId>) -> Option<Arc<Hosted>> {
        let pause = node.config.scrub_pause_ms;
        let now = now_ms(node);
        let due = node.scrub_due.load(Ordering::Relaxed);
        if pause == 0 || now < due || self.closing.load(Ordering::SeqCst) {
            return None;
        }
        node.scrub_due.store(now.saturating_add(pause), Ordering::Relaxed);
        if due == 0 {
            // The first pass waits its turn too: a start has better things to read.
            return None;
        }
        let all = node.hosted_ids();
        let next = all.iter().find(|id| last.is_none_or(|last| **id > last));
        node.find(*next.or_else(|| all.first())?)
    }

    /// Reads a whole shard, whatever is flushed or merged meanwhile: a pass begins with the newest
    /// segments, so one that ended with every flush would never come to the old ones.
    fn scrub(&self, hosted: &Hosted, node: &Weak<Node>) {
        let goes_on = || {
            let closing = self.closing.load(Ordering::SeqCst);
            let dropped = hosted.dropped.load(Ordering::SeqCst);
            !closing && !dropped && node.strong_count() > 0
        };
        self.step(hosted, &mut false, |shard| {
            let scrubbed = shard.scrub(&mut |_| {
                let signal = self.signal.lock().unwrap_or_else(PoisonError::into_inner);
                drop(self.woken.wait_timeout_while(signal, SCRUB_PAUSE, |_| goes_on()));
                goes_on()
            });
            scrubbed.map(|()| false)
        });
    }
}

/// Monotonic milliseconds on the clock of `node`.
fn now_ms(node: &Node) -> u64 {
    node.parts.clock.monotonic().as_millis() as u64
}

/// Whether something of a shard waits for a flush or a merge that will come. Asked off the async
/// threads: a flush holds what tells for as long as its writes take.
async fn is_busy(hosted: &Hosted) -> bool {
    if hosted.dropped.load(Ordering::SeqCst) || hosted.damaged.get().is_some() {
        return false;
    }
    let merges = hosted.merges_failed.load(Ordering::Relaxed) == 0;
    let shard = hosted.shard.clone();
    let waits = move || shard.frozen_memtables() > 0 || (merges && shard.compaction_due());
    tokio::task::spawn_blocking(waits).await.unwrap_or(false)
}
