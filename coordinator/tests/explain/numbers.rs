//! Each number that an explanation tells, held to the counters of the store.

use super::store::{Answered, Store, fact, graph};
use hopbine_coordinator::Engine;
use hopbine_coordinator::explain::{Counts, Explanation, StageOut};
use hopbine_coordinator::request::*;
use hopbine_proto::ShardId;
use hopbine_proto::score::ScoreMode;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// 1,800 facts: a third in each of two segments a shard, a third not sealed.
async fn filled(boundaries: &[u64]) -> (Arc<Store>, Engine) {
    let (store, engine) = graph(boundaries).await;
    for batch in 0..3 {
        let mut facts = Vec::new();
        for entity in 0..300u64 {
            for i in (0..6).filter(|i| i % 3 == batch) {
                let (by, target) = (1 + i % 2, (entity * 7 + i * 31 + 1) % 300);
                let at = (entity * 6 + i) as f32;
                let vector = [at.sin(), (at * 0.7).cos(), (at * 0.3).sin(), 1.5];
                facts.push(fact(entity, by, target, vector, json!({"year": 1900 + entity % 100})));
            }
        }
        engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
        if batch < 2 {
            store.seal();
        }
    }
    (store, engine)
}

fn question(filter: bool) -> GraphRagRequest {
    GraphRagRequest {
        query: Query::vector([0.5, 0.5, 0.1, 1.0]),
        relation_path: vec![HopRelations::Any, HopRelations::Of(vec![RelationRef::Number(1)])],
        ann_k: 20,
        limit_per_entity: 3,
        filter: filter.then(|| json!({"must": [{"key": "year", "range": {"gte": 1930}}]})),
        ..GraphRagRequest::default()
    }
}

fn asking(explain: Explain) -> CallOptions {
    CallOptions { explain, ..CallOptions::default() }
}

/// What the answers of one shard, or of all, come to; segments count once a shard.
fn counted<'a>(answers: impl Iterator<Item = &'a Answered>) -> (u64, u64, [u64; 5]) {
    let (mut segments, mut sums) = (BTreeMap::<ShardId, (u64, u64)>::new(), [0; 5]);
    for Answered { shard, work, .. } in answers {
        let of_shard = segments.entry(*shard).or_default();
        *of_shard = (work.runs, of_shard.1.max(work.runs_read));
        sums[0] += work.blocks_read;
        sums[1] += work.block_bytes;
        sums[2] += work.codes_scored;
        sums[3] += work.vectors_scored;
        sums[4] = sums[4].max(work.ef);
    }
    let (total, read) = segments.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    (total, read, sums)
}

fn told(counts: &Counts) -> (u64, u64, [u64; 5]) {
    let segments = counts.segments.expect("measured");
    let read = segments.read.expect("measured");
    assert_eq!(segments.pruned, Some(segments.total - read));
    let numbers = [
        counts.blocks_read,
        counts.bytes_read,
        counts.codes_scored,
        counts.vectors_scored,
        counts.ef.or(Some(0)),
    ];
    (segments.total, read, numbers.map(|number| number.expect("measured")))
}

/// Holds one stage, and each shard's part of it, to what was counted.
fn hold(stage: &StageOut, answers: &[Answered]) {
    let of_stage = || answers.iter().filter(|line| line.stage == stage.stage);
    assert_eq!(told(&stage.counts), counted(of_stage()), "{}", stage.stage);
    assert_eq!(stage.shards as usize, stage.by_shard.len());
    for part in &stage.by_shard {
        let of_shard = || of_stage().filter(|line| line.shard == part.shard);
        assert_eq!(told(&part.counts), counted(of_shard()), "{}", stage.stage);
        let read: u64 = of_shard().map(|line| line.counts.read + line.rows).sum();
        if stage.stage != "ann" {
            assert_eq!(part.rows_read, Some(read), "{}", stage.stage);
        }
        let runs: Vec<_> = of_shard().flat_map(|line| &line.runs).collect();
        assert_eq!(part.runs.len(), runs.len());
        for (told, counted) in part.runs.iter().zip(runs) {
            assert_eq!(told.segment, counted.segment.map(|id| id.0));
            assert_eq!((told.rows, &told.way), (counted.rows, &counted.way));
            assert_eq!(told.codes_scored, Some(counted.codes_scored));
            assert_eq!(told.vectors_scored, Some(counted.vectors_scored));
        }
    }
}

fn stage<'a>(explanation: &'a Explanation, name: &str) -> &'a StageOut {
    let found = explanation.stages.iter().find(|stage| stage.stage == name);
    found.unwrap_or_else(|| panic!("no stage {name}"))
}

