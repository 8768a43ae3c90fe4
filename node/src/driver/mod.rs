//! The moving parts of a node.
//!
//! - `node.rs` opening, shutting down
//! - `hosting.rs` the shards of graphs come to be served
//! - `graphs.rs` graphs come, change and go
//! - `removal.rs` what is left of a dropped graph goes
//! - `upkeep.rs` flush, compaction, purge and scrub in the background
//! - `health.rs` what an operator is told

mod graphs;
mod health;
mod hosting;
mod node;
mod removal;
mod upkeep;

pub use health::Check;
pub(crate) use node::{Hosted, problem_of};
pub use node::{Node, Parts};
