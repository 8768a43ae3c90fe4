//! Rows for tests of the segment format: owned, random or fixed, and what a reader makes of them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use hopbine_proto::disk::FileBytes;
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{FactKey, LogIndex, Metric, Names, RelationId, SegmentId, name_id};
use hopbine_shard_store::error::StoreError;
use hopbine_shard_store::manifest::SegmentMeta;
use hopbine_shard_store::segment::{Segment, SegmentRow, SegmentWriter, VectorSpace};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

pub const DIR: &str = "/shard";

/// One row with everything it owns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnedRow {
    pub version: u64,
    pub tombstone: bool,
    pub embedding: Option<Vec<f32>>,
    pub payload: Option<String>,
    pub names: Option<Names>,
}

pub type Rows = BTreeMap<FactKey, OwnedRow>;

pub fn space(dim: u32) -> VectorSpace {
    VectorSpace { dim, metric: Metric::Cosine }
}

pub fn write(disk: &SimDisk, id: u64, space: VectorSpace, rows: &Rows) -> SegmentMeta {
    try_write(disk, id, space, rows).expect("written")
}

pub fn try_write(
    disk: &SimDisk,
    id: u64,
    space: VectorSpace,
    rows: &Rows,
) -> Result<SegmentMeta, StoreError> {
    try_write_with(disk, id, space, rows, &IndexConfig::default())
}

pub fn try_write_with(
    disk: &SimDisk,
    id: u64,
    space: VectorSpace,
    rows: &Rows,
    index: &IndexConfig,
) -> Result<SegmentMeta, StoreError> {
    let mut writer = SegmentWriter::create(disk, Path::new(DIR), SegmentId(id), space, index)?;
    for (key, row) in rows {
        writer.push(&SegmentRow {
            key: *key,
            version: LogIndex(row.version),
            tombstone: row.tombstone,
            embedding: row.embedding.as_deref(),
            payload: row.payload.as_deref(),
            names: row.names.as_ref(),
        })?;
    }
    writer.finish()
}

pub fn bytes_of(disk: &SimDisk, meta: &SegmentMeta) -> Vec<u8> {
    use hopbine_proto::disk::Disk;
    disk.read(&Path::new(DIR).join(meta.file_name())).expect("read")
}

pub fn open(bytes: &[u8], meta: &SegmentMeta, space: VectorSpace) -> Result<Segment, StoreError> {
    Segment::open_bytes(FileBytes::copied_from(bytes), meta, space)
}

/// Everything that a segment says of its rows.
pub fn read_rows(segment: &Segment) -> Result<Rows, StoreError> {
    let mut rows = Rows::new();
    for row in 0..segment.rows() {
        let owned = OwnedRow {
            version: segment.version(row)?.0,
            tombstone: segment.is_tombstone(row),
            embedding: segment.vector(row)?.map(<[f32]>::to_vec),
            payload: segment.payload(row)?.map(|text| text.to_string()),
            names: segment.names(row)?,
        };
        assert_eq!(segment.has_vector(row), owned.embedding.is_some());
        assert_eq!(segment.has_payload(row), owned.payload.is_some());
        rows.insert(segment.key(row)?, owned);
    }
    Ok(rows)
}

/// Rows along each relation, as the relation index has them.
pub fn read_relations(segment: &Segment) -> Result<Vec<(RelationId, Vec<u32>)>, StoreError> {
    let mut found = Vec::new();
    for (relation, count) in segment.relations() {
        let rows = segment.relation_rows(relation)?;
        assert_eq!(rows.len(), count as usize);
        found.push((relation, rows.to_vec()));
    }
    Ok(found)
}

fn names_of(entity: u64, target: u64) -> Names {
    Names { entity: format!("entity {entity}").into(), target: format!("target {target}").into() }
}

/// A key in a graph of numbers or of names, the names, and the numbers it was made of.
pub fn key_of(named: bool, entity: u64, relation: u32, target: u64) -> (FactKey, Option<Names>) {
    if !named {
        return (FactKey::new(entity, relation, target), None);
    }
    let names = names_of(entity, target);
    let (entity, target) = (name_id(&names.entity), name_id(&names.target));
    (FactKey { entity, relation: RelationId(relation), target }, Some(names))
}

/// Up to `most` rows with ids at both ends, tombstones, and rows without vector or payload.
pub fn any_rows(dim: usize, most: usize) -> impl Strategy<Value = (bool, Rows)> {
    let entity = prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let relation = prop_oneof![4 => 0u32..4, 1 => Just(u32::MAX), 1 => any::<u32>()];
    let target = prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let vector = proptest::collection::vec(-1.0f32..1.0, dim);
    let payload = proptest::option::of("\\{\"a\": \"[a-c]{0,40}\"\\}");
    let row = (any::<u64>(), 0u8..5, proptest::option::of(vector), payload);
    let keyed = ((entity, relation, target), row);
    (any::<bool>(), proptest::collection::vec(keyed, 0..most)).prop_map(|(named, list)| {
        let mut rows = Rows::new();
        for ((entity, relation, target), (version, kind, embedding, payload)) in list {
            let (key, names) = key_of(named, entity, relation, target);
            let row = match kind {
                0 => OwnedRow { version, tombstone: true, ..OwnedRow::default() },
                _ => OwnedRow { version, tombstone: false, embedding, payload, names },
            };
            rows.insert(key, row);
        }
        (named, rows)
    })
}

/// A fixed set of `count` rows of every kind, the same for ever: golden files are made of it.
pub fn fixed_rows(dim: usize, count: u64, named: bool) -> Rows {
    let mut rows = Rows::new();
    for number in 0..count {
        let (key, names) = key_of(named, number / 5, (number % 3) as u32, (number * 7919) % 1000);
        let version = number * 31 % 977 + 1;
        let row = if number % 11 == 10 {
            OwnedRow { version, tombstone: true, ..OwnedRow::default() }
        } else {
            let component = |i: usize| ((number as usize * 37 + i * 101) % 255) as f32 / 64.0 - 2.0;
            let embedding = (0..dim).map(component).collect();
            let payload = format!("{{\"text\": \"fact number {number} of them\"}}");
            OwnedRow {
                version,
                tombstone: false,
                embedding: (number % 7 != 3).then_some(embedding),
                payload: (number % 4 != 1).then_some(payload),
                names,
            }
        };
        rows.insert(key, row);
    }
    if !named {
        rows.insert(FactKey::MAX, OwnedRow { version: u64::MAX, ..OwnedRow::default() });
    }
    rows
}
