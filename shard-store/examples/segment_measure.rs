//! Measures the segment format: bytes a fact under several codings, and the time of a look-up.
//!
//! `cargo run --release -p hopbine-shard-store --example segment_measure -- FOLDER` takes a folder
//! with `kb.tsv` (entity, relation, target number), `entities.txt` and `relations.txt` (a name a
//! line); without it, generated numbers are measured alone.

use hopbine_proto::disk::OsDisk;
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{
    EntityId, FactKey, KeyRange, LogIndex, Metric, Names, SegmentId, name_id, relation_name_id,
};
use hopbine_shard_store::graph::VectorSource;
use hopbine_shard_store::manifest::SegmentMeta;
use hopbine_shard_store::segment::{
    BLOCK_ROWS, Segment, SegmentRow, SegmentWriter, Touched, VectorSpace,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Any failure ends the measurement.
type Failure = Box<dyn std::error::Error>;
type Facts = BTreeMap<FactKey, (LogIndex, Option<Names>)>;

fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1);
    if let Some(folder) = folder {
        let (named, numbered) = movies(Path::new(&folder))?;
        sizes("movies, names", &named)?;
        sizes("movies, u64", &numbered)?;
    }
    sizes("20,000 x 16, u64 below 2^20", &generated(|n| n))?;
    sizes("20,000 x 16, ids hashed", &generated(|n| name_id(&n.to_string()).0))?;
    look_ups()
}

/// The same facts with names and with the numbers of the file.
fn movies(folder: &Path) -> Result<(Facts, Facts), Failure> {
    let entities = std::fs::read_to_string(folder.join("entities.txt"))?;
    let entities: Vec<&str> = entities.lines().collect();
    let relations = std::fs::read_to_string(folder.join("relations.txt"))?;
    let relations: Vec<&str> = relations.lines().collect();
    let (mut named, mut numbered) = (Facts::new(), Facts::new());
    for (line_number, line) in std::fs::read_to_string(folder.join("kb.tsv"))?.lines().enumerate() {
        let numbers: Result<Vec<usize>, _> = line.split('\t').map(str::parse).collect();
        let [entity, relation, target] = numbers?[..] else { return Err("three columns".into()) };
        let version = LogIndex(line_number as u64 / 1000 + 1);
        numbered
            .insert(FactKey::new(entity as u64, relation as u32, target as u64), (version, None));
        let names = Names { entity: entities[entity].into(), target: entities[target].into() };
        let key = FactKey {
            entity: name_id(&names.entity),
            relation: relation_name_id(relations[relation]),
            target: name_id(&names.target),
        };
        named.insert(key, (version, Some(names)));
    }
    Ok((named, numbered))
}

fn generated(id: impl Fn(u64) -> u64) -> Facts {
    let fact = |n: u64| {
        let target = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44;
        let key = FactKey::new(id(n / 16), (n % 3) as u32 + 1, id(target));
        (key, (LogIndex(n / 1000 + 1), None))
    };
    (0..320_000).map(fact).collect()
}

fn write(facts: &Facts, dir: &Path, dim: u32) -> Result<(SegmentMeta, Segment), Failure> {
    let (space, index) = (VectorSpace { dim, metric: Metric::Cosine }, IndexConfig::default());
    let mut writer = SegmentWriter::create(&OsDisk, dir, SegmentId(1), space, &index)?;
    let vector: Vec<f32> = (0..dim).map(|i| 1.0 + i as f32).collect();
    for (key, (version, names)) in facts {
        writer.push(&SegmentRow {
            key: *key,
            version: *version,
            tombstone: false,
            embedding: (dim > 1).then_some(&vector),
            payload: None,
            names: names.as_ref(),
        })?;
    }
    let meta = writer.finish()?;
    let segment = Segment::open(&OsDisk, dir, &meta, space)?;
    Ok((meta, segment))
}

fn width(low: u64, high: u64) -> usize {
    (64 - (high - low).leading_zeros() as usize).div_ceil(8)
}

/// Bytes of one block when every column is offsets from its smallest value, without runs.
fn packed_columns(block: &[(FactKey, LogIndex)]) -> usize {
    let columns = |(key, version): &(FactKey, LogIndex)| {
        [key.entity.0, key.relation.0.into(), key.target.0, version.0]
    };
    let bytes = |column: usize| {
        let values: BTreeSet<u64> = block.iter().map(|row| columns(row)[column]).collect();
        let ends = values.first().zip(values.last());
        8 + block.len() * ends.map_or(0, |(low, high)| width(*low, *high))
    };
    (0..4).map(bytes).sum()
}

