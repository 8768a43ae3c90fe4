//! The ways walked so far: the frontier of the next hop, and the path behind each result.
//!
//! A layer holds, per frontier entity, its kept ways in order; a way names its last fact and its
//! start, and the way before it is the one of the same start into the fact's entity. At most
//! `beam` entities times the starts kept per layer, so memory is bounded whatever the graph is.

use hopbine_proto::EntityId;
use hopbine_proto::call::{Arrival, FrontierEntity, Step, TargetReply};
use smallvec::smallvec;

/// All layers of one retrieval.
#[derive(Debug, Default)]
pub struct Trail {
    starts: Vec<(EntityId, f64)>,
    layers: Vec<Layer>,
}

#[derive(Debug, Default)]
struct Layer {
    /// Ascending; each with the end of its ways.
    entities: Vec<(EntityId, usize)>,
    ways: Vec<Step>,
}

impl Layer {
    fn ways_at(&self, position: usize) -> &[Step] {
        let begin = if position == 0 { 0 } else { self.entities[position - 1].1 };
        &self.ways[begin..self.entities[position].1]
    }

    fn ways_into(&self, entity: EntityId) -> &[Step] {
        match self.entities.binary_search_by_key(&entity, |(known, _)| *known) {
            Ok(position) => self.ways_at(position),
            Err(_) => &[],
        }
    }
}

impl Trail {
    /// A trail that begins at `starts`, ascending by entity.
    pub fn begin(starts: Vec<(EntityId, f64)>) -> Self {
        Self { starts, layers: Vec::new() }
    }

    /// Adds the targets of a middle hop, ascending, each with its ways in order.
    pub fn push(&mut self, targets: Vec<TargetReply>) {
        let mut layer = Layer::default();
        for target in targets {
            layer.ways.extend(target.steps);
            layer.entities.push((target.target, layer.ways.len()));
        }
        self.layers.push(layer);
    }

    /// Number of frontier entities.
    pub fn len(&self) -> usize {
        self.layers.last().map_or(self.starts.len(), |layer| layer.entities.len())
    }

    /// Whether there is nothing to expand.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frontier entities, ascending.
    pub fn entities(&self) -> impl Iterator<Item = EntityId> {
        let (starts, layer) = match self.layers.last() {
            None => (&self.starts[..], &[][..]),
            Some(layer) => (&[][..], &layer.entities[..]),
        };
        starts.iter().map(|(entity, _)| *entity).chain(layer.iter().map(|(entity, _)| *entity))
    }

    /// The frontier entities at these positions, with their arrivals.
    pub fn frontier(&self, positions: std::ops::Range<usize>) -> Vec<FrontierEntity> {
        let Some(layer) = self.layers.last() else {
            let starts = self.starts[positions].iter();
            return starts
                .map(|(entity, prefix)| FrontierEntity {
                    entity: *entity,
                    arrivals: smallvec![Arrival { start: *entity, prefix: *prefix, tie: 0 }],
                })
                .collect();
        };
        positions
            .map(|position| FrontierEntity {
                entity: layer.entities[position].0,
                arrivals: layer
                    .ways_at(position)
                    .iter()
                    .zip(0..)
                    .map(|(way, tie)| Arrival { start: way.start, prefix: way.prefix, tie })
                    .collect(),
            })
            .collect()
    }

    /// The path that ends with `last`, a fact of the hop after the newest layer.
    pub fn path(&self, last: Step) -> Vec<Step> {
        let mut path = vec![last];
        let mut entity = last.key.entity;
        for layer in self.layers.iter().rev() {
            let way = layer.ways_into(entity).iter().find(|way| way.start == last.start);
            let Some(way) = way else { break };
            path.push(*way);
            entity = way.key.entity;
        }
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::FactKey;

    fn step(prefix: f64, key: (u64, u32, u64), start: u64, tie: u32) -> Step {
        let key = FactKey::new(key.0, key.1, key.2);
        Step { key, distance: Some(prefix), prefix, start: EntityId(start), tie }
    }

    #[test]
    fn a_path_follows_its_own_start_backwards() {
        let mut trail = Trail::begin(vec![(EntityId(1), 0.0), (EntityId(2), 0.0)]);
        trail.push(vec![TargetReply {
            target: EntityId(5),
            steps: smallvec![step(0.1, (2, 1, 5), 2, 0), step(0.2, (1, 1, 5), 1, 0)],
        }]);
        let last = step(0.5, (5, 1, 2), 1, 0);
        assert_eq!(trail.path(last), [step(0.2, (1, 1, 5), 1, 0), last]);
        let frontier = trail.frontier(0..1);
        // Smaller prefixes come first, whatever the facts.
        let ties: Vec<u32> = frontier[0].arrivals.iter().map(|arrival| arrival.tie).collect();
        assert_eq!(ties, [0, 1]);
    }
}
