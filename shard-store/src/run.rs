//! One run of a shard's data, memtable or segment, as a state pins it.

use crate::dead::DeadRows;
use crate::error::StoreError;
use crate::graph::{VectorRow, VectorSource};
use crate::memtable::Memtable;
use crate::segment::{Segment, Touched};
use hopbine_proto::disk::Disk;
use hopbine_proto::{FactKey, KeyRange, LogIndex, Metric, Names};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A run and how much of it is visible.
#[derive(Clone)]
pub(crate) struct Run {
    pub data: Data,
    /// Rows below this number are visible.
    pub visible: u32,
    /// Rows that are superseded, deleted or tombstones.
    pub dead: Arc<DeadRows>,
}

#[derive(Clone)]
pub(crate) enum Data {
    Memtable(Arc<Memtable>),
    Segment(Arc<SegmentFile>),
}

/// An open segment and the file behind it, which goes when the last view of an obsolete segment
/// lets go.
pub(crate) struct SegmentFile {
    pub segment: Segment,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    obsolete: AtomicBool,
}

impl SegmentFile {
    pub fn new(segment: Segment, path: PathBuf, disk: Arc<dyn Disk>) -> Self {
        Self { segment, path, disk, obsolete: AtomicBool::new(false) }
    }

    /// No manifest names the file, or none any more.
    pub fn retire(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// A manifest names the file, or may.
    pub fn adopt(&self) {
        self.obsolete.store(false, Ordering::Release);
    }
}

impl Drop for SegmentFile {
    fn drop(&mut self) {
        if *self.obsolete.get_mut()
            && let Err(error) = self.disk.remove(&self.path)
        {
            // Opening the folder again finds it as an orphan.
            tracing::warn!(path = %self.path.display(), %error, "could not remove a segment");
        }
    }
}

/// Where the rows of one run for a list of key ranges are: consecutive *places* per range.
pub(crate) enum RunRows {
    /// Of a segment: a place is a row; dead rows are among them.
    Segment(Vec<Range<u32>>),
    /// Of a memtable: live rows in key order, and where each range's rows end.
    Memtable { rows: Vec<(FactKey, u32)>, ends: Vec<u32> },
}

impl RunRows {
    /// Places for range number `number` of the list.
    pub fn places(&self, number: usize) -> Range<u32> {
        match self {
            Self::Segment(ranges) => ranges[number].clone(),
            Self::Memtable { ends, .. } => {
                let start = if number == 0 { 0 } else { ends[number - 1] };
                start..ends[number]
            }
        }
    }

    /// Places of all ranges.
    pub fn count(&self) -> u64 {
        match self {
            Self::Segment(ranges) => ranges.iter().map(|range| range.len() as u64).sum(),
            Self::Memtable { rows, .. } => rows.len() as u64,
        }
    }

    /// Live rows for range number `number` of the list; `run` is whose rows these are.
    pub fn live(&self, number: usize, run: &Run) -> u64 {
        let places = self.places(number);
        match self {
            Self::Segment(_) => places.len() as u64 - u64::from(run.dead.count_in(places)),
            Self::Memtable { .. } => places.len() as u64,
        }
    }

    /// Whether there is no row at all.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Segment(ranges) => ranges.iter().all(Range::is_empty),
            Self::Memtable { rows, .. } => rows.is_empty(),
        }
    }

    /// Appends key and number of the live rows at `places`, in key order.
    pub fn decode(
        &self,
        run: &Run,
        places: Range<u32>,
        live: &mut Vec<(FactKey, u32)>,
    ) -> Result<(), StoreError> {
        match (self, &run.data) {
            (Self::Segment(_), Data::Segment(file)) if run.dead.count() == 0 => {
                file.segment.for_each_key(places, |row, key| live.push((key, row)))
            }
            (Self::Segment(_), Data::Segment(file)) => {
                file.segment.for_each_key(places, |row, key| {
                    if !run.dead.is_dead(row) {
                        live.push((key, row));
                    }
                })
            }
            (Self::Memtable { rows, .. }, _) => {
                live.extend_from_slice(&rows[places.start as usize..places.end as usize]);
                Ok(())
            }
            (Self::Segment(_), Data::Memtable(_)) => {
                unreachable!("the rows of a memtable are listed")
            }
        }
    }
}

impl Run {
    /// An empty memtable without visible rows.
    pub fn empty_memtable(metric: Metric, dim: u32) -> Self {
        let data = Data::Memtable(Arc::new(Memtable::new(metric, dim as usize)));
        Self { data, visible: 0, dead: Arc::default() }
    }

    /// The segment behind the run, if it is one.
    pub fn segment(&self) -> Option<&Arc<SegmentFile>> {
        match &self.data {
            Data::Memtable(_) => None,
            Data::Segment(file) => Some(file),
        }
    }

    /// Whether `row` is visible and live.
    #[inline]
    pub fn is_live(&self, row: u32) -> bool {
        row < self.visible && !self.dead.is_dead(row)
    }

    /// Live rows.
    pub fn live(&self) -> u32 {
        self.visible - self.dead.count()
    }

    /// The newest visible row of `key`, dead or not.
    pub fn find(&self, key: FactKey, touched: &mut Touched) -> Result<Option<u32>, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.find(key, self.visible)),
            Data::Segment(file) => file.segment.find(key, touched),
        }
    }

    /// Rows for each of `ranges`, which must be ascending.
    pub fn rows(&self, ranges: &[KeyRange], touched: &mut Touched) -> Result<RunRows, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => {
                let mut rows = Vec::new();
                let mut ends = Vec::with_capacity(ranges.len());
                for range in ranges {
                    let live = |row| !self.dead.is_dead(row);
                    memtable.collect(range, self.visible, live, &mut rows);
                    ends.push(rows.len() as u32);
                }
                Ok(RunRows::Memtable { rows, ends })
            }
            Data::Segment(file) => {
                let mut found = Vec::with_capacity(ranges.len());
                file.segment.ranges(ranges, touched, &mut found)?;
                Ok(RunRows::Segment(found))
            }
        }
    }

    /// Key of a visible row.
    #[inline]
    pub fn key(&self, row: u32) -> Result<FactKey, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.row(row).key),
            Data::Segment(file) => file.segment.key(row),
        }
    }

    /// Log index that wrote a visible row.
    pub fn version(&self, row: u32) -> Result<LogIndex, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.row(row).version),
            Data::Segment(file) => file.segment.version(row),
        }
    }

    /// Embedding of a visible row and its norm.
    #[inline]
    pub fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.row(row).vector_row()),
            Data::Segment(file) => VectorSource::vector(&file.segment, row),
        }
    }

    /// The vector of `row` will be asked for soon.
    #[inline]
    pub fn expect_vector(&self, row: u32) {
        if let Data::Segment(file) = &self.data {
            file.segment.expect(row);
        }
    }

    /// JSON text of a visible row.
    pub fn payload(&self, row: u32) -> Result<Option<Arc<str>>, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.row(row).payload.clone()),
            Data::Segment(file) => file.segment.payload(row),
        }
    }

    /// Names of a visible row.
    pub fn names(&self, row: u32) -> Result<Option<Names>, StoreError> {
        match &self.data {
            Data::Memtable(memtable) => Ok(memtable.row(row).names.clone()),
            Data::Segment(file) => file.segment.names(row),
        }
    }
}
