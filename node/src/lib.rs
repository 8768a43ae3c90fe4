//! How does one process host replicas? Joins shard-store and raft (`replica.rs`), keeps the
//! catalogue (`meta.rs`), and answers the calls of coordinators.

mod catalogue;
mod config;
mod disk;
mod error;

pub use catalogue::{Catalogue, CatalogueCommand, CatalogueReply};
pub use config::NodeConfig;
pub use disk::FORMAT;
pub use error::NodeError;
