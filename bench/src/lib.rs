//! Which data, which question, how fast?
//!
//! `workload` makes the data and questions of the reports, `plain` is the evaluator that every
//! faster path must equal.

pub mod workload;
