//! One group's handle on the shared log: submit records, read entries.
//!
//! What is submitted is readable at once and durable when its `Done` is called. A group's records
//! become durable in the order of submission, and their `Done`s are called in that order.

use super::shared::{Inner, lock};
use crate::command::LogPosition;
use crate::error::LogError;
use crate::log::index::{GroupIndex, Released, Slot, VoteRecord};
use crate::log::record::{self, HEAD_BYTES, Head, Kind, Spot};
use bytes::Bytes;
use hopbine_proto::GroupId;
use hopbine_proto::disk::DiskFile;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, MutexGuard};

/// Called once the records are durable, or will never be.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// One record to write.
pub(super) struct Draft {
    pub head: Head,
    pub payload: Bytes,
    pub rank: Rank,
}

impl Draft {
    /// Whether the record is a new entry.
    pub fn is_entry(&self) -> bool {
        self.head.kind == Kind::Entry
    }
}

/// What a job is for, from what is written while there is any room to what waits first when space
/// is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Lets segments go.
    Freeing,
    /// Keeps the group going: a vote, an urgent entry.
    State,
    /// Fills the log.
    Entries,
}

impl Rank {
    /// The rank of a record that is not urgent.
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Entry => Self::Entries,
            Kind::Batch | Kind::Vote | Kind::VoteCommitted | Kind::Committed => Self::State,
            Kind::Moved | Kind::Truncate | Kind::Purge | Kind::Tombstone => Self::Freeing,
        }
    }
}

/// Records that become durable together.
pub(super) struct Job {
    pub group: Arc<GroupLog>,
    pub drafts: Vec<Draft>,
    pub released: Released,
    pub done: Option<Done>,
}

impl Job {
    /// How much room the job must leave to others when space is short.
    pub fn rank(&self) -> Rank {
        self.drafts.iter().map(|draft| draft.rank).max().unwrap_or(Rank::Freeing)
    }

    /// The index from which on no entry submitted before the job counts once it is durable.
    pub fn voids_from(&self) -> Option<u64> {
        let [Draft { head, .. }] = &self.drafts[..] else { return None };
        match head.kind {
            Kind::Truncate => Some(head.index + 1),
            Kind::Tombstone => Some(0),
            _ => None,
        }
    }

    /// Whether the job may overtake earlier ones of its group.
    pub fn is_purge(&self) -> bool {
        self.drafts.iter().all(|draft| draft.head.kind == Kind::Purge)
    }
}

/// One group's part of the shared log.
pub struct GroupLog {
    id: GroupId,
    index: Mutex<GroupIndex>,
    log: Arc<Inner>,
}

impl GroupLog {
    pub(super) fn new(id: GroupId, index: GroupIndex, log: Arc<Inner>) -> Self {
        Self { id, index: Mutex::new(index), log }
    }

    /// The group.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The last vote submitted.
    pub fn vote(&self) -> Option<VoteRecord> {
        self.index().vote()
    }

    /// The last entry purged.
    pub fn purged(&self) -> LogPosition {
        self.index().purged()
    }

    /// The last entry, or the last purged one when there is none.
    pub fn last(&self) -> LogPosition {
        self.index().last()
    }

    /// The last entry known as committed when it was last written down.
    pub fn committed(&self) -> LogPosition {
        self.index().committed()
    }

    /// Whether nothing was ever written for the group.
    pub fn is_pristine(&self) -> bool {
        self.index().is_pristine()
    }

    /// Appends entries, which follow the last one without a gap.
    pub fn append(self: &Arc<Self>, entries: Vec<(LogPosition, Bytes)>, done: Done) {
        self.append_ranked(Rank::Entries, entries, done);
    }

    /// The same for few and small entries that a log without space for more takes nevertheless,
    /// as it does votes. They overtake other groups' entries, but none of their own.
    pub fn append_urgent(self: &Arc<Self>, entries: Vec<(LogPosition, Bytes)>, done: Done) {
        self.append_ranked(Rank::State, entries, done);
    }

    fn append_ranked(self: &Arc<Self>, rank: Rank, entries: Vec<(LogPosition, Bytes)>, done: Done) {
        let Some(mut index) = self.unless_removed() else { return refuse(done) };
        let mut drafts = Vec::with_capacity(entries.len() + 1);
        if let Some(committed) = index.take_unsaved_committed() {
            drafts.push(self.draft(Kind::Committed, committed.term, committed.index.0));
        }
        for (at, payload) in entries {
            index.append(at, payload.clone());
            drafts.push(Draft { payload, rank, ..self.draft(Kind::Entry, at.term, at.index.0) });
        }
        self.submit(index, drafts, Released::new(), Some(done));
    }

