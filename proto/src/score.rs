//! Metrics and the one order of answers.

use crate::fact::FactKey;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// How far two vectors are apart; smaller is nearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// `1 - (a.b) / (|a| |b|)`, in this order, in f64.
    #[default]
    Cosine,
    /// Squared Euclidean distance.
    L2,
    /// `-(a.b)`.
    Dot,
}

/// Distance that a fact without embedding counts with in a cosine graph.
pub const DISTANCE_WITHOUT_EMBEDDING: f64 = 1.0;

/// Best first. Keys break ties, so the answer never depends on which shard was quicker.
pub fn rank(a: (f64, FactKey), b: (f64, FactKey)) -> Ordering {
    a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1))
}

/// What a result's score is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreMode {
    /// Sum of the weighted hop distances, smallest over all admissible paths.
    #[default]
    Path,
    /// The last fact's own unweighted distance.
    Endpoint,
}
