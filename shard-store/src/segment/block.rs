//! A fact block: up to 512 rows in key order, column by column. Every row is reached without
//! decoding another.
//!
//! | part      | bytes                 | content                                              |
//! |-----------|-----------------------|------------------------------------------------------|
//! | rows      | 2                     | facts, 1 to 512                                      |
//! | entities  | 2                     | distinct entities                                    |
//! | relations | 2                     | distinct relations                                   |
//! | widths    | 4                     | bytes of: entity offset, relation number, target     |
//! |           |                       | offset, version offset; 0 to 8                       |
//! | zero      | 6                     |                                                      |
//! | bases     | 3 x 8                 | smallest entity, target, version                     |
//! | starts    | entities x 2          | first row of each entity                             |
//! | entities  | entities x width      | minus the base, ascending                            |
//! | relations | relations x 4         | ascending                                            |
//! | numbers   | rows x width          | place of the row's relation in that list             |
//! | targets   | rows x width          | minus the base                                       |
//! | versions  | rows x width          | log index minus the base                             |
//! | zero      | 8, then to 64 aligned | so that any offset can be read as eight bytes        |
//!
//! Which coding was chosen against which, and the bytes a fact, is in docs/benchmarks.md.

use super::format::{ALIGN, u32_at, u64_at};
use hopbine_proto::limits::BLOCK_BYTES_MAX;
use hopbine_proto::{FactKey, LogIndex};
use std::ops::Range;

/// Rows of every block but the last, so that a row number names its block.
pub const BLOCK_ROWS: usize = 512;
const HEAD_BYTES: usize = 40;
const SLACK: usize = 8;

// Wide offsets of every column and a run for every row still keep the bound.
const _: () = assert!(HEAD_BYTES + BLOCK_ROWS * (2 + 8 + 4 + 2 + 8 + 8) + 128 <= BLOCK_BYTES_MAX);

/// One row as the block holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub key: FactKey,
    pub version: LogIndex,
}

/// Bytes that hold `value`.
fn width_of(value: u64) -> usize {
    (64 - value.leading_zeros() as usize).div_ceil(8)
}

fn put(bytes: &mut Vec<u8>, value: u64, width: usize) {
    bytes.extend_from_slice(&value.to_le_bytes()[..width]);
}

/// Encodes 1 to 512 rows in ascending key order.
pub(crate) fn encode(rows: &[BlockRow]) -> Vec<u8> {
    assert!((1..=BLOCK_ROWS).contains(&rows.len()), "a block of {} rows", rows.len());
    let mut starts: Vec<u16> = Vec::new();
    let mut relations: Vec<u32> = rows.iter().map(|row| row.key.relation.0).collect();
    relations.sort_unstable();
    relations.dedup();
    for (number, row) in rows.iter().enumerate() {
        if number == 0 || rows[number - 1].key.entity != row.key.entity {
            starts.push(number as u16);
        }
    }
    let column = |value: fn(&BlockRow) -> u64| {
        let (mut low, mut high) = (u64::MAX, 0);
        for row in rows {
            low = low.min(value(row));
            high = high.max(value(row));
        }
        (low, width_of(high - low))
    };
    let (entity_base, entity_width) = column(|row| row.key.entity.0);
    let (target_base, target_width) = column(|row| row.key.target.0);
    let (version_base, version_width) = column(|row| row.version.0);
    let number_width = width_of(relations.len() as u64 - 1);
    let mut bytes = Vec::with_capacity(rows.len() * 16);
    for count in [rows.len(), starts.len(), relations.len()] {
        bytes.extend_from_slice(&(count as u16).to_le_bytes());
    }
    bytes.extend([entity_width, number_width, target_width, version_width].map(|w| w as u8));
    bytes.extend_from_slice(&[0; 6]);
    for base in [entity_base, target_base, version_base] {
        bytes.extend_from_slice(&base.to_le_bytes());
    }
    starts.iter().for_each(|start| bytes.extend_from_slice(&start.to_le_bytes()));
    for start in &starts {
        put(&mut bytes, rows[*start as usize].key.entity.0 - entity_base, entity_width);
    }
    relations.iter().for_each(|relation| bytes.extend_from_slice(&relation.to_le_bytes()));
    for row in rows {
        let number = relations.partition_point(|relation| *relation < row.key.relation.0);
        put(&mut bytes, number as u64, number_width);
    }
    rows.iter().for_each(|row| put(&mut bytes, row.key.target.0 - target_base, target_width));
    rows.iter().for_each(|row| put(&mut bytes, row.version.0 - version_base, version_width));
    bytes.extend_from_slice(&[0; SLACK]);
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    bytes
}

/// A column of offsets of equal width.
#[derive(Clone, Copy)]
struct Column {
    start: usize,
    width: usize,
    mask: u64,
}

impl Column {
    fn new(start: usize, width: usize) -> Self {
        let mask = if width == 8 { u64::MAX } else { (1 << (width * 8)) - 1 };
        Self { start, width, mask }
    }

