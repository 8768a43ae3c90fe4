//! The engine: every public operation as one async method. The surfaces translate to and from it.
//!
//! - `admission.rs` which retrievals begin, and which wait
//! - `apart.rs` long work leaves the async threads
//! - `engine.rs` [`Engine`], its parts, questions and writes
//! - `call.rs` what one call carries; one shard read, repeated while that is safe
//! - `explain.rs` what an explanation needs; slow queries
//! - `facts.rs` get, scan, count, entity, relations, stats
//! - `graphs.rs` create, show, list, patch and drop graphs
//! - `rerank.rs` scores of paths that the caller has
//! - `turns.rs` how much is read at once

mod admission;
mod apart;
mod call;
mod engine;
mod explain;
mod facts;
mod graphs;
mod rerank;
mod turns;

pub(crate) use apart::{Bulk, apart};
pub(crate) use call::{Call, Failure, Reaction};
pub use engine::Engine;
use engine::milliseconds;
pub(crate) use turns::{Turn, rows_bytes};
