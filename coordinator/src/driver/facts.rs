//! Facts by key and by range, and sizes.

use super::Engine;
use super::apart::in_place;
use super::call::{Call, Failure, Seen, too_late};
use super::turns::{Turn, rows_bytes};
use crate::check::{self, filter};
use crate::memory::Held;
use crate::names::{self, invalid};
use crate::reply::{
    CountReply, EntityReply, FEWER_KEYS, FactOut, GetReply, RelationOut, ReplySize, ScanReply,
    StatsReply, row_text_bytes,
};
use crate::request::{
    CallOptions, CountRequest, EntityRef, GetRequest, PrefixRef, ScanRequest, WithParts,
};
use crate::retrieval::Task;
use crate::retrieval::answer::Namer;
use crate::retrieval::trace::Line;
use crate::token;
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use hopbine_proto::call::{FetchRequest, HopCounts, Row, ShardStats, With};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::shard_map::{ShardDescriptor, owner};
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, FactKey, KeyRange, RelationId, ShardId, limits};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Facts shown with an entity.
const ENTITY_FACTS: u32 = 10;
/// Bytes that looking up one key is worth, when it is decided which thread does it.
const KEY_BYTES: usize = 128;

/// Facts by key, as the shards sent them.
pub(super) struct Fetched {
    /// Those that are there.
    pub rows: HashMap<FactKey, Row>,
    /// The state of each shard that answered.
    pub seen: Vec<Seen>,
    /// What the rows hold.
    pub held: Held,
    /// What each answer took.
    pub lines: Vec<Line>,
}

/// Runs `$body` with a new `$call`, again whenever ranges move under it.
macro_rules! repeat_when_moved {
    ($engine:ident, $graph:ident, $options:ident, $call:ident, $body:expr) => {{
        let started = $engine.now();
        loop {
            let $call = $engine.begin($graph, $options, started)?;
            match $body.await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Moved) => {}
                Err(Failure::Problem(problem)) => return Err(problem),
            }
        }
    }};
}

impl Engine {
    /// Facts by key.
    pub async fn get(
        &self,
        graph: &str,
        request: &GetRequest,
        options: &CallOptions,
    ) -> Result<GetReply, Problem> {
        repeat_when_moved!(self, graph, options, call, self.get_once(&call, request))
    }

    /// Facts in key order.
    pub async fn scan(
        &self,
        graph: &str,
        request: &ScanRequest,
        options: &CallOptions,
    ) -> Result<ScanReply, Problem> {
        repeat_when_moved!(self, graph, options, call, self.scan_once(&call, request))
    }

    /// The token of the page of a scan that begins after `last`.
    pub fn scan_token(
        &self,
        graph: &str,
        request: &ScanRequest,
        last: FactKey,
    ) -> Result<String, Problem> {
        let cluster = self.parts.catalogue.cluster_id();
        Ok(token::page_token(cluster, &*self.graph(graph)?, scan_hash(request), last))
    }

    /// Number of live facts that match.
    pub async fn count(
        &self,
        graph: &str,
        request: &CountRequest,
        options: &CallOptions,
    ) -> Result<CountReply, Problem> {
        repeat_when_moved!(self, graph, options, call, self.count_once(&call, request))
    }

    /// Degree per relation and first facts of one entity; `fact_not_found` when it has no fact of
    /// its own.
    pub async fn entity(
        &self,
        graph: &str,
        entity: &EntityRef,
        options: &CallOptions,
    ) -> Result<EntityReply, Problem> {
        repeat_when_moved!(self, graph, options, call, self.entity_once(&call, entity))
    }

    /// The relations of a graph, by id: all that are registered, or all in use in a `u64` graph.
    pub async fn relations(
        &self,
        graph: &str,
        options: &CallOptions,
    ) -> Result<Vec<RelationOut>, Problem> {
        let stats = self.stats(graph, options).await?;
        let namer = Namer::new(&stats.graph);
        let mut facts: BTreeMap<RelationId, u64> =
            stats.graph.relations.values().map(|id| (*id, 0)).collect();
        facts.extend(stats.total.relations);
        let lines = facts.into_iter();
        Ok(lines
            .map(|(id, facts)| RelationOut { relation: namer.relation(id), id, facts })
            .collect())
    }

