//! A world in memory: every shard of every graph as one ordered map, answered by brute force.
//!
//! Slow and obvious, and written apart from the product's own store, so that tests of whatever
//! asks shards have something to believe in. `World::interrupt` makes single calls fail or hang.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod shard;

use hopbine_coordinator::Engine;
use hopbine_coordinator::client::{Catalogue, GraphPatch, Reply, Shards};
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_proto::call::*;
use hopbine_proto::driver::SystemClock;
use hopbine_proto::filter::Filter;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::shard_map::{self, ShardDescriptor};
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::*;
use shard::ShardFacts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a call meets instead of its shard.
#[derive(Clone, Debug)]
pub enum Interruption {
    /// It gets this answer.
    Fail(CallError),
    /// It never gets any.
    Hang,
    /// The graph of this name is dropped first, and the shard with it.
    Drop(&'static str),
}

/// Graphs, facts and the calls made so far.
#[derive(Default)]
pub struct World {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    graphs: BTreeMap<String, Arc<GraphInfo>>,
    facts: BTreeMap<ShardId, ShardFacts>,
    sessions: HashMap<(ShardId, u128), (u128, WriteReply)>,
    interruptions: BTreeMap<ShardId, Vec<Interruption>>,
    calls: Vec<String>,
    reading: BTreeSet<RequestId>,
    released: BTreeSet<RequestId>,
    next_id: u64,
}

impl World {
    /// A world without graphs.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// An engine over this world, on the machine's clock.
    pub fn engine(self: &Arc<Self>) -> Engine {
        self.engine_with(CoordinatorConfig::default())
    }

    /// The same with settings of its own.
    pub fn engine_with(self: &Arc<Self>, config: CoordinatorConfig) -> Engine {
        let clock = Arc::new(SystemClock::default());
        Engine::new(self.clone(), self.clone(), clock, config)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the world")
    }

    /// The next call of `shard` meets this, the one after it the next in line.
    pub fn interrupt(&self, shard: ShardId, interruption: Interruption) {
        self.state().interruptions.entry(shard).or_default().push(interruption);
    }

    /// Lines `kind shard` of all calls so far.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Requests that read something and were not released.
    pub fn unreleased(&self) -> usize {
        let state = self.state();
        state.reading.difference(&state.released).count()
    }

    /// Shards of a graph, ascending by range.
    pub fn shards(&self, graph: &str) -> Vec<ShardDescriptor> {
        self.state().graphs[graph].shards.clone()
    }

    /// Cuts the shard of `at` in two there, at new epochs and with new ids.
    pub fn split(&self, graph: &str, at: u64) {
        let mut state = self.state();
        let mut info = GraphInfo::clone(&state.graphs[graph]);
        let place = shard_map::owner(&info.shards, EntityId(at));
        let parent = info.shards.remove(place);
        let (mut left, mut right) = (parent.clone(), parent.clone());
        for half in [&mut left, &mut right] {
            state.next_id += 1;
            half.id = ShardId(state.next_id);
            half.epoch = Epoch(parent.epoch.0 + 1);
        }
        left.range.end = Some(EntityId(at));
        right.range.start = EntityId(at);
        let (below, above) = state.facts.remove(&parent.id).expect("known").cut(EntityId(at));
        state.facts.insert(left.id, below);
        state.facts.insert(right.id, above);
        info.shards.splice(place..place, [left, right]);
        state.graphs.insert(graph.to_owned(), Arc::new(info));
    }

    fn read<T: Send + 'static>(
        &self,
        kind: &str,
        at: &ReadContext,
        answer: impl FnOnce(&ShardFacts, &GraphInfo) -> T,
    ) -> Reply<'static, T> {
        let mut state = self.state();
        state.reading.insert(at.request);
        let outcome = state
            .interrupted(kind, at.shard)
            .and_then(|()| state.owner(at.graph, at.shard, at.epoch))
            .and_then(|graph| {
                let shard = &state.facts[&at.shard];
                let (applied, needed) = (shard.index, at.min_index);
                if applied < needed {
                    let behind = CallError::Behind { shard: at.shard, applied, needed };
                    return Err(Interruption::Fail(behind));
                }
                Ok(answer(shard, &graph))
            });
        reply(outcome)
    }
}