    #[inline(always)]
    fn get(self, bytes: &[u8], number: usize) -> u64 {
        u64_at(bytes, self.start + number * self.width) & self.mask
    }

    fn end(self, count: usize) -> usize {
        self.start + count * self.width
    }
}

/// A view of one encoded block.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    rows: usize,
    entity_count: usize,
    relation_count: usize,
    entity_base: u64,
    target_base: u64,
    version_base: u64,
    entities: Column,
    relations: usize,
    numbers: Column,
    targets: Column,
    versions: Column,
}

impl<'a> Block<'a> {
    /// A view of bytes that have passed their checksum; `None` when they are no block of `rows`
    /// rows. Whatever the bytes, no later call panics.
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8], rows: usize) -> Option<Self> {
        if bytes.len() < HEAD_BYTES {
            return None;
        }
        let count = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize;
        let (entity_count, relation_count) = (count(2), count(4));
        let widths = &bytes[6..10];
        let sound = count(0) == rows
            && (1..=BLOCK_ROWS).contains(&rows)
            && (1..=rows).contains(&entity_count)
            && (1..=rows).contains(&relation_count)
            && widths.iter().all(|width| *width <= 8);
        if !sound {
            return None;
        }
        let width = |number: usize| widths[number] as usize;
        let entities = Column::new(HEAD_BYTES + entity_count * 2, width(0));
        let relations = entities.end(entity_count);
        let numbers = Column::new(relations + relation_count * 4, width(1));
        let targets = Column::new(numbers.end(rows), width(2));
        let versions = Column::new(targets.end(rows), width(3));
        if versions.end(rows) + SLACK > bytes.len() {
            return None;
        }
        Some(Self {
            bytes,
            rows,
            entity_count,
            relation_count,
            entity_base: u64_at(bytes, 16),
            target_base: u64_at(bytes, 24),
            version_base: u64_at(bytes, 32),
            entities,
            relations,
            numbers,
            targets,
            versions,
        })
    }

    /// First row of entity number `number`; the number of rows after the last.
    #[inline]
    fn start(&self, number: usize) -> usize {
        if number >= self.entity_count {
            return self.rows;
        }
        let at = HEAD_BYTES + number * 2;
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]) as usize
    }

    #[inline]
    fn entity(&self, number: usize) -> u64 {
        self.entity_base.wrapping_add(self.entities.get(self.bytes, number))
    }

    #[inline]
    fn edge(&self, row: usize) -> (u32, u64) {
        let number = self.numbers.get(self.bytes, row) as usize;
        let relation = number.min(self.relation_count - 1);
        let target = self.target_base.wrapping_add(self.targets.get(self.bytes, row));
        (u32_at(self.bytes, self.relations + relation * 4), target)
    }

    /// Key of a row below the number of rows. Cost: a binary search over the entities.
    #[inline]
    pub(crate) fn key(&self, row: usize) -> FactKey {
        let after = partition(0..self.entity_count, |number| self.start(number) <= row);
        let (relation, target) = self.edge(row);
        FactKey::new(self.entity(after.saturating_sub(1)), relation, target)
    }

    /// Calls `visit` with the key of each row of the range, in order.
    pub(crate) fn for_each_key(&self, rows: Range<usize>, mut visit: impl FnMut(FactKey)) {
        let after = partition(0..self.entity_count, |number| self.start(number) <= rows.start);
        self.for_each_key_from(after.saturating_sub(1), rows, |_, key| visit(key));
    }

    /// Calls `visit` with each row whose key is at least `start` and below `end`, and that key, in
    /// order. `end` is not below `start`.
    #[inline]
    pub(crate) fn for_each_key_between(
        &self,
        start: FactKey,
        end: FactKey,
        visit: impl FnMut(usize, FactKey),
    ) {
        let (first, rows) = self.bounds(start, end);
        self.for_each_key_from(first.min(self.entity_count - 1), rows, visit);
    }

    /// The same for rows of which the first belongs to entity number `number` or a later one.
    #[inline]
    fn for_each_key_from(
        &self,
        mut number: usize,
        rows: Range<usize>,
        mut visit: impl FnMut(usize, FactKey),
    ) {
        let mut entity = self.entity(number);
        let mut next = self.start(number + 1);
        for row in rows {
            while row >= next && number + 1 < self.entity_count {
                number += 1;
                entity = self.entity(number);
                next = self.start(number + 1);
            }
            let (relation, target) = self.edge(row);
            visit(row, FactKey::new(entity, relation, target));
        }
    }

    /// Log index that wrote a row below the number of rows.
    #[inline]
    pub(crate) fn version(&self, row: usize) -> LogIndex {
        LogIndex(self.version_base.wrapping_add(self.versions.get(self.bytes, row)))
    }

    /// Rows whose key is below `key`.
    #[inline]
    pub(crate) fn lower_bound(&self, key: FactKey) -> usize {
        let count = self.entity_count;
        let number = partition(0..count, |number| self.entity(number) < key.entity.0);
        self.lower_bound_in(number, key)
    }

    /// Rows whose key is below `start`, and rows whose key is below `end`, which is not smaller.
    #[inline]
    pub(crate) fn lower_bounds(&self, start: FactKey, end: FactKey) -> (usize, usize) {
        let (_, rows) = self.bounds(start, end);
        (rows.start, rows.end)
    }

    /// First entity that is not below that of `start`, and the rows from `start` to `end`.
    #[inline]
    fn bounds(&self, start: FactKey, end: FactKey) -> (usize, Range<usize>) {
        let (count, wanted) = (self.entity_count, end.entity.0);
        let first = partition(0..count, |number| self.entity(number) < start.entity.0);
        // Most ranges end with their entity or just after it.
        let mut last = first;
        for _ in 0..2 {
            if last < count && self.entity(last) < wanted {
                last += 1;
            }
        }
        if last < count && self.entity(last) < wanted {
            last = partition(last..count, |number| self.entity(number) < wanted);
        }
        (first, self.lower_bound_in(first, start)..self.lower_bound_in(last, end))
    }

    /// Rows below `key`, whose entity is number `number` or, if absent, would be.
    #[inline]
    fn lower_bound_in(&self, number: usize, key: FactKey) -> usize {
        let start = self.start(number).min(self.rows);
        let edge = (key.relation.0, key.target.0);
        let absent = number == self.entity_count || self.entity(number) != key.entity.0;
        if absent || edge == (0, 0) {
            return start;
        }
        let end = self.start(number + 1).clamp(start, self.rows);
        partition(start..end, |row| self.edge(row) < edge)
    }
}

