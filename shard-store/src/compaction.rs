//! Which segments to merge: a pure choice, size-tiered.
//!
//! Only neighbours in age are merged, so that "newer hides older" stays an order of the list. A
//! tier holds sizes within a factor of four; four neighbours of one tier or below become one of
//! the next, so each fact is rewritten once a tier and the list stays about 4 x tiers long.
//! A segment with a fifth of its rows dead is rewritten at once, since dead rows cost every search.
//! No merge makes a segment of more live rows than the memory budget allows: beyond it the list
//! grows with the data instead.

use crate::codes::code_stride;
use crate::nibbles::nibble_stride;
use crate::signs::sign_words;
use std::ops::Range;

/// Segments merged at once at least.
const FAN_IN: usize = 4;
/// A segment below this many rows is in the lowest tier.
const TIER_ROWS: u64 = 4_096;
/// One row in so many dead: the segment is rewritten.
const DEAD_SHARE: u64 = 5;

/// What the choice looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Rows, dead ones and tombstones included.
    pub rows: u64,
    /// Rows that are dead and can go; tombstones are not among them.
    pub dead: u64,
    /// Tombstones.
    pub tombstones: u64,
}

impl Candidate {
    fn live(&self) -> u64 {
        self.rows - self.dead
    }

    fn tier(&self) -> u32 {
        let rows = self.live().max(1);
        if rows < TIER_ROWS { 0 } else { (rows / TIER_ROWS).ilog(FAN_IN as u64) + 1 }
    }

    fn mostly_waste(&self, waste: u64) -> bool {
        waste > 0 && waste * DEAD_SHARE >= self.rows
    }
}

/// Places of the neighbouring segments to merge next, `segments` being newest first; `None` when
/// all is well. Every choice lessens rows or segments, so repeating it comes to an end.
pub(crate) fn choose(segments: &[Candidate], rows_max: u64) -> Option<Range<usize>> {
    rewrite(segments, rows_max).or_else(|| merge(segments, rows_max))
}

/// Rows whose merge fits into `memory` bytes: codes and terms, links of the graph while it is built
/// and measured, short codes while they are measured, and the places where the rows went. Never so
/// few that nothing is merged.
pub(crate) fn rows_within(memory: u64, dim: u32, m: u32) -> u64 {
    let codes = code_stride(dim as usize) as u64 + 8;
    let links = 4 * (2 * u64::from(m) + 8);
    let signs = 8 * sign_words(dim as usize) as u64 + 12;
    let nibbles = nibble_stride(dim as usize) as u64 + 1;
    (memory / (codes + 3 * links + 2 * signs + nibbles + 32)).max(FAN_IN as u64 * TIER_ROWS)
}

/// A segment whose dead rows or useless tombstones must go. Tombstones above an older segment go
/// down into it when it is not much larger, or wait for their tier.
fn rewrite(segments: &[Candidate], rows_max: u64) -> Option<Range<usize>> {
    let last = segments.len().checked_sub(1)?;
    if segments[last].mostly_waste(segments[last].dead + segments[last].tombstones) {
        return Some(last..last + 1);
    }
    for (place, segment) in segments.iter().enumerate() {
        if segment.mostly_waste(segment.dead) {
            return Some(place..place + 1);
        }
        let below = &segments[(place + 1).min(last)];
        let together = Candidate { rows: segment.rows + below.rows, ..*segment };
        let live = segment.live() + below.live();
        if place < last && live <= rows_max && together.mostly_waste(segment.tombstones) {
            return Some(place..place + 2);
        }
    }
    None
}

