//! Everything a shard holds at one applied index: its runs, newest first, and which of their rows
//! are dead. A state never changes; the next one shares all that stays the same.
//!
//! Each live key is live in exactly one row of one run, so that readers never merge versions. The
//! newest run that holds a key decides: if that row is dead, the key is gone.

use crate::dead::DeadRows;
use crate::error::StoreError;
use crate::memtable::Memtable;
use crate::run::{Data, Run, SegmentFile};
use crate::segment::Touched;
use hopbine_proto::{EntityId, EntityRange, Epoch, FactKey, KeyRange, LogIndex, SegmentId};
use std::sync::Arc;

/// One moment of a shard.
#[derive(Clone)]
pub(crate) struct State {
    /// Raft term of the last applied entry.
    pub term: u64,
    /// The last applied entry.
    pub index: LogIndex,
    /// Entities owned.
    pub range: EntityRange,
    /// Version of that ownership.
    pub epoch: Epoch,
    /// The active memtable, frozen ones newest first, segments newest first.
    pub runs: Vec<Run>,
}

impl State {
    /// Place of the memtable that takes writes.
    pub const ACTIVE: usize = 0;

    /// The active memtable.
    pub fn active(&self) -> &Arc<Memtable> {
        match &self.runs[Self::ACTIVE].data {
            Data::Memtable(memtable) => memtable,
            Data::Segment(_) => unreachable!("the first run of a state is its active memtable"),
        }
    }

    /// Frozen memtables, newest first.
    pub fn frozen(&self) -> impl DoubleEndedIterator<Item = (usize, &Arc<Memtable>)> {
        self.runs.iter().enumerate().skip(1).filter_map(|(place, run)| match &run.data {
            Data::Memtable(memtable) => Some((place, memtable)),
            Data::Segment(_) => None,
        })
    }

    /// Segments, newest first.
    pub fn segments(&self) -> impl Iterator<Item = &Arc<SegmentFile>> {
        self.runs.iter().filter_map(Run::segment)
    }

    /// Place of the segment of this number.
    pub fn place_of_segment(&self, id: SegmentId) -> Option<usize> {
        let is_it = |run: &Run| run.segment().is_some_and(|file| file.segment.meta().id == id);
        self.runs.iter().position(is_it)
    }

    /// Place of the newest segment; the number of runs when there is none.
    pub fn first_segment(&self) -> usize {
        let is_segment = |run: &Run| matches!(run.data, Data::Segment(_));
        self.runs.iter().position(is_segment).unwrap_or(self.runs.len())
    }

    /// The live row of `key`: the run's place and the row.
    pub fn find_live(&self, key: FactKey) -> Result<Option<(usize, u32)>, StoreError> {
        self.find_live_touching(key, &mut vec![Touched::default(); self.runs.len()])
    }

    /// The same, counting the blocks it takes, run by run.
    pub fn find_live_touching(
        &self,
        key: FactKey,
        touched: &mut [Touched],
    ) -> Result<Option<(usize, u32)>, StoreError> {
        for (place, run) in self.runs.iter().enumerate() {
            if let Some(row) = run.find(key, &mut touched[place])? {
                return Ok((!run.dead.is_dead(row)).then_some((place, row)));
            }
        }
        Ok(None)
    }

    /// Keys of the live facts of `range`, in no order.
    pub fn live_keys(&self, range: &KeyRange) -> Result<Vec<FactKey>, StoreError> {
        let mut keys = Vec::new();
        for run in &self.runs {
            let rows = run.rows(std::slice::from_ref(range), &mut Touched::default())?;
            rows.decode(run, rows.places(0), &mut keys)?;
        }
        Ok(keys.into_iter().map(|(key, _)| key).collect())
    }

    /// Name of `entity`, when a live fact of it has one.
    pub fn entity_name(&self, entity: EntityId) -> Result<Option<Arc<str>>, StoreError> {
        let range = KeyRange::entity(entity);
        for run in &self.runs {
            if let Some(row) = first_live(run, &range)?
                && let Some(names) = run.names(row)?
            {
                return Ok(Some(names.entity));
            }
        }
        Ok(None)
    }

    /// The state after an entry: `appended` rows of the active memtable become visible and the
    /// `dying` rows dead.
    pub fn after(&self, term: u64, index: LogIndex, appended: u32, dying: &[(usize, u32)]) -> Self {
        let mut next = self.clone();
        (next.term, next.index) = (term, index);
        next.runs[Self::ACTIVE].visible += appended;
        for (run, row) in dying {
            let dead: &mut DeadRows = Arc::make_mut(&mut next.runs[*run].dead);
            dead.insert(*row);
        }
        next
    }
}

/// The first live row of a range.
fn first_live(run: &Run, range: &KeyRange) -> Result<Option<u32>, StoreError> {
    if let Data::Memtable(memtable) = &run.data {
        return Ok(memtable.first(range, run.visible, |row| !run.dead.is_dead(row)));
    }
    let rows = run.rows(std::slice::from_ref(range), &mut Touched::default())?;
    let (mut live, mut places, mut count) = (Vec::new(), rows.places(0), 1);
    while !places.is_empty() {
        // The first one is live as a rule; behind dead ones there are often more.
        let end = places.end.min(places.start + count);
        rows.decode(run, places.start..end, &mut live)?;
        if let Some((_, row)) = live.first() {
            return Ok(Some(*row));
        }
        (places.start, count) = (end, 2 * count);
    }
    Ok(None)
}
