//! The log as a whole: open it, find a group in it, ask how it is, close it.

use super::group::{GroupLog, Job};
use super::writer::Writer;
use crate::error::LogError;
use crate::log::disk::{LogDir, Verify, failed};
use crate::log::recovery::groups_of;
use hopbine_proto::disk::{Disk, DiskFile};
use hopbine_proto::{GroupId, Spawn};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Sizes of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Bytes of recent entries kept in memory.
    pub cache_bytes_max: usize,
}

/// What a log did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches written: each one write and one sync.
    pub batches: u64,
    /// Records made durable, batch records left out.
    pub records: u64,
    /// Bytes written, heads and padding included.
    pub bytes: u64,
    /// Segment files, the one made ahead left out.
    pub segments: u64,
}

#[derive(Default)]
pub(super) struct Queue {
    pub jobs: Vec<Job>,
    pub closed: bool,
    /// Set once, by the log thread, when it ends.
    pub ended: bool,
}

#[derive(Default)]
pub(super) struct Counters {
    pub batches: AtomicU64,
    pub records: AtomicU64,
    pub bytes: AtomicU64,
}

type OnFailure = Box<dyn Fn(&LogError) + Send + Sync>;

/// What the log thread and the handles share. Locks are taken in the order: a group's index, then
/// `queue` or `files`; never two indexes at once.
pub(super) struct Inner {
    pub dir: LogDir,
    pub settings: LogSettings,
    pub queue: Mutex<Queue>,
    pub wake: Condvar,
    pub ended: Condvar,
    pub files: Mutex<BTreeMap<u64, Arc<dyn DiskFile>>>,
    pub groups: Mutex<BTreeMap<GroupId, Arc<GroupLog>>>,
    pub failure: Mutex<Option<LogError>>,
    pub no_space: AtomicBool,
    pub counters: Counters,
    pub on_failure: OnFailure,
}

/// Locks; a thread that panicked while holding the lock has not left anything half done that a
/// restart of the process would not see too.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One log, shared by all groups of a node.
pub struct SharedLog {
    inner: Arc<Inner>,
}

impl SharedLog {
    /// Opens the log in `dir`, which is created when missing, and starts its thread. Cuts a torn
    /// last write. `on_failure` is called once, from the log thread, when the disk fails: the
    /// process must then stop, since no later call succeeds.
    pub fn open(
        disk: Arc<dyn Disk>,
        spawn: &dyn Spawn,
        dir: &Path,
        settings: LogSettings,
        on_failure: OnFailure,
    ) -> Result<Self, LogError> {
        let dir = LogDir::new(disk, dir)?;
        let mut recovered = dir.recover(Verify::Footers)?;
        let indexes = groups_of(&dir, &recovered.segments)?;
        for number in recovered.empty.iter().rev() {
            dir.remove(*number).map_err(|error| failed(&error))?;
        }
        if let Some(last) = recovered.segments.last_mut().filter(|last| !last.sealed) {
            let torn = recovered.torn.is_some_and(|at| at.segment == last.number);
            dir.reopen(last, torn, settings.segment_bytes)?;
        }
        let files = recovered.segments.iter().map(|s| (s.number, s.file.clone())).collect();
        let inner = Arc::new(Inner {
            dir,
            settings,
            queue: Mutex::default(),
            wake: Condvar::new(),
            ended: Condvar::new(),
            files: Mutex::new(files),
            groups: Mutex::default(),
            failure: Mutex::default(),
            no_space: AtomicBool::new(false),
            counters: Counters::default(),
            on_failure,
        });
        let writer = Writer::new(inner.clone(), recovered.segments)?;
        let groups = indexes
            .into_iter()
            .map(|(group, index)| (group, Arc::new(GroupLog::new(group, index, inner.clone()))));
        *lock(&inner.groups) = groups.collect();
        spawn.spawn("raft-log", Box::new(move || writer.run()));
        Ok(Self { inner })
    }

    /// The log of a group, empty when it is new.
    pub fn group(&self, group: GroupId) -> Arc<GroupLog> {
        let new = || Arc::new(GroupLog::new(group, Default::default(), self.inner.clone()));
        lock(&self.inner.groups).entry(group).or_insert_with(new).clone()
    }

    /// Groups that the log holds something of.
    pub fn groups(&self) -> Vec<GroupId> {
        let groups = lock(&self.inner.groups);
        let written = groups.iter().filter(|(_, group)| !group.is_pristine());
        written.map(|(id, _)| *id).collect()
    }

    /// Why the log stopped for good, if it did.
    pub fn failed(&self) -> Option<LogError> {
        lock(&self.inner.failure).clone()
    }

    /// Whether no space could be reserved for the next segment. What is proposed now may have to
    /// wait until there is space again, so proposals should be refused.
    pub fn space_pressure(&self) -> bool {
        self.inner.no_space.load(Ordering::Relaxed)
    }

    /// What the log did since it was opened, and its segments now.
    pub fn stats(&self) -> LogStats {
        let counters = &self.inner.counters;
        LogStats {
            batches: counters.batches.load(Ordering::Relaxed),
            records: counters.records.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            segments: lock(&self.inner.files).len() as u64,
        }
    }

    /// The groups that need the oldest segment, while the log has more than `bytes_max` bytes or no
    /// space for more: their machines should be flushed and their logs purged. The segment that is
    /// written to can not be freed, so nobody is named for it.
    pub fn pinning(&self, bytes_max: u64) -> Vec<GroupId> {
        let (count, oldest) = {
            let files = lock(&self.inner.files);
            (files.len() as u64, files.first_key_value().map(|(number, _)| *number))
        };
        let large = count.saturating_mul(self.inner.settings.segment_bytes) > bytes_max;
        if count < 2 || !(large || self.space_pressure()) {
            return vec![];
        }
        let groups = lock(&self.inner.groups);
        let pins = groups.iter().filter(|(_, group)| group.oldest_live() == oldest);
        pins.map(|(id, _)| *id).collect()
    }

    /// Writes what waits, ends the log thread and returns once it has ended. Later submissions
    /// fail.
    pub fn close(&self) {
        let mut queue = lock(&self.inner.queue);
        queue.closed = true;
        self.inner.wake.notify_all();
        while !queue.ended {
            queue = self.inner.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        // The handles of the groups know the log and the log knows them: untie.
        lock(&self.inner.groups).clear();
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        self.close();
    }
}
