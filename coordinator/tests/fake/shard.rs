//! One shard as an ordered map, every answer by brute force.

use hopbine_proto::call::*;
use hopbine_proto::filter::Filter;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::score::{DISTANCE_WITHOUT_EMBEDDING, ScoreMode};
use hopbine_proto::*;
use std::collections::BTreeMap;

/// Facts, each with the log index that wrote it.
#[derive(Clone, Debug, Default)]
pub struct ShardFacts {
    facts: BTreeMap<FactKey, (Fact, LogIndex)>,
    pub index: LogIndex,
}

/// The exact distance as the design defines it: 16 lanes, reduced pairwise.
pub fn distance(metric: Metric, query: &[f32], fact: &Fact) -> f64 {
    let Some(row) = &fact.embedding else { return DISTANCE_WITHOUT_EMBEDDING };
    let sum = |term: &dyn Fn(usize) -> f64| {
        let mut lanes = [0.0f64; 16];
        for i in 0..row.len() {
            lanes[i % 16] += term(i);
        }
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        lanes[0]
    };
    let (a, b) = (|i: usize| f64::from(query[i]), |i: usize| f64::from(row[i]));
    match metric {
        Metric::L2 => sum(&|i| (a(i) - b(i)) * (a(i) - b(i))),
        Metric::Dot => -sum(&|i| a(i) * b(i)),
        Metric::Cosine => {
            let norms = sum(&|i| a(i) * a(i)).sqrt() * sum(&|i| b(i) * b(i)).sqrt();
            1.0 - sum(&|i| a(i) * b(i)) / norms
        }
    }
}

fn passes(filter: Option<&Filter>, fact: &Fact) -> bool {
    let Some(filter) = filter else { return true };
    let payload = fact.payload.as_ref().map_or(serde_json::Value::Null, |text| {
        serde_json::from_str(text).expect("payloads are JSON")
    });
    filter.matches(fact.key.relation, &payload)
}

fn order(a: f64, b: f64) -> std::cmp::Ordering {
    a.total_cmp(&b)
}

impl ShardFacts {
    /// What lies below `at`, and the rest.
    pub fn cut(mut self, at: EntityId) -> (Self, Self) {
        let above = self.facts.split_off(&FactKey { entity: at, ..FactKey::MIN });
        let index = self.index;
        (self, Self { facts: above, index })
    }

    pub fn apply(&mut self, ops: &[WriteOp]) -> WriteReply {
        self.index.0 += 1;
        let mut reply = WriteReply { index: self.index, ..WriteReply::default() };
        let mut gone = Vec::new();
        for op in ops {
            match op {
                WriteOp::Upsert(fact) => {
                    reply.upserted += 1;
                    let before = self.facts.insert(fact.key, (fact.clone(), self.index));
                    if let Some((_, version)) = before {
                        reply.replaced += 1;
                        reply.replaced_versions.push((fact.key, version));
                    }
                }
                WriteOp::Delete(key) if self.facts.contains_key(key) => gone.push(*key),
                WriteOp::Delete(key) => reply.missing.push(*key),
                WriteOp::DeletePrefix { entity, relation } => {
                    let within = |key: &&FactKey| {
                        key.entity == *entity && relation.is_none_or(|r| r == key.relation)
                    };
                    gone.extend(self.facts.keys().filter(within));
                }
            }
        }
        for key in gone {
            if let Some((_, version)) = self.facts.remove(&key) {
                reply.deleted += 1;
                reply.replaced_versions.push((key, version));
            }
        }
        reply.not_found = reply.missing.len() as u64;
        reply.replaced_versions.sort();
        reply
    }

    pub fn seeds(&self, graph: &GraphInfo, ask: &SeedRequest) -> SeedReply {
        let mut seeds: Vec<Seed> = self
            .facts
            .values()
            .map(|(fact, _)| fact)
            .filter(|fact| fact.embedding.is_some() && ask.relations.contains(fact.key.relation))
            .filter(|fact| passes(ask.filter.as_deref(), fact))
            .map(|fact| {
                let distance = distance(graph.config.vector.metric, &ask.query, fact);
                Seed { distance, key: fact.key }
            })
            .collect();
        seeds.sort_by(|a, b| order(a.distance, b.distance).then(a.key.cmp(&b.key)));
        seeds.truncate(ask.k as usize);
        SeedReply { seeds, index: self.index, ..SeedReply::default() }
    }

    pub fn hop(&self, graph: &GraphInfo, ask: &HopRequest) -> HopReply {
        let mut counts = HopCounts { frontier: ask.frontier.len() as u64, ..Default::default() };
        let mut steps = Vec::new();
        for from in &ask.frontier {
            for (key, distance) in self.edges(graph, ask, from.entity, &mut counts) {
                let admissible =
                    from.arrivals.iter().filter(|a| ask.return_to_start || a.start != key.target);
                let before = steps.len();
                steps.extend(admissible.map(|arrival| Step {
                    key,
                    distance,
                    prefix: distance.map_or(0.0, |d| arrival.prefix + ask.weight * d),
                    start: arrival.start,
                    tie: arrival.tie,
                }));
                if steps.len() == before { counts.cut_return += 1 } else { counts.kept += 1 }
            }
        }
        steps.sort_by(|a, b| {
            order(a.prefix, b.prefix).then(a.key.cmp(&b.key)).then(a.tie.cmp(&b.tie))
        });
        let mut reply = HopReply { index: self.index, ..HopReply::default() };
        match ask.output {
            HopOutput::Targets { beam, starts } => {
                reply.targets = targets(steps, starts as usize);
                counts.targets = reply.targets.len() as u64;
                counts.cut_beam = counts.targets.saturating_sub(beam.into());
                reply.targets.truncate(beam as usize);
            }
            HopOutput::Facts { top_k, score } => {
                reply.facts = best_of_each_fact(steps);
                reply.facts.sort_by(|a, b| {
                    let score = |step: &Step| match score {
                        ScoreMode::Path => step.prefix,
                        ScoreMode::Endpoint => step.distance.expect("a question"),
                    };
                    order(score(a), score(b)).then(a.key.cmp(&b.key))
                });
                reply.facts.truncate(top_k as usize);
            }
            HopOutput::Page { limit, after } => {
                reply.facts = page(steps, limit, after);
            }
            HopOutput::Keys { limit, after } => {
                reply.keys = page(steps, limit, after).iter().map(|step| step.key).collect();
            }
        }
        reply.counts = counts;
        reply
    }

