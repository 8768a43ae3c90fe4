//! 4-bit codes of vectors: half the bytes of the 8-bit ones, for a first look at every row, and
//! four bits more of each for a second look at the promising ones.
//!
//! Facts of one relation resemble each other, so what tells them apart is what is left once the
//! mean of their relation is taken away. That residual `r = x - c` (under cosine `x` is the vector
//! divided by its norm) is rotated and coded with a step of its own, an eighth of its largest
//! component: a component becomes a level `n` of 0 to 15, which stands for `(n - 7.5) step`, and a
//! finer level `m` of 0 to 15 within it, which adds `(m - 7.5) step / 16`. A product is then, with
//! the rotation `R`,
//!
//! ```text
//! x·q = c·q + Rr·Rq      c·q once a centre, Rr·Rq ≈ step Σ (n_i - 7.5) (Rq)_i
//! ```
//!
//! Questions point much the same way as the mean, so the part of a row's rounding error along its
//! centre would be the largest part of an error of a score. It is kept for each row, and added.
//!
//! The rotation makes what is lost by rounding random: without it, vectors whose components have
//! few distinct values lose the same part of a common direction in all rows, and a question that
//! points there sees it (as in RaBitQ, see `signs.rs`). It flips fixed signs and applies a
//! Walsh-Hadamard transform to each 128 components.
//!
//! A row of levels is whole cache lines; each holds 128 components, component `i` of them in the
//! low half of byte `i`, component `64 + i` in its high half.
//!
//! | section      | bytes                    | content                              |
//! |--------------|--------------------------|--------------------------------------|
//! | sketch       | nodes × stride           | rows of levels                       |
//! |              | nodes × stride           | rows of finer levels                 |
//! |              | nodes, up to whole words | number of each node's centre, u8     |
//! | sketch terms | 4 × nodes                | each node's step, f32                |
//! |              | 4 × nodes                | each node's error along its centre,  |
//! |              |                          | of its levels, f32                   |
//! |              | 4 × nodes                | the same, of levels and finer levels |
//! |              | 4 × centres × dim        | the centres, f32 each                |
//!
//! A score by these codes only chooses candidates; how many are needed is found out from the errors
//! met, and whether that suffices is measured when a segment is sealed.

use crate::codes::factor;
use crate::kernel::norm;
use hopbine_proto::{Metric, RelationId};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Levels of a component.
const LEVELS: f64 = 16.0;
/// Components of a cache line.
const LINE: usize = 128;
/// Centres of a segment: the first is the mean of all rows whose relation has none of its own.
pub const CENTRES_MAX: usize = 32;
/// Rows that a relation must have for a centre of its own.
const CENTRE_ROWS_MIN: u32 = 64;

/// Bytes of the codes of `dim` components: whole cache lines.
pub fn nibble_stride(dim: usize) -> usize {
    dim.div_ceil(LINE) * LINE / 2
}

/// Bytes of the sketch section of `nodes` rows.
pub fn nibble_section_bytes(nodes: usize, dim: usize) -> usize {
    2 * nodes * nibble_stride(dim) + nodes.next_multiple_of(8)
}

/// Which relations have a centre of their own, by their rows: `(relation, rows)`.
pub fn centred_relations(rows: &HashMap<RelationId, u32>) -> HashMap<RelationId, u8> {
    let mut frequent: Vec<(u32, RelationId)> = rows
        .iter()
        .filter(|(_, rows)| **rows >= CENTRE_ROWS_MIN)
        .map(|(relation, rows)| (*rows, *relation))
        .collect();
    frequent.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let numbered = frequent.into_iter().zip(1..CENTRES_MAX as u8);
    numbered.map(|((_, relation), number)| (relation, number)).collect()
}

/// Means of rows that are shown one after the other.
pub struct Means {
    metric: Metric,
    sums: Vec<Vec<f64>>,
    counts: Vec<u32>,
}

impl Means {
    /// `count` means of `dim` components.
    pub fn new(metric: Metric, count: usize, dim: usize) -> Self {
        Self { metric, sums: vec![vec![0.0; dim]; count], counts: vec![0; count] }
    }

