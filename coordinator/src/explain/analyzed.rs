//! The explanation of what was done, from the answers of the shards.

use super::Sizes;
use super::account::{Explanation, NodeOut, PlanOut, StageOut, node_of};
use super::warnings::{self, HubOut};
use crate::reply::{Coverage, Timings};
use crate::retrieval::trace::Trace;
use crate::retrieval::{Plan, Stage, Starts, Task};
use hopbine_proto::call::Freshness;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::{LogIndex, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is known of a retrieval once it is answered.
pub struct Done<'a> {
    /// What was asked.
    pub plan: &'a Plan,
    /// The graph as the call saw it.
    pub graph: &'a GraphInfo,
    /// How fresh every read was.
    pub freshness: Freshness,
    /// Each shard's answers.
    pub trace: &'a Trace,
    /// Wall time.
    pub timings: &'a Timings,
    /// What each hop read and dropped.
    pub coverage: &'a Coverage,
    /// Seed facts used.
    pub seeds: u64,
    /// What the shards hold, for warnings.
    pub sizes: &'a Sizes,
    /// The largest entity that each hop cut.
    pub hubs: &'a [HubOut],
}

/// How a retrieval was answered.
pub fn analyzed(done: &Done<'_>) -> Explanation {
    let Done { plan, timings, trace, .. } = done;
    let mut stages = before(timings);
    if matches!(plan.starts, Starts::Seeds { .. }) {
        let ms = without(timings.seeds_ms, trace.merge_ms(Stage::Seeds));
        let mut stage = StageOut::measured("ann".to_owned(), ms, trace.of(&[Task::Seeds], None));
        stage.seeds = Some(done.seeds);
        stages.push(stage);
    }
    for (hop, line) in done.coverage.hops.iter().enumerate() {
        let spent = timings.hops_ms.get(hop).copied().unwrap_or_default();
        let ms = without(spent, trace.merge_ms(Stage::Hop(hop)));
        let lines = trace.of(&[Task::Hop, Task::WholeHop], Some(hop));
        stages.push(StageOut {
            rows_read: Some(line.read),
            rows_kept: Some(line.kept),
            cut: Some(line.cut),
            why: line.why.clone(),
            ..StageOut::measured(format!("expand:{}", hop + 1), ms, lines)
        });
    }
    stages.push(StageOut::alone("merge", Some(timings.merge_ms)));
    let parts = [Task::Results, Task::Paths];
    if trace.of(&parts, None).next().is_some() {
        let ms = without(timings.fetch_ms, trace.merge_ms(Stage::Fetch));
        let mut stage = StageOut::measured("payload".to_owned(), ms, trace.of(&parts, None));
        stage.rows_read = Some(trace.of(&parts, None).map(|line| line.rows).sum());
        stages.push(stage);
    }
    Explanation {
        plan: PlanOut::of(plan, done.graph, done.freshness, timings.embed_ms > 0.0),
        stages,
        nodes: nodes(done.graph, trace, done.sizes),
        total_ms: Some(timings.total_ms),
        warnings: warnings::of_done(done),
    }
}

/// What is known of scored paths.
pub struct Reranked<'a> {
    /// The graph as the call saw it.
    pub graph: &'a GraphInfo,
    /// How fresh every read was.
    pub freshness: Freshness,
    /// Each shard's answer.
    pub trace: &'a Trace,
    /// Wall time; `fetch_ms` is that of the shards, `merge_ms` that of adding up.
    pub timings: &'a Timings,
    /// What the shards hold.
    pub sizes: &'a Sizes,
}

/// How paths were scored.
pub fn reranked(done: &Reranked<'_>) -> Explanation {
    let Reranked { timings, trace, .. } = done;
    let mut stages = before(timings);
    let lines = || trace.of(&[Task::Results], None);
    let mut stage = StageOut::measured("rerank".to_owned(), timings.fetch_ms, lines());
    stage.rows_read = Some(lines().map(|line| line.rows).sum());
    let fan_out = stage.shards;
    stages.push(stage);
    stages.push(StageOut::alone("merge", Some(timings.merge_ms)));
    Explanation {
        plan: PlanOut::of_rerank(fan_out, done.freshness, timings.embed_ms > 0.0),
        stages,
        nodes: nodes(done.graph, trace, done.sizes),
        total_ms: Some(timings.total_ms),
        warnings: Vec::new(),
    }
}

/// What comes before the first shard is asked.
fn before(timings: &Timings) -> Vec<StageOut> {
    let route = without(timings.plan_ms, timings.embed_ms);
    let mut stages = vec![StageOut::alone("route", Some(route))];
    if timings.embed_ms > 0.0 {
        stages.push(StageOut::alone("embed", Some(timings.embed_ms)));
    }
    stages
}

fn without(whole: f64, part: f64) -> f64 {
    (whole - part).max(0.0)
}

/// A line per shard that answered.
fn nodes(graph: &GraphInfo, trace: &Trace, sizes: &Sizes) -> Vec<NodeOut> {
    let mut shards: BTreeMap<ShardId, (Duration, Duration, LogIndex)> = BTreeMap::new();
    for line in &trace.lines {
        let (took, beyond, index) = shards.entry(line.shard).or_default();
        let there = Duration::from_nanos(line.work.nanos);
        *took += there;
        *beyond += line.waited.saturating_sub(there);
        *index = line.index.max(*index);
    }
    let ms = |time: Duration| Some(time.as_secs_f64() * 1e3);
    let line = |(shard, (took, beyond, index)): (ShardId, (Duration, Duration, LogIndex))| {
        let now = sizes.get(&shard).map(|stats| stats.index);
        NodeOut {
            node: node_of(graph, shard),
            shard,
            ms: ms(took),
            network_ms: ms(beyond),
            applied_index: index,
            stale_by: now.map(|now| now.0.saturating_sub(index.0)),
        }
    };
    shards.into_iter().map(line).collect()
}
