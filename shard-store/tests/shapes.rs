//! Graphs of awkward shape: cycles, hubs, extreme ids, half of everything deleted.

mod oracle;

use hopbine_proto::call::{
    Arrival, FrontierEntity, HopOutput, HopRequest, Relations, SeedMode, SeedRequest, WriteOp,
};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{IdKind, IndexConfig};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, EntityRange, Epoch, Fact, FactKey, KeyRange, LogIndex, Metric};
use hopbine_proto::{RelationId, ShardId};
use hopbine_shard_store::{Shard, ShardConfig, StoreError};
use oracle::Model;
use oracle::draw::Draw;
use std::sync::Arc;

struct Both {
    shard: Shard,
    model: Model,
}

impl Both {
    fn new(dim: u32) -> Self {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        let config = ShardConfig {
            shard: ShardId(1),
            range: EntityRange::ALL,
            epoch: Epoch(1),
            dim,
            metric: Metric::Cosine,
            vector_required: false,
            ids: IdKind::U64,
            index: IndexConfig { m: 8, ef_construction: 32, ..IndexConfig::default() },
            memtable_bytes_max: 1 << 20,
            merge_memory_max: 1 << 30,
        };
        let shard = Shard::create(disk, "/shard", config).expect("created");
        Self { shard, model: Model::new(Metric::Cosine) }
    }

    fn write(&mut self, ops: &[WriteOp]) {
        let index = LogIndex(self.model.index.0 + 1);
        self.shard.apply(1, index, ops).expect("applied");
        self.model.apply(index, ops).expect("no names, no collision");
    }

    fn flush(&self) {
        self.shard.freeze(Vec::new(), Vec::new());
        assert!(self.shard.flush_oldest().expect("flushed"));
    }

    fn settle(&self) {
        self.flush();
        while self.shard.compact_once().expect("merged") {}
    }

    fn check_hop(&self, request: &HopRequest) {
        let reply = self.shard.view().hop(request, &|| false).expect("hopped");
        let expected = self.model.hop(request);
        if !matches!(request.output, HopOutput::Page { .. } | HopOutput::Keys { .. }) {
            // A page counts only what it had to read.
            assert_eq!(reply.counts, expected.counts);
        }
        assert!(reply.targets == expected.targets && reply.facts == expected.facts);
        assert_eq!(reply.keys, expected.keys);
    }
}

fn upsert(key: FactKey, vector: &[f32]) -> WriteOp {
    let embedding = Some(vector.into());
    WriteOp::Upsert(Fact { key, names: None, embedding, payload: None })
}

fn vector(draw: &mut Draw, dim: usize) -> Vec<f32> {
    (0..dim).map(|_| draw.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0).collect()
}

fn from(entity: u64, start: u64) -> FrontierEntity {
    let arrival = Arrival { start: EntityId(start), prefix: 0.25, tie: 0 };
    FrontierEntity { entity: EntityId(entity), arrivals: vec![arrival].into() }
}

fn hop(frontier: Vec<FrontierEntity>, output: HopOutput, dim: usize) -> HopRequest {
    let mut query = vec![0.5; dim];
    query[0] = 1.0;
    HopRequest {
        frontier,
        relations: Relations::Any,
        query: Some(query.into()),
        weight: 1.0,
        filter: None,
        limit_per_entity: u32::MAX,
        limit_rows: u64::MAX,
        return_to_start: false,
        output,
    }
}

fn outputs() -> [HopOutput; 5] {
    [
        HopOutput::Targets { beam: 50, starts: 2 },
        HopOutput::Facts { top_k: 20, score: ScoreMode::Path },
        HopOutput::Facts { top_k: 20, score: ScoreMode::Endpoint },
        HopOutput::Page { limit: 100, after: None },
        HopOutput::Keys { limit: 100, after: None },
    ]
}

