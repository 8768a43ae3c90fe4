//! How a retrieval was, or would be, answered: stages, shards, numbers, and what a person can do.
//!
//! - `account.rs` the values that are told
//! - `analyzed.rs` from a trace of what was done
//! - `planned.rs` from what the shards hold, when nothing is done
//! - `warnings.rs` what a person can act on
//!
//! Pure: numbers come from the replies of the shards and from their sizes, and are added up here.

mod account;
mod analyzed;
mod planned;
mod warnings;

pub use account::{
    Counts, Explanation, NodeOut, PlanOut, RunOut, Segments, ShardPart, StageOut, Warning,
};
pub use analyzed::{Done, Reranked, analyzed, reranked};
pub use planned::{planned, planned_rerank};
pub use warnings::HubOut;

use hopbine_proto::ShardId;
use hopbine_proto::call::ShardStats;
use std::collections::BTreeMap;

/// What each shard says of its sizes; one that did not answer is left out.
pub type Sizes = BTreeMap<ShardId, ShardStats>;
