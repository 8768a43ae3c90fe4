//! One record of the shared log, as bytes. Pure: reads any bytes at any offset without panicking.
//!
//! | part    | bytes | content                                                                |
//! |---------|-------|------------------------------------------------------------------------|
//! | len     | 4     | bytes of the payload                                                   |
//! | crc     | 4     | crc32c of segment number, record offset, `len`, and all below          |
//! | kind    | 1     | see `Kind`                                                             |
//! | zero    | 7     |                                                                        |
//! | group   | 8     | whose record                                                           |
//! | term    | 8     | by kind: term of the entry, vote or position; batch number             |
//! | index   | 8     | by kind: index of the entry or position; voted for; end of the last batch |
//! | payload | len   | an entry's bytes; empty for all other kinds                            |
//! | zero    | 0..7  | up to a multiple of 8                                                  |
//!
//! Integers are little-endian. The crc knows the record's place, so that no bytes inside a payload
//! and no stale block of the disk can pass for a record. Eight zero bytes are no record.

use hopbine_proto::GroupId;

/// Bytes before the payload.
pub const HEAD_BYTES: usize = 40;
/// Records start at multiples of this.
pub const ALIGNMENT: usize = 8;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Starts every write. `term` numbers the batches of a log without gaps; `index` is the offset
    /// where the batch before ended, in this segment or, at a segment's start, in the one before.
    /// All bytes before that offset were durable when this record was written.
    Batch,
    /// Entry `index` of `term` follows the group's last one.
    Entry,
    /// Entry `index` of `term`, written again so that an old segment can go. Changes nothing else.
    /// (Votes and positions are written again as what they are: said twice, they mean the same.)
    Moved,
    /// The group voted for `index` in `term`.
    Vote,
    /// The group knows `index` as the leader of `term`.
    VoteCommitted,
    /// The entries above `(term, index)` are void.
    Truncate,
    /// The entries up to `(term, index)` are no longer needed.
    Purge,
    /// The entries up to `(term, index)` are committed.
    Committed,
    /// The group is gone with all its records before this one.
    Tombstone,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Batch,
        Self::Entry,
        Self::Moved,
        Self::Vote,
        Self::VoteCommitted,
        Self::Truncate,
        Self::Purge,
        Self::Committed,
        Self::Tombstone,
    ];

    /// The kind as a byte on disk, 1 to 9.
    pub fn to_byte(self) -> u8 {
        self as u8 + 1
    }

    /// The kind that a byte on disk names.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    /// Whether records of this kind carry a payload.
    pub fn has_payload(self) -> bool {
        matches!(self, Self::Entry | Self::Moved)
    }
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it says.
    pub kind: Kind,
    /// Whose record; 0 for a batch.
    pub group: GroupId,
    /// See `Kind`.
    pub term: u64,
    /// See `Kind`.
    pub index: u64,
}

/// Batches, terms, entries and segments are numbered below this. At a million a second that lasts
/// 292,000 years, so a larger number was not written by us; adding to smaller ones cannot overflow.
pub const NUMBER_MAX: u64 = 1 << 63;

impl Head {
    /// Whether a log can have come to its numbers. A vote's are its candidate's, any number.
    pub fn is_possible(&self) -> bool {
        let is_vote = matches!(self.kind, Kind::Vote | Kind::VoteCommitted);
        self.term < NUMBER_MAX && (is_vote || self.index < NUMBER_MAX)
    }
}

/// A place in the log: what the crc of a record is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Number of the segment.
    pub segment: u64,
    /// Bytes from the segment's start.
    pub offset: u64,
}

/// What stands at a place of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A whole record and the offset of the next.
    Record {
        /// The record.
        head: Head,
        /// Its payload.
        payload: &'a [u8],
        /// Where the next record starts.
        next: u64,
    },
    /// Nothing but zeros from here to the end.
    Nothing,
    /// Neither: torn, damaged, or not a record at all.
    Bad,
}

/// Bytes that a record with a payload of `len` bytes takes.
pub fn size_of(len: usize) -> u64 {
    (HEAD_BYTES + len).next_multiple_of(ALIGNMENT) as u64
}

/// Appends a record to `out`, which will be written so that the record starts at `spot`.
pub fn encode(spot: Spot, head: &Head, payload: &[u8], out: &mut Vec<u8>) {
    let len = u32::try_from(payload.len()).expect("an entry is bounded far below 4 GiB");
    let start = out.len();
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.push(head.kind.to_byte());
    out.extend_from_slice(&[0; 7]);
    out.extend_from_slice(&head.group.0.to_le_bytes());
    out.extend_from_slice(&head.term.to_le_bytes());
    out.extend_from_slice(&head.index.to_le_bytes());
    out.extend_from_slice(payload);
    let crc = checksum(spot, &out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + size_of(payload.len()) as usize, 0);
}

