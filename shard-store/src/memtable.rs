//! The newest facts of a shard, in memory: rows in the order of writing, found by key.
//!
//! One writer appends; readers never wait for it except while the key index is touched. A row
//! never changes once it is there, so a view is a count of visible rows and a bitmap of dead ones.
//! Rows below that count are all there; rows above it belong to a batch not yet published.

use crate::graph::{TailChunk, VectorRow};
use hopbine_proto::{Fact, FactKey, KeyRange, LogIndex, Metric, Names};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Rows of the first bucket; each next bucket holds twice as many.
const FIRST_BUCKET: u32 = 256;
/// Buckets that together hold every `u32` row number.
const BUCKETS: usize = 25;
/// Rows whose 8-bit codes lie together. The last rows, fewer than this, are searched exactly.
pub const TAIL_ROWS: u32 = 256;
/// Bytes a row takes besides its embedding, payload and names: the row, the index entry, the heap.
const ROW_OVERHEAD: usize = 240;

/// One row: a fact as written, or a tombstone.
#[derive(Debug)]
pub struct MemRow {
    /// Where the fact lives.
    pub key: FactKey,
    /// Log index that wrote it.
    pub version: LogIndex,
    /// Whether it only says that the key is gone.
    pub tombstone: bool,
    /// The vector and its norm.
    pub vector: Option<MemVector>,
    /// JSON text.
    pub payload: Option<Arc<str>>,
    /// In a `names` graph.
    pub names: Option<Names>,
}

/// An embedding with what a search needs of it.
#[derive(Debug)]
pub struct MemVector {
    /// As written.
    pub values: Arc<[f32]>,
    /// Its length, by the exact kernel.
    pub norm: f64,
}

impl MemRow {
    /// The row of a fact; `norm` is the exact kernel's norm of its embedding.
    pub fn fact(fact: &Fact, version: LogIndex, norm: impl Fn(&[f32]) -> f64) -> Self {
        let vector = fact.embedding.as_ref();
        Self {
            key: fact.key,
            version,
            tombstone: false,
            vector: vector.map(|values| MemVector { values: values.clone(), norm: norm(values) }),
            payload: fact.payload.clone(),
            names: fact.names.clone(),
        }
    }

    /// The row that says that `key` is gone.
    pub fn tombstone(key: FactKey, version: LogIndex) -> Self {
        Self { key, version, tombstone: true, vector: None, payload: None, names: None }
    }

    /// The embedding as searches take it.
    pub fn vector_row(&self) -> Option<VectorRow<'_>> {
        self.vector.as_ref().map(|vector| VectorRow { values: &vector.values, norm: vector.norm })
    }

    /// Memory the row takes, in bytes, rounded up.
    pub fn bytes(&self) -> usize {
        let vector = self.vector.as_ref().map_or(0, |vector| vector.values.len() * 5);
        let payload = self.payload.as_ref().map_or(0, |payload| payload.len());
        let names = self.names.as_ref().map_or(0, |names| names.entity.len() + names.target.len());
        ROW_OVERHEAD + vector + payload + names
    }
}

/// One end of a stretch of the key index.
type RowBound = Bound<(FactKey, u32)>;

type Bucket = Box<[OnceLock<MemRow>]>;

/// Append-only rows with an index by key.
pub struct Memtable {
    buckets: [OnceLock<Bucket>; BUCKETS],
    len: AtomicU32,
    bytes: AtomicUsize,
    by_key: RwLock<BTreeSet<(FactKey, u32)>>,
    tail: RwLock<Vec<Arc<TailChunk>>>,
    metric: Metric,
    dim: usize,
}

impl Memtable {
    /// An empty memtable for embeddings of `dim` components.
    pub fn new(metric: Metric, dim: usize) -> Self {
        Self {
            buckets: std::array::from_fn(|_| OnceLock::new()),
            len: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            by_key: RwLock::default(),
            tail: RwLock::default(),
            metric,
            dim,
        }
    }

    /// Rows appended so far, those of an unpublished batch included.
    pub fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Memory taken, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The row of this number, which must have been appended.
    pub fn row(&self, row: u32) -> &MemRow {
        let (bucket, at) = place(row);
        let bucket = self.buckets[bucket].get().expect("a visible row was appended");
        bucket[at].get().expect("a visible row was appended")
    }

    /// Appends rows; the first gets the number `len()`. Only one thread may append.
    pub fn append(&self, rows: Vec<MemRow>) {
        let first = self.len();
        let mut bytes = 0;
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        for (row, number) in rows.into_iter().zip(first..) {
            bytes += row.bytes();
            by_key.insert((row.key, number));
            let (bucket, at) = place(number);
            let size = (FIRST_BUCKET as usize) << bucket;
            let bucket =
                self.buckets[bucket].get_or_init(|| (0..size).map(|_| OnceLock::new()).collect());
            assert!(bucket[at].set(row).is_ok(), "row {number} of a memtable was appended twice");
            self.len.store(number + 1, Ordering::Release);
        }
        drop(by_key);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.code_full_chunks();
    }

