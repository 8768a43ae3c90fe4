//! What a coordinator asks of one shard, and what it gets back. All of it reads one pinned view.
//!
//! Ids only: names and payloads are fetched once, at the end, for what the user will see
//! (`FetchRequest`), from the same view that scored it.
//!
//! - `read.rs` which view a read wants, seeds, fetch, scan, count, sizes
//! - `hop.rs` one hop of a path
//! - `write.rs` a batch and its fate

mod hop;
mod read;
mod write;

pub use hop::{
    Arrival, FrontierEntity, HopCounts, HopOutput, HopReply, HopRequest, Hub, Step, TargetReply,
};
pub use read::{
    CountReply, EntityReply, FetchReply, FetchRequest, Freshness, ReadContext, Relations, Row,
    RunWork, ScanReply, ScanRequest, Seed, SeedMode, SeedReply, SeedRequest, SegmentStats,
    ShardStats, With, Work,
};
pub use write::{Idempotency, Wait, WriteBatch, WriteContext, WriteOp, WriteReply};
