//! The door: raw requests become plans, or a `Problem` that names the place. Pure functions.
//!
//! - `retrieval.rs` questions: graph_rag, search, expand, rerank
//! - `facts.rs` facts and keys to write
//! - `filter.rs` the JSON form of a filter
//! - `graph.rs` the configuration of a graph

pub mod facts;
pub mod filter;
pub mod graph;
pub mod retrieval;

use crate::names::{invalid, problem_at};
use hopbine_proto::limits;
use hopbine_proto::score::Metric;
use hopbine_proto::status::{Code, Problem};
use std::time::Duration;

/// Checks one vector against the graph's space. `pointer` is its place in the request.
pub fn vector(
    vector: &[f32],
    dim: u32,
    metric: Metric,
    pointer: impl Fn() -> String,
) -> Result<(), Problem> {
    if vector.len() != dim as usize {
        let detail = format!("the graph has {dim} dimensions, the vector {}", vector.len());
        return Err(problem_at(Code::DimensionMismatch, pointer(), detail));
    }
    // One pass that the compiler can vectorise; the place is looked for only when it is needed.
    let all_finite = vector.iter().fold(true, |finite, x| finite & x.is_finite());
    if !all_finite {
        let place = vector.iter().position(|x| !x.is_finite()).unwrap_or_default();
        let pointer = format!("{}/{place}", pointer());
        return Err(problem_at(Code::NotFinite, pointer, "a component is not finite"));
    }
    if metric == Metric::Cosine && vector.iter().all(|x| *x == 0.0) {
        let detail = "a zero vector has no direction, so no cosine distance";
        return Err(problem_at(Code::NotFinite, pointer(), detail));
    }
    Ok(())
}

/// Checks that a whole number lies in `1..=max`.
pub fn count(value: u64, max: u64, pointer: &str) -> Result<u64, Problem> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    Err(invalid(pointer, format!("must be 1 to {max}, not {value}")))
}

/// The same for bounds that fit 32 bits.
pub fn count_u32(value: u64, max: u32, pointer: &str) -> Result<u32, Problem> {
    count(value, max.into(), pointer).map(|value| value as u32)
}

/// Checks a `timeout`.
pub fn timeout(timeout: Duration) -> Result<(), Problem> {
    if (Duration::from_millis(1)..=limits::TIMEOUT_MAX).contains(&timeout) {
        return Ok(());
    }
    let max = limits::TIMEOUT_MAX.as_secs();
    Err(invalid("/timeout", format!("must be 1 ms to {max} s, not {timeout:?}")))
}
