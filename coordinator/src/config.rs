//! Settings of a coordinator: plain values with their units.

use serde::{Deserialize, Serialize};

/// How a coordinator treats shards that do not answer at once.
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
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self { retry_pause_ms: 5, retry_pause_max_ms: 250, partial_reserve_pct: 10 }
    }
}
