//! The log thread: takes what all groups submitted, writes it with one write and one sync, then
//! tells the groups in order.

use super::group::{Draft, Job, Rank};
use super::shared::{Inner, lock};
use super::space::{SPACE_RETRY, Space};
use crate::error::LogError;
use crate::log::disk::{Segment, failed};
use crate::log::index::Place;
use crate::log::record::{self, Head, Kind, Spot};
use bytes::Bytes;
use hopbine_proto::GroupId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// A write buffer larger than this is given back after use.
const BUFFER_KEPT: usize = 8 * 1024 * 1024;

/// The log thread's state.
pub(super) struct Writer {
    inner: Arc<Inner>,
    space: Space,
    /// Number of the next batch.
    batch: u64,
    /// Submitted, not written: in the order of submission.
    backlog: VecDeque<Job>,
    /// Being written.
    in_flight: Vec<Job>,
    buffer: Vec<u8>,
    cache: Cache,
    /// The first job waits for space.
    stalled: bool,
    /// Something was freed or sealed since the last look at the oldest segment.
    freed: bool,
}

/// Entries kept in memory, oldest first.
#[derive(Default)]
struct Cache {
    entries: VecDeque<(Arc<super::group::GroupLog>, u64, usize)>,
    bytes: usize,
}

impl Writer {
    /// A writer that goes on behind the last of `segments`.
    pub fn new(inner: Arc<Inner>, segments: Vec<Segment>) -> Result<Self, LogError> {
        let batch = segments.iter().rev().find_map(|s| s.listing.last_batch()).unwrap_or(0) + 1;
        let space = Space::new(inner.clone(), segments)?;
        Ok(Self {
            inner,
            space,
            batch,
            backlog: VecDeque::new(),
            in_flight: Vec::new(),
            buffer: Vec::new(),
            cache: Cache::default(),
            stalled: false,
            freed: true,
        })
    }

    /// Runs until the log is closed or fails.
    pub fn run(mut self) {
        while self.wait_for_work() {
            if let Err(error) = self.round() {
                self.fail(&error);
                break;
            }
        }
    }

