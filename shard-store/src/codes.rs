//! 8-bit codes of vectors: what the approximate search reads instead of f32 rows.
//!
//! A code is `round(x / scale) + 128`, clamped to 1..=255; a row of codes is padded with 128 (zero)
//! to whole cache lines. Under cosine `x` is the vector divided by its norm, otherwise the vector
//! itself. A segment has one scale (its 99.99th percentile of `|x|` over 127, so that single
//! outliers do not coarsen everything); a memtable row has its own (its largest `|x|` over 127).
//!
//! Each row keeps how far its codes are from the truth (`error`), so that a scan knows how wrong an
//! approximate distance can be at most, and stops reranking only when no row left could win.

use crate::kernel::{ExactQuery, Kernels};
use hopbine_proto::Metric;

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

/// The next f32 that is surely not below `value`.
fn rounded_up(value: f64) -> f32 {
    ((value * (1.0 + 1e-6)) as f32).next_up()
}

/// A query coded with its own scale, and the bounds that its rounding leaves.
#[derive(Clone, Debug)]
pub struct CodeQuery {
    metric: Metric,
    codes: Vec<i8>,
    scale: f64,
    error: f64,
    norm: f64,
    coded_norm: f64,
}

impl CodeQuery {
    /// Codes `query`, whose norm is `norm`.
    pub fn new(metric: Metric, query: &[f32], norm: f64) -> Self {
        let scale = own_scale(metric, query, norm);
        let mut bytes = Vec::with_capacity(code_stride(query.len()));
        let terms = encode_row(metric, query, norm, scale, &mut bytes);
        let codes: Vec<i8> = bytes.iter().map(|code| (i32::from(*code) - 128) as i8).collect();
        let squares: i64 = codes.iter().map(|code| i64::from(*code) * i64::from(*code)).sum();
        let scale = f64::from(scale);
        Self {
            metric,
            codes,
            scale,
            error: f64::from(terms.error),
            norm: if metric == Metric::Cosine { 1.0 } else { norm },
            coded_norm: (squares as f64).sqrt() * scale,
        }
    }

    /// The signed codes, padded with 0 to whole cache lines.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Approximate score of a row from its integer dot product; smaller is nearer.
    #[inline]
    pub fn score(&self, dot: i32, scale: f32, size: f32) -> f32 {
        let dot = (f64::from(dot) * (self.scale * f64::from(scale))) as f32;
        match self.metric {
            Metric::Cosine | Metric::Dot => -dot,
            Metric::L2 => size - 2.0 * dot,
        }
    }

    /// The largest score that a row with these terms can have while its exact distance is at most
    /// `distance`. A row above it is certainly farther away.
    #[inline]
    pub fn score_bound(&self, distance: f64, error: f32, size: f32) -> f32 {
        let (error, size) = (f64::from(error), f64::from(size));
        let bound = match self.metric {
            // |u.v - û.v̂| <= |u - û| |v| + |û| |v - v̂|, where |u| = |v| = 1.
            Metric::Cosine => distance - 1.0 + error + (1.0 + error) * self.error + 2e-6,
            Metric::Dot => {
                let slack = error * self.norm + (size + error) * self.error;
                distance + slack + 1e-6 * (size + error) * self.coded_norm
            }
            // | |x - q| - |x̂ - q̂| | <= |x - x̂| + |q - q̂|, and score = |x̂ - q̂|² - |q̂|².
            Metric::L2 => {
                let reach = distance.max(0.0).sqrt() + error + self.error;
                let squares = self.coded_norm * self.coded_norm;
                let rounding = 1e-6 * (size + squares + reach * reach);
                reach * reach - squares + rounding
            }
        };
        (bound as f32).next_up()
    }
}

/// A question prepared once and shared by all runs: exact values and codes.
#[derive(Clone, Debug)]
pub struct Query {
    metric: Metric,
    kernels: &'static Kernels,
    exact: ExactQuery,
    codes: CodeQuery,
}

impl Query {
    /// Prepares `query`: finite, of the graph's dimension (1 to 4,096), not zero under cosine.
    pub fn new(metric: Metric, query: &[f32]) -> Self {
        let exact = ExactQuery::new(query);
        let codes = CodeQuery::new(metric, query, exact.norm());
        Self { metric, kernels: Kernels::chosen(), exact, codes }
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

    /// The coded query.
    pub fn codes(&self) -> &CodeQuery {
        &self.codes
    }

    /// Kernels in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }
}
