//! 8-bit codes of vectors: what the approximate search reads instead of f32 rows.
//!
//! A code is `round(x / scale) + 128`, clamped to 1..=255; a row of codes is padded with 128 (zero)
//! to whole cache lines. Under cosine `x` is the vector divided by its norm, otherwise the vector
//! itself. A segment has one scale (its 99.99th percentile of `|x|` over 127, so that single
//! outliers do not coarsen everything); a memtable row has its own (its largest `|x|` over 127).
//!
//! Each row keeps how far its codes are from the truth (`error`), so that a scan knows how wrong an
//! approximate distance can be at most, and stops reranking only when no row left could win.

use crate::kernel::{ExactQuery, FINE_MAX, Kernels, SignedCodes};
use crate::nibbles::{CENTRES_MAX, Nibbles, rotated};
use crate::signs::SignQuery;
use hopbine_proto::Metric;
use std::ops::Range;
use std::sync::OnceLock;

/// Codes of a row of `dim` components: whole cache lines.
pub fn code_stride(dim: usize) -> usize {
    dim.next_multiple_of(64)
}

/// What a row keeps beside its codes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowTerms {
    /// One step of the codes, in units of the coded vector.
    pub scale: f32,
    /// At least the Euclidean distance between the coded vector and its codes.
    pub error: f32,
    /// L2: squared norm of the codes; dot: at least the norm of the vector; cosine: unused, 0.
    pub size: f32,
}

/// Scale for a row of its own: its largest component becomes 127.
pub fn own_scale(metric: Metric, row: &[f32], norm: f64) -> f32 {
    let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    scale_for(f64::from(largest) * factor(metric, norm))
}

/// A usable scale whose code 127 is about `largest`.
pub fn scale_for(largest: f64) -> f32 {
    let scale = (largest / 127.0) as f32;
    // Below this the division by the scale would overflow; such a vector is all zeros to us.
    if scale.is_finite() && scale >= f32::MIN_POSITIVE { scale } else { 1.0 }
}

/// What a component is multiplied with before it is coded.
pub fn factor(metric: Metric, norm: f64) -> f64 {
    if metric == Metric::Cosine && norm > 0.0 { 1.0 / norm } else { 1.0 }
}

/// Appends the codes of `row` to `codes` and returns its terms. `scale` must be positive.
pub fn encode_row(
    metric: Metric,
    row: &[f32],
    norm: f64,
    scale: f32,
    codes: &mut Vec<u8>,
) -> RowTerms {
    let (factor, step) = (factor(metric, norm), f64::from(scale));
    let (mut error, mut size) = (0.0f64, 0.0f64);
    let start = codes.len();
    for value in row {
        let value = f64::from(*value) * factor;
        let code = (value / step).round().clamp(-127.0, 127.0);
        codes.push((code as i32 + 128) as u8);
        let coded = code * step;
        error += (value - coded) * (value - coded);
        size += coded * coded;
    }
    codes.resize(start + code_stride(row.len()), 128);
    let size = match metric {
        Metric::Cosine => 0.0,
        Metric::L2 => size as f32,
        Metric::Dot => rounded_up(norm),
    };
    RowTerms { scale, error: rounded_up(error.sqrt()), size }
}

/// Steps of a query's code in one step of a row's.
const FINER: f32 = FINE_MAX as f32 / 127.0;

/// The next f32 that is surely not below `value`.
fn rounded_up(value: f64) -> f32 {
    ((value * (1.0 + 1e-6)) as f32).next_up()
}

/// A query coded with its own scale, finer than rows are since it costs nothing, and the bounds
/// that its rounding leaves.
#[derive(Clone, Debug)]
pub struct CodeQuery {
    metric: Metric,
    codes: SignedCodes,
    scale: f64,
    error: f64,
    norm: f64,
    coded_norm: f64,
}

impl CodeQuery {
    /// Codes `query`, whose norm is `norm`.
    pub fn new(metric: Metric, query: &[f64], norm: f64) -> Self {
        let factor = factor(metric, norm);
        let largest = query.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        let step = scale_for(largest * factor) / FINER;
        let step = f64::from(if step >= f32::MIN_POSITIVE { step } else { 1.0 });
        let (mut error, mut squares, mut numbers) = (0.0f64, 0i64, Vec::new());
        for value in query {
            let value = value * factor;
            let most = f64::from(FINE_MAX);
            let number = (value / step).round().clamp(-most, most) as i16;
            error += (value - f64::from(number) * step).powi(2);
            squares += i64::from(number) * i64::from(number);
            numbers.push(number);
        }
        Self {
            metric,
            codes: SignedCodes::fine(&numbers),
            scale: step,
            error: f64::from(rounded_up(error.sqrt())),
            norm: if metric == Metric::Cosine { 1.0 } else { norm },
            coded_norm: (squares as f64).sqrt() * step,
        }
    }

    /// The numbers of 12 bits, padded with 0 to whole cache lines.
    pub fn codes(&self) -> &SignedCodes {
        &self.codes
    }

