//! 1-bit codes of vectors and an estimate of inner products from them: RaBitQ (Gao and Long,
//! "RaBitQ: Quantizing High-Dimensional Vectors with a Theoretical Error Bound", SIGMOD 2024),
//! without the random rotation, which hardly helps on embeddings.
//!
//! The code of a vector `x` (under cosine divided by its norm) is the sign of each component of its
//! residual `r = x - c`, where `c` is the mean of the segment. With `s` the signs as ±1,
//!
//! ```text
//! x·q = c·q + r·c + r·(q - c)      r·(q - c) ≈ f (s·(q - c)),  f = |r|² / Σ|r_i|
//! ```
//!
//! so a row keeps its signs, `f`, `r·c` and its number of positive signs. The query's part `q - c`
//! is rounded to 16 levels, whose four bit planes meet the signs in `Kernels::sign_sums`.
//!
//! An estimate only chooses candidates; how many are needed is measured when a segment is sealed.

use crate::codes::factor;
use crate::kernel::{SIGN_GROUP, SIGN_PLANES, SignPlanes};
use hopbine_proto::Metric;

/// Largest level of a rounded query component.
const LEVEL_MAX: f32 = 15.0;
/// f32 numbers that a row keeps beside its signs.
pub const SIGN_TERMS: usize = 3;

/// 64-bit words of the signs of `dim` components.
pub fn sign_words(dim: usize) -> usize {
    dim.div_ceil(64)
}

/// Words of the signs of `rows` rows: whole groups.
pub fn sign_section_words(rows: usize, dim: usize) -> usize {
    rows.div_ceil(SIGN_GROUP) * SIGN_GROUP * sign_words(dim)
}

/// Codes rows one after the other.
pub struct SignEncoder {
    metric: Metric,
    centre: Vec<f32>,
    words: Vec<u64>,
    terms: [Vec<f32>; SIGN_TERMS],
}

impl SignEncoder {
    /// An encoder around `centre`, the mean of what it will be shown.
    pub fn new(metric: Metric, centre: Vec<f32>) -> Self {
        Self { metric, centre, words: Vec::new(), terms: Default::default() }
    }

    /// Adds the next row. A residual of zero gives the estimate `c·q + r·c`, which is exact.
    pub fn push(&mut self, row: &[f32], norm: f64) {
        let (words, at) = (sign_words(row.len()), self.terms[0].len());
        let (group, lane) = (at / SIGN_GROUP * words * SIGN_GROUP, at % SIGN_GROUP);
        if lane == 0 {
            self.words.resize(group + words * SIGN_GROUP, 0);
        }
        let factor = factor(self.metric, norm);
        let (mut square, mut sum, mut with_centre, mut positive) = (0.0f64, 0.0f64, 0.0f64, 0u32);
        for (i, (value, centre)) in row.iter().zip(&self.centre).enumerate() {
            let residual = f64::from(*value) * factor - f64::from(*centre);
            square += residual * residual;
            sum += residual.abs();
            with_centre += residual * f64::from(*centre);
            if residual > 0.0 {
                self.words[group + i / 64 * SIGN_GROUP + lane] |= 1 << (i % 64);
                positive += 1;
            }
        }
        let slope = if sum > 0.0 { (square / sum) as f32 } else { 0.0 };
        let of_row = [slope, with_centre as f32, slope * positive as f32];
        self.terms.iter_mut().zip(of_row).for_each(|(terms, term)| terms.push(term));
    }

    /// Signs, and centre and terms of the rows, as sections: little-endian words.
    pub fn finish(self) -> (Vec<u8>, Vec<u8>) {
        let numbers = self.centre.iter().chain(self.terms.iter().flatten());
        (
            self.words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            numbers.flat_map(|number| number.to_le_bytes()).collect(),
        )
    }
}

/// The signs of a segment's distinct vectors.
#[derive(Clone, Copy, Debug)]
pub struct Signs<'a> {
    /// Groups of rows; of each group the first words of all rows, then the second words, and so on.
    pub words: &'a [u64],
    /// The mean that residuals are taken from.
    pub centre: &'a [f32],
    /// `f` of all rows, then `r·c` of all, then `f` times the number of positive signs of all.
    pub terms: &'a [f32],
}

impl Signs<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.terms.len() / SIGN_TERMS
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

/// A query prepared against one segment's centre.
pub struct SignQuery {
    /// Bit planes of the rounded `q - c`.
    pub planes: SignPlanes,
    metric: Metric,
    /// `c·q`.
    with_centre: f32,
    /// One level.
    step: f32,
    /// Value of level 0.
    lowest: f32,
    /// Sum of the rounded `q - c`.
    sum: f32,
}

