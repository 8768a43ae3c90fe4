//! The values of an explanation, in the contract's order. A number that was not measured is absent.

use crate::retrieval::trace::Line;
use crate::retrieval::{Plan, Starts, Task};
use hopbine_proto::call::{Freshness, RunWork};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::shard_map::owner;
use hopbine_proto::{LogIndex, NodeId, ShardId};
use serde::Serialize;
use std::collections::BTreeSet;

/// How one retrieval was, or would be, answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What was decided before anything was read.
    pub plan: PlanOut,
    /// In order.
    pub stages: Vec<StageOut>,
    /// A line per shard that answered.
    pub nodes: Vec<NodeOut>,
    /// Wall time of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<f64>,
    /// What a person can act on.
    pub warnings: Vec<Warning>,
}

/// What is decided before anything is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanOut {
    /// Names of the stages, in order.
    pub stages: Vec<String>,
    /// How fresh every read is: `strong`, `bounded` or `eventual`.
    pub consistency: &'static str,
    /// Shards that the first round asks.
    pub fan_out: u64,
}

/// One stage, over all shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StageOut {
    /// `route`, `embed`, `ann`, `expand:N`, `rerank`, `merge` or `payload`.
    pub stage: String,
    /// Wall time without merging, which has a stage of its own; all of them add up to no more
    /// than the whole call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// Shards that answered, or that would be asked at most.
    pub shards: u64,
    /// What the shards counted, added up.
    #[serde(flatten)]
    pub counts: Counts,
    /// Seed facts found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds: Option<u64>,
    /// Rows read: of a hop those of matching relation, of `payload` and `rerank` those sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_read: Option<u64>,
    /// Of a hop: rows that passed filter, limits and the start test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_kept: Option<u64>,
    /// Of a hop: facts beyond `limit_per_entity` plus targets beyond `beam`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
    /// Why anything was cut or is missing, as in `coverage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// In a plan: rows that would be looked at, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_rows: Option<u64>,
    /// The same shard by shard.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_shard: Vec<ShardPart>,
}

/// What one or several shards counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Segments and memtables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Segments>,
    /// Distinct fact blocks read, by each read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_read: Option<u64>,
    /// Bytes of those blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_read: Option<u64>,
    /// Approximate distances computed over codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes_scored: Option<u64>,
    /// Exact distances computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors_scored: Option<u64>,
    /// Largest beam of a graph walk; absent when no graph is walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ef: Option<u64>,
}

/// Segments and memtables of the views that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Segments {
    /// All of them.
    pub total: u64,
    /// Those that had to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<u64>,
    /// Those that were ruled out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned: Option<u64>,
}

/// One shard's part of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPart {
    /// Which.
    pub shard: ShardId,
    /// What it counted.
    #[serde(flatten)]
    pub counts: Counts,
    /// Rows read, as for the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_read: Option<u64>,
    /// Of a search for seeds: segment by segment, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunOut>,
}

/// One segment or memtable of a search for seeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunOut {
    /// Which segment; null: what is not sealed yet.
    pub segment: Option<u64>,
    /// Live rows.
    pub rows: u64,
    /// Way taken, or the one that would be; absent when nothing of it could be wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// Beam of a graph walk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ef: Option<u64>,
    /// Approximate distances computed over codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes_scored: Option<u64>,
    /// Exact distances computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors_scored: Option<u64>,
}

/// One shard as its node served it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeOut {
    /// The node, where it is known.
    pub node: Option<NodeId>,
    /// The shard.
    pub shard: ShardId,
    /// Time that its reads took there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// Time that was waited for them beyond that: queues, wake-ups, the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_ms: Option<f64>,
    /// Log index of the state that was read.
    pub applied_index: LogIndex,
    /// Log entries that the shard has applied since; absent when it did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_by: Option<u64>,
}

/// Something that a person can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What kind, for programs.
    pub code: &'static str,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

/// Bytes of a stage, of a shard's part of it or of a line beside them, as text; about.
const STAGE_BYTES: usize = 384;
const PART_BYTES: usize = 256;

impl Explanation {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let part = |part: &ShardPart| PART_BYTES * (1 + part.runs.len());
        let stage = |stage: &StageOut| STAGE_BYTES + stage.by_shard.iter().map(part).sum::<usize>();
        let warning = |warning: &Warning| PART_BYTES + warning.message.len() + warning.hint.len();
        self.stages.iter().map(stage).sum::<usize>()
            + self.nodes.len() * PART_BYTES
            + self.warnings.iter().map(warning).sum::<usize>()
    }
}