    /// Adds a row, whose norm is `norm`, to the mean of this number.
    pub fn push(&mut self, number: u8, row: &[f32], norm: f64) {
        let factor = factor(self.metric, norm);
        let sum = &mut self.sums[usize::from(number)];
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value) * factor);
        self.counts[usize::from(number)] += 1;
    }

    /// The means, one after the other; zeros where nothing was added.
    pub fn finish(self) -> Vec<f32> {
        let mean = |(sum, count): (Vec<f64>, u32)| {
            let count = f64::from(count.max(1));
            sum.into_iter().map(move |sum| (sum / count) as f32)
        };
        self.sums.into_iter().zip(self.counts).flat_map(mean).collect()
    }
}

/// Codes residuals one after the other.
pub struct NibbleEncoder {
    metric: Metric,
    dim: usize,
    centres: Vec<f32>,
    steps: Vec<f32>,
    rows: Vec<u8>,
    finer: Vec<u8>,
    numbers: Vec<u8>,
    errors: [Vec<f32>; 2],
    /// Each centre at length 1, rotated; zeros for one of length 0.
    along: Vec<Vec<f32>>,
}

impl NibbleEncoder {
    /// An encoder around `centres`, `dim` components each.
    pub fn new(metric: Metric, dim: usize, centres: Vec<f32>) -> Self {
        let along = centres.chunks(dim).map(|centre| {
            let norm = norm(centre);
            rotated(centre.iter().map(|c| if norm > 0.0 { f64::from(*c) / norm } else { 0.0 }))
        });
        Self {
            along: along.collect(),
            metric,
            dim,
            centres,
            steps: Vec::new(),
            rows: Vec::new(),
            finer: Vec::new(),
            numbers: Vec::new(),
            errors: Default::default(),
        }
    }

    /// The rotated residual of a row.
    fn residual(&self, number: u8, row: &[f32], norm: f64) -> Vec<f32> {
        let factor = factor(self.metric, norm);
        let centre = &self.centres[usize::from(number) * self.dim..][..self.dim];
        let parts = row.iter().zip(centre);
        rotated(parts.map(|(value, centre)| f64::from(*value) * factor - f64::from(*centre)))
    }

    /// Adds the next row, whose norm is `norm`, around the centre of this number.
    pub fn push(&mut self, number: u8, row: &[f32], norm: f64) {
        let start = self.rows.len();
        self.rows.resize(start + nibble_stride(self.dim), 0);
        self.finer.resize(self.rows.len(), 0);
        let residual = self.residual(number, row, norm);
        let largest = residual.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        self.steps.push(largest / (LEVELS / 2.0) as f32);
        let (step, mut errors) = (f64::from(largest) / (LEVELS / 2.0), [0.0; 2]);
        let along = &self.along[usize::from(number)];
        for (i, (value, along)) in residual.into_iter().zip(along).enumerate() {
            let value = f64::from(value);
            for (error, told) in errors.iter_mut().zip(level_values(value, step)) {
                *error += (value - told) * f64::from(*along);
            }
            let level = finer_level(value, step) as u8;
            let (line, at) = (i / LINE, i % LINE);
            let (place, shift) = (start + line * 64 + at % 64, if at < 64 { 0 } else { 4 });
            self.rows[place] |= (level >> 4) << shift;
            self.finer[place] |= (level & 15) << shift;
        }
        self.numbers.push(number);
        self.errors.iter_mut().zip(errors).for_each(|(all, error)| all.push(error as f32));
    }

    /// Codes and numbers, and step and centres, as sections: little-endian.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        self.numbers.resize(self.numbers.len().next_multiple_of(8), 0);
        self.rows.append(&mut self.finer);
        self.rows.append(&mut self.numbers);
        let terms = self.steps.iter().chain(self.errors.iter().flatten()).chain(&self.centres);
        (self.rows, terms.flat_map(|term| term.to_le_bytes()).collect())
    }
}

