//! What the log holds of one group, in memory: vote, positions, and where each entry's bytes are.
//!
//! Two hands change it. The group, when it submits (`append`, `truncate`, `purge`): the entries
//! change at once. The log thread, when records are durable (`placed`, `release`): only then do
//! the *live* counts change, which tell whether a segment is still needed. So a segment never goes
//! before the purge that frees it is itself durable.
//!
//! What is moved to free a segment (`to_move`) is what its records say, not what was submitted
//! since. So it may be written before anything that waits, and a group that is never idle does not
//! hold the oldest segment.

use super::record::{self, Head, Kind, Spot};
use super::segment::Listed;
use crate::command::LogPosition;
use bytes::Bytes;
use hopbine_proto::ReplicaId;
use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// Where a durable record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Segment and offset of its first byte.
    pub spot: Spot,
    /// Bytes of its payload.
    pub len: u32,
}

/// A group's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteRecord {
    /// The term voted in.
    pub term: u64,
    /// Voted for, or leader of the term.
    pub candidate: ReplicaId,
    /// Whether the candidate is known to lead the term.
    pub committed: bool,
}

impl VoteRecord {
    /// The vote as kind, term and index of a record.
    pub fn to_parts(self) -> (Kind, u64, u64) {
        let kind = if self.committed { Kind::VoteCommitted } else { Kind::Vote };
        (kind, self.term, self.candidate.0)
    }

    /// The vote that a record of one of the two kinds says.
    fn from_parts(kind: Kind, term: u64, candidate: u64) -> Self {
        let committed = kind == Kind::VoteCommitted;
        Self { term, candidate: ReplicaId(candidate), committed }
    }
}

/// One entry: where it is, and its bytes while they are kept in memory.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Term of the entry.
    pub term: u64,
    /// Where it is; `None` until durable.
    pub place: Option<Place>,
    /// Its bytes; always there while `place` is `None`.
    pub bytes: Option<Bytes>,
}

/// Records and bytes that keep a segment alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Live records of the group in the segment.
    pub records: u64,
    /// Bytes of the entries among them, heads and padding included. Votes and positions count for
    /// nothing: no purge can free them, so there can never be too many of them to be moved.
    pub bytes: u64,
}

impl Live {
    fn entry(place: Place) -> Self {
        Self { records: 1, bytes: record::size_of(place.len as usize) }
    }

    fn add(&mut self, more: Self) {
        self.records += more.records;
        self.bytes += more.bytes;
    }
}

/// Live records to subtract once the record that voids them is durable, by segment.
pub type Released = BTreeMap<u64, Live>;

/// What of a group must be written again before a segment can go.
#[derive(Debug)]
pub struct ToMove {
    /// Vote, purged and committed position as they are durable: kind, term and index of each.
    pub state: Vec<(Kind, u64, u64)>,
    /// Entries by index.
    pub entries: Vec<(u64, Slot)>,
}

/// The last durable record of its kind: what it says, and in which segment.
#[derive(Clone, Copy, Debug)]
struct Saved<T> {
    value: T,
    segment: u64,
}

/// One group's part of the log.
#[derive(Debug, Default)]
pub struct GroupIndex {
    vote: Option<VoteRecord>,
    purged: LogPosition,
    committed: LogPosition,
    entries: BTreeMap<u64, Slot>,
    saved_vote: Option<Saved<VoteRecord>>,
    saved_purged: Option<Saved<LogPosition>>,
    saved_committed: Option<Saved<LogPosition>>,
    live: BTreeMap<u64, Live>,
    /// Whether `committed` is newer than its last record submitted.
    committed_unsaved: bool,
    removed: bool,
}

impl GroupIndex {
    /// The last vote submitted.
    pub fn vote(&self) -> Option<VoteRecord> {
        self.vote
    }

    /// The last entry purged.
    pub fn purged(&self) -> LogPosition {
        self.purged
    }

    /// The last entry known as committed; never beyond the last entry.
    pub fn committed(&self) -> LogPosition {
        std::cmp::min_by_key(self.committed, self.last(), |position| position.index)
    }

    /// The last entry, or the last purged one when there is none.
    pub fn last(&self) -> LogPosition {
        let last = self.entries.last_key_value();
        last.map_or(self.purged, |(index, slot)| LogPosition::new(slot.term, *index))
    }

    /// Whether the group was removed.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// Whether nothing was ever written for the group.
    pub fn is_pristine(&self) -> bool {
        self.vote.is_none() && self.last() == LogPosition::NONE
    }