impl StageOut {
    /// A stage in which no shard takes part.
    pub fn alone(stage: &str, ms: Option<f64>) -> Self {
        Self { stage: stage.to_owned(), ms, ..Self::default() }
    }

    /// What the answers of one stage come to.
    pub fn measured<'t>(stage: String, ms: f64, lines: impl Iterator<Item = &'t Line>) -> Self {
        let mut by_shard: Vec<ShardPart> = Vec::new();
        for line in lines {
            match by_shard.iter_mut().find(|part| part.shard == line.shard) {
                Some(part) => part.add(line),
                None => by_shard.push(ShardPart::of(line)),
            }
        }
        by_shard.sort_by_key(|part| part.shard);
        let mut counts = Counts::default();
        by_shard.iter().for_each(|part| counts.add(&part.counts));
        let (ms, shards) = (Some(ms), by_shard.len() as u64);
        Self { stage, ms, shards, counts, by_shard, ..Self::default() }
    }
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (one, other) => one.or(other),
    }
}

impl Counts {
    /// Adds what another shard counted.
    pub fn add(&mut self, other: &Self) {
        self.segments = match (self.segments, other.segments) {
            (Some(a), Some(b)) => Some(Segments {
                total: a.total + b.total,
                read: sum(a.read, b.read),
                pruned: sum(a.pruned, b.pruned),
            }),
            (one, two) => one.or(two),
        };
        self.add_work(other);
    }

    /// Adds all but the segments.
    fn add_work(&mut self, other: &Self) {
        self.blocks_read = sum(self.blocks_read, other.blocks_read);
        self.bytes_read = sum(self.bytes_read, other.bytes_read);
        self.codes_scored = sum(self.codes_scored, other.codes_scored);
        self.vectors_scored = sum(self.vectors_scored, other.vectors_scored);
        self.ef = self.ef.max(other.ef);
    }

    fn of(line: &Line) -> Self {
        let work = &line.work;
        let segments = Segments {
            total: work.runs,
            read: Some(work.runs_read),
            pruned: Some(work.runs.saturating_sub(work.runs_read)),
        };
        Self {
            segments: Some(segments),
            blocks_read: Some(work.blocks_read),
            bytes_read: Some(work.block_bytes),
            codes_scored: Some(work.codes_scored),
            vectors_scored: Some(work.vectors_scored),
            ef: (work.ef > 0).then_some(work.ef),
        }
    }
}

impl ShardPart {
    fn of(line: &Line) -> Self {
        let rows_read = match line.task {
            Task::Seeds => None,
            Task::Hop | Task::WholeHop => Some(line.counts.read),
            Task::Results | Task::Paths => Some(line.rows),
        };
        let runs = line.runs.iter().map(RunOut::of).collect();
        Self { shard: line.shard, counts: Counts::of(line), rows_read, runs }
    }

    /// Another answer of the same shard in the same stage. Its view is the same, so its segments
    /// are; a hop that is repeated without a cut reads its rows again, which counts once.
    fn add(&mut self, line: &Line) {
        let more = Counts::of(line);
        if let (Some(known), Some(more)) = (&mut self.counts.segments, more.segments) {
            known.read = known.read.max(more.read);
            known.pruned = known.read.map(|read| known.total.saturating_sub(read));
        }
        self.counts.add_work(&more);
        if matches!(line.task, Task::Results | Task::Paths) {
            self.rows_read = sum(self.rows_read, Some(line.rows));
        }
    }
}

impl RunOut {
    fn of(run: &RunWork) -> Self {
        Self {
            segment: run.segment.map(|id| id.0),
            rows: run.rows,
            way: run.way.clone(),
            ef: (run.ef > 0).then_some(run.ef),
            codes_scored: Some(run.codes_scored),
            vectors_scored: Some(run.vectors_scored),
        }
    }
}

impl PlanOut {
    /// What `plan` decides about `graph`.
    pub fn of(plan: &Plan, graph: &GraphInfo, freshness: Freshness, embeds: bool) -> Self {
        let mut stages = vec!["route".to_owned()];
        if embeds {
            stages.push("embed".to_owned());
        }
        if matches!(plan.starts, Starts::Seeds { .. }) {
            stages.push("ann".to_owned());
        }
        stages.extend((1..=plan.hops.len()).map(|hop| format!("expand:{hop}")));
        stages.extend(["merge".to_owned(), "payload".to_owned()]);
        let fan_out = first_asked(plan, graph).len() as u64;
        Self { stages, consistency: consistency(freshness), fan_out }
    }

