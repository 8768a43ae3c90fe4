//! One segment of the shared log, as bytes: header, records, and the footer of a sealed segment.
//!
//! | part    | bytes  | content                                                               |
//! |---------|--------|-----------------------------------------------------------------------|
//! | header  | 64     | magic, segment number, zeros, crc32c of the 60 bytes before           |
//! | records | varies | see `record.rs`; the first of each write is a batch record            |
//! | footer  | varies | per record: kind, group, term, index, payload length (postcard)       |
//! | trailer | 32     | magic, footer offset, footer length, crc32c of the footer, own crc32c |
//!
//! A segment that is written to has space reserved and zeros after its last record. Sealing cuts
//! the file after footer and trailer. A footer only spares reading: without one the records are
//! read. Where a segment's records must end is told by the first batch record of the next segment.

use super::record::{self, Found, HEAD_BYTES, Head, Kind, Spot};
use crate::error::Malformed;
use hopbine_proto::GroupId;
use serde::{Deserialize, Serialize};

/// Bytes of the header: the first record starts here.
pub const HEADER_BYTES: u64 = 64;
/// Bytes of the trailer.
pub const TRAILER_BYTES: u64 = 32;

const HEADER_MAGIC: &[u8; 8] = b"HopRLog1";
const TRAILER_MAGIC: &[u8; 8] = b"HopRSeal";

/// A record and where its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The record.
    pub head: Head,
    /// Offset of its first byte in the segment.
    pub offset: u64,
    /// Bytes of its payload.
    pub len: u32,
}

/// What a segment holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its records in order of writing.
    pub records: Vec<Listed>,
    /// Where they end.
    pub end: u64,
}

/// How a walk over a segment's records ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// With zeros, or at the end of the file.
    Clean,
    /// At something that is no record.
    Bad,
}

/// The header of segment `number`.
pub fn header(number: u64) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(HEADER_MAGIC);
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Whether `bytes` start with the header of segment `number`.
pub fn has_header(bytes: &[u8], number: u64) -> bool {
    bytes.starts_with(&header(number))
}

/// The number of another segment than `number` whose header `bytes` start with. A torn header is
/// nobody's, so this is a file in a wrong place.
pub fn header_of_another(bytes: &[u8], number: u64) -> Option<u64> {
    let named = u64::from_le_bytes(*bytes.get(8..16)?.as_array()?);
    (named != number && has_header(bytes, named)).then_some(named)
}

