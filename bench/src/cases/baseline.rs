//! A case on the ordered map.

use super::{Case, Cut, Form, From, Outcome};
use crate::heap::{Heap, Scored};
use crate::target::{AnswerRow, Stage};
use crate::workload::{Point, Query, SeedOn};
use hopbine_proto::call::{Relations, Work};
use hopbine_proto::{EntityId, FactKey};
use hopbine_shard_store::kernel::ExactQuery;
use std::collections::HashSet;
use std::time::Instant;

/// The ordered map with what a workload says of its questions.
pub struct Baseline {
    heap: Heap,
    seed_on: SeedOn,
}

/// Distinct ids of seed facts, in order of first appearance.
pub fn starts(seeds: &[FactKey], seed_on: SeedOn) -> Vec<EntityId> {
    let mut seen = HashSet::new();
    let id = |key: &FactKey| match seed_on {
        SeedOn::Entity => key.entity,
        SeedOn::Target => key.target,
    };
    seeds.iter().map(id).filter(|id| seen.insert(*id)).collect()
}

impl Baseline {
    /// Answers from `heap`.
    pub fn new(heap: Heap, seed_on: SeedOn) -> Self {
        Self { heap, seed_on }
    }

    /// The ordered map itself.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Where the hops begin after these seeds.
    pub fn starts(&self, seeds: &[FactKey]) -> Vec<EntityId> {
        starts(seeds, self.seed_on)
    }

    /// The exact seeds of a question.
    pub fn seeds(&self, query: &Query, k: u32) -> Vec<FactKey> {
        let exact = ExactQuery::new(&query.vector);
        let seeds = self.heap.seeds(&exact, k as usize, &Relations::Any);
        seeds.into_iter().map(|seed| seed.key).collect()
    }

    /// What `case` must answer when its hops begin at `seeds`.
    pub fn expected(
        &self,
        case: &Case,
        query: &Query,
        point: &Point,
        seeds: &[FactKey],
    ) -> Vec<AnswerRow> {
        let from = match case.from {
            From::Entity => vec![query.entity],
            _ => self.starts(seeds),
        };
        let hops = case.relations(&query.hops);
        let Some(score) = case.score else {
            let keys = match case.form {
                Form::Join => self.join(&from, &hops),
                _ => self.heap.expand_all(&from, &hops),
            };
            return keys.into_iter().map(|key| row(key, None)).collect();
        };
        let exact = ExactQuery::new(&query.vector);
        let mut ranked = self.heap.rank(&from, &hops, &exact, score);
        if case.cut == Cut::TopK {
            ranked.truncate(point.top_k as usize);
        }
        ranked.into_iter().map(|Scored { score, key }| row(key, Some(score))).collect()
    }

    /// The hops entity by entity.
    fn join(&self, from: &[EntityId], hops: &[Relations]) -> Vec<FactKey> {
        let mut frontier = from.to_vec();
        let mut found = Vec::new();
        for hop in hops {
            found = frontier.iter().flat_map(|id| self.heap.expand(&[*id], hop)).collect();
            frontier = crate::heap::targets(&found);
        }
        found.sort_unstable();
        found
    }

    /// Runs `case`, searching seeds by brute force unless they are given.
    pub fn run(&self, case: &Case, query: &Query, point: &Point, given: &[FactKey]) -> Outcome {
        let started = Instant::now();
        let seeds = match case.from {
            From::Entity => Vec::new(),
            From::GivenSeeds => given.to_vec(),
            From::Seeds | From::ExactSeeds => self.seeds(query, point.ann_k),
        };
        let ann_ms = started.elapsed().as_secs_f64() * 1e3;
        let rows = self.expected(case, query, point, &seeds);
        let rest_ms = started.elapsed().as_secs_f64() * 1e3 - ann_ms;
        let rest = Stage::named("expand and rerank");
        let stages = vec![(Stage::named("ann"), ann_ms), (rest, rest_ms)];
        Outcome { rows, stages, work: Work::default() }
    }
}

fn row(key: FactKey, score: Option<f64>) -> AnswerRow {
    AnswerRow { key, score, vector: None, payload: None, path: Vec::new() }
}