#[tokio::test]
async fn each_number_of_an_analysis_is_what_the_shards_counted() {
    for boundaries in [&[][..], &[100, 200]] {
        let (store, engine) = filled(boundaries).await;
        for filter in [false, true] {
            store.answers();
            let plain = engine.graph_rag("g", &question(filter), &asking(Explain::None)).await;
            let plain = plain.expect("answered");
            assert_eq!(plain.explain, None);
            let unexplained = store.answers();
            let reply = engine.graph_rag("g", &question(filter), &asking(Explain::Analyze)).await;
            let reply = reply.expect("answered");
            assert_eq!(reply.results, plain.results, "explaining changes no answer");
            let answers = store.answers();
            assert_eq!(answers.len(), unexplained.len(), "nor what is asked of the shards");
            let explanation = reply.explain.as_deref().expect("explained");
            for name in ["ann", "expand:1", "expand:2", "payload"] {
                hold(stage(explanation, name), &answers);
            }
            assert_eq!(stage(explanation, "ann").seeds, Some(reply.seeds));
            for (line, name) in reply.coverage.hops.iter().zip(["expand:1", "expand:2"]) {
                let stage = stage(explanation, name);
                let of = |count: fn(&Answered) -> u64| -> Option<u64> {
                    Some(answers.iter().filter(|line| line.stage == name).map(count).sum())
                };
                assert_eq!(stage.rows_read, of(|line| line.counts.read));
                assert_eq!(stage.rows_kept, of(|line| line.counts.kept));
                let cut = |line: &Answered| line.counts.cut_limit_per_entity + line.counts.cut_beam;
                assert_eq!(stage.cut, of(cut));
                assert_eq!((stage.rows_read, &stage.why), (Some(line.read), &line.why));
            }
            let rows: u64 = answers.iter().map(|line| line.rows).sum();
            assert_eq!(stage(explanation, "payload").rows_read, Some(rows));
            let all = |count: fn(&Counts) -> Option<u64>| -> u64 {
                explanation.stages.iter().filter_map(|stage| count(&stage.counts)).sum()
            };
            assert_eq!(all(|counts| counts.blocks_read), reply.work.blocks_read);
            assert_eq!(all(|counts| counts.bytes_read), reply.work.block_bytes);
            assert_eq!(all(|counts| counts.codes_scored), reply.work.codes_scored);
            assert_eq!(all(|counts| counts.vectors_scored), reply.work.vectors_scored);
            hold_sizes(explanation, &store);
            let spent: f64 = explanation.stages.iter().filter_map(|stage| stage.ms).sum();
            let total = explanation.total_ms.expect("measured");
            assert!(spent <= total + 1e-6, "{spent} of {total}");
            assert_eq!(total, reply.timings.total_ms);
        }
    }
}

/// Holds rows, segments and indexes to the sizes of the shards.
fn hold_sizes(explanation: &Explanation, store: &Store) {
    let sizes = store.sizes();
    let ann = stage(explanation, "ann");
    assert_eq!(explanation.plan.fan_out as usize, sizes.len());
    assert_eq!(ann.shards as usize, sizes.len());
    for part in &ann.by_shard {
        let stats = &sizes[&part.shard];
        let runs = stats.segments.len() as u64 + stats.frozen_memtables + 1;
        assert_eq!(part.counts.segments.expect("measured").total, runs);
        let tail: u64 =
            part.runs.iter().filter(|run| run.segment.is_none()).map(|run| run.rows).sum();
        assert_eq!(tail, stats.memtable_facts);
        let sealed: Vec<_> =
            part.runs.iter().filter_map(|run| Some((run.segment?, run.rows))).collect();
        let known: Vec<_> = stats
            .segments
            .iter()
            .map(|segment| (segment.id, segment.rows - segment.dead))
            .collect();
        assert_eq!(sealed, known);
        assert_eq!(known.len(), 2, "two segments each");
    }
    assert_eq!(explanation.nodes.len(), sizes.len());
    for node in &explanation.nodes {
        assert_eq!(node.applied_index, sizes[&node.shard].index);
        assert_eq!(node.stale_by, Some(0));
        assert!(node.ms.is_some() && node.network_ms.is_some());
    }
    let (tail, facts) = sizes
        .values()
        .fold((0, 0), |sum, stats| (sum.0 + stats.memtable_facts, sum.1 + stats.facts));
    let share = tail as f64 / facts as f64 * 100.0;
    let said = format!("{tail} rows, {share:.1} % of all that is searched");
    let warned = explanation.warnings.iter().find(|warning| warning.code == "unindexed_tail");
    let warned = warned.expect("a third of all");
    assert!(warned.message.starts_with(&said), "{} is not {said}", warned.message);
}