    /// Moves what was submitted to the backlog, waiting for it if need be. `false` when the log is
    /// closed and all is written.
    fn wait_for_work(&mut self) -> bool {
        let inner = self.inner.clone();
        let mut queue = lock(&inner.queue);
        loop {
            let retry = self.stalled || inner.no_space.load(Ordering::Relaxed);
            let at_hand = self.freed || (!self.backlog.is_empty() && !self.stalled);
            if !queue.jobs.is_empty() || at_hand {
                break;
            }
            if queue.closed {
                drop(queue);
                return self.last_words();
            }
            if !retry {
                queue = inner.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = inner.wake.wait_timeout(queue, SPACE_RETRY);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        self.backlog.extend(queue.jobs.drain(..));
        true
    }

    /// When closing: refuses what still waits for space, writes the committed positions.
    fn last_words(&mut self) -> bool {
        if self.stalled {
            self.refuse_all(&LogError::Full);
            return false;
        }
        let groups: Vec<_> = lock(&self.inner.groups).values().cloned().collect();
        self.backlog.extend(groups.iter().filter_map(|group| group.committed_job()));
        !self.backlog.is_empty()
    }

    fn round(&mut self) -> Result<(), LogError> {
        if std::mem::take(&mut self.freed) {
            self.take_moves()?;
        }
        self.take_fitting();
        if self.in_flight.is_empty()
            && let Some(job) = self.backlog.front()
        {
            let ((size, records), number) = (size_of(&job.drafts), self.space.number());
            self.stalled = !self.space.roll(size, records)?;
            self.freed |= self.space.number() != number;
            match self.stalled {
                true => self.take_urgent(),
                false => self.take_fitting(),
            }
        }
        if !self.in_flight.is_empty() {
            self.write()?;
        }
        self.space.make_spare()
    }

    /// Frees the oldest segments, taking what must be moved for that. It says what is durable now,
    /// so it goes into this very batch, at its head, or is left for another time.
    fn take_moves(&mut self) -> Result<(), LogError> {
        let jobs = self.space.reclaim()?;
        let (size, records) = size_of(jobs.iter().flat_map(|job| &job.drafts));
        if !jobs.is_empty() && !self.space.fits(size, records, Rank::Freeing) {
            self.space.roll(size, records)?;
        }
        if self.space.fits(size, records, Rank::Freeing) {
            self.in_flight = jobs;
        }
        Ok(())
    }

    /// Takes jobs from the front while they fit into the active segment.
    fn take_fitting(&mut self) {
        let (mut size, mut records) = size_of(self.in_flight.iter().flat_map(|job| &job.drafts));
        while let Some(job) = self.backlog.front() {
            let (more, drafts) = size_of(&job.drafts);
            if !self.space.fits(size + more, records + drafts, job.rank()) {
                break;
            }
            self.stalled = false;
            (size, records) = (size + more, records + drafts);
            self.in_flight.extend(self.backlog.pop_front());
        }
    }

    /// While entries wait for space: takes what keeps the log going and fits into the reserve, but
    /// nothing that would overtake its own group, purges excepted.
    fn take_urgent(&mut self) {
        let mut waiting: BTreeSet<GroupId> = BTreeSet::new();
        for job in std::mem::take(&mut self.backlog) {
            let group = job.group.id();
            let free = job.is_purge() || !waiting.contains(&group);
            if free && job.rank() != Rank::Entries && self.fits_too(&job, job.rank()) {
                self.in_flight.push(job);
            } else if !free && self.take_voided(&job) {
                self.in_flight.push(job);
                waiting.remove(&group);
            } else {
                waiting.insert(group);
                self.backlog.push_back(job);
            }
        }
    }

    /// When `job` voids all entries that its group has waiting: takes whatever the group has
    /// waiting, without those entries, to be durable together with the job. Else a job that frees
    /// space would wait for entries that wait for that space.
    fn take_voided(&mut self, job: &Job) -> bool {
        let Some(void) = job.voids_from() else { return false };
        let group = job.group.id();
        let before = self.backlog.iter().filter(|waiting| waiting.group.id() == group);
        let before = before.flat_map(|waiting| &waiting.drafts);
        let (entries, rest): (Vec<&Draft>, Vec<&Draft>) = before.partition(|d| d.is_entry());
        let taken = self.in_flight.iter().flat_map(|job| &job.drafts).chain(rest);
        let (size, records) = size_of(taken.chain(&job.drafts));
        let all_void = entries.iter().all(|entry| entry.head.index >= void);
        if !all_void || !self.space.fits(size, records, Rank::Freeing) {
            return false;
        }
        for mut waiting in std::mem::take(&mut self.backlog) {
            if waiting.group.id() == group {
                waiting.drafts.retain(|draft| !draft.is_entry());
                self.in_flight.push(waiting);
            } else {
                self.backlog.push_back(waiting);
            }
        }
        true
    }

    /// Whether the active segment has room for `job` besides what is in flight.
    fn fits_too(&self, job: &Job, rank: Rank) -> bool {
        let drafts = self.in_flight.iter().chain([job]).flat_map(|job| &job.drafts);
        let (size, records) = size_of(drafts);
        self.space.fits(size, records, rank)
    }

    fn write(&mut self) -> Result<(), LogError> {
        let base = self.space.end();
        let segment = self.space.number();
        self.buffer.clear();
        let batch = Head {
            kind: Kind::Batch,
            group: GroupId(0),
            term: self.batch,
            index: self.space.previous_end(),
        };
        record::encode(base, &batch, &[], &mut self.buffer);
        self.space.list(&batch, 0);
        let mut places = Vec::new();
        for draft in self.in_flight.iter().flat_map(|job| &job.drafts) {
            let spot = Spot { segment, offset: base.offset + self.buffer.len() as u64 };
            record::encode(spot, &draft.head, &draft.payload, &mut self.buffer);
            let len = draft.payload.len() as u32;
            self.space.list(&draft.head, len);
            places.push(Place { spot, len });
        }
        self.space.write(&self.buffer).map_err(|error| failed(&error))?;
        self.batch += 1;
        self.count(places.len() as u64);
        if self.buffer.capacity() > BUFFER_KEPT {
            self.buffer = Vec::new();
        }
        self.tell(&places);
        Ok(())
    }

    /// All in flight is durable: note where it is and call back.
    fn tell(&mut self, places: &[Place]) {
        let mut places = places.iter();
        for job in std::mem::take(&mut self.in_flight) {
            let mut index = job.group.index();
            let mut removed = false;
            for (draft, place) in job.drafts.iter().zip(&mut places) {
                if index.placed(&draft.head, *place) {
                    self.cache.add(&job.group, draft.head.index, &draft.payload);
                }
                removed |= draft.head.kind == Kind::Tombstone;
            }
            index.release(&job.released);
            drop(index);
            // The log thread's own jobs (without `done`) move records out of the oldest segment.
            self.freed |= removed || !job.released.is_empty() || job.done.is_none();
            if removed {
                lock(&self.inner.groups).remove(&job.group.id());
            }
            if let Some(done) = job.done {
                done(Ok(()));
            }
        }
        self.cache.shrink(self.inner.settings.cache_bytes_max);
    }

    fn count(&self, records: u64) {
        let counters = &self.inner.counters;
        counters.batches.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(self.buffer.len() as u64, Ordering::Relaxed);
        counters.records.fetch_add(records, Ordering::Relaxed);
    }

    /// Fail-stop: nothing is known of what was in flight, and nothing is written any more.
    fn fail(&mut self, error: &LogError) {
        *lock(&self.inner.failure) = Some(error.clone());
        (self.inner.on_failure)(error);
        let queue = std::mem::take(&mut lock(&self.inner.queue).jobs);
        self.backlog.extend(queue);
        self.refuse_all(error);
    }

    fn refuse_all(&mut self, error: &LogError) {
        let jobs = self.in_flight.drain(..).chain(self.backlog.drain(..));
        for done in jobs.filter_map(|job| job.done) {
            done(Err(error.clone()));
        }
    }
}

/// Bytes and number of records.
fn size_of<'a>(drafts: impl IntoIterator<Item = &'a Draft>) -> (u64, u64) {
    let sizes = drafts.into_iter().map(|draft| record::size_of(draft.payload.len()));
    sizes.fold((0, 0), |(bytes, records), size| (bytes + size, records + 1))
}

impl Drop for Writer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(&LogError::Failed("the log thread panicked".into()));
        }
        lock(&self.inner.queue).ended = true;
        self.inner.ended.notify_all();
    }
}

impl Cache {
    fn add(&mut self, group: &Arc<super::group::GroupLog>, index: u64, payload: &Bytes) {
        self.entries.push_back((group.clone(), index, payload.len()));
        self.bytes += payload.len();
    }

    fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some((group, index, bytes)) = self.entries.pop_front()
        {
            self.bytes -= bytes;
            group.index().uncache(index);
        }
    }
}