fn reply<T: Send + 'static>(outcome: Result<T, Interruption>) -> Reply<'static, T> {
    Box::pin(async move {
        match outcome {
            Ok(answer) => Ok(answer),
            Err(Interruption::Fail(error)) => Err(error),
            Err(Interruption::Hang | Interruption::Drop(_)) => std::future::pending().await,
        }
    })
}

impl State {
    fn interrupted(&mut self, kind: &str, shard: ShardId) -> Result<(), Interruption> {
        self.calls.push(format!("{kind} {shard}"));
        let next = match self.interruptions.get_mut(&shard) {
            Some(line) if !line.is_empty() => line.remove(0),
            _ => return Ok(()),
        };
        if let Interruption::Drop(graph) = next {
            self.graphs.remove(graph);
            let detail = format!("shard {shard} is not hosted here");
            return Err(Interruption::Fail(Problem::new(Code::ShardUnavailable, detail).into()));
        }
        Err(next)
    }

    fn owner(
        &self,
        graph: GraphId,
        shard: ShardId,
        sent: Epoch,
    ) -> Result<Arc<GraphInfo>, Interruption> {
        let info = self.graphs.values().find(|info| info.id == graph);
        let known = info.and_then(|info| info.shards.iter().find(|known| known.id == shard));
        match (info, known) {
            (Some(info), Some(known)) if known.epoch == sent => Ok(info.clone()),
            (_, known) => {
                let current = known.map_or(Epoch(sent.0 + 1), |known| known.epoch);
                Err(Interruption::Fail(CallError::StaleEpoch { shard, sent, current }))
            }
        }
    }
}

impl Shards for World {
    fn seeds(&self, at: ReadContext, ask: Arc<SeedRequest>) -> Reply<'_, SeedReply> {
        self.read("seeds", &at, |shard, graph| shard.seeds(graph, &ask))
    }

    fn hop(&self, at: ReadContext, ask: HopRequest) -> Reply<'_, HopReply> {
        self.read("hop", &at, |shard, graph| shard.hop(graph, &ask))
    }

    fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Reply<'_, FetchReply> {
        self.read("fetch", &at, |shard, graph| shard.fetch(graph, &ask))
    }

    fn scan(&self, at: ReadContext, ask: ScanRequest) -> Reply<'_, ScanReply> {
        self.read("scan", &at, |shard, _| shard.scan(&ask))
    }

    fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Reply<'_, CountReply> {
        let ask = ScanRequest { range, filter, limit: u32::MAX, with: With::default() };
        self.read("count", &at, |shard, _| CountReply {
            count: shard.scan(&ask).rows.len() as u64,
            index: shard.index,
        })
    }

    fn entity(&self, at: ReadContext, entity: EntityId) -> Reply<'_, EntityReply> {
        self.read("entity", &at, |shard, _| shard.entity(entity))
    }

    fn stats(&self, at: ReadContext) -> Reply<'_, ShardStats> {
        self.read("stats", &at, |shard, _| shard.stats())
    }

    fn write(&self, at: WriteContext, batch: WriteBatch) -> Reply<'_, WriteReply> {
        let mut state = self.state();
        let outcome = state
            .interrupted("write", at.shard)
            .and_then(|()| state.owner(at.graph, at.shard, at.epoch))
            .and_then(|_| state.apply(at.shard, batch));
        reply(outcome)
    }

    fn release(&self, request: RequestId) {
        self.state().released.insert(request);
    }
}

impl State {
    fn apply(&mut self, shard: ShardId, batch: WriteBatch) -> Result<WriteReply, Interruption> {
        let known = batch.idempotency.and_then(|mark| self.sessions.get(&(shard, mark.key)));
        match (batch.idempotency, known) {
            (Some(mark), Some((hash, reply))) if mark.batch == *hash => return Ok(reply.clone()),
            (Some(_), Some(_)) => {
                let problem = Problem::new(Code::IdempotencyConflict, "the key had another batch");
                return Err(Interruption::Fail(problem.into()));
            }
            _ => {}
        }
        let reply = self.facts.get_mut(&shard).expect("an owned shard has facts").apply(&batch.ops);
        if let Some(mark) = batch.idempotency {
            self.sessions.insert((shard, mark.key), (mark.batch, reply.clone()));
        }
        Ok(reply)
    }
}

