//! The workloads are the ones that the published figures were measured on, byte for byte, and
//! exact seeds over them give the figures of an independent implementation, to the digit.

use hopbine_bench::cases::{self, Baseline, Case, Store, Tally};
use hopbine_bench::diagnose;
use hopbine_bench::heap::Heap;
use hopbine_bench::workload::{
    Workload, butler_gate, gutenberg, multidepth, multihop, payload_text,
};
use hopbine_coordinator::embed::{Lexical, Tokenizer};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, FactKey};
use sha2::{Digest, Sha256};

fn chains(count: u32, queries: u32) -> Workload {
    let lexical = Lexical::new(Tokenizer::Generic, multihop::DIM);
    multihop::generate(count, queries, &|text| lexical.embed(text)).expect("enough chains")
}

fn gate() -> Workload {
    let lexical = Lexical::new(Tokenizer::Generic, butler_gate::DIM);
    butler_gate::generate(&|text| lexical.embed(text)).expect("the fixture is whole")
}

fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the lines `entity,relation,target,payload` in generation order.
fn rows_digest(workload: &Workload) -> String {
    let mut digest = Sha256::new();
    for fact in &workload.facts {
        let text = payload_text(fact.payload.as_deref().expect("payload")).expect("text");
        let FactKey { entity, relation, target } = fact.key;
        digest.update(format!("{entity},{relation},{target},{text}\n"));
    }
    hex(digest.finalize())
}

#[test]
fn the_fixture_is_the_published_one() {
    let bytes = include_bytes!("../data/fixtures/graph_rag_butler_gate_seed.json");
    let want = "4b943b38a4cbdc1f35fe42dc264183731f83df970c0c15f1ab9f7010e733e53c";
    assert_eq!(hex(Sha256::digest(bytes)), want);
}

#[test]
fn multihop_rows_hash_to_the_golden_values() {
    let small = chains(5_000, 64);
    let want = "709b7b13c3ed52a3c4389d0530cda33a73d2c547fad1f7939eb803b2e42cd511";
    assert_eq!(rows_digest(&small), want);
    let last = small.facts.last().and_then(|fact| fact.payload.clone()).expect("facts");
    assert_eq!(payload_text(&last).as_deref(), Some("Parent_5000 lives in City_118220."));
    let large = chains(10_000, 64);
    let want = "cffd13a1bc61b42a7613bd6c0f67250c757b4b7acb7bcecac32cb480c2774eec";
    assert_eq!(rows_digest(&large), want);
    let last = large.facts.last().and_then(|fact| fact.payload.clone()).expect("facts");
    assert_eq!(payload_text(&last).as_deref(), Some("Parent_10000 lives in City_331976."));
}

#[test]
fn multihop_embeddings_hash_to_the_golden_value() {
    let mut digest = Sha256::new();
    for fact in &chains(5_000, 64).facts {
        for component in fact.embedding.as_deref().expect("embedding") {
            digest.update(component.to_le_bytes());
        }
    }
    let want = "7b745d7b70b1c4d68412b23a976456a6b5786af9bb42e6f28c0cfe3c7a498cd5";
    assert_eq!(hex(digest.finalize()), want);
}

#[test]
fn the_sampled_persons_are_the_golden_ones() {
    let persons = |count| -> Vec<u64> {
        chains(count, 64).queries.iter().map(|query| query.entity.0).collect()
    };
    let small = persons(5_000);
    assert_eq!(small[..10], [3901, 4883, 4907, 4852, 1382, 4686, 4921, 2042, 787, 964]);
    assert_eq!(small[63], 866);
    let large = persons(10_000);
    assert_eq!(large[..10], [7801, 9765, 9813, 9703, 2763, 9371, 9841, 4083, 1574, 1928]);
    assert_eq!(large[63], 1732);
}

fn books(books: u32, paragraphs: u32) -> Workload {
    let lexical = Lexical::new(Tokenizer::Plain, 32);
    let size = gutenberg::Size { books, paragraphs, dim: 32 };
    gutenberg::generate(size, 16, &|text| lexical.embed(text)).expect("the corpus is whole")
}

#[test]
fn the_corpus_is_the_one_that_its_provenance_describes() {
    let bytes = include_bytes!("../data/gutenberg/paragraphs.tsv.gz");
    let want = "d4ba71f8ded21769dec4261bf4099c30e74c4d64236dd7a5a430362caf308660";
    assert_eq!(hex(Sha256::digest(bytes)), want);
    let bytes = include_bytes!("../data/gutenberg/books.tsv");
    let want = "aca2c3f4a2efcd786ac9e0d15acc7657ed6758c8b7338e509b131989754ad3f1";
    assert_eq!(hex(Sha256::digest(bytes)), want);
}

