//! A fact and its key.
//!
//! The key is 20 bytes, big-endian `(entity, relation, target)`, so that byte order is key order
//! and one entity's facts are neighbours on disk.

use crate::ids::{EntityId, RelationId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Where a fact lives. Field order is sort order: one entity's facts are neighbours on disk.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct FactKey {
    /// The subject: decides the shard.
    pub entity: EntityId,
    /// The kind of the edge.
    pub relation: RelationId,
    /// The object.
    pub target: EntityId,
}

impl FactKey {
    /// Bytes of an encoded key.
    pub const LEN: usize = 20;
    /// The smallest key.
    pub const MIN: Self = Self::new(0, 0, 0);
    /// The largest key.
    pub const MAX: Self = Self::new(u64::MAX, u32::MAX, u64::MAX);

    /// A key from bare numbers, for tests and workloads.
    pub const fn new(entity: u64, relation: u32, target: u64) -> Self {
        Self { entity: EntityId(entity), relation: RelationId(relation), target: EntityId(target) }
    }

    /// The 20 bytes whose order is the order of keys.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.entity.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.relation.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.target.0.to_be_bytes());
        bytes
    }

    /// The key behind 20 bytes; the inverse of [`FactKey::to_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = *bytes;
        Self::new(
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u32::from_be_bytes([i, j, k, l]),
            u64::from_be_bytes([m, n, o, p, q, r, s, t]),
        )
    }

    /// The smallest key above this one, or `None` after the last.
    pub fn successor(self) -> Option<Self> {
        let wide = (u128::from(self.relation.0) << 64) | u128::from(self.target.0);
        let next = (wide + 1) & ((1 << 96) - 1);
        let entity = if next == 0 { self.entity.0.checked_add(1)? } else { self.entity.0 };
        Some(Self::new(entity, (next >> 64) as u32, next as u64))
    }
}

/// The names behind a fact's ids, present in `names` graphs only.
/// A relation's name lives in the catalogue, not here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Names {
    /// Name of the entity; its xxh3 is the entity id.
    pub entity: Arc<str>,
    /// Name of the target; its xxh3 is the target id.
    pub target: Arc<str>,
}

/// One fact as written and as read back. An upsert replaces the whole of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Where it lives.
    pub key: FactKey,
    /// `None` in a `u64` graph.
    pub names: Option<Names>,
    /// `None`: a structural edge, never a seed, at distance 1 under cosine. Otherwise one finite
    /// f32 per dimension of the graph, not all zero under cosine.
    pub embedding: Option<Arc<[f32]>>,
    /// JSON text, checked to be valid at the door; `None` when the writer gave none.
    pub payload: Option<Arc<str>>,
}

/// The entity id of a name in a `names` graph: 64-bit xxh3 of its UTF-8 bytes, seed 0.
pub fn name_id(name: &str) -> EntityId {
    EntityId(xxh3_64(name.as_bytes()))
}

/// The relation id of a name in a `names` graph: the low 32 bits of the 64-bit xxh3 of its UTF-8
/// bytes, seed 0. The catalogue refuses two names of one id.
pub fn relation_name_id(name: &str) -> RelationId {
    RelationId(xxh3_64(name.as_bytes()) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_key() -> impl Strategy<Value = FactKey> {
        let edge64 = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
        let edge32 = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
        let other64 = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
        (edge64, edge32, other64).prop_map(|(e, r, t)| FactKey::new(e, r, t))
    }

    proptest! {
        #[test]
        fn byte_order_is_key_order(a in any_key(), b in any_key()) {
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
            prop_assert_eq!(FactKey::from_bytes(&a.to_bytes()), a);
        }

        #[test]
        fn the_successor_is_the_next_key(a in any_key()) {
            match a.successor() {
                None => prop_assert_eq!(a, FactKey::MAX),
                Some(next) => {
                    prop_assert!(a < next);
                    let number = |key: FactKey| {
                        let high = u128::from(key.relation.0) << 64;
                        (key.entity.0, high | u128::from(key.target.0))
                    };
                    let ((e, low), (next_e, next_low)) = (number(a), number(next));
                    prop_assert!((next_e == e && next_low == low + 1)
                        || (next_e == e + 1 && next_low == 0 && low == (1 << 96) - 1));
                }
            }
        }
    }
}