    /// The entries of a range of indexes.
    pub fn range(&self, range: impl RangeBounds<u64>) -> impl Iterator<Item = (u64, &Slot)> {
        self.entries.range(range).map(|(index, slot)| (*index, slot))
    }

    /// Adds the next entry, whose record was just submitted.
    pub fn append(&mut self, at: LogPosition, bytes: Bytes) {
        let follows = at.index.0 == self.last().index.0 + 1 || self.last() == LogPosition::NONE;
        assert!(follows, "entry {at} does not follow {}: a log has no holes", self.last());
        let slot = Slot { term: at.term, place: None, bytes: Some(bytes) };
        self.entries.insert(at.index.0, slot);
    }

    /// Notes the vote, whose record was just submitted.
    pub fn set_vote(&mut self, vote: VoteRecord) {
        self.vote = Some(vote);
    }

    /// Notes the committed position; it is written along with the group's next record.
    pub fn set_committed(&mut self, committed: LogPosition) {
        self.committed_unsaved |= self.committed != committed;
        self.committed = committed;
    }

    /// The committed position, when it was not submitted since it changed.
    pub fn take_unsaved_committed(&mut self) -> Option<LogPosition> {
        std::mem::take(&mut self.committed_unsaved).then(|| self.committed())
    }

    /// Drops the entries above `last`; returns what is to be released once that is durable.
    pub fn truncate(&mut self, last: LogPosition) -> Released {
        let dropped = self.entries.split_off(&(last.index.0 + 1));
        released_by(&dropped)
    }

    /// Drops the entries up to `upto`; returns what is to be released once that is durable.
    pub fn purge(&mut self, upto: LogPosition) -> Released {
        let kept = self.entries.split_off(&(upto.index.0 + 1));
        let dropped = std::mem::replace(&mut self.entries, kept);
        if upto.index > self.purged.index {
            self.purged = upto;
        }
        released_by(&dropped)
    }

    /// Drops everything; returns what is to be released once that is durable.
    pub fn remove(&mut self) -> Released {
        let released = self.live.clone();
        let live = std::mem::take(&mut self.live);
        *self = Self { live, removed: true, ..Self::default() };
        released
    }

    /// A record of this group is durable at `place`. Returns whether it was an entry whose bytes
    /// are now kept for speed only.
    pub fn placed(&mut self, head: &Head, place: Place) -> bool {
        let segment = place.spot.segment;
        let position = LogPosition::new(head.term, head.index);
        if self.removed {
            return false;
        }
        match head.kind {
            Kind::Entry => return self.place_entry(head, place),
            Kind::Moved => {
                // An entry without a place was appended anew since: the moved one is void.
                let slot = self.entries.get(&head.index);
                let is_held = slot.is_some_and(|slot| slot.place.is_some());
                return is_held && self.place_entry(head, place);
            }
            Kind::Vote | Kind::VoteCommitted => {
                let value = VoteRecord::from_parts(head.kind, head.term, head.index);
                let before = self.saved_vote.replace(Saved { value, segment });
                self.move_state(before.map(|saved| saved.segment), segment);
            }
            // The highest one counts, whichever comes last.
            Kind::Purge if self.saved_purged.is_some_and(|s| s.value.index > position.index) => {}
            Kind::Purge => {
                let before = self.saved_purged.replace(Saved { value: position, segment });
                self.move_state(before.map(|saved| saved.segment), segment);
            }
            Kind::Committed => {
                let before = self.saved_committed.replace(Saved { value: position, segment });
                self.move_state(before.map(|saved| saved.segment), segment);
            }
            Kind::Batch | Kind::Truncate | Kind::Tombstone => {}
        }
        false
    }

    /// The record that voided these is durable.
    pub fn release(&mut self, released: &Released) {
        for (segment, live) in released {
            self.subtract(*segment, *live);
        }
    }

    /// What the group still needs of a segment.
    pub fn live_in(&self, segment: u64) -> Live {
        self.live.get(&segment).copied().unwrap_or_default()
    }

    /// The oldest segment that the group needs.
    pub fn oldest_live(&self) -> Option<u64> {
        self.live.first_key_value().map(|(segment, _)| *segment)
    }

