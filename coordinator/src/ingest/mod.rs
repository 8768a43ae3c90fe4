//! One write, from a checked batch to the outcome of every shard's part.
//!
//! - `split.rs` which shard gets which operations; the hash of a batch
//! - `driver.rs` proposes the parts side by side and puts their outcomes together

mod driver;
pub mod split;

pub(crate) use driver::{write, write_ops};