    /// Saves the vote.
    pub fn save_vote(self: &Arc<Self>, vote: VoteRecord, done: Done) {
        let Some(mut index) = self.unless_removed() else { return refuse(done) };
        index.set_vote(vote);
        let (kind, term, candidate) = vote.to_parts();
        let drafts = vec![self.draft(kind, term, candidate)];
        self.submit(index, drafts, Released::new(), Some(done));
    }

    /// Drops the entries above `last`.
    pub fn truncate(self: &Arc<Self>, last: LogPosition, done: Done) {
        let Some(mut index) = self.unless_removed() else { return refuse(done) };
        let released = index.truncate(last);
        let drafts = vec![self.draft(Kind::Truncate, last.term, last.index.0)];
        self.submit(index, drafts, released, Some(done));
    }

    /// Drops the entries up to `upto`; their space is given back later.
    pub fn purge(self: &Arc<Self>, upto: LogPosition, done: Done) {
        let Some(mut index) = self.unless_removed() else { return refuse(done) };
        let released = index.purge(upto);
        let drafts = vec![self.draft(Kind::Purge, upto.term, upto.index.0)];
        self.submit(index, drafts, released, Some(done));
    }

    /// Notes the committed position. Written with the group's next entries or when the log is
    /// closed, so after a crash an older one may be read: committed positions only spare work.
    pub fn save_committed(&self, committed: LogPosition) {
        if let Some(mut index) = self.unless_removed() {
            index.set_committed(committed);
        }
    }

    /// Drops everything about the group and its space. Whoever still has this handle can write
    /// nothing through it any more.
    pub fn remove(self: &Arc<Self>, done: Done) {
        let mut index = self.index();
        let released = index.remove();
        let drafts = vec![self.draft(Kind::Tombstone, 0, 0)];
        self.submit(index, drafts, released, Some(done));
    }

    /// The entries of `range` that the log holds, in order, until `bytes_max` is passed. The first
    /// is returned whatever its size. Reads the disk for what is no longer in memory.
    pub fn read(
        &self,
        range: Range<u64>,
        bytes_max: usize,
    ) -> Result<Vec<(LogPosition, Bytes)>, LogError> {
        self.look_up(range, bytes_max)
            .into_iter()
            .map(|found| Ok((found.at, found.bytes(self.id, &self.log)?)))
            .collect()
    }

    /// Whether `read` of this range would have to read the disk.
    pub fn reads_disk(&self, range: Range<u64>) -> bool {
        self.index().range(range).any(|(_, slot)| slot.bytes.is_none())
    }

    /// The position of one entry.
    pub fn position(&self, index: u64) -> Option<LogPosition> {
        let entries = self.index();
        entries.range(index..=index).next().map(|(at, slot)| LogPosition::new(slot.term, at))
    }

    /// The last entry of each term among the entries of `range`.
    pub fn last_of_terms(&self, range: RangeInclusive<u64>) -> Vec<LogPosition> {
        let mut lasts: Vec<LogPosition> = Vec::new();
        if range.is_empty() {
            return lasts;
        }
        for (index, slot) in self.index().range(range) {
            let position = LogPosition::new(slot.term, index);
            match lasts.last_mut() {
                Some(last) if last.term == slot.term => *last = position,
                _ => lasts.push(position),
            }
        }
        lasts
    }

    pub(super) fn oldest_live(&self) -> Option<u64> {
        self.index().oldest_live()
    }

