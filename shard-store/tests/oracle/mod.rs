//! What a shard must answer, from a `BTreeMap` and brute force.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod draw;
pub mod hops;

use hopbine_proto::call::{
    FetchReply, FetchRequest, Relations, Row, ScanReply, ScanRequest, Seed, SeedRequest, WriteOp,
    WriteReply,
};
use hopbine_proto::filter::Filter;
use hopbine_proto::score::{DISTANCE_WITHOUT_EMBEDDING, rank};
use hopbine_proto::{EntityId, Fact, FactKey, KeyRange, LogIndex, Metric, RelationId, name_id};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// All live facts at one log index.
#[derive(Clone)]
pub struct Model {
    pub metric: Metric,
    pub facts: BTreeMap<FactKey, (Fact, LogIndex)>,
    pub index: LogIndex,
}

impl Model {
    pub fn new(metric: Metric) -> Self {
        Self { metric, facts: BTreeMap::new(), index: LogIndex(0) }
    }

    /// Applies a batch; `None` when two names of one id meet.
    pub fn apply(&mut self, index: LogIndex, ops: &[WriteOp]) -> Option<WriteReply> {
        self.index = index;
        if self.names_collide(ops) {
            return None;
        }
        let mut reply = WriteReply { index, ..WriteReply::default() };
        for op in ops {
            match op {
                WriteOp::Upsert(fact) => {
                    reply.upserted += 1;
                    if let Some((_, version)) = self.facts.insert(fact.key, (fact.clone(), index)) {
                        reply.replaced += 1;
                        reply.replaced_versions.push((fact.key, version));
                    }
                }
                WriteOp::Delete(key) => self.delete(*key, &mut reply),
                WriteOp::DeletePrefix { entity, relation } => {
                    let hit = |key: &&FactKey| {
                        key.entity == *entity && relation.is_none_or(|r| key.relation == r)
                    };
                    let keys: Vec<FactKey> = self.facts.keys().filter(hit).copied().collect();
                    keys.into_iter().for_each(|key| self.delete(key, &mut reply));
                }
            }
        }
        reply.replaced_versions.sort();
        Some(reply)
    }

    fn delete(&mut self, key: FactKey, reply: &mut WriteReply) {
        match self.facts.remove(&key) {
            Some((_, version)) => {
                reply.deleted += 1;
                reply.replaced_versions.push((key, version));
            }
            None => {
                reply.not_found += 1;
                reply.missing.push(key);
            }
        }
    }

    /// Whether a batch names an id by another name and the shard cannot see that.
    pub fn would_store_two_names(&self, ops: &[WriteOp]) -> bool {
        let wrong = |op: &WriteOp| match op {
            WriteOp::Upsert(Fact { key, names: Some(names), .. }) => {
                name_id(&names.entity) != key.entity || name_id(&names.target) != key.target
            }
            _ => false,
        };
        ops.iter().any(wrong) && !self.names_collide(ops)
    }

    fn names_collide(&self, ops: &[WriteOp]) -> bool {
        let mut known: BTreeMap<EntityId, BTreeSet<String>> = BTreeMap::new();
        let mut used = BTreeSet::new();
        for op in ops {
            let WriteOp::Upsert(Fact { key, names: Some(names), .. }) = op else { continue };
            known.entry(key.entity).or_default().insert(names.entity.to_string());
            known.entry(key.target).or_default().insert(names.target.to_string());
            used.extend([key.entity, key.target]);
        }
        for (fact, _) in self.facts.values().filter(|(fact, _)| used.contains(&fact.key.entity)) {
            let Some(names) = &fact.names else { continue };
            known.entry(fact.key.entity).or_default().insert(names.entity.to_string());
        }
        known.values().any(|names| names.len() > 1)
    }

    pub fn distance(&self, query: &[f32], fact: &Fact) -> f64 {
        match &fact.embedding {
            Some(vector) => {
                let query = ExactQuery::new(query);
                query.distance(Kernels::chosen(), self.metric, vector, norm(vector))
            }
            None => DISTANCE_WITHOUT_EMBEDDING,
        }
    }

    pub fn passes(fact: &Fact, relations: &Relations, filter: Option<&Filter>) -> bool {
        relations.contains(fact.key.relation) && passes_filter(fact, filter)
    }

    pub fn seeds(&self, request: &SeedRequest) -> Vec<Seed> {
        let mut seeds: Vec<Seed> = self
            .facts
            .values()
            .map(|(fact, _)| fact)
            .filter(|fact| fact.embedding.is_some())
            .filter(|fact| Self::passes(fact, &request.relations, request.filter.as_deref()))
            .map(|fact| Seed { distance: self.distance(&request.query, fact), key: fact.key })
            .collect();
        seeds.sort_by(|a, b| rank((a.distance, a.key), (b.distance, b.key)));
        seeds.truncate(request.k as usize);
        seeds
    }

    fn row(&self, fact: &Fact, version: LogIndex, with: hopbine_proto::call::With) -> Row {
        let mut fact = fact.clone();
        fact.embedding = fact.embedding.filter(|_| with.vector);
        fact.payload = fact.payload.filter(|_| with.payload);
        Row { fact, version, distance: None }
    }

    pub fn fetch(&self, request: &FetchRequest) -> FetchReply {
        let row = |key: &FactKey| {
            let (fact, version) = self.facts.get(key)?;
            let distance = request.query.as_ref().map(|query| self.distance(query, fact));
            Some(Row { distance, ..self.row(fact, *version, request.with) })
        };
        let rows = request.keys.iter().map(row).collect();
        FetchReply { rows, index: self.index, ..FetchReply::default() }
    }

    pub fn scan(&self, request: &ScanRequest) -> ScanReply {
        let hit = |(key, (fact, _)): &(&FactKey, &(Fact, LogIndex))| {
            request.range.contains(**key) && passes_filter(fact, request.filter.as_deref())
        };
        let all: Vec<_> = self.facts.iter().filter(hit).collect();
        let page = all.iter().take(request.limit as usize);
        let rows = page.map(|(_, (fact, version))| self.row(fact, *version, request.with));
        let more = all.len() > request.limit as usize;
        ScanReply { rows: rows.collect(), more, index: self.index }
    }

    pub fn count(&self, range: &KeyRange, filter: Option<&Filter>) -> u64 {
        let facts = self.facts.values().map(|(fact, _)| fact);
        facts.filter(|fact| range.contains(fact.key) && passes_filter(fact, filter)).count() as u64
    }

    pub fn degrees(&self, entity: EntityId) -> Vec<(RelationId, u64)> {
        let mut degrees = BTreeMap::new();
        for key in self.facts.keys().filter(|key| key.entity == entity) {
            *degrees.entry(key.relation).or_default() += 1;
        }
        degrees.into_iter().collect()
    }
}

pub fn passes_filter(fact: &Fact, filter: Option<&Filter>) -> bool {
    let payload = fact.payload.as_ref();
    let payload = payload.map_or(Value::Null, |text| serde_json::from_str(text).expect("JSON"));
    filter.is_none_or(|filter| filter.matches(fact.key.relation, &payload))
}