    /// Sizes and state of a graph.
    pub async fn stats(&self, graph: &str, options: &CallOptions) -> Result<StatsReply, Problem> {
        repeat_when_moved!(self, graph, options, call, self.stats_once(&call))
    }

    async fn get_once(&self, call: &Call, request: &GetRequest) -> Result<GetReply, Failure> {
        if request.keys.is_empty() || request.keys.len() > limits::KEYS_MAX {
            let detail =
                format!("must be 1 to {} keys, not {}", limits::KEYS_MAX, request.keys.len());
            return Err(invalid("/keys", detail).into());
        }
        let bytes = request.keys.len() * KEY_BYTES;
        let keys = in_place(bytes, || -> Result<Vec<_>, Problem> {
            let keys = request.keys.iter().enumerate();
            keys.map(|(i, key)| names::fact_key(&call.graph, key, || format!("/keys/{i}")))
                .collect()
        })?;
        let with = With { payload: request.with.payload, vector: request.with.vector };
        let keyed = keys.iter().flatten().copied();
        let Fetched { rows, seen, mut held, .. } = self.fetch(call, keyed, with, None).await?;
        let consistency_token = self.token(call, seen);
        let mut reply = GetReply { consistency_token, ..GetReply::default() };
        let bytes = in_place(bytes, || {
            let namer = Namer::new(&call.graph);
            for (given, key) in request.keys.iter().zip(&keys) {
                let row = key.and_then(|key| rows.get(&key));
                let fact = row.and_then(|row| namer.fact(row, request.with, &call.graph));
                match fact {
                    Some(fact) => reply.facts.push(FactOut { key: given.clone(), ..fact }),
                    None => reply.not_found.push(given.clone()),
                }
            }
            drop(rows);
            reply.text_bytes()
        });
        self.in_time(call)?;
        ReplySize::default().add(bytes, FEWER_KEYS)?;
        held.fit(bytes)?;
        reply.held = Some(Arc::new(held));
        Ok(reply)
    }

    /// Rows by key from the owners, side by side, and what they hold; keys without a live fact are
    /// left out. Once the rows are more than a reply may hold, or there is no memory for them, or
    /// the time is up, the owners that have not answered are given up.
    pub(super) async fn fetch(
        &self,
        call: &Call,
        keys: impl Iterator<Item = FactKey>,
        with: With,
        query: Option<Arc<[f32]>>,
    ) -> Result<Fetched, Failure> {
        let mut parts: BTreeMap<ShardId, Vec<FactKey>> = BTreeMap::new();
        in_place(keys.size_hint().1.unwrap_or(0) * KEY_BYTES, || {
            for key in keys {
                parts.entry(owner_of(&call.graph, key.entity).id).or_default().push(key);
            }
            for keys in parts.values_mut() {
                keys.sort_unstable();
                keys.dedup();
            }
        });
        let asks = parts.into_iter().map(|(shard, keys)| {
            let query = query.clone();
            async move {
                let ask = |at| {
                    let request = FetchRequest { keys: keys.clone(), with, query: query.clone() };
                    self.parts.shards.fetch(at, request)
                };
                let asked = self.now();
                let turn = self.turn(call, rows_bytes(keys.len())).await?;
                let reply = self.read(call, shard, ask).await?;
                Ok::<_, Failure>((shard, keys, reply, turn, self.now().saturating_sub(asked)))
            }
        });
        let mut replies: FuturesUnordered<_> = asks.collect();
        let (mut rows, mut seen, mut size) = (HashMap::new(), Vec::new(), ReplySize::default());
        let mut lines = Vec::new();
        let mut held = self.parts.replies.hold();
        while let Some(reply) = replies.next().await {
            self.in_time(call)?;
            let (shard, keys, reply, _turn, waited) = reply?;
            seen.push((shard, reply.index));
            lines.push(Line {
                task: Task::Results,
                hop: None,
                shard,
                waited,
                index: reply.index,
                work: reply.work,
                runs: Vec::new(),
                counts: HopCounts::default(),
                hub: None,
                rows: reply.rows.len() as u64,
            });
            in_place(keys.len() * KEY_BYTES, || -> Result<(), Problem> {
                for (key, row) in keys.into_iter().zip(reply.rows) {
                    let Some(row) = row else { continue };
                    let bytes = row_text_bytes(&row);
                    size.add(bytes, FEWER_KEYS)?;
                    held.grow(bytes)?;
                    rows.insert(key, row);
                }
                Ok(())
            })?;
        }
        Ok(Fetched { rows, seen, held, lines })
    }

