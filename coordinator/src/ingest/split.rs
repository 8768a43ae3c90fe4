//! Which shard gets which operations of a batch, and the hash that tells two batches apart.

use hopbine_proto::call::{Idempotency, WriteOp};
use hopbine_proto::shard_map::{ShardDescriptor, owner};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// One shard's part of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Whose.
    pub shard: ShardDescriptor,
    /// In key order. Shared: a part is sent again as it is.
    pub ops: Arc<Vec<WriteOp>>,
}

/// Cuts operations in key order at the shards' boundaries. Parts ascend by range, none is empty.
pub fn split(ops: Vec<WriteOp>, shards: &[ShardDescriptor]) -> Vec<Part> {
    let mut parts: Vec<(&ShardDescriptor, Vec<WriteOp>)> = Vec::new();
    for op in ops {
        match parts.last_mut() {
            Some((shard, ops)) if shard.range.contains(op.entity()) => ops.push(op),
            _ => parts.push((&shards[owner(shards, op.entity())], vec![op])),
        }
    }
    let shared =
        |(shard, ops): (&ShardDescriptor, _)| Part { shard: shard.clone(), ops: Arc::new(ops) };
    parts.into_iter().map(shared).collect()
}

/// What marks a client's batch: the hash of its key, and of the whole batch in key order, so that
/// a retry with its rows in another order is the same batch.
pub fn idempotency(key: &str, ops: &[WriteOp]) -> Idempotency {
    let mut hash = Xxh3::new();
    for op in ops {
        hash_op(&mut hash, op);
    }
    Idempotency { key: xxh3_128(key.as_bytes()), batch: hash.digest128() }
}

fn hash_op(hash: &mut Xxh3, op: &WriteOp) {
    match op {
        WriteOp::Upsert(fact) => {
            hash.update(&[1]);
            hash.update(&fact.key.to_bytes());
            let names = fact.names.as_ref().map(|names| (&names.entity, &names.target));
            hash_text(hash, names.map(|(entity, _)| &**entity));
            hash_text(hash, names.map(|(_, target)| &**target));
            hash.update(&[u8::from(fact.embedding.is_some())]);
            for x in fact.embedding.iter().flat_map(|embedding| embedding.iter()) {
                hash.update(&x.to_bits().to_le_bytes());
            }
            hash_text(hash, fact.payload.as_deref());
        }
        WriteOp::Delete(key) => {
            hash.update(&[2]);
            hash.update(&key.to_bytes());
        }
        WriteOp::DeletePrefix { entity, relation } => {
            hash.update(&[3, u8::from(relation.is_some())]);
            hash.update(&entity.0.to_le_bytes());
            hash.update(&relation.unwrap_or_default().0.to_le_bytes());
        }
    }
}

/// Length first, so that neighbouring texts cannot run into each other.
fn hash_text(hash: &mut Xxh3, text: Option<&str>) {
    let length = text.map_or(u64::MAX, |text| text.len() as u64);
    hash.update(&length.to_le_bytes());
    hash.update(text.unwrap_or_default().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::{Epoch, Fact, FactKey, ShardId, shard_map};
    use proptest::prelude::*;

    fn shards(cuts: &[u64]) -> Vec<ShardDescriptor> {
        let ranges = shard_map::ranges(cuts).into_iter().zip(1..);
        ranges
            .map(|(range, id)| ShardDescriptor {
                id: ShardId(id),
                range,
                epoch: Epoch(1),
                replicas: Vec::new(),
            })
            .collect()
    }

    fn fact(payload: &str, embedding: Option<&[f32]>) -> WriteOp {
        let payload = Some(payload.into());
        let embedding = embedding.map(Into::into);
        WriteOp::Upsert(Fact { key: FactKey::MIN, names: None, embedding, payload })
    }

    #[test]
    fn equal_batches_and_no_others_have_equal_hashes() {
        let hash = |ops: &[WriteOp]| idempotency("k", ops).batch;
        let base = hash(&[fact("1", None)]);
        assert_eq!(base, hash(&[fact("1", None)]));
        assert_ne!(base, hash(&[fact("2", None)]));
        assert_ne!(base, hash(&[fact("1", Some(&[]))]));
        assert_ne!(base, hash(&[WriteOp::Delete(FactKey::MIN)]));
        assert_ne!(idempotency("a", &[]).key, idempotency("b", &[]).key);
    }

    proptest! {
        #[test]
        fn every_operation_goes_to_the_owner_of_its_entity(
            cuts in proptest::collection::btree_set(1u64..50, 0..8),
            entities in proptest::collection::btree_set(
                prop_oneof![0u64..60, Just(u64::MAX)], 1..30,
            ),
        ) {
            let shards = shards(&cuts.into_iter().collect::<Vec<_>>());
            let ops: Vec<WriteOp> =
                entities.iter().map(|e| WriteOp::Delete(FactKey::new(*e, 1, 1))).collect();
            let parts = split(ops.clone(), &shards);
            for part in &parts {
                prop_assert!(!part.ops.is_empty());
                prop_assert!(part.ops.iter().all(|op| part.shard.range.contains(op.entity())));
            }
            prop_assert!(parts.windows(2).all(|p| p[0].shard.range.start < p[1].shard.range.start));
            let together = parts.iter().flat_map(|part| part.ops.iter().cloned());
            let together: Vec<WriteOp> = together.collect();
            prop_assert_eq!(together, ops);
        }
    }
}
