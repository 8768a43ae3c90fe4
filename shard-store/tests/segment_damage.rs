//! Damage to a segment file is noticed or harmless: never another answer, never a panic.

mod segment_rows;

use hopbine_proto::disk::FileBytes;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, FactKey, KeyRange};
use hopbine_shard_store::error::StoreError;
use hopbine_shard_store::manifest::SegmentMeta;
use hopbine_shard_store::segment::{PAGE_BYTES, Segment, Touched};
use proptest::prelude::*;
use segment_rows::*;
use xxhash_rust::xxh3::xxh3_128;

const DIM: u32 = 28;

/// A file of several pages, its rows, and its manifest entry.
fn several_pages() -> (Rows, Vec<u8>, SegmentMeta) {
    let rows = fixed_rows(DIM as usize, 600, true);
    let disk = SimDisk::new();
    let meta = write(&disk, 1, space(DIM), &rows);
    let bytes = bytes_of(&disk, &meta);
    assert!(bytes.len() > 3 * PAGE_BYTES, "{} bytes", bytes.len());
    (rows, bytes, meta)
}

/// Reads all that a segment can say. Rows may differ only by an error in their place.
fn read_all(segment: &Segment, rows: Option<&Rows>) -> usize {
    let mut errors = 0;
    let mut note = |result: Result<bool, StoreError>| match result {
        Ok(equal) => assert!(equal, "a damaged file gave another answer"),
        Err(StoreError::Damaged { .. }) => errors += 1,
        Err(other) => panic!("{other:?} for a damaged file"),
    };
    let mut expected = rows.map(|rows| rows.iter());
    for row in 0..segment.rows() {
        let (key, owned) = match expected.as_mut().map(|rows| rows.next().expect("as many")) {
            Some((key, owned)) => (Some(*key), Some(owned)),
            None => (None, None),
        };
        note(segment.key(row).map(|found| key.is_none_or(|key| key == found)));
        let same = |found: u64| owned.is_none_or(|owned| owned.version == found);
        note(segment.version(row).map(|version| same(version.0)));
        let vector = segment.vector(row);
        note(vector.map(|v| owned.is_none_or(|owned| owned.embedding.as_deref() == v)));
        note(segment.norm(row).map(|_| true));
        let payload = segment.payload(row);
        note(payload.map(|p| owned.is_none_or(|owned| owned.payload.as_deref() == p.as_deref())));
        note(segment.names(row).map(|names| owned.is_none_or(|owned| owned.names == names)));
        if let Some(key) = key {
            let found = segment.find(key, &mut Touched::default());
            note(found.map(|found| found == Some(row)));
        }
    }
    for key in [FactKey::MIN, FactKey::new(1 << 63, 0, 0), FactKey::MAX] {
        let range = KeyRange { start: key, end: None };
        note(segment.range(&range, &mut Touched::default()).map(|_| true));
        let range = KeyRange::entity(EntityId(key.entity.0));
        note(segment.range(&range, &mut Touched::default()).map(|rows| rows.end <= segment.rows()));
    }
    let relations: Vec<_> = segment.relations().collect();
    for (relation, count) in relations {
        note(segment.relation_rows(relation).map(|rows| rows.len() == count as usize));
    }
    note(segment.index().map(|_| true));
    errors
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let (rows, mut bytes, meta) = several_pages();
    let mut opened = 0;
    for place in 0..bytes.len() {
        bytes[place] ^= 1 << (place % 8);
        match open(&bytes, &meta, space(DIM)) {
            Err(StoreError::Damaged { .. }) => {}
            Err(other) => panic!("{other:?} at byte {place}"),
            Ok(segment) => {
                opened += 1;
                // Reading everything takes a while, so every 29th byte must do.
                if place % 29 == 0 {
                    read_all(&segment, Some(&rows));
                }
                match segment.verify_all(&mut |_| true) {
                    Err(StoreError::Damaged { offset, .. }) => {
                        assert!(offset as usize <= place, "byte {place} is reported at {offset}");
                    }
                    other => panic!("{other:?} at byte {place}"),
                }
            }
        }
        bytes[place] ^= 1 << (place % 8);
    }
    assert!(opened > PAGE_BYTES / 2, "only {opened} flips were left to the pages");
    assert_eq!(read_all(&open(&bytes, &meta, space(DIM)).expect("opens"), Some(&rows)), 0);
}

