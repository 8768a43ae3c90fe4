//! How is one request answered? Knows proto only: shards are behind the trait `Shards`.

pub mod client;