    /// The facts that an entity may be left by, nearest first.
    fn edges(
        &self,
        graph: &GraphInfo,
        ask: &HopRequest,
        entity: EntityId,
        counts: &mut HopCounts,
    ) -> Vec<(FactKey, Option<f64>)> {
        let mut edges = Vec::new();
        for (key, (fact, _)) in &self.facts {
            if key.entity != entity || !ask.relations.contains(key.relation) {
                continue;
            }
            if counts.read == ask.limit_rows {
                counts.truncated = true;
                break;
            }
            counts.read += 1;
            if !passes(ask.filter.as_deref(), fact) {
                counts.cut_filter += 1;
                continue;
            }
            let metric = graph.config.vector.metric;
            edges.push((*key, ask.query.as_ref().map(|query| distance(metric, query, fact))));
        }
        edges.sort_by(|a, b| match (a.1, b.1) {
            (Some(x), Some(y)) => order(x, y).then(a.0.cmp(&b.0)),
            _ => a.0.cmp(&b.0),
        });
        let limit = ask.limit_per_entity as usize;
        counts.cut_limit_per_entity += edges.len().saturating_sub(limit) as u64;
        edges.truncate(limit);
        edges
    }

    pub fn fetch(&self, graph: &GraphInfo, ask: &FetchRequest) -> FetchReply {
        let row = |key: &FactKey| {
            let (fact, version) = self.facts.get(key)?;
            let metric = graph.config.vector.metric;
            let distance = ask.query.as_ref().map(|query| distance(metric, query, fact));
            Some(Row { fact: parts(fact, ask.with), version: *version, distance })
        };
        let rows = ask.keys.iter().map(row).collect();
        FetchReply { rows, work: Work::default(), index: self.index }
    }

    pub fn scan(&self, ask: &ScanRequest) -> ScanReply {
        let mut rows: Vec<Row> = self
            .facts
            .values()
            .filter(|(fact, _)| ask.range.contains(fact.key) && passes(ask.filter.as_deref(), fact))
            .map(|(fact, version)| Row {
                fact: parts(fact, ask.with),
                version: *version,
                distance: None,
            })
            .collect();
        let more = rows.len() > ask.limit as usize;
        rows.truncate(ask.limit as usize);
        ScanReply { rows, more, index: self.index }
    }

    pub fn entity(&self, entity: EntityId) -> EntityReply {
        let mut reply = EntityReply { index: self.index, ..EntityReply::default() };
        let mut degrees: BTreeMap<RelationId, u64> = BTreeMap::new();
        for (key, (fact, _)) in &self.facts {
            if key.entity == entity {
                *degrees.entry(key.relation).or_default() += 1;
                reply.name = fact.names.as_ref().map(|names| names.entity.clone());
            }
        }
        reply.degrees = degrees.into_iter().collect();
        reply
    }

    pub fn stats(&self) -> ShardStats {
        let mut relations: BTreeMap<RelationId, u64> = BTreeMap::new();
        for key in self.facts.keys() {
            *relations.entry(key.relation).or_default() += 1;
        }
        ShardStats {
            facts: self.facts.len() as u64,
            vectors: self.facts.values().filter(|(f, _)| f.embedding.is_some()).count() as u64,
            relations: relations.into_iter().collect(),
            index: self.index,
            ..ShardStats::default()
        }
    }
}

fn parts(fact: &Fact, with: With) -> Fact {
    Fact {
        embedding: fact.embedding.clone().filter(|_| with.vector),
        payload: fact.payload.clone().filter(|_| with.payload),
        ..fact.clone()
    }
}

/// Per target its best step of each start; targets by `(smallest prefix, id)`.
fn targets(ordered: Vec<Step>, starts: usize) -> Vec<TargetReply> {
    let mut found: Vec<TargetReply> = Vec::new();
    for step in ordered {
        let target = step.key.target;
        match found.iter_mut().find(|known| known.target == target) {
            None => found.push(TargetReply { target, steps: vec![step].into() }),
            Some(known) => {
                let new_start = known.steps.iter().all(|other| other.start != step.start);
                if new_start && known.steps.len() < starts {
                    known.steps.push(step);
                }
            }
        }
    }
    found.sort_by(|a, b| order(a.steps[0].prefix, b.steps[0].prefix).then(a.target.cmp(&b.target)));
    found
}

fn page(steps: Vec<Step>, limit: u32, after: Option<FactKey>) -> Vec<Step> {
    let mut facts = best_of_each_fact(steps);
    facts.sort_by_key(|step| step.key);
    facts.retain(|step| after.is_none_or(|after| step.key > after));
    facts.truncate(limit as usize);
    facts
}

fn best_of_each_fact(ordered: Vec<Step>) -> Vec<Step> {
    let mut best: BTreeMap<FactKey, Step> = BTreeMap::new();
    for step in ordered {
        best.entry(step.key).or_insert(step);
    }
    best.into_values().collect()
}
