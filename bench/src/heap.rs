//! The baseline rows, store `plain`: an ordered map of facts, range scans for hops, brute force
//! over the product's own exact kernel for seeds. What an application without this engine does.

use hopbine_proto::call::Relations;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, Fact, FactKey, Metric};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

/// One row as the baseline holds it.
#[derive(Clone)]
pub struct HeapRow {
    embedding: Arc<[f32]>,
    norm: f64,
}

/// Facts in key order, and once more as a plain list to scan. Cosine distance.
pub struct Heap {
    by_key: BTreeMap<FactKey, HeapRow>,
    list: Vec<(FactKey, HeapRow)>,
    threads: usize,
}

/// A fact with its score, ordered by `(score, key)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Distance or score.
    pub score: f64,
    /// Which fact.
    pub key: FactKey,
}

impl Eq for Scored {}

impl Ord for Scored {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        hopbine_proto::score::rank((self.score, self.key), (other.score, other.key))
    }
}

impl PartialOrd for Scored {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Heap {
    /// Holds the facts that have an embedding (all of a workload's have); seeds are searched on
    /// `threads` threads.
    pub fn new(facts: &[Fact], threads: usize) -> Self {
        let mut list = Vec::with_capacity(facts.len());
        for fact in facts {
            if let Some(embedding) = &fact.embedding {
                let row = HeapRow { embedding: embedding.clone(), norm: norm(embedding) };
                list.push((fact.key, row));
            }
        }
        let by_key = list.iter().cloned().collect();
        Self { by_key, list, threads: threads.max(1) }
    }

    /// Exact distance of one fact.
    fn distance(query: &ExactQuery, row: &HeapRow) -> f64 {
        query.distance(Kernels::chosen(), Metric::Cosine, &row.embedding, row.norm)
    }

    /// The `k` facts nearest to `query`, best first: a full scan.
    pub fn seeds(&self, query: &ExactQuery, k: usize, relations: &Relations) -> Vec<Scored> {
        let part_len = self.list.len().div_ceil(self.threads).max(1);
        let mut best: Vec<Scored> = if self.threads == 1 {
            nearest(query, &self.list, k, relations)
        } else {
            let parts = self.list.chunks(part_len);
            std::thread::scope(|scope| {
                let scan = |part| scope.spawn(move || nearest(query, part, k, relations));
                let running: Vec<_> = parts.map(scan).collect();
                let join = |part: std::thread::ScopedJoinHandle<'_, Vec<Scored>>| {
                    part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                running.into_iter().flat_map(join).collect()
            })
        };
        best.sort_unstable();
        best.truncate(k);
        best
    }

    /// Rows of one entity along `relations`, in key order.
    fn facts_of(
        &self,
        entity: EntityId,
        relations: &Relations,
    ) -> impl Iterator<Item = (&FactKey, &HeapRow)> {
        let ranges: Vec<(u32, u32)> = match relations {
            Relations::Any => vec![(0, u32::MAX)],
            Relations::Of(list) => list.iter().map(|relation| (relation.0, relation.0)).collect(),
        };
        ranges.into_iter().flat_map(move |(first, last)| {
            let first = FactKey::new(entity.0, first, 0);
            self.by_key.range(first..=FactKey::new(entity.0, last, u64::MAX))
        })
    }

    /// Keys of the facts that one hop from `from` reads, in key order.
    pub fn expand(&self, from: &[EntityId], relations: &Relations) -> Vec<FactKey> {
        let mut from = from.to_vec();
        from.sort_unstable();
        from.iter().flat_map(|e| self.facts_of(*e, relations)).map(|(key, _)| *key).collect()
    }

    /// Keys of the facts at the end of all `hops`, in key order.
    pub fn expand_all(&self, from: &[EntityId], hops: &[Relations]) -> Vec<FactKey> {
        let mut frontier = from.to_vec();
        let mut found = Vec::new();
        for hop in hops {
            found = self.expand(&frontier, hop);
            frontier = targets(&found);
        }
        found
    }

