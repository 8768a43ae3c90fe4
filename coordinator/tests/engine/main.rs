//! The engine over a world in memory: what users get back, and how it treats shards that refuse,
//! hang or move.

mod answers;
mod bounds;
#[path = "../fake/mod.rs"]
mod fake;
mod load;
mod refusals;
mod shards;
mod slow;
mod worlds;
mod writes;
