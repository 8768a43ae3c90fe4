//! A segment answers like the ordered map that it was written from.

mod segment_rows;

use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{EntityId, FactKey, KeyRange, RelationId};
use hopbine_shard_store::segment::{BLOCK_ROWS, Segment, Touched};
use proptest::prelude::*;
use segment_rows::*;
use std::collections::BTreeMap;

fn reopened(rows: &Rows, dim: u32) -> Segment {
    let disk = SimDisk::new();
    let meta = write(&disk, 1, space(dim), rows);
    open(&bytes_of(&disk, &meta), &meta, space(dim)).expect("opens")
}

fn key_of_choice(rows: &Rows, choice: u64) -> FactKey {
    let near = rows.keys().nth(choice as usize % rows.len().max(1)).copied();
    match choice % 5 {
        0 => FactKey::new(choice % 45, (choice % 6) as u32, choice % 50),
        1 => FactKey::new(choice, choice as u32, choice),
        2 => near.and_then(FactKey::successor).unwrap_or_default(),
        3 => FactKey::new(near.unwrap_or_default().entity.0, 0, 0),
        _ => near.unwrap_or_default(),
    }
}

fn expected(rows: &Rows, range: &KeyRange) -> std::ops::Range<u32> {
    let below = |key: FactKey| rows.range(..key).count() as u32;
    let start = below(range.start);
    start..range.end.map_or(rows.len() as u32, below).max(start)
}

fn check_against(rows: &Rows, segment: &Segment) {
    assert_eq!(&read_rows(segment).expect("reads"), rows);
    segment.verify_all(&mut |_| true).expect("sound");
    let mut relations = BTreeMap::<RelationId, Vec<u32>>::new();
    for (number, (key, row)) in rows.iter().enumerate() {
        if !row.tombstone {
            relations.entry(key.relation).or_default().push(number as u32);
        }
    }
    assert_eq!(read_relations(segment).expect("reads"), Vec::from_iter(relations));
    assert_eq!(segment.relation_rows(RelationId(77_777)).expect("reads"), &[] as &[u32]);
    let tombstones: Vec<u32> = (0..segment.rows()).filter(|r| segment.is_tombstone(*r)).collect();
    assert_eq!(segment.tombstones().collect::<Vec<_>>(), tombstones);
    let meta = segment.meta();
    assert_eq!(meta.tombstones as usize, tombstones.len());
    assert_eq!(meta.min_key, rows.keys().next().copied());
    assert_eq!(meta.max_key, rows.keys().next_back().copied());
    assert_eq!(meta.min_version.0, rows.values().map(|row| row.version).min().unwrap_or(0));
    assert_eq!(meta.max_version.0, rows.values().map(|row| row.version).max().unwrap_or(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_segment_answers_like_the_map_it_was_written_from(
        (_, rows) in any_rows(3, 1700),
        choices in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..60),
    ) {
        let segment = reopened(&rows, 3);
        check_against(&rows, &segment);
        let mut ranges = vec![KeyRange::ALL, KeyRange::entity(EntityId(u64::MAX))];
        for (a, b) in choices {
            let (a, b) = (key_of_choice(&rows, a), key_of_choice(&rows, b));
            let mut touched = Touched::default();
            let number = rows.range(..a).count() as u32;
            let found = rows.contains_key(&a).then_some(number);
            prop_assert_eq!(segment.find(a, &mut touched).expect("reads"), found);
            prop_assert!(touched.blocks() <= 1);
            ranges.push(KeyRange { start: a.min(b), end: Some(a.max(b)) });
            ranges.push(KeyRange { start: a, end: None });
            ranges.push(KeyRange::entity(a.entity));
            ranges.push(KeyRange::entity_relation(b.entity, b.relation));
        }
        for range in &ranges {
            let mut touched = Touched::default();
            let found = segment.range(range, &mut touched).expect("reads");
            prop_assert_eq!(found.clone(), expected(&rows, range));
            let mut keys = Vec::new();
            segment.for_each_key(found, |row, key| keys.push((row, key))).expect("reads");
            let start = expected(&rows, range).start;
            for (place, (row, key)) in keys.iter().enumerate() {
                prop_assert_eq!(*row as usize, start as usize + place);
                prop_assert!(range.contains(*key));
            }
            let possible = segment.zones().iter().filter(|zone| zone.may_contain(range));
            prop_assert!(touched.blocks() <= possible.count() as u64);
        }
        ranges = hopbine_proto::range::coalesce(ranges);
        let (mut touched, mut found) = (Touched::default(), Vec::new());
        segment.ranges(&ranges, &mut touched, &mut found).expect("reads");
        let all: Vec<_> = ranges.iter().map(|range| expected(&rows, range)).collect();
        prop_assert_eq!(found, all);
    }

    #[test]
    fn a_pruned_block_holds_no_key_of_the_range(
        (_, rows) in any_rows(1, 2500),
        choices in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..40),
    ) {
        let segment = reopened(&rows, 1);
        for (a, b) in choices {
            let (a, b) = (key_of_choice(&rows, a), key_of_choice(&rows, b));
            let range = KeyRange { start: a.min(b), end: Some(a.max(b)) };
            for (number, zone) in segment.zones().iter().enumerate() {
                let held = rows.keys().skip(number * BLOCK_ROWS).take(BLOCK_ROWS);
                if !zone.may_contain(&range) {
                    prop_assert!(held.clone().all(|key| !range.contains(*key)));
                }
                if !zone.may_hold(a.relation) {
                    prop_assert!(held.clone().all(|key| key.relation != a.relation));
                }
                let targets: Vec<_> = held.map(|key| key.target).collect();
                let ends = (targets.iter().min().copied(), targets.iter().max().copied());
                prop_assert_eq!(ends, (Some(zone.targets.0), Some(zone.targets.1)));
            }
        }
    }

    #[test]
    fn equal_rows_make_equal_files((_, rows) in any_rows(5, 200)) {
        let (one, other) = (SimDisk::new(), SimDisk::new());
        let first = write(&one, 1, space(5), &rows);
        let mut second = write(&other, 2, space(5), &rows);
        prop_assert_eq!(bytes_of(&one, &first), bytes_of(&other, &second));
        second.id = first.id;
        prop_assert_eq!(first, second);
    }
}

