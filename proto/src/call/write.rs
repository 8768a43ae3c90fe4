//! A batch of changes for one shard, and its fate.

use crate::fact::{Fact, FactKey};
use crate::ids::{EntityId, Epoch, GraphId, LogIndex, RelationId, ShardId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a change takes beside vector and payload.
const OP_BYTES: usize = 64;

/// One change of one fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WriteOp {
    /// Inserts or replaces the whole fact.
    Upsert(Fact),
    /// Removes the fact if it is there.
    Delete(FactKey),
    /// Removes every live fact of the entity (and relation), as of the moment of applying.
    DeletePrefix {
        /// Whose facts.
        entity: EntityId,
        /// Only along this relation.
        relation: Option<RelationId>,
    },
}

impl WriteOp {
    /// The key that it is about; of a prefix, the first one that it may have.
    pub fn first_key(&self) -> FactKey {
        match self {
            Self::Upsert(fact) => fact.key,
            Self::Delete(key) => *key,
            Self::DeletePrefix { entity, relation } => FactKey {
                entity: *entity,
                relation: relation.unwrap_or_default(),
                target: EntityId(0),
            },
        }
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let Self::Upsert(fact) = self else { return OP_BYTES };
        let embedding = fact.embedding.as_ref().map_or(0, |embedding| 4 * embedding.len());
        OP_BYTES + embedding + fact.payload.as_ref().map_or(0, |payload| payload.len())
    }

    /// The entity that decides the shard.
    pub fn entity(&self) -> EntityId {
        match self {
            Self::Upsert(fact) => fact.key.entity,
            Self::Delete(key) => key.entity,
            Self::DeletePrefix { entity, .. } => *entity,
        }
    }
}

/// A shard's part of a client's batch: applied whole or not at all, at one log index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteBatch {
    /// No key twice; applied in order. Shared, so that a batch can be sent again.
    pub ops: Arc<Vec<WriteOp>>,
    /// Makes a retry apply once.
    pub idempotency: Option<Idempotency>,
}

impl WriteBatch {
    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        self.ops.iter().map(WriteOp::bytes).sum()
    }
}

/// A client's promise that equal keys mean the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Idempotency {
    /// Hash of the client's key.
    pub key: u128,
    /// Hash of the client's whole batch, before it was split by shard.
    pub batch: u128,
}

/// Where a write goes.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteContext {
    /// Incarnation of the graph.
    pub graph: GraphId,
    /// The shard asked.
    pub shard: ShardId,
    /// Ownership that the caller believes in; checked again when the entry is applied.
    pub epoch: Epoch,
    /// On the process's monotonic clock.
    pub deadline: Duration,
    /// What to wait for.
    pub wait: Wait,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Committed and applied on the leader.
    #[default]
    Committed,
    /// Applied on all live replicas.
    Applied,
    /// And found by an index or a scan.
    Indexed,
}

/// What one shard's part of a write did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReply {
    /// Facts written, replaced ones included.
    pub upserted: u64,
    /// Of these, facts that were there before.
    pub replaced: u64,
    /// Facts removed.
    pub deleted: u64,
    /// Keys to delete that had no live fact.
    pub not_found: u64,
    /// Log index of the batch.
    pub index: LogIndex,
    /// Keys to delete that had no live fact, in request order.
    pub missing: Vec<FactKey>,
    /// Log index of each replaced or deleted version, in key order.
    pub replaced_versions: Vec<(FactKey, LogIndex)>,
}
