//! Scanning scores: every row that could be among the best is reranked, so the answer is exact.
//!
//! The nearest few by score are reranked first; that gives a k-th exact distance, and a row whose
//! score says that it is certainly farther away than that needs no rerank. Dear tests (payload
//! conditions) are thus asked in order of promise.

use super::scratch::{ordered, score_of};
use crate::codes::{CodeQuery, ScoreBound};

/// Candidates of one scan: their scores, and how wrong each score can be.
pub(super) struct Scored<'a> {
    /// One per candidate; smaller is nearer.
    pub scores: &'a [f32],
    /// `(error, size)` of a candidate, see `RowTerms`.
    pub terms: &'a dyn Fn(u32) -> (f32, f32),
    /// Not below any candidate's error and size.
    pub terms_max: (f32, f32),
    /// What they were scored with.
    pub query: &'a CodeQuery,
}

impl Scored<'_> {
    /// Calls `visit` with every candidate that could still matter, most promising first. `visit`
    /// returns the exact distance beyond which nothing matters any more, once there is one; `soon`
    /// hears of a candidate a little before. About `first` candidates are ranked at once.
    pub fn each_promising<E>(
        &self,
        first: usize,
        batch: &mut Vec<u64>,
        soon: &dyn Fn(u32),
        visit: &mut dyn FnMut(u32) -> Result<Option<f64>, E>,
    ) -> Result<(), E> {
        let mut limit = Limit::none(self);
        let (mut after, mut count) = (None, first.clamp(1, self.scores.len() + 1));
        loop {
            smallest(self.scores, after, limit.loosest, count, batch);
            for key in batch.iter().take(VISITS_AHEAD) {
                soon(*key as u32);
            }
            for (place, key) in batch.iter().enumerate() {
                if let Some(later) = batch.get(place + VISITS_AHEAD) {
                    soon(*later as u32);
                }
                let candidate = *key as u32;
                if !limit.excludes(candidate) {
                    limit.set(visit(candidate)?);
                }
            }
            if batch.len() < count {
                return Ok(());
            }
            after = batch.last().copied();
            count *= 4;
        }
    }
}

/// How many visits before its own a candidate is told of: memory takes about as long.
const VISITS_AHEAD: usize = 6;
/// Scores looked at together: most blocks hold nothing of interest.
const BLOCK: usize = 32;

/// Whether any score is not above `bound`; also when that cannot be said.
#[inline]
fn any_within(scores: &[f32], bound: f32) -> bool {
    !scores.iter().fold(true, |all_above, score| all_above & (*score > bound))
}

/// Which of up to 32 scores are not above `bound`; also those of which that cannot be said.
#[inline]
fn within(scores: &[f32], bound: f32) -> u32 {
    let bit = |(at, score): (usize, &f32)| (1 - u32::from(*score > bound)) << at;
    scores.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
}

/// The distance beyond which nothing matters, turned into scores.
struct Limit<'a> {
    scored: &'a Scored<'a>,
    distance: Option<f64>,
    bound: ScoreBound,
    /// Bound of the row with the largest terms.
    loosest: f32,
}

impl<'a> Limit<'a> {
    fn none(scored: &'a Scored<'a>) -> Self {
        Self { scored, distance: None, bound: scored.query.bound(0.0), loosest: f32::NAN }
    }

    fn set(&mut self, distance: Option<f64>) {
        if self.distance != distance
            && let Some(distance) = distance
        {
            self.distance = Some(distance);
            self.bound = self.scored.query.bound(distance);
            let (error, size) = self.scored.terms_max;
            self.loosest = self.bound.at(error, size);
        }
    }

    /// Whether `candidate` is certainly farther away.
    #[inline]
    fn excludes(&self, candidate: u32) -> bool {
        let score = self.scored.scores[candidate as usize];
        if self.distance.is_none() {
            return false;
        }
        let (error, size) = (self.scored.terms)(candidate);
        score > self.loosest || score > self.bound.at(error, size)
    }
}

