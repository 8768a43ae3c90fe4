//! The one exact distance: the same 64 bits on every machine.
//!
//! Element `i` is added in lane `i mod 16`; the 16 lanes are then reduced pairwise: lane `l` takes
//! lane `l + 8`, then `l + 4`, `l + 2`, `l + 1`. The product of two f32 is exact in f64, so a fused
//! and an unfused multiply-add agree; for L2 the difference is rounded once in f64 and squared
//! without fusing. Sums cannot overflow: a product of finite f32 is below 2^256 and there are at
//! most 4,096 of them. Subnormal f32 and their products are exact as well.
//!
//! Non-finite input is refused at the door. If it came this far a NaN distance is returned as the
//! positive NaN, which `total_cmp` puts behind every other distance. Zero is always positive.

use super::table::Kernels;
use hopbine_proto::Metric;

/// A query prepared for exact distances: its values in f64, padded with zeros to whole lanes.
#[derive(Clone, Debug)]
pub struct ExactQuery {
    pub(crate) values: Vec<f64>,
    dim: usize,
    norm: f64,
}

impl ExactQuery {
    /// Prepares `query`, whose components must be finite.
    pub fn new(query: &[f32]) -> Self {
        let mut values: Vec<f64> = query.iter().map(|value| f64::from(*value)).collect();
        values.resize(query.len().next_multiple_of(LANES), 0.0);
        Self { values, dim: query.len(), norm: norm(query) }
    }

    /// Components of the query.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.norm
    }

    /// Exact distance to `row`, whose norm the caller kept from [`norm`].
    ///
    /// Cosine: `1 - (a.b) / (|a| |b|)`, nothing clamped, so identical vectors may come out a few
    /// units in the last place off 0, on either side; 1 when either norm is 0. L2: the squared
    /// difference. Dot: `-(a.b)`.
    pub fn distance(&self, kernels: &Kernels, metric: Metric, row: &[f32], row_norm: f64) -> f64 {
        assert_eq!(row.len(), self.dim, "a row of another dimension reached the kernels");
        let distance = match metric {
            Metric::Cosine => {
                let scale = self.norm * row_norm;
                if scale == 0.0 { 1.0 } else { 1.0 - kernels.dot(self, row) / scale }
            }
            Metric::L2 => kernels.squared_difference(self, row),
            Metric::Dot => -kernels.dot(self, row),
        };
        // Adding 0 makes a negative zero positive: equal distances must compare as equal.
        if distance.is_nan() { f64::NAN } else { distance + 0.0 }
    }
}

/// Lanes of every exact sum.
pub const LANES: usize = 16;

/// Euclidean norm of `row`: the square root of its exact dot product with itself.
pub fn norm(row: &[f32]) -> f64 {
    Kernels::chosen().squared_norm(row).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_of_zero_is_positive() {
        let query = ExactQuery::new(&[1.0, 0.0]);
        for kernels in Kernels::all_available() {
            for (metric, row) in [(Metric::Dot, [0.0, 1.0]), (Metric::L2, [1.0, 0.0])] {
                let distance = query.distance(&kernels, metric, &row, norm(&row));
                assert!(distance == 0.0 && distance.is_sign_positive(), "{metric:?} {distance:?}");
            }
        }
    }
}
