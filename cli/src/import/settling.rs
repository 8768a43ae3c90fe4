//! When a graph counts as indexed: what its shards say of the work that they have left.

use crate::failure::Failure;
use serde::Deserialize;
use std::time::{Duration, Instant};

/// How long a graph may say the same before the wait is given up: one merge of the largest
/// segments takes minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// The part of the reply of `stats` that is read here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Stats {
    /// Memtables that wait for their flush.
    frozen_memtables: u64,
    /// Whether segments wait to be merged.
    compaction_due: bool,
    /// Number of segments.
    segments: u64,
    /// Changes with every flush and merge.
    disk_bytes: u64,
}

/// A wait under way.
#[derive(Debug, Default)]
pub struct Settling {
    last: Option<(Stats, Instant)>,
}

impl Settling {
    /// Whether nothing is left to do. Fails when nothing has changed for `PATIENCE`.
    pub fn step(&mut self, stats: Stats, now: Instant) -> Result<bool, Failure> {
        if stats.frozen_memtables == 0 && !stats.compaction_due {
            return Ok(true);
        }
        match &self.last {
            Some((last, since)) if *last == stats => {
                if now.duration_since(*since) < PATIENCE {
                    return Ok(false);
                }
                let minutes = PATIENCE.as_secs() / 60;
                let text = format!("no flush or merge has ended for {minutes} minutes");
                Err(Failure::Failed(text))
            }
            _ => {
                self.last = Some((stats, now));
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(frozen_memtables: u64, compaction_due: bool, segments: u64) -> Stats {
        Stats { frozen_memtables, compaction_due, segments, disk_bytes: 0 }
    }

    #[test]
    fn a_graph_is_settled_once_no_shard_has_a_flush_or_merge_left() {
        let (mut settling, now) = (Settling::default(), Instant::now());
        for (stats, done) in
            [(busy(2, false, 0), false), (busy(0, true, 4), false), (busy(0, false, 1), true)]
        {
            assert_eq!(settling.step(stats.clone(), now).expect("patient"), done, "{stats:?}");
        }
    }

    #[test]
    fn the_wait_ends_only_after_a_long_time_without_any_change() {
        let (mut settling, start) = (Settling::default(), Instant::now());
        let late = start + PATIENCE - Duration::from_secs(1);
        assert!(!settling.step(busy(1, false, 1), start).expect("new"));
        assert!(!settling.step(busy(1, false, 1), late).expect("patient"));
        assert!(!settling.step(busy(0, true, 2), late).expect("a flush ended"));
        let later = start + PATIENCE;
        assert!(!settling.step(busy(0, true, 2), later).expect("patient again"));
        let error = settling.step(busy(0, true, 2), late + PATIENCE).expect_err("stuck");
        assert!(error.to_string().contains("30 minutes"), "{error}");
    }
}
