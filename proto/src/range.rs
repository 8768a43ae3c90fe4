//! Half-open ranges of keys and entities. `None` as the end is the end of the key space.

use crate::fact::FactKey;
use crate::ids::{EntityId, RelationId};
use serde::{Deserialize, Serialize};

/// Entities `start <= e < end`; the range of a shard. Shard *i* ends where *i + 1* starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EntityRange {
    /// First entity inside.
    pub start: EntityId,
    /// First entity past the end, or `None` for the end of the key space.
    pub end: Option<EntityId>,
}

impl EntityRange {
    /// Every entity.
    pub const ALL: Self = Self { start: EntityId(0), end: None };

    /// Whether `entity` lies inside.
    pub fn contains(&self, entity: EntityId) -> bool {
        self.start <= entity && self.end.is_none_or(|end| entity < end)
    }
}

/// Keys `start <= k < end`. Never empty when built by its constructors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    /// First key inside.
    pub start: FactKey,
    /// First key past the end, or `None` for the end of the key space.
    pub end: Option<FactKey>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: Self = Self { start: FactKey::MIN, end: None };

    /// Every fact of one entity.
    pub fn entity(entity: EntityId) -> Self {
        let end = entity.0.checked_add(1).map(|next| FactKey::new(next, 0, 0));
        Self { start: FactKey::new(entity.0, 0, 0), end }
    }

    /// Every fact of one entity along one relation.
    pub fn entity_relation(entity: EntityId, relation: RelationId) -> Self {
        let last = FactKey::new(entity.0, relation.0, u64::MAX);
        Self { start: FactKey::new(entity.0, relation.0, 0), end: last.successor() }
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: FactKey) -> bool {
        self.start <= key && self.end.is_none_or(|end| key < end)
    }
}

/// Sorts ranges by start and merges those that touch or overlap. The result covers exactly the
/// keys of the input, ascending and disjoint with a gap between neighbours.
pub fn coalesce(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<KeyRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if range.end.is_some_and(|end| end <= range.start) {
            continue;
        }
        match merged.last_mut() {
            Some(last) if last.end.is_none_or(|end| range.start <= end) => {
                last.end = match (last.end, range.end) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small_range() -> impl Strategy<Value = KeyRange> {
        (0u64..20, proptest::option::of(0u64..20)).prop_map(|(start, end)| KeyRange {
            start: FactKey::new(start, 0, 0),
            end: end.map(|end| FactKey::new(end, 0, 0)),
        })
    }

    proptest! {
        #[test]
        fn coalescing_covers_the_same_keys_once(
            ranges in proptest::collection::vec(small_range(), 0..8),
        ) {
            let merged = coalesce(ranges.clone());
            for entity in 0..24 {
                let key = FactKey::new(entity, 0, 0);
                let before = ranges.iter().any(|range| range.contains(key));
                let after = merged.iter().filter(|range| range.contains(key)).count();
                prop_assert_eq!(usize::from(before), after);
            }
            for pair in merged.windows(2) {
                prop_assert!(pair[0].end.is_some_and(|end| end < pair[1].start));
            }
        }
    }

    #[test]
    fn the_last_entity_has_an_open_range() {
        let range = KeyRange::entity(EntityId(u64::MAX));
        assert_eq!(range.end, None);
        assert!(range.contains(FactKey::MAX));
        let tail = KeyRange::entity_relation(EntityId(u64::MAX), RelationId(u32::MAX));
        assert!(tail.contains(FactKey::MAX) && tail.end.is_none());
    }
}
