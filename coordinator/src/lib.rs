//! How is one request answered? Knows proto only: shards are behind the trait `Shards`.

pub mod check;
pub mod client;
pub mod config;
pub mod driver;
pub mod embed;
pub mod explain;
mod ingest;
pub mod memory;
pub mod names;
pub mod reply;
pub mod request;
pub mod retrieval;
pub mod server;
pub mod slow;
pub mod token;

pub use driver::Engine;
