//! What a log entry may say.
//!
//! A command on disk is a postcard head (stamp, epoch, keys) followed by the raw body, so that
//! reading it back does not copy the body. A log position has the first entry at index 1.

use crate::error::Malformed;
use bytes::Bytes;
use hopbine_proto::call::Idempotency;
use hopbine_proto::limits::ENTRY_BYTES_MAX;
use hopbine_proto::{Epoch, LogIndex};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A place in one group's log. `LogPosition::NONE` (index 0) means "before the first entry".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LogPosition {
    /// Term of the leader that appended the entry.
    pub term: u64,
    /// Index of the entry; the first is 1.
    pub index: LogIndex,
}

impl LogPosition {
    /// Before the first entry.
    pub const NONE: Self = Self { term: 0, index: LogIndex(0) };

    /// The position of entry `index` of term `term`.
    pub fn new(term: u64, index: u64) -> Self {
        Self { term, index: LogIndex(index) }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

/// One client's running number: a retry carries the number of the first try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClientSequence {
    /// The client's own random id.
    pub client: u128,
    /// Grows with every new command of this client.
    pub sequence: u64,
}

/// One entry's content as the machine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Leader's wall clock in milliseconds since the Unix epoch; never goes back within one
    /// leader's reign. Set by `Group::propose`, whatever the caller put here.
    pub at_ms: u64,
    /// Ownership version the sender relied on; the machine checks it again at apply.
    pub epoch: Epoch,
    /// Set when the caller gave an idempotency key.
    pub idempotency: Option<Idempotency>,
    /// Set when the caller numbers its commands.
    pub sequence: Option<ClientSequence>,
    /// What the machine shall do, in the machine's own words.
    pub body: Bytes,
}

#[derive(Serialize, Deserialize)]
struct Head {
    at_ms: u64,
    epoch: Epoch,
    idempotency: Option<Idempotency>,
    sequence: Option<ClientSequence>,
}

impl Command {
    /// A command without idempotency key or client number.
    pub fn new(epoch: Epoch, body: impl Into<Bytes>) -> Self {
        Self { epoch, body: body.into(), ..Self::default() }
    }

    /// Whether the command keeps within the bound of one entry.
    pub fn fits(&self) -> bool {
        self.body.len() <= ENTRY_BYTES_MAX
    }

    /// Appends the command's bytes to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let head = Head {
            at_ms: self.at_ms,
            epoch: self.epoch,
            idempotency: self.idempotency,
            sequence: self.sequence,
        };
        let bytes = postcard::to_stdvec(&head).expect("plain data always encodes");
        out.reserve(bytes.len() + self.body.len());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&self.body);
    }

    /// Reads what `encode_into` wrote. The body shares the memory of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let (head, body): (Head, &[u8]) =
            postcard::take_from_bytes(bytes).map_err(|_| Malformed("command head"))?;
        let Head { at_ms, epoch, idempotency, sequence } = head;
        Ok(Self { at_ms, epoch, idempotency, sequence, body: bytes.slice_ref(body) })
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes at epoch {}", self.body.len(), self.epoch)
    }
}

/// What a machine answered to one command: bytes in the machine's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome(pub Bytes);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_command()(
            at_ms: u64, epoch: u64, key in proptest::option::of((any::<u128>(), any::<u128>())),
            sequence in proptest::option::of((any::<u128>(), any::<u64>())),
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) -> Command {
            Command {
                at_ms,
                epoch: Epoch(epoch),
                idempotency: key.map(|(key, batch)| Idempotency { key, batch }),
                sequence: sequence.map(|(client, sequence)| ClientSequence { client, sequence }),
                body: body.into(),
            }
        }
    }

    proptest! {
        #[test]
        fn a_command_reads_back_as_written(command in any_command()) {
            let mut bytes = Vec::new();
            command.encode_into(&mut bytes);
            prop_assert_eq!(Command::decode(&bytes.into()).expect("decoded"), command);
        }

        #[test]
        fn arbitrary_bytes_decode_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = Command::decode(&bytes.into());
        }
    }
}
