//! From keys to rows: zone map, then one binary search inside a block.

use super::block::BLOCK_ROWS;
use super::reader::Segment;
use crate::error::StoreError;
use hopbine_proto::{FactKey, KeyRange};
use std::ops::Range;

/// Which fact blocks of one segment a request has read; each counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    seen: Vec<u64>,
    blocks: u64,
    bytes: u64,
}

impl Touched {
    /// Distinct blocks read.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of those blocks.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn mark(&mut self, block: usize, bytes: u32) {
        let (word, bit) = (block / 64, 1u64 << (block % 64));
        if word >= self.seen.len() {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit == 0 {
            self.seen[word] |= bit;
            self.blocks += 1;
            self.bytes += u64::from(bytes);
        }
    }
}

impl Segment {
    /// Row of a key, a tombstone's included. Reads at most one block.
    pub fn find(&self, key: FactKey, touched: &mut Touched) -> Result<Option<u32>, StoreError> {
        let number = self.first_block(0, key);
        let Some(zone) = self.zones.get(number) else { return Ok(None) };
        if key < zone.first {
            return Ok(None);
        }
        touched.mark(number, zone.bytes);
        let block = self.block(number)?;
        let row = block.lower_bound(key);
        let found = row < zone.rows as usize && block.key(row) == key;
        Ok(found.then_some((number * BLOCK_ROWS + row) as u32))
    }

    /// Rows whose key lies in the range, tombstones included. Reads only blocks that the zone map
    /// cannot rule out, and counts these and all that hold the rows found.
    pub fn range(&self, range: &KeyRange, touched: &mut Touched) -> Result<Range<u32>, StoreError> {
        self.range_from(self.first_block(0, range.start), range, touched)
    }

    /// The same for many ranges, ascending and disjoint; appends one entry a range, empty ones
    /// included. Cheaper than one by one where neighbours are near.
    pub fn ranges(
        &self,
        ranges: &[KeyRange],
        touched: &mut Touched,
        found: &mut Vec<Range<u32>>,
    ) -> Result<(), StoreError> {
        let mut number = 0;
        for range in ranges {
            number = self.first_block(number, range.start);
            found.push(self.range_from(number, range, touched)?);
        }
        Ok(())
    }

    /// Calls `visit` with each row of a range and its key, in order. `from` is where the search
    /// begins: 0, or what an earlier range left there. `false`, and nothing visited: there are more
    /// than `most` rows.
    pub(crate) fn keys_in(
        &self,
        range: &KeyRange,
        from: &mut usize,
        most: usize,
        touched: &mut Touched,
        mut visit: impl FnMut(u32, FactKey),
    ) -> Result<bool, StoreError> {
        *from = self.first_block(*from, range.start);
        let Some(zone) = self.zones.get(*from) else { return Ok(true) };
        if let Some(end) = range.end
            && zone.first < range.start
            && end <= zone.last
            && most >= BLOCK_ROWS
        {
            touched.mark(*from, zone.bytes);
            let first = (*from * BLOCK_ROWS) as u32;
            let visit = |row: usize, key| visit(first + row as u32, key);
            self.block(*from)?.for_each_key_between(range.start, end, visit);
            return Ok(true);
        }
        let rows = self.range_from(*from, range, touched)?;
        if rows.len() > most {
            return Ok(false);
        }
        self.for_each_key(rows, visit)?;
        Ok(true)
    }

    /// First block at or after `from` whose largest key is not below `key`.
    #[inline]
    fn first_block(&self, from: usize, key: FactKey) -> usize {
        let wanted = key.entity.0;
        let number = from + self.last_entities[from..].partition_point(|last| *last < wanted);
        if (key.relation.0, key.target.0) == (0, 0) {
            // No key of the entity is smaller, so no block that ends within it is passed over.
            return number;
        }
        // Blocks that end within the entity: one, unless the entity fills several.
        let same = self.zones[number..].iter().take_while(|zone| zone.last < key);
        match same.take(2).count() {
            2 => number + self.zones[number..].partition_point(|zone| zone.last < key),
            few => number + few,
        }
    }

    /// `number` is the first block whose largest key is not below the range's start.
    #[inline]
    fn range_from(
        &self,
        number: usize,
        range: &KeyRange,
        touched: &mut Touched,
    ) -> Result<Range<u32>, StoreError> {
        let Some(zone) = self.zones.get(number) else { return Ok(self.rows()..self.rows()) };
        if let Some(end) = range.end
            && zone.first < range.start
            && end <= zone.last
            && range.start <= end
        {
            touched.mark(number, zone.bytes);
            let (start, end) = self.block(number)?.lower_bounds(range.start, end);
            let first = (number * BLOCK_ROWS) as u32;
            return Ok(first + start as u32..first + end.max(start) as u32);
        }
        let start = self.lower_bound(number, range.start, touched)?;
        let end = match range.end {
            None => self.rows(),
            Some(end) => self.lower_bound(self.first_block(number, end), end, touched)?,
        };
        let end = end.max(start);
        if start < end {
            let blocks = start as usize / BLOCK_ROWS..(end as usize - 1) / BLOCK_ROWS + 1;
            for (number, zone) in blocks.clone().zip(&self.zones[blocks]) {
                touched.mark(number, zone.bytes);
            }
        }
        Ok(start..end)
    }

    /// Rows below `key`, given the first block whose largest key is not below it.
    fn lower_bound(
        &self,
        number: usize,
        key: FactKey,
        touched: &mut Touched,
    ) -> Result<u32, StoreError> {
        let Some(zone) = self.zones.get(number) else { return Ok(self.rows()) };
        let first = (number * BLOCK_ROWS) as u32;
        if key <= zone.first {
            return Ok(first);
        }
        touched.mark(number, zone.bytes);
        Ok(first + self.block(number)?.lower_bound(key) as u32)
    }
}
