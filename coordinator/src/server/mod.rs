//! The outside surface: translation only, no decision about an answer is made here.
//!
//! `json/` bodies in · `decode/` bodies into requests · `encode/` replies into bodies · `problem.rs` errors out.

pub mod decode;
pub mod encode;
pub mod json;
pub mod problem;
