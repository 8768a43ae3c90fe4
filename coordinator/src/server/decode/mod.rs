//! Bodies into requests. Shapes and types are checked here, values by the engine.
//!
//! `values.rs` what several calls share · `facts.rs` writes and reads by key · `retrieval.rs`
//! questions · `graphs.rs` configurations.
//!
//! Each call's field names are a constant, so that the published description can be held to them.

pub mod facts;
pub mod graphs;
pub mod retrieval;
pub mod values;
