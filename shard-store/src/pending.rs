//! What waits for the background: so that a node knows when a shard has settled.

use crate::compaction::choose;
use crate::maintenance::candidate;
use crate::shard::{Shard, lock};

impl Shard {
    /// Frozen memtables that wait for their flush.
    pub fn frozen_memtables(&self) -> usize {
        self.state().frozen().count()
    }

    /// Whether `compact_once` would find something to do.
    pub fn compaction_due(&self) -> bool {
        let durable = lock(&self.durable);
        let segments = durable.manifest.segments.iter();
        let candidates: Vec<_> = segments.map(|meta| candidate(&durable, meta)).collect();
        choose(&candidates, self.merge_rows_max()).is_some()
    }

    /// Rows of all runs, dead ones included: what a full scan would pass over.
    pub fn rows(&self) -> u64 {
        self.state().runs.iter().map(|run| u64::from(run.visible)).sum()
    }
}
