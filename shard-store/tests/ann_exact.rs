//! Scans, of sealed segments and of tails, give the same answer as sorting all exact distances.

mod ann_data;

use ann_data::{Numbers, Rows, ask, never, open};
use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{FactKey, Metric};
use hopbine_shard_store::codes::Query;
use hopbine_shard_store::graph::{
    RowFilter, RowSet, RunAsk, Scratch, TailChunk, VectorSource, search_tail,
};
use proptest::prelude::*;

const METRICS: [Metric; 3] = [Metric::Cosine, Metric::L2, Metric::Dot];

/// What kind of vectors, so that every bound of the scan is put to the test.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    FewValues,
    Outliers,
    Sizes,
    Extreme,
    FarFromOrigin,
}

fn vectors(kind: Kind, rows: usize, dim: usize, seed: u64) -> Vec<Option<Vec<f32>>> {
    let mut numbers = Numbers(seed);
    let row = |_| {
        let size = 10f32.powi(numbers.below(7) as i32 - 3);
        let huge = [f32::MAX, -f32::MAX, 1e-45, 3e-39, 1e30, 0.0, 1.0];
        let mut value = || match kind {
            Kind::Plain => numbers.normal(),
            Kind::FewValues => numbers.below(3) as f32 - 1.0,
            Kind::Outliers if numbers.below(50) == 0 => 1e4 * numbers.normal(),
            Kind::Outliers => numbers.normal(),
            Kind::Sizes => size * numbers.normal(),
            Kind::Extreme => huge[numbers.below(7) as usize],
            Kind::FarFromOrigin => 1e6 + numbers.normal(),
        };
        let mut values: Vec<f32> = (0..dim).map(|_| value()).collect();
        if values.iter().all(|value| *value == 0.0) {
            values[0] = 1.0;
        }
        (numbers.below(8) > 0).then_some(values)
    };
    (0..rows).map(row).collect()
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Plain),
        Just(Kind::FewValues),
        Just(Kind::Outliers),
        Just(Kind::Sizes),
        Just(Kind::Extreme),
        Just(Kind::FarFromOrigin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_scan_gives_the_answer_of_sorting_all_exact_distances(
        kind in any_kind(),
        metric in prop::sample::select(&METRICS[..]),
        dim in prop_oneof![4 => 1usize..40, 1 => Just(64), 1 => Just(65), 1 => Just(200)],
        count in 0usize..400,
        k in prop_oneof![0usize..20, Just(64), Just(1000), Just(usize::MAX)],
        seed in any::<u64>(),
        dead_in_8 in 0u64..8,
        passing_in_8 in 1u64..=8,
        set_in_8 in prop::option::of(0u64..8),
    ) {
        let data = Rows::new(metric, dim, vectors(kind, count, dim, seed));
        let index = open(&data.seal(&IndexConfig::default()));
        let draw = |row: u32, salt: u64| Numbers(seed ^ (u64::from(row) * 8 + salt)).below(8);
        let dead = |row: u32| draw(row, 1) < dead_in_8;
        let predicate = |row: u32| Ok(draw(row, 2) < passing_in_8);
        let in_set = |row: &u32| set_in_8.is_none_or(|share| draw(*row, 3) < share);
        let set: Vec<u32> = (0..data.len()).filter(in_set).collect();
        let filter = || RowFilter {
            rows: if set_in_8.is_some() { RowSet::Sorted(&set) } else { RowSet::All },
            dead: Some(&dead),
            dead_rows: (0..data.len()).filter(|row| dead(*row)).count() as u32,
            predicate: Some(&predicate),
        };
        let passes = |row: u32| !dead(row) && in_set(&row) && draw(row, 2) < passing_in_8;
        let values = vectors(kind, 1, dim, seed ^ 77).remove(0).unwrap_or(vec![0.5; dim]);
        let query = Query::new(metric, &values);
        let expected = data.brute(&query, k, passes);
        for mode in [SeedMode::Auto, SeedMode::Scan, SeedMode::Exact, SeedMode::Graph { ef: 9 }] {
            let (found, _) = ask(&index, &data, &query, k, mode, filter());
            prop_assert_eq!(&found, &expected, "{:?}", mode);
        }
        // The same rows as a tail, in chunks of 100, of which the last rows are not visible.
        let visible = data.len() - data.len() / 5;
        let mut chunks = Vec::new();
        for start in (0..data.len()).step_by(100) {
            let mut chunk = TailChunk::with_capacity(metric, dim, 100);
            for row in start..(start + 100).min(data.len()) {
                chunk.push(never(data.vector(row)));
            }
            chunks.push(chunk);
        }
        let chunks: Vec<&TailChunk> = chunks.iter().collect();
        let backwards = |row: u32| FactKey::new(u64::from(u32::MAX - row), 0, 0);
        let mut expected = data.brute(&query, data.rows.len(), |row| row < visible && passes(row));
        expected.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        expected.truncate(k);
        for mode in [SeedMode::Auto, SeedMode::Exact] {
            let ask = RunAsk { query: &query, k, mode, filter: filter() };
            let (mut scratch, mut work) = (Scratch::default(), Work::default());
            let found = never(search_tail(
                &chunks, visible, &backwards, &data, &ask, &mut scratch, &mut work,
            ));
            prop_assert_eq!(&found, &expected, "{:?}", mode);
        }
    }
}

#[test]
fn a_scan_of_wide_vectors_is_exact_and_reranks_few_rows() {
    for (dim, count) in [(384, 3_000), (4096, 300)] {
        for metric in METRICS {
            let data = Rows::new(metric, dim, ann_data::clustered(count, dim, 5));
            let index = open(&data.seal(&IndexConfig::default()));
            let mut reranked = 0;
            for at in 0..10u32 {
                let values = data.rows[at as usize * 20].clone().unwrap();
                let query = Query::new(metric, &values);
                let mode = SeedMode::Scan;
                let (found, work) = ask(&index, &data, &query, 10, mode, RowFilter::none());
                assert_eq!(found, data.brute(&query, 10, |_| true));
                assert_eq!(work.codes_scored, count as u64);
                assert_eq!(work.ways, ["scan"]);
                reranked += work.vectors_scored;
            }
            assert!(reranked < 10 * count as u64 / 5, "{metric:?} {dim}: {reranked} reranked");
        }
    }
}
