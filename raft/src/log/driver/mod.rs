//! The log thread and its callers.
//!
//! - `shared.rs`: the log as a whole: open, close, state
//! - `group.rs`: one group's handle: submit records, read entries
//! - `writer.rs`: the log thread: one write and one sync for all that wait
//! - `space.rs`: the log thread's segments: roll, make ahead, reclaim

mod group;
mod shared;
mod space;
mod writer;

pub use group::{Done, GroupLog};
pub use shared::{LogSettings, LogStats, SharedLog};
