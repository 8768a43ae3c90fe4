//! Segments of few rows with a graph and short codes. A seal gives those to thousands of rows only,
//! so a small segment is written as it is, and its file is then put together anew with them.

use crate::segment_rows::{DIR, bytes_of, open};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_shard_store::codes::factor;
use hopbine_shard_store::graph::build::{BuildInput, GraphBuilder, NativeBuilder, level_of};
use hopbine_shard_store::graph::{IndexMeta, VectorRow, VectorSource, Way};
use hopbine_shard_store::manifest::SegmentMeta;
use hopbine_shard_store::nibbles::{Means, NibbleEncoder, centred_relations};
use hopbine_shard_store::segment::{PAGE_BYTES, Segment, VectorSpace};
use hopbine_shard_store::signs::SignEncoder;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Numbers of the last sections of a file, in their order.
pub const LAST_SECTIONS: [u32; 4] = [GRAPH, SKETCH, SKETCH_TERMS, RECORD];
const GRAPH: u32 = 16;
const RECORD: u32 = 17;
const SKETCH: u32 = 18;
const SKETCH_TERMS: u32 = 19;

const ALIGN: usize = 64;
const ENTRY_BYTES: usize = 24;
const FOOTER_BYTES: usize = 64;

/// Puts a graph and the short codes of `way` into the file of a segment, and makes that its way.
pub fn with_short_codes(
    disk: &SimDisk,
    meta: &SegmentMeta,
    space: VectorSpace,
    way: Way,
) -> SegmentMeta {
    let bytes = bytes_of(disk, meta);
    let segment = open(&bytes, meta, space).expect("opens");
    let sealed = IndexMeta {
        way,
        recall64: Some(1.0),
        recall10: Some(1.0),
        alarm: Some("the graph was never measured".into()),
        ..segment.index().expect("opens").meta().clone()
    };
    let graph = graph_of(&segment);
    let (sketch, sketch_terms) = short_codes(&segment, way);
    let record = postcard::to_stdvec(&sealed).expect("plain values always encode");
    let last = [
        (GRAPH, &graph[..]),
        (SKETCH, &sketch[..]),
        (SKETCH_TERMS, &sketch_terms[..]),
        (RECORD, &record[..]),
    ];
    let (bytes, content_hash) = framed(&bytes, table(&bytes).len() - 1, &last);
    let meta = SegmentMeta {
        bytes: bytes.len() as u64,
        content_hash,
        way: way.to_string(),
        recall: sealed.recall64,
        alarm: sealed.alarm,
        ..meta.clone()
    };
    disk.tamper(&Path::new(DIR).join(meta.file_name()), move |file| *file = bytes);
    meta
}

/// The short codes of a segment's nodes, and what belongs to them, as a seal makes them.
pub fn short_codes(segment: &Segment, way: Way) -> (Vec<u8>, Vec<u8>) {
    let index = segment.index().expect("opens");
    let (metric, dim) = (index.meta().metric, index.meta().dim as usize);
    let (members, nodes) = (index.members(), index.meta().nodes);
    let rows: Vec<u32> = (0..nodes).map(|node| members.first_row(node)).collect();
    match way {
        Way::Bits { .. } => {
            let mut mean = vec![0.0f64; dim];
            for row in &rows {
                let vector = vector(segment, *row);
                let share = factor(metric, vector.norm) / rows.len() as f64;
                mean.iter_mut().zip(vector.values).for_each(|(m, x)| *m += share * f64::from(*x));
            }
            let centre = mean.into_iter().map(|mean| mean as f32).collect();
            let mut encoder = SignEncoder::new(metric, centre);
            for row in rows {
                let vector = vector(segment, row);
                encoder.push(vector.values, vector.norm);
            }
            encoder.finish()
        }
        Way::Nibbles { .. } => {
            let relation = |row: u32| segment.key(row).expect("reads").relation;
            let mut counts = HashMap::new();
            rows.iter().for_each(|row| *counts.entry(relation(*row)).or_default() += 1);
            let centred = centred_relations(&counts);
            let number = |row: u32| centred.get(&relation(row)).copied().unwrap_or(0);
            let mut means = Means::new(metric, centred.len() + 1, dim);
            for row in &rows {
                let vector = vector(segment, *row);
                means.push(number(*row), vector.values, vector.norm);
            }
            let mut encoder = NibbleEncoder::new(metric, dim, means.finish());
            for row in rows {
                let vector = vector(segment, row);
                encoder.push(number(row), vector.values, vector.norm);
            }
            encoder.finish()
        }
        other => panic!("{other} has no short codes"),
    }
}

fn vector(segment: &Segment, row: u32) -> VectorRow<'_> {
    let vector = VectorSource::vector(segment, row).expect("reads");
    vector.expect("the first row of a node has a vector")
}

/// A graph of a segment's nodes.
fn graph_of(segment: &Segment) -> Vec<u8> {
    let index = segment.index().expect("opens");
    let config = IndexConfig { m: 4, ef_construction: 20, ..IndexConfig::default() };
    let level = |node: u32| {
        let key = segment.key(index.members().first_row(node)).expect("reads");
        level_of(key, config.build_seed, config.m)
    };
    let levels: Vec<u8> = (0..index.meta().nodes).map(level).collect();
    let (codes, metric) = (index.codes(), index.meta().metric);
    let input = BuildInput { codes, metric, config: &config, levels: &levels };
    NativeBuilder.build(&input).expect("builds").to_bytes()
}

/// Number and place of each section of a segment file.
pub fn table(bytes: &[u8]) -> Vec<(u32, Range<usize>)> {
    let footer = &bytes[bytes.len() - FOOTER_BYTES..];
    let (end, count) = (number(&footer[8..16]), number(&footer[16..20]));
    let entry = |entry: &[u8]| {
        let (start, len) = (number(&entry[8..16]), number(&entry[16..24]));
        (number(&entry[..4]) as u32, start..start + len)
    };
    bytes[end - count * ENTRY_BYTES..end].chunks_exact(ENTRY_BYTES).map(entry).collect()
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |number, byte| number * 256 + usize::from(*byte))
}

/// The first `kept` sections of a segment file with `last` behind them, and its content hash.
pub fn framed(bytes: &[u8], kept: usize, last: &[(u32, &[u8])]) -> (Vec<u8>, u128) {
    let mut sections = table(bytes);
    let mut file = bytes[..sections[kept].1.start].to_vec();
    sections.truncate(kept);
    for (number, section) in last {
        file.resize(file.len().next_multiple_of(ALIGN), 0);
        sections.push((*number, file.len()..file.len() + section.len()));
        file.extend_from_slice(section);
    }
    for (number, place) in &sections {
        file.extend_from_slice(&number.to_le_bytes());
        file.extend_from_slice(&[0; 4]);
        file.extend_from_slice(&(place.start as u64).to_le_bytes());
        file.extend_from_slice(&(place.len() as u64).to_le_bytes());
    }
    let crcs = file.chunks(PAGE_BYTES).map(crc32c::crc32c);
    let mut tail: Vec<u8> = crcs.flat_map(u32::to_le_bytes).collect();
    let footer = &bytes[bytes.len() - FOOTER_BYTES..];
    tail.extend_from_slice(&footer[..8]);
    tail.extend_from_slice(&(file.len() as u64).to_le_bytes());
    tail.extend_from_slice(&(sections.len() as u32).to_le_bytes());
    tail.extend_from_slice(&footer[20..60]);
    tail.extend_from_slice(&crc32c::crc32c(&tail).to_le_bytes());
    file.extend_from_slice(&tail);
    (file, xxh3_128(&tail))
}
