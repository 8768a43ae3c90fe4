//! A whole run against a target that answers from the ordered map itself: every case passes its
//! gate and is reported by its name; a target that is wrong in one row stops the run.

use hopbine_bench::cases::Store;
use hopbine_bench::heap::{Heap, Scored};
use hopbine_bench::report::{CaseLine, Line, table};
use hopbine_bench::target::{
    Answer, AnswerRow, Built, ExpandAsk, Host, Pending, RagAsk, SeedsAsk, Target,
};
use hopbine_bench::workload::synthetic::Size;
use hopbine_bench::workload::{SeedOn, gutenberg, multidepth};
use hopbine_bench::{BenchError, BenchSpec, WorkloadSpec, run};
use hopbine_proto::graph::GraphConfig;
use hopbine_proto::{EntityId, Fact, FactKey};
use hopbine_shard_store::kernel::ExactQuery;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What a target does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    SwapsTheFirstTwoOfOneCall,
    MissesTheLastOfAnExpansion,
    LosesAShard,
    IgnoresTheFilter,
}

struct Plain {
    heap: Heap,
    vectors: HashMap<FactKey, Arc<[f32]>>,
    fault: Fault,
}

impl Plain {
    fn row(&self, key: FactKey, score: Option<f64>, vectors: bool) -> AnswerRow {
        let vector = vectors.then(|| self.vectors[&key].clone());
        AnswerRow { key, score, vector, payload: None, path: Vec::new() }
    }

    fn expand_now(&self, ask: &ExpandAsk) -> Answer {
        let mut rows: Vec<AnswerRow> = match &ask.rank {
            None => {
                let keys = self.heap.expand_all(&ask.from, &ask.hops);
                keys.into_iter().map(|key| self.row(key, None, ask.vectors)).collect()
            }
            Some(rank) => {
                let query = ExactQuery::new(&rank.vector);
                let mut ranked = self.heap.rank(&ask.from, &ask.hops, &query, rank.score);
                ranked.truncate(rank.top_k as usize);
                let row = |s: Scored| self.row(s.key, Some(s.score), ask.vectors);
                ranked.into_iter().map(row).collect()
            }
        };
        if self.fault == Fault::MissesTheLastOfAnExpansion {
            rows.pop();
        }
        Answer { rows, ..Answer::default() }
    }
}

impl Target for Plain {
    fn seeds(&self, ask: SeedsAsk) -> Pending<'_, Answer> {
        let relations =
            if self.fault == Fault::IgnoresTheFilter { Default::default() } else { ask.relations };
        let query = ExactQuery::new(&ask.vector);
        let seeds = self.heap.seeds(&query, ask.k as usize, &relations);
        let rows = seeds.into_iter().map(|s| self.row(s.key, Some(s.score), false)).collect();
        Box::pin(async move { Ok(Answer { rows, ..Answer::default() }) })
    }

    fn expand(&self, ask: ExpandAsk) -> Pending<'_, Answer> {
        let answer = self.expand_now(&ask);
        Box::pin(async move { Ok(answer) })
    }

    fn graph_rag(&self, ask: RagAsk) -> Pending<'_, Answer> {
        let query = ExactQuery::new(&ask.rank.vector);
        let seeds = self.heap.seeds(&query, ask.ann_k as usize, &Default::default());
        let start = |seed: &Scored| match ask.seed_on {
            SeedOn::Entity => seed.key.entity,
            SeedOn::Target => seed.key.target,
        };
        let from: HashSet<EntityId> = seeds.iter().map(start).collect();
        let from = from.into_iter().collect();
        let expand = ExpandAsk { from, hops: ask.hops, rank: Some(ask.rank), vectors: false };
        let mut answer = self.expand_now(&expand);
        if self.fault == Fault::SwapsTheFirstTwoOfOneCall {
            answer.rows.swap(0, 1);
        }
        Box::pin(async move { Ok(answer) })
    }
}

struct PlainHost(Fault);

impl Host for PlainHost {
    fn build<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        let cuts = &config.shards.boundaries;
        let mut shard_facts = vec![0; cuts.len() + 1];
        for fact in facts {
            shard_facts[cuts.partition_point(|&cut| cut <= fact.key.entity.0)] += 1;
        }
        if self.0 == Fault::LosesAShard {
            shard_facts[0] = 0;
        }
        let vector = |fact: &Fact| (fact.key, fact.embedding.clone().expect("embedding"));
        let target = Box::new(Plain {
            heap: Heap::new(facts, 1),
            vectors: facts.iter().map(vector).collect(),
            fault: self.0,
        });
        let built =
            Built { target, shard_facts, memtable_facts: 0, disk_bytes: None, ways: vec![] };
        Box::pin(async move { Ok(built) })
    }

    fn build_beside<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        self.build(config, facts)
    }
}

fn run_on(fault: Fault, spec: &BenchSpec) -> Result<Vec<Line>, BenchError> {
    let mut emitted = Vec::new();
    let host = PlainHost(fault);
    let lines = futures::executor::block_on(run(spec, &host, &mut |line| {
        emitted.push(line.clone());
    }))?;
    assert_eq!(lines, emitted, "what is handed on line by line is what is returned");
    Ok(lines)
}