#[test]
fn an_empty_segment_is_a_segment() {
    let segment = reopened(&Rows::new(), 3);
    check_against(&Rows::new(), &segment);
    let mut touched = Touched::default();
    assert_eq!(segment.range(&KeyRange::ALL, &mut touched).expect("reads"), 0..0);
    assert_eq!(segment.find(FactKey::MIN, &mut touched).expect("reads"), None);
    assert_eq!(touched, Touched::default());
}

#[test]
fn a_segment_of_tombstones_only_has_no_facts() {
    let tombstone = OwnedRow { version: 9, tombstone: true, ..OwnedRow::default() };
    let rows: Rows = (0..700).map(|n| (FactKey::new(n, 0, n), tombstone.clone())).collect();
    let segment = reopened(&rows, 3);
    check_against(&rows, &segment);
    assert_eq!(segment.relations().count(), 0);
}

#[test]
fn vectors_of_4096_components_come_back_bit_for_bit() {
    let vector = |n: u64| (0..4096).map(|i| ((i * 7 + n) as f32).sin()).collect::<Vec<f32>>();
    let mut rows = Rows::new();
    for n in 0..20 {
        let embedding = (n % 3 != 1).then(|| vector(n));
        rows.insert(
            FactKey::new(n, 1, 2),
            OwnedRow { version: n, embedding, ..OwnedRow::default() },
        );
    }
    let special = vec![f32::MIN_POSITIVE / 4.0, -0.0, f32::MAX, 1.0];
    let embedding = Some(special.into_iter().cycle().take(4096).collect());
    rows.insert(FactKey::new(30, 1, 2), OwnedRow { version: 1, embedding, ..OwnedRow::default() });
    check_against(&rows, &reopened(&rows, 4096));
}

#[test]
fn payloads_of_64_kib_and_1_mib_lie_among_small_ones() {
    let mut rows = Rows::new();
    for n in 0..300u64 {
        let length = match n {
            100 => 64 * 1024,
            200 => 1024 * 1024,
            201 => 0,
            _ => 100,
        };
        // Digits of a poor generator: part of it compresses, part does not.
        let digits = (0..length).map(|i| char::from(b'0' + (i * i * 7 + n * i) as u8 % 10));
        let payload = Some(format!("\"{}\"", digits.collect::<String>()));
        rows.insert(FactKey::new(n, 0, 0), OwnedRow { version: n, payload, ..OwnedRow::default() });
    }
    let segment = reopened(&rows, 2);
    check_against(&rows, &segment);
    for row in [200, 0, 299, 100, 200] {
        let text = segment.payload(row).expect("reads");
        assert_eq!(text.as_deref(), rows[&FactKey::new(row.into(), 0, 0)].payload.as_deref());
    }
}

#[test]
fn one_entity_with_many_facts_reads_only_its_blocks() {
    let row = OwnedRow { version: 1, ..OwnedRow::default() };
    let mut rows = Rows::new();
    for n in 0..20_000u64 {
        rows.insert(FactKey::new(if n < 5000 { n } else { 7000 }, 3, n), row.clone());
    }
    let segment = reopened(&rows, 2);
    let mut touched = Touched::default();
    let hub = segment.range(&KeyRange::entity(EntityId(7000)), &mut touched).expect("reads");
    assert_eq!(hub, 5000..20_000);
    let blocks = segment.zones().len() as u64 - 5000 / BLOCK_ROWS as u64;
    assert_eq!(touched.blocks(), blocks);
    let mut one = Touched::default();
    assert_eq!(segment.range(&KeyRange::entity(EntityId(9)), &mut one).expect("reads"), 9..10);
    assert_eq!((one.blocks(), one.bytes()), (1, segment.zones()[0].bytes.into()));
    segment.range(&KeyRange::entity(EntityId(10)), &mut one).expect("reads");
    assert_eq!(one.blocks(), 1, "a block counts once");
    assert_eq!(segment.range(&KeyRange::entity(EntityId(6000)), &mut one).expect("reads").len(), 0);
}