    /// Whether a score depends on the row's size; else any number will do.
    #[inline]
    pub fn needs_sizes(&self) -> bool {
        self.metric == Metric::L2
    }

    /// Approximate score of a row from its integer dot product; smaller is nearer. Cosine and
    /// dot: minus the approximate product. L2: the approximate squared distance without the
    /// query's own square.
    #[inline]
    pub fn score(&self, dot: i32, scale: f32, size: f32) -> f32 {
        let dot = f64::from(dot) * (self.scale * f64::from(scale));
        match self.metric {
            Metric::Cosine | Metric::Dot => -dot as f32,
            Metric::L2 => (f64::from(size) - 2.0 * dot) as f32,
        }
    }

    /// Which scores a row may have while its exact distance is at most `distance`.
    pub fn bound(&self, distance: f64) -> ScoreBound {
        let squares = self.coded_norm * self.coded_norm;
        match self.metric {
            // |u.v - û.v̂| <= |u - û| |v| + |û| |v - v̂|, where |u| = |v| = 1.
            Metric::Cosine => ScoreBound {
                base: distance - 1.0 + self.error + 2e-6,
                by_error: 1.0 + self.error,
                by_size: 0.0,
                root: None,
            },
            // |x.q - x̂.q̂| <= |x - x̂| |q| + |x̂| |q - q̂|, where |x̂| <= |x| + |x - x̂|.
            Metric::Dot => {
                let rounding = self.error + 1e-6 * self.coded_norm;
                ScoreBound {
                    base: distance,
                    by_error: self.norm + rounding,
                    by_size: rounding,
                    root: None,
                }
            }
            // | |x - q| - |x̂ - q̂| | <= |x - x̂| + |q - q̂|, and score = |x̂ - q̂|² - |q̂|².
            Metric::L2 => ScoreBound {
                base: 1e-6 * squares - squares,
                by_error: 0.0,
                by_size: 1e-6,
                root: Some(distance.max(0.0).sqrt() + self.error),
            },
        }
    }
}

/// The largest score of a row whose exact distance is at most some distance.
#[derive(Clone, Copy, Debug)]
pub struct ScoreBound {
    base: f64,
    by_error: f64,
    by_size: f64,
    /// L2: the square root of that distance plus the query's error.
    root: Option<f64>,
}

impl ScoreBound {
    /// A row with these terms and a score above this is certainly farther away. Not a number
    /// where terms overflow: then no score is above it. Grows with both terms.
    #[inline]
    pub fn at(&self, error: f32, size: f32) -> f32 {
        let (error, size) = (f64::from(error), f64::from(size));
        let mut bound = self.base + self.by_error * error + self.by_size * size;
        if let Some(root) = self.root {
            bound += (1.0 + 1e-6) * (root + error) * (root + error);
        }
        ((bound + 1e-6 * bound.abs()) as f32).next_up()
    }
}

/// Rows scored together.
const GROUP: usize = 32;

/// A query prepared for the 4-bit codes of one segment.
#[derive(Clone, Debug)]
pub struct NibbleQuery {
    metric: Metric,
    /// Rotated, with 8 bits.
    pub numbers: SignedCodes,
    /// What one step of a dot product adds to a score, for a row's step of 1.
    unit: f32,
    /// What each centre adds to a score, and what an error of 1 along it adds.
    of_centres: [(f32, f32); CENTRES_MAX],
    told: Told,
}

/// The distances that scores tell: `scale * score + offset`.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    scale: f64,
    offset: f64,
}

impl Told {
    /// The distance that a score tells.
    #[inline]
    pub fn distance(self, score: f32) -> f64 {
        f64::from(score) * self.scale + self.offset
    }

    /// The score that tells a distance, or the next one above.
    #[inline]
    pub fn score(self, distance: f64) -> f32 {
        (((distance - self.offset) / self.scale) as f32).next_up()
    }
}

impl NibbleQuery {
    /// The distances that scores tell.
    pub fn told(&self) -> Told {
        self.told
    }

    /// Whether the row's size belongs to a score.
    pub fn needs_sizes(&self) -> bool {
        self.metric == Metric::L2
    }

    /// Approximate score, as that of `CodeQuery` but without the row's size, from
    /// `Kernels::nibble_dots` of a row around the centre of this number; `step` and `error` are
    /// the row's.
    #[inline]
    pub fn score(&self, dot: i32, centre: u8, step: f32, error: f32) -> f32 {
        // Numbers are below the count of centres (checked when the segment was opened).
        let (of_centre, along) = self.of_centres[usize::from(centre) % CENTRES_MAX];
        of_centre + self.unit * step * dot as f32 + along * error
    }

