//! Golden files: a shard folder of each released format version opens for ever, and this release
//! still writes the newest of them byte for byte. `v1` holds segments without short codes,
//! `v1_short_codes` one with 1-bit codes and one with 4-bit codes.
//!
//! When a change of the format is meant, raise its version, keep the old folders, and write the new
//! ones with `HOPBINE_WRITE_GOLDEN=1 cargo test -p hopbine-shard-store --test golden this_release`.

mod ann_data;
mod segment_rows;
mod short_codes;

use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::disk::{Disk, OsDisk};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, EntityRange, Epoch, FactKey, LogIndex, Metric, SegmentId, ShardId};
use hopbine_shard_store::check::check_shard_folder;
use hopbine_shard_store::codes::Query;
use hopbine_shard_store::graph::{RowFilter, RunAsk, Scratch, Way, search_segment};
use hopbine_shard_store::manifest::{MANIFEST_FILE, MANIFEST_VERSION, Manifest, SegmentMeta};
use hopbine_shard_store::segment::{SEGMENT_VERSION, Segment};
use segment_rows::*;
use short_codes::{LAST_SECTIONS, framed, short_codes, table, with_short_codes};
use std::path::{Path, PathBuf};

const DIM: u32 = 6;
const CODED_DIM: u32 = 72;
/// Few enough candidates for codes to be looked at before any vector.
const CODED_WAYS: [(u64, Way); 2] =
    [(1, Way::Bits { rerank: 96 }), (2, Way::Nibbles { rerank: 96 })];

fn golden(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder)
}

/// Segment 1 of a graph of names, segment 2 of a graph of numbers: both in one folder, so that
/// one manifest names them.
fn all_rows() -> [(u64, Rows); 2] {
    [(1, fixed_rows(DIM as usize, 600, true)), (2, fixed_rows(DIM as usize, 90, false))]
}

/// Rows of three relations, the same for ever. Some have no vector, some that of another row.
fn coded_rows() -> Rows {
    let vectors = ann_data::related(240, CODED_DIM as usize, 9);
    let row = |number: usize| {
        let of = if number % 24 == 23 { number - 3 } else { number };
        let embedding = vectors[of].clone().filter(|_| number % 40 != 39);
        let key = FactKey::new(number as u64 / 5, number as u32 % 3, number as u64);
        (key, OwnedRow { version: number as u64 + 1, embedding, ..OwnedRow::default() })
    };
    (0..vectors.len()).map(row).collect()
}

fn stored(disk: SimDisk, dim: u32, segments: [SegmentMeta; 2]) -> (SimDisk, Manifest) {
    let range = EntityRange { start: EntityId(0), end: None };
    let mut manifest = Manifest::new(ShardId(5), dim, Metric::Cosine, range, Epoch(2));
    manifest.segments = segments.into_iter().rev().collect();
    manifest.applied_term = 4;
    manifest.applied_index = LogIndex(u64::MAX);
    manifest.membership = b"members".to_vec();
    manifest.sessions = b"sessions".to_vec();
    manifest.next_segment = SegmentId(3);
    manifest.store(&disk, Path::new(DIR)).expect("stored");
    (disk, manifest)
}

fn written() -> (SimDisk, Manifest) {
    let disk = SimDisk::new();
    let segments = all_rows().map(|(id, rows)| write(&disk, id, space(DIM), &rows));
    stored(disk, DIM, segments)
}

fn coded() -> (SimDisk, Manifest) {
    let (disk, space) = (SimDisk::new(), space(CODED_DIM));
    let segments = CODED_WAYS.map(|(id, way)| {
        let meta = write(&disk, id, space, &coded_rows());
        with_short_codes(&disk, &meta, space, way)
    });
    stored(disk, CODED_DIM, segments)
}

fn folders() -> [(PathBuf, SimDisk, Manifest); 2] {
    [("v1", written()), ("v1_short_codes", coded())]
        .map(|(folder, (disk, manifest))| (golden(folder), disk, manifest))
}

#[test]
fn this_release_writes_the_golden_folder_byte_for_byte() {
    assert_eq!((SEGMENT_VERSION, MANIFEST_VERSION), (1, 1), "a new version needs its own folder");
    for (folder, disk, manifest) in folders() {
        let segments = manifest.segments.iter().map(|meta| meta.file_name());
        for name in segments.chain([MANIFEST_FILE.to_owned()]) {
            let bytes = disk.read(&Path::new(DIR).join(&name)).expect("read");
            let path = folder.join(&name);
            if std::env::var_os("HOPBINE_WRITE_GOLDEN").is_some() {
                std::fs::create_dir_all(&folder).expect("created");
                std::fs::write(&path, &bytes).expect("written");
            }
            let known = std::fs::read(&path).expect("the golden file is in the repository");
            let first = known.iter().zip(&bytes).position(|(known, new)| known != new);
            assert_eq!(first, None, "{} differs first at this byte", path.display());
            assert_eq!(known.len(), bytes.len(), "{}", path.display());
        }
    }
}

