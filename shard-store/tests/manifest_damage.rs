//! The manifest: what is stored is loaded, damage is noticed, a crash leaves the old or the new
//! one, and a check of the folder finds what is wrong.

mod segment_rows;

use hopbine_proto::disk::Disk;
use hopbine_proto::limits::COUNTER_MAX;
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::{EntityId, EntityRange, Epoch, FactKey, LogIndex, Metric, SegmentId, ShardId};
use hopbine_shard_store::check::check_shard_folder;
use hopbine_shard_store::error::StoreError;
use hopbine_shard_store::manifest::{
    MANIFEST_FILE, Manifest, SegmentMeta, list_orphans, segment_file_name,
};
use hopbine_shard_store::segment::Segment;
use proptest::prelude::*;
use segment_rows::*;
use std::io::ErrorKind;
use std::path::Path;

fn empty(dim: u32) -> Manifest {
    Manifest::new(ShardId(7), dim, Metric::Cosine, EntityRange::ALL, Epoch(3))
}

/// A disk with a sound folder of two segments.
fn folder() -> (SimDisk, Manifest) {
    let disk = SimDisk::new();
    let mut manifest = empty(4);
    for id in [1, 2] {
        let meta = write(&disk, id, space(4), &fixed_rows(4, 60 * id, false));
        manifest.segments.insert(0, meta);
    }
    manifest.next_segment = SegmentId(3);
    manifest.applied_term = 2;
    manifest.applied_index = LogIndex(u64::MAX);
    manifest.membership = vec![1, 2, 3];
    manifest.sessions = vec![0; 300];
    manifest.store(&disk, Path::new(DIR)).expect("stored");
    (disk, manifest)
}

fn any_meta() -> impl Strategy<Value = SegmentMeta> {
    let key = || {
        let key = any::<(u64, u32, u64)>().prop_map(|(e, r, t)| FactKey::new(e, r, t));
        proptest::option::of(key)
    };
    let ends = (key(), key());
    let recall = proptest::option::of(0.0f64..=1.0);
    let texts = ("[a-z =0-9]{0,12}", recall, proptest::option::of("[a-z ]{0,20}"));
    (any::<[u64; 4]>(), any::<[u32; 4]>(), any::<u128>(), ends, texts).prop_map(
        |(large, small, content_hash, (min_key, max_key), (way, recall, alarm))| SegmentMeta {
            id: SegmentId(large[0] / 2),
            rows: small[0],
            vectors: small[1],
            tombstones: small[2],
            min_key,
            max_key,
            min_version: LogIndex(large[1]),
            max_version: LogIndex(large[2]),
            bytes: large[3],
            content_hash,
            name_collisions: small[3],
            way,
            recall,
            alarm,
        },
    )
}

proptest! {
    #[test]
    fn what_is_stored_is_loaded(
        metas in proptest::collection::vec(any_meta(), 0..4),
        numbers in any::<[u64; 4]>(),
        end in proptest::option::of(any::<u64>()),
        membership in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut manifest = empty(4096);
        manifest.metric = Metric::L2;
        manifest.range = EntityRange { start: EntityId(numbers[0]), end: end.map(EntityId) };
        manifest.applied_term = numbers[1];
        manifest.applied_index = LogIndex(numbers[2]);
        manifest.next_segment = SegmentId(COUNTER_MAX);
        manifest.sessions = membership.iter().rev().copied().collect();
        manifest.membership = membership;
        manifest.segments = metas;
        manifest.segments.dedup_by_key(|meta| meta.id);
        let disk = SimDisk::new();
        manifest.store(&disk, Path::new(DIR)).expect("stored");
        prop_assert_eq!(Manifest::load(&disk, Path::new(DIR)).expect("loads"), Some(manifest));
    }

    #[test]
    fn arbitrary_bytes_are_no_manifest(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        framed in any::<bool>(),
    ) {
        let mut bytes = body;
        if framed {
            // A right head and checksum around a wrong body.
            let head = empty(1).encode()[..12].to_vec();
            let length = bytes.len() as u32;
            bytes = [head, length.to_le_bytes().to_vec(), bytes].concat();
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
        }
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert!(framed, "an unframed manifest {manifest:?}");
        }
    }
}

#[test]
fn a_flipped_bit_or_a_cut_anywhere_in_the_manifest_is_noticed() {
    let (_, manifest) = folder();
    let mut bytes = manifest.encode();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            bytes[place] ^= 1 << bit;
            let error = Manifest::decode(&bytes).expect_err("damaged");
            assert!(matches!(error, StoreError::DamagedManifest { .. }), "{error:?} at {place}");
            bytes[place] ^= 1 << bit;
        }
        let error = Manifest::decode(&bytes[..place]).expect_err("cut");
        assert!(matches!(error, StoreError::DamagedManifest { .. }), "{error:?} cut at {place}");
    }
    assert_eq!(Manifest::decode(&bytes).expect("sound"), manifest);
}

#[test]
fn a_manifest_of_another_version_is_named_as_such() {
    let mut bytes = empty(4).encode();
    bytes[8] = 9;
    let end = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    let error = Manifest::decode(&bytes).expect_err("unknown");
    assert_eq!(error.to_string(), "manifest has format version 9, this release reads 1");
}

#[test]
fn a_manifest_that_names_a_segment_twice_or_out_of_number_is_refused() {
    let (_, manifest) = folder();
    let mut twice = manifest.clone();
    twice.segments.push(twice.segments[0].clone());
    assert!(Manifest::decode(&twice.encode()).is_err());
    let mut ahead = manifest;
    ahead.next_segment = SegmentId(2);
    assert!(Manifest::decode(&ahead.encode()).is_err());
}

