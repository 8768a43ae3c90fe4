//! Replies into bodies: fields in the contract's order, equal bytes for equal answers.
//!
//! `writer.rs` JSON text · `facts.rs` facts, writes and reads by key · `retrieval.rs` answers ·
//! `explain.rs` explanations, slow queries · `graphs.rs` configurations, sizes, relations.

pub mod explain;
pub mod facts;
pub mod graphs;
pub mod retrieval;
mod writer;

pub use writer::Json;
