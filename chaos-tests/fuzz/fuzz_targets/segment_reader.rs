//! A segment file of any bytes: read whole, searched and scrubbed without a panic.
//!
//! The first byte chooses what the rest means: a file as it is; edits of a sound file, with its
//! checksums left (then every answer must be the old one or `Damaged`) or made to agree again (a
//! hostile writer; then a file that passes the scrub must also read whole); edits of the parts of
//! an index with a graph.
#![no_main]

use hopbine_fuzz::{Input, edit};
use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::disk::{Disk, FileBytes};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::name_id;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, FactKey, KeyRange, LogIndex, Metric, Names, RelationId, SegmentId};
use hopbine_shard_store::codes::Query;
use hopbine_shard_store::error::StoreError;
use hopbine_shard_store::graph::build::{BuildInput, GraphBuilder, NativeBuilder, level_of};
use hopbine_shard_store::graph::{
    IndexMeta, IndexSections, RowFilter, RunAsk, Scratch, SealInput, Section, SegmentIndex,
    VectorRow, VectorSource, Way, seal, search_segment,
};
use hopbine_shard_store::kernel::norm;
use hopbine_shard_store::manifest::SegmentMeta;
use hopbine_shard_store::nibbles::NibbleEncoder;
use hopbine_shard_store::segment::{PAGE_BYTES, Segment, SegmentRow, SegmentWriter};
use hopbine_shard_store::segment::{Touched, VectorSpace};
use hopbine_shard_store::signs::SignEncoder;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::LazyLock;
use xxhash_rust::xxh3::xxh3_128;

const SPACE: VectorSpace = VectorSpace { dim: 3, metric: Metric::Cosine };
const HEADER_BYTES: usize = 64;
const FOOTER_BYTES: usize = 64;
/// Rows of a file that claims more are read from both ends only.
const ROWS_READ_MAX: u32 = 1_200;

/// What was written of a row.
struct Row {
    key: FactKey,
    version: LogIndex,
    embedding: Option<Vec<f32>>,
    payload: Option<String>,
    names: Option<Names>,
}

struct Sample {
    rows: Vec<Row>,
    bytes: Vec<u8>,
    meta: SegmentMeta,
}

/// No row; a few; one block; two blocks.
static SAMPLES: LazyLock<Vec<Sample>> =
    LazyLock::new(|| vec![sample(0, false), sample(7, true), sample(60, false), sample(530, true)]);

fn embedding(number: u64) -> Vec<f32> {
    (0..3).map(|i| ((number * 37 + i * 101) % 255) as f32 / 64.0 - 2.0).collect()
}

fn row(number: u64, named: bool) -> Row {
    let (entity, target) = (number / 5, number * 7919 % 1000);
    let names = named.then(|| Names {
        entity: format!("entity {entity}").into(),
        target: format!("target {target}").into(),
    });
    let ids = names.as_ref().map(|names| (name_id(&names.entity), name_id(&names.target)));
    let (entity, target) = ids.unwrap_or((EntityId(entity), EntityId(target)));
    let key = FactKey { entity, relation: RelationId((number % 3) as u32), target };
    let version = LogIndex(number * 31 % 977 + 1);
    if number % 11 == 10 {
        return Row { key, version, embedding: None, payload: None, names: None };
    }
    Row {
        key,
        version,
        embedding: (number % 7 != 3).then(|| embedding(number)),
        payload: (number % 4 != 1).then(|| format!("{{\"text\": \"fact number {number}\"}}")),
        names,
    }
}

fn sample(count: u64, named: bool) -> Sample {
    let mut rows: Vec<Row> = (0..count).map(|number| row(number, named)).collect();
    rows.sort_by_key(|row| row.key);
    rows.dedup_by_key(|row| row.key);
    let (disk, dir) = (SimDisk::new(), Path::new("/shard"));
    let config = IndexConfig::default();
    let mut writer =
        SegmentWriter::create(&disk, dir, SegmentId(1), SPACE, &config).expect("a new file");
    for row in &rows {
        let written = SegmentRow {
            key: row.key,
            version: row.version,
            tombstone: row.embedding.is_none() && row.payload.is_none() && row.names.is_none(),
            embedding: row.embedding.as_deref(),
            payload: row.payload.as_deref(),
            names: row.names.as_ref(),
        };
        writer.push(&written).expect("in key order");
    }
    let meta = writer.finish().expect("written");
    let bytes = disk.read(&dir.join(meta.file_name())).expect("read");
    Sample { rows, bytes, meta }
}