/// Reads what stands at `spot.offset` of `segment`, the bytes of segment `spot.segment`.
pub fn read(segment: &[u8], spot: Spot) -> Found<'_> {
    let rest = usize::try_from(spot.offset).ok().and_then(|offset| segment.get(offset..));
    let Some(rest) = rest else { return Found::Nothing };
    match decode(rest, spot) {
        Some((head, payload)) => {
            Found::Record { head, payload, next: spot.offset + size_of(payload.len()) }
        }
        None if is_zero(rest) => Found::Nothing,
        None => Found::Bad,
    }
}

/// Reads the record that `bytes` start with and that was written at `spot`.
pub fn decode(bytes: &[u8], spot: Spot) -> Option<(Head, &[u8])> {
    let head_bytes = bytes.get(..HEAD_BYTES)?;
    let len = u32::from_le_bytes(head_bytes[..4].try_into().ok()?) as usize;
    let whole = bytes.get(..HEAD_BYTES.checked_add(len)?)?;
    let kind = Kind::from_byte(head_bytes[8])?;
    let crc = u32::from_le_bytes(head_bytes[4..8].try_into().ok()?);
    if crc != checksum(spot, whole) || (len > 0 && !kind.has_payload()) {
        return None;
    }
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head_bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let head = Head { kind, group: GroupId(word(16)), term: word(24), index: word(32) };
    Some((head, &whole[HEAD_BYTES..]))
}

/// Whether a batch record stands anywhere from `from` on which says that bytes beyond `from` had
/// been durable before it: then what is bad at `from` was once good.
pub fn synced_later(segment: &[u8], from: Spot) -> bool {
    let mut offset = from.offset.next_multiple_of(ALIGNMENT as u64);
    while (offset as usize) + HEAD_BYTES <= segment.len() {
        let start = offset as usize;
        let maybe_batch = segment[start + 8] == Kind::Batch.to_byte();
        let spot = Spot { segment: from.segment, offset };
        if maybe_batch
            && let Some((head, _)) = decode(&segment[start..], spot)
            && head.kind == Kind::Batch
            && head.index > from.offset
        {
            return true;
        }
        offset += ALIGNMENT as u64;
    }
    false
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn checksum(spot: Spot, record: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&spot.segment.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &spot.offset.to_le_bytes());
    crc = crc32c::crc32c_append(crc, &record[..4]);
    crc32c::crc32c_append(crc, &record[8..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_head() -> impl Strategy<Value = Head> {
        let parts = (0usize..9, any::<u64>(), any::<u64>(), any::<u64>());
        parts.prop_map(|(kind, group, term, index)| Head {
            kind: Kind::ALL[kind],
            group: GroupId(group),
            term,
            index,
        })
    }

    fn any_records() -> impl Strategy<Value = Vec<(Head, Vec<u8>)>> {
        let payload = proptest::collection::vec(any::<u8>(), 0..50);
        let record = (any_head(), payload).prop_map(|(head, mut payload)| {
            payload.truncate(if head.kind.has_payload() { 50 } else { 0 });
            (head, payload)
        });
        proptest::collection::vec(record, 0..12)
    }

    fn written(records: &[(Head, Vec<u8>)], segment: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (head, payload) in records {
            let spot = Spot { segment, offset: bytes.len() as u64 };
            encode(spot, head, payload, &mut bytes);
        }
        bytes
    }

    fn read_all(bytes: &[u8], segment: u64) -> (Vec<(Head, Vec<u8>)>, bool) {
        let (mut records, mut offset) = (Vec::new(), 0);
        loop {
            match read(bytes, Spot { segment, offset }) {
                Found::Record { head, payload, next } => {
                    records.push((head, payload.to_vec()));
                    offset = next;
                }
                Found::Nothing => return (records, true),
                Found::Bad => return (records, false),
            }
        }
    }

    proptest! {
        #[test]
        fn records_read_back_as_written(records in any_records(), zeros in 0usize..100) {
            let mut bytes = written(&records, 3);
            bytes.resize(bytes.len() + zeros, 0);
            prop_assert_eq!(read_all(&bytes, 3), (records, true));
        }

        #[test]
        fn a_changed_byte_is_noticed_or_changes_nothing(
            records in any_records(), at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut bytes = written(&records, 3);
            if bytes.is_empty() {
                return Ok(());
            }
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let (read, whole) = read_all(&bytes, 3);
            prop_assert!(records.starts_with(&read));
            prop_assert!(!whole || read == records);
        }

        #[test]
        fn arbitrary_bytes_at_any_offset_are_no_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), offset: u64, near in 0u64..320,
        ) {
            for offset in [offset, near] {
                let spot = Spot { segment: 1, offset };
                let _ = read(&bytes, spot);
                let _ = decode(&bytes, spot);
            }
            let _ = synced_later(&bytes, Spot { segment: 1, offset: near });
        }

        #[test]
        fn a_record_is_only_good_where_it_was_written(records in any_records()) {
            let bytes = written(&records, 3);
            prop_assert!(read_all(&bytes, 4).0.is_empty());
            let shifted = [vec![0; 8], bytes.clone()].concat();
            let found = read(&shifted, Spot { segment: 3, offset: 8 });
            let is_record = matches!(found, Found::Record { .. });
            prop_assert!(!is_record);
        }
    }
}