/// Walks over the records of segment `number`, whose bytes are given whole.
pub fn scan(bytes: &[u8], number: u64) -> (Listing, Stop) {
    let (mut records, mut offset) = (Vec::new(), HEADER_BYTES);
    loop {
        match record::read(bytes, Spot { segment: number, offset }) {
            Found::Record { head, payload, next } => {
                records.push(Listed { head, offset, len: payload.len() as u32 });
                offset = next;
            }
            Found::Nothing => return (Listing { records, end: offset }, Stop::Clean),
            Found::Bad => return (Listing { records, end: offset }, Stop::Bad),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct FooterItem {
    kind: u8,
    group: u64,
    term: u64,
    index: u64,
    len: u32,
}

/// A footer that grows with its segment.
#[derive(Clone, Debug, Default)]
pub struct Footer(Vec<u8>);

impl Footer {
    /// The footer of a segment that holds `records` so far.
    pub fn of(records: &[Listed]) -> Self {
        let mut footer = Self::default();
        for listed in records {
            footer.push(&listed.head, listed.len);
        }
        footer
    }

    /// Adds the next record.
    pub fn push(&mut self, head: &Head, len: u32) {
        let Head { kind, group, term, index } = *head;
        let item = FooterItem { kind: kind.to_byte(), group: group.0, term, index, len };
        self.0 = postcard::to_extend(&item, std::mem::take(&mut self.0))
            .expect("plain data always encodes");
    }

    /// Bytes that footer and trailer take.
    pub fn size(&self) -> u64 {
        self.0.len() as u64 + TRAILER_BYTES
    }

    /// Footer and trailer for a segment whose records end at `end`.
    pub fn sealed(&self, end: u64) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let start = bytes.len();
        bytes.extend_from_slice(TRAILER_MAGIC);
        bytes.extend_from_slice(&end.to_le_bytes());
        bytes.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&self.0).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[start..]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Where a sealed segment's footer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Where the records end and the footer starts.
    pub end: u64,
    /// Bytes of the footer.
    pub footer_len: u64,
    footer_crc: u32,
}

/// Reads the last `TRAILER_BYTES` of a file of `file_len` bytes. `None`: the segment is not sealed
/// or its trailer is damaged.
pub fn read_trailer(bytes: &[u8], file_len: u64) -> Option<Trailer> {
    if bytes.len() as u64 != TRAILER_BYTES || !bytes.starts_with(TRAILER_MAGIC) {
        return None;
    }
    let crc = u32::from_le_bytes(bytes[28..].try_into().ok()?);
    if crc != crc32c::crc32c(&bytes[..28]) {
        return None;
    }
    let end = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
    let footer_len = u64::from_le_bytes(bytes[16..24].try_into().ok()?);
    let footer_crc = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
    let whole = end.checked_add(footer_len)?.checked_add(TRAILER_BYTES)?;
    let sound = end >= HEADER_BYTES && whole == file_len;
    sound.then_some(Trailer { end, footer_len, footer_crc })
}

/// Reads a footer. Offsets follow from the lengths.
pub fn read_footer(bytes: &[u8], trailer: &Trailer) -> Result<Listing, Malformed> {
    let malformed = Malformed("segment footer");
    if bytes.len() as u64 != trailer.footer_len || crc32c::crc32c(bytes) != trailer.footer_crc {
        return Err(malformed);
    }
    let (mut rest, mut records, mut offset) = (bytes, Vec::new(), HEADER_BYTES);
    while !rest.is_empty() {
        let (item, after): (FooterItem, &[u8]) =
            postcard::take_from_bytes(rest).map_err(|_| malformed)?;
        let FooterItem { kind, group, term, index, len } = item;
        let kind = Kind::from_byte(kind).ok_or(malformed)?;
        let head = Head { kind, group: GroupId(group), term, index };
        records.push(Listed { head, offset, len });
        offset = offset.checked_add(record::size_of(len as usize)).ok_or(malformed)?;
        rest = after;
    }
    match offset == trailer.end {
        true => Ok(Listing { records, end: offset }),
        false => Err(malformed),
    }
}

impl Listing {
    /// Where the records of the segment before this one ended, told by the first batch record.
    /// `None` while this segment holds no record.
    pub fn end_of_previous(&self) -> Option<u64> {
        let first = self.records.first()?;
        (first.head.kind == Kind::Batch).then_some(first.head.index)
    }

    /// Number of the last batch.
    pub fn last_batch(&self) -> Option<u64> {
        let mut batches = self.records.iter().rev().filter(|r| r.head.kind == Kind::Batch);
        batches.next().map(|r| r.head.term)
    }
}

/// Whether any batch record stands in `bytes` at all: the file was once in use.
pub fn was_used(bytes: &[u8], number: u64) -> bool {
    let start = HEADER_BYTES as usize;
    let offsets = (start..).step_by(record::ALIGNMENT);
    offsets.take_while(|offset| offset + HEAD_BYTES <= bytes.len()).any(|offset| {
        bytes[offset + 8] == Kind::Batch.to_byte() && {
            let spot = Spot { segment: number, offset: offset as u64 };
            record::decode(&bytes[offset..], spot).is_some()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A small sealed segment: two batches with entries of two groups, a vote and a purge.
    pub(crate) fn small_segment(number: u64) -> (Vec<u8>, Listing) {
        let mut bytes = header(number).to_vec();
        let mut records = Vec::new();
        let mut put = |kind, group, term, index, payload: &[u8]| {
            let head = Head { kind, group: GroupId(group), term, index };
            let offset = bytes.len() as u64;
            record::encode(Spot { segment: number, offset }, &head, payload, &mut bytes);
            records.push(Listed { head, offset, len: payload.len() as u32 });
            bytes.len() as u64
        };
        put(Kind::Batch, 0, 1, 640, b"");
        put(Kind::Vote, 1, 3, 77, b"");
        put(Kind::Entry, 1, 3, 1, b"first entry");
        let end = put(Kind::Entry, 2, 1, 9, b"another group");
        put(Kind::Batch, 0, 2, end, b"");
        let end = put(Kind::Purge, 2, 1, 9, b"");
        let listing = Listing { records, end };
        let footer = Footer::of(&listing.records).sealed(end);
        bytes.extend_from_slice(&footer);
        (bytes, listing)
    }

    fn read_sealed(bytes: &[u8]) -> Option<Listing> {
        let trailer_at = bytes.len().checked_sub(TRAILER_BYTES as usize)?;
        let trailer = read_trailer(&bytes[trailer_at..], bytes.len() as u64)?;
        let footer = &bytes[trailer.end as usize..trailer_at];
        read_footer(footer, &trailer).ok()
    }

    #[test]
    fn a_footer_tells_what_a_walk_over_the_records_tells() {
        let (bytes, listing) = small_segment(5);
        assert!(has_header(&bytes, 5) && !has_header(&bytes, 6));
        assert_eq!((header_of_another(&bytes, 5), header_of_another(&bytes, 6)), (None, Some(5)));
        assert_eq!((header_of_another(&bytes[..63], 6), header_of_another(&[], 6)), (None, None));
        assert_eq!(read_sealed(&bytes), Some(listing.clone()));
        let cut = &bytes[..listing.end as usize];
        assert_eq!(scan(cut, 5), (listing.clone(), Stop::Clean));
        assert_eq!(listing.end_of_previous(), Some(640));
        assert_eq!(listing.last_batch(), Some(2));
        assert!(was_used(&bytes, 5) && !was_used(&bytes, 6));
    }

    #[test]
    fn every_changed_byte_of_a_sealed_segment_is_noticed_or_harmless() {
        let (bytes, listing) = small_segment(5);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            let header_bad = !has_header(&changed, 5);
            let footer_bad = read_sealed(&changed).is_none();
            let (scanned, _) = scan(&changed, 5);
            let records_bad = scanned.end != listing.end;
            // Only the zeros that fill a record up to its alignment may change unnoticed.
            let padding = listing.records.iter().any(|r| {
                let end = r.offset as usize + HEAD_BYTES + r.len as usize;
                (end..end.next_multiple_of(8)).contains(&at)
            });
            assert!(header_bad || footer_bad || records_bad || padding, "byte {at}");
            assert!(!footer_bad || at as u64 >= listing.end);
            assert!(!records_bad || scanned.end <= at as u64);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..400), file_len: u64,
        ) {
            let _ = scan(&bytes, 1);
            let _ = was_used(&bytes, 1);
            let _ = read_trailer(&bytes, file_len);
            let _ = read_sealed(&bytes);
            let trailer = Trailer {
                end: 64,
                footer_len: bytes.len() as u64,
                footer_crc: crc32c::crc32c(&bytes),
            };
            let _ = read_footer(&bytes, &trailer);
        }

        #[test]
        fn several_changed_bytes_never_add_or_alter_a_record(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..5),
        ) {
            let (mut bytes, listing) = small_segment(5);
            for (at, flip) in changes {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
            let (scanned, _) = scan(&bytes, 5);
            prop_assert!(listing.records.starts_with(&scanned.records));
            if let Some(read) = read_sealed(&bytes) {
                prop_assert_eq!(read, listing);
            }
        }
    }
}
