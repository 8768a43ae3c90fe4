//! Sealed graphs: recall, filters, dead rows, copies, determinism, reachability, damage.

mod ann_data;

use ann_data::{Numbers, Rows, ask, clustered, lexical, open, recall, related, sections};
use hopbine_proto::Metric;
use hopbine_proto::call::SeedMode;
use hopbine_proto::disk::FileBytes;
use hopbine_proto::graph::{BuilderKind, EfSearch, IndexConfig};
use hopbine_shard_store::codes::Query;
use hopbine_shard_store::graph::layout::GraphView;
use hopbine_shard_store::graph::{RowFilter, RowSet, Sealed, Section, SegmentIndex, Way};
use std::sync::OnceLock;

const ROWS: usize = 20_000;
const DIM: usize = 32;

fn config() -> IndexConfig {
    IndexConfig { m: 16, ef_construction: 100, ..IndexConfig::default() }
}

/// An easy segment that several tests share.
fn easy() -> &'static (Rows, Sealed, SegmentIndex) {
    static EASY: OnceLock<(Rows, Sealed, SegmentIndex)> = OnceLock::new();
    EASY.get_or_init(|| {
        let rows = Rows::new(Metric::Cosine, DIM, clustered(ROWS, DIM, 1));
        let sealed = rows.seal(&config());
        let index = open(&sealed);
        (rows, sealed, index)
    })
}

/// Queries near a row but not on it.
fn queries(rows: &Rows, count: u64) -> Vec<Query> {
    let mut numbers = Numbers(99);
    let query = |_| {
        let row = numbers.below(u64::from(rows.len())) as usize;
        let values = rows.rows[row].as_ref().expect("every row has a vector");
        let moved: Vec<f32> = values.iter().map(|value| value + 0.3 * numbers.normal()).collect();
        Query::new(rows.metric, &moved)
    };
    (0..count).map(query).collect()
}

/// Mean recall of the default way over some queries; never fewer than `k` rows.
fn mean_recall(
    index: &SegmentIndex,
    rows: &Rows,
    k: usize,
    filter: impl Fn() -> RowFilter<'static, std::convert::Infallible>,
    passes: &dyn Fn(u32) -> bool,
) -> (f64, String) {
    let (mut sum, mut way) = (0.0, String::new());
    for query in queries(rows, 40) {
        let truth = rows.brute(&query, k, passes);
        let (found, work) = ask(index, rows, &query, k, SeedMode::Auto, filter());
        assert_eq!(found.len(), truth.len(), "never fewer than there are");
        assert!(found.iter().all(|(_, row)| passes(*row)));
        assert!(found.is_sorted_by(|a, b| a.0 < b.0 || (a.0 == b.0 && a.1 < b.1)));
        sum += recall(&truth, &found);
        way.clone_from(&work.ways[0]);
    }
    (sum / 40.0, way)
}

#[test]
fn vectors_that_differ_little_within_a_relation_are_scanned_by_four_bits() {
    for metric in [Metric::Cosine, Metric::L2, Metric::Dot] {
        let rows = Rows::new(metric, 200, related(10_000, 200, 5));
        let config = IndexConfig { ef_construction: 30, m: 4, recall_target: 0.9999, ..config() };
        let sealed = rows.seal(&config);
        let meta = &sealed.meta;
        assert!(matches!(meta.way, Way::Nibbles { .. }), "{meta:?}");
        assert!(meta.recall64 >= Some(0.999) && meta.alarm.is_some(), "{meta:?}");
        let index = open(&sealed);
        for k in [1, 64, 200] {
            let (recall, way) = mean_recall(&index, &rows, k, RowFilter::none, &|_| true);
            assert!(recall >= 0.99 && way.starts_with("4-bit scan"), "k={k} {way}: {recall}");
        }
        // More than half of the rows as candidates: then all codes are looked at.
        let (recall, way) = mean_recall(&index, &rows, 3_000, RowFilter::none, &|_| true);
        assert_eq!((recall, way.as_str()), (1.0, "scan"));
        for (number, places) in [(0, 0..sealed.sketch.len()), (1, 0..sealed.sketch_terms.len())] {
            let mut cut = sections(&sealed);
            let part = if number == 0 { &mut cut.sketch } else { &mut cut.sketch_terms };
            *part = Section::copied_from(&part[..places.end - 8]);
            let damage = SegmentIndex::open(sealed.meta.clone(), cut).err().expect("refused");
            assert_eq!(damage.section, "sketch");
        }
        let mut wrong = sealed.clone();
        *wrong.sketch.last_mut().expect("numbers of centres") = 4;
        assert!(SegmentIndex::open(wrong.meta.clone(), sections(&wrong)).is_err());
    }
}

