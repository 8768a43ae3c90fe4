//! The outside surface: translation only, no decision about an answer is made here.
//!
//! `json/` bodies in · `problem.rs` errors out.

pub mod json;
pub mod problem;
