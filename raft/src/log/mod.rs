//! The shared log: one per node, for all its groups; the only write-ahead log there is.
//!
//! - `record.rs`: one record as bytes
//! - `segment.rs`: one segment as bytes: header, records, footer
//! - `index.rs`: what the log holds of one group, in memory
//! - `recovery.rs`: from the records of all segments to the groups
//! - `disk.rs`: the segment files: create, recover, seal, remove, check offline
//! - `driver/`: the log thread and the groups' handles

pub mod disk;
pub mod driver;
pub mod index;
pub mod record;
pub mod recovery;
pub mod segment;

pub use disk::{LogReport, check_log};
pub use driver::{GroupLog, LogSettings, LogStats, SharedLog};
