//! What one hop makes of the facts it reads: per entity the nearest, per target the best ways in,
//! or the best facts of all. Pure: facts come in by key order, distances are already computed.

use crate::smallest::Smallest;
use hopbine_proto::call::{
    Arrival, FrontierEntity, HopCounts, HopOutput, HopRequest, Hub, Step, TargetReply,
};
use hopbine_proto::score::{ScoreMode, rank};
use hopbine_proto::{EntityId, FactKey};
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// Most facts that a page makes room for before it has any.
const RESERVE_MAX: u64 = 1024;
/// Steps held before they are reduced to the best per target for the first time.
const REDUCE_AT_LEAST: usize = 1 << 15;

/// A fact that passed relation and filter.
#[derive(Clone, Copy)]
struct Candidate {
    key: FactKey,
    distance: Option<f64>,
}

fn nearest_first(a: &Candidate, b: &Candidate) -> Ordering {
    rank((a.distance.unwrap_or(0.0), a.key), (b.distance.unwrap_or(0.0), b.key))
}

/// Facts of one entity, while they come in.
enum Entity {
    /// No limit can bind: facts go straight on.
    Unlimited,
    /// Without a query the first ones by key count; so many may still come.
    First(u64),
    /// The nearest so far.
    Nearest(Smallest<Candidate>),
}

enum Kept {
    Targets(TargetSteps),
    Facts(Smallest<Step>),
    Page { facts: Vec<Step>, limit: usize, after: Option<FactKey> },
    Keys { keys: Vec<FactKey>, limit: usize, after: Option<FactKey> },
}

/// What a hop leads to, in the order of its output.
#[derive(Default)]
pub(crate) struct Found {
    pub targets: Vec<TargetReply>,
    pub facts: Vec<Step>,
    pub keys: Vec<FactKey>,
    pub counts: HopCounts,
    pub hub: Option<Hub>,
}

/// Collects the facts of one hop. Call `begin`, `fact` for each of the entity's facts in key
/// order, `end`, for each frontier entity in order; then `finish`.
pub(crate) struct HopCollector<'r> {
    request: &'r HopRequest,
    arrivals: &'r [Arrival],
    id: EntityId,
    entity: Entity,
    /// Facts that the limit had cut before this entity.
    cut_before: u64,
    hub: Option<Hub>,
    kept: Kept,
    /// Counts so far; the reader of the facts adds what it alone knows.
    pub counts: HopCounts,
}

impl<'r> HopCollector<'r> {
    /// A collector without facts, of a hop that has at most `facts_max`.
    pub fn new(request: &'r HopRequest, facts_max: u64) -> Self {
        let room = |limit: u32| facts_max.min(limit.into()).min(RESERVE_MAX) as usize;
        let kept = match request.output {
            HopOutput::Targets { starts, .. } => Kept::Targets(TargetSteps::new(starts as usize)),
            HopOutput::Facts { top_k, score } => {
                let order = match score {
                    ScoreMode::Path => by_prefix,
                    ScoreMode::Endpoint => by_distance,
                };
                Kept::Facts(Smallest::new(top_k as usize, order))
            }
            HopOutput::Page { limit, after } => {
                let facts = Vec::with_capacity(room(limit));
                Kept::Page { facts, limit: limit as usize, after }
            }
            HopOutput::Keys { limit, after } => {
                let keys = Vec::with_capacity(room(limit));
                Kept::Keys { keys, limit: limit as usize, after }
            }
        };
        let counts = HopCounts { frontier: request.frontier.len() as u64, ..HopCounts::default() };
        let (id, entity) = (EntityId(0), Entity::Unlimited);
        Self { request, arrivals: &[], id, entity, cut_before: 0, hub: None, kept, counts }
    }

    /// Starts an entity that has at most `facts_max` facts.
    pub fn begin(&mut self, entity: &'r FrontierEntity, facts_max: u64) {
        self.arrivals = &entity.arrivals;
        (self.id, self.cut_before) = (entity.entity, self.counts.cut_limit_per_entity);
        let limit = u64::from(self.request.limit_per_entity);
        self.entity = if facts_max <= limit {
            Entity::Unlimited
        } else if self.request.query.is_none() {
            Entity::First(limit)
        } else {
            Entity::Nearest(Smallest::new(limit as usize, nearest_first))
        };
    }