/// `values` rotated: as many, up to a whole number of lines.
pub fn rotated(values: impl IntoIterator<Item = f64>) -> Vec<f32> {
    let mut rotated: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
    rotated.resize(rotated.len().next_multiple_of(LINE), 0.0);
    for (number, line) in rotated.chunks_exact_mut(LINE).enumerate() {
        let flips = xxh3_64_with_seed(&[], 2 * number as u64);
        let more = xxh3_64_with_seed(&[], 2 * number as u64 + 1);
        let flips = u128::from(flips) << 64 | u128::from(more);
        for (i, value) in line.iter_mut().enumerate() {
            *value = if flips >> i & 1 == 1 { -*value } else { *value };
        }
        let mut half = 1;
        while half < LINE {
            for pair in line.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        let unit = 1.0 / (LINE as f32).sqrt();
        line.iter_mut().for_each(|value| *value *= unit);
    }
    rotated
}

/// Level and finer level, the level first: 0 to 255. Any will do where the step is 0.
fn finer_level(value: f64, step: f64) -> f64 {
    let all = LEVELS * LEVELS;
    let place = if step > 0.0 { value / step } else { 0.0 };
    (place * LEVELS + all / 2.0).floor().clamp(0.0, all - 1.0)
}

/// What the level of `value` stands for, and what it stands for together with the finer one.
fn level_values(value: f64, step: f64) -> [f64; 2] {
    let finer = finer_level(value, step);
    let level = (finer / LEVELS).floor();
    [(level + 0.5 - LEVELS / 2.0) * step, (finer + 0.5) / LEVELS * step - LEVELS / 2.0 * step]
}

/// The 4-bit codes of a segment's distinct vectors.
#[derive(Clone, Copy, Debug)]
pub struct Nibbles<'a> {
    /// Rows of levels.
    pub rows: &'a [u8],
    /// Rows of finer levels.
    pub finer: &'a [u8],
    /// Bytes of a row of either.
    pub stride: usize,
    /// Number of each row's centre, and what fills the last word.
    pub numbers: &'a [u8],
    /// Each row's step.
    pub steps: &'a [f32],
    /// Each row's error along its centre, of its levels.
    pub errors: &'a [f32],
    /// The same, of levels and finer levels.
    pub finer_errors: &'a [f32],
    /// The centres.
    pub centres: &'a [f32],
}

impl<'a> Nibbles<'a> {
    /// The sections of `nodes` rows of `dim` components; `None` when they do not fit together.
    pub fn read(sketch: &'a [u8], terms: &'a [f32], nodes: usize, dim: usize) -> Option<Self> {
        let stride = nibble_stride(dim);
        let (rows, rest) = sketch.split_at_checked(nodes * stride)?;
        let (finer, numbers) = rest.split_at_checked(nodes * stride)?;
        let (steps, terms) = terms.split_at_checked(nodes)?;
        let (errors, terms) = terms.split_at_checked(nodes)?;
        let (finer_errors, centres) = terms.split_at_checked(nodes)?;
        let whole = numbers.len() == nodes.next_multiple_of(8)
            && centres.len().is_multiple_of(dim)
            && (1..=CENTRES_MAX).contains(&(centres.len() / dim));
        whole.then_some(Self { rows, finer, stride, numbers, steps, errors, finer_errors, centres })
    }

