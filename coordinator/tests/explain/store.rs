//! Shards of the product's own store behind an engine; each notes what it answered.

use super::fake::World;
use hopbine_coordinator::Engine;
use hopbine_coordinator::client::{Reply, Shards};
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::{EntityRef, FactInput, KeyRef, RelationRef};
use hopbine_proto::call::*;
use hopbine_proto::driver::SystemClock;
use hopbine_proto::filter::Filter;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, KeyRange, LogIndex, RequestId, ShardId};
use hopbine_shard_store::{Applied, Shard, ShardConfig, View};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// What one shard counted while it answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The stage that it belongs to.
    pub stage: &'static str,
    pub shard: ShardId,
    pub work: Work,
    pub runs: Vec<RunWork>,
    pub counts: HopCounts,
    pub rows: u64,
}

/// The shards of one graph.
pub struct Store {
    shards: BTreeMap<ShardId, Arc<Shard>>,
    views: Mutex<HashMap<(RequestId, ShardId), View>>,
    answers: Mutex<Vec<Answered>>,
}

/// A graph `g` of numbers, cut at `boundaries`, with vectors of four components.
pub async fn graph(boundaries: &[u64]) -> (Arc<Store>, Engine) {
    let world = World::new();
    let mut config = GraphConfig::new(4, IdKind::U64);
    config.shards.boundaries = boundaries.to_vec();
    let made = world.engine().create_graph("g", config).await.expect("created").0;
    let disk = Arc::new(SimDisk::new());
    let mut shards = BTreeMap::new();
    for shard in &made.shards {
        let config = ShardConfig::of_graph(shard.id, shard.range, shard.epoch, &made.config);
        let folder = format!("/shards/{}", shard.id);
        let shard_made = Shard::create(disk.clone(), folder, config).expect("created");
        shards.insert(shard.id, Arc::new(shard_made));
    }
    let store = Arc::new(Store { shards, views: Mutex::default(), answers: Mutex::default() });
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::new(store.clone(), world, clock, CoordinatorConfig::default());
    (store, engine)
}

/// One fact with a payload.
pub fn fact(entity: u64, by: u64, target: u64, embedding: [f32; 4], payload: Value) -> FactInput {
    let key = KeyRef {
        entity: EntityRef::Number(entity),
        relation: RelationRef::Number(by),
        target: EntityRef::Number(target),
    };
    let payload = RawValue::from_string(payload.to_string()).expect("JSON");
    FactInput { key, embedding: Some(embedding.as_slice().into()), payload: Some(payload) }
}

fn ready<T: Send + 'static>(answer: T) -> Reply<'static, T> {
    Box::pin(async move { Ok(answer) })
}

fn go_on() -> bool {
    false
}

impl Store {
    /// Seals what was written so far: one more segment in each shard that has something.
    pub fn seal(&self) {
        for shard in self.shards.values() {
            shard.freeze(Vec::new(), Vec::new());
            while shard.flush_oldest().expect("flushed") {}
        }
    }

    /// What the shards counted since the last time.
    pub fn answers(&self) -> Vec<Answered> {
        std::mem::take(&mut *self.answers.lock().expect("no panic"))
    }

    /// What the shards say of their sizes.
    pub fn sizes(&self) -> BTreeMap<ShardId, ShardStats> {
        let of = |(id, shard): (&ShardId, &Arc<Shard>)| (*id, shard.stats().expect("counted"));
        self.shards.iter().map(of).collect()
    }

    /// The view that a request pinned, or pins now.
    fn view(&self, at: &ReadContext) -> View {
        let mut views = self.views.lock().expect("no panic");
        let now = || self.shards[&at.shard].view();
        views.entry((at.request, at.shard)).or_insert_with(now).clone()
    }

    fn note(&self, stage: &'static str, at: &ReadContext, work: &Work) {
        self.answers.lock().expect("no panic").push(Answered {
            stage,
            shard: at.shard,
            work: work.clone(),
            runs: Vec::new(),
            counts: HopCounts::default(),
            rows: 0,
        });
    }

    fn last(&self, change: impl FnOnce(&mut Answered)) {
        change(self.answers.lock().expect("no panic").last_mut().expect("just noted"));
    }
}

impl Shards for Store {
    fn seeds(&self, at: ReadContext, ask: Arc<SeedRequest>) -> Reply<'_, SeedReply> {
        let reply = self.view(&at).seeds(&ask, &go_on).expect("searched");
        self.note("ann", &at, &reply.work);
        self.last(|line| line.runs.clone_from(&reply.runs));
        ready(reply)
    }

    fn hop(&self, at: ReadContext, ask: HopRequest) -> Reply<'_, HopReply> {
        let reply = self.view(&at).hop(&ask, &go_on).expect("walked");
        let middle = matches!(ask.output, HopOutput::Targets { .. });
        self.note(if middle { "expand:1" } else { "expand:2" }, &at, &reply.work);
        self.last(|line| line.counts = reply.counts);
        ready(reply)
    }

    fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Reply<'_, FetchReply> {
        let reply = self.view(&at).fetch(&ask, &go_on).expect("fetched");
        let stage = if ask.query.is_some() { "rerank" } else { "payload" };
        self.note(stage, &at, &reply.work);
        self.last(|line| line.rows = reply.rows.len() as u64);
        ready(reply)
    }

    fn scan(&self, at: ReadContext, ask: ScanRequest) -> Reply<'_, ScanReply> {
        ready(self.view(&at).scan(&ask, &go_on).expect("scanned"))
    }

    fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Reply<'_, CountReply> {
        ready(self.view(&at).count(&range, filter.as_deref(), &go_on).expect("counted"))
    }

    fn entity(&self, at: ReadContext, entity: EntityId) -> Reply<'_, EntityReply> {
        ready(self.view(&at).entity(entity, &go_on).expect("known"))
    }

    fn stats(&self, at: ReadContext) -> Reply<'_, ShardStats> {
        ready(self.shards[&at.shard].stats().expect("counted"))
    }

    fn write(&self, at: WriteContext, batch: WriteBatch) -> Reply<'_, WriteReply> {
        let shard = &self.shards[&at.shard];
        let index = LogIndex(shard.applied().1.0 + 1);
        match shard.apply(1, index, &batch.ops).expect("applied") {
            Applied::Done(reply) => ready(reply),
            Applied::Refused(problem) => Box::pin(async move { Err((*problem).into()) }),
        }
    }

    fn release(&self, request: RequestId) {
        self.views.lock().expect("no panic").retain(|(pinned, _), _| *pinned != request);
    }
}
