//! An openraft entry as the payload of a log record.
//!
//! | part    | bytes  | content                                                         |
//! |---------|--------|-----------------------------------------------------------------|
//! | tag     | 1      | 0 blank, 1 membership, 2 command                                |
//! | content | varies | nothing; the members (postcard); the command (see `command.rs`) |

use crate::command::{Command, LogPosition};
use crate::config::{Membership, RaftEntry, log_id_of, position_of};
use crate::error::Malformed;
use bytes::Bytes;
use openraft::entry::RaftEntry as _;
use openraft::{EmptyNode, EntryPayload};

const BLANK: u8 = 0;
const MEMBERSHIP: u8 = 1;
const COMMAND: u8 = 2;

type Members = openraft::Membership<u64, EmptyNode>;

/// Bytes of an entry's command.
pub fn body_bytes(entry: &RaftEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(command) => command.body.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    }
}

/// Position and payload bytes of an entry.
pub fn encode(entry: &RaftEntry) -> (LogPosition, Bytes) {
    let mut bytes = Vec::new();
    match &entry.payload {
        EntryPayload::Blank => bytes.push(BLANK),
        EntryPayload::Membership(members) => {
            bytes.push(MEMBERSHIP);
            bytes = postcard::to_extend(members, bytes).expect("plain data always encodes");
        }
        EntryPayload::Normal(command) => {
            bytes.push(COMMAND);
            command.encode_into(&mut bytes);
        }
    }
    (position_of(&entry.log_id), bytes.into())
}

/// The entry at `position` with these payload bytes.
pub fn decode(position: LogPosition, bytes: &Bytes) -> Result<RaftEntry, Malformed> {
    let log_id = log_id_of(position).ok_or(Malformed("log position"))?;
    let payload = match bytes.first() {
        Some(&BLANK) if bytes.len() == 1 => EntryPayload::Blank,
        Some(&MEMBERSHIP) => {
            let members: Members =
                postcard::from_bytes(&bytes[1..]).map_err(|_| Malformed("members"))?;
            EntryPayload::Membership(members)
        }
        Some(&COMMAND) => EntryPayload::Normal(Command::decode(&bytes.slice(1..))?),
        _ => return Err(Malformed("log entry")),
    };
    Ok(RaftEntry::new(log_id, payload))
}

/// A group's members as the bytes that a machine keeps.
pub fn encode_membership(membership: &Membership) -> Bytes {
    postcard::to_stdvec(membership).expect("plain data always encodes").into()
}

/// Reads what `encode_membership` wrote; no bytes mean no members yet.
pub fn decode_membership(bytes: &Bytes) -> Result<Membership, Malformed> {
    if bytes.is_empty() {
        return Ok(Membership::default());
    }
    postcard::from_bytes(bytes).map_err(|_| Malformed("membership of a checkpoint"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::Epoch;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_of_entry_reads_back_as_written() {
        let members = Members::new_with_defaults(vec![BTreeSet::from([3, 9])], []);
        let command = Command::new(Epoch(4), vec![1, 2, 3]);
        let payloads =
            [EntryPayload::Blank, EntryPayload::Membership(members), EntryPayload::Normal(command)];
        for payload in payloads {
            let log_id = log_id_of(LogPosition::new(2, 7)).expect("an entry");
            let entry = RaftEntry::new(log_id, payload);
            let (position, bytes) = encode(&entry);
            assert_eq!(decode(position, &bytes).expect("decoded"), entry);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_an_entry_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), index in 0u64..3,
        ) {
            let bytes = Bytes::from(bytes);
            let _ = decode(LogPosition::new(1, index), &bytes);
            let _ = decode_membership(&bytes);
        }
    }
}