    /// Waits for a turn to read rows of at most `bytes`.
    async fn turn(&self, call: &Call, bytes: usize) -> Result<Turn, Problem> {
        let turn = self.within(call.deadline, self.parts.reads.take(bytes)).await;
        turn.ok_or_else(too_late)
    }

    async fn scan_once(&self, call: &Call, request: &ScanRequest) -> Result<ScanReply, Failure> {
        let whole = prefix(&call.graph, request.prefix.as_ref())?;
        let filter = optional_filter(call, request.filter.as_ref())?;
        let asked = request.page_size.unwrap_or(limits::PAGE_SIZE_DEFAULT.into());
        let page = check::count_u32(asked, limits::PAGE_SIZE_MAX, "/page_size")?;
        let hash = in_place(call.request_bytes, || scan_hash(request));
        let cluster = self.parts.catalogue.cluster_id();
        let range = match &request.page_token {
            None => Some(whole),
            Some(text) => {
                let last = token::read_page_token(cluster, &call.graph, hash, text)?;
                last.successor().map(|start| KeyRange { start, end: whole.end })
            }
        };
        let with = With { payload: request.with.payload, vector: request.with.vector };
        let (mut rows, mut seen, mut cut) = (Vec::new(), Vec::new(), false);
        let mut held = self.parts.replies.hold();
        for shard in range.iter().flat_map(|range| shards_of(&call.graph, range)) {
            // One more than shown tells whether another page follows.
            let limit = page + 1 - rows.len() as u32;
            if limit == 0 {
                break;
            }
            // What the shards before sent is a page already; whether more follows is not known.
            cut = held.bytes() > limits::PAGE_BYTES_MAX;
            if cut {
                break;
            }
            let ask = |at| {
                let range = range.unwrap_or(whole);
                let request =
                    hopbine_proto::call::ScanRequest { range, filter: filter.clone(), limit, with };
                self.parts.shards.scan(at, request)
            };
            let bytes = rows_bytes(limit as usize).min(limits::PAGE_BYTES_MAX);
            let _turn = self.turn(call, bytes).await?;
            let reply = self.read(call, shard.id, ask).await?;
            seen.push((shard.id, reply.index));
            held.grow(reply.rows.iter().map(row_text_bytes).sum())?;
            rows.extend(reply.rows);
            // The shard ended the page by its bytes.
            cut = reply.more && rows.len() <= page as usize;
            if cut {
                break;
            }
        }
        let more = cut || rows.len() > page as usize;
        rows.truncate(page as usize);
        let last = rows.last().filter(|_| more).map(|row| row.fact.key);
        Ok(ScanReply {
            facts: facts(&call.graph, &rows, request.with)?,
            next_page_token: last.map(|key| token::page_token(cluster, &call.graph, hash, key)),
            consistency_token: self.token(call, seen),
            held: Some(Arc::new(held)),
        })
    }

    async fn count_once(&self, call: &Call, request: &CountRequest) -> Result<CountReply, Failure> {
        let range = prefix(&call.graph, request.prefix.as_ref())?;
        let filter = optional_filter(call, request.filter.as_ref())?;
        let asks = shards_of(&call.graph, &range).map(|shard| {
            let filter = filter.clone();
            async move {
                let ask = |at| self.parts.shards.count(at, range, filter.clone());
                let reply = self.read(call, shard.id, ask).await?;
                Ok::<_, Failure>((shard.id, reply))
            }
        });
        let replies = try_join_all(asks).await?;
        Ok(CountReply {
            count: replies.iter().map(|(_, reply)| reply.count).sum(),
            consistency_token: self.token(call, replies.iter().map(|(id, r)| (*id, r.index))),
        })
    }

