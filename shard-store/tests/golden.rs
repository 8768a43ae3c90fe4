//! Golden files: a shard folder of each released format version opens for ever, and this release
//! still writes the newest of them byte for byte.
//!
//! When a change of the format is meant, raise its version, keep the old folder, and write the new
//! one with `HOPBINE_WRITE_GOLDEN=1 cargo test -p hopbine-shard-store --test golden`.

mod segment_rows;

use hopbine_proto::disk::{Disk, OsDisk};
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, EntityRange, Epoch, LogIndex, Metric, SegmentId, ShardId};
use hopbine_shard_store::check::check_shard_folder;
use hopbine_shard_store::manifest::{MANIFEST_FILE, MANIFEST_VERSION, Manifest};
use hopbine_shard_store::segment::{SEGMENT_VERSION, Segment};
use segment_rows::*;
use std::path::{Path, PathBuf};

const DIM: u32 = 6;

fn golden(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// Segment 1 of a graph of names, segment 2 of a graph of numbers: both in one folder, so that
/// one manifest names them.
fn all_rows() -> [(u64, Rows); 2] {
    [(1, fixed_rows(DIM as usize, 600, true)), (2, fixed_rows(DIM as usize, 90, false))]
}

fn written() -> (SimDisk, Manifest) {
    let disk = SimDisk::new();
    let range = EntityRange { start: EntityId(0), end: None };
    let mut manifest = Manifest::new(ShardId(5), DIM, Metric::Cosine, range, Epoch(2));
    for (id, rows) in all_rows() {
        manifest.segments.insert(0, write(&disk, id, space(DIM), &rows));
    }
    manifest.applied_term = 4;
    manifest.applied_index = LogIndex(u64::MAX);
    manifest.membership = b"members".to_vec();
    manifest.sessions = b"sessions".to_vec();
    manifest.next_segment = SegmentId(3);
    manifest.store(&disk, Path::new(DIR)).expect("stored");
    (disk, manifest)
}

#[test]
fn this_release_writes_the_golden_folder_byte_for_byte() {
    assert_eq!((SEGMENT_VERSION, MANIFEST_VERSION), (1, 1), "a new version needs its own folder");
    let (disk, manifest) = written();
    let mut names: Vec<String> = manifest.segments.iter().map(|meta| meta.file_name()).collect();
    names.push(MANIFEST_FILE.to_owned());
    for name in names {
        let bytes = disk.read(&Path::new(DIR).join(&name)).expect("read");
        let path = golden(1).join(&name);
        if std::env::var_os("HOPBINE_WRITE_GOLDEN").is_some() {
            std::fs::create_dir_all(golden(1)).expect("created");
            std::fs::write(&path, &bytes).expect("written");
        }
        let known = std::fs::read(&path).expect("the golden file is in the repository");
        let first = known.iter().zip(&bytes).position(|(known, new)| known != new);
        assert_eq!(first, None, "{name} differs first at this byte");
        assert_eq!(known.len(), bytes.len(), "{name}");
    }
}

#[test]
fn the_golden_folder_opens_and_says_what_was_written() {
    let report = check_shard_folder(&OsDisk, &golden(1)).expect("checks");
    assert_eq!(report.findings, []);
    let manifest = Manifest::load(&OsDisk, &golden(1)).expect("loads").expect("is there");
    assert_eq!(manifest, written().1);
    for (id, rows) in all_rows() {
        let meta = manifest.segments.iter().find(|meta| meta.id.0 == id).expect("is named");
        let segment = Segment::open(&OsDisk, &golden(1), meta, space(DIM)).expect("opens");
        assert_eq!(read_rows(&segment).expect("reads"), rows);
    }
}
