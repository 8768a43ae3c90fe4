//! The log thread's segments: the one being written, the one made ahead, the sealed ones.
//!
//! Space is reserved before it is needed: the next segment is made ahead. While it can not be made,
//! entries must leave a part of the active segment to votes and urgent entries, and all of them a
//! part to what lets segments go, so that a log without space for entries can still be purged. When
//! no space is left nothing fails: entries wait until there is some.
//!
//! The oldest segment goes once nothing in it is needed. What little is needed of it (the vote of
//! an idle group, say) is written again, which takes room in the active segment, too.

use super::group::{Job, Rank};
use super::shared::{Inner, lock};
use crate::error::LogError;
use crate::log::disk::{Segment, failed, is_full, seal};
use crate::log::record::{self, Head, Spot};
use crate::log::segment::{Footer, HEADER_BYTES};
use hopbine_proto::disk::DiskFile;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait before asking for space again.
pub(super) const SPACE_RETRY: Duration = Duration::from_millis(50);
/// Bytes that one record takes in a footer at most.
const FOOTER_ITEM_BYTES_MAX: u64 = 36;
/// The part of the last segment that entries may not use; votes and urgent entries may use half of
/// it.
const RESERVE_SHARE: u64 = 4;
/// The oldest segment's live records are written again when they are at most this part of it.
const MOVE_SHARE: u64 = 8;
/// Sealed segments below which nothing is written again while there is space: it will be purged
/// soon anyway.
const SEALED_KEPT: usize = 2;

struct Active {
    number: u64,
    file: Arc<dyn DiskFile>,
    /// Where the next batch goes.
    end: u64,
    /// Where the last batch ended, in this segment or the one before.
    previous_end: u64,
    /// Bytes reserved.
    capacity: u64,
    footer: Footer,
}

/// The segments of the log, as the log thread sees them.
pub(super) struct Space {
    inner: Arc<Inner>,
    active: Active,
    spare: Option<(Arc<dyn DiskFile>, u64)>,
    sealed: VecDeque<u64>,
    /// When there was last found to be no space.
    full_at: Option<Instant>,
}

impl Space {
    /// Goes on behind the last of `segments`, in a new one when it is sealed or there is none.
    pub fn new(inner: Arc<Inner>, mut segments: Vec<Segment>) -> Result<Self, LogError> {
        let open = segments.pop_if(|last| !last.sealed);
        let sealed: VecDeque<u64> = segments.iter().map(|segment| segment.number).collect();
        let previous_end = segments.last().map_or(0, |segment| segment.listing.end);
        let active = match open {
            Some(segment) => Active {
                number: segment.number,
                file: segment.file,
                end: segment.listing.end,
                previous_end: segment.listing.end,
                capacity: segment.file_len,
                footer: Footer::of(&segment.listing.records),
            },
            None => {
                let number = sealed.back().map_or(1, |last| last + 1);
                let capacity = inner.settings.segment_bytes;
                let file = inner.dir.create(number, capacity).map_err(|error| failed(&error))?;
                lock(&inner.files).insert(number, file.clone());
                Active::empty(number, file, previous_end, capacity)
            }
        };
        Ok(Self { inner, active, spare: None, sealed, full_at: None })
    }

    /// Where the next batch goes.
    pub fn end(&self) -> Spot {
        Spot { segment: self.active.number, offset: self.active.end }
    }

    /// The segment being written.
    pub fn number(&self) -> u64 {
        self.active.number
    }

    /// Where the last batch ended, in this segment or the one before.
    pub fn previous_end(&self) -> u64 {
        self.active.previous_end
    }

    /// Whether a batch of `records` records in `size` bytes, the last of them of `rank`, fits into
    /// the active segment.
    pub fn fits(&self, size: u64, records: u64, rank: Rank) -> bool {
        let kept = match rank {
            _ if self.spare.is_some() => 0,
            Rank::Entries => self.reserve(),
            Rank::State => self.reserve() / 2,
            Rank::Freeing => 0,
        };
        with_footer(size, records) + kept <= self.left()
    }

    /// Adds a record of the batch being built to the footer to come.
    pub fn list(&mut self, head: &Head, len: u32) {
        self.active.footer.push(head, len);
    }