    async fn entity_once(&self, call: &Call, entity: &EntityRef) -> Result<EntityReply, Failure> {
        let id = names::entity_id(call.graph.config.ids, entity, || "/entity".into())?;
        let shard = owner_of(&call.graph, id).id;
        let ask = |at| self.parts.shards.entity(at, id);
        let known = self.read(call, shard, ask).await?;
        // Another name with the same hash is another entity.
        let same = match (entity, &known.name) {
            (EntityRef::Name(asked), Some(name)) => asked == name,
            _ => true,
        };
        if known.degrees.is_empty() || !same {
            let detail = match entity {
                EntityRef::Name(name) => format!("no fact begins at entity {name:?}"),
                EntityRef::Number(number) => format!("no fact begins at entity {number}"),
            };
            return Err(Problem::new(Code::FactNotFound, detail).into());
        }
        let with = With { payload: true, vector: false };
        let ask = |at| {
            let range = KeyRange::entity(id);
            let request =
                hopbine_proto::call::ScanRequest { range, filter: None, limit: ENTITY_FACTS, with };
            self.parts.shards.scan(at, request)
        };
        let first = self.read(call, shard, ask).await?;
        let mut held = self.parts.replies.hold();
        held.grow(first.rows.iter().map(row_text_bytes).sum())?;
        let namer = Namer::new(&call.graph);
        let degrees = known.degrees.iter();
        Ok(EntityReply {
            entity: entity.clone(),
            degrees: degrees.map(|(id, count)| (namer.relation(*id), *count)).collect(),
            facts: facts(&call.graph, &first.rows, WithParts::PAYLOAD)?,
            consistency_token: self.token(call, [(shard, known.index), (shard, first.index)]),
            held: Some(Arc::new(held)),
        })
    }

    async fn stats_once(&self, call: &Call) -> Result<StatsReply, Failure> {
        let asks = call.graph.shards.iter().map(|shard| async move {
            let stats = self.read(call, shard.id, |at| self.parts.shards.stats(at)).await?;
            Ok::<_, Failure>((shard.clone(), stats))
        });
        let shards = try_join_all(asks).await?;
        let total = total(shards.iter().map(|(_, stats)| stats));
        Ok(StatsReply { graph: call.graph.clone(), total, shards })
    }
}

pub(super) fn owner_of(graph: &GraphInfo, entity: EntityId) -> &ShardDescriptor {
    &graph.shards[owner(&graph.shards, entity)]
}

/// Shards that own a part of `range`, ascending.
fn shards_of<'a>(
    graph: &'a GraphInfo,
    range: &KeyRange,
) -> impl Iterator<Item = &'a ShardDescriptor> + use<'a> {
    let (start, end) = (range.start.entity, range.end);
    graph.shards.iter().filter(move |shard| {
        let begins_before_end =
            end.is_none_or(|end| FactKey { entity: shard.range.start, ..FactKey::MIN } < end);
        begins_before_end && shard.range.end.is_none_or(|shard_end| start < shard_end)
    })
}

fn prefix(graph: &GraphInfo, given: Option<&PrefixRef>) -> Result<KeyRange, Problem> {
    match given {
        None => Ok(KeyRange::ALL),
        Some(given) => Ok(names::prefix_range(graph, given, "/prefix")?.2),
    }
}

fn optional_filter(
    call: &Call,
    value: Option<&serde_json::Value>,
) -> Result<Option<Arc<hopbine_proto::filter::Filter>>, Problem> {
    let Some(value) = value else { return Ok(None) };
    in_place(call.request_bytes, || filter::filter(&call.graph, value, "/filter"))
}

/// What the pages of one scan have in common.
fn scan_hash(request: &ScanRequest) -> u64 {
    let text = format!("{:?}", (&request.prefix, &request.filter));
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

fn facts(graph: &GraphInfo, rows: &[Row], with: WithParts) -> Result<Vec<FactOut>, Problem> {
    let namer = Namer::new(graph);
    let nameless = || Problem::new(Code::DataDamaged, "a stored fact has lost its names");
    rows.iter().map(|row| namer.fact(row, with, graph).ok_or_else(nameless)).collect()
}

fn total<'a>(shards: impl Iterator<Item = &'a ShardStats>) -> ShardStats {
    let mut total = ShardStats::default();
    let mut relations: BTreeMap<RelationId, u64> = BTreeMap::new();
    for stats in shards {
        total.facts += stats.facts;
        total.vectors += stats.vectors;
        total.dead_rows += stats.dead_rows;
        total.memtable_facts += stats.memtable_facts;
        total.memtable_bytes += stats.memtable_bytes;
        total.disk_bytes += stats.disk_bytes;
        total.frozen_memtables += stats.frozen_memtables;
        total.compaction_due |= stats.compaction_due;
        for (relation, facts) in &stats.relations {
            *relations.entry(*relation).or_default() += facts;
        }
    }
    total.relations = relations.into_iter().collect();
    total
}