impl SignQuery {
    /// Prepares `query`, whose norm is `norm`, for rows around `centre`.
    pub fn new(metric: Metric, query: &[f64], norm: f64, centre: &[f32]) -> Self {
        let factor = factor(metric, norm);
        let (mut with_centre, mut shifted) = (0.0f64, Vec::with_capacity(centre.len()));
        for (value, centre) in query.iter().zip(centre) {
            let value = value * factor;
            with_centre += value * f64::from(*centre);
            shifted.push((value - f64::from(*centre)) as f32);
        }
        let lowest = shifted.iter().copied().fold(f32::INFINITY, f32::min);
        let highest = shifted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let step = (highest - lowest) / LEVEL_MAX;
        let step = if step.is_finite() && step > f32::MIN_POSITIVE { step } else { 1.0 };
        let mut planes = SignPlanes::zeros(sign_words(centre.len()));
        let mut levels = 0.0;
        for (i, value) in shifted.iter().enumerate() {
            let level = ((value - lowest) / step).round().clamp(0.0, LEVEL_MAX);
            levels += level;
            for plane in 0..SIGN_PLANES {
                planes.set(plane, i, level as u32 >> plane & 1 == 1);
            }
        }
        let sum = lowest * centre.len() as f32 + step * levels;
        Self { planes, metric, with_centre: with_centre as f32, step, lowest, sum }
    }

    /// Estimated scores, smaller is nearer, from `Kernels::sign_sums`: minus the estimated product;
    /// under L2 the squared distance without the query's own square, `sizes` being the rows'
    /// squares.
    pub fn scores(
        &self,
        signs: &Signs<'_>,
        sums: &[u32],
        mut sizes: impl FnMut(u32) -> f32,
        scores: &mut Vec<f32>,
    ) {
        let (slopes, rest) = signs.terms.split_at(signs.len());
        let (own, positive) = rest.split_at(signs.len());
        // s·v = 2 (sum over positive signs) - (sum over all)
        let (twice, base) = (2.0 * self.step, self.with_centre);
        scores.clear();
        let terms = slopes.iter().zip(own).zip(positive).zip(sums);
        scores.extend(terms.map(|(((slope, own), positive), sum)| {
            let of_signs = slope * (twice * *sum as i32 as f32 - self.sum);
            -(base + own + of_signs + 2.0 * self.lowest * positive)
        }));
        if self.metric == Metric::L2 {
            for (score, row) in scores.iter_mut().zip(0..) {
                *score = sizes(row) + 2.0 * *score;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{ExactQuery, Kernels, norm};
    use proptest::prelude::*;

    fn rows_and_query() -> impl Strategy<Value = (Vec<Vec<f32>>, Vec<f32>)> {
        (1usize..200, 1usize..20).prop_flat_map(|(dim, count)| {
            let vector = prop::collection::vec(-1.0f32..1.0, dim)
                .prop_filter("not zero", |v| v.iter().any(|x| x.abs() > 0.01));
            (prop::collection::vec(vector.clone(), count), vector)
        })
    }

    proptest! {
        #[test]
        fn the_estimate_is_the_formula_over_rounded_query_components(
            (rows, query) in rows_and_query(),
        ) {
            for metric in [Metric::Cosine, Metric::Dot, Metric::L2] {
                let exact = ExactQuery::new(&query);
                let unit = |row: &[f32]| -> Vec<f64> {
                    let factor = factor(metric, norm(row));
                    row.iter().map(|x| f64::from(*x) * factor).collect()
                };
                let dim = query.len();
                let mean = |i: usize| rows.iter().map(|row| unit(row)[i]).sum::<f64>() as f32
                    / rows.len() as f32;
                let centre: Vec<f32> = (0..dim).map(mean).collect();
                let mut encoder = SignEncoder::new(metric, centre.clone());
                rows.iter().for_each(|row| encoder.push(row, norm(row)));
                let (words, terms) = encoder.finish();
                let words: Vec<u64> = words.as_chunks::<8>().0.iter().copied()
                    .map(u64::from_le_bytes).collect();
                let numbers: Vec<f32> = terms.as_chunks::<4>().0.iter().copied()
                    .map(f32::from_le_bytes).collect();
                let (read, terms) = numbers.split_at(dim);
                prop_assert_eq!(read, &centre[..]);
                prop_assert_eq!(words.len(), sign_section_words(rows.len(), dim));
                let signs = Signs { words: &words, centre: read, terms };
                prop_assert_eq!(signs.len(), rows.len());
                let asked = SignQuery::new(metric, &exact.values, exact.norm(), read);
                let mut sums = vec![0; rows.len().next_multiple_of(SIGN_GROUP)];
                Kernels::chosen().sign_sums(&asked.planes, &words, &mut sums);
                let mut scores = Vec::new();
                asked.scores(&signs, &sums, |_| 0.5, &mut scores);
                let q = unit(&query);
                for (row, score) in rows.iter().zip(&scores) {
                    let x = unit(row);
                    let (mut square, mut sum, mut own, mut signed, mut base, mut lost) =
                        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
                    for i in 0..dim {
                        let c = f64::from(centre[i]);
                        let r = x[i] - c;
                        square += r * r;
                        sum += r.abs();
                        own += r * c;
                        base += c * q[i];
                        signed += if r > 0.0 { q[i] - c } else { c - q[i] };
                        lost += f64::from(asked.step) / 2.0;
                    }
                    let slope = if sum > 0.0 { square / sum } else { 0.0 };
                    let product = base + own + slope * signed;
                    let told = match metric {
                        Metric::L2 => (0.5 - f64::from(*score)) / 2.0,
                        _ => -f64::from(*score),
                    };
                    let slack = slope * lost + 1e-3 * (1.0 + product.abs());
                    prop_assert!((told - product).abs() <= slack, "{told} for {product}");
                }
            }
        }
    }
}