fn cases(lines: &[Line]) -> Vec<&CaseLine> {
    let mut cases = Vec::new();
    for line in lines {
        if let Line::Case(case) = line {
            cases.push(case.as_ref());
        }
    }
    cases
}

fn small(workload: WorkloadSpec) -> BenchSpec {
    BenchSpec { queries: Some(8), runs: Some(1), ..BenchSpec::new(workload) }
}

const GUTENBERG: WorkloadSpec =
    WorkloadSpec::Gutenberg(gutenberg::Size { books: 3, paragraphs: 40, dim: 32 });

/// Chains of `depth` facts in one store, and in 5 segments of which a bounded route asks 2.
fn multidepth(depth: u32) -> WorkloadSpec {
    let size = multidepth::Size { pairs: 300, depth, dim: 16 };
    WorkloadSpec::Multidepth(multidepth::Layout { size, segments: 5, fan_out: 2 })
}

const SYNTHETIC: WorkloadSpec =
    WorkloadSpec::Synthetic(Size { entities: 300, degree: 4, payload_bytes: 0 });

#[test]
fn every_workload_passes_its_gate_in_every_case() {
    for workload in [
        SYNTHETIC,
        GUTENBERG,
        multidepth(3),
        WorkloadSpec::Multihop { chains: 300 },
        WorkloadSpec::ButlerGate,
        WorkloadSpec::Filters { rows: 2_000, dim: 16 },
    ] {
        let spec = BenchSpec { shards: 4, ..small(workload) };
        let lines = run_on(Fault::None, &spec).expect("the target is right");
        let cases = cases(&lines);
        assert!(cases.len() >= 5 && cases.iter().all(|case| case.recall == 1.0));
        assert!(cases.iter().all(|case| case.equal_sets_pct == 100.0));
        let text = table(&lines, true);
        for case in cases {
            assert!(text.contains(&case.case), "{} is in the table", case.case);
        }
    }
}

#[test]
fn the_gate_workload_is_always_right_at_both_points() {
    let lines = run_on(Fault::None, &small(WorkloadSpec::ButlerGate)).expect("right");
    let cases = cases(&lines);
    assert_eq!(cases.iter().filter(|case| case.params.ann_k == 2).count() * 2, cases.len());
    for case in cases {
        assert_eq!((case.hit1_pct, case.hitk_pct), (Some(100.0), Some(100.0)), "{}", case.case);
    }
}

#[test]
fn one_wrong_row_stops_the_run_and_names_the_case() {
    let multihop = small(WorkloadSpec::Multihop { chains: 300 });
    let error = run_on(Fault::SwapsTheFirstTwoOfOneCall, &multihop).expect_err("rows swapped");
    let BenchError::Gate { case, query, .. } = error else { panic!("{error}") };
    assert_eq!((case.as_str(), query), ("seed_graph_rag_twohop_scan_fn", 0));
    let error = run_on(Fault::MissesTheLastOfAnExpansion, &small(SYNTHETIC)).expect_err("missing");
    assert!(matches!(error, BenchError::Gate { .. }), "{error}");
    let name = "graph_rag_path_depth_2_exact";
    let routed = BenchSpec { case: Some(name.to_owned()), ..small(multidepth(2)) };
    let error = run_on(Fault::MissesTheLastOfAnExpansion, &routed).expect_err("missing");
    let BenchError::Gate { case, query, .. } = error else { panic!("{error}") };
    assert_eq!((case.as_str(), query), (name, 0));
    let filters = small(WorkloadSpec::Filters { rows: 2_000, dim: 16 });
    let error = run_on(Fault::IgnoresTheFilter, &filters).expect_err("no filter");
    assert!(matches!(error, BenchError::Gate { .. }), "{error}");
}

#[test]
fn an_empty_shard_stops_the_run() {
    let spec = BenchSpec { shards: 3, ..small(SYNTHETIC) };
    let error = run_on(Fault::LosesAShard, &spec).expect_err("a shard is empty");
    assert!(matches!(error, BenchError::Failed { call: "build", .. }), "{error}");
}

#[test]
fn one_case_by_name_comes_with_its_plain_rows_and_an_unknown_name_is_refused() {
    let named = |name: &str| BenchSpec { case: Some(name.to_owned()), ..small(SYNTHETIC) };
    let name = "seed_expand_rel_fn";
    let lines = run_on(Fault::None, &named(name)).expect("right");
    let (plain, engine): (Vec<&CaseLine>, Vec<&CaseLine>) =
        cases(&lines).into_iter().partition(|case| case.params.store == Store::Plain);
    assert_eq!(engine.iter().map(|case| &case.case[..]).collect::<Vec<_>>(), [name]);
    assert!(!plain.is_empty() && engine[0].times_plain.is_some());
    let error = run_on(Fault::None, &named("seed_expand_rel")).expect_err("no such case");
    assert!(error.to_string().contains("seed_expand_rel_fn"), "{error}");
}