/// Bytes of one block as plain columns under lz4: small, but a look-up decodes all of it.
fn lz4_columns(block: &[(FactKey, LogIndex)]) -> usize {
    let mut plain = Vec::new();
    block.iter().for_each(|row| plain.extend(row.0.entity.0.to_le_bytes()));
    block.iter().for_each(|row| plain.extend(row.0.relation.0.to_le_bytes()));
    block.iter().for_each(|row| plain.extend(row.0.target.0.to_le_bytes()));
    block.iter().for_each(|row| plain.extend(row.1.0.to_le_bytes()));
    lz4_flex::block::compress(&plain).len()
}

fn sizes(what: &str, facts: &Facts) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let (meta, segment) = write(facts, dir.path(), 1)?;
    let rows: Vec<_> = facts.iter().map(|(key, (version, _))| (*key, *version)).collect();
    let each = |bytes: usize| bytes as f64 / rows.len() as f64;
    let blocks = || rows.chunks(BLOCK_ROWS);
    let names: BTreeSet<_> = rows.iter().flat_map(|(key, _)| [key.entity, key.target]).collect();
    let reference = if facts.values().any(|(_, names)| names.is_some()) { 8.0 } else { 0.0 };
    println!("\n{what}: {} facts, {} entities", rows.len(), names.len());
    println!("  plain columns      {:6.2} bytes a fact, name references {reference:.2}", 28.0);
    let packed = blocks().map(packed_columns).sum();
    println!("  packed columns     {:6.2}, name references {reference:.2}", each(packed));
    println!("  lz4 of columns     {:6.2}", each(blocks().map(lz4_columns).sum()));
    for (section, bytes) in segment.sections() {
        println!("  file: {section:14} {:6.2}", each(bytes));
    }
    println!("  file in all        {:6.2}", each(meta.bytes as usize));
    Ok(())
}

/// Nanoseconds a round in the quickest of many short batches, since other work on the machine only
/// ever adds.
fn per_round(mut round: impl FnMut()) -> f64 {
    const ROUNDS: u32 = 50;
    let batch = |_| {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        start.elapsed()
    };
    let quickest = (0..400).map(batch).min().unwrap_or_default();
    quickest.as_nanos() as f64 / f64::from(ROUNDS)
}

/// Looks up 64 entities of 16 facts among 320,000, and reads their keys and vectors.
fn look_ups() -> Result<(), Failure> {
    let facts = generated(|n| n);
    let dir = tempfile::tempdir()?;
    let (_, segment) = write(&facts, dir.path(), 16)?;
    let map: BTreeMap<FactKey, [f32; 16]> = facts.keys().map(|key| (*key, [1.0; 16])).collect();
    let mut round = 0u64;
    let mut entities = || {
        round += 1;
        let entity = |n: u64| EntityId((n * 7919 + round * 104_729) % 20_000);
        let mut ranges: Vec<_> = (0..64).map(|n| KeyRange::entity(entity(n))).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    };
    let make = per_round(|| drop(black_box(entities())));
    let tree = per_round(|| {
        for range in entities() {
            let end = range.end.unwrap_or(FactKey::MAX);
            for (key, vector) in map.range(range.start..end) {
                black_box((key, vector[0]));
            }
        }
    });
    let mut found = Vec::new();
    let ranges = per_round(|| {
        found.clear();
        let ranges = entities();
        let read = segment.ranges(&ranges, &mut Touched::default(), &mut found);
        black_box(read.is_ok());
    });
    let all = per_round(|| {
        found.clear();
        let ranges = entities();
        let read = segment.ranges(&ranges, &mut Touched::default(), &mut found);
        black_box(read.is_ok());
        for rows in &found {
            let read = segment.for_each_key(rows.clone(), |row, key| {
                let vector = VectorSource::vector(&segment, row);
                black_box((key, vector.is_ok_and(|vector| vector.is_some())));
            });
            black_box(read.is_ok());
        }
    });
    let one = per_round(|| {
        let mut touched = Touched::default();
        for range in entities() {
            black_box(segment.range(&range, &mut touched).is_ok());
        }
    });
    println!("\n64 entities x 16 facts in 320,000 (choice of entities taken off):");
    println!("  BTreeMap, keys and vectors    {:8.0} ns a round", tree - make);
    println!("  segment, keys and vectors     {:8.0} ns a round", all - make);
    println!("  segment, ranges together      {:8.1} ns an entity", (ranges - make) / 64.0);
    println!("  segment, ranges one by one    {:8.1} ns an entity", (one - make) / 64.0);
    Ok(())
}