#[test]
fn cycles_self_loops_parallel_relations_and_extreme_ids_are_ordinary_facts() {
    let mut both = Both::new(4);
    let mut draw = Draw(1);
    let ids = [0, 1, 2, u64::MAX - 1, u64::MAX];
    let mut ops = Vec::new();
    for entity in ids {
        for target in ids {
            for relation in [0, 1, u32::MAX] {
                let vector = vector(&mut draw, 4);
                ops.push(upsert(FactKey::new(entity, relation, target), &vector));
            }
        }
    }
    both.write(&ops);
    for round in 0..2 {
        for return_to_start in [false, true] {
            for output in outputs() {
                let frontier = ids.map(|id| from(id, id)).to_vec();
                let mut request = HopRequest { return_to_start, ..hop(frontier, output, 4) };
                both.check_hop(&request);
                request.relations = Relations::Of(vec![RelationId(1), RelationId(u32::MAX)]);
                request.limit_per_entity = 3;
                both.check_hop(&request);
            }
        }
        if round == 0 {
            both.flush();
        }
    }
    let all = both.shard.view().count(&KeyRange::ALL, None, &|| false).expect("counted");
    assert_eq!(all.count, 75);
    both.write(&[WriteOp::DeletePrefix { entity: EntityId(u64::MAX), relation: None }]);
    both.settle();
    let left = both.shard.view().count(&KeyRange::ALL, None, &|| false).expect("counted");
    assert_eq!(left.count, 60);
}

#[test]
fn a_hub_of_two_hundred_thousand_facts_is_cut_alike_in_memory_and_on_disk() {
    let mut both = Both::new(2);
    let mut draw = Draw(2);
    // Few distinct vectors: many equal distances, and the index has little to do.
    let vectors: Vec<Vec<f32>> = (0..500).map(|_| vector(&mut draw, 2)).collect();
    for part in 0..20u64 {
        let ops: Vec<WriteOp> = (0..10_000)
            .map(|number| {
                let key = FactKey::new(7, (number % 3) as u32, part * 10_000 + number);
                upsert(key, &vectors[draw.below(500) as usize])
            })
            .collect();
        both.write(&ops);
    }
    let requests = outputs().map(|output| hop(vec![from(7, 3), from(8, 8)], output, 2));
    for request in &requests {
        both.check_hop(request);
    }
    both.flush();
    for request in &requests {
        both.check_hop(request);
    }
    both.check_hop(&HopRequest { limit_per_entity: 1_000, ..requests[0].clone() });
    both.check_hop(&HopRequest { limit_rows: 150_000, ..requests[0].clone() });
    both.write(&[WriteOp::DeletePrefix { entity: EntityId(7), relation: Some(RelationId(1)) }]);
    both.settle();
    for request in &requests {
        both.check_hop(request);
    }
    let stop_at_once = both.shard.view().hop(&requests[0], &|| true);
    assert!(matches!(stop_at_once, Err(StoreError::Stopped)));
}

#[test]
fn half_of_all_facts_deleted_and_merged_gives_space_back_and_keeps_recall() {
    const DIM: usize = 16;
    let mut both = Both::new(DIM as u32);
    let mut draw = Draw(3);
    let key = |number: u64| FactKey::new(number / 4, 0, number);
    for part in 0..5 {
        let numbers = part * 1_000..(part + 1) * 1_000;
        let ops: Vec<WriteOp> =
            numbers.map(|number| upsert(key(number), &vector(&mut draw, DIM))).collect();
        both.write(&ops);
        both.flush();
    }
    both.shard.compact_once().expect("merged");
    let full = both.shard.stats().expect("counted");
    let deletes: Vec<WriteOp> =
        (0..5_000).filter(|number| number % 2 == 0).map(|n| WriteOp::Delete(key(n))).collect();
    both.write(&deletes);
    let check = |both: &Both, context: &str| {
        let mut draw = Draw(4);
        for mode in [SeedMode::Auto, SeedMode::Scan, SeedMode::Exact] {
            let query = vector(&mut draw, DIM).into();
            let request =
                SeedRequest { query, k: 64, relations: Relations::Any, filter: None, mode };
            let reply = both.shard.view().seeds(&request, &|| false).expect("searched");
            assert!(reply.seeds == both.model.seeds(&request), "{context}, {mode:?}");
        }
    };
    check(&both, "tombstones in memory");
    both.flush();
    check(&both, "tombstones on disk");
    while both.shard.compact_once().expect("merged") {}
    check(&both, "merged");
    let half = both.shard.stats().expect("counted");
    assert_eq!((half.facts, half.dead_rows), (2_500, 0));
    assert!(
        half.disk_bytes < full.disk_bytes * 6 / 10,
        "{} bytes of {}",
        half.disk_bytes,
        full.disk_bytes
    );
}

