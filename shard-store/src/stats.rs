//! Sizes and state of a shard, for people and for the balance of shards.

use crate::error::StoreError;
use crate::run::{Data, Run, SegmentFile};
use crate::shard::Shard;
use hopbine_proto::RelationId;
use hopbine_proto::call::{SegmentStats, ShardStats};
use std::collections::BTreeMap;

impl Shard {
    /// Sizes and state as of the last applied entry. Costs a look at every row of the memtables
    /// and at every dead row of the segments.
    pub fn stats(&self) -> Result<ShardStats, StoreError> {
        let state = self.state();
        let mut stats = ShardStats {
            index: state.index,
            frozen_memtables: state.frozen().count() as u64,
            compaction_due: self.compaction_due(),
            ..ShardStats::default()
        };
        let mut relations: BTreeMap<RelationId, u64> = BTreeMap::new();
        for run in &state.runs {
            stats.facts += u64::from(run.live());
            match &run.data {
                Data::Memtable(memtable) => {
                    stats.memtable_facts += u64::from(run.live());
                    stats.memtable_bytes += memtable.bytes() as u64;
                    for row in (0..run.visible).filter(|row| run.is_live(*row)) {
                        let row = memtable.row(row);
                        stats.vectors += u64::from(row.vector.is_some());
                        *relations.entry(row.key.relation).or_default() += 1;
                    }
                }
                Data::Segment(file) => {
                    stats.dead_rows += u64::from(run.dead.count());
                    stats.vectors += add_segment(run, file, &mut relations)?;
                    stats.disk_bytes += file.segment.meta().bytes;
                    stats.segments.push(segment_stats(run, file));
                }
            }
        }
        relations.retain(|_, facts| *facts > 0);
        stats.relations = relations.into_iter().collect();
        Ok(stats)
    }
}

/// Adds a segment's live facts to `relations`; returns how many of them have an embedding.
fn add_segment(
    run: &Run,
    file: &SegmentFile,
    relations: &mut BTreeMap<RelationId, u64>,
) -> Result<u64, StoreError> {
    let segment = &file.segment;
    for (relation, rows) in segment.relations() {
        *relations.entry(relation).or_default() += u64::from(rows);
    }
    let mut vectors = u64::from(segment.meta().vectors);
    for row in run.dead.iter().filter(|row| !segment.is_tombstone(*row)) {
        vectors -= u64::from(segment.has_vector(row));
        // Its relation was counted above, by this segment.
        *relations.entry(segment.key(row)?.relation).or_default() -= 1;
    }
    Ok(vectors)
}

fn segment_stats(run: &Run, file: &SegmentFile) -> SegmentStats {
    let meta = file.segment.meta();
    let collisions = (meta.name_collisions > 0)
        .then(|| format!("{} names dropped: their id has another name", meta.name_collisions));
    SegmentStats {
        id: meta.id.0,
        rows: u64::from(meta.rows),
        dead: u64::from(run.dead.count()),
        bytes: meta.bytes,
        way: meta.way.clone(),
        recall: meta.recall,
        alarm: collisions.or_else(|| meta.alarm.clone()),
    }
}