#[test]
fn the_golden_folder_opens_and_says_what_was_written() {
    for (folder, _, written) in folders() {
        let report = check_shard_folder(&OsDisk, &folder).expect("checks");
        assert_eq!(report.findings, []);
        let manifest = Manifest::load(&OsDisk, &folder).expect("loads").expect("is there");
        assert_eq!(manifest, written);
    }
    let plain = all_rows().map(|(id, rows)| ("v1", DIM, id, rows));
    let coded = CODED_WAYS.map(|(id, _)| ("v1_short_codes", CODED_DIM, id, coded_rows()));
    for (folder, dim, id, rows) in plain.into_iter().chain(coded) {
        let segment = opened(folder, dim, id);
        assert_eq!(read_rows(&segment).expect("reads"), rows);
    }
}

fn opened(folder: &str, dim: u32, id: u64) -> Segment {
    let folder = golden(folder);
    let manifest = Manifest::load(&OsDisk, &folder).expect("loads").expect("is there");
    let meta = manifest.segments.iter().find(|meta| meta.id.0 == id).expect("is named");
    Segment::open(&OsDisk, &folder, meta, space(dim)).expect("opens")
}

#[test]
fn golden_segments_with_short_codes_are_searched_by_them() {
    let vectors: Vec<_> = coded_rows().into_values().map(|row| row.embedding).collect();
    let rows = ann_data::Rows::new(Metric::Cosine, CODED_DIM as usize, vectors);
    for (id, way) in CODED_WAYS {
        let segment = opened("v1_short_codes", CODED_DIM, id);
        let index = segment.index().expect("opens");
        assert_eq!(index.meta().way, way);
        assert!(index.graph().is_some() && index.sketch().is_some());
        let (mut sum, mut asked) = (0.0, 0.0);
        for values in rows.rows.iter().flatten() {
            let query = Query::new(Metric::Cosine, values);
            let (filter, mut work) = (RowFilter::none(), Work::default());
            let ask = RunAsk { query: &query, k: 5, mode: SeedMode::Auto, filter };
            let found = search_segment(index, &segment, &ask, &mut Scratch::default(), &mut work);
            let (found, truth) = (found.expect("searched"), rows.brute(&query, 5, |_| true));
            assert_eq!(work.ways, [way.to_string()]);
            assert_eq!(found.first(), truth.first());
            sum += ann_data::recall(&truth, &found);
            asked += 1.0;
        }
        assert!(sum / asked >= 0.95, "{way}: {sum} of {asked}");
    }
}

/// The golden segments are put together here, for a seal gives short codes to many rows only: it
/// must come to the same bytes.
#[test]
fn a_seal_of_many_rows_puts_the_same_short_codes_into_the_same_frame() {
    let few = |m, ef_construction, recall_target| IndexConfig {
        m,
        ef_construction,
        recall_target,
        ..IndexConfig::default()
    };
    for (vectors, dim, config) in [
        (ann_data::lexical(12_000, 128, 3), 128, few(8, 60, 0.99)),
        (ann_data::related(10_000, 200, 5), 200, few(4, 30, 0.9999)),
    ] {
        let (disk, space) = (SimDisk::new(), space(dim));
        let row = |(row, embedding)| {
            (ann_data::Rows::key(row), OwnedRow { version: 1, embedding, ..OwnedRow::default() })
        };
        let rows: Rows = (0..).zip(vectors).map(row).collect();
        let meta = try_write_with(&disk, 1, space, &rows, &config).expect("written");
        let bytes = bytes_of(&disk, &meta);
        let segment = open(&bytes, &meta, space).expect("opens");
        let way = segment.index().expect("opens").meta().way;
        assert!(matches!((dim, way), (128, Way::Bits { .. }) | (200, Way::Nibbles { .. })));
        let sections = table(&bytes);
        let kept = sections.len() - LAST_SECTIONS.len();
        let last: Vec<(u32, &[u8])> =
            sections[kept..].iter().map(|(number, at)| (*number, &bytes[at.clone()])).collect();
        assert_eq!(last.iter().map(|(number, _)| *number).collect::<Vec<_>>(), LAST_SECTIONS);
        let (sketch, sketch_terms) = short_codes(&segment, way);
        assert!(last[1].1 == sketch && last[2].1 == sketch_terms, "{way}: other codes");
        let (again, content_hash) = framed(&bytes, kept, &last);
        assert!(again == bytes && content_hash == meta.content_hash, "{way}: another frame");
    }
}
