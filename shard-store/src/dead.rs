//! Which rows of one run are dead: superseded, deleted, or tombstones.
//!
//! A bitmap in chunks. Clones share chunks, and setting a bit copies only the chunk that holds it,
//! so that a view pins the bitmap of its moment at the price of a few pointers.

use std::ops::Range;
use std::sync::Arc;

/// Rows of one chunk: 512 bytes, what one copy-on-write costs.
const CHUNK_ROWS: u32 = 4096;
const CHUNK_WORDS: usize = CHUNK_ROWS as usize / 64;

type Chunk = [u64; CHUNK_WORDS];

/// A set of row numbers that grows only.
#[derive(Clone, Debug, Default)]
pub struct DeadRows {
    /// A missing chunk, or one past the end, has no dead row.
    chunks: Vec<Option<Arc<Chunk>>>,
    count: u32,
}

impl DeadRows {
    /// Whether `row` is dead.
    pub fn is_dead(&self, row: u32) -> bool {
        match self.chunks.get((row / CHUNK_ROWS) as usize) {
            Some(Some(chunk)) => chunk[word_of(row)] & bit_of(row) != 0,
            _ => false,
        }
    }

    /// Dead rows in all.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Dead rows among `rows`.
    pub fn count_in(&self, rows: Range<u32>) -> u32 {
        if self.count == 0 {
            return 0;
        }
        let mut total = 0;
        let mut row = rows.start;
        while row < rows.end {
            let (at, word_end) = (row % 64, (row | 63).saturating_add(1).min(rows.end));
            let width = word_end - row;
            let mask = if width == 64 { u64::MAX } else { ((1 << width) - 1) << at };
            if let Some(Some(chunk)) = self.chunks.get((row / CHUNK_ROWS) as usize) {
                total += (chunk[word_of(row)] & mask).count_ones();
            }
            row = word_end;
        }
        total
    }

    /// Marks `row` dead; returns whether it was alive.
    pub fn insert(&mut self, row: u32) -> bool {
        let index = (row / CHUNK_ROWS) as usize;
        if self.chunks.len() <= index {
            self.chunks.resize(index + 1, None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| Arc::new([0; CHUNK_WORDS]));
        if chunk[word_of(row)] & bit_of(row) != 0 {
            return false;
        }
        Arc::make_mut(chunk)[word_of(row)] |= bit_of(row);
        self.count += 1;
        true
    }

    /// All dead rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.since(&EMPTY)
    }

    /// Rows dead here but not in `older`, ascending. `older` is an earlier state of the same
    /// bitmap: chunks that both share are skipped unread.
    pub fn since<'a>(&'a self, older: &'a Self) -> impl Iterator<Item = u32> + 'a {
        let numbered = self.chunks.iter().enumerate();
        let changed = numbered.filter_map(|(index, chunk)| {
            let (chunk, before) =
                (chunk.as_ref()?, older.chunks.get(index).and_then(Option::as_ref));
            let shared = before.is_some_and(|before| Arc::ptr_eq(before, chunk));
            (!shared).then_some((index as u32 * CHUNK_ROWS, chunk, before))
        });
        changed.flat_map(|(first, chunk, before)| {
            (0..CHUNK_WORDS).flat_map(move |word| {
                let mut bits = chunk[word] & !before.map_or(0, |before| before[word]);
                std::iter::from_fn(move || {
                    let bit = (bits != 0).then(|| bits.trailing_zeros())?;
                    bits &= bits - 1;
                    Some(first + word as u32 * 64 + bit)
                })
            })
        })
    }
}

impl FromIterator<u32> for DeadRows {
    fn from_iter<I: IntoIterator<Item = u32>>(rows: I) -> Self {
        let mut dead = Self::default();
        dead.extend(rows);
        dead
    }
}

impl Extend<u32> for DeadRows {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, rows: I) {
        for row in rows {
            self.insert(row);
        }
    }
}

static EMPTY: DeadRows = DeadRows { chunks: Vec::new(), count: 0 };

fn word_of(row: u32) -> usize {
    (row % CHUNK_ROWS) as usize / 64
}

fn bit_of(row: u32) -> u64 {
    1 << (row % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_equals_a_set_of_numbers_and_clones_keep_their_moment(
            first in proptest::collection::vec(0u32..20_000, 0..60),
            second in proptest::collection::vec(0u32..20_000, 0..60),
            start in 0u32..20_000,
            len in 0u32..20_000,
        ) {
            let mut dead = DeadRows::default();
            let mut set = BTreeSet::new();
            for row in first {
                prop_assert_eq!(dead.insert(row), set.insert(row));
            }
            let (older, older_set) = (dead.clone(), set.clone());
            for row in second {
                prop_assert_eq!(dead.insert(row), set.insert(row));
            }
            prop_assert_eq!(dead.iter().collect::<BTreeSet<_>>(), set.clone());
            prop_assert_eq!(older.iter().collect::<BTreeSet<_>>(), older_set.clone());
            let new: Vec<u32> = set.difference(&older_set).copied().collect();
            prop_assert_eq!(dead.since(&older).collect::<Vec<_>>(), new);
            prop_assert_eq!(dead.count() as usize, set.len());
            let range = start..start + len;
            prop_assert_eq!(dead.count_in(range.clone()) as usize, set.range(range).count());
            for row in 0..20_000 {
                prop_assert_eq!(dead.is_dead(row), set.contains(&row));
            }
        }
    }
}