#[test]
fn a_segment_with_a_third_of_its_rows_replaced_is_rewritten_without_them() {
    let mut both = Both::new(4);
    let mut draw = Draw(6);
    let mut upserts = |numbers: std::ops::Range<u64>| -> Vec<WriteOp> {
        numbers.map(|n| upsert(FactKey::new(n, 0, n), &vector(&mut draw, 4))).collect()
    };
    both.write(&upserts(0..900));
    both.flush();
    both.write(&upserts(0..300));
    assert!(!both.shard.compact_once().expect("asked"), "what died in memory alone must stay");
    both.flush();
    let stats = both.shard.stats().expect("counted");
    assert_eq!((stats.dead_rows, stats.compaction_due), (300, true));
    assert!(both.shard.compact_once().expect("merged"));
    let stats = both.shard.stats().expect("counted");
    assert_eq!((stats.facts, stats.dead_rows, stats.compaction_due), (900, 0, false));
}

#[test]
fn the_state_names_memtables_that_wait_for_their_flush() {
    let mut both = Both::new(4);
    let mut draw = Draw(7);
    both.write(&[upsert(FactKey::new(1, 0, 1), &vector(&mut draw, 4))]);
    let frozen = |both: &Both| both.shard.stats().expect("counted").frozen_memtables;
    assert_eq!(frozen(&both), 0);
    assert!(both.shard.freeze(Vec::new(), Vec::new()));
    assert_eq!(frozen(&both), 1);
    assert!(both.shard.flush_oldest().expect("flushed"));
    assert_eq!(frozen(&both), 0);
}

#[test]
fn a_hop_takes_over_the_distances_that_its_seeds_have_cost() {
    let mut both = Both::new(4);
    let mut draw = Draw(11);
    // Three runs: two segments and the memtable.
    for part in 0..3u64 {
        let facts: Vec<WriteOp> = (0..40)
            .map(|i| upsert(FactKey::new(i, 1, 100 * part + i), &vector(&mut draw, 4)))
            .collect();
        both.write(&facts);
        if part < 2 {
            both.flush();
        }
    }
    let frontier = || (0..40).map(|entity| from(entity, entity)).collect();
    let request = hop(frontier(), HopOutput::Facts { top_k: 200, score: ScoreMode::Path }, 4);
    let alone = both.shard.view().hop(&request, &|| false).expect("hopped");
    assert_eq!((alone.facts.len(), alone.work.vectors_scored), (80, 120), "40 lead to their start");
    let seeds = |query: Arc<[f32]>| SeedRequest {
        query,
        k: 25,
        relations: Relations::Any,
        filter: None,
        mode: SeedMode::Exact,
    };
    let view = both.shard.view();
    view.seeds(&seeds(request.query.clone().expect("has one")), &|| false).expect("searched");
    let reply = view.hop(&request, &|| false).expect("hopped");
    assert!(reply.facts == alone.facts && reply.counts == alone.counts);
    assert_eq!(reply.work.vectors_scored, 120 - 3 * 25, "each run found its own 25");
    // Another question has other distances.
    let view = both.shard.view();
    view.seeds(&seeds([0.5, 1.0, 0.5, 0.5].into()), &|| false).expect("searched");
    let reply = view.hop(&request, &|| false).expect("hopped");
    assert!(reply.facts == alone.facts);
    assert_eq!(reply.work.vectors_scored, 120);
}
