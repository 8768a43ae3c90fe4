//! Flushing frozen memtables and merging segments: how state and disk follow each other.
//!
//! A flush writes every key's last row of the frozen memtable, as of its freezing: what died since
//! then is alive at the durable point, and a replay must find it so. A merge drops only rows that
//! are dead by the segments alone, for the same reason. Rows that died meanwhile in memory are
//! marked again in the new segment's bitmap at the swap.

use crate::compaction::{Candidate, choose};
use crate::dead::DeadRows;
use crate::error::StoreError;
use crate::manifest::{Manifest, SegmentMeta};
use crate::open::{kill_keys_of, open_segment, space_of, tombstones_of};
use crate::run::{Data, Run, SegmentFile};
use crate::segment::{Segment, SegmentRow, SegmentWriter, Touched};
use crate::shard::{DurableState, Frozen, Shard, lock};
use crate::state::State;
use hopbine_proto::{FactKey, SegmentId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

/// Bytes that a merge writes between two pauses.
const PACE_BYTES: u64 = 1 << 20;
/// A row that did not go into the new segment.
const DROPPED: u32 = u32::MAX;

/// A segment just written, and where its rows came from.
struct Written {
    meta: SegmentMeta,
    file: Arc<SegmentFile>,
}

impl Shard {
    /// Writes the oldest frozen memtable as a segment and makes it durable. Returns whether there
    /// was one (and no other thread at it). After `DiskFull` or `Io` the memtable is still there
    /// and the flush can be tried again; after `SyncFailed` the process must stop.
    pub fn flush_oldest(&self) -> Result<bool, StoreError> {
        let _flushing = match self.flushing.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        self.refuse_when_stopped()?;
        let Some(frozen) = lock(&self.writer).frozen.front().cloned() else {
            return Ok(false);
        };
        self.stop_on_sync_failure(self.flush(&frozen))?;
        Ok(true)
    }

    fn flush(&self, frozen: &Frozen) -> Result<(), StoreError> {
        let state = self.state();
        let mut sources = Vec::new();
        let written = self.write_segment(|writer| {
            for row in frozen.memtable.newest_rows(frozen.rows) {
                let source = frozen.memtable.row(row);
                if source.tombstone && !held_by(&state.runs[state.first_segment()..], source.key)? {
                    continue;
                }
                writer.push(&SegmentRow {
                    key: source.key,
                    version: source.version,
                    tombstone: source.tombstone,
                    embedding: source.vector.as_ref().map(|vector| &*vector.values),
                    payload: source.payload.as_deref(),
                    names: source.names.as_ref(),
                })?;
                sources.push(row);
            }
            Ok(sources.len())
        })?;
        let mut durable = lock(&self.durable);
        let mut manifest = durable.manifest.clone();
        let point = &frozen.point;
        (manifest.applied_term, manifest.applied_index) = (point.term, point.index);
        (manifest.range, manifest.epoch) = (point.range, point.epoch);
        manifest.membership.clone_from(&point.membership);
        manifest.sessions.clone_from(&point.sessions);
        let mut dead = durable.dead.clone();
        if let Some(written) = &written {
            let of_new = tombstones_of(&written.file.segment);
            self.kill_older(&written.file.segment, &mut dead)?;
            dead.insert(written.meta.id, of_new);
            manifest.segments.insert(0, written.meta.clone());
        }
        self.store_manifest(&durable.manifest, &mut manifest, written.as_ref())?;
        *durable = DurableState { manifest, dead };
        let mut writer = lock(&self.writer);
        writer.frozen.pop_front();
        let mut next = State::clone(&self.state());
        let place = next.first_segment() - 1;
        let flushed = next.runs.remove(place);
        if let Some(Written { file, .. }) = written {
            let rows = sources.iter().zip(0..).filter(|(row, _)| flushed.dead.is_dead(**row));
            let dead = rows.map(|(_, row)| row).collect();
            next.runs.insert(place, segment_run(file, dead));
        }
        self.publish(next);
        Ok(())
    }

    /// Marks in `dead` what the rows of a new segment kill in the present ones.
    fn kill_older(
        &self,
        newer: &Segment,
        dead: &mut BTreeMap<SegmentId, DeadRows>,
    ) -> Result<(), StoreError> {
        // The durable lock is held, so the state has the segments of the manifest.
        let state = self.state();
        for older in state.segments() {
            let dead = dead.entry(older.segment.meta().id).or_default();
            kill_keys_of(newer, &older.segment, dead)?;
        }
        Ok(())
    }

    /// Merges one group of neighbouring segments, or rewrites one with many dead rows. Returns
    /// whether there was one (and no other thread at it). Errors as for `flush_oldest`.
    pub fn compact_once(&self) -> Result<bool, StoreError> {
        self.compact_paced(&mut |_| {})
    }

    /// The same, calling `pace` now and then with the bytes written since the last call: it returns
    /// when more may be written.
    pub fn compact_paced(&self, pace: &mut dyn FnMut(u64)) -> Result<bool, StoreError> {
        let _compacting = match self.compacting.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        self.refuse_when_stopped()?;
        let (ids, dead) = {
            let durable = lock(&self.durable);
            let candidates: Vec<Candidate> =
                durable.manifest.segments.iter().map(|meta| candidate(&durable, meta)).collect();
            let Some(window) = choose(&candidates, self.merge_rows_max()) else {
                return Ok(false);
            };
            let chosen = &durable.manifest.segments[window];
            let ids: Vec<SegmentId> = chosen.iter().map(|meta| meta.id).collect();
            let dead: Vec<DeadRows> =
                ids.iter().map(|id| durable.dead.get(id).cloned().unwrap_or_default()).collect();
            (ids, dead)
        };
        self.stop_on_sync_failure(self.compact(&ids, &dead, pace))?;
        Ok(true)
    }

    /// Merges the segments `ids`, neighbours and newest first, leaving out the rows `dropped`.
    fn compact(
        &self,
        ids: &[SegmentId],
        dropped: &[DeadRows],
        pace: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let state = self.state();
        let first = state.place_of_segment(ids[0]).expect("a durable segment is in the state");
        let inputs = &state.runs[first..first + ids.len()];
        let older = &state.runs[first + ids.len()..];
        let segments: Vec<&Arc<SegmentFile>> = inputs.iter().filter_map(Run::segment).collect();
        let mut moved: Vec<Vec<u32>> =
            segments.iter().map(|file| vec![DROPPED; file.segment.rows() as usize]).collect();
        let (mut next_row, mut unpaced) = (0, 0);
        let written = self.write_segment(|writer| {
            merge_segments(&segments, dropped, |input, row, key| {
                let run = &inputs[input];
                let tombstone = segments[input].segment.is_tombstone(row);
                if tombstone && !held_by(older, key)? {
                    return Ok(());
                }
                let (payload, names) = (run.payload(row)?, run.names(row)?);
                let vector = run.vector(row)?;
                writer.push(&SegmentRow {
                    key,
                    version: run.version(row)?,
                    tombstone,
                    embedding: vector.map(|vector| vector.values),
                    payload: payload.as_deref(),
                    names: names.as_ref(),
                })?;
                // Codes and links are written at the end, about a third of the vectors' bytes.
                let of_row = vector.map_or(0, |vector| vector.values.len() * 6);
                unpaced += (of_row + payload.map_or(0, |text| text.len()) + 32) as u64;
                if unpaced >= PACE_BYTES {
                    pace(std::mem::take(&mut unpaced));
                }
                moved[input][row as usize] = next_row;
                next_row += 1;
                Ok(())
            })?;
            Ok(next_row as usize)
        })?;
        self.swap_merged(ids, dropped, &moved, written)
    }

    /// Puts a merged segment into the place of its inputs, on disk and in memory.
    fn swap_merged(
        &self,
        ids: &[SegmentId],
        dropped: &[DeadRows],
        moved: &[Vec<u32>],
        written: Option<Written>,
    ) -> Result<(), StoreError> {
        let mut durable = lock(&self.durable);
        let mut manifest = durable.manifest.clone();
        let mut dead = durable.dead.clone();
        let place = manifest.segments.iter().position(|meta| meta.id == ids[0]);
        let place = place.expect("only a compaction removes segments, and there is one at a time");
        manifest.segments.drain(place..place + ids.len());
        let mut of_new = DeadRows::default();
        for ((id, dropped), moved) in ids.iter().zip(dropped).zip(moved) {
            let now = dead.remove(id).unwrap_or_default();
            translate(&now, dropped, moved, &mut of_new);
        }
        if let Some(written) = &written {
            of_new.extend(written.file.segment.tombstones());
            dead.insert(written.meta.id, of_new);
            manifest.segments.insert(place, written.meta.clone());
        }
        self.store_manifest(&durable.manifest, &mut manifest, written.as_ref())?;
        *durable = DurableState { manifest, dead };
        let _writer = lock(&self.writer);
        let mut next = State::clone(&self.state());
        let place = next.place_of_segment(ids[0]).expect("the state holds what is durable");
        let replaced: Vec<Run> = next.runs.drain(place..place + ids.len()).collect();
        if let Some(Written { file, .. }) = written {
            let mut dead = tombstones_of(&file.segment);
            for ((run, dropped), moved) in replaced.iter().zip(dropped).zip(moved) {
                translate(&run.dead, dropped, moved, &mut dead);
            }
            next.runs.insert(place, segment_run(file, dead));
        }
        self.publish(next);
        replaced.iter().filter_map(Run::segment).for_each(|file| file.retire());
        Ok(())
    }

    /// Reads every segment whole and checks it, those aside that come later. Holds one of them at a
    /// time, so that what a merge replaced can go. `pause` is called about every mebibyte with its
    /// size; the scrub ends with `Stopped` when it returns `false`.
    pub fn scrub(&self, pause: &mut dyn FnMut(usize) -> bool) -> Result<(), StoreError> {
        let id = |file: &Arc<SegmentFile>| file.segment.meta().id;
        let Some(newest) = self.state().segments().map(id).max() else { return Ok(()) };
        let mut last = None;
        loop {
            let due = |file: &&Arc<SegmentFile>| last < Some(id(file)) && id(file) <= newest;
            let next = self.state().segments().filter(due).min_by_key(|file| id(file)).cloned();
            let Some(file) = next else { return Ok(()) };
            file.segment.verify_all(pause)?;
            last = Some(id(&file));
        }
    }

    /// Writes a segment of the rows that `fill` pushes and counts; `None` when there were none.
    fn write_segment(
        &self,
        fill: impl FnOnce(&mut SegmentWriter<'_>) -> Result<usize, StoreError>,
    ) -> Result<Option<Written>, StoreError> {
        let id = SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed));
        let config = self.config();
        let space = space_of(config);
        let index = self.index();
        let mut writer = SegmentWriter::create(&*self.disk, &self.dir, id, space, &index)?;
        if fill(&mut writer)? == 0 {
            return Ok(None);
        }
        let meta = writer.finish()?;
        if meta.name_collisions > 0 {
            let (segment, count) = (id, meta.name_collisions);
            tracing::error!(shard = %config.shard, %segment, count, "two names have one id");
        }
        let file = open_segment(&self.disk, &self.dir, &meta, space)?;
        // Until a manifest names it, nobody would miss it.
        file.retire();
        Ok(Some(Written { meta, file }))
    }

    /// Makes `manifest` the durable one in place of `old`. After an error it is certain that the
    /// old one is, or `SyncFailed` is returned.
    fn store_manifest(
        &self,
        old: &Manifest,
        manifest: &mut Manifest,
        written: Option<&Written>,
    ) -> Result<(), StoreError> {
        manifest.next_segment = SegmentId(self.next_segment.load(Ordering::Relaxed));
        let result = manifest.store(&*self.disk, &self.dir).or_else(|error| match error {
            // Space runs out while the temporary file is written, before it replaces the old one.
            StoreError::DiskFull(error)
                if Manifest::load(&*self.disk, &self.dir)?.as_ref() == Some(old) =>
            {
                Err(StoreError::DiskFull(error))
            }
            StoreError::DiskFull(error) | StoreError::Io(error) => {
                Err(StoreError::SyncFailed(error))
            }
            other => Err(other),
        });
        if let (Some(written), Ok(()) | Err(StoreError::SyncFailed(_))) = (written, &result) {
            written.file.adopt();
        }
        result
    }

    fn stop_on_sync_failure(&self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        if matches!(result, Err(StoreError::SyncFailed(_))) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        result
    }

    fn refuse_when_stopped(&self) -> Result<(), StoreError> {
        if self.stopped.load(Ordering::Relaxed) {
            let error = std::io::Error::other("an earlier sync failed");
            return Err(StoreError::SyncFailed(error));
        }
        Ok(())
    }
}