    /// The facts at the end of `hops`, by `(score, key)`, all of them: a node reached twice keeps
    /// its smallest prefix.
    pub fn rank(
        &self,
        from: &[EntityId],
        hops: &[Relations],
        query: &ExactQuery,
        score: ScoreMode,
    ) -> Vec<Scored> {
        let mut frontier: HashMap<EntityId, f64> = from.iter().map(|id| (*id, 0.0)).collect();
        let mut found: Vec<Scored> = Vec::new();
        for (at, hop) in hops.iter().enumerate() {
            found.clear();
            let last = at + 1 == hops.len();
            for (entity, prefix) in &frontier {
                for (key, row) in self.facts_of(*entity, hop) {
                    let distance = Self::distance(query, row);
                    let score = if last && score == ScoreMode::Endpoint {
                        distance
                    } else {
                        prefix + distance
                    };
                    found.push(Scored { score, key: *key });
                }
            }
            frontier.clear();
            for fact in &found {
                let prefix = frontier.entry(fact.key.target).or_insert(fact.score);
                *prefix = prefix.min(fact.score);
            }
        }
        found.sort_unstable();
        found
    }
}

/// The best `k` of a part of the list, in no order.
fn nearest(
    query: &ExactQuery,
    part: &[(FactKey, HeapRow)],
    k: usize,
    relations: &Relations,
) -> Vec<Scored> {
    let mut worst_first = BinaryHeap::with_capacity(k + 1);
    for (key, row) in part {
        if !relations.contains(key.relation) {
            continue;
        }
        let scored = Scored { score: Heap::distance(query, row), key: *key };
        if worst_first.len() < k {
            worst_first.push(scored);
        } else if worst_first.peek().is_some_and(|worst| scored < *worst) {
            worst_first.pop();
            worst_first.push(scored);
        }
    }
    worst_first.into_vec()
}

/// Distinct targets, ascending.
pub fn targets(keys: &[FactKey]) -> Vec<EntityId> {
    let mut ids: Vec<EntityId> = keys.iter().map(|key| key.target).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::RelationId;

    fn fact(entity: u64, relation: u32, target: u64, x: f32, y: f32) -> Fact {
        Fact {
            key: FactKey::new(entity, relation, target),
            names: None,
            embedding: Some([x, y].into()),
            payload: None,
        }
    }

    fn small() -> Vec<Fact> {
        vec![
            fact(1, 1, 10, 1.0, 0.0),
            fact(1, 1, 11, 0.0, 1.0),
            fact(2, 1, 10, 1.0, 1.0),
            fact(10, 2, 20, 1.0, 0.2),
            fact(11, 2, 20, 1.0, 0.1),
            fact(11, 3, 21, 1.0, 0.0),
        ]
    }

    #[test]
    fn seeds_are_the_nearest_for_every_number_of_threads() {
        let query = ExactQuery::new(&[1.0, 0.0]);
        let keys = |threads, relations: &Relations| -> Vec<FactKey> {
            let seeds = Heap::new(&small(), threads).seeds(&query, 3, relations);
            seeds.iter().map(|seed| seed.key).collect()
        };
        let nearest = [FactKey::new(1, 1, 10), FactKey::new(11, 3, 21), FactKey::new(11, 2, 20)];
        for threads in 1..=8 {
            assert_eq!(keys(threads, &Relations::Any), nearest);
        }
        let first = Relations::Of(vec![RelationId(1)]);
        assert_eq!(keys(2, &first)[1..], [FactKey::new(2, 1, 10), FactKey::new(1, 1, 11)]);
    }

    #[test]
    fn a_path_score_adds_the_smallest_way_in() {
        let heap = Heap::new(&small(), 1);
        let query = ExactQuery::new(&[1.0, 0.0]);
        let hops = [Relations::Of(vec![RelationId(1)]), Relations::Of(vec![RelationId(2)])];
        let starts = [EntityId(1), EntityId(2)];
        let path = heap.rank(&starts, &hops, &query, ScoreMode::Path);
        let (through_10, through_11) = (FactKey::new(10, 2, 20), FactKey::new(11, 2, 20));
        assert_eq!([path[0].key, path[1].key], [through_10, through_11]);
        // Entity 10 is reached at distance 0 from 1 and further from 2; 11 only at distance 1.
        assert!(path[0].score < 0.1 && path[1].score > 1.0);
        let endpoint = heap.rank(&starts, &hops, &query, ScoreMode::Endpoint);
        assert_eq!([endpoint[0].key, endpoint[1].key], [through_11, through_10]);
        assert_eq!(heap.expand_all(&starts, &hops), [through_10, through_11]);
    }
}
