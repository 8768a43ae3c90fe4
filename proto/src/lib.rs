//! Which words does the cluster share? Ids, facts, ranges, calls between coordinator and shard,
//! limits, error codes, and the seams (`Disk`, `Clock`, `Spawn`) that a simulator can take over.
//!
//! Everything here is plain data and pure functions, except `disk.rs` and `driver.rs`, which hold
//! the real machine behind the seams.

pub mod call;
#[cfg(feature = "rpc")]
pub mod convert;
pub mod disk;
pub mod driver;
pub mod fact;
pub mod filter;
pub mod graph;
pub mod ids;
pub mod limits;
pub mod payload;
pub mod range;
pub mod score;
pub mod seam;
pub mod shard_map;
#[cfg(feature = "sim")]
pub mod sim_disk;
pub mod status;

pub use fact::{Fact, FactKey, Names, name_id, relation_name_id};
pub use ids::{
    EntityId, Epoch, GraphId, GroupId, LogIndex, NodeId, RelationId, ReplicaId, RequestId,
    SegmentId, ShardId,
};
pub use range::{EntityRange, KeyRange};
pub use score::Metric;
pub use seam::{Clock, Spawn};