#[tokio::test]
async fn a_plan_searches_nothing_and_tells_what_an_analysis_then_finds() {
    let (store, engine) = filled(&[100, 200]).await;
    store.answers();
    let planned = engine.graph_rag("g", &question(true), &asking(Explain::Plan)).await;
    let planned = planned.expect("planned");
    assert!(store.answers().is_empty(), "no shard was asked to read");
    assert!(planned.results.is_empty() && planned.coverage.hops.is_empty());
    let plan = planned.explain.as_deref().expect("explained");
    let done = engine.graph_rag("g", &question(true), &asking(Explain::Analyze)).await;
    let done = done.expect("answered");
    let done = done.explain.as_deref().expect("explained");
    assert_eq!(plan.plan, done.plan);
    let names = |explanation: &Explanation| -> Vec<String> {
        explanation.stages.iter().map(|stage| stage.stage.clone()).collect()
    };
    assert_eq!(names(plan), plan.plan.stages);
    assert_eq!(names(plan), names(done));
    assert!(plan.total_ms.is_none() && plan.stages.iter().all(|stage| stage.ms.is_none()));
    let (sizes, ann) = (store.sizes(), stage(plan, "ann"));
    for (part, measured) in ann.by_shard.iter().zip(&stage(done, "ann").by_shard) {
        let ways = |runs: &[hopbine_coordinator::explain::RunOut]| -> Vec<_> {
            runs.iter().map(|run| (run.segment, run.rows, run.way.clone())).collect()
        };
        assert_eq!(part.shard, measured.shard);
        assert_eq!(ways(&part.runs).len(), ways(&measured.runs).len());
        let of_stats = sizes[&part.shard].segments.iter().map(|segment| Some(segment.way.clone()));
        let sealed = part.runs.iter().filter(|run| run.segment.is_some());
        assert!(sealed.map(|run| run.way.clone()).eq(of_stats));
        assert!(part.counts.blocks_read.is_none());
    }
    let facts: u64 = sizes.values().map(|stats| stats.facts).sum();
    assert_eq!(stage(plan, "expand:1").estimated_rows, Some(facts));
    let along_one = sizes.values().flat_map(|stats| &stats.relations);
    let along_one = along_one.filter(|(relation, _)| relation.0 == 1).map(|(_, facts)| facts);
    assert_eq!(stage(plan, "expand:2").estimated_rows, Some(along_one.sum::<u64>()));
    let codes = |explanation: &Explanation| -> Vec<&str> {
        explanation.warnings.iter().map(|warning| warning.code).collect()
    };
    assert_eq!(codes(plan), ["unindexed_tail", "filter_by_row"]);
}

#[tokio::test]
async fn searches_expansions_and_scored_paths_explain_themselves_too() {
    let (store, engine) = filled(&[100]).await;
    let options = asking(Explain::Analyze);
    store.answers();
    let search = SearchRequest {
        query: Query::vector([0.5, 0.5, 0.1, 1.0]),
        exact: true,
        ..SearchRequest::default()
    };
    let reply = engine.search("g", &search, &options).await.expect("answered");
    let explanation = reply.explain.as_deref().expect("explained");
    let answers = store.answers();
    hold(stage(explanation, "ann"), &answers);
    hold(stage(explanation, "payload"), &answers);
    let vectors: u64 = store.sizes().values().map(|stats| stats.vectors).sum();
    assert_eq!(stage(explanation, "ann").counts.vectors_scored, Some(vectors), "a full scan");
    let expand = ExpandRequest {
        from: vec![EntityRef::Number(7), EntityRef::Number(107)],
        relation_path: vec![HopRelations::Any, HopRelations::Any],
        ..ExpandRequest::default()
    };
    let reply = engine.expand("g", &expand, &options).await.expect("answered");
    let explanation = reply.explain.as_deref().expect("explained");
    let answers = store.answers();
    hold(stage(explanation, "expand:1"), &answers);
    hold(stage(explanation, "expand:2"), &answers);
    assert_eq!(explanation.plan.fan_out, 2);
    let key = |entity: u64, by, target| KeyRef {
        entity: EntityRef::Number(entity),
        relation: RelationRef::Number(by),
        target: EntityRef::Number(target),
    };
    let request = RerankRequest {
        query: Query::vector([0.5, 0.5, 0.1, 1.0]),
        paths: vec![vec![key(0, 1, 1), key(1, 1, 8)], vec![key(200, 1, 201)]],
        score_mode: ScoreMode::Path,
        top_k: 10,
    };
    let planned = engine.rerank("g", &request, &asking(Explain::Plan)).await.expect("planned");
    assert!(store.answers().is_empty() && planned.results.is_empty());
    let plan = planned.explain.as_deref().expect("explained");
    assert_eq!(stage(plan, "rerank").estimated_rows, Some(3));
    let reply = engine.rerank("g", &request, &options).await.expect("scored");
    let explanation = reply.explain.as_deref().expect("explained");
    let answers = store.answers();
    hold(stage(explanation, "rerank"), &answers);
    assert_eq!(stage(explanation, "rerank").rows_read, Some(3));
    assert_eq!(stage(explanation, "rerank").counts.vectors_scored, Some(3));
    assert_eq!(explanation.plan, plan.plan);
}
