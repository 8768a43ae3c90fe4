//! The explanation of what would be done, from what the shards hold. Nothing is searched.
//!
//! Numbers of rows are upper bounds: what a hop finds is not known before it is walked.

use super::Sizes;
use super::account::{
    Counts, Explanation, NodeOut, PlanOut, RunOut, Segments, ShardPart, StageOut, first_asked,
    node_of,
};
use super::warnings;
use crate::retrieval::{Plan, Starts};
use hopbine_proto::ShardId;
use hopbine_proto::call::{Freshness, Relations, SeedMode, SeedRequest, SegmentStats, ShardStats};
use hopbine_proto::graph::GraphInfo;
use std::collections::{BTreeMap, BTreeSet};

/// What comes before the number of a beam in the text of a way.
const BEAM: &str = "ef=";

/// How `plan` would be answered.
pub fn planned(
    plan: &Plan,
    graph: &GraphInfo,
    freshness: Freshness,
    embeds: bool,
    sizes: &Sizes,
) -> Explanation {
    let first = first_asked(plan, graph);
    let mut stages = vec![StageOut::alone("route", None)];
    if embeds {
        stages.push(StageOut::alone("embed", None));
    }
    if let Starts::Seeds { ask, .. } = &plan.starts {
        stages.push(seeds(ask, graph, sizes));
    }
    for (number, hop) in plan.hops.iter().enumerate() {
        // A frontier that is not known yet may lie anywhere.
        let known = number == 0 && matches!(plan.starts, Starts::Entities(_));
        let shards = if known { first.clone() } else { all(graph) };
        let facts = shards.iter().filter_map(|shard| sizes.get(shard));
        let facts: u64 =
            facts.map(|stats| facts_along(&hop.relations, stats).min(plan.limit_rows)).sum();
        let stage = shards_of(format!("expand:{}", number + 1), &shards, sizes);
        stages.push(StageOut { estimated_rows: Some(facts), ..stage });
    }
    stages.push(StageOut::alone("merge", None));
    let shown = shards_of("payload".to_owned(), &all(graph), sizes);
    stages.push(StageOut { estimated_rows: Some(plan.rows_fetched()), ..shown });
    Explanation {
        plan: PlanOut::of(plan, graph, freshness, embeds),
        stages,
        nodes: nodes(graph, sizes),
        total_ms: None,
        warnings: warnings::of_plan(plan, graph, sizes),
    }
}

/// How paths with so many facts in each of these shards would be scored.
pub fn planned_rerank(
    facts: &BTreeMap<ShardId, u64>,
    graph: &GraphInfo,
    freshness: Freshness,
    embeds: bool,
    sizes: &Sizes,
) -> Explanation {
    let shards: BTreeSet<ShardId> = facts.keys().copied().collect();
    let mut stages = vec![StageOut::alone("route", None)];
    if embeds {
        stages.push(StageOut::alone("embed", None));
    }
    let stage = shards_of("rerank".to_owned(), &shards, sizes);
    stages.push(StageOut { estimated_rows: Some(facts.values().sum()), ..stage });
    stages.push(StageOut::alone("merge", None));
    Explanation {
        plan: PlanOut::of_rerank(shards.len() as u64, freshness, embeds),
        stages,
        nodes: nodes(graph, sizes),
        total_ms: None,
        warnings: Vec::new(),
    }
}

fn all(graph: &GraphInfo) -> BTreeSet<ShardId> {
    graph.shards.iter().map(|shard| shard.id).collect()
}

/// A stage that may read any segment of these shards.
fn shards_of(stage: String, shards: &BTreeSet<ShardId>, sizes: &Sizes) -> StageOut {
    let part = |shard: &ShardId| {
        let total = runs_of(sizes.get(shard)?);
        let segments = Some(Segments { total, ..Segments::default() });
        let counts = Counts { segments, ..Counts::default() };
        Some(ShardPart { shard: *shard, counts, rows_read: None, runs: Vec::new() })
    };
    with_parts(stage, shards.len() as u64, shards.iter().filter_map(part).collect())
}

fn with_parts(stage: String, shards: u64, by_shard: Vec<ShardPart>) -> StageOut {
    let mut counts = Counts::default();
    by_shard.iter().for_each(|part| counts.add(&part.counts));
    StageOut { stage, shards, counts, by_shard, ..StageOut::default() }
}

