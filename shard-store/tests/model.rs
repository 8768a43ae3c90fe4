//! A shard against a `BTreeMap` and brute force: random writes, freezes, flushes, merges, restarts
//! and questions. `HOPBINE_MODEL_OPS` sets the number of operations of each run.

mod oracle;

use hopbine_proto::call::{HopOutput, SeedMode};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{IdKind, IndexConfig};
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::{EntityRange, Epoch, LogIndex, Metric, ShardId, call::WriteOp};
use hopbine_shard_store::{Applied, Shard, ShardConfig, View};
use oracle::Model;
use oracle::draw::{Draw, World};
use std::fmt::Debug;
use std::sync::Arc;

const DIR: &str = "/shards/1";

fn config(world: &World) -> ShardConfig {
    ShardConfig {
        shard: ShardId(1),
        range: EntityRange::ALL,
        epoch: Epoch(1),
        dim: world.dim as u32,
        metric: world.metric,
        vector_required: false,
        ids: world.ids,
        index: IndexConfig { m: 8, ef_construction: 32, ..IndexConfig::default() },
        memtable_bytes_max: 64 * 1024,
        merge_memory_max: 1 << 20,
    }
}

fn go_on() -> bool {
    false
}

/// Equality that shows only the first difference.
fn assert_same<T: PartialEq + Debug>(found: &[T], expected: &[T], request: &dyn Debug) {
    for (place, pair) in found.iter().zip(expected).enumerate() {
        assert_eq!(pair.0, pair.1, "at place {place} of {request:?}");
    }
    assert_eq!(found.len(), expected.len(), "{request:?}");
}

/// One entry of the log: the batch and what applying it came to.
struct Entry {
    index: LogIndex,
    ops: Vec<WriteOp>,
    outcome: Applied,
}

struct Run {
    world: World,
    draw: Draw,
    disk: SimDisk,
    shard: Shard,
    model: Model,
    log: Vec<Entry>,
    pinned: Vec<(View, Model)>,
    seen: Seen,
}

/// What a run must have met to count.
#[derive(Debug, Default)]
struct Seen {
    flushes: u32,
    merges: u32,
    restarts: u32,
    refused: u32,
    several_runs: u32,
}