#[test]
fn every_depth_is_asked_in_one_store_and_by_every_route_through_segments() {
    let lines = run_on(Fault::None, &small(multidepth(2))).expect("right");
    let mut names: Vec<&str> = cases(&lines).iter().map(|case| case.case.as_str()).collect();
    names.dedup();
    let expected = [
        "sql_path_depth_1",
        "graph_rag_path_depth_1",
        "sql_path_depth_2",
        "graph_rag_path_depth_2",
        "graph_rag_path_depth_1_all",
        "graph_rag_path_depth_1_exact",
        "graph_rag_path_depth_1_bounded",
        "graph_rag_path_depth_2_all",
        "graph_rag_path_depth_2_exact",
        "graph_rag_path_depth_2_bounded",
    ];
    assert_eq!(names, expected);
    for case in cases(&lines) {
        let routed = case.case.matches('_').count() > 4;
        assert_eq!((case.params.shards == 5, case.times_one_store.is_some()), (routed, routed));
        assert_eq!(case.params.queries, 8, "{}", case.case);
        assert_eq!(case.hitk_pct, Some(100.0), "{}", case.case);
    }
    let builds = lines.iter().filter_map(|line| match line {
        Line::Build(build) => Some((build.case, build.shard_facts.clone())),
        _ => None,
    });
    let (one, parts) = (("build", vec![600]), ("build_segmented", vec![120; 5]));
    assert_eq!(builds.collect::<Vec<_>>(), [one, parts]);
}

#[test]
fn a_chain_case_by_name_comes_alone_and_needs_segments_for_a_route() {
    let named = |name: &str, segments| {
        let size = multidepth::Size { pairs: 300, depth: 2, dim: 16 };
        let layout = multidepth::Layout { size, segments, fan_out: 2 };
        let spec = small(WorkloadSpec::Multidepth(layout));
        run_on(Fault::None, &BenchSpec { case: Some(name.to_owned()), ..spec })
    };
    let lines = named("graph_rag_path_depth_2", 5).expect("right");
    let names: Vec<&str> = cases(&lines).iter().map(|case| case.case.as_str()).collect();
    assert_eq!(names, ["sql_path_depth_2", "graph_rag_path_depth_2"]);
    let lines = named("graph_rag_path_depth_1_exact", 5).expect("right");
    assert_eq!(cases(&lines).len(), 1);
    let error = named("graph_rag_path_depth_1_exact", 0).expect_err("no segments");
    assert!(error.to_string().contains("graph_rag_path_depth_2"), "{error}");
}

#[test]
fn repeated_builds_end_with_their_spread() {
    let workload = WorkloadSpec::Multihop { chains: 300 };
    let spec = BenchSpec { builds: 3, build_seed: 7, ..small(workload) };
    let lines = run_on(Fault::None, &spec).expect("right");
    let seeds: HashSet<u64> = cases(&lines).iter().map(|c| c.params.build_seed).collect();
    assert_eq!(seeds, HashSet::from([7, 8, 9]));
    let spreads: Vec<_> =
        lines.iter().filter(|line| matches!(line, Line::Spread(_))).map(Line::json).collect();
    assert_eq!(spreads.len() * 3, cases(&lines).len());
    assert!(spreads.iter().all(|json| json.contains("\"builds\":3")), "{spreads:?}");
}

#[test]
fn a_case_line_has_the_fields_of_the_contract() {
    let lines = run_on(Fault::None, &small(WorkloadSpec::Multihop { chains: 300 })).expect("right");
    let path = |case: &&&CaseLine| case.case == "seed_graph_rag_twohop_path_scan_fn";
    let case = cases(&lines).iter().find(path).map(|case| (**case).clone()).expect("the case");
    let json: serde_json::Value =
        serde_json::from_str(&Line::Case(Box::new(case)).json()).expect("one JSON object");
    for field in [
        "workload",
        "case",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "avg_ms",
        "cpu_ms",
        "hit1_pct",
        "hitk_pct",
        "recall",
        "equal_sets_pct",
        "rows",
        "blocks_read",
        "stages",
        "times_plain",
    ] {
        assert!(!json[field].is_null(), "{field} in {json}");
    }
    assert_eq!(json["params"]["store"], "hopbine");
    assert_eq!(json["params"]["index"], "auto");
    assert_eq!(json["params"]["chains"], 300);
    assert!(json["params"].get("ef").is_none());
}

#[test]
fn the_sweep_measures_every_point_of_the_grid() {
    let spec = BenchSpec {
        sweep: true,
        queries: Some(2),
        runs: Some(1),
        ..BenchSpec::new(WorkloadSpec::Multihop { chains: 300 })
    };
    let lines = run_on(Fault::None, &spec).expect("right");
    let points: HashSet<_> = cases(&lines)
        .iter()
        .map(|case| {
            let p = &case.params;
            (p.m, p.ef_construction, p.ef, p.ann_k, case.case.clone())
        })
        .collect();
    assert_eq!(points.len(), 3 * 3 * 5 * 4 * 2);
}
