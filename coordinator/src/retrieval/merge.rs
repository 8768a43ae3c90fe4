//! Merging the shards' answers. Every result is the same for every order of arrival: whatever is
//! put together is sorted by an order without ties.

use hopbine_proto::call::{HopReply, Seed, Step, TargetReply};
use hopbine_proto::score::{ScoreMode, rank};
use hopbine_proto::{EntityId, FactKey};
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The best `k` of all shards' seeds, by `(distance, key)`. A fact is in one shard only.
pub fn seeds(parts: impl Iterator<Item = Vec<Seed>>, k: usize) -> Vec<Seed> {
    let mut all: Vec<Seed> = parts.flatten().collect();
    all.sort_unstable_by(|a, b| rank((a.distance, a.key), (b.distance, b.key)));
    all.truncate(k);
    all
}

/// Distinct starts and their prefixes, ascending by entity. `starts` comes best first, so an
/// entity's first distance is its smallest.
pub fn starts(starts: impl Iterator<Item = (EntityId, f64)>, weight: f64) -> Vec<(EntityId, f64)> {
    // Adding 0 makes a negative zero positive: equal prefixes must compare as equal.
    let prefix = |(entity, distance)| (entity, weight * distance + 0.0);
    let mut all: Vec<(EntityId, f64)> = starts.map(prefix).collect();
    // Stable, so an entity's best stays its first.
    all.sort_by_key(|(entity, _)| *entity);
    all.dedup_by_key(|(entity, _)| *entity);
    all
}

/// Order of the ways into one target: `(prefix, last fact, tie)`.
pub fn way_order(a: &Step, b: &Step) -> Ordering {
    rank((a.prefix, a.key), (b.prefix, b.key)).then_with(|| a.tie.cmp(&b.tie))
}

/// Targets of a middle hop from all shards: per target the best way of each start, best first and
/// at most `starts` of them; of the targets the best `beam` by `(smallest prefix, id)`.
/// Ascending by target. The second number counts targets that `beam` cut here.
pub fn targets<'a>(
    parts: impl Iterator<Item = &'a [TargetReply]>,
    starts: u32,
    beam: u32,
) -> (Vec<TargetReply>, u64) {
    let mut parts: Vec<&[TargetReply]> = parts.filter(|part| !part.is_empty()).collect();
    if let [only] = parts[..]
        && only.len() <= beam as usize
    {
        // The shard has already put together what leads to one target.
        let mut merged = only.to_vec();
        merged.sort_unstable_by_key(|target| target.target);
        return (merged, 0);
    }
    let mut ways: Vec<(EntityId, Step)> = Vec::new();
    for target in parts.drain(..).flatten() {
        ways.extend(target.steps.iter().map(|step| (target.target, *step)));
    }
    ways.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| way_order(&a.1, &b.1)));
    let mut merged: Vec<TargetReply> = ways
        .chunk_by(|a, b| a.0 == b.0)
        .map(|group| TargetReply {
            target: group[0].0,
            steps: best_of_each_start(group.iter().map(|(_, step)| *step), starts),
        })
        .collect();
    let cut = merged.len().saturating_sub(beam as usize);
    if cut > 0 {
        let smallest = |target: &TargetReply| (target.steps[0].prefix, target.target);
        merged.select_nth_unstable_by(beam as usize, |a, b| {
            let ((a, a_id), (b, b_id)) = (smallest(a), smallest(b));
            a.total_cmp(&b).then_with(|| a_id.cmp(&b_id))
        });
        merged.truncate(beam as usize);
        merged.sort_unstable_by_key(|target| target.target);
    }
    (merged, cut as u64)
}

/// Of ways in order, the first of each start, at most `starts` of them.
fn best_of_each_start(ways: impl Iterator<Item = Step>, starts: u32) -> SmallVec<[Step; 1]> {
    let mut kept = SmallVec::<[Step; 1]>::new();
    for way in ways {
        if kept.len() == starts as usize {
            break;
        }
        if kept.iter().all(|known| known.start != way.start) {
            kept.push(way);
        }
    }
    kept
}

