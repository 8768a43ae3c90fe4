//! `ann`: the engines of approximate search beside each other, on one thread and below any graph.
//!
//! - `data.rs` vectors to search and questions that are none of them
//! - `native.rs` the index of a sealed segment: graph, 8-bit scan, 1-bit scan, what seal chose
//! - `theirs.rs` the hnsw_rs crate with its own search
//! - `compare.rs` measures every engine with every setting
//! - `lines.rs` what is reported

mod compare;
mod data;
mod lines;
mod native;
mod theirs;

pub(crate) use compare::run;
pub use compare::{ROWS_MIN, Size};
pub use lines::{AnnLine, AnnMatchLine};
