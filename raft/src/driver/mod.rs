//! Raft groups over the shared log: everything here knows openraft and tokio.
//!
//! - `groups.rs`: all groups of a process: open, start, stop, remove
//! - `group.rs`: one group: propose, read barrier, positions
//! - `store.rs`: a group's log as openraft asks for it
//! - `entry.rs`: an openraft entry as bytes
//! - `offline.rs`: a group's commands from a closed log
//! - `apply.rs`: a `Machine` as openraft's state machine

mod apply;
mod entry;
mod group;
mod groups;
mod offline;
mod store;

pub use apply::Applier;
pub use group::{Group, Reply};
pub use groups::{Founding, Groups, World};
pub use offline::commands_of;
pub use store::GroupStore;