    /// Whether every row has one of the centres.
    pub fn is_sound(&self, dim: usize) -> bool {
        let centres = self.centres.len() / dim;
        self.numbers.iter().all(|number| usize::from(*number) < centres)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Query;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_score_is_the_product_but_for_the_rounding(
            rows in (1usize..300).prop_flat_map(|dim| {
                prop::collection::vec(prop::collection::vec(-1.0f32..1.0, dim), 2..6)
            }),
            metric in prop_oneof![Just(Metric::Dot), Just(Metric::Cosine), Just(Metric::L2)],
        ) {
            let dim = rows[0].len();
            let query: Vec<f32> = rows[1].iter().rev().map(|x| 0.5 - x).collect();
            let norms: Vec<f64> = rows.iter().map(|row| norm(row)).collect();
            let of_query = norm(&query);
            prop_assume!(of_query > 0.1 && norms.iter().all(|norm| *norm > 0.1));
            let number = |row: usize| (row % 2) as u8;
            let mut means = Means::new(metric, 2, dim);
            let all = || (0..rows.len()).map(|row| (number(row), &rows[row][..], norms[row]));
            all().for_each(|(number, row, norm)| means.push(number, row, norm));
            let mut encoder = NibbleEncoder::new(metric, dim, means.finish());
            all().for_each(|(number, row, norm)| encoder.push(number, row, norm));
            let steps = encoder.steps.clone();
            let slack: Vec<[f64; 2]> = all().zip(&steps).map(|((number, row, norm), step)| {
                let step = f64::from(*step);
                [0, 1].map(|finer| {
                    let off = |x: f32| (f64::from(x) - level_values(x.into(), step)[finer]).powi(2);
                    encoder.residual(number, row, norm).into_iter().map(off).sum::<f64>().sqrt()
                })
            }).collect();
            let (sketch, terms) = encoder.finish();
            prop_assert_eq!(sketch.len(), nibble_section_bytes(rows.len(), dim));
            let terms: Vec<f32> =
                terms.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let nibbles = Nibbles::read(&sketch, &terms, rows.len(), dim).expect("whole");
            prop_assert!(nibbles.is_sound(dim));
            let prepared = Query::new(metric, &query);
            let asked = prepared.nibbles(&nibbles);
            let (mut dots, mut finer) = (vec![0; rows.len()], vec![0; rows.len()]);
            prepared.kernels().nibble_dots(&asked.numbers, nibbles.rows, &mut dots);
            prepared.kernels().nibble_dots(&asked.numbers, nibbles.finer, &mut finer);
            let zeros = vec![0.0; rows.len()];
            // The size of the query is left out but under L2.
            let by = if metric == Metric::L2 { 1.0 } else { 1.0 / of_query };
            for (row, dot) in dots.iter().enumerate() {
                let own = factor(metric, norms[row]);
                let exact: f64 = rows[row].iter().zip(&query)
                    .map(|(x, q)| f64::from(*x) * own * f64::from(*q) * by).sum();
                let score = asked.score(*dot, nibbles.numbers[row], nibbles.steps[row], 0.0);
                // Without what is added for its error, which the slack allows for.
                let bare = Nibbles { errors: &zeros, finer_errors: &zeros, ..nibbles };
                let scores = [score, asked.finer(&bare, row, score, finer[row])];
                let mut all = vec![0.0; rows.len()];
                asked.scores(&nibbles, 0..rows.len(), &dots, &mut all);
                let whole = asked.score(
                    *dot, nibbles.numbers[row], nibbles.steps[row], nibbles.errors[row],
                );
                prop_assert_eq!(all[row], whole);
                let step = f64::from(steps[row]);
                // Of the row's rounding, and of the query's: half of a 127th of its largest.
                let levels = 8.0 * step * dim.next_multiple_of(LINE) as f64 / 250.0;
                for (score, slack) in scores.into_iter().zip(slack[row]) {
                    let score = f64::from(score);
                    let told = if metric == Metric::L2 { score / -2.0 } else { -score };
                    let slack = (slack + levels) * of_query * by + 1e-4;
                    prop_assert!((exact - told).abs() <= slack, "{told} for {exact}, {slack}");
                }
                let distance = prepared.distance(&rows[row], norms[row]);
                let square = (norms[row] * norms[row]) as f32;
                let size = if metric == Metric::L2 { square } else { 0.0 };
                let told = asked.told().distance(scores[1] + size);
                let worth = if metric == Metric::Cosine { 1.0 } else { 2.0 * of_query };
                let slack = (slack[row][1] + levels) * worth;
                prop_assert!((distance - told).abs() <= slack + 1e-3, "{told} for {distance}");
            }
        }
    }

    #[test]
    fn a_rotation_keeps_products() {
        let a: Vec<f64> = (0..200).map(|i| f64::from(i * 37 % 101) / 50.0 - 1.0).collect();
        let b: Vec<f64> = (0..200).map(|i| f64::from(i * 61 % 89) / 45.0 - 1.0).collect();
        let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let turned = |x: &[f64]| -> Vec<f64> {
            rotated(x.iter().copied()).into_iter().map(f64::from).collect()
        };
        assert_eq!(turned(&a).len(), 256);
        assert!((product(&a, &b) - product(&turned(&a), &turned(&b))).abs() < 1e-3);
        assert!((product(&a, &a) - product(&turned(&a), &turned(&a))).abs() < 1e-3);
    }

    #[test]
    fn the_most_frequent_relations_have_centres() {
        let rows = (0..100u32).map(|id| (RelationId(id), id * 10)).collect();
        let centred = centred_relations(&rows);
        assert_eq!(centred.len(), CENTRES_MAX - 1);
        assert_eq!(centred.get(&RelationId(99)), Some(&1));
        assert!(!centred.contains_key(&RelationId(60)));
        assert!(centred_relations(&(0..9).map(|id| (RelationId(id), 63)).collect()).is_empty());
    }
}
