//! Live rows of key ranges, from all runs of a state, in key order.
//!
//! Keys are decoded a batch at a time: a segment decodes neighbours faster than single rows.

use crate::error::StoreError;
use crate::known::Known;
use crate::run::{Run, RunRows};
use crate::segment::Touched;
use crate::state::State;
use hopbine_proto::call::Work;
use hopbine_proto::{FactKey, KeyRange};
use std::ops::{ControlFlow, Range};

/// Keys decoded at a time.
const BATCH: u32 = 256;
/// First rows of a range that are brought nearer before it is read.
const ROWS_AHEAD: usize = 2;

/// A live row.
#[derive(Clone, Copy)]
pub(crate) struct LiveRow<'s> {
    pub run: &'s Run,
    /// Place of the run in its state.
    pub place: u32,
    pub row: u32,
    pub key: FactKey,
}

/// Where the rows of a list of key ranges lie in the runs of a state.
pub(crate) struct Located<'s> {
    runs: Vec<Cursor<'s>>,
}

/// The rows of one run, and how far the range at hand has been visited.
struct Cursor<'s> {
    run: &'s Run,
    place: u32,
    rows: RunRows,
    /// Places not yet decoded.
    left: Range<u32>,
    /// Decoded live rows.
    batch: Vec<(FactKey, u32)>,
    next: usize,
}

impl<'s> Located<'s> {
    /// Finds the rows of `ranges`, which must be ascending and disjoint. Adds to `work` the runs
    /// and the blocks it took.
    pub fn new(state: &'s State, ranges: &[KeyRange], work: &mut Work) -> Result<Self, StoreError> {
        let mut runs = Vec::with_capacity(state.runs.len());
        work.runs += state.runs.len() as u64;
        for (place, run) in (0..).zip(&state.runs).filter(|(_, run)| run.visible > 0) {
            let mut touched = Touched::default();
            let rows = run.rows(ranges, &mut touched)?;
            work.blocks_read += touched.blocks();
            work.block_bytes += touched.bytes();
            if !rows.is_empty() {
                work.runs_read += 1;
                runs.push(Cursor { run, place, rows, left: 0..0, batch: Vec::new(), next: 0 });
            }
        }
        Ok(Self { runs })
    }

    /// At most so many live rows lie in range number `range`.
    pub fn rows_max(&self, range: usize) -> u64 {
        self.runs.iter().map(|cursor| cursor.rows.places(range).len() as u64).sum()
    }

    /// At most so many live rows lie in all of them.
    pub fn rows_max_of_all(&self) -> u64 {
        self.runs.iter().map(|cursor| cursor.rows.count()).sum()
    }

    /// The vectors of range number `range` will be asked for soon, but for those whose distance is
    /// known.
    pub fn expect_vectors(&self, range: usize, known: Option<&Known>) {
        for cursor in &self.runs {
            if let RunRows::Segment(ranges) = &cursor.rows
                && let Some(range) = ranges.get(range)
            {
                let is_known = |row| known.is_some_and(|k| k.distance(cursor.place, row).is_some());
                let first = range.clone().take(ROWS_AHEAD).filter(|row| !is_known(*row));
                first.for_each(|row| cursor.run.expect_vector(row));
            }
        }
    }

    /// Visits the live rows of range number `range` in key order until `visit` breaks.
    pub fn visit(
        &mut self,
        range: usize,
        visit: &mut dyn FnMut(LiveRow<'s>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<ControlFlow<()>, StoreError> {
        let (mut filled, mut last) = (0, 0);
        for (number, cursor) in self.runs.iter_mut().enumerate() {
            cursor.start(range);
            if !cursor.left.is_empty() {
                (filled, last) = (filled + 1, number);
            }
        }
        match filled {
            0 => Ok(ControlFlow::Continue(())),
            1 => self.runs[last].visit_all(visit),
            _ => self.visit_merged(visit),
        }
    }

    fn visit_merged(
        &mut self,
        visit: &mut dyn FnMut(LiveRow<'s>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<ControlFlow<()>, StoreError> {
        loop {
            let mut first: Option<(FactKey, usize)> = None;
            for (number, cursor) in self.runs.iter_mut().enumerate() {
                cursor.refill()?;
                if let Some((key, _)) = cursor.batch.get(cursor.next)
                    && first.is_none_or(|(smallest, _)| *key < smallest)
                {
                    first = Some((*key, number));
                }
            }
            let Some((key, number)) = first else {
                return Ok(ControlFlow::Continue(()));
            };
            let cursor = &mut self.runs[number];
            let row = cursor.batch[cursor.next].1;
            cursor.next += 1;
            if visit(LiveRow { run: cursor.run, place: cursor.place, row, key })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
}

impl<'s> Cursor<'s> {
    /// Goes to the start of a range.
    fn start(&mut self, range: usize) {
        self.left = self.rows.places(range);
        self.batch.clear();
        self.next = 0;
    }

    /// Visits what is left of the range: no other run has rows there.
    fn visit_all(
        &mut self,
        visit: &mut dyn FnMut(LiveRow<'s>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<ControlFlow<()>, StoreError> {
        loop {
            self.refill()?;
            if self.batch.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            let (run, place) = (self.run, self.place);
            for (key, row) in &self.batch {
                if visit(LiveRow { run, place, row: *row, key: *key })?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.next = self.batch.len();
        }
    }

    /// Decodes the next live rows once all decoded ones are used up. Afterwards the batch is at
    /// its end only if the range is.
    fn refill(&mut self) -> Result<(), StoreError> {
        if self.next < self.batch.len() {
            return Ok(());
        }
        self.batch.clear();
        self.next = 0;
        while self.batch.is_empty() && !self.left.is_empty() {
            let end = self.left.end.min(self.left.start.saturating_add(BATCH));
            self.rows.decode(self.run, self.left.start..end, &mut self.batch)?;
            self.left.start = end;
        }
        Ok(())
    }
}