/// Orders candidates by `(score, number)`.
#[inline]
fn key(score: f32, candidate: u32) -> u64 {
    u64::from(ordered(score)) << 32 | u64::from(candidate)
}

/// The `count` smallest candidates behind `after` that are not above `bound`, in order. A bound
/// that is not a number is none.
pub(super) fn smallest(
    all_scores: &[f32],
    after: Option<u64>,
    bound: f32,
    count: usize,
    batch: &mut Vec<u64>,
) {
    if let Some(guess) = guess(all_scores, after, count)
        && (bound.is_nan() || guess <= bound)
    {
        gather(all_scores, after, guess, count, batch);
        if batch.len() == count {
            return;
        }
    }
    gather(all_scores, after, bound, count, batch);
}

/// One score in so many is looked at for a guess.
const GUESS_STRIDE: usize = 16;

/// A score that is probably a little above that of the last of the `count` smallest candidates
/// behind `after`; `None` where looking for it would not pay.
fn guess(all_scores: &[f32], after: Option<u64>, count: usize) -> Option<f32> {
    if all_scores.len() < 8 * count.max(512) {
        return None;
    }
    let after = after.map_or(0, |after| (after >> 32) as u32);
    let sample = all_scores.iter().step_by(GUESS_STRIDE).map(|score| ordered(*score));
    let mut sample: Vec<u32> = sample.filter(|score| *score >= after).collect();
    // Three standard deviations above the expected place.
    let expected = count as f64 / GUESS_STRIDE as f64;
    let place = (expected + 3.0 * expected.sqrt()) as usize + 2;
    (place < sample.len()).then(|| score_of(*sample.select_nth_unstable(place).1))
}

/// The same, by looking at all of them: each one found lowers what the next must be below.
fn gather(all_scores: &[f32], after: Option<u64>, bound: f32, count: usize, batch: &mut Vec<u64>) {
    batch.clear();
    let room = 2 * count.max(128);
    let mut worst_score = bound;
    let mut worst = if bound.is_nan() { u64::MAX } else { key(bound, u32::MAX) };
    for (block, scores) in all_scores.chunks(BLOCK).enumerate() {
        if !any_within(scores, worst_score) {
            continue;
        }
        let mut left = within(scores, worst_score);
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            let candidate = block * BLOCK + at;
            let key = key(scores[at], candidate as u32);
            if key > worst || after.is_some_and(|after| key <= after) {
                continue;
            }
            batch.push(key);
            if batch.len() == room {
                batch.select_nth_unstable(count - 1);
                batch.truncate(count);
                worst = batch[count - 1];
                worst_score = all_scores[worst as u32 as usize];
            }
        }
    }
    batch.sort_unstable();
    batch.truncate(count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_smallest_are_those_that_sorting_puts_first(
            scores in prop_oneof![
                prop::collection::vec(-3i8..3, 0..3000),
                prop::collection::vec(-100i8..100, 4096..9000),
            ],
            count in 1usize..700,
            skip in 0usize..50,
            bound in prop_oneof![Just(f32::NAN), -3.5f32..3.0, -90.0f32..90.0],
        ) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let mut plain: Vec<u64> =
                scores.iter().enumerate().map(|(i, score)| key(*score, i as u32)).collect();
            plain.sort_unstable();
            let after = skip.checked_sub(1).and_then(|last| plain.get(last).copied());
            let behind = if after.is_some() { skip } else { 0 };
            let mut batch = Vec::new();
            smallest(&scores, after, bound, count, &mut batch);
            let near = |key: &u64| scores[*key as u32 as usize] <= bound || bound.is_nan();
            let expected: Vec<u64> =
                plain.into_iter().skip(behind).filter(near).take(count).collect();
            prop_assert_eq!(batch, expected);
        }
    }
}