/// The longest row of at least `FAN_IN` neighbours of the lowest tier that has one. A segment
/// larger than its neighbours together waits: it would be rewritten for the sake of little.
fn merge(segments: &[Candidate], rows_max: u64) -> Option<Range<usize>> {
    let mut tiers: Vec<u32> = segments.iter().map(Candidate::tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    for tier in tiers {
        let mut best: Range<usize> = 0..0;
        let mut start = 0;
        for end in 0..=segments.len() {
            if end < segments.len() && segments[end].tier() <= tier {
                continue;
            }
            for part in within(segments, start..end, rows_max) {
                if let Some(row) = balanced(segments, part)
                    && row.len() > best.len()
                {
                    best = row;
                }
            }
            start = end + 1;
        }
        if best.len() >= FAN_IN {
            return Some(best);
        }
    }
    None
}

/// The longest parts of `row` that have at most `rows_max` live rows, one from each place where
/// such a part can begin.
fn within(
    segments: &[Candidate],
    row: Range<usize>,
    rows_max: u64,
) -> impl Iterator<Item = Range<usize>> {
    let (mut end, mut sum) = (row.start, 0);
    let mut reached = row.start;
    row.clone().filter_map(move |start| {
        if end < start {
            (end, sum) = (start, 0);
        }
        while end < row.end && sum + segments[end].live() <= rows_max {
            sum += segments[end].live();
            end += 1;
        }
        let longer = end > reached;
        reached = end;
        sum -= if end > start { segments[start].live() } else { 0 };
        longer.then_some(start..end)
    })
}

/// The row itself if no segment outweighs the others, or else the longer such part beside the one
/// that does; at least `FAN_IN` long.
fn balanced(segments: &[Candidate], row: Range<usize>) -> Option<Range<usize>> {
    if row.len() < FAN_IN {
        return None;
    }
    let live = |place: usize| segments[place].live();
    let largest = row.clone().max_by_key(|place| live(*place))?;
    if live(largest) * 2 <= row.clone().map(live).sum() {
        return Some(row);
    }
    let before = balanced(segments, row.start..largest);
    let after = balanced(segments, largest + 1..row.end);
    let length = |part: &Range<usize>| part.len();
    before.into_iter().chain(after).max_by_key(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: u64 = u64::MAX;

    fn live(rows: u64) -> Candidate {
        Candidate { rows, dead: 0, tombstones: 0 }
    }

    #[test]
    fn four_small_neighbours_become_one_and_three_wait() {
        let small = live(1_000);
        assert_eq!(choose(&[small; 3], ANY), None);
        assert_eq!(choose(&[small; 4], ANY), Some(0..4));
        assert_eq!(choose(&[small, small, live(1 << 20), small, small], ANY), None);
        assert_eq!(choose(&[small, small, small, live(1 << 20)], ANY), None);
        let tiny = live(1);
        assert_eq!(choose(&[tiny, tiny, tiny, tiny, small], ANY), Some(0..4));
        assert_eq!(choose(&[live(1 << 20), small, small, small, small, small], ANY), Some(1..6));
    }

    #[test]
    fn what_does_not_fit_the_budget_stays_apart() {
        let small = live(1_000);
        assert_eq!(choose(&[small; 4], 3_999), None);
        assert_eq!(choose(&[small; 9], 5_000), Some(0..5));
        assert_eq!(choose(&[live(60_000); 8], 200_000), None);
        assert_eq!(rows_within(0, 384, 24), 16_384);
        assert!(rows_within(1 << 30, 384, 24) > 700_000);
    }

    #[test]
    fn a_fifth_of_dead_rows_is_rewritten_alone() {
        let worn = Candidate { rows: 1_000, dead: 200, tombstones: 0 };
        assert_eq!(choose(&[live(10), worn, live(10)], ANY), Some(1..2));
        assert_eq!(choose(&[live(10), Candidate { dead: 199, ..worn }, live(10)], ANY), None);
    }

    #[test]
    fn tombstones_go_down_and_the_oldest_segment_keeps_none() {
        let tombstones = Candidate { rows: 500, dead: 0, tombstones: 500 };
        assert_eq!(choose(&[tombstones, live(500)], ANY), Some(0..2));
        assert_eq!(choose(&[tombstones], ANY), Some(0..1));
        assert_eq!(choose(&[tombstones, live(1_000_000)], ANY), None);
    }

    proptest! {
        #[test]
        fn repeated_choices_end_with_few_segments_and_little_waste(
            sizes in proptest::collection::vec((1u64..200_000, 0u64..100, 0u64..100), 0..60),
            rows_max in prop_oneof![Just(ANY), 16_384u64..1_000_000],
        ) {
            let mut segments: Vec<Candidate> = sizes.iter().map(|(rows, dead, tombstones)| {
                let dead = rows * dead / 100;
                Candidate { rows: *rows, dead, tombstones: (rows - dead) * tombstones / 100 }
            }).collect();
            let mut rounds = 0;
            while let Some(window) = choose(&segments, rows_max) {
                rounds += 1;
                prop_assert!(rounds < 1_000, "no end: {:?}", segments);
                let oldest = window.end == segments.len();
                let rows: u64 = segments[window.clone()].iter().map(Candidate::live).sum();
                prop_assert!(rows <= rows_max || window.len() == 1, "{rows} of {rows_max}");
                let merged = segments[window.clone()].iter().fold(live(0), |sum, part| {
                    let tombstones = if oldest { 0 } else { sum.tombstones + part.tombstones };
                    let gone = part.dead + if oldest { part.tombstones } else { 0 };
                    Candidate { rows: sum.rows + part.rows - gone, dead: 0, tombstones }
                });
                segments.splice(window, (merged.rows > 0).then_some(merged));
            }
            for segment in &segments {
                prop_assert!(segment.dead * DEAD_SHARE < segment.rows);
            }
            let few = 3 * 12 + 4 * segments.iter().map(Candidate::live).sum::<u64>() / rows_max;
            prop_assert!(segments.len() as u64 <= few, "{} segments", segments.len());
        }
    }
}