/// Segments and memtables of a view.
fn runs_of(stats: &ShardStats) -> u64 {
    stats.segments.len() as u64 + stats.frozen_memtables + 1
}

/// Facts along `relations` in one shard.
fn facts_along(relations: &Relations, stats: &ShardStats) -> u64 {
    let wanted = stats.relations.iter().filter(|(relation, _)| relations.contains(*relation));
    wanted.map(|(_, facts)| facts).sum()
}

/// The search for seeds in every shard, with the way that each segment would be searched.
fn seeds(ask: &SeedRequest, graph: &GraphInfo, sizes: &Sizes) -> StageOut {
    let links = u64::from(graph.config.index.m);
    let (mut parts, mut estimated) = (Vec::new(), 0);
    for (shard, stats) in sizes {
        let mut runs = Vec::new();
        if stats.memtable_facts > 0 {
            let way = if ask.mode == SeedMode::Exact { "exact" } else { "tail scan" };
            estimated += stats.memtable_facts;
            let way = Some(way.to_owned());
            runs.push(run(None, stats.memtable_facts, way));
        }
        for segment in &stats.segments {
            let rows = segment.rows.saturating_sub(segment.dead);
            let way = way(ask.mode, segment);
            let beam = beam(&way);
            // A walk looks at the neighbours of what its beam holds.
            estimated += beam.map_or(rows, |beam| rows.min(beam.saturating_mul(links)));
            runs.push(RunOut { ef: beam, ..run(Some(segment.id), rows, Some(way)) });
        }
        let ef = runs.iter().filter_map(|run| run.ef).max();
        let segments = Some(Segments { total: runs_of(stats), ..Segments::default() });
        let counts = Counts { segments, ef, ..Counts::default() };
        parts.push(ShardPart { shard: *shard, counts, rows_read: None, runs });
    }
    let stage = with_parts("ann".to_owned(), graph.shards.len() as u64, parts);
    StageOut { seeds: Some(ask.k.into()), estimated_rows: Some(estimated), ..stage }
}

fn run(segment: Option<u64>, rows: u64, way: Option<String>) -> RunOut {
    RunOut { segment, rows, way, ef: None, codes_scored: None, vectors_scored: None }
}

/// How a segment would be searched; a filter may change it when it comes to that.
fn way(mode: SeedMode, segment: &SegmentStats) -> String {
    match mode {
        SeedMode::Auto => segment.way.clone(),
        SeedMode::Graph { ef } => {
            // A walk that would see most of the segment gives way to a scan.
            let scanned = u64::from(ef).saturating_mul(4) >= segment.rows;
            if scanned { "scan".to_owned() } else { format!("graph {BEAM}{ef}") }
        }
        SeedMode::Scan => "scan".to_owned(),
        SeedMode::Exact => "exact".to_owned(),
    }
}

/// The beam of a way that walks a graph.
fn beam(way: &str) -> Option<u64> {
    way.rsplit_once(BEAM).and_then(|(_, number)| number.parse().ok())
}

fn nodes(graph: &GraphInfo, sizes: &Sizes) -> Vec<NodeOut> {
    let line = |(shard, stats): (&ShardId, &ShardStats)| NodeOut {
        node: node_of(graph, *shard),
        shard: *shard,
        ms: None,
        network_ms: None,
        applied_index: stats.index,
        stale_by: Some(0),
    };
    sizes.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_searched_as_it_was_sealed_unless_the_request_says_otherwise() {
        let sealed =
            |way: &str, rows| SegmentStats { rows, way: way.to_owned(), ..SegmentStats::default() };
        let large = sealed("graph ef=128", 100_000);
        assert_eq!(way(SeedMode::Auto, &large), "graph ef=128");
        assert_eq!(beam(&way(SeedMode::Graph { ef: 64 }, &large)), Some(64));
        assert_eq!(way(SeedMode::Graph { ef: 64 }, &sealed("scan", 200)), "scan");
        assert_eq!(beam(&way(SeedMode::Auto, &sealed("1-bit scan rerank=500", 9))), None);
        assert_eq!(way(SeedMode::Exact, &large), "exact");
    }
}