#[test]
fn a_file_cut_at_any_length_does_not_open() {
    let (_, bytes, meta) = several_pages();
    for length in 0..bytes.len() {
        let cut = FileBytes::copied_from(&bytes[..length]);
        let honest = SegmentMeta { bytes: length as u64, ..meta.clone() };
        for meta in [&meta, &honest] {
            let error = Segment::open_bytes(cut.clone(), meta, space(DIM)).expect_err("cut");
            assert!(matches!(error, StoreError::Damaged { .. }), "{error:?} at length {length}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    open(&longer, &meta, space(DIM)).expect_err("a longer file is another file");
}

#[test]
fn another_sound_segment_in_its_place_is_noticed() {
    let (rows, bytes, meta) = several_pages();
    let mut fewer = rows.clone();
    fewer.pop_last();
    let disk = SimDisk::new();
    let other = write(&disk, 1, space(DIM), &fewer);
    open(&bytes_of(&disk, &other), &meta, space(DIM)).expect_err("not the file of the manifest");
    open(&bytes, &meta, space(DIM + 1)).expect_err("another dimension");
}

/// Makes all checksums of a changed file agree again, as a hostile writer would.
fn resealed(mut bytes: Vec<u8>, meta: &SegmentMeta) -> (Vec<u8>, SegmentMeta) {
    let header_crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&header_crc.to_le_bytes());
    let footer = bytes.len() - 64;
    let mut end = [0; 8];
    end.copy_from_slice(&bytes[footer + 8..footer + 16]);
    let end = u64::from_le_bytes(end) as usize;
    if end + end.div_ceil(PAGE_BYTES) * 4 == footer {
        for page in 0..end.div_ceil(PAGE_BYTES) {
            let place = page * PAGE_BYTES..((page + 1) * PAGE_BYTES).min(end);
            let crc = crc32c::crc32c(&bytes[place]);
            bytes[end + page * 4..end + page * 4 + 4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let (tail, last) = (end.min(footer), bytes.len() - 4);
    let crc = crc32c::crc32c(&bytes[tail..last]);
    bytes[last..].copy_from_slice(&crc.to_le_bytes());
    let mut meta = meta.clone();
    meta.content_hash = xxh3_128(&bytes[tail..]);
    meta.bytes = bytes.len() as u64;
    (bytes, meta)
}

#[test]
fn a_resealed_file_opens_so_that_the_next_test_means_something() {
    let (rows, bytes, meta) = several_pages();
    let (same, same_meta) = resealed(bytes.clone(), &meta);
    assert_eq!((same, same_meta), (bytes.clone(), meta.clone()));
    let mut changed = bytes;
    changed[64] ^= 1;
    let (changed, changed_meta) = resealed(changed, &meta);
    let segment = open(&changed, &changed_meta, space(DIM)).expect("checksums agree");
    let read = read_rows(&segment).expect("reads");
    assert_ne!(read, rows, "the first vector differs");
    segment.verify_all(&mut |_| true).expect_err("its norm does not");
}

proptest! {
    #[test]
    fn a_hostile_file_with_right_checksums_never_panics(
        (_, rows) in any_rows(3, 60),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        near_end in any::<bool>(),
    ) {
        let disk = SimDisk::new();
        let meta = write(&disk, 1, space(3), &rows);
        let mut bytes = bytes_of(&disk, &meta);
        for (place, value) in changes {
            // Section table and footer decide about all places, so half of the changes go there.
            let from = if near_end { bytes.len().saturating_sub(600) } else { 0 };
            let at = from + place.index(bytes.len() - from);
            bytes[at] = value;
        }
        let (bytes, meta) = resealed(bytes, &meta);
        if let Ok(segment) = open(&bytes, &meta, space(3)) {
            read_all(&segment, None);
            let _ = segment.verify_all(&mut |_| true);
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_segment(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        framed in any::<bool>(),
    ) {
        let disk = SimDisk::new();
        let meta = write(&disk, 1, space(3), &Rows::new());
        let mut bytes = bytes;
        if framed && bytes.len() >= 128 {
            let sound = bytes_of(&disk, &meta);
            bytes[..64].copy_from_slice(&sound[..64]);
            let (at, from) = (bytes.len() - 64, sound.len() - 64);
            bytes[at..].copy_from_slice(&sound[from..]);
        }
        prop_assert!(open(&bytes, &meta, space(3)).is_err());
        if bytes.len() >= 128 {
            let (bytes, meta) = resealed(bytes, &meta);
            prop_assert!(open(&bytes, &meta, space(3)).is_err());
        }
    }
}