#[test]
fn rows_that_died_near_the_question_keep_no_answer_out_of_four_bits() {
    let rows = Rows::new(Metric::Cosine, 200, related(10_000, 200, 5));
    let config = IndexConfig { ef_construction: 30, m: 4, recall_target: 0.9999, ..config() };
    let index = open(&rows.seal(&config));
    let mut sum = 0.0;
    for query in queries(&rows, 40) {
        // Nine of ten of the nearest few hundred, as when all of a subject was written anew.
        let near = rows.brute(&query, 400, |_| true);
        let mut died: Vec<u32> = near.iter().map(|(_, row)| *row).filter(|r| r % 10 != 0).collect();
        died.sort_unstable();
        let dead = |row: u32| died.binary_search(&row).is_ok();
        let filter =
            RowFilter { dead: Some(&dead), dead_rows: died.len() as u32, ..RowFilter::none() };
        let (found, work) = ask(&index, &rows, &query, 64, SeedMode::Auto, filter);
        assert!(work.ways[0].starts_with("4-bit scan"), "{:?}", work.ways);
        sum += recall(&rows.brute(&query, 64, |row| !dead(row)), &found);
    }
    assert!(sum / 40.0 >= 0.999, "{}", sum / 40.0);
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

#[test]
fn a_graph_over_easy_vectors_is_chosen_and_finds_the_nearest() {
    let (rows, sealed, index) = easy();
    assert!(matches!(sealed.meta.way, Way::Graph { .. }), "{:?}", sealed.meta);
    assert!(sealed.meta.recall64 >= Some(0.99), "{:?}", sealed.meta);
    for k in [1, 10, 64, 300] {
        let (recall, way) = mean_recall(index, rows, k, RowFilter::none, &|_| true);
        assert!(recall >= 0.98 && way.starts_with("graph ef="), "k={k} {way}: {recall}");
    }
}

#[test]
fn graphs_work_under_every_metric() {
    for metric in [Metric::L2, Metric::Dot] {
        let rows = Rows::new(metric, 16, clustered(9_000, 16, 8));
        let sealed = rows.seal(&config());
        let index = open(&sealed);
        let (mut sum, forced) = (0.0, SeedMode::Graph { ef: 256 });
        for query in queries(&rows, 40) {
            let truth = rows.brute(&query, 10, |_| true);
            let (found, work) = ask(&index, &rows, &query, 10, forced, RowFilter::none());
            assert_eq!(work.ways, ["graph ef=256"]);
            sum += recall(&truth, &found) / 40.0;
        }
        assert!(sum > 0.97, "{metric:?}: {sum}");
        let (recall, way) = mean_recall(&index, &rows, 10, RowFilter::none, &|_| true);
        assert!(recall >= 0.97, "{metric:?} {way}: {recall}");
    }
}

#[test]
fn nearly_orthogonal_vectors_are_served_by_a_scan_that_says_why() {
    let rows = Rows::new(Metric::Cosine, 128, lexical(12_000, 128, 3));
    let config = || IndexConfig { ef_construction: 60, m: 8, ..config() };
    let bits = rows.seal(&config());
    assert!(matches!(bits.meta.way, Way::Bits { .. }), "{:?}", bits.meta);
    assert!(bits.meta.alarm.is_some() && !bits.sketch.is_empty() && !bits.graph.is_empty());
    for k in [1, 64, 200] {
        let (recall, way) = mean_recall(&open(&bits), &rows, k, RowFilter::none, &|_| true);
        assert!(recall >= 0.98 && way.starts_with("1-bit scan"), "k={k} {way}: {recall}");
    }
    // A target of 1 takes what is exact by itself.
    let sealed = rows.seal(&IndexConfig { recall_target: 1.0, ..config() });
    assert_eq!(sealed.meta.way, Way::Scan, "{:?}", sealed.meta);
    assert!(sealed.meta.alarm.is_some() && sealed.sketch.is_empty() && !sealed.graph.is_empty());
    let (recall, way) = mean_recall(&open(&sealed), &rows, 64, RowFilter::none, &|_| true);
    assert_eq!((recall, way.as_str()), (1.0, "scan"));
    let forced = rows.seal(&IndexConfig { ef_search: EfSearch::Fixed(64), ..config() });
    assert_eq!(forced.meta.way, Way::Graph { ef: 64 });
    assert!(forced.meta.recall64 < Some(0.9), "{:?}", forced.meta);
    assert_eq!(forced.graph, sealed.graph);
}

#[test]
fn a_filter_of_any_selectivity_keeps_recall_and_never_shortens_the_answer() {
    let (rows, _, index) = easy();
    let mut ways = Vec::new();
    for per_mille in [900, 500, 250, 100, 10, 1] {
        let passes = move |row: u32| Numbers(u64::from(row)).below(1000) < per_mille;
        let set = leak((0..rows.len()).filter(|row| passes(*row)).collect::<Vec<u32>>());
        let by_set = || RowFilter { rows: RowSet::Sorted(set), ..RowFilter::none() };
        let (recall, way) = mean_recall(index, rows, 10, by_set, &passes);
        assert!(recall >= 0.98, "{per_mille} per mille as a set, {way}: {recall}");
        ways.push(way.split_once(" ef").map_or(way.clone(), |(name, _)| name.to_owned()));
        let test = leak(move |row: u32| Ok(passes(row)));
        let by_test = || RowFilter { predicate: Some(test), ..RowFilter::none() };
        let (recall, way) = mean_recall(index, rows, 10, by_test, &passes);
        assert!(recall >= 0.98, "{per_mille} per mille as a predicate, {way}: {recall}");
    }
    let scan = "postings scan";
    assert_eq!(ways, ["graph, collecting", scan, scan, scan, scan, scan]);
}

#[test]
fn a_filter_that_goes_against_the_question_still_finds_the_nearest_that_pass() {
    // Only rows far from every query pass: a beam around the query meets none of them.
    let (rows, _, index) = easy();
    for query in queries(rows, 10) {
        let order = rows.brute(&query, rows.rows.len(), |_| true);
        let mut far: Vec<u32> = order[2_000..].iter().map(|(_, row)| *row).collect();
        far.sort_unstable();
        let near = |row: u32| far.binary_search(&row).is_err();
        let predicate = |row: u32| Ok(!near(row));
        let filters = [
            RowFilter { rows: RowSet::Sorted(&far), ..RowFilter::none() },
            RowFilter { dead: Some(&near), dead_rows: 2_000, ..RowFilter::none() },
            RowFilter { predicate: Some(&predicate), ..RowFilter::none() },
        ];
        for filter in filters {
            let (found, work) = ask(index, rows, &query, 10, SeedMode::Auto, filter);
            assert!(recall(&order[2_000..2_010], &found) >= 0.9, "{:?}", work.ways);
        }
    }
}

#[test]
fn sets_too_large_to_scan_are_walked_in_two_hops() {
    let rows = Rows::new(Metric::Cosine, 16, clustered(60_000, 16, 4));
    let config = IndexConfig { m: 8, ef_construction: 40, recall_target: 0.9, ..config() };
    let index = open(&rows.seal(&config));
    let passes = |row: u32| Numbers(u64::from(row)).below(100) < 28;
    let set = leak((0..rows.len()).filter(|row| passes(*row)).collect::<Vec<u32>>());
    let by_set = || RowFilter { rows: RowSet::Sorted(set), ..RowFilter::none() };
    let (recall, way) = mean_recall(&index, &rows, 10, by_set, &passes);
    assert!(way.starts_with("acorn ef="), "{way}");
    assert!(recall >= 0.97, "{recall}");
}

#[test]
fn half_of_the_rows_dead_costs_no_recall() {
    let (rows, _, index) = easy();
    let dead = leak(|row: u32| Numbers(u64::from(row)).below(2) == 0);
    let count = (0..rows.len()).filter(|row| dead(*row)).count() as u32;
    let filter = || RowFilter { dead: Some(dead), dead_rows: count, ..RowFilter::none() };
    for k in [10, 64] {
        let (recall, way) = mean_recall(index, rows, k, filter, &|row| !dead(row));
        assert!(recall >= 0.98 && way.starts_with("graph ef="), "k={k} {way}: {recall}");
    }
    // Nearly all dead: fewer than k are left, and all of them are found.
    let dead = leak(|row: u32| !row.is_multiple_of(5_000));
    let filter = || RowFilter { dead: Some(dead), dead_rows: rows.len() - 5, ..RowFilter::none() };
    let (recall, _) = mean_recall(index, rows, 10, filter, &|row| !dead(row));
    assert_eq!(recall, 1.0);
}

#[test]
fn copies_of_a_few_vectors_share_nodes_and_come_back_in_key_order() {
    let mut vectors = clustered(9_000, DIM, 6);
    let copied = clustered(50, DIM, 7);
    vectors.extend((0..20_000).map(|at| copied[at % 50].clone()));
    // Mixed, with every tenth row left without a vector.
    let mut order: Vec<usize> = (0..vectors.len()).collect();
    order.sort_by_key(|at| Numbers(*at as u64).next());
    let mixed = order.iter().map(|at| if at % 10 == 3 { None } else { vectors[*at].clone() });
    let rows = Rows::new(Metric::Cosine, DIM, mixed.collect());
    let sealed = rows.seal(&config());
    let index = open(&sealed);
    assert!(sealed.meta.nodes < 9_000 && sealed.meta.vectors > 25_000);
    for (at, copy) in copied.iter().enumerate().filter(|(at, _)| at % 10 != 3) {
        let query = Query::new(Metric::Cosine, copy.as_ref().unwrap());
        let truth = rows.brute(&query, 500, |_| true);
        for mode in [SeedMode::Auto, SeedMode::Graph { ef: 128 }, SeedMode::Scan] {
            let (found, _) = ask(&index, &rows, &query, 100, mode, RowFilter::none());
            assert_eq!(found, truth[..100], "copy {at}, {mode:?}");
        }
        let (found, _) = ask(&index, &rows, &query, 500, SeedMode::Scan, RowFilter::none());
        assert_eq!(found, truth);
    }
}

#[test]
fn sealing_twice_gives_the_same_bytes_and_another_seed_other_ones() {
    let rows = Rows::new(Metric::Cosine, DIM, clustered(9_000, DIM, 9));
    let first = rows.seal(&config());
    assert_eq!(first, rows.seal(&config()));
    let other = rows.seal(&IndexConfig { build_seed: 1, ..config() });
    assert_eq!((&first.codes, &first.terms), (&other.codes, &other.terms));
    assert_ne!(first.graph, other.graph);
}

#[test]
fn every_row_is_reachable_from_the_entry_along_base_links() {
    let lexical = Rows::new(Metric::Cosine, 64, lexical(9_000, 64, 2));
    let hard = lexical.seal(&IndexConfig { m: 4, ef_construction: 8, ..config() });
    for sealed in [&easy().1, &hard] {
        let bytes = FileBytes::copied_from(&sealed.graph);
        let graph = GraphView::check(&bytes, sealed.meta.nodes).unwrap();
        let mut reached = vec![false; graph.nodes() as usize];
        let mut open = vec![graph.entry()];
        reached[graph.entry() as usize] = true;
        while let Some(node) = open.pop() {
            for next in graph.neighbours(node) {
                if !std::mem::replace(&mut reached[*next as usize], true) {
                    open.push(*next);
                }
            }
        }
        assert!(reached.iter().all(|reached| *reached));
    }
}

#[test]
fn the_hnsw_rs_builder_makes_a_graph_of_the_same_form_and_recall() {
    let rows = Rows::new(Metric::Cosine, 16, clustered(8_500, 16, 11));
    let own = rows.seal(&IndexConfig { m: 8, ef_construction: 40, ..config() });
    let theirs = rows.seal(&IndexConfig {
        m: 8,
        ef_construction: 40,
        builder: BuilderKind::HnswRs,
        ..config()
    });
    assert_ne!(own.graph, theirs.graph);
    let mode = SeedMode::Graph { ef: 128 };
    for sealed in [own, theirs] {
        let index = open(&sealed);
        let mut sum = 0.0;
        for query in queries(&rows, 40) {
            let truth = rows.brute(&query, 10, |_| true);
            let (found, work) = ask(&index, &rows, &query, 10, mode, RowFilter::none());
            assert_eq!(work.ways, ["graph ef=128"]);
            sum += recall(&truth, &found) / 40.0;
        }
        assert!(sum >= 0.97, "{sum}");
    }
}

#[test]
fn damaged_sections_are_refused_or_answer_without_panic() {
    let mut vectors = clustered(8_300, 8, 12);
    vectors[100] = None;
    vectors[101] = vectors[102].clone();
    let rows = Rows::new(Metric::Cosine, 8, vectors);
    let sealed = rows.seal(&IndexConfig { m: 4, ef_construction: 20, ..config() });
    let query = Query::new(Metric::Cosine, rows.rows[5].as_ref().unwrap());
    let mut numbers = Numbers(3);
    let (mut refused, mut served) = (0, 0);
    for round in 0..300u32 {
        let mut damaged = sealed.clone();
        let part = if round % 2 == 0 { &mut damaged.graph } else { &mut damaged.members };
        // The first words hold the sizes: half of the flips go there.
        let span = if round % 4 < 2 { 256 } else { part.len() as u64 };
        part[numbers.below(span) as usize] ^= 1 << numbers.below(8);
        match SegmentIndex::open(damaged.meta.clone(), sections(&damaged)) {
            Err(damage) => {
                assert!(["graph", "members"].contains(&damage.section));
                refused += 1;
            }
            Ok(index) => {
                let mode = SeedMode::Graph { ef: 64 };
                ask(&index, &rows, &query, 10, mode, RowFilter::none());
                served += 1;
            }
        }
    }
    assert!(refused > 100 && served > 10, "{refused} refused, {served} served");
    for cut in 1..5 {
        for part in 0..4 {
            let mut damaged = sections(&sealed);
            let parts =
                [&mut damaged.codes, &mut damaged.terms, &mut damaged.members, &mut damaged.graph];
            let part = parts.into_iter().nth(part).unwrap();
            *part = Section::copied_from(&part[..part.len() - cut]);
            assert!(SegmentIndex::open(sealed.meta.clone(), damaged).is_err());
        }
    }
}
