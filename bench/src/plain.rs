//! The plain evaluator: facts in an ordered map, every answer by sorting and brute force.
//!
//! This is the reference that every faster path must equal, and the model of the chaos suite. It
//! is written for obviousness and shares nothing with the coordinator or the store except the
//! words of `proto` and the one exact distance: every arrival carries its whole path, and paths
//! are compared fact by fact.

use hopbine_proto::call::{Relations, Seed, WriteOp};
use hopbine_proto::filter::Filter;
use hopbine_proto::score::{DISTANCE_WITHOUT_EMBEDDING, ScoreMode};
use hopbine_proto::{EntityId, Fact, FactKey, KeyRange, Metric};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A graph's facts.
#[derive(Clone, Debug)]
pub struct Plain {
    metric: Metric,
    facts: BTreeMap<FactKey, Fact>,
}

/// One retrieval, as `graph_rag` and `expand` mean it. `limit_rows` is left out: an answer that it
/// cuts is outside every promise.
#[derive(Clone, Debug)]
pub struct Question {
    /// The vector, or `None` for plain expansion.
    pub query: Option<Arc<[f32]>>,
    /// Where paths start.
    pub starts: Starts,
    /// Which relations each hop may use, and the factor of its distance. Empty: the seeds.
    pub hops: Vec<(Relations, f64)>,
    /// Only facts that pass, as seeds and at every hop.
    pub filter: Option<Filter>,
    /// Of one entity's matching facts keep the nearest.
    pub limit_per_entity: usize,
    /// Distinct targets kept as the next frontier.
    pub beam: usize,
    /// Whether a path may end a hop where it began.
    pub return_to_start: bool,
    /// What a result's score is.
    pub score: ScoreMode,
    /// Results at most.
    pub top_k: usize,
    /// Only facts after this key: the next page of an expansion without a query.
    pub after: Option<FactKey>,
}

/// Where paths start.
#[derive(Clone, Debug)]
pub enum Starts {
    /// At the nearest facts.
    Nearest {
        /// Facts kept.
        ann_k: usize,
        /// Only facts of these relations.
        relations: Relations,
        /// Which column of them starts.
        column: Column,
        /// A start's prefix is this times its smallest seed distance.
        weight: f64,
    },
    /// At these facts, best first.
    Seeds {
        /// The facts.
        seeds: Vec<Seed>,
        /// Which column of them starts.
        column: Column,
        /// A start's prefix is this times its smallest seed distance.
        weight: f64,
    },
    /// At these entities, each with prefix 0.
    Entities(Vec<EntityId>),
}

/// A column of a seed fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The subject.
    Entity,
    /// The object.
    Target,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The last fact.
    pub key: FactKey,
    /// `None` without a query.
    pub score: Option<f64>,
    /// Facts from hop 1 on, each with its own distance; empty for a seed.
    pub path: Vec<(FactKey, Option<f64>)>,
}

/// What a batch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Facts written.
    pub upserted: u64,
    /// Of these, facts that were there before.
    pub replaced: u64,
    /// Facts removed.
    pub deleted: u64,
    /// Keys to delete that were not there.
    pub not_found: u64,
}

/// One way to an entity.
#[derive(Clone, Debug)]
struct Arrival {
    start: EntityId,
    prefix: f64,
    path: Vec<(FactKey, Option<f64>)>,
    /// Place of the way without the last fact among those to that fact's entity.
    rank: usize,
}

impl Arrival {
    /// Smaller prefix first; between equal ones the smaller last fact; then whichever came first
    /// before that fact.
    fn order(&self, other: &Self) -> Ordering {
        let last = |arrival: &Self| arrival.path.last().map(|(key, _)| *key);
        let prefixes = self.prefix.total_cmp(&other.prefix);
        prefixes.then_with(|| (last(self), self.rank).cmp(&(last(other), other.rank)))
    }
}

impl Plain {
    /// An empty graph.
    pub fn new(metric: Metric) -> Self {
        Self { metric, facts: BTreeMap::new() }
    }