#[test]
fn a_folder_without_manifest_loads_none() {
    let disk = SimDisk::new();
    disk.create_dir(Path::new(DIR)).expect("created");
    assert_eq!(Manifest::load(&disk, Path::new(DIR)).expect("loads"), None);
}

#[test]
fn orphans_are_segments_and_temporary_files_that_the_manifest_does_not_name() {
    let (disk, manifest) = folder();
    let dir = Path::new(DIR);
    write(&disk, 9, space(4), &fixed_rows(4, 3, false));
    for name in ["MANIFEST.tmp", "0000000000000009.payload.tmp", "NOTES"] {
        disk.create(&dir.join(name)).expect("created");
    }
    let orphans = list_orphans(&disk, dir, &manifest).expect("listed");
    let names = ["0000000000000009.payload.tmp", "0000000000000009.segment", "MANIFEST.tmp"];
    assert_eq!(orphans, names.map(|name| dir.join(name)));
}

#[test]
fn after_a_crash_at_any_sync_point_the_manifest_names_only_whole_segments() {
    let dir = Path::new(DIR);
    let rows = fixed_rows(4, 40, true);
    for tear in [Tear::Lost, Tear::HalfOfFirst, Tear::Kept] {
        for point in 0.. {
            let disk = SimDisk::new();
            empty(4).store(&disk, dir).expect("stored");
            disk.fail_from(disk.sync_points() + point);
            let result = try_write(&disk, 1, space(4), &rows).and_then(|meta| {
                let mut manifest = empty(4);
                manifest.next_segment = SegmentId(2);
                manifest.applied_index = meta.max_version;
                manifest.segments.push(meta);
                manifest.store(&disk, dir)
            });
            disk.crash(tear);
            let manifest = Manifest::load(&disk, dir).expect("loads").expect("one of the two");
            let report = check_shard_folder(&disk, dir).expect("checks");
            assert_eq!(report.findings, [], "{tear:?} at point {point}");
            match (result, manifest.segments.first()) {
                (Ok(()), None) => panic!("an acknowledged segment is lost"),
                (_, Some(meta)) => {
                    let segment = Segment::open(&disk, dir, meta, space(4)).expect("opens");
                    assert_eq!(read_rows(&segment).expect("reads"), rows);
                }
                (Err(StoreError::SyncFailed(_) | StoreError::Io(_)), None) => {}
                (Err(other), None) => panic!("{other:?} instead of a failed sync"),
            }
            if manifest.segments.len() == 1 && point > 4 {
                break;
            }
            assert!(point < 20, "the workload never got through");
        }
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_no_file_behind() {
    let rows = fixed_rows(64, 400, true);
    let disk = SimDisk::new();
    let needed = write(&disk, 1, space(64), &rows).bytes;
    disk.remove(&Path::new(DIR).join(segment_file_name(SegmentId(1)))).expect("removed");
    for capacity in [0, 100, needed / 2, needed - 1] {
        disk.set_capacity(Some(capacity));
        let error = try_write(&disk, 2, space(64), &rows).expect_err("no space");
        assert!(matches!(error, StoreError::DiskFull(_)), "{error:?}");
        assert_eq!(disk.files(), [] as [&Path; 0]);
    }
    disk.set_capacity(None);
    disk.set_write_error(Some(ErrorKind::PermissionDenied));
    let error = try_write(&disk, 2, space(64), &rows).expect_err("refused");
    assert!(matches!(error, StoreError::Io(_)), "{error:?}");
    disk.set_write_error(None);
    write(&disk, 2, space(64), &rows);
}

#[test]
fn a_check_of_a_sound_folder_finds_nothing() {
    let (disk, manifest) = folder();
    let report = check_shard_folder(&disk, Path::new(DIR)).expect("checks");
    assert_eq!((report.segments, report.findings, report.orphans), (2, vec![], vec![]));
    let rows = |meta: &SegmentMeta| u64::from(meta.rows);
    assert_eq!(report.rows, manifest.segments.iter().map(rows).sum::<u64>());
    assert_eq!(report.bytes, manifest.segments.iter().map(|meta| meta.bytes).sum::<u64>());
}

#[test]
fn a_check_names_every_damaged_file_and_goes_on() {
    let (disk, manifest) = folder();
    let dir = Path::new(DIR);
    let paths: Vec<_> = manifest.segments.iter().map(|m| dir.join(m.file_name())).collect();
    disk.tamper(&paths[0], |bytes| bytes[70] ^= 4);
    disk.remove(&paths[1]).expect("removed");
    let report = check_shard_folder(&disk, dir).expect("checks");
    assert_eq!(report.findings.len(), 2);
    assert_eq!(report.findings[0].file, paths[0]);
    assert_eq!(report.findings[0].offset, Some(0));
    assert_eq!(report.findings[1].file, paths[1]);
    assert!(report.findings[1].what.contains("no such file"), "{:?}", report.findings[1]);
    assert_eq!(report.rows, 0);

    disk.tamper(&dir.join(MANIFEST_FILE), |bytes| bytes[20] ^= 4);
    let report = check_shard_folder(&disk, dir).expect("checks");
    assert_eq!(report.findings[0].what, "manifest is damaged: checksum differs");

    disk.remove(&dir.join(MANIFEST_FILE)).expect("removed");
    let report = check_shard_folder(&disk, dir).expect("checks");
    assert_eq!(report.findings[0].what, "no manifest");
}

#[test]
fn a_row_above_the_applied_index_is_a_finding() {
    let (disk, mut manifest) = folder();
    manifest.applied_index = LogIndex(5);
    manifest.store(&disk, Path::new(DIR)).expect("stored");
    let report = check_shard_folder(&disk, Path::new(DIR)).expect("checks");
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].what.contains("above the applied index"));
}
