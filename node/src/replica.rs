//! A shard as a raft state machine: where shard-store and raft meet.
//!
//! `apply` decides in this order: is the sender's epoch the shard's, was the command applied
//! before, and only then the batch itself. Every replica decides alike.

use bytes::Bytes;
use hopbine_proto::Epoch;
use hopbine_proto::call::{WriteOp, WriteReply};
use hopbine_proto::limits::SESSION_REPLY_BYTES_MAX;
use hopbine_proto::status::{Code, Problem};
use hopbine_raft::{
    Check, Checkpoint, Command, Entry, Halt, LogPosition, Machine, SessionLimits, Sessions,
};
use hopbine_shard_store::{Applied, Shard, StoreError};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a replica answers to a proposed batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BatchReply {
    /// Applied; or applied before, with the reply of that time.
    Done(WriteReply),
    /// Nothing was changed: refresh the shard map.
    Stale {
        /// The shard's epoch.
        current: Epoch,
    },
    /// Nothing was changed: tell the user.
    Refused(Problem),
}

impl BatchReply {
    fn encode(&self) -> Bytes {
        postcard::to_stdvec(self).expect("plain data always encodes").into()
    }

    /// Reads a reply that came back through the log.
    pub fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

/// The body of a command for a shard.
pub fn encode_ops(ops: &[WriteOp]) -> Bytes {
    postcard::to_stdvec(ops).expect("plain data always encodes").into()
}

/// Whether `body` removes all facts of a prefix, however many there are: such a command is proposed
/// alone. Looks at the number of operations and the kind of the first one.
fn removes_prefix(body: &[u8]) -> bool {
    matches!(body, [1, 2, ..])
}

/// What is kept for a retry of a command whose reply is `bytes`: counts alone when the lists of
/// keys would fill the table of recent callers, which goes into every manifest.
fn remembered(reply: BatchReply, bytes: &Bytes) -> Bytes {
    match reply {
        BatchReply::Done(reply) if bytes.len() > SESSION_REPLY_BYTES_MAX => {
            let (missing, replaced_versions) = (Vec::new(), Vec::new());
            BatchReply::Done(WriteReply { missing, replaced_versions, ..reply }).encode()
        }
        _ => bytes.clone(),
    }
}

/// One shard's replica on this node.
pub struct Replica {
    shard: Arc<Shard>,
    tables: Mutex<Tables>,
    /// Called when a memtable was frozen and waits for its flush.
    frozen: Box<dyn Fn() + Send + Sync>,
}

/// What is kept beside the facts; travels in the manifest.
struct Tables {
    sessions: Sessions,
    membership: Bytes,
}

impl Replica {
    /// The replica over an open shard. `frozen` must be cheap: it is called within `apply`.
    pub fn new(
        shard: Arc<Shard>,
        frozen: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, hopbine_raft::error::Malformed> {
        let durable = shard.durable();
        let limits = SessionLimits::default();
        let sessions = if durable.sessions.is_empty() {
            Sessions::new(limits)
        } else {
            Sessions::decode(limits, &durable.sessions)?
        };
        let tables = Mutex::new(Tables { sessions, membership: durable.membership.into() });
        Ok(Self { shard, tables, frozen })
    }

    /// Freezes the memtable at the last applied entry, full or not. Returns whether there was
    /// anything to freeze and room for it.
    pub fn freeze(&self) -> bool {
        let tables = self.tables();
        let done = self.shard.freeze(tables.membership.to_vec(), tables.sessions.encode());
        drop(tables);
        if done {
            (self.frozen)();
        }
        done
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic within `apply` stops the group; what is here is still whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(
        &self,
        tables: &mut Tables,
        at: LogPosition,
        command: &Command,
    ) -> Result<Bytes, StoreError> {
        let current = self.shard.config().epoch;
        if command.epoch != current {
            self.shard.advance(at.term, at.index);
            return Ok(BatchReply::Stale { current }.encode());
        }
        let refused = match tables.sessions.check(command) {
            Check::New => None,
            Check::Repeat(reply) => {
                self.shard.advance(at.term, at.index);
                return Ok(reply);
            }
            Check::Conflict => Some(Problem::new(
                Code::IdempotencyConflict,
                "the idempotency key was used for another batch",
            )),
            Check::Overtaken => Some(Problem::new(
                Code::IdempotencyConflict,
                "the client went on to a later sequence number",
            )),
        };
        if let Some(problem) = refused {
            self.shard.advance(at.term, at.index);
            return Ok(BatchReply::Refused(problem).encode());
        }
        let reply = match postcard::from_bytes::<Vec<WriteOp>>(&command.body) {
            Ok(ops) => match self.shard.apply(at.term, at.index, &ops)? {
                Applied::Done(reply) => BatchReply::Done(reply),
                Applied::Refused(problem) => BatchReply::Refused(*problem),
            },
            Err(_) => {
                self.shard.advance(at.term, at.index);
                let detail = "the batch in the log cannot be read by this version";
                BatchReply::Refused(Problem::new(Code::VersionSkew, detail))
            }
        };
        let bytes = reply.encode();
        tables.sessions.record(command, &remembered(reply, &bytes));
        Ok(bytes)
    }
}

impl Machine for Replica {
    fn apply(&self, at: LogPosition, entry: Entry<'_>) -> Result<Bytes, Halt> {
        let mut tables = self.tables();
        let reply = match entry {
            Entry::Blank => {
                self.shard.advance(at.term, at.index);
                Bytes::new()
            }
            Entry::Membership(bytes) => {
                tables.membership = bytes.clone();
                self.shard.advance(at.term, at.index);
                Bytes::new()
            }
            Entry::Command(command) => self
                .command(&mut tables, at, command)
                .map_err(|error| Halt(format!("shard {}: {error}", self.shard.config().shard)))?,
        };
        let full = self.shard.should_freeze();
        drop(tables);
        if full {
            self.freeze();
        }
        Ok(reply)
    }

    fn is_long(&self, command: &Command) -> bool {
        removes_prefix(&command.body)
    }

    fn recovered(&self) -> Checkpoint {
        checkpoint_of(&self.shard)
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        Some(checkpoint_of(&self.shard)).filter(|checkpoint| checkpoint.at != LogPosition::NONE)
    }
}

fn checkpoint_of(shard: &Shard) -> Checkpoint {
    let durable = shard.durable();
    Checkpoint {
        at: LogPosition { term: durable.term, index: durable.index },
        membership: durable.membership.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::{EntityId, Fact, FactKey, LogIndex, RelationId};

    #[test]
    fn a_body_shows_whether_it_removes_a_prefix() {
        let prefix =
            |relation| vec![WriteOp::DeletePrefix { entity: EntityId(u64::MAX), relation }];
        assert!(removes_prefix(&encode_ops(&prefix(None))));
        assert!(removes_prefix(&encode_ops(&prefix(Some(RelationId(1))))));
        let fact = Fact { key: FactKey::new(1, 2, 3), names: None, embedding: None, payload: None };
        for ops in [
            vec![],
            vec![WriteOp::Upsert(fact.clone())],
            vec![WriteOp::Delete(fact.key)],
            vec![WriteOp::Delete(fact.key), WriteOp::Upsert(fact)],
        ] {
            assert!(!removes_prefix(&encode_ops(&ops)));
        }
    }

    #[test]
    fn a_long_reply_is_remembered_by_its_counts() {
        let reply = |keys: u64| {
            let replaced = (0..keys).map(|i| (FactKey::new(i, 1, 1), LogIndex(i)));
            BatchReply::Done(WriteReply {
                upserted: 100_000,
                replaced: keys,
                not_found: 7,
                index: LogIndex(9),
                missing: vec![FactKey::MAX; keys as usize],
                replaced_versions: replaced.collect(),
                ..WriteReply::default()
            })
        };
        let kept = |keys| remembered(reply(keys), &reply(keys).encode());
        assert_eq!(kept(3), reply(3).encode(), "a short one is kept whole");
        assert!(kept(100_000).len() <= SESSION_REPLY_BYTES_MAX);
        let Ok(BatchReply::Done(counts)) = BatchReply::decode(&kept(100_000)) else {
            panic!("it decodes");
        };
        assert_eq!((counts.upserted, counts.replaced, counts.not_found), (100_000, 100_000, 7));
        assert!(counts.missing.is_empty() && counts.replaced_versions.is_empty());
    }
}