    /// The records of `segment` that must be written again before it can go: state and entries.
    /// Whatever was submitted and is not durable yet must be written after them. Entries whose end
    /// is under way (truncated, purged) are left out: the segment waits for that.
    pub fn to_move(&self, segment: u64) -> ToMove {
        let mut state = Vec::new();
        state.extend(here(self.saved_vote, segment).map(VoteRecord::to_parts));
        let purged = here(self.saved_purged, segment);
        state.extend(purged.map(|at| (Kind::Purge, at.term, at.index.0)));
        let committed = here(self.saved_committed, segment);
        state.extend(committed.map(|at| (Kind::Committed, at.term, at.index.0)));
        let is_here = |slot: &Slot| slot.place.is_some_and(|place| place.spot.segment == segment);
        let entries = self.entries.iter().filter(|(_, slot)| is_here(slot));
        ToMove { state, entries: entries.map(|(index, slot)| (*index, slot.clone())).collect() }
    }

    /// Forgets the bytes of an entry that can be read from its place.
    pub fn uncache(&mut self, index: u64) {
        if let Some(slot) = self.entries.get_mut(&index)
            && slot.place.is_some()
        {
            slot.bytes = None;
        }
    }

    /// Replays a record found when the log is opened.
    pub fn replay(&mut self, segment: u64, listed: &Listed) {
        let Listed { head, offset, len } = *listed;
        let place = Place { spot: Spot { segment, offset }, len };
        let position = LogPosition::new(head.term, head.index);
        self.removed = false;
        let released = match head.kind {
            Kind::Batch => return,
            Kind::Entry => self.replay_entry(head),
            Kind::Moved => self.replay_moved(head),
            Kind::Vote | Kind::VoteCommitted => {
                self.set_vote(VoteRecord::from_parts(head.kind, head.term, head.index));
                Released::new()
            }
            Kind::Truncate => self.truncate(position),
            Kind::Purge => self.purge(position),
            Kind::Committed => {
                self.committed = position;
                Released::new()
            }
            Kind::Tombstone => self.remove(),
        };
        self.release(&released);
        match head.kind {
            Kind::Moved => self.place_entry(&head, place),
            _ => self.placed(&head, place),
        };
    }

    /// Whether the entries follow each other and the purged position without a hole.
    pub fn is_whole(&self) -> bool {
        let Some((first, _)) = self.entries.first_key_value() else { return true };
        let Some((last, _)) = self.entries.last_key_value() else { return true };
        let dense = last - first + 1 == self.entries.len() as u64;
        dense && *first == self.purged.index.0 + 1
    }

    fn replay_entry(&mut self, head: Head) -> Released {
        let dropped = self.entries.split_off(&head.index);
        let released = released_by(&dropped);
        if head.index > self.purged.index.0 {
            let slot = Slot { term: head.term, place: None, bytes: None };
            self.entries.insert(head.index, slot);
        }
        released
    }

    fn replay_moved(&mut self, head: Head) -> Released {
        if head.index > self.purged.index.0 {
            let slot = Slot { term: head.term, place: None, bytes: None };
            self.entries.entry(head.index).or_insert(slot);
        }
        Released::new()
    }

    fn place_entry(&mut self, head: &Head, place: Place) -> bool {
        let Some(slot) = self.entries.get_mut(&head.index) else { return false };
        if slot.term != head.term {
            return false;
        }
        let before = slot.place.replace(place);
        if let Some(before) = before {
            self.subtract(before.spot.segment, Live::entry(before));
        }
        self.live.entry(place.spot.segment).or_default().add(Live::entry(place));
        true
    }

    fn move_state(&mut self, before: Option<u64>, segment: u64) {
        if let Some(before) = before {
            self.subtract(before, Live { records: 1, bytes: 0 });
        }
        self.live.entry(segment).or_default().add(Live { records: 1, bytes: 0 });
    }

    fn subtract(&mut self, segment: u64, gone: Live) {
        let Some(live) = self.live.get_mut(&segment) else { return };
        live.records = live.records.saturating_sub(gone.records);
        live.bytes = live.bytes.saturating_sub(gone.bytes);
        if live.records == 0 {
            self.live.remove(&segment);
        }
    }
}

fn here<T>(saved: Option<Saved<T>>, segment: u64) -> Option<T> {
    saved.filter(|saved| saved.segment == segment).map(|saved| saved.value)
}

fn released_by(dropped: &BTreeMap<u64, Slot>) -> Released {
    let mut released = Released::new();
    for place in dropped.values().filter_map(|slot| slot.place) {
        released.entry(place.spot.segment).or_default().add(Live::entry(place));
    }
    released
}
