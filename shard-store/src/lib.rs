//! What does one shard hold, and where on disk? One key range, one replica: synchronous, without
//! network and without raft.
//!
//! Writes go through [`Shard::apply`] into a memtable, which is frozen, flushed into a segment and
//! later merged with others; reads go through a [`View`], which pins one applied log index.

pub mod check;
pub mod codes;
pub mod error;
pub mod graph;
pub mod kernel;
pub mod manifest;
pub mod segment;