/// What a shard left out of its reply to a middle hop because of `beam`.
///
/// A shard sends its best targets by `(its smallest prefix, id)`. A target can be among the best
/// of all shards by a way through another shard while this one left it out, together with ways
/// from starts that the target must keep.
pub struct LeftOut {
    bound: f64,
    last: EntityId,
    sent: BTreeSet<EntityId>,
    starts: Vec<EntityId>,
}

impl LeftOut {
    /// What `reply` may hide, or `None` when it is whole. `starts` are the starts among what the
    /// shard was asked.
    pub fn of(reply: &HopReply, starts: impl FnOnce() -> Vec<EntityId>) -> Option<Self> {
        let last = reply.targets.last().filter(|_| reply.counts.cut_beam > 0)?;
        Some(Self {
            bound: last.steps[0].prefix,
            last: last.target,
            sent: reply.targets.iter().map(|target| target.target).collect(),
            starts: starts(),
        })
    }

    /// Whether it may hold one of the best `kept` ways into `target`.
    pub fn may_hold_way(&self, target: &TargetReply, kept: u32) -> bool {
        if kept == 1 || self.sent.contains(&target.target) {
            return false;
        }
        // What was left out comes after the last that was sent.
        let safe = |way: &Step| match way.prefix.total_cmp(&self.bound) {
            Ordering::Less => true,
            Ordering::Equal => target.target < self.last,
            Ordering::Greater => false,
        };
        let full = target.steps.len() == kept as usize;
        if full && target.steps.last().is_some_and(safe) {
            return false;
        }
        let known =
            |start: &EntityId| target.steps.iter().any(|way| way.start == *start && safe(way));
        !self.starts.iter().all(known)
    }
}

/// The best `top_k` last facts by `(score, key)`.
pub fn best_facts(
    parts: impl Iterator<Item = Vec<Step>>,
    top_k: u32,
    score: ScoreMode,
) -> Vec<Step> {
    let mut all: Vec<Step> = parts.flatten().collect();
    let place = |step: &Step| (step_score(step, score), step.key);
    all.sort_unstable_by(|a, b| rank(place(a), place(b)));
    all.truncate(top_k as usize);
    all
}

/// The score of a last fact.
pub fn step_score(step: &Step, score: ScoreMode) -> f64 {
    match score {
        ScoreMode::Path => step.prefix,
        ScoreMode::Endpoint => step.distance.unwrap_or_default(),
    }
}