    /// Applies a batch in order.
    pub fn write(&mut self, ops: &[WriteOp]) -> Written {
        let mut written = Written::default();
        for op in ops {
            match op {
                WriteOp::Upsert(fact) => {
                    written.upserted += 1;
                    let before = self.facts.insert(fact.key, fact.clone());
                    written.replaced += u64::from(before.is_some());
                }
                WriteOp::Delete(key) => match self.facts.remove(key) {
                    Some(_) => written.deleted += 1,
                    None => written.not_found += 1,
                },
                WriteOp::DeletePrefix { entity, relation } => {
                    let before = self.facts.len();
                    self.facts.retain(|key, _| {
                        key.entity != *entity || relation.is_some_and(|r| r != key.relation)
                    });
                    written.deleted += (before - self.facts.len()) as u64;
                }
            }
        }
        written
    }

    /// All facts in key order.
    pub fn facts(&self) -> impl Iterator<Item = &Fact> {
        self.facts.values()
    }

    /// One fact.
    pub fn get(&self, key: FactKey) -> Option<&Fact> {
        self.facts.get(&key)
    }

    /// Facts of a range that pass, in key order.
    pub fn scan<'a>(
        &'a self,
        range: KeyRange,
        filter: Option<&'a Filter>,
    ) -> impl Iterator<Item = &'a Fact> {
        let within = self.facts.values().filter(move |fact| range.contains(fact.key));
        within.filter(move |fact| passes(filter, fact))
    }

    /// The exact distance of a fact.
    pub fn distance(&self, query: &[f32], fact: &Fact) -> f64 {
        match &fact.embedding {
            None => DISTANCE_WITHOUT_EMBEDDING,
            Some(row) => {
                let kernels = Kernels::chosen();
                ExactQuery::new(query).distance(kernels, self.metric, row, norm(row))
            }
        }
    }

    /// The `k` facts nearest to `query` by `(distance, key)`.
    pub fn nearest(
        &self,
        query: &[f32],
        k: usize,
        relations: &Relations,
        filter: Option<&Filter>,
    ) -> Vec<Seed> {
        let mut seeds = Vec::new();
        for fact in self.facts.values() {
            let wanted = relations.contains(fact.key.relation) && passes(filter, fact);
            if wanted && fact.embedding.is_some() {
                seeds.push(Seed { distance: self.distance(query, fact), key: fact.key });
            }
        }
        seeds.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.key.cmp(&b.key)));
        seeds.truncate(k);
        seeds
    }

    /// The answer to a question.
    pub fn answer(&self, question: &Question) -> Vec<Found> {
        if question.hops.is_empty() {
            let seeds = self.seeds(question).into_iter().take(question.top_k);
            let found =
                |seed: Seed| Found { key: seed.key, score: Some(seed.distance), path: Vec::new() };
            return seeds.map(found).collect();
        }
        let mut frontier = self.starts(question);
        let (last, middle) = question.hops.split_last().expect("there is a hop");
        for (number, hop) in middle.iter().enumerate() {
            let hops_left = question.hops.len() - number - 1;
            let starts = if question.return_to_start { 1 } else { hops_left + 1 };
            frontier = next_frontier(self.walk(question, hop, &frontier), starts, question.beam);
        }
        results(question, self.walk(question, last, &frontier))
    }

    fn seeds(&self, question: &Question) -> Vec<Seed> {
        match &question.starts {
            Starts::Nearest { ann_k, relations, .. } => {
                let query = question.query.as_ref().expect("seeds need a query");
                self.nearest(query, *ann_k, relations, question.filter.as_ref())
            }
            Starts::Seeds { seeds, .. } => seeds.clone(),
            Starts::Entities(_) => Vec::new(),
        }
    }

    fn starts(&self, question: &Question) -> BTreeMap<EntityId, Vec<Arrival>> {
        let arrival = |start, prefix| vec![Arrival { start, prefix, path: Vec::new(), rank: 0 }];
        let (column, weight) = match &question.starts {
            Starts::Nearest { column, weight, .. } | Starts::Seeds { column, weight, .. } => {
                (*column, *weight)
            }
            Starts::Entities(entities) => {
                return entities.iter().map(|entity| (*entity, arrival(*entity, 0.0))).collect();
            }
        };
        let mut starts = BTreeMap::new();
        for seed in self.seeds(question) {
            let start = match column {
                Column::Entity => seed.key.entity,
                Column::Target => seed.key.target,
            };
            // The nearest seed of a start comes first.
            starts.entry(start).or_insert_with(|| arrival(start, weight * seed.distance + 0.0));
        }
        starts
    }

    /// Every admissible way over one more fact.
    fn walk(
        &self,
        question: &Question,
        (relations, weight): &(Relations, f64),
        frontier: &BTreeMap<EntityId, Vec<Arrival>>,
    ) -> Vec<Arrival> {
        let mut walked = Vec::new();
        for (entity, arrivals) in frontier {
            for (key, distance) in self.edges(question, *entity, relations) {
                for (rank, arrival) in arrivals.iter().enumerate() {
                    if key.target == arrival.start && !question.return_to_start {
                        continue;
                    }
                    let mut next = arrival.clone();
                    next.path.push((key, distance));
                    next.rank = rank;
                    if let Some(distance) = distance {
                        next.prefix = arrival.prefix + weight * distance;
                    }
                    walked.push(next);
                }
            }
        }
        walked
    }

    /// The facts that an entity may be left by.
    fn edges(
        &self,
        question: &Question,
        entity: EntityId,
        relations: &Relations,
    ) -> Vec<(FactKey, Option<f64>)> {
        let mut edges: Vec<(FactKey, Option<f64>)> = Vec::new();
        for fact in self.scan(KeyRange::entity(entity), question.filter.as_ref()) {
            if relations.contains(fact.key.relation) {
                let distance = question.query.as_ref().map(|query| self.distance(query, fact));
                edges.push((fact.key, distance));
            }
        }
        edges.sort_by(|a, b| {
            let distances = a.1.unwrap_or(0.0).total_cmp(&b.1.unwrap_or(0.0));
            distances.then(a.0.cmp(&b.0))
        });
        edges.truncate(question.limit_per_entity);
        edges
    }
}