    /// The same for paths that the caller has, whose facts lie in `fan_out` shards.
    pub fn of_rerank(fan_out: u64, freshness: Freshness, embeds: bool) -> Self {
        let stages = ["route", "embed", "rerank", "merge"].into_iter();
        let stages = stages.filter(|stage| embeds || *stage != "embed").map(str::to_owned);
        Self { stages: stages.collect(), consistency: consistency(freshness), fan_out }
    }
}

/// How fresh, in the contract's words.
fn consistency(freshness: Freshness) -> &'static str {
    match freshness {
        Freshness::Strong => "strong",
        Freshness::Bounded { .. } => "bounded",
        Freshness::Eventual => "eventual",
    }
}

/// Shards that the first round asks.
pub(super) fn first_asked(plan: &Plan, graph: &GraphInfo) -> BTreeSet<ShardId> {
    match &plan.starts {
        Starts::Seeds { .. } => graph.shards.iter().map(|shard| shard.id).collect(),
        Starts::Entities(entities) => {
            let owner_of = |entity| graph.shards[owner(&graph.shards, entity)].id;
            entities.iter().map(|entity| owner_of(*entity)).collect()
        }
    }
}

/// The node that serves a shard, where the shard map says it.
pub(super) fn node_of(graph: &GraphInfo, shard: ShardId) -> Option<NodeId> {
    let known = graph.shards.iter().find(|known| known.id == shard)?;
    known.replicas.first().map(|(_, node)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::call::{HopCounts, Work};
    use std::time::Duration;

    fn line(shard: u64, task: Task, hop: Option<usize>, work: Work, read: u64) -> Line {
        Line {
            task,
            hop,
            shard: ShardId(shard),
            waited: Duration::ZERO,
            index: LogIndex(1),
            work,
            runs: Vec::new(),
            counts: HopCounts { read, ..HopCounts::default() },
            hub: None,
            rows: read,
        }
    }

    #[test]
    fn a_stage_adds_up_its_shards_and_a_repeated_hop_counts_its_rows_once() {
        let work = |runs, runs_read, blocks_read, ef| Work {
            runs,
            runs_read,
            blocks_read,
            ef,
            ..Work::default()
        };
        let lines = [
            line(2, Task::Hop, Some(0), work(3, 1, 5, 0), 70),
            line(1, Task::Hop, Some(0), work(2, 2, 4, 64), 7),
            line(2, Task::WholeHop, Some(0), work(3, 2, 6, 0), 70),
        ];
        let stage = StageOut::measured("expand:1".to_owned(), 1.5, lines.iter());
        let segments = Segments { total: 5, read: Some(4), pruned: Some(1) };
        assert_eq!((stage.shards, stage.counts.segments), (2, Some(segments)));
        assert_eq!((stage.counts.blocks_read, stage.counts.ef), (Some(15), Some(64)));
        let rows: Vec<_> = stage.by_shard.iter().map(|part| part.rows_read).collect();
        assert_eq!(rows, [Some(7), Some(70)]);
        let lines = [
            line(1, Task::Results, None, work(2, 2, 1, 0), 3),
            line(1, Task::Paths, None, work(2, 2, 2, 0), 4),
        ];
        let stage = StageOut::measured("payload".to_owned(), 0.0, lines.iter());
        let segments = Segments { total: 2, read: Some(2), pruned: Some(0) };
        assert_eq!((stage.counts.segments, stage.counts.blocks_read), (Some(segments), Some(3)));
        assert_eq!(stage.by_shard[0].rows_read, Some(7));
    }

    #[test]
    fn what_was_not_measured_is_not_written() {
        let text = |stage: &StageOut| serde_json::to_string(stage).expect("plain values");
        let route = StageOut::alone("route", Some(0.5));
        assert_eq!(text(&route), r#"{"stage":"route","ms":0.5,"shards":0}"#);
        let counts = Counts {
            segments: Some(Segments { total: 3, ..Segments::default() }),
            ..Counts::default()
        };
        let planned = StageOut { counts, ..StageOut::alone("ann", None) };
        assert_eq!(text(&planned), r#"{"stage":"ann","shards":0,"segments":{"total":3}}"#);
    }
}