/// What the choice of a compaction looks at.
pub(crate) fn candidate(durable: &DurableState, meta: &SegmentMeta) -> Candidate {
    let dead = durable.dead.get(&meta.id).map_or(0, DeadRows::count);
    let (rows, tombstones) = (u64::from(meta.rows), u64::from(meta.tombstones));
    Candidate { rows, dead: u64::from(dead) - tombstones, tombstones }
}

fn segment_run(file: Arc<SegmentFile>, dead: DeadRows) -> Run {
    Run { visible: file.segment.rows(), data: Data::Segment(file), dead: Arc::new(dead) }
}

/// Whether one of the runs has a row of this key, dead or not: a tombstone above them must stay.
fn held_by(runs: &[Run], key: FactKey) -> Result<bool, StoreError> {
    for run in runs {
        if run.find(key, &mut Touched::default())?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Marks in `out` the new rows of those that are dead `now` and were not `before`.
fn translate(now: &DeadRows, before: &DeadRows, moved: &[u32], out: &mut DeadRows) {
    for row in now.since(before) {
        let row = moved[row as usize];
        if row != DROPPED {
            out.insert(row);
        }
    }
}

/// Hands over the rows of `segments`, newest first, in key order: of each key the newest row,
/// unless it is a fact in `dropped`.
fn merge_segments(
    segments: &[&Arc<SegmentFile>],
    dropped: &[DeadRows],
    mut emit: impl FnMut(usize, u32, FactKey) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut cursors: Vec<Cursor<'_>> =
        segments.iter().map(|file| Cursor::new(&file.segment)).collect();
    loop {
        let mut first: Option<(FactKey, u32, usize)> = None;
        for (input, cursor) in cursors.iter_mut().enumerate() {
            if let Some((key, row)) = cursor.head()?
                && first.is_none_or(|(smallest, ..)| key < smallest)
            {
                first = Some((key, row, input));
            }
        }
        let Some((key, row, input)) = first else {
            return Ok(());
        };
        for cursor in &mut cursors[input..] {
            if cursor.head()?.is_some_and(|(head, _)| head == key) {
                cursor.at += 1;
            }
        }
        if !dropped[input].is_dead(row) || segments[input].segment.is_tombstone(row) {
            emit(input, row, key)?;
        }
    }
}

/// Walks one segment; decodes a batch of keys at a time.
struct Cursor<'s> {
    segment: &'s Segment,
    batch: Vec<(FactKey, u32)>,
    at: usize,
    next_row: u32,
}

impl<'s> Cursor<'s> {
    const BATCH: u32 = 1024;

    fn new(segment: &'s Segment) -> Self {
        Self { segment, batch: Vec::new(), at: 0, next_row: 0 }
    }

    fn head(&mut self) -> Result<Option<(FactKey, u32)>, StoreError> {
        if self.at == self.batch.len() && self.next_row < self.segment.rows() {
            let end = self.segment.rows().min(self.next_row.saturating_add(Self::BATCH));
            self.batch.clear();
            self.at = 0;
            let batch = &mut self.batch;
            self.segment.for_each_key(self.next_row..end, |row, key| batch.push((key, row)))?;
            self.next_row = end;
        }
        Ok(self.batch.get(self.at).copied())
    }
}
