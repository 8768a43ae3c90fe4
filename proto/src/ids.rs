//! Numbers that mean different things have different types.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A node of the graph: the user's number, or the 64-bit xxh3 of a name.
    EntityId(u64)
}
id! {
    /// The kind of an edge: the user's number, or the 32-bit xxh3 of a registered name.
    RelationId(u32)
}
id! {
    /// One key range of one graph. Never reused.
    ShardId(u64)
}
id! {
    /// One incarnation of a graph: a graph dropped and made again has another id.
    GraphId(u64)
}
id! {
    /// One raft group: the catalogue is 0, a shard's group has the shard's number.
    GroupId(u64)
}
id! {
    /// One machine's process, made at first start and kept in its data folder.
    NodeId(u64)
}
id! {
    /// One replica of one group; the raft node id. Never reused, not even by the same machine.
    ReplicaId(u64)
}
id! {
    /// Version of a shard's ownership; grows by one with every split or move.
    Epoch(u64)
}
id! {
    /// Place of an entry in one group's raft log; the first entry is 1, 0 means "none yet".
    LogIndex(u64)
}
id! {
    /// One immutable file of facts inside one shard.
    SegmentId(u64)
}
id! {
    /// One client request; pins one view per shard until its deadline.
    RequestId(u128)
}