fn passes(filter: Option<&Filter>, fact: &Fact) -> bool {
    let Some(filter) = filter else { return true };
    let payload = match &fact.payload {
        None => Value::Null,
        Some(text) => serde_json::from_str(text).expect("payloads were checked to be JSON"),
    };
    filter.matches(fact.key.relation, &payload)
}

/// The best `beam` targets, each with the best way of each of its best `starts`.
fn next_frontier(
    walked: Vec<Arrival>,
    starts: usize,
    beam: usize,
) -> BTreeMap<EntityId, Vec<Arrival>> {
    let mut by_target: BTreeMap<EntityId, Vec<Arrival>> = BTreeMap::new();
    for arrival in walked {
        let (last, _) = arrival.path.last().expect("a walked way has a fact");
        by_target.entry(last.target).or_default().push(arrival);
    }
    for arrivals in by_target.values_mut() {
        arrivals.sort_by(Arrival::order);
        let mut seen = Vec::new();
        arrivals.retain(|arrival| {
            let new = !seen.contains(&arrival.start);
            seen.push(arrival.start);
            new
        });
        arrivals.truncate(starts);
    }
    let mut ranked: Vec<(EntityId, Vec<Arrival>)> = by_target.into_iter().collect();
    ranked.sort_by(|a, b| a.1[0].prefix.total_cmp(&b.1[0].prefix).then(a.0.cmp(&b.0)));
    ranked.truncate(beam);
    ranked.into_iter().collect()
}

