//! Which data, which question, how fast?
//!
//! `workload` makes the data and questions of the reports; `heap` is the baseline that every
//! faster path must equal and is compared with; `target` is what is measured; `cases` has every
//! case by its name; `run` builds, gates and measures; `multidepth` asks the segmented form;
//! `ann` compares engines below all that; `report` writes the figures down.

pub mod ann;
pub mod cases;
mod diagnostics;
mod engine_target;
mod error;
mod filters;
pub mod heap;
pub mod measure;
mod multidepth;
pub mod plain;
mod remote_target;
pub mod report;
mod run;
mod spec;
pub mod target;
pub mod workload;

pub use diagnostics::{Diagnostics, diagnose};
pub use engine_target::{EngineTarget, load};
pub use error::BenchError;
pub use remote_target::{Http, RemoteHost};
pub use run::{Emit, run};
pub use spec::{BenchSpec, IndexChoice, WorkloadSpec};