    /// Codes the rows of every chunk that has become full.
    fn code_full_chunks(&self) {
        let chunks = self.tail.read().unwrap_or_else(PoisonError::into_inner).len() as u32;
        for chunk in chunks..self.len() / TAIL_ROWS {
            let mut coded = TailChunk::with_capacity(self.metric, self.dim, TAIL_ROWS as usize);
            for row in chunk * TAIL_ROWS..(chunk + 1) * TAIL_ROWS {
                coded.push(self.row(row).vector_row());
            }
            let mut tail = self.tail.write().unwrap_or_else(PoisonError::into_inner);
            tail.push(Arc::new(coded));
        }
    }

    /// Codes of rows 0 up to a multiple of `TAIL_ROWS`: all full chunks of the first `visible`.
    pub fn tail(&self, visible: u32) -> Vec<Arc<TailChunk>> {
        let tail = self.tail.read().unwrap_or_else(PoisonError::into_inner);
        tail[..(visible / TAIL_ROWS) as usize].to_vec()
    }

    /// The newest row of `key` below `visible`.
    pub fn find(&self, key: FactKey, visible: u32) -> Option<u32> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        by_key.range((key, 0)..(key, visible)).next_back().map(|(_, row)| *row)
    }

    /// Of each key the newest row below `visible`, in key order.
    pub fn newest_rows(&self, visible: u32) -> Vec<u32> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let mut newest: Vec<(FactKey, u32)> = Vec::new();
        for (key, row) in by_key.iter().filter(|(_, row)| *row < visible) {
            match newest.last_mut() {
                Some(last) if last.0 == *key => last.1 = *row,
                _ => newest.push((*key, *row)),
            }
        }
        newest.into_iter().map(|(_, row)| row).collect()
    }

    /// Appends to `found` the rows below `visible` with a key in `range` for which `wanted` holds,
    /// in key order, older rows of a key first.
    pub fn collect(
        &self,
        range: &KeyRange,
        visible: u32,
        wanted: impl Fn(u32) -> bool,
        found: &mut Vec<(FactKey, u32)>,
    ) {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let Some(bounds) = bounds(range) else { return };
        let rows = by_key.range(bounds).copied();
        found.extend(rows.filter(|(_, row)| *row < visible && wanted(*row)));
    }

    /// The first of the rows that `collect` would find.
    pub fn first(
        &self,
        range: &KeyRange,
        visible: u32,
        wanted: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let mut rows = by_key.range(bounds(range)?).map(|(_, row)| *row);
        rows.find(|row| *row < visible && wanted(*row))
    }
}

/// Where the rows of `range` stand; `None` when it holds no key.
fn bounds(range: &KeyRange) -> Option<(RowBound, RowBound)> {
    let end = match range.end {
        Some(end) if end <= range.start => return None,
        Some(end) => Bound::Excluded((end, 0)),
        None => Bound::Unbounded,
    };
    Some((Bound::Included((range.start, 0)), end))
}

/// Bucket and place of a row: bucket b starts at row `FIRST_BUCKET * (2^b - 1)`.
fn place(row: u32) -> (usize, usize) {
    let shifted = u64::from(row) + u64::from(FIRST_BUCKET);
    let bucket = shifted.ilog2() - FIRST_BUCKET.ilog2();
    (bucket as usize, (shifted - (u64::from(FIRST_BUCKET) << bucket)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_fill_bucket_after_bucket_without_gap() {
        let mut next = (0, 0);
        for row in 0..100_000 {
            assert_eq!(place(row), next, "row {row}");
            next.1 += 1;
            if next.1 == (FIRST_BUCKET as usize) << next.0 {
                next = (next.0 + 1, 0);
            }
        }
        assert!(place(u32::MAX).0 < BUCKETS);
    }

    proptest! {
        #[test]
        fn a_view_sees_the_rows_of_its_moment_in_key_order(
            keys in proptest::collection::vec((0u64..6, 0u32..3, 0u64..6), 1..80),
            cut in 0usize..80,
            start in (0u64..7, 0u32..3),
            end in proptest::option::of((0u64..7, 0u32..3)),
        ) {
            let table = Memtable::new(Metric::Cosine, 2);
            let keys: Vec<FactKey> =
                keys.into_iter().map(|(e, r, t)| FactKey::new(e, r, t)).collect();
            for key in &keys {
                table.append(vec![MemRow::tombstone(*key, LogIndex(1))]);
            }
            let visible = cut.min(keys.len());
            for key in &keys {
                let newest = keys[..visible].iter().rposition(|other| other == key);
                prop_assert_eq!(table.find(*key, visible as u32), newest.map(|row| row as u32));
            }
            let range = KeyRange {
                start: FactKey::new(start.0, start.1, 0),
                end: end.map(|(e, r)| FactKey::new(e, r, 0)),
            };
            let mut expected: Vec<(FactKey, u32)> = (0..visible as u32)
                .map(|row| (keys[row as usize], row))
                .filter(|(key, row)| range.contains(*key) && row % 3 != 0)
                .collect();
            expected.sort_unstable();
            let mut found = Vec::new();
            table.collect(&range, visible as u32, |row| row % 3 != 0, &mut found);
            let first = table.first(&range, visible as u32, |row| row % 3 != 0);
            prop_assert_eq!(first, expected.first().map(|(_, row)| *row));
            prop_assert_eq!(found, expected);
        }
    }
}
