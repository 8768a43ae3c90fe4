//! One bit a row: is it a tombstone, has it a vector, has it a payload. Counting the bits below a
//! row turns its number into a place among the vectors or payloads, so rows without cost nothing.
//!
//! On disk: three bitmaps one after the other, each `rows / 64` words of eight bytes, rounded up;
//! row `r` is bit `r % 64` of word `r / 64`, bits past the last row are zero.

use super::format::u64_at;

/// Words whose bits are counted together.
const WORDS_PER_RANK: usize = 8;

/// A set of rows with fast counting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowBits {
    words: Vec<u64>,
    /// Bits set before every eighth word.
    ranks: Vec<u32>,
    count: u32,
    rows: u32,
}

impl RowBits {
    /// The set whose words these are; `None` when a bit past the last row is set.
    fn new(words: Vec<u64>, rows: u32) -> Option<Self> {
        let spare = words.len() * 64 - rows as usize;
        if spare > 0 && words.last().is_some_and(|last| last.leading_zeros() < spare as u32) {
            return None;
        }
        let mut ranks = Vec::with_capacity(words.len().div_ceil(WORDS_PER_RANK));
        let mut count = 0;
        for (number, word) in words.iter().enumerate() {
            if number.is_multiple_of(WORDS_PER_RANK) {
                ranks.push(count);
            }
            count += word.count_ones();
        }
        Some(Self { words, ranks, count, rows })
    }

    /// Rows in the set.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether every row is in the set.
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.rows
    }

    #[inline]
    pub(crate) fn contains(&self, row: u32) -> bool {
        self.words[row as usize / 64] >> (row % 64) & 1 == 1
    }

    /// Place of `row` among the rows of the set, or `None` when it is not one of them.
    #[inline]
    pub(crate) fn place(&self, row: u32) -> Option<u32> {
        if self.is_full() {
            return (row < self.rows).then_some(row);
        }
        let word = row as usize / 64;
        let bit = 1u64 << (row % 64);
        if self.words[word] & bit == 0 {
            return None;
        }
        let rank = word / WORDS_PER_RANK;
        let before = &self.words[rank * WORDS_PER_RANK..word];
        let below: u32 = before.iter().map(|word| word.count_ones()).sum();
        Some(self.ranks[rank] + below + (self.words[word] & (bit - 1)).count_ones())
    }

    /// Rows of the set, ascending.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(number, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(number as u32 * 64 + bit)
            })
        })
    }
}

/// The three sets of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowFlags {
    pub tombstones: RowBits,
    pub vectors: RowBits,
    pub payloads: RowBits,
}

impl RowFlags {
    /// Decodes the section of a segment with `rows` rows.
    pub(crate) fn decode(bytes: &[u8], rows: u32) -> Option<Self> {
        let words = (rows as usize).div_ceil(64);
        if bytes.len() != words * 3 * 8 {
            return None;
        }
        let set = |number: usize| {
            let at = |word: usize| u64_at(bytes, (number * words + word) * 8);
            RowBits::new((0..words).map(at).collect(), rows)
        };
        Some(Self { tombstones: set(0)?, vectors: set(1)?, payloads: set(2)? })
    }
}

/// Collects the bits of rows that come in order.
#[derive(Default)]
pub(crate) struct FlagsBuilder {
    words: [Vec<u64>; 3],
    rows: u32,
}

impl FlagsBuilder {
    pub(crate) fn push(&mut self, tombstone: bool, vector: bool, payload: bool) {
        for (words, set) in self.words.iter_mut().zip([tombstone, vector, payload]) {
            if self.rows.is_multiple_of(64) {
                words.push(0);
            }
            let last = words.len() - 1;
            words[last] |= u64::from(set) << (self.rows % 64);
        }
        self.rows += 1;
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_count_the_rows_of_the_set_before(
            bits in proptest::collection::vec(any::<[bool; 3]>(), 0..1500),
            full in any::<bool>(),
        ) {
            let mut builder = FlagsBuilder::default();
            for [tombstone, vector, payload] in &bits {
                builder.push(*tombstone, *vector || full, *payload);
            }
            let rows = bits.len() as u32;
            let flags = RowFlags::decode(&builder.encode(), rows).expect("sound");
            let expected: Vec<u32> =
                (0..rows).filter(|row| bits[*row as usize][1] || full).collect();
            prop_assert_eq!(flags.vectors.rows().collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(flags.vectors.count() as usize, expected.len());
            for row in 0..rows {
                prop_assert_eq!(flags.tombstones.contains(row), bits[row as usize][0]);
                let place = expected.binary_search(&row).ok().map(|place| place as u32);
                prop_assert_eq!(flags.vectors.place(row), place);
            }
            let mut longer = builder.encode();
            if !rows.is_multiple_of(64) {
                let last = longer.len() - 1;
                longer[last] |= 0x80;
                prop_assert_eq!(RowFlags::decode(&longer, rows), None);
            }
        }
    }
}