    pub(super) fn index(&self) -> MutexGuard<'_, GroupIndex> {
        lock(&self.index)
    }

    /// The group's index, to change it. A record behind the tombstone would bring the group back
    /// without what came before it, which is a hole.
    fn unless_removed(&self) -> Option<MutexGuard<'_, GroupIndex>> {
        Some(self.index()).filter(|index| !index.is_removed())
    }

    pub(super) fn draft(&self, kind: Kind, term: u64, index: u64) -> Draft {
        let head = Head { kind, group: self.id, term, index };
        Draft { head, payload: Bytes::new(), rank: Rank::of(kind) }
    }

    /// A job that writes the group's unsaved committed position, if there is one.
    pub(super) fn committed_job(self: &Arc<Self>) -> Option<Job> {
        let mut index = self.index();
        let committed = index.take_unsaved_committed()?;
        let drafts = vec![self.draft(Kind::Committed, committed.term, committed.index.0)];
        Some(Job { group: self.clone(), drafts, released: Released::new(), done: None })
    }

    /// The job that frees `segment` of what this group's durable records there say. For the log
    /// thread, which must write it next: before whatever waits, and nothing in between.
    pub(super) fn move_job(self: &Arc<Self>, segment: u64) -> Result<Option<Job>, LogError> {
        let index = self.index();
        if index.live_in(segment).records == 0 {
            return Ok(None);
        }
        let to_move = index.to_move(segment);
        let state = to_move.state.into_iter();
        let mut drafts: Vec<Draft> =
            state.map(|(kind, term, position)| self.draft(kind, term, position)).collect();
        for (position, slot) in to_move.entries {
            let payload = self.found(position, &slot).bytes(self.id, &self.log)?;
            drafts.push(Draft { payload, ..self.draft(Kind::Moved, slot.term, position) });
        }
        drop(index);
        let job = Job { group: self.clone(), drafts, released: Released::new(), done: None };
        Ok((!job.drafts.is_empty()).then_some(job))
    }

    fn submit(
        self: &Arc<Self>,
        index: MutexGuard<'_, GroupIndex>,
        drafts: Vec<Draft>,
        released: Released,
        done: Option<Done>,
    ) {
        let job = Job { group: self.clone(), drafts, released, done };
        // Still under the index lock: the queue holds a group's jobs in the order of its changes.
        let mut queue = lock(&self.log.queue);
        let refused = match lock(&self.log.failure).clone() {
            Some(failure) => Some(failure),
            None if queue.closed => Some(LogError::Failed("the log is closed".into())),
            None => None,
        };
        match refused {
            None => {
                queue.jobs.push(job);
                drop(queue);
                drop(index);
                self.log.wake.notify_one();
            }
            Some(error) => {
                drop(queue);
                drop(index);
                if let Some(done) = job.done {
                    done(Err(error));
                }
            }
        }
    }

    fn look_up(&self, range: Range<u64>, bytes_max: usize) -> Vec<FoundEntry> {
        let index = self.index();
        let (mut found, mut bytes) = (Vec::new(), 0usize);
        if range.is_empty() {
            return found;
        }
        for (position, slot) in index.range(range) {
            let entry = self.found(position, slot);
            bytes = bytes.saturating_add(entry.len);
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry);
        }
        found
    }

    fn found(&self, index: u64, slot: &Slot) -> FoundEntry {
        let cached = slot.bytes.clone();
        let placed = slot.place.map(|place| place.len as usize);
        let len = cached.as_ref().map(Bytes::len).or(placed).unwrap_or(0);
        let stored = slot.place.filter(|_| cached.is_none()).and_then(|place| {
            // A live entry's segment is open for as long as the index lock is held.
            let file = lock(&self.log.files).get(&place.spot.segment).cloned();
            file.map(|file| (place.spot, file))
        });
        FoundEntry { at: LogPosition::new(slot.term, index), len, cached, stored }
    }
}

fn refuse(done: Done) {
    done(Err(LogError::Failed("the group was removed".into())));
}

struct FoundEntry {
    at: LogPosition,
    len: usize,
    cached: Option<Bytes>,
    stored: Option<(Spot, Arc<dyn DiskFile>)>,
}

impl FoundEntry {
    fn bytes(&self, group: GroupId, log: &Inner) -> Result<Bytes, LogError> {
        if let Some(cached) = &self.cached {
            return Ok(cached.clone());
        }
        let Some((spot, file)) = &self.stored else {
            return Err(LogError::Failed(format!("entry {} of group {group} is nowhere", self.at)));
        };
        let damaged = |what| LogError::Damaged {
            file: log.dir.path(spot.segment),
            offset: spot.offset,
            what,
        };
        let mut buffer = vec![0; HEAD_BYTES + self.len];
        if file.read_at(spot.offset, &mut buffer).is_err() {
            return Err(damaged("a record can not be read"));
        }
        let Some((head, payload)) = record::decode(&buffer, *spot) else {
            return Err(damaged("a durable record is damaged"));
        };
        let same = matches!(head.kind, Kind::Entry | Kind::Moved)
            && head.group == group
            && LogPosition::new(head.term, head.index) == self.at
            && payload.len() == self.len;
        match same {
            true => Ok(Bytes::from(buffer).slice(HEAD_BYTES..)),
            false => Err(damaged("another record stands in its place")),
        }
    }
}