impl Catalogue for World {
    fn cluster_id(&self) -> u64 {
        77
    }

    fn graphs(&self) -> Vec<Arc<GraphInfo>> {
        self.state().graphs.values().cloned().collect()
    }

    fn graph(&self, name: &str) -> Option<Arc<GraphInfo>> {
        self.state().graphs.get(name).cloned()
    }

    fn create(
        &self,
        name: String,
        config: GraphConfig,
    ) -> Reply<'_, (Arc<GraphInfo>, bool), Problem> {
        let mut state = self.state();
        let created = match state.graphs.get(&name) {
            Some(known) if known.config == config => Ok((known.clone(), false)),
            Some(_) => Err(Problem::new(Code::GraphExists, "it has another configuration")),
            None => Ok((state.create(&name, config), true)),
        };
        Box::pin(async move { created })
    }

    fn patch(
        &self,
        name: String,
        version: u64,
        patch: GraphPatch,
    ) -> Reply<'_, Arc<GraphInfo>, Problem> {
        let mut state = self.state();
        let mut info = GraphInfo::clone(&state.graphs[&name]);
        if info.version != version {
            let detail = format!("the graph is at version {}", info.version);
            return Box::pin(async { Err(Problem::new(Code::PreconditionFailed, detail)) });
        }
        let config = &mut info.config;
        config.index.ef_search = patch.ef_search.unwrap_or(config.index.ef_search);
        config.index.recall_target = patch.recall_target.unwrap_or(config.index.recall_target);
        config.shards.split_at_bytes = patch.split_at_bytes.unwrap_or(config.shards.split_at_bytes);
        config.payload_bytes_max = patch.payload_bytes_max.unwrap_or(config.payload_bytes_max);
        info.version += 1;
        let info = Arc::new(info);
        state.graphs.insert(name, info.clone());
        Box::pin(async move { Ok(info) })
    }

    fn drop_graph(&self, name: String) -> Reply<'_, (), Problem> {
        self.state().graphs.remove(&name);
        Box::pin(async { Ok(()) })
    }

    fn register_relations(
        &self,
        graph: GraphId,
        names: Vec<String>,
    ) -> Reply<'_, Arc<GraphInfo>, Problem> {
        let mut state = self.state();
        let known = state.graphs.values().find(|info| info.id == graph).expect("a known graph");
        let mut info = GraphInfo::clone(known);
        for name in names {
            let id = relation_name_id(&name);
            if info.relations.iter().any(|(other, known)| *known == id && *other != name) {
                let detail = format!("{name:?} has the id of another relation");
                return Box::pin(async { Err(Problem::new(Code::NameCollision, detail)) });
            }
            info.relations.insert(name, id);
        }
        let info = Arc::new(info);
        state.graphs.insert(info.name.clone(), info.clone());
        Box::pin(async move { Ok(info) })
    }
}

impl State {
    fn create(&mut self, name: &str, config: GraphConfig) -> Arc<GraphInfo> {
        let boundaries = match config.ids {
            IdKind::Names => shard_map::even_boundaries(config.shards.initial),
            IdKind::U64 => config.shards.boundaries.clone(),
        };
        let mut shards = Vec::new();
        for range in shard_map::ranges(&boundaries) {
            self.next_id += 1;
            let id = ShardId(self.next_id);
            shards.push(ShardDescriptor { id, range, epoch: Epoch(1), replicas: Vec::new() });
            self.facts.insert(id, ShardFacts::default());
        }
        self.next_id += 1;
        let info = Arc::new(GraphInfo {
            id: GraphId(self.next_id),
            name: name.to_owned(),
            config,
            version: 1,
            relations: BTreeMap::new(),
            shards,
        });
        self.graphs.insert(name.to_owned(), info.clone());
        info
    }
}