/// First number of the range for which `below` does not hold, when it holds for a first part.
/// The loop has no branch to mispredict, which is most of the time of a search in cached bytes.
#[inline(always)]
fn partition(range: Range<usize>, below: impl Fn(usize) -> bool) -> usize {
    if range.is_empty() {
        return range.start;
    }
    let (mut low, mut size) = (range.start, range.len());
    while size > 1 {
        let half = size / 2;
        let middle = low + half;
        low = std::hint::select_unpredictable(below(middle), middle, low);
        size -= half;
    }
    low + usize::from(below(low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows() -> impl Strategy<Value = Vec<BlockRow>> {
        let entity = prop_oneof![0u64..6, Just(u64::MAX), any::<u64>()];
        let relation = prop_oneof![0u32..3, Just(u32::MAX), any::<u32>()];
        let target = prop_oneof![0u64..9, Just(u64::MAX), any::<u64>()];
        let key = (entity, relation, target).prop_map(|(e, r, t)| FactKey::new(e, r, t));
        let keys = proptest::collection::btree_map(key, any::<u64>(), 1..BLOCK_ROWS);
        keys.prop_map(|keys| {
            let row = |(key, version)| BlockRow { key, version: LogIndex(version) };
            keys.into_iter().map(row).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn what_is_encoded_is_read_back(rows in rows(), probe in any::<u64>()) {
            let bytes = encode(&rows);
            prop_assert!(bytes.len() <= BLOCK_BYTES_MAX && bytes.len().is_multiple_of(ALIGN));
            let block = Block::parse(&bytes, rows.len()).expect("a block");
            let mut keys = Vec::new();
            block.for_each_key(0..rows.len(), |key| keys.push(key));
            for (number, row) in rows.iter().enumerate() {
                prop_assert_eq!(block.key(number), row.key);
                prop_assert_eq!(keys[number], row.key);
                prop_assert_eq!(block.version(number), row.version);
                prop_assert_eq!(block.lower_bound(row.key), number);
                let next = row.key.successor().map_or(rows.len(), |key| block.lower_bound(key));
                prop_assert_eq!(next, number + 1);
            }
            let from = probe as usize % rows.len();
            let mut tail = Vec::new();
            block.for_each_key(from..rows.len(), |key| tail.push(key));
            prop_assert_eq!(&tail[..], &keys[from..]);
            for key in [FactKey::new(probe, 0, 0), FactKey::new(probe % 7, 1, probe % 11)] {
                let expected = rows.partition_point(|row| row.key < key);
                prop_assert_eq!(block.lower_bound(key), expected);
                let start = rows[from].key.min(key);
                let bounds = (block.lower_bound(start), expected);
                prop_assert_eq!(block.lower_bounds(start, key), bounds);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            rows in rows(),
            cut in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        ) {
            let mut bytes = encode(&rows);
            for (place, value) in changes {
                // The head decides about all places, so half of the changes go there.
                let within = if value % 2 == 0 { HEAD_BYTES } else { bytes.len() };
                let at = place.index(within);
                bytes[at] = value;
            }
            bytes.truncate(bytes.len() - cut.index(2) * cut.index(bytes.len()));
            for count in [rows.len(), 1, BLOCK_ROWS] {
                let Some(block) = Block::parse(&bytes, count) else { continue };
                for row in 0..count {
                    block.key(row);
                    block.version(row);
                    let (start, end) = block.lower_bounds(block.key(row), FactKey::MAX);
                    prop_assert!(start <= count && end <= count);
                }
                block.for_each_key(0..count, |_| ());
            }
        }
    }
}
