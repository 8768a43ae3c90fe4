//! Scanning scores: every row that could be among the best is reranked, so the answer is exact.
//!
//! The nearest few by score are reranked first; that gives a k-th exact distance, and a row whose
//! score says that it is certainly farther away than that needs no rerank. Dear tests (payload
//! conditions) are thus asked in order of promise.
//!
//! Where an answer may be missed now and then, *likely* is enough: how far scores are off is taken
//! from the candidates that were already reranked for the same question. An offset that all have in
//! common changes no order, so only the spread around it counts.

use super::scratch::{ordered, score_of};
use crate::codes::{CodeQuery, ScoreBound, Told};

/// What became of a candidate.
pub(super) struct Seen {
    /// Its exact distance, if it was computed.
    pub distance: Option<f64>,
    /// The distance beyond which nothing matters any more, once there is one.
    pub limit: Option<f64>,
}

impl Seen {
    /// A candidate whose distance nobody need know.
    pub fn limited(limit: Option<f64>) -> Self {
        Self { distance: None, limit }
    }
}

/// Candidates of one scan.
pub(super) struct Scored<'a> {
    /// One per candidate; smaller is nearer.
    pub scores: &'a [f32],
    /// How wrong scores can be.
    pub bounds: Bounds<'a>,
}

/// When a candidate is left out for its score.
#[derive(Clone, Copy)]
pub(super) enum Bounds<'a> {
    /// When it is certainly too far away.
    Certain {
        /// `(error, size)` of a candidate, see `RowTerms`.
        terms: &'a dyn Fn(u32) -> (f32, f32),
        /// Not below any candidate's error and size.
        terms_max: (f32, f32),
        /// What they were scored with.
        query: &'a CodeQuery,
    },
    /// When that is likely, by the errors met so far: scores tell these distances.
    Likely(Told),
}

impl Scored<'_> {
    /// Calls `visit` with every candidate that could still matter, most promising first; `soon`
    /// hears of a candidate a little before. About `first` candidates are ranked at once.
    pub fn each_promising<E>(
        &self,
        first: usize,
        batch: &mut Vec<u64>,
        soon: &dyn Fn(u32),
        visit: &mut dyn FnMut(u32) -> Result<Seen, E>,
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
                    limit.learn(candidate, visit(candidate)?);
                }
            }
            after = batch.last().copied();
            let beyond = |last: u64| score_of((last >> 32) as u32) > limit.loosest;
            if batch.len() < count || after.is_some_and(beyond) {
                return Ok(());
            }
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
    bound: Option<ScoreBound>,
    /// No candidate with a score above this one matters.
    loosest: f32,
    errors: Errors,
}

impl<'a> Limit<'a> {
    fn none(scored: &'a Scored<'a>) -> Self {
        let errors = Errors::default();
        Self { scored, distance: None, bound: None, loosest: f32::NAN, errors }
    }

    /// Takes what became of `candidate`.
    fn learn(&mut self, candidate: u32, seen: Seen) {
        let changed = self.distance != seen.limit;
        self.distance = seen.limit.or(self.distance);
        match &self.scored.bounds {
            Bounds::Certain { query, terms_max: (error, size), .. } => {
                if changed && let Some(limit) = seen.limit {
                    let bound = query.bound(limit);
                    (self.bound, self.loosest) = (Some(bound), bound.at(*error, *size));
                }
            }
            Bounds::Likely(told) => {
                if let Some(distance) = seen.distance {
                    self.errors
                        .push(distance - told.distance(self.scored.scores[candidate as usize]));
                }
                if let Some(limit) = self.distance
                    && let Some(least) = self.errors.below(DEVIATIONS_OF_FINER)
                {
                    self.loosest = told.score(limit - least);
                }
            }
        }
    }

    /// Whether `candidate` is farther away.
    #[inline]
    fn excludes(&self, candidate: u32) -> bool {
        let score = self.scored.scores[candidate as usize];
        if score > self.loosest {
            return true;
        }
        match (&self.scored.bounds, &self.bound) {
            (Bounds::Certain { terms, .. }, Some(bound)) => {
                let (error, size) = terms(candidate);
                score > bound.at(error, size)
            }
            _ => false,
        }
    }
}

/// By how much exact distances exceed what scores told.
#[derive(Default)]
pub(super) struct Errors {
    count: f64,
    sum: f64,
    squares: f64,
}

/// So many errors say what others will be like.
const ERRORS_MIN: f64 = 32.0;
/// An error so many standard deviations below the mean is not likely to be met.
const DEVIATIONS_OF_FINER: f64 = 6.0;

impl Errors {
    /// Adds one.
    pub fn push(&mut self, error: f64) {
        self.count += 1.0;
        self.sum += error;
        self.squares += error * error;
    }

    /// So many standard deviations below the mean error; `None` while too few are known, or where
    /// they leave the range of numbers.
    pub fn below(&self, deviations: f64) -> Option<f64> {
        if self.count < ERRORS_MIN {
            return None;
        }
        let mean = self.sum / self.count;
        let variance = (self.squares / self.count - mean * mean).max(0.0);
        let below = mean - deviations * variance.sqrt();
        below.is_finite().then_some(below)
    }
}

/// Orders candidates by `(score, number)`.
#[inline]
fn key(score: f32, candidate: u32) -> u64 {
    u64::from(ordered(score)) << 32 | u64::from(candidate)
}

/// The `count` smallest candidates behind `after` that are not above `bound`, in order. A bound
/// that is not a number is none.
fn smallest(
    all_scores: &[f32],
    after: Option<u64>,
    bound: f32,
    count: usize,
    batch: &mut Vec<u64>,
) {
    gather(all_scores, after, bound, count, batch);
    batch.sort_unstable();
    batch.truncate(count);
}

/// The `count` candidates with the smallest scores that are not above `bound`, ascending by number.
pub(super) fn smallest_in_order(
    all_scores: &[f32],
    bound: f32,
    count: usize,
    batch: &mut Vec<u64>,
    candidates: &mut Vec<u32>,
) {
    if count == 0 {
        candidates.clear();
        return;
    }
    gather(all_scores, None, bound, count, batch);
    if batch.len() > count {
        batch.select_nth_unstable(count);
        batch.truncate(count);
    }
    candidates.clear();
    candidates.extend(batch.iter().map(|key| *key as u32));
    candidates.sort_unstable();
}

/// The `count` smallest candidates behind `after` that are not above `bound`, and perhaps some
/// more, in any order.
fn gather(all_scores: &[f32], after: Option<u64>, bound: f32, count: usize, batch: &mut Vec<u64>) {
    if let Some(guess) = guess(all_scores, after, count)
        && (bound.is_nan() || guess <= bound)
    {
        gather_within(all_scores, after, guess, count, batch);
        if batch.len() >= count {
            return;
        }
    }
    gather_within(all_scores, after, bound, count, batch);
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
fn gather_within(
    all_scores: &[f32],
    after: Option<u64>,
    bound: f32,
    count: usize,
    batch: &mut Vec<u64>,
) {
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
