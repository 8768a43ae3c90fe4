//! The account of a retrieval: which shards answered, what each hop read, kept and dropped.

use crate::reply::{Coverage, HopCoverage};
use crate::token::Indexes;
use hopbine_proto::call::{HopCounts, Work};
use hopbine_proto::{LogIndex, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// Why a shard's part is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// It refused or failed.
    Shard,
    /// It had not answered when time was up.
    Deadline,
}

impl Missing {
    fn as_str(self) -> &'static str {
        match self {
            Self::Shard => "shard_unavailable",
            Self::Deadline => "deadline",
        }
    }
}

/// Gathers what will be told.
#[derive(Debug, Default)]
pub struct Account {
    asked: BTreeSet<ShardId>,
    missing: BTreeMap<ShardId, Missing>,
    hops: Vec<HopLine>,
    /// What all reads took.
    pub work: Work,
    /// Newest log index seen per shard.
    pub indexes: Indexes,
}

#[derive(Debug, Default)]
struct HopLine {
    counts: HopCounts,
    missing: BTreeSet<Missing>,
    indexes: Indexes,
}

impl Account {
    /// A shard was asked something.
    pub fn asked(&mut self, shard: ShardId) {
        self.asked.insert(shard);
    }

    /// A shard's part will not come.
    pub fn missing(&mut self, shard: ShardId, why: Missing) {
        self.missing.entry(shard).or_insert(why);
        if let Some(hop) = self.hops.last_mut() {
            hop.missing.insert(why);
        }
    }

    /// A shard answered from its state at `index`.
    pub fn answered(&mut self, shard: ShardId, index: LogIndex, work: &Work) {
        self.work.add(work);
        let newest = self.indexes.entry(shard).or_default();
        *newest = (*newest).max(index);
    }

    /// The next hop begins.
    pub fn hop_begins(&mut self) {
        self.hops.push(HopLine::default());
    }

    /// A shard's counts of the current hop, which may read `limit_rows` facts. Each shard stops
    /// there by itself; when only all of them together read more, that is told just the same.
    pub fn hop_counts(
        &mut self,
        shard: ShardId,
        index: LogIndex,
        counts: &HopCounts,
        limit_rows: u64,
    ) {
        let Some(hop) = self.hops.last_mut() else { return };
        hop.indexes.insert(shard, index);
        let sum = &mut hop.counts;
        sum.frontier += counts.frontier;
        sum.read += counts.read;
        sum.kept += counts.kept;
        sum.cut_filter += counts.cut_filter;
        sum.cut_limit_per_entity += counts.cut_limit_per_entity;
        sum.cut_return += counts.cut_return;
        sum.targets += counts.targets;
        sum.cut_beam += counts.cut_beam;
        sum.truncated |= counts.truncated || sum.read > limit_rows;
    }

    /// Marks the current hop truncated when its shards read more than `limit_rows` in all.
    pub fn limit_hop(&mut self, limit_rows: u64) {
        if let Some(hop) = self.hops.last_mut() {
            hop.counts.truncated |= hop.counts.read > limit_rows;
        }
    }

    /// Targets that the coordinator cut when it merged the current hop.
    pub fn cut_beam(&mut self, targets: u64) {
        if let Some(hop) = self.hops.last_mut() {
            hop.counts.cut_beam += targets;
        }
    }

    /// Targets that a shard had cut from the current hop and is now asked for.
    pub fn takes_back_cut(&mut self, targets: u64) {
        if let Some(hop) = self.hops.last_mut() {
            hop.counts.cut_beam = hop.counts.cut_beam.saturating_sub(targets);
        }
    }

    /// Whether the answer lacks something.
    pub fn is_partial(&self) -> bool {
        !self.missing.is_empty() || self.hops.iter().any(|hop| hop.counts.truncated)
    }

    /// The account as told to the user.
    pub fn coverage(&self) -> Coverage {
        Coverage {
            shards: self.asked.len() as u64,
            answered: (self.asked.len() - self.missing.len()) as u64,
            missing: self.missing.keys().copied().collect(),
            hops: self.hops.iter().zip(1..).map(|(line, hop)| line.coverage(hop)).collect(),
        }
    }
}

impl HopLine {
    fn coverage(&self, hop: u32) -> HopCoverage {
        let counts = &self.counts;
        let mut why = Vec::new();
        if counts.cut_limit_per_entity > 0 {
            why.push("limit_per_entity");
        }
        if counts.cut_beam > 0 {
            why.push("beam");
        }
        if counts.truncated {
            why.push("limit_rows");
        }
        why.extend(self.missing.iter().map(|missing| missing.as_str()));
        HopCoverage {
            hop,
            frontier: counts.frontier,
            read: counts.read,
            kept: counts.kept,
            cut: counts.cut_limit_per_entity + counts.cut_beam,
            why: (!why.is_empty()).then(|| why.join(",")),
            counts: *counts,
            indexes: self.indexes.iter().map(|(shard, index)| (*shard, *index)).collect(),
        }
    }
}
