//! The zone map: what each fact block can hold, so that a range reads only blocks that it needs.
//!
//! One entry of 96 bytes a block, in key order:
//!
//! | part           | bytes   | content                                 |
//! |----------------|---------|-----------------------------------------|
//! | first, last    | 2 x 20  | smallest and largest key, big-endian    |
//! | relations      | 2 x 4   | smallest and largest relation           |
//! | targets        | 2 x 8   | smallest and largest target             |
//! | rows           | 4       | facts in the block                      |
//! | bytes          | 4       | length of the block                     |
//! | offset         | 8       | from the start of the fact blocks       |
//! | zero           | 16      |                                         |

use super::block::{BLOCK_ROWS, BlockRow};
use super::format::{u32_at, u64_at};
use hopbine_proto::limits::BLOCK_BYTES_MAX;
use hopbine_proto::{EntityId, FactKey, KeyRange, RelationId};

pub(crate) const ZONE_BYTES: usize = 96;

/// What one fact block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Smallest key.
    pub first: FactKey,
    /// Largest key.
    pub last: FactKey,
    /// Smallest and largest relation.
    pub relations: (RelationId, RelationId),
    /// Smallest and largest target.
    pub targets: (EntityId, EntityId),
    /// Facts in the block.
    pub rows: u32,
    /// Bytes of the block.
    pub bytes: u32,
    /// Where the block starts, from the start of the fact blocks, in bytes.
    pub offset: u64,
}

impl Zone {
    /// The entry of a block with these rows; never empty, in key order.
    pub(crate) fn of(rows: &[BlockRow], offset: u64, bytes: u32) -> Self {
        let (first, last) = (rows[0].key, rows[rows.len() - 1].key);
        let mut zone = Self {
            first,
            last,
            relations: (first.relation, first.relation),
            targets: (first.target, first.target),
            rows: rows.len() as u32,
            bytes,
            offset,
        };
        for row in rows {
            let (relation, target) = (row.key.relation, row.key.target);
            zone.relations = (zone.relations.0.min(relation), zone.relations.1.max(relation));
            zone.targets = (zone.targets.0.min(target), zone.targets.1.max(target));
        }
        zone
    }

    /// Whether this block can hold a key of `range`: `false` is certain, `true` is a maybe.
    pub fn may_contain(&self, range: &KeyRange) -> bool {
        let starts_before_range_ends = range.end.is_none_or(|end| self.first < end);
        starts_before_range_ends && range.start <= self.last
    }

    /// Whether this block can hold a fact along `relation`: `false` is certain.
    pub fn may_hold(&self, relation: RelationId) -> bool {
        self.relations.0 <= relation && relation <= self.relations.1
    }

    pub(crate) fn encode(&self) -> [u8; ZONE_BYTES] {
        let mut bytes = [0; ZONE_BYTES];
        bytes[..20].copy_from_slice(&self.first.to_bytes());
        bytes[20..40].copy_from_slice(&self.last.to_bytes());
        bytes[40..44].copy_from_slice(&self.relations.0.0.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.relations.1.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.targets.0.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.targets.1.0.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.rows.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let key = |at: usize| {
            let mut key = [0; FactKey::LEN];
            key.copy_from_slice(&bytes[at..at + FactKey::LEN]);
            FactKey::from_bytes(&key)
        };
        Self {
            first: key(0),
            last: key(20),
            relations: (RelationId(u32_at(bytes, 40)), RelationId(u32_at(bytes, 44))),
            targets: (EntityId(u64_at(bytes, 48)), EntityId(u64_at(bytes, 56))),
            rows: u32_at(bytes, 64),
            bytes: u32_at(bytes, 68),
            offset: u64_at(bytes, 72),
        }
    }
}

/// Decodes the zone map of a segment with `rows` rows whose fact blocks take `block_bytes`;
/// `Err` says what contradicts.
pub(crate) fn decode(
    bytes: &[u8],
    rows: u32,
    block_bytes: usize,
) -> Result<Vec<Zone>, &'static str> {
    let count = (rows as usize).div_ceil(BLOCK_ROWS);
    if bytes.len() != count * ZONE_BYTES {
        return Err("length differs from the number of blocks");
    }
    let zones: Vec<Zone> = bytes.chunks_exact(ZONE_BYTES).map(Zone::decode).collect();
    let mut end = 0u64;
    for (number, zone) in zones.iter().enumerate() {
        let expected_rows = (rows as usize - number * BLOCK_ROWS).min(BLOCK_ROWS);
        if zone.rows as usize != expected_rows || zone.first > zone.last {
            return Err("a zone contradicts itself");
        }
        if number > 0 && zones[number - 1].last >= zone.first {
            return Err("zones are not in key order");
        }
        if zone.offset != end || zone.bytes as usize > BLOCK_BYTES_MAX {
            return Err("a block is out of place");
        }
        end += u64::from(zone.bytes);
    }
    if end != block_bytes as u64 {
        return Err("blocks do not fill their section");
    }
    Ok(zones)
}