/// The first `limit` last facts in key order, and the key of the last one when more follow.
pub fn page<T>(
    mut parts: impl Iterator<Item = Vec<T>>,
    limit: u32,
    key: impl Fn(&T) -> FactKey,
) -> (Vec<T>, Option<FactKey>) {
    // Each part comes in order, and parts in the order of their ranges mostly do, too.
    let mut all = parts.next().unwrap_or_default();
    let of_first = all.len();
    parts.for_each(|part| all.extend(part));
    if all.len() > of_first {
        all.sort_by_key(&key);
    }
    let more = all.len() > limit as usize;
    all.truncate(limit as usize);
    let last = all.last().filter(|_| more).map(&key);
    (all, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::call::HopCounts;
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn step(prefix: f64, entity: u64, target: u64, start: u64) -> Step {
        Step {
            key: FactKey::new(entity, 1, target),
            distance: Some(prefix),
            prefix,
            start: EntityId(start),
            tie: 0,
        }
    }

    /// The steps of up to four shards: entity `10 i + e` belongs to shard `i`, a fact is walked
    /// once per arrival, and the arrival (the tie) decides the start.
    fn any_shards() -> impl Strategy<Value = Vec<Vec<Step>>> {
        let walk = (0u64..4, 0u64..4, 0u32..3);
        let shard = proptest::collection::btree_map(walk, 0u8..4, 0..12);
        proptest::collection::vec(shard, 1..5).prop_map(|shards| {
            let shards = shards.into_iter().zip((0..).step_by(10));
            shards
                .map(|(walks, first)| {
                    let walks = walks.into_iter();
                    walks
                        .map(|((entity, target, tie), prefix)| Step {
                            tie,
                            ..step(f64::from(prefix) / 4.0, first + entity, target, tie.into())
                        })
                        .collect()
                })
                .collect()
        })
    }

    /// A shard's whole reply to a middle hop, from the steps it owns.
    fn reply(steps: &[Step], starts: u32, beam: u32) -> HopReply {
        let single: Vec<TargetReply> = steps
            .iter()
            .map(|step| TargetReply { target: step.key.target, steps: smallvec![*step] })
            .collect();
        let (mut targets, cut_beam) = targets(single.chunks(1), starts, beam);
        targets.sort_by(|a, b| {
            let place = |t: &TargetReply| (t.steps[0].prefix, t.target);
            place(a).partial_cmp(&place(b)).expect("no NaN")
        });
        HopReply {
            targets,
            counts: HopCounts { cut_beam, ..HopCounts::default() },
            ..HopReply::default()
        }
    }

    proptest! {
        #[test]
        fn merge_is_the_same_for_every_arrival_order(
            shards in any_shards(), turn in 0usize..5, starts in 1u32..4, beam in 1u32..5,
        ) {
            let mut turned = shards.clone();
            turned.rotate_left(turn % shards.len());
            turned.reverse();
            let merged = |shards: &[Vec<Step>]| {
                let replies: Vec<HopReply> =
                    shards.iter().map(|steps| reply(steps, starts, beam)).collect();
                let seeds = shards.iter().map(|steps| {
                    steps.iter().map(|s| Seed { distance: s.prefix, key: s.key }).collect()
                });
                (
                    targets(replies.iter().map(|r| &r.targets[..]), starts, beam),
                    super::seeds(seeds, 5),
                )
            };
            prop_assert_eq!(merged(&shards), merged(&turned));
            let facts = |shards: &[Vec<Step>]| {
                let parts = shards.iter().map(|steps| {
                    let mut steps = steps.clone();
                    steps.dedup_by_key(|s| s.key);
                    steps
                });
                (best_facts(parts.clone(), 5, ScoreMode::Path), page(parts, 3, |step| step.key))
            };
            prop_assert_eq!(facts(&shards), facts(&turned));
        }

        #[test]
        fn cut_replies_with_their_hidden_ways_filled_in_equal_whole_ones(
            shards in any_shards(), starts in 1u32..4, beam in 1u32..4,
        ) {
            let whole: Vec<HopReply> =
                shards.iter().map(|steps| reply(steps, starts, u32::MAX)).collect();
            let wanted = targets(whole.iter().map(|r| &r.targets[..]), starts, beam).0;
            let mut cut: Vec<HopReply> =
                shards.iter().map(|steps| reply(steps, starts, beam)).collect();
            let first = targets(cut.iter().map(|r| &r.targets[..]), starts, beam).0;
            for (i, steps) in shards.iter().enumerate() {
                let mut frontier_starts: Vec<EntityId> = steps.iter().map(|s| s.start).collect();
                frontier_starts.sort();
                frontier_starts.dedup();
                let left_out = LeftOut::of(&cut[i], || frontier_starts);
                let hidden = |t| left_out.as_ref().is_some_and(|l| l.may_hold_way(t, starts));
                if first.iter().any(hidden) {
                    cut[i] = whole[i].clone();
                }
            }
            let filled = targets(cut.iter().map(|r| &r.targets[..]), starts, beam).0;
            prop_assert_eq!(filled, wanted);
        }
    }

    #[test]
    fn a_start_keeps_its_smallest_distance() {
        let given = [(EntityId(2), 0.1), (EntityId(1), 0.2), (EntityId(2), 0.3)];
        assert_eq!(starts(given.into_iter(), 2.0), [(EntityId(1), 0.4), (EntityId(2), 0.2)]);
    }
}
