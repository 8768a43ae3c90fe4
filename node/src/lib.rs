//! How does one process host replicas? Joins shard-store and raft (`replica.rs`), keeps the
//! catalogue (`meta.rs`), and answers the calls of coordinators.

mod catalogue;
mod check;
mod config;
mod disk;
mod driver;
mod error;
mod folder;
mod meta;
mod replica;
mod server;
mod views;

pub use catalogue::{Catalogue, CatalogueCommand, CatalogueReply};
pub use check::{Finding, Report, check_folder};
pub use config::NodeConfig;
pub use disk::{FORMAT, FolderLock, lock, lock_to_read};
pub use driver::{Check, Node, Parts};
pub use error::NodeError;