impl Run {
    fn new(world: World, seed: u64) -> Self {
        let disk = SimDisk::new();
        let shard = Shard::create(Arc::new(disk.clone()), DIR, config(&world)).expect("created");
        Self {
            world,
            draw: Draw(seed),
            disk,
            shard,
            model: Model::new(world.metric),
            log: Vec::new(),
            pinned: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self) {
        match self.draw.below(1000) {
            0..450 => self.write(),
            450..460 => {
                let index = LogIndex(self.model.index.0 + 1);
                self.shard.advance(7, index);
                self.model.index = index;
            }
            460..485 => {
                let index = self.model.index;
                self.shard.freeze(index.0.to_le_bytes().to_vec(), vec![index.0 as u8]);
            }
            485..510 => {
                self.seen.flushes += u32::from(self.shard.flush_oldest().expect("flushed"));
            }
            510..525 => {
                self.seen.merges += u32::from(self.shard.compact_once().expect("merged"));
            }
            525..530 => self.restart(),
            530..545 => {
                if self.pinned.len() == 4 {
                    self.pinned.remove(self.draw.below(4) as usize);
                }
                self.pinned.push((self.shard.view(), self.model.clone()));
            }
            _ => self.question(),
        }
    }

    fn write(&mut self) {
        let ops = self.world.batch(&mut self.draw);
        if self.model.would_store_two_names(&ops) {
            // Known as targets only: found when segments are written, which raises an alarm.
            return;
        }
        let index = LogIndex(self.model.index.0 + 1);
        let outcome = self.shard.apply(7, index, &ops).expect("applied");
        let expected = self.model.apply(index, &ops);
        match (&outcome, expected) {
            (Applied::Done(reply), Some(expected)) => assert_eq!(*reply, expected, "{ops:?}"),
            (Applied::Refused(_), None) => self.seen.refused += 1,
            (outcome, expected) => panic!("{outcome:?} instead of {expected:?} for {ops:?}"),
        }
        assert_eq!(self.shard.applied(), (7, index));
        self.log.push(Entry { index, ops, outcome });
    }

    /// Power loss, then replay of the log above the durable point.
    fn restart(&mut self) {
        let durable = self.shard.durable();
        self.pinned.clear();
        self.disk.crash(Tear::Lost);
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        self.shard = Shard::open(disk, DIR, config(&self.world)).expect("opened");
        assert_eq!(self.shard.durable(), durable);
        assert_eq!(self.shard.applied().1, durable.index);
        if durable.index.0 > 0 {
            assert_eq!(durable.membership, durable.index.0.to_le_bytes());
        }
        self.log.retain(|entry| entry.index > durable.index);
        for entry in &self.log {
            let again = self.shard.apply(7, entry.index, &entry.ops).expect("applied");
            assert_eq!(again, entry.outcome, "a replay must come to the same");
        }
        if self.shard.applied().1 < self.model.index {
            self.shard.advance(7, self.model.index);
        }
        self.seen.restarts += 1;
    }

    fn question(&mut self) {
        let current = (self.shard.view(), self.model.clone());
        let (view, model) = match self.draw.below(2 * (self.pinned.len() as u64 + 1)) {
            n if (n as usize) < self.pinned.len() => self.pinned[n as usize].clone(),
            _ => current,
        };
        assert_eq!(view.index(), model.index);
        self.ask(&view, &model);
    }

    fn ask(&mut self, view: &View, model: &Model) {
        let (world, draw) = (self.world, &mut self.draw);
        match draw.below(10) {
            0..4 => self.ask_hop(view, model),
            4..7 => self.ask_seeds(view, model),
            7 => {
                let request = world.fetch_request(draw);
                let reply = view.fetch(&request, &go_on).expect("fetched");
                let expected = model.fetch(&request);
                assert_same(&reply.rows, &expected.rows, &request);
                assert_eq!(reply.index, expected.index);
            }
            8 => {
                let request = world.scan_request(draw);
                let reply = view.scan(&request, &go_on).expect("scanned");
                let expected = model.scan(&request);
                assert_same(&reply.rows, &expected.rows, &request);
                assert_eq!((reply.more, reply.index), (expected.more, expected.index));
            }
            _ => {
                let (range, filter) = (world.range(draw), world.filter(draw));
                let reply = view.count(&range, filter.as_deref(), &go_on).expect("counted");
                assert_eq!(reply.count, model.count(&range, filter.as_deref()));
                let entity = world.key(draw).entity;
                let reply = view.entity(entity, &go_on).expect("looked up");
                assert_eq!(reply.degrees, model.degrees(entity));
                let named = world.ids == IdKind::Names && !reply.degrees.is_empty();
                assert_eq!(reply.name.is_some(), named);
            }
        }
    }

    fn ask_hop(&mut self, view: &View, model: &Model) {
        let mut request = self.world.hop_request(&mut self.draw);
        let page = matches!(request.output, HopOutput::Page { .. } | HopOutput::Keys { .. });
        if page {
            // A page reads from where the last one ended, so its limit counts other rows.
            request.limit_rows = u64::MAX;
        }
        let reply = view.hop(&request, &go_on).expect("hopped");
        let expected = model.hop(&request);
        assert_same(&reply.facts, &expected.facts, &request);
        assert_same(&reply.keys, &expected.keys, &request);
        assert_same(&reply.targets, &expected.targets, &request);
        if !page {
            assert_eq!(reply.counts, expected.counts, "{request:?}");
        }
        self.seen.several_runs += u32::from(reply.work.runs_read > 1);
    }

    fn ask_seeds(&mut self, view: &View, model: &Model) {
        let request = self.world.seed_request(&mut self.draw);
        let reply = view.seeds(&request, &go_on).expect("searched");
        let expected = model.seeds(&request);
        match request.mode {
            SeedMode::Graph { .. } => {
                assert_eq!(reply.seeds.len(), expected.len(), "{request:?}");
                let all = model.seeds(&hopbine_proto::call::SeedRequest { k: u32::MAX, ..request });
                assert!(reply.seeds.iter().all(|seed| all.contains(seed)));
            }
            _ => assert_same(&reply.seeds, &expected, &request),
        }
    }

    fn final_check(&mut self) {
        while self.shard.flush_oldest().expect("flushed") {}
        self.shard.freeze(self.model.index.0.to_le_bytes().to_vec(), Vec::new());
        while self.shard.flush_oldest().expect("flushed") {}
        while self.shard.compact_once().expect("merged") {}
        self.shard.scrub(&mut |_| true).expect("all checksums and contents agree");
        let stats = self.shard.stats().expect("counted");
        assert_eq!(stats.facts as usize, self.model.facts.len());
        let vectors = self.model.facts.values().filter(|(fact, _)| fact.embedding.is_some());
        assert_eq!(stats.vectors as usize, vectors.count());
        assert_eq!(stats.memtable_facts, 0);
        let (view, model) = (self.shard.view(), self.model.clone());
        (0..200).for_each(|_| self.ask(&view, &model));
    }
}

fn ops(default: u64) -> u64 {
    let given = std::env::var("HOPBINE_MODEL_OPS").ok();
    given.map_or(default, |text| text.parse().expect("HOPBINE_MODEL_OPS is a number"))
}

fn run(world: World, seed: u64, count: u64) -> Seen {
    let mut run = Run::new(world, seed);
    for _ in 0..count {
        run.step();
    }
    run.final_check();
    run.seen
}

fn assert_seen(seen: &Seen) {
    assert!(seen.flushes > 20 && seen.merges > 5 && seen.restarts > 5, "{seen:?}");
    assert!(seen.several_runs > 100, "{seen:?}");
}

#[test]
fn a_graph_of_numbers_answers_like_its_model() {
    let world = World { ids: IdKind::U64, metric: Metric::Cosine, dim: 3, entities: 9 };
    assert_seen(&run(world, 1, ops(10_000)));
}

#[test]
fn a_graph_of_names_answers_like_its_model() {
    let world = World { ids: IdKind::Names, metric: Metric::Cosine, dim: 5, entities: 12 };
    let seen = run(world, 2, ops(8_000));
    assert_seen(&seen);
    assert!(seen.refused > 5, "{seen:?}");
}

#[test]
fn other_metrics_and_longer_vectors_answer_like_their_models() {
    for (seed, metric) in [(3, Metric::L2), (4, Metric::Dot)] {
        let world = World { ids: IdKind::U64, metric, dim: 17, entities: 30 };
        assert_seen(&run(world, seed, ops(6_000)));
    }
}
