//! What does one shard hold, and where on disk? One key range, one replica: synchronous, without
//! network and without raft.
//!
//! Writes go through [`Shard::apply`] into a memtable, which is frozen, flushed into a segment and
//! later merged with others; reads go through a [`View`], which pins one applied log index.

mod apply;
pub mod check;
pub mod codes;
mod compaction;
mod dead;
pub mod error;
mod expand;
pub mod graph;
mod hop;
pub mod kernel;
mod keys;
mod known;
mod maintenance;
pub mod manifest;
mod memtable;
mod merge;
pub mod nibbles;
mod open;
mod pending;
mod predicate;
mod read;
mod run;
mod seeds;
pub mod segment;
mod shard;
pub mod signs;
mod smallest;
mod state;
mod stats;
mod view;

pub use apply::Applied;
pub use error::StoreError;
pub use shard::{Durable, Pressure, Shard, ShardConfig};
pub use view::{Stop, View};
