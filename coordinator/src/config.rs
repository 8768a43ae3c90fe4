//! Settings of a coordinator: plain values with their units.

use hopbine_proto::limits;
use serde::{Deserialize, Serialize};

/// How a coordinator treats shards that do not answer at once, and how much it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorConfig {
    /// First pause before a refused call is repeated, milliseconds: 1 to 1,000. It doubles with
    /// every repetition.
    pub retry_pause_ms: u64,
    /// Longest pause between two repetitions, milliseconds: 1 to 10,000.
    pub retry_pause_max_ms: u64,
    /// Share of `timeout` that a partial answer keeps back for fetching what it shows, percent:
    /// 0 to 90.
    pub partial_reserve_pct: u64,
    /// Bytes of all replies that are collected, written down or sent at one time; beyond it
    /// `memory_limit`. From 1; below 256 MiB the largest reply finds no room.
    pub replies_bytes_max: u64,
    /// Milliseconds from which a query is logged and remembered as slow; 0: none.
    pub slow_query_ms: u64,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            retry_pause_ms: 5,
            retry_pause_max_ms: 250,
            partial_reserve_pct: 10,
            replies_bytes_max: limits::REPLIES_BYTES_MAX,
            slow_query_ms: limits::SLOW_QUERY_MS_DEFAULT,
        }
    }
}
