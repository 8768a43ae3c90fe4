//! Explanations over the product's own store: each number is held to what the shards counted.

#[path = "../fake/mod.rs"]
mod fake;
mod numbers;
mod store;
mod warnings;
