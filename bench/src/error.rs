//! Why a benchmark stops. A benchmark whose gate fails prints no figures.

use crate::workload::WorkloadError;
use hopbine_proto::status::Problem;

/// What went wrong, by what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Ask for another workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Ask differently.
    #[error("{detail}")]
    Spec {
        /// What cannot be done as asked.
        detail: String,
    },
    /// Look at what is being measured: it refused a call.
    #[error("{call} was refused: {problem}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// What it said.
        problem: Box<Problem>,
    },
    /// Look at what is being measured: it could not be reached or understood.
    #[error("{call} failed: {detail}")]
    Failed {
        /// Which call.
        call: &'static str,
        /// What happened.
        detail: String,
    },
    /// A bug: the fast path and the plain evaluation disagree.
    #[error("gate of {case} failed at query {query}: {detail}")]
    Gate {
        /// Which case.
        case: String,
        /// Which question, from 0.
        query: usize,
        /// How they differ.
        detail: String,
    },
}
