//! The relation index: for each relation the rows along it, tombstones left out.
//!
//! The table holds 16 bytes a relation, ascending: relation 4, rows 4, first place 8. The places
//! count in the second section: row numbers of four bytes, ascending within a relation.

use super::format::{u32_at, u64_at};
use hopbine_proto::RelationId;
use std::collections::BTreeMap;
use std::ops::Range;

const ENTRY_BYTES: usize = 16;

/// Where the rows of each relation are.
#[derive(Clone, Debug, Default)]
pub(crate) struct RelationTable {
    entries: Vec<(RelationId, Range<usize>)>,
}

impl RelationTable {
    /// Decodes the table of a segment whose second section has `places` row numbers.
    pub(crate) fn decode(bytes: &[u8], places: usize) -> Option<Self> {
        if !bytes.len().is_multiple_of(ENTRY_BYTES) {
            return None;
        }
        let mut entries: Vec<(RelationId, Range<usize>)> = Vec::new();
        let mut end = 0usize;
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            let relation = RelationId(u32_at(entry, 0));
            let rows = u32_at(entry, 4) as usize;
            let ascending = entries.last().is_none_or(|(last, _)| *last < relation);
            if u64_at(entry, 8) != end as u64 || rows == 0 || !ascending {
                return None;
            }
            entries.push((relation, end..end.checked_add(rows)?));
            end += rows;
        }
        (end == places).then_some(Self { entries })
    }

    /// Places of a relation's rows in the second section; empty when there are none.
    pub(crate) fn places(&self, relation: RelationId) -> Range<usize> {
        match self.entries.binary_search_by_key(&relation, |(known, _)| *known) {
            Ok(number) => self.entries[number].1.clone(),
            Err(_) => 0..0,
        }
    }

    /// Every relation with its number of rows, ascending.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (RelationId, u32)> + '_ {
        self.entries.iter().map(|(relation, places)| (*relation, places.len() as u32))
    }
}

/// Collects the rows of each relation.
#[derive(Default)]
pub(crate) struct RelationBuilder {
    rows: BTreeMap<RelationId, Vec<u32>>,
}

impl RelationBuilder {
    pub(crate) fn push(&mut self, relation: RelationId, row: u32) {
        self.rows.entry(relation).or_default().push(row);
    }

    /// The table and the row numbers.
    pub(crate) fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut table, mut numbers) = (Vec::new(), Vec::new());
        for (relation, rows) in &self.rows {
            table.extend_from_slice(&relation.0.to_le_bytes());
            table.extend_from_slice(&(rows.len() as u32).to_le_bytes());
            table.extend_from_slice(&(numbers.len() as u64 / 4).to_le_bytes());
            rows.iter().for_each(|row| numbers.extend_from_slice(&row.to_le_bytes()));
        }
        (table, numbers)
    }
}