    /// Writes a batch and syncs it.
    pub fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        self.active.file.write_at(self.active.end, batch)?;
        self.active.file.sync_data()?;
        self.active.end += batch.len() as u64;
        self.active.previous_end = self.active.end;
        Ok(())
    }

    /// Goes on in a new segment with room for `records` records of `size` bytes. `false` when there
    /// is no space for so large a one.
    pub fn roll(&mut self, size: u64, records: u64) -> Result<bool, LogError> {
        let needed =
            HEADER_BYTES + with_footer(size, records) + Footer::default().size() + self.reserve();
        let capacity = needed.max(self.inner.settings.segment_bytes);
        if self.active.end == HEADER_BYTES {
            return self.grow_active(capacity);
        }
        let roomy = self.reserve_spare(capacity)?;
        // A smaller one at least takes what lets segments go.
        if !roomy && self.left() >= self.reserve() {
            return Ok(false);
        }
        let Some((file, capacity)) = self.spare.take() else { return Ok(false) };
        let active = &self.active;
        seal(active.file.as_ref(), &active.footer, active.end).map_err(|error| failed(&error))?;
        self.sealed.push_back(active.number);
        let number = active.number + 1;
        lock(&self.inner.files).insert(number, file.clone());
        self.active = Active::empty(number, file, active.end, capacity);
        Ok(roomy)
    }

    /// Makes the next segment ahead of its use, or notes that there is no space for it.
    pub fn make_spare(&mut self) -> Result<(), LogError> {
        self.reserve_spare(self.inner.settings.segment_bytes).map(|_| ())
    }

    /// Removes the oldest segments that nobody needs. Returns the jobs that free the next one when
    /// little in it is still needed: see `GroupLog::move_job`.
    pub fn reclaim(&mut self) -> Result<Vec<Job>, LogError> {
        while let Some(oldest) = self.sealed.front().copied() {
            let groups: Vec<_> = lock(&self.inner.groups).values().cloned().collect();
            let (mut records, mut bytes) = (0, 0);
            for group in &groups {
                let live = group.index().live_in(oldest);
                records += live.records;
                bytes += live.bytes;
            }
            if records == 0 {
                self.inner.dir.remove(oldest).map_err(|error| failed(&error))?;
                lock(&self.inner.files).remove(&oldest);
                self.sealed.pop_front();
                // There may be space again: not to be found out by waiting.
                self.full_at = None;
                continue;
            }
            let share = self.inner.settings.segment_bytes / MOVE_SHARE;
            let soon_purged = self.sealed.len() < SEALED_KEPT && self.full_at.is_none();
            if bytes > share || soon_purged {
                return Ok(vec![]);
            }
            let mut jobs = Vec::new();
            for group in groups {
                jobs.extend(group.move_job(oldest)?);
            }
            return Ok(jobs);
        }
        Ok(vec![])
    }

    /// Bytes of the active segment that are not spoken for.
    fn left(&self) -> u64 {
        self.active.capacity.saturating_sub(self.active.end + self.active.footer.size())
    }

    fn reserve(&self) -> u64 {
        self.inner.settings.segment_bytes / RESERVE_SHARE
    }

    fn reserve_spare(&mut self, capacity: u64) -> Result<bool, LogError> {
        if self.spare.as_ref().is_some_and(|(_, reserved)| *reserved >= capacity) {
            return Ok(true);
        }
        self.attempt(|space| space.make_or_grow_spare(capacity))
    }

    fn make_or_grow_spare(&mut self, capacity: u64) -> io::Result<()> {
        match &mut self.spare {
            Some((file, reserved)) => file
                .allocate(capacity)
                .and_then(|()| file.sync_data())
                .map(|()| *reserved = capacity),
            None => {
                let created = self.inner.dir.create(self.active.number + 1, capacity);
                created.map(|file| self.spare = Some((file, capacity)))
            }
        }
    }

    /// Makes the active segment larger, which holds nothing yet: one without a record can not be
    /// sealed, for it would tell nobody where the one before it ends.
    fn grow_active(&mut self, capacity: u64) -> Result<bool, LogError> {
        self.attempt(|space| {
            let file = &space.active.file;
            file.allocate(capacity).and_then(|()| file.sync_data())?;
            space.active.capacity = capacity;
            Ok(())
        })
    }

    /// Asks for space, unless there was none a moment ago. `false`: there is none.
    fn attempt(&mut self, ask: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<bool, LogError> {
        if self.full_at.is_some_and(|at| at.elapsed() < SPACE_RETRY) {
            return Ok(false);
        }
        let made = ask(self);
        let full = made.as_ref().is_err_and(is_full);
        self.inner.no_space.store(full, Ordering::Relaxed);
        self.full_at = full.then(Instant::now);
        match made {
            Ok(()) => Ok(true),
            Err(_) if full => Ok(false),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl Active {
    fn empty(number: u64, file: Arc<dyn DiskFile>, previous_end: u64, capacity: u64) -> Self {
        let footer = Footer::default();
        Self { number, file, end: HEADER_BYTES, previous_end, capacity, footer }
    }
}

/// Bytes of a batch with its batch record, and what it adds to the footer.
fn with_footer(size: u64, records: u64) -> u64 {
    record::size_of(0) + size + (records + 1) * FOOTER_ITEM_BYTES_MAX
}
