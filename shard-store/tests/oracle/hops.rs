//! One hop by enumeration: every path end of every frontier entity, sorted and cut.

use super::{Model, passes_filter};
use hopbine_proto::call::{HopCounts, HopOutput, HopRequest, Step, TargetReply};
use hopbine_proto::score::{ScoreMode, rank};
use hopbine_proto::{EntityId, Fact, FactKey};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What a hop must say. For pages the counts are those of the whole hop.
#[derive(Debug, PartialEq)]
pub struct Hop {
    pub targets: Vec<TargetReply>,
    pub keys: Vec<FactKey>,
    pub facts: Vec<Step>,
    pub counts: HopCounts,
}

fn way(a: &Step, b: &Step) -> Ordering {
    rank((a.prefix, a.key), (b.prefix, b.key)).then(a.tie.cmp(&b.tie))
}

impl Model {
    pub fn hop(&self, request: &HopRequest) -> Hop {
        let mut counts =
            HopCounts { frontier: request.frontier.len() as u64, ..HopCounts::default() };
        let mut steps = Vec::new();
        for entity in &request.frontier {
            let read = self.read(request, entity.entity, &mut counts);
            for (fact, distance) in self.nearest(request, read, &mut counts) {
                let admissible: Vec<Step> = entity
                    .arrivals
                    .iter()
                    .filter(|from| request.return_to_start || from.start != fact.key.target)
                    .map(|from| Step {
                        key: fact.key,
                        distance,
                        prefix: from.prefix + distance.map_or(0.0, |d| request.weight * d),
                        start: from.start,
                        tie: from.tie,
                    })
                    .collect();
                if admissible.is_empty() {
                    counts.cut_return += 1;
                } else {
                    counts.kept += 1;
                }
                steps.push(admissible);
            }
            if counts.truncated {
                break;
            }
        }
        self.output(request, steps, counts)
    }

    /// Live facts of the entity and of the relations, as far as `limit_rows` goes.
    fn read(&self, request: &HopRequest, entity: EntityId, counts: &mut HopCounts) -> Vec<&Fact> {
        let facts = self.facts.values().map(|(fact, _)| fact);
        let of_entity = facts.filter(|fact| {
            fact.key.entity == entity && request.relations.contains(fact.key.relation)
        });
        let mut read = Vec::new();
        for fact in of_entity {
            if counts.read == request.limit_rows {
                counts.truncated = true;
                break;
            }
            counts.read += 1;
            read.push(fact);
        }
        read
    }

    fn nearest<'m>(
        &self,
        request: &HopRequest,
        read: Vec<&'m Fact>,
        counts: &mut HopCounts,
    ) -> Vec<(&'m Fact, Option<f64>)> {
        let before = read.len();
        let mut kept: Vec<(&Fact, Option<f64>)> = read
            .into_iter()
            .filter(|fact| passes_filter(fact, request.filter.as_deref()))
            .map(|fact| (fact, request.query.as_ref().map(|query| self.distance(query, fact))))
            .collect();
        counts.cut_filter += (before - kept.len()) as u64;
        kept.sort_by(|a, b| rank((a.1.unwrap_or(0.0), a.0.key), (b.1.unwrap_or(0.0), b.0.key)));
        let passed = kept.len();
        kept.truncate(request.limit_per_entity as usize);
        counts.cut_limit_per_entity += (passed - kept.len()) as u64;
        kept
    }

    fn output(&self, request: &HopRequest, steps: Vec<Vec<Step>>, mut counts: HopCounts) -> Hop {
        let best = |ways: &Vec<Step>| ways.iter().min_by(|a, b| way(a, b)).copied();
        let mut facts: Vec<Step> = steps.iter().filter_map(best).collect();
        let mut targets = Vec::new();
        match request.output {
            HopOutput::Targets { beam, starts } => {
                let mut per_target: BTreeMap<EntityId, BTreeMap<EntityId, Step>> = BTreeMap::new();
                for step in steps.into_iter().flatten() {
                    let of_target = per_target.entry(step.key.target).or_default();
                    let known = of_target.entry(step.start).or_insert(step);
                    if way(&step, known).is_lt() {
                        *known = step;
                    }
                }
                targets = per_target
                    .into_iter()
                    .map(|(target, by_start)| {
                        let mut steps: Vec<Step> = by_start.into_values().collect();
                        steps.sort_by(way);
                        steps.truncate(starts as usize);
                        TargetReply { target, steps: steps.into() }
                    })
                    .collect();
                targets.sort_by(|a: &TargetReply, b| {
                    let prefixes = a.steps[0].prefix.total_cmp(&b.steps[0].prefix);
                    prefixes.then(a.target.cmp(&b.target))
                });
                counts.targets = targets.len() as u64;
                targets.truncate(beam as usize);
                counts.cut_beam = counts.targets - targets.len() as u64;
                facts.clear();
            }
            HopOutput::Facts { top_k, score } => {
                let score = |step: &Step| match score {
                    ScoreMode::Path => step.prefix,
                    ScoreMode::Endpoint => step.distance.unwrap_or(0.0),
                };
                facts.sort_by(|a, b| rank((score(a), a.key), (score(b), b.key)));
                facts.truncate(top_k as usize);
            }
            HopOutput::Page { limit, after } | HopOutput::Keys { limit, after } => {
                facts.sort_by_key(|step| step.key);
                facts.retain(|step| after.is_none_or(|after| after < step.key));
                facts.truncate(limit as usize);
            }
        }
        let mut keys = Vec::new();
        if let HopOutput::Keys { .. } = request.output {
            keys = facts.drain(..).map(|step| step.key).collect();
        }
        Hop { targets, facts, keys, counts }
    }
}