/// Distinct last facts, each with its best way.
fn results(question: &Question, mut walked: Vec<Arrival>) -> Vec<Found> {
    walked.sort_by(Arrival::order);
    let mut best: BTreeMap<FactKey, Found> = BTreeMap::new();
    for arrival in walked {
        let (key, distance) = *arrival.path.last().expect("a walked way has a fact");
        let score = match question.score {
            ScoreMode::Path => distance.map(|_| arrival.prefix),
            ScoreMode::Endpoint => distance,
        };
        best.entry(key).or_insert(Found { key, score, path: arrival.path });
    }
    let mut found: Vec<Found> = best.into_values().collect();
    match question.query {
        Some(_) => found.sort_by(|a, b| {
            let scores = a.score.unwrap_or(0.0).total_cmp(&b.score.unwrap_or(0.0));
            scores.then(a.key.cmp(&b.key))
        }),
        None => found.retain(|found| question.after.is_none_or(|after| found.key > after)),
    }
    found.truncate(question.top_k);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(entity: u64, relation: u32, target: u64, embedding: Option<[f32; 2]>) -> WriteOp {
        WriteOp::Upsert(Fact {
            key: FactKey::new(entity, relation, target),
            names: None,
            embedding: embedding.map(|e| e.as_slice().into()),
            payload: None,
        })
    }

    fn question(start: u64, hops: usize) -> Question {
        Question {
            query: Some([1.0, 0.0].as_slice().into()),
            starts: Starts::Entities(vec![EntityId(start)]),
            hops: vec![(Relations::Any, 1.0); hops],
            filter: None,
            limit_per_entity: 100,
            beam: 100,
            return_to_start: false,
            score: ScoreMode::Path,
            top_k: 10,
            after: None,
        }
    }

    fn keys(found: &[Found]) -> Vec<FactKey> {
        found.iter().map(|found| found.key).collect()
    }

    #[test]
    fn a_path_does_not_return_to_its_start_unless_it_may() {
        let mut plain = Plain::new(Metric::Cosine);
        plain.write(&[
            fact(1, 1, 2, Some([1.0, 0.0])),
            fact(2, 1, 1, Some([1.0, 0.0])),
            fact(2, 1, 3, Some([0.0, 1.0])),
        ]);
        let mut question = question(1, 2);
        assert_eq!(keys(&plain.answer(&question)), [FactKey::new(2, 1, 3)]);
        question.return_to_start = true;
        let found = plain.answer(&question);
        assert_eq!(keys(&found), [FactKey::new(2, 1, 1), FactKey::new(2, 1, 3)]);
        assert_eq!(found[1].score, Some(1.0));
        assert_eq!(found[1].path[0].0, FactKey::new(1, 1, 2));
    }

    #[test]
    fn the_best_of_two_ways_wins_and_a_tie_goes_to_the_smaller_facts() {
        let mut plain = Plain::new(Metric::Cosine);
        let (near, far) = (Some([1.0, 0.0]), None);
        plain.write(&[
            fact(1, 1, 2, far),
            fact(1, 1, 3, near),
            fact(2, 1, 4, near),
            fact(3, 1, 4, near),
            fact(4, 1, 5, near),
            fact(1, 2, 2, near),
        ]);
        let found = plain.answer(&question(1, 3));
        assert_eq!(keys(&found), [FactKey::new(4, 1, 5)]);
        // Over 2 and over 3 are equally near; entity 2 is smaller, reached by relation 2.
        let path: Vec<FactKey> = found[0].path.iter().map(|(key, _)| *key).collect();
        assert_eq!(path, [FactKey::new(1, 2, 2), FactKey::new(2, 1, 4), FactKey::new(4, 1, 5)]);
    }

    #[test]
    fn writes_are_counted() {
        let mut plain = Plain::new(Metric::L2);
        let written = plain.write(&[fact(1, 1, 1, Some([0.0, 1.0])), fact(1, 2, 1, None)]);
        assert_eq!(written, Written { upserted: 2, ..Written::default() });
        let written = plain.write(&[
            fact(1, 1, 1, Some([1.0, 1.0])),
            WriteOp::Delete(FactKey::MAX),
            WriteOp::DeletePrefix {
                entity: EntityId(1),
                relation: Some(hopbine_proto::RelationId(2)),
            },
        ]);
        assert_eq!(written, Written { upserted: 1, replaced: 1, deleted: 1, not_found: 1 });
        assert_eq!(plain.facts().count(), 1);
        assert!(plain.get(FactKey::new(1, 1, 1)).is_some());
    }
}
