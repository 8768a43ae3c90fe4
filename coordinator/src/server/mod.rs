//! The outside surface: translation only, no decision about an answer is made here.
//!
//! `json/` bodies in · `decode/` bodies into requests · `problem.rs` errors out.

pub mod decode;
pub mod json;
pub mod problem;