    /// A fact that passed relation and filter. `Break`: no further fact can matter.
    pub fn fact(&mut self, key: FactKey, distance: Option<f64>) -> ControlFlow<()> {
        let candidate = Candidate { key, distance };
        match &mut self.entity {
            Entity::Unlimited => self.keep(candidate),
            Entity::First(0) => {
                self.counts.cut_limit_per_entity += 1;
                ControlFlow::Continue(())
            }
            Entity::First(left) => {
                *left -= 1;
                self.keep(candidate)
            }
            Entity::Nearest(nearest) => {
                nearest.push(candidate);
                ControlFlow::Continue(())
            }
        }
    }

    /// Ends the entity.
    pub fn end(&mut self) -> ControlFlow<()> {
        let entity = std::mem::replace(&mut self.entity, Entity::Unlimited);
        let Entity::Nearest(nearest) = entity else {
            self.note_hub();
            return ControlFlow::Continue(());
        };
        let pushed = nearest.pushed();
        let mut candidates = nearest.into_sorted();
        self.counts.cut_limit_per_entity += pushed - candidates.len() as u64;
        self.note_hub();
        candidates.sort_unstable_by_key(|candidate| candidate.key);
        candidates.into_iter().try_for_each(|candidate| self.keep(candidate))
    }

    /// Remembers the entity if it is the largest that its limit has cut.
    fn note_hub(&mut self) {
        let cut = self.counts.cut_limit_per_entity - self.cut_before;
        let facts = u64::from(self.request.limit_per_entity) + cut;
        if cut > 0 && self.hub.is_none_or(|hub| hub.facts < facts) {
            self.hub = Some(Hub { entity: self.id, facts });
        }
    }

    /// The start test and what comes after it.
    fn keep(&mut self, candidate: Candidate) -> ControlFlow<()> {
        let Candidate { key, distance } = candidate;
        let request = self.request;
        let step = |arrival: &Arrival| {
            let prefix = match distance {
                Some(distance) => arrival.prefix + request.weight * distance,
                None => arrival.prefix,
            };
            Step { key, distance, prefix, start: arrival.start, tie: arrival.tie }
        };
        let admissible =
            |arrival: &&Arrival| request.return_to_start || arrival.start != key.target;
        if let Kept::Targets(targets) = &mut self.kept {
            let before = targets.steps.len();
            targets.steps.extend(self.arrivals.iter().filter(admissible).map(step));
            if targets.steps.len() == before {
                self.counts.cut_return += 1;
            } else {
                self.counts.kept += 1;
                targets.bound();
            }
            return ControlFlow::Continue(());
        }
        if let Kept::Keys { keys, limit, after } = &mut self.kept {
            if !self.arrivals.iter().any(|arrival| admissible(&arrival)) {
                self.counts.cut_return += 1;
                return ControlFlow::Continue(());
            }
            self.counts.kept += 1;
            if after.is_none_or(|after| after < key) && keys.len() < *limit {
                keys.push(key);
            }
            let full = keys.len() >= *limit;
            return if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        }
        // Most entities were arrived at once: there is nothing to choose from then.
        let best = match self.arrivals {
            [only] => admissible(&only).then(|| step(only)),
            arrivals => arrivals.iter().filter(admissible).map(step).min_by(way_order),
        };
        let Some(best) = best else {
            self.counts.cut_return += 1;
            return ControlFlow::Continue(());
        };
        self.counts.kept += 1;
        match &mut self.kept {
            Kept::Facts(facts) => facts.push(best),
            Kept::Page { facts, limit, after } => {
                if after.is_none_or(|after| after < key) && facts.len() < *limit {
                    facts.push(best);
                }
                if facts.len() >= *limit {
                    return ControlFlow::Break(());
                }
            }
            Kept::Targets(_) | Kept::Keys { .. } => {}
        }
        ControlFlow::Continue(())
    }

    /// Targets by `(prefix, id)`, or facts or keys in the order of the output; and the counts.
    pub fn finish(self) -> Found {
        let mut found = Found { counts: self.counts, hub: self.hub, ..Found::default() };
        match self.kept {
            Kept::Targets(targets) => {
                let beam = match self.request.output {
                    HopOutput::Targets { beam, .. } => beam as usize,
                    _ => 0,
                };
                let (replies, distinct) = targets.finish(beam);
                found.counts.targets = distinct;
                found.counts.cut_beam = distinct - replies.len() as u64;
                found.targets = replies;
            }
            Kept::Facts(facts) => found.facts = facts.into_sorted(),
            Kept::Page { facts, .. } => found.facts = facts,
            Kept::Keys { keys, .. } => found.keys = keys,
        }
        found
    }
}

/// Order of the ways into one target.
fn way_order(a: &Step, b: &Step) -> Ordering {
    rank((a.prefix, a.key), (b.prefix, b.key)).then_with(|| a.tie.cmp(&b.tie))
}