#[test]
fn gutenberg_rows_and_vectors_are_the_golden_ones() {
    let small = books(64, 128);
    assert_eq!(small.facts.len(), 16_320);
    let want = "b250cf872e039f1489fd8b56a8303f6555873a6bcee37d98f4121db8c31a883b";
    assert_eq!(rows_digest(&small), want);
    let vector = |at: usize| small.facts[at].embedding.as_deref().expect("embedding");
    assert_eq!(vector(0)[..4], [-0.318_497, 0.097_999, 0.073_499, 0.269_498]);
    assert_eq!(vector(1)[..4], [-0.320_146, 0.057_462, 0.123_133, 0.106_715]);
    // The first edge between paragraphs tells what the second edge from the book tells.
    assert_eq!(small.facts[128].key, FactKey::new(65, 2, 66));
    assert_eq!((vector(128), &*small.queries[0].vector), (vector(1), vector(1)));
    let large = books(gutenberg::BOOKS_MAX, gutenberg::PARAGRAPHS_MAX);
    assert_eq!(large.facts.len(), 65_408);
    let want = "56e364339269293fefebc568c44e1891a7411cb4ae468362bac9700c5ecafe09";
    assert_eq!(rows_digest(&large), want);
}

#[test]
fn exact_seeds_answer_every_question_of_every_depth() {
    let size = multidepth::Size { pairs: 5_000, depth: 5, dim: 384 };
    let workload = multidepth::generate(size, 32).expect("enough pairs");
    let baseline = baseline(&workload);
    for (depth, queries) in (1..).zip(workload.queries.chunks(32)) {
        let case = plain_case(cases::multidepth(depth), ScoreMode::Path);
        let mut tally = Tally::default();
        for query in queries {
            let seeds = baseline.seeds(query, workload.point.ann_k);
            let rows = baseline.expected(&case, query, &workload.point, &seeds);
            tally.add(query, &rows, &rows);
        }
        let quality = tally.quality();
        assert_eq!((quality.hit1_pct, quality.hitk_pct), (Some(100.0), Some(100.0)), "{depth}");
    }
}

fn baseline(workload: &Workload) -> Baseline {
    Baseline::new(Heap::new(&workload.facts, 1), workload.seed_on)
}

/// hit@1 and hit@k of the plain row of a score over exact seeds.
fn hits(workload: &Workload, baseline: &Baseline, case: &Case) -> (f64, f64) {
    let mut tally = Tally::default();
    for query in &workload.queries {
        let seeds = baseline.seeds(query, workload.point.ann_k);
        let rows = baseline.expected(case, query, &workload.point, &seeds);
        tally.add(query, &rows, &rows);
    }
    let quality = tally.quality();
    let tenth = |percent: Option<f64>| (percent.expect("answers") * 10.0).round() / 10.0;
    (tenth(quality.hit1_pct), tenth(quality.hitk_pct))
}

fn plain_case(cases: Vec<Case>, score: ScoreMode) -> Case {
    let plain = |case: &Case| case.store == Store::Plain && case.score == Some(score);
    cases.into_iter().find(plain).expect("a plain row")
}

#[test]
fn exact_seeds_give_the_verified_figures_at_five_and_ten_thousand_chains() {
    let figures = [
        (5_000, (76.6, 96.9), (100.0, 100.0), (1, 7, 17)),
        (10_000, (78.1, 95.3), (98.4, 100.0), (1, 3, 23)),
    ];
    for (count, endpoint, path, ranks) in figures {
        let workload = chains(count, 64);
        let baseline = baseline(&workload);
        let hits = |score| hits(&workload, &baseline, &plain_case(cases::multihop(), score));
        assert_eq!(hits(ScoreMode::Endpoint), endpoint, "{count} chains by the city alone");
        assert_eq!(hits(ScoreMode::Path), path, "{count} chains by the path");
        let k = workload.point.ann_k;
        let seeds: Vec<_> = workload.queries.iter().map(|q| baseline.seeds(q, k)).collect();
        let found = diagnose(&baseline, &workload.queries, &seeds, &workload.point);
        assert_eq!((found.seed_person_pct, found.avg_person_rank), (100.0, 1.0));
        assert_eq!((found.city_rank_p50, found.city_rank_p95, found.city_rank_max), ranks);
    }
}

#[test]
fn the_nearest_facts_of_the_first_question_are_the_golden_ones() {
    let workload = chains(5_000, 64);
    let baseline = baseline(&workload);
    let query = hopbine_shard_store::kernel::ExactQuery::new(&workload.queries[0].vector);
    let seeds = baseline.heap().seeds(&query, 2, &Default::default());
    let got: Vec<(u64, String)> =
        seeds.iter().map(|s| (s.key.entity.0, format!("{:.6}", s.score))).collect();
    assert_eq!(got, [(3901, "0.300739".to_owned()), (4477, "0.335420".to_owned())]);
}

#[test]
fn the_gate_workload_answers_seven_and_ten_at_the_golden_scores() {
    let workload = gate();
    assert_eq!(workload.facts.len(), 7);
    let baseline = baseline(&workload);
    let case = plain_case(cases::butler_gate(), ScoreMode::Path);
    for k in [workload.point.ann_k, butler_gate::TIGHT_K] {
        let point = hopbine_bench::workload::Point { ann_k: k, top_k: k, ..workload.point };
        let best: Vec<(EntityId, String)> = workload
            .queries
            .iter()
            .map(|query| {
                let seeds = baseline.seeds(query, k);
                let row = baseline.expected(&case, query, &point, &seeds).remove(0);
                assert_eq!(Some(row.key.target), query.answer);
                (row.key.target, format!("{:.6}", row.score.expect("ranked")))
            })
            .collect();
        let want = [(EntityId(7), "1.328858".into()), (EntityId(10), "1.233029".into())];
        assert_eq!(best, want, "ann_k {k}");
    }
}