    /// The scores of the rows `rows`, whose dot products are `dots`; equal to `score` of each.
    pub fn scores(
        &self,
        nibbles: &Nibbles<'_>,
        rows: Range<usize>,
        dots: &[i32],
        scores: &mut [f32],
    ) {
        let (steps, errors) = (&nibbles.steps[rows.clone()], &nibbles.errors[rows.clone()]);
        let terms = steps.chunks(GROUP).zip(errors.chunks(GROUP));
        let rows = nibbles.numbers[rows].chunks(GROUP).zip(dots.chunks(GROUP));
        for ((scores, (centres, dots)), (steps, errors)) in
            scores.chunks_mut(GROUP).zip(rows).zip(terms)
        {
            let rows = scores.iter_mut().zip(dots.iter().zip(steps.iter().zip(errors)));
            if centres.iter().all(|centre| *centre == centres[0]) {
                // Facts of one relation often lie together: nothing to look up for each.
                let centre = centres[0];
                for (score, (dot, (step, error))) in rows {
                    *score = self.score(*dot, centre, *step, *error);
                }
            } else {
                for ((score, (dot, (step, error))), centre) in rows.zip(centres) {
                    *score = self.score(*dot, *centre, *step, *error);
                }
            }
        }
    }

    /// The score of a row that includes `dot`, the same sum of its finer levels.
    #[inline]
    pub fn finer(&self, nibbles: &Nibbles<'_>, row: usize, score: f32, dot: i32) -> f32 {
        let (_, along) = self.of_centres[usize::from(nibbles.numbers[row]) % CENTRES_MAX];
        let error = nibbles.finer_errors[row] - nibbles.errors[row];
        score + self.unit / 16.0 * nibbles.steps[row] * dot as f32 + along * error
    }
}

/// A question prepared once and shared by all runs: exact values and codes.
#[derive(Clone, Debug)]
pub struct Query {
    metric: Metric,
    kernels: &'static Kernels,
    exact: ExactQuery,
    /// Made when first asked for: a hop has no use for it.
    codes: OnceLock<CodeQuery>,
}

impl Query {
    /// Prepares `query`: finite, of the graph's dimension (1 to 4,096), not zero under cosine.
    pub fn new(metric: Metric, query: &[f32]) -> Self {
        let exact = ExactQuery::new(query);
        Self { metric, kernels: Kernels::chosen(), exact, codes: OnceLock::new() }
    }

    /// The metric it was prepared for.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Components.
    pub fn dim(&self) -> usize {
        self.exact.dim()
    }

    /// Exact distance to `row`, whose norm is `norm` (see [`crate::kernel::norm`]): the one number
    /// that every order a user sees is made of. Panics when the dimensions differ.
    pub fn distance(&self, row: &[f32], norm: f64) -> f64 {
        self.exact.distance(self.kernels, self.metric, row, norm)
    }

    /// The query for 1-bit codes around `centre`.
    pub fn signs(&self, centre: &[f32]) -> SignQuery {
        SignQuery::new(self.metric, &self.exact.values, self.exact.norm(), centre)
    }

    /// The query for these 4-bit codes.
    pub fn nibbles(&self, nibbles: &Nibbles<'_>) -> NibbleQuery {
        // Under cosine and dot the size of the query changes no order, but could leave the range of
        // an f32.
        let norm = self.exact.norm();
        let factor = if self.metric == Metric::L2 || norm <= 0.0 { 1.0 } else { 1.0 / norm };
        // What a product is worth in a score.
        let sign = if self.metric == Metric::L2 { -2.0 } else { -1.0 };
        let mut of_centres = [(0.0, 0.0); CENTRES_MAX];
        for (of_centre, centre) in of_centres.iter_mut().zip(nibbles.centres.chunks(self.dim())) {
            let products = centre.iter().zip(&self.exact.values);
            let sum: f64 = products.map(|(c, q)| f64::from(*c) * q).sum();
            let norm: f64 = centre.iter().map(|c| f64::from(*c).powi(2)).sum::<f64>().sqrt();
            let along = if norm > 0.0 { sum / norm } else { 0.0 };
            *of_centre = (sign * (sum * factor) as f32, sign * (along * factor) as f32);
        }
        let turned = rotated(self.exact.values.iter().take(self.dim()).map(|q| q * factor));
        let step = own_scale(Metric::Dot, &turned, 1.0);
        let numbers: Vec<i8> = turned.iter().map(|q| (q / step).round() as i8).collect();
        NibbleQuery {
            metric: self.metric,
            numbers: SignedCodes::coarse(&numbers),
            // Two for the level's half steps.
            unit: sign * (step / 2.0),
            of_centres,
            told: match self.metric {
                Metric::Cosine => Told { scale: 1.0, offset: 1.0 },
                Metric::Dot => Told { scale: 1.0 / factor, offset: 0.0 },
                Metric::L2 => Told { scale: 1.0, offset: norm * norm },
            },
        }
    }

    /// The coded query.
    pub fn codes(&self) -> &CodeQuery {
        self.codes.get_or_init(|| {
            let values = &self.exact.values[..self.dim()];
            CodeQuery::new(self.metric, values, self.exact.norm())
        })
    }

    /// Kernels in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }
}