/// Makes checksums and manifest agree with changed bytes, as a hostile writer would.
fn reseal(bytes: &mut [u8], meta: &mut SegmentMeta) {
    let Some(footer) = bytes.len().checked_sub(FOOTER_BYTES) else { return };
    if footer < HEADER_BYTES {
        return;
    }
    let header_crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header_crc.to_le_bytes());
    let word = |bytes: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[footer + at..footer + at + 8]);
        u64::from_le_bytes(word)
    };
    let number = |bytes: &[u8], at: usize| word(bytes, at) as u32;
    let end = word(bytes, 8) as usize;
    let pages = end.div_ceil(PAGE_BYTES);
    if end < footer && end + pages * 4 == footer {
        for page in 0..pages {
            let place = page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(end);
            let crc = crc32c::crc32c(&bytes[place]);
            bytes[end + page * 4..end + page * 4 + 4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let (tail, last) = (end.min(footer), bytes.len() - 4);
    let crc = crc32c::crc32c(&bytes[tail..last]);
    bytes[last..].copy_from_slice(&crc.to_le_bytes());
    meta.content_hash = xxh3_128(&bytes[tail..]);
    meta.bytes = bytes.len() as u64;
    meta.rows = number(bytes, 20);
    meta.vectors = number(bytes, 24);
    meta.tombstones = number(bytes, 28);
    meta.name_collisions = number(bytes, 36);
    meta.min_version = LogIndex(word(bytes, 40));
    meta.max_version = LogIndex(word(bytes, 48));
}

/// Notes whether a read failed, which it may only as damage.
#[derive(Default)]
struct Damage(usize);

impl Damage {
    fn of<T>(&mut self, read: Result<T, StoreError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(StoreError::Damaged { .. }) => {
                self.0 += 1;
                None
            }
            Err(other) => panic!("{other:?} for a damaged file"),
        }
    }
}

/// Reads all that a segment can say; returns how often it was found damaged.
fn read_all(segment: &Segment) -> usize {
    let (mut damage, mut touched) = (Damage::default(), Touched::default());
    let rows = segment.rows();
    let half = ROWS_READ_MAX / 2;
    for row in (0..rows.min(half)).chain(rows.saturating_sub(half).max(half)..rows) {
        let key = damage.of(segment.key(row));
        damage.of(segment.version(row));
        let vector = damage.of(segment.vector(row)).flatten();
        assert!(vector.is_none() || segment.has_vector(row));
        damage.of(segment.norm(row));
        let payload = damage.of(segment.payload(row)).flatten();
        assert!(payload.is_none() || segment.has_payload(row));
        damage.of(segment.names(row));
        if let Some(key) = key {
            let found = damage.of(segment.find(key, &mut touched)).flatten();
            assert!(found.is_none_or(|found| found < rows));
            damage.of(segment.name(key.entity));
            let range = KeyRange::entity(key.entity);
            let found = damage.of(segment.range(&range, &mut touched));
            assert!(found.is_none_or(|found| found.end <= rows));
        }
    }
    if rows <= ROWS_READ_MAX {
        let mut visited = 0;
        damage.of(segment.for_each_key(0..rows, |row, _| {
            assert_eq!(row, visited);
            visited += 1;
        }));
    }
    assert!(segment.tombstones().all(|row| row < rows && segment.is_tombstone(row)));
    let middle = FactKey::new(1 << 63, 0, 0);
    let ranges = [
        KeyRange { start: FactKey::MIN, end: Some(FactKey::new(3, 1, 0)) },
        KeyRange { start: FactKey::new(3, 1, 0), end: Some(middle) },
        KeyRange { start: middle, end: None },
    ];
    let mut found = Vec::new();
    damage.of(segment.ranges(&ranges, &mut touched, &mut found));
    assert!(found.iter().all(|found| found.end <= rows));
    for zone in segment.zones() {
        for range in &ranges {
            zone.may_contain(range);
        }
    }
    let relations: Vec<_> = segment.relations().collect();
    for (relation, count) in relations {
        if let Some(listed) = damage.of(segment.relation_rows(relation)) {
            assert_eq!(listed.len(), count as usize);
            assert!(listed.iter().all(|row| *row < rows));
        }
    }
    if let Some(index) = damage.of(segment.index()) {
        for found in search_all(index, segment) {
            damage.of(found);
        }
    }
    damage.0
}

fn search_all<V: VectorSource>(
    index: &SegmentIndex,
    vectors: &V,
) -> Vec<Result<Vec<(f64, u32)>, V::Error>> {
    let query = Query::new(index.meta().metric, &[0.5, -1.0, 0.25]);
    let modes = [SeedMode::Auto, SeedMode::Graph { ef: 8 }, SeedMode::Scan, SeedMode::Exact];
    let mut scratch = Scratch::default();
    let asked = modes.into_iter().map(|mode| {
        let ask = RunAsk { query: &query, k: 5, mode, filter: RowFilter::none() };
        search_segment(index, vectors, &ask, &mut scratch, &mut Work::default())
    });
    asked.collect()
}

/// Compares what an edited file still says with what was written.
fn compare(segment: &Segment, written: &[Row]) {
    let mut damage = Damage::default();
    assert_eq!(segment.rows() as usize, written.len());
    for (row, written) in (0..).zip(written) {
        if let Some(key) = damage.of(segment.key(row)) {
            assert_eq!(key, written.key);
        }
        if let Some(version) = damage.of(segment.version(row)) {
            assert_eq!(version, written.version);
        }
        if let Some(vector) = damage.of(segment.vector(row)) {
            assert_eq!(vector, written.embedding.as_deref());
        }
        if let Some(payload) = damage.of(segment.payload(row)) {
            assert_eq!(payload.as_deref(), written.payload.as_deref());
        }
        if let Some(names) = damage.of(segment.names(row)) {
            assert_eq!(names, written.names);
        }
        if let Some(found) = damage.of(segment.find(written.key, &mut Touched::default())) {
            assert_eq!(found, Some(row));
        }
    }
}

fn any_file(bytes: &[u8], meta: &SegmentMeta) -> Option<Segment> {
    match Segment::open_bytes(FileBytes::copied_from(bytes), meta, SPACE) {
        Ok(segment) => Some(segment),
        // A header of another version under a right checksum is a newer program's file.
        Err(StoreError::Damaged { .. } | StoreError::UnknownVersion { .. }) => None,
        Err(other) => panic!("{other:?} for a damaged file"),
    }
}

fn scrub(segment: &Segment) -> bool {
    Damage::default().of(segment.verify_all(&mut |_| true)).is_some()
}

/// An index with a graph, in parts.
#[derive(Clone)]
struct Parts {
    meta: IndexMeta,
    codes: Vec<u8>,
    terms: Vec<u8>,
    members: Vec<u8>,
    graph: Vec<u8>,
    sketch: Vec<u8>,
    sketch_terms: Vec<u8>,
}

impl Parts {
    fn open(&self) -> Option<SegmentIndex> {
        let sections = IndexSections {
            codes: Section::copied_from(&self.codes),
            terms: Section::copied_from(&self.terms),
            members: Section::copied_from(&self.members),
            graph: Section::copied_from(&self.graph),
            sketch: Section::copied_from(&self.sketch),
            sketch_terms: Section::copied_from(&self.sketch_terms),
        };
        SegmentIndex::open(self.meta.clone(), sections).ok()
    }
}

/// Vectors of `rows` rows: every seventh has none, some are equal.
struct Vectors {
    rows: u32,
    values: Vec<Option<(Vec<f32>, f64)>>,
}

impl Vectors {
    fn new(rows: u32) -> Self {
        let value = |row: u32| {
            let values = embedding(u64::from(row) % 31);
            let norm = norm(&values);
            (row % 7 != 3).then_some((values, norm))
        };
        Self { rows, values: (0..rows.min(4_096)).map(value).collect() }
    }
}

impl VectorSource for Vectors {
    type Error = std::convert::Infallible;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, Self::Error> {
        assert!(row < self.rows, "asked for row {row} of {}", self.rows);
        let value = self.values.get(row as usize).and_then(Option::as_ref);
        Ok(value.map(|(values, norm)| VectorRow { values, norm: *norm }))
    }
}

/// The same index with 1-bit codes and with 4-bit ones.
static PARTS: LazyLock<[Parts; 2]> = LazyLock::new(|| {
    let config = IndexConfig { m: 4, ef_construction: 16, ..IndexConfig::default() };
    let vectors = Vectors::new(45);
    let key = |row: u32| FactKey::new(row.into(), 0, 0);
    let input = SealInput {
        metric: SPACE.metric,
        dim: SPACE.dim as usize,
        rows: vectors.rows,
        config: &config,
        vectors: &vectors,
        key: &key,
    };
    let Ok(sealed) = seal(&input);
    let mut parts = Parts {
        meta: sealed.meta,
        codes: sealed.codes,
        terms: sealed.terms,
        members: sealed.members,
        graph: Vec::new(),
        sketch: Vec::new(),
        sketch_terms: Vec::new(),
    };
    let index = parts.open().expect("as it was sealed");
    let levels: Vec<u8> = (0..parts.meta.nodes).map(|node| level_of(key(node), 0, 4)).collect();
    let codes = index.codes();
    let input = BuildInput { codes, metric: SPACE.metric, config: &config, levels: &levels };
    parts.graph = NativeBuilder.build(&input).expect("built").to_bytes();
    let (members, dim) = (index.members(), SPACE.dim as usize);
    let mut signs = SignEncoder::new(SPACE.metric, vec![0.25; dim]);
    let mut nibbles = NibbleEncoder::new(SPACE.metric, dim, vec![0.25; 2 * dim]);
    for node in 0..parts.meta.nodes {
        let Ok(vector) = vectors.vector(members.first_row(node));
        let vector = vector.expect("a node's row has a vector");
        signs.push(vector.values, vector.norm);
        nibbles.push((node % 2) as u8, vector.values, vector.norm);
    }
    let bits = (Way::Bits { rerank: 10 }, signs.finish());
    let nibbles = (Way::Nibbles { rerank: 10 }, nibbles.finish());
    [bits, nibbles].map(|(way, (sketch, sketch_terms))| {
        let mut parts = Parts { sketch, sketch_terms, ..parts.clone() };
        parts.meta.way = way;
        let whole = parts.open().expect("with its graph and sketch");
        assert!(whole.graph().is_some() && whole.sketch().is_some());
        parts
    })
});

fn edited_index(mut input: Input<'_>) {
    let what = input.byte();
    let mut parts = PARTS[usize::from(what >> 7)].clone();
    if what & 0x10 != 0 {
        let places = [&mut parts.meta.rows, &mut parts.meta.vectors, &mut parts.meta.nodes];
        for place in places {
            *place = place.wrapping_add_signed(i32::from(input.byte() as i8));
        }
    }
    if what & 0x20 != 0 {
        let number = u32::from_le_bytes(input.take());
        parts.meta.way = match number >> 31 {
            0 => Way::Graph { ef: number % 1_000 },
            _ if number >> 30 & 1 == 0 => Way::Bits { rerank: number % 30 },
            _ => Way::Nibbles { rerank: number % 30 },
        };
    }
    if what & 0x40 != 0 {
        parts.meta.scale = f32::from_le_bytes(input.take());
        parts.meta.error_max = f32::from_le_bytes(input.take());
        parts.meta.size_max = f32::from_le_bytes(input.take());
    }
    let part = match what % 6 {
        0 => &mut parts.codes,
        1 => &mut parts.terms,
        2 => &mut parts.members,
        3 => &mut parts.sketch,
        4 => &mut parts.sketch_terms,
        _ => &mut parts.graph,
    };
    edit(part, &mut input);
    if let Some(index) = parts.open() {
        let rows = index.meta().rows;
        for found in search_all(&index, &Vectors::new(rows)) {
            let Ok(found) = found;
            assert!(found.iter().all(|(_, row)| *row < rows));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mode = usize::from(input.byte());
    let sample = &SAMPLES[mode / 4 % SAMPLES.len()];
    let mut meta = sample.meta.clone();
    let mut bytes = sample.bytes.clone();
    match mode % 4 {
        0 => {
            bytes = input.rest().to_vec();
            let opens = any_file(&bytes, &meta).is_some();
            assert!(!opens || bytes == sample.bytes, "not the file that was written");
            reseal(&mut bytes, &mut meta);
            if let Some(segment) = any_file(&bytes, &meta) {
                read_all(&segment);
                scrub(&segment);
            }
        }
        1 => {
            edit(&mut bytes, &mut input);
            if let Some(segment) = any_file(&bytes, &meta) {
                compare(&segment, &sample.rows);
                assert_eq!(scrub(&segment), bytes == sample.bytes);
            }
        }
        2 => {
            edit(&mut bytes, &mut input);
            reseal(&mut bytes, &mut meta);
            if let Some(segment) = any_file(&bytes, &meta) {
                let damage = read_all(&segment);
                assert!(!scrub(&segment) || damage == 0, "a scrubbed file is unreadable");
            }
        }
        _ => edited_index(input),
    }
});
