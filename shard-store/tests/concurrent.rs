//! Readers with their views, while other threads apply, freeze, flush and merge.

use hopbine_proto::call::{
    Arrival, FrontierEntity, HopOutput, HopRequest, Relations, ScanRequest, SeedMode, SeedRequest,
    With, WriteOp,
};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{IdKind, IndexConfig};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, EntityRange, Epoch, Fact, FactKey, KeyRange, LogIndex, Metric};
use hopbine_proto::{RelationId, ShardId};
use hopbine_shard_store::{Pressure, Shard, ShardConfig, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ENTITIES: u64 = 16;
const TARGETS: u64 = 24;
const ENTRIES: u64 = 3_000;

fn config() -> ShardConfig {
    ShardConfig {
        shard: ShardId(1),
        range: EntityRange::ALL,
        epoch: Epoch(1),
        dim: 2,
        metric: Metric::Cosine,
        vector_required: true,
        ids: IdKind::U64,
        index: IndexConfig { m: 4, ef_construction: 16, ..IndexConfig::default() },
        memtable_bytes_max: 32 * 1024,
        merge_memory_max: 1 << 20,
    }
}

/// Entry `index` moves the one edge that each entity always has: the state at an index is known
/// from the index alone.
fn target_at(entity: u64, index: u64) -> u64 {
    // The last entry up to `index` that touched the entity.
    let last = (0..=index).rev().find(|entry| entry % ENTITIES == entity).unwrap_or(entity);
    last / ENTITIES % TARGETS
}

fn batch(index: u64) -> Vec<WriteOp> {
    let entity = index % ENTITIES;
    let (old, new) = (index / ENTITIES + TARGETS - 1, index / ENTITIES);
    let fact = |target: u64| Fact {
        key: FactKey::new(entity, 0, target % TARGETS),
        names: None,
        embedding: Some(vec![1.0, (target % TARGETS) as f32].into()),
        payload: Some(format!("{index}").into()),
    };
    vec![WriteOp::Delete(fact(old).key), WriteOp::Upsert(fact(new))]
}

fn check(view: &View) {
    let index = view.index().0;
    let keys: Vec<FactKey> = (0..ENTITIES.min(index))
        .map(|number| (number + 1) % ENTITIES)
        .map(|entity| FactKey::new(entity, 0, target_at(entity, index)))
        .collect();
    let mut sorted = keys.clone();
    sorted.sort();
    let request = ScanRequest {
        range: KeyRange::ALL,
        filter: None,
        limit: 1_000,
        with: With { payload: true, vector: true },
    };
    let scan = view.scan(&request, &|| false).expect("scanned");
    let found: Vec<FactKey> = scan.rows.iter().map(|row| row.fact.key).collect();
    assert_eq!(found, sorted, "scan at {index}");
    for row in &scan.rows {
        let written = row.fact.payload.as_deref().expect("a payload");
        assert_eq!(written, row.version.0.to_string());
    }
    let count = view.count(&KeyRange::ALL, None, &|| false).expect("counted");
    assert_eq!(count.count, sorted.len() as u64, "count at {index}");
    let request = SeedRequest {
        query: vec![1.0, 3.0].into(),
        k: 100,
        relations: Relations::Of(vec![RelationId(0)]),
        filter: None,
        mode: SeedMode::Auto,
    };
    let reply = view.seeds(&request, &|| false).expect("searched");
    let mut seeds: Vec<FactKey> = reply.seeds.iter().map(|seed| seed.key).collect();
    seeds.sort();
    assert_eq!(seeds, sorted, "seeds at {index}");
    let frontier = (0..ENTITIES).map(|entity| FrontierEntity {
        entity: EntityId(entity),
        arrivals: vec![Arrival { start: EntityId(99), prefix: 0.0, tie: 0 }].into(),
    });
    let request = HopRequest {
        frontier: frontier.collect(),
        relations: Relations::Any,
        query: Some(vec![1.0, 3.0].into()),
        weight: 1.0,
        filter: None,
        limit_per_entity: 10,
        limit_rows: 1_000,
        return_to_start: false,
        output: HopOutput::Facts { top_k: 1_000, score: ScoreMode::Path },
    };
    let reply = view.hop(&request, &|| false).expect("hopped");
    let mut hopped: Vec<FactKey> = reply.facts.iter().map(|step| step.key).collect();
    hopped.sort();
    assert_eq!(hopped, sorted, "hop at {index}");
}

/// Ends all threads when one of them panics: nobody waits for what it would have done.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Release);
    }
}

#[test]
fn every_view_shows_one_moment_while_everything_moves() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let shard = Shard::create(disk, "/shard", config()).expect("created");
    let (done, checks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (shard, done, checks) = (&shard, &done, &checks);
            scope.spawn(move || {
                let _ends = Ends(done);
                let mut old = shard.view();
                while !done.load(Ordering::Acquire) {
                    let view = shard.view();
                    check(&view);
                    check(&old);
                    if checks.fetch_add(1, Ordering::Relaxed) % 8 == reader {
                        old = view;
                    }
                }
                check(&shard.view());
            });
        }
        for merges in [false, true] {
            let (shard, done) = (&shard, &done);
            scope.spawn(move || {
                let _ends = Ends(done);
                while !done.load(Ordering::Acquire) {
                    let did = match merges {
                        true => shard.compact_once().expect("merged"),
                        false => shard.flush_oldest().expect("flushed"),
                    };
                    if !did {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let _ends = Ends(&done);
        for index in 1..=ENTRIES {
            while shard.write_pressure() == Pressure::Full && !done.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            shard.apply(1, LogIndex(index), &batch(index)).expect("applied");
            if shard.should_freeze() || index % 100 == 0 {
                shard.freeze(Vec::new(), Vec::new());
            }
        }
        // At least as many moments are looked at as the machine has time for, and some surely.
        while checks.load(Ordering::Relaxed) < 50 && !done.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    check(&shard.view());
    assert!(shard.durable().index.0 > 0, "something was flushed");
}
