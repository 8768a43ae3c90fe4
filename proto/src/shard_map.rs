//! Who holds which range, at which epoch.

use crate::ids::{EntityId, Epoch, NodeId, ReplicaId, ShardId};
use crate::range::EntityRange;
use serde::{Deserialize, Serialize};

/// One shard as the catalogue knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardDescriptor {
    /// Which.
    pub id: ShardId,
    /// The entities it owns.
    pub range: EntityRange,
    /// Version of that ownership.
    pub epoch: Epoch,
    /// Its replicas and the nodes that host them.
    pub replicas: Vec<(ReplicaId, NodeId)>,
}

/// Position in `shards` of the owner of `entity`. `shards` ascends without gap over all entities.
pub fn owner(shards: &[ShardDescriptor], entity: EntityId) -> usize {
    let after = shards.partition_point(|shard| shard.range.start <= entity);
    assert!(after > 0, "the first shard starts at entity 0");
    after - 1
}

/// Ranges that start at 0 and at each of `boundaries`, which must ascend and not hold 0.
pub fn ranges(boundaries: &[u64]) -> Vec<EntityRange> {
    let starts = std::iter::once(0).chain(boundaries.iter().copied());
    let ends = boundaries.iter().map(|end| Some(EntityId(*end))).chain(std::iter::once(None));
    starts.zip(ends).map(|(start, end)| EntityRange { start: EntityId(start), end }).collect()
}

/// `count - 1` boundaries that cut the hash space evenly.
pub fn even_boundaries(count: u32) -> Vec<u64> {
    let count = u128::from(count.max(1));
    (1..count).map(|i| ((i << 64) / count) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_entity_has_exactly_one_owner(
            mut cuts in proptest::collection::btree_set(1u64.., 0..9)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>()),
            entity in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        ) {
            cuts.sort_unstable();
            let shards: Vec<_> = ranges(&cuts).into_iter().enumerate().map(|(i, range)| {
                ShardDescriptor { id: ShardId(i as u64), range, epoch: Epoch(1), replicas: vec![] }
            }).collect();
            let entity = EntityId(entity);
            let holders = shards.iter().filter(|shard| shard.range.contains(entity)).count();
            prop_assert_eq!(holders, 1);
            prop_assert!(shards[owner(&shards, entity)].range.contains(entity));
        }
    }

    #[test]
    fn even_boundaries_cut_evenly() {
        assert_eq!(even_boundaries(1), Vec::<u64>::new());
        assert_eq!(even_boundaries(4), vec![1 << 62, 2 << 62, 3 << 62]);
    }
}
