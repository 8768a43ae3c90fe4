//! Settings of one node, plain values.

use hopbine_proto::limits;
use serde::{Deserialize, Serialize};

/// How a node keeps its data. Every field has a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeConfig {
    /// Bytes of one shard's memtable before it is frozen and flushed: 64 KiB to 4 GiB.
    pub memtable_bytes_max: usize,
    /// Bytes of memory that a merge of segments may take; a shard that outgrows it keeps several
    /// segments. 64 KiB to 1 TiB.
    pub merge_memory_max: u64,
    /// Bytes a second that merges may write, so that they leave the disk to others; 0: no bound.
    pub merge_bytes_per_s_max: u64,
    /// Bytes of one file of the raft log: 64 KiB to 1 GiB.
    pub log_segment_bytes: u64,
    /// Facts that a read handles on the calling thread; larger reads move to a worker thread.
    /// At about 20 ns a fact, 16,384 is a third of a millisecond.
    pub inline_rows_max: u64,
    /// Reads running on worker threads at once; the rest wait for a place within their deadline.
    pub worker_reads_max: usize,
    /// Milliseconds between the beginnings of two passes of the background scrub, each over one
    /// shard; 0: never.
    pub scrub_pause_ms: u64,
    /// Milliseconds from which the coordinator in the same process remembers a query as slow;
    /// 0: none.
    pub slow_query_ms: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            memtable_bytes_max: limits::MEMTABLE_BYTES_DEFAULT,
            merge_memory_max: limits::MERGE_MEMORY_DEFAULT,
            merge_bytes_per_s_max: 0,
            log_segment_bytes: 64 << 20,
            inline_rows_max: 16_384,
            worker_reads_max: 16,
            scrub_pause_ms: 60_000,
            slow_query_ms: limits::SLOW_QUERY_MS_DEFAULT,
        }
    }
}

impl NodeConfig {
    /// Returns what is out of bounds, by field name.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !(64 << 10..=4 << 30).contains(&self.memtable_bytes_max) {
            faults.push("memtable_bytes_max must be 64 KiB to 4 GiB".to_owned());
        }
        if !(64 << 10..=1 << 40).contains(&self.merge_memory_max) {
            faults.push("merge_memory_max must be 64 KiB to 1 TiB".to_owned());
        }
        if !(64 << 10..=1 << 30).contains(&self.log_segment_bytes) {
            faults.push("log_segment_bytes must be 64 KiB to 1 GiB".to_owned());
        }
        if self.worker_reads_max == 0 {
            faults.push("worker_reads_max must be at least 1".to_owned());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_their_bounds() {
        assert_eq!(NodeConfig::default().faults(), Vec::<String>::new());
        let wrong = NodeConfig { memtable_bytes_max: 1, worker_reads_max: 0, ..Default::default() };
        assert_eq!(wrong.faults().len(), 2);
    }
}
