//! How fast is one shard? Hops against a `BTreeMap`, writes, opening, flushing.
//!
//! `cargo run --release -p hopbine-shard-store --example shard_speed -- FACTS VECTORS ROUNDS`
//!
//! Few distinct `VECTORS` make the flush quick, which is not what is measured here.

use hopbine_proto::call::{
    Arrival, FrontierEntity, HopOutput, HopRequest, Relations, SeedMode, SeedRequest, WriteOp,
};
use hopbine_proto::disk::OsDisk;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, EntityRange, Epoch, Fact, FactKey, LogIndex, RelationId, ShardId};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use hopbine_shard_store::{Shard, ShardConfig, View};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DIM: usize = 384;
const DEGREE: u64 = 16;
const SEEDS: u64 = 64;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn vector(state: &mut u64) -> Arc<[f32]> {
    (0..DIM).map(|_| (random(state) % 2001) as f32 / 1000.0 - 1.0).collect()
}

fn facts(count: u64, distinct: u64, state: &mut u64) -> Vec<Fact> {
    let vectors: Vec<Arc<[f32]>> = (0..distinct).map(|_| vector(state)).collect();
    let fact = |number: u64, state: &mut u64| Fact {
        key: FactKey::new(number / DEGREE, (number % 4) as u32, number * 7919 % count),
        names: None,
        embedding: Some(vectors[(random(state) % distinct) as usize].clone()),
        payload: None,
    };
    (0..count).map(|number| fact(number, state)).collect()
}

/// Argument `number` of the command line.
fn argument(number: usize, default: u64) -> u64 {
    std::env::args().nth(number).map_or(default, |text| text.parse().expect("a number"))
}

/// Calls that each median is taken of.
fn rounds() -> u64 {
    argument(3, 400)
}

/// Median time of one call of many.
fn median(mut call: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..rounds())
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn frontier(entities: u64, state: &mut u64) -> Vec<FrontierEntity> {
    let mut chosen: Vec<u64> = (0..SEEDS).map(|_| random(state) % entities).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let arrival = |start| Arrival { start: EntityId(start), prefix: 0.0, tie: 0 };
    let entity = |id| FrontierEntity { entity: EntityId(id), arrivals: vec![arrival(id)].into() };
    chosen.into_iter().map(entity).collect()
}

fn request(query: Option<Arc<[f32]>>, output: HopOutput, relations: Relations) -> HopRequest {
    HopRequest {
        frontier: Vec::new(),
        relations,
        query,
        weight: 1.0,
        filter: None,
        limit_per_entity: 10_000,
        limit_rows: 1_000_000,
        return_to_start: false,
        output,
    }
}

fn hops(view: &View, map: &BTreeMap<FactKey, (Arc<[f32]>, f64)>, entities: u64, state: &mut u64) {
    let query = vector(state);
    let one = Relations::Of(vec![RelationId(1)]);
    let targets = HopOutput::Targets { beam: 4096, starts: 2 };
    let best = HopOutput::Facts { top_k: 10, score: ScoreMode::Path };
    let page = HopOutput::Page { limit: 100_000, after: None };
    for (name, query, output, relations) in [
        ("page, no query", None, page, Relations::Any),
        ("targets, no query", None, targets, Relations::Any),
        ("targets", Some(query.clone()), targets, Relations::Any),
        ("targets, one relation", Some(query.clone()), targets, one),
        ("facts", Some(query.clone()), best, Relations::Any),
    ] {
        let mut request = request(query, output, relations);
        let mut last = None;
        let took = median(|| {
            request.frontier = frontier(entities, state);
            last = Some(black_box(view.hop(&request, &|| false).expect("hopped")));
        });
        let last = last.expect("hopped at least once");
        println!("hop {name}: {took:?}, {} facts read, {:?}", last.counts.read, last.work);
    }
    let took = median(|| {
        let mut keys = Vec::new();
        for from in frontier(entities, state) {
            let first = FactKey::new(from.entity.0, 0, 0);
            let last = FactKey::new(from.entity.0, u32::MAX, u64::MAX);
            keys.extend(map.range(first..=last).map(|(key, _)| *key));
        }
        black_box(keys);
    });
    println!("BTreeMap, keys only: {took:?}");
    let exact = ExactQuery::new(&query);
    let took = median(|| {
        let mut found = Vec::new();
        for from in frontier(entities, state) {
            let first = FactKey::new(from.entity.0, 0, 0);
            let last = FactKey::new(from.entity.0, u32::MAX, u64::MAX);
            for (key, (vector, norm)) in map.range(first..=last) {
                let metric = hopbine_proto::Metric::Cosine;
                found.push((exact.distance(Kernels::chosen(), metric, vector, *norm), *key));
            }
        }
        black_box(found);
    });
    println!("BTreeMap, with distances: {took:?}");
    let took = median(|| {
        black_box(frontier(entities, state));
    });
    println!("(of each, making the frontier: {took:?})");
}

fn seeds(view: &View, state: &mut u64) {
    for mode in [SeedMode::Auto, SeedMode::Scan] {
        let query = vector(state);
        let request = SeedRequest { query, k: 64, relations: Relations::Any, filter: None, mode };
        let start = Instant::now();
        let mut work = None;
        for _ in 0..10 {
            work = Some(view.seeds(&request, &|| false).expect("searched").work);
        }
        println!("seeds {mode:?}: {:?}, {:?}", start.elapsed() / 10, work);
    }
}

fn main() {
    let (count, distinct) = (argument(1, 320_000), argument(2, 2_000));
    let dir = std::env::temp_dir().join(format!("shard-speed-{}", std::process::id()));
    let mut state = 1;
    let graph = GraphConfig::new(DIM as u32, IdKind::U64);
    let mut config = ShardConfig::of_graph(ShardId(1), EntityRange::ALL, Epoch(1), &graph);
    config.memtable_bytes_max = usize::MAX;
    let shard = Shard::create(Arc::new(OsDisk), &dir, config.clone()).expect("created");
    let all = facts(count, distinct, &mut state);
    let map: BTreeMap<_, _> = all
        .iter()
        .map(|fact| (fact.key, fact.embedding.clone().expect("all have one")))
        .map(|(key, vector)| (key, (vector.clone(), norm(&vector))))
        .collect();
    let start = Instant::now();
    for (number, part) in all.chunks(1_000).enumerate() {
        let ops: Vec<WriteOp> = part.iter().cloned().map(WriteOp::Upsert).collect();
        shard.apply(1, LogIndex(number as u64 + 1), &ops).expect("applied");
    }
    println!("apply: {:?} a fact", start.elapsed() / count as u32);
    drop(all);
    println!("-- memtable");
    hops(&shard.view(), &map, count / DEGREE, &mut state);
    let start = Instant::now();
    shard.freeze(Vec::new(), Vec::new());
    shard.flush_oldest().expect("flushed");
    println!("flush: {:?}", start.elapsed());
    println!("-- segment: {:?}", shard.stats().expect("counted").segments);
    hops(&shard.view(), &map, count / DEGREE, &mut state);
    seeds(&shard.view(), &mut state);
    drop(shard);
    let start = Instant::now();
    let shard = Shard::open(Arc::new(OsDisk), &dir, config).expect("opened");
    println!("open: {:?}", start.elapsed());
    let start = Instant::now();
    seeds(&shard.view(), &mut state);
    println!("first searches: {:?}", start.elapsed());
    drop(shard);
    std::fs::remove_dir_all(dir).expect("removed");
}
