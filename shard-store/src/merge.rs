//! Live rows of key ranges, from all runs of a state, in key order.
//!
//! Keys are decoded a batch at a time: a segment decodes neighbours faster than single rows.

use crate::error::StoreError;
use crate::run::{Data, RowsOfRange, Run, RunRows};
use crate::segment::Touched;
use crate::state::State;
use hopbine_proto::call::Work;
use hopbine_proto::{FactKey, KeyRange};
use std::ops::ControlFlow;

/// Keys decoded at a time.
const BATCH: usize = 256;

/// A live row.
#[derive(Clone, Copy)]
pub(crate) struct LiveRow<'s> {
    pub run: &'s Run,
    pub row: u32,
    pub key: FactKey,
}

/// Where the rows of a list of key ranges lie in the runs of a state.
pub(crate) struct Located<'s> {
    runs: Vec<(&'s Run, RunRows)>,
    keys: Vec<Batch>,
}

/// Decoded keys of one run.
#[derive(Default)]
struct Batch {
    keys: Vec<(FactKey, u32)>,
    next: usize,
}

impl<'s> Located<'s> {
    /// Finds the rows of `ranges`, which must be ascending and disjoint. Adds to `work` the runs
    /// and the blocks it took.
    pub fn new(state: &'s State, ranges: &[KeyRange], work: &mut Work) -> Result<Self, StoreError> {
        let mut runs = Vec::with_capacity(state.runs.len());
        work.runs += state.runs.len() as u64;
        for run in state.runs.iter().filter(|run| run.visible > 0) {
            let mut touched = Touched::default();
            let rows = run.rows(ranges, &mut touched)?;
            work.blocks_read += touched.blocks();
            work.block_bytes += touched.bytes();
            if !rows.is_empty() {
                work.runs_read += 1;
                runs.push((run, rows));
            }
        }
        let keys = runs.iter().map(|_| Batch::default()).collect();
        Ok(Self { runs, keys })
    }

    /// At most so many live rows lie in range number `range`.
    pub fn rows_max(&self, range: usize) -> u64 {
        self.runs.iter().map(|(_, rows)| rows.of(range).len() as u64).sum()
    }

    /// Visits the live rows of range number `range` in key order until `visit` breaks.
    pub fn visit(
        &mut self,
        range: usize,
        visit: &mut dyn FnMut(LiveRow<'s>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let mut rows: Vec<RowsOfRange<'_>> = Vec::new();
        let mut single = None;
        for (number, (_, of_run)) in self.runs.iter().enumerate() {
            let of_range = of_run.of(range);
            if of_range.len() > 0 {
                single =
                    if rows.iter().all(|other| other.len() == 0) { Some(number) } else { None };
            }
            rows.push(of_range);
        }
        if let Some(number) = single {
            let (run, batch) = (self.runs[number].0, &mut self.keys[number]);
            return visit_one(run, &mut rows[number], batch, visit);
        }
        for batch in &mut self.keys {
            batch.keys.clear();
            batch.next = 0;
        }
        loop {
            let mut first: Option<(FactKey, usize)> = None;
            for (number, batch) in self.keys.iter_mut().enumerate() {
                batch.refill(self.runs[number].0, &mut rows[number])?;
                if let Some((key, _)) = batch.keys.get(batch.next)
                    && first.is_none_or(|(smallest, _)| *key < smallest)
                {
                    first = Some((*key, number));
                }
            }
            let Some((key, number)) = first else {
                return Ok(ControlFlow::Continue(()));
            };
            let batch = &mut self.keys[number];
            let row = batch.keys[batch.next].1;
            batch.next += 1;
            if visit(LiveRow { run: self.runs[number].0, row, key })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
}

fn visit_one<'s>(
    run: &'s Run,
    rows: &mut RowsOfRange<'_>,
    batch: &mut Batch,
    visit: &mut dyn FnMut(LiveRow<'s>) -> Result<ControlFlow<()>, StoreError>,
) -> Result<ControlFlow<()>, StoreError> {
    batch.keys.clear();
    batch.next = 0;
    loop {
        batch.refill(run, rows)?;
        if batch.keys.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        for (key, row) in &batch.keys {
            if visit(LiveRow { run, row: *row, key: *key })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        batch.next = batch.keys.len();
    }
}

impl Batch {
    /// Decodes the next live rows once all decoded ones are used up. Afterwards the batch is at
    /// its end only if the rows are.
    fn refill(&mut self, run: &Run, rows: &mut RowsOfRange<'_>) -> Result<(), StoreError> {
        if self.next < self.keys.len() {
            return Ok(());
        }
        self.keys.clear();
        self.next = 0;
        while self.keys.is_empty() && rows.len() > 0 {
            match (&run.data, &mut *rows) {
                (Data::Segment(file), RowsOfRange::Range(range)) => {
                    let end = range.end.min(range.start + BATCH as u32);
                    let part = range.start..end;
                    range.start = end;
                    file.segment.for_each_key(part, |row, key| {
                        if !run.dead.is_dead(row) {
                            self.keys.push((key, row));
                        }
                    })?;
                }
                (_, rows) => {
                    for row in rows.take(BATCH).filter(|row| run.is_live(*row)) {
                        self.keys.push((run.key(row)?, row));
                    }
                }
            }
        }
        Ok(())
    }
}