fn by_prefix(a: &Step, b: &Step) -> Ordering {
    rank((a.prefix, a.key), (b.prefix, b.key))
}

fn by_distance(a: &Step, b: &Step) -> Ordering {
    rank((a.distance.unwrap_or(0.0), a.key), (b.distance.unwrap_or(0.0), b.key))
}

/// A number whose order is that of `f64::total_cmp`.
fn ordered_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// Per target the best steps of distinct starts. Memory: twice that many steps, or
/// `REDUCE_AT_LEAST`; bounded by the distinct targets of the hop, thus by its `limit_rows`.
struct TargetSteps {
    steps: Vec<Step>,
    starts: usize,
    reduce_at: usize,
}

impl TargetSteps {
    fn new(starts: usize) -> Self {
        Self { steps: Vec::new(), starts: starts.max(1), reduce_at: REDUCE_AT_LEAST }
    }

    /// Reduces the steps when they have doubled since the last time.
    fn bound(&mut self) {
        if self.steps.len() >= self.reduce_at {
            self.reduce();
            self.reduce_at = (2 * self.steps.len()).max(REDUCE_AT_LEAST);
        }
    }

    /// Sorts by `(target, way)` and drops what no target needs.
    fn reduce(&mut self) {
        let steps = &self.steps;
        // Small sort keys: a step is three times as large, and most comparisons end here.
        let mut order: Vec<(u64, u64, u32)> = steps
            .iter()
            .zip(0..)
            .map(|(step, place)| (step.key.target.0, ordered_bits(step.prefix), place))
            .collect();
        order.sort_unstable_by(|a, b| {
            let sizes = (a.0, a.1).cmp(&(b.0, b.1));
            sizes.then_with(|| way_order(&steps[a.2 as usize], &steps[b.2 as usize]))
        });
        let mut kept: Vec<Step> = Vec::with_capacity(steps.len());
        let mut first_of_target = 0;
        for (target, _, place) in order {
            if kept.last().is_some_and(|last| last.key.target.0 != target) {
                first_of_target = kept.len();
            }
            let step = steps[place as usize];
            let same_target = &kept[first_of_target..];
            let wanted = same_target.len() < self.starts
                && same_target.iter().all(|known| known.start != step.start);
            if wanted {
                kept.push(step);
            }
        }
        self.steps = kept;
    }

    /// The best `beam` targets by `(smallest prefix, id)`, and how many there were.
    fn finish(mut self, beam: usize) -> (Vec<TargetReply>, u64) {
        self.reduce();
        let mut best = Smallest::new(beam, |a: &(f64, EntityId, usize), b| {
            a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1))
        });
        for (at, step) in self.steps.iter().enumerate() {
            let begins = at == 0 || self.steps[at - 1].key.target != step.key.target;
            if begins {
                best.push((step.prefix, step.key.target, at));
            }
        }
        let found = best.pushed();
        let replies = best.into_sorted().into_iter().map(|(_, target, at)| {
            let rest = &self.steps[at..];
            let len = rest.iter().take_while(|step| step.key.target == target).count();
            TargetReply { target, steps: rest[..len].into() }
        });
        (replies.collect(), found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(target: u64, prefix: f64, start: u64, fact: u64, tie: u32) -> Step {
        let key = FactKey::new(fact, 0, target);
        Step { key, distance: Some(0.0), prefix, start: EntityId(start), tie }
    }

    proptest! {
        #[test]
        fn ordered_bits_order_like_total_cmp(a in any::<f64>(), b in any::<f64>()) {
            prop_assert_eq!(ordered_bits(a).cmp(&ordered_bits(b)), a.total_cmp(&b));
            prop_assert_eq!(ordered_bits(0.0).cmp(&ordered_bits(-0.0)), Ordering::Greater);
        }

        #[test]
        fn reducing_early_and_often_changes_nothing(
            steps in proptest::collection::vec((0u64..6, 0u32..4, 0u64..4, 0u64..5), 0..120),
            starts in 1usize..4,
            beam in 0usize..8,
            every in 1usize..20,
        ) {
            let (mut once, mut often) = (TargetSteps::new(starts), TargetSteps::new(starts));
            for (number, (target, prefix, start, fact)) in steps.into_iter().enumerate() {
                let step = step(target, f64::from(prefix), start, fact, number as u32);
                once.steps.push(step);
                often.steps.push(step);
                if number % every == 0 {
                    often.reduce();
                }
            }
            prop_assert_eq!(once.finish(beam), often.finish(beam));
        }
    }
}
