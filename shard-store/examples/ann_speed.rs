//! Measures the vector index on one thread: exact distances, code scans, graph builds and
//! searches, against the hnsw_rs crate. Run in release mode: `ann_speed [rows] [dim]`.

use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::graph::{EfSearch, IndexConfig};
use hopbine_proto::{FactKey, Metric};
use hopbine_shard_store::codes::{Query, code_stride};
use hopbine_shard_store::graph::Way;
use hopbine_shard_store::graph::build::{BuildInput, GraphBuilder, NativeBuilder, level_of};
use hopbine_shard_store::graph::hnsw_crate::index_of;
use hopbine_shard_store::graph::index::NodeCodes;
use hopbine_shard_store::graph::{
    IndexSections, RowFilter, RunAsk, Scratch, SealInput, Sealed, Section, SegmentIndex, TailChunk,
    VectorRow, VectorSource, seal, search_segment, search_tail,
};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use hopbine_shard_store::signs::{SignEncoder, sign_section_words};
use std::convert::Infallible;
use std::hint::black_box;

struct Rows {
    dim: usize,
    values: Vec<f32>,
    norms: Vec<f64>,
}

impl VectorSource for Rows {
    type Error = Infallible;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, Infallible> {
        let start = row as usize * self.dim;
        let values = &self.values[start..start + self.dim];
        Ok(Some(VectorRow { values, norm: self.norms[row as usize] }))
    }
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 29)
    }

    fn normal(&mut self) -> f32 {
        let unit = |bits: u64| (bits & 0xffff) as f32 / 32768.0 - 1.0;
        let bits = self.next();
        (0..4).map(|part| unit(bits >> (16 * part))).sum::<f32>() * 0.87
    }
}

/// Rows like sentence embeddings: clusters in a space of few dimensions, some noise in all.
fn embeddings(rows: usize, dim: usize, seed: u64) -> Vec<f32> {
    const INNER: usize = 32;
    let mut numbers = Numbers(seed);
    let mut fixed = Numbers(12345);
    let basis: Vec<f32> = (0..INNER * dim).map(|_| fixed.normal()).collect();
    let centres: Vec<f32> = (0..1_000 * INNER).map(|_| fixed.normal()).collect();
    let mut values = Vec::with_capacity(rows * dim);
    for _ in 0..rows {
        let centre = (numbers.next() % 1_000) as usize;
        let inner: Vec<f32> = centres[centre * INNER..(centre + 1) * INNER]
            .iter()
            .map(|centre| centre + 0.8 * numbers.normal())
            .collect();
        values.extend((0..dim).map(|at| {
            let parts = inner.iter().enumerate().map(|(i, x)| x * basis[i * dim + at]);
            parts.sum::<f32>() + 1.5 * numbers.normal()
        }));
    }
    values
}

fn rows(count: usize, dim: usize, seed: u64) -> Rows {
    let values = embeddings(count, dim, seed);
    let norms = values.chunks(dim).map(norm).collect();
    Rows { dim, values, norms }
}

/// CPU seconds of this thread: other work on the machine does not count.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos = stat.split_whitespace().next().and_then(|field| field.parse::<f64>().ok());
    nanos.expect("a number") / 1e9
}

/// Best of several rounds, CPU nanoseconds per item. A round repeats the work until it is long
/// against the clock's tick.
fn best(rounds: usize, items: usize, mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let (start, mut times, mut spent) = (cpu(), 0, 0.0);
        while spent < 0.1 {
            work();
            times += 1;
            spent = cpu() - start;
        }
        best = best.min(spent * 1e9 / (times * items) as f64);
    }
    best
}

fn never<T>(result: Result<T, Infallible>) -> T {
    result.unwrap_or_else(|never| match never {})
}

fn key(row: u32) -> FactKey {
    FactKey::new(u64::from(row), 1, 2)
}

fn open(sealed: &Sealed) -> SegmentIndex {
    let sections = IndexSections {
        codes: Section::copied_from(&sealed.codes),
        terms: Section::copied_from(&sealed.terms),
        members: Section::copied_from(&sealed.members),
        graph: Section::copied_from(&sealed.graph),
        sketch: Section::copied_from(&sealed.sketch),
        sketch_terms: Section::copied_from(&sealed.sketch_terms),
    };
    SegmentIndex::open(sealed.meta.clone(), sections).expect("sealed just now")
}

/// The same index with 1-bit codes as its way. The rows are distinct, so nodes are rows.
fn with_bits(sealed: &Sealed, rows: &Rows, rerank: u32) -> SegmentIndex {
    let dim = rows.dim;
    let mut mean = vec![0.0f64; dim];
    for (row, norm) in rows.values.chunks(dim).zip(&rows.norms) {
        let share = 1.0 / norm / rows.norms.len() as f64;
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += share * f64::from(*x));
    }
    let centre = mean.into_iter().map(|mean| mean as f32).collect();
    let mut encoder = SignEncoder::new(Metric::Cosine, centre);
    rows.values.chunks(dim).zip(&rows.norms).for_each(|(row, norm)| encoder.push(row, *norm));
    let mut sealed = sealed.clone();
    (sealed.sketch, sealed.sketch_terms) = encoder.finish();
    sealed.meta.way = Way::Bits { rerank };
    open(&sealed)
}

/// Kernels over random codes and vectors, in the first caches and beyond them.
fn kernels(dim: usize) {
    let (stride, rows_max) = (code_stride(dim), 100_000);
    let mut numbers = Numbers(4);
    let words = rows_max * stride / 8;
    let bytes = |word: u64| (word | 0x0101_0101_0101_0101).to_le_bytes();
    let codes: Vec<u8> = (0..words).flat_map(|_| bytes(numbers.next())).collect();
    let values: Vec<f32> = (0..10_000 * dim).map(|_| numbers.normal()).collect();
    let (exact_query, coded) =
        (ExactQuery::new(&values[..dim]), Query::new(Metric::Cosine, &values[..dim]));
    let signed = coded.codes().codes();
    let mut dots = vec![0; rows_max];
    let signs: Vec<u64> = (0..sign_section_words(rows_max, dim)).map(|_| numbers.next()).collect();
    let asked = coded.signs(&vec![0.0; dim]);
    let mut sums = vec![0; rows_max];
    println!(
        "kernel      rows   codes in order   codes by number   signs in order   exact (10000 rows)"
    );
    for kernels in Kernels::all_available() {
        for rows in [1_000, 10_000, rows_max] {
            let (codes, dots) = (&codes[..rows * stride], &mut dots[..rows]);
            let in_order = best(3, rows, || kernels.code_dots(signed, black_box(codes), dots));
            let order: Vec<u32> =
                (0..rows).map(|_| (numbers.next() % rows as u64) as u32).collect();
            // In pieces of a neighbour list's length.
            let by_number = best(3, rows, || {
                for (order, dots) in order.chunks(24).zip(dots.chunks_mut(24)) {
                    kernels.code_dots_at(signed, codes, order, dots);
                }
            });
            let signs = &signs[..sign_section_words(rows, dim)];
            let of_signs =
                best(3, rows, || kernels.sign_sums(&asked.planes, signs, &mut sums[..rows]));
            let exact = best(3, rows.min(10_000), || {
                for row in values.chunks(dim).take(rows) {
                    black_box(exact_query.distance(&kernels, Metric::Cosine, row, 1.0));
                }
            });
            let name = kernels.name;
            println!(
                "{name:8} {rows:7}   {in_order:11.1} ns   {by_number:12.1} ns   \
                 {of_signs:11.1} ns   {exact:7.1} ns"
            );
        }
    }
}

fn recall(truth: &[Vec<u32>], found: &[Vec<u32>]) -> f64 {
    let hits = |(truth, found): (&Vec<u32>, &Vec<u32>)| {
        truth.iter().filter(|row| found.contains(row)).count() as f64 / truth.len() as f64
    };
    truth.iter().zip(found).map(hits).sum::<f64>() / truth.len() as f64
}

struct Bench<'a> {
    index: &'a SegmentIndex,
    rows: &'a Rows,
    queries: &'a [Query],
}

impl Bench<'_> {
    /// Answers of all queries, with microseconds, codes and vectors scored per query.
    fn run(&self, k: usize, mode: SeedMode) -> (Vec<Vec<u32>>, f64, u64, u64) {
        let mut scratch = Scratch::default();
        let (mut found, mut work) = (Vec::new(), Work::default());
        let count = self.queries.len();
        let nanos = best(3, count, || {
            (found, work) = (Vec::new(), Work::default());
            for query in self.queries {
                let ask = RunAsk { query, k, mode, filter: RowFilter::none() };
                let answer =
                    never(search_segment(self.index, self.rows, &ask, &mut scratch, &mut work));
                found.push(answer.into_iter().map(|(_, row)| row).collect());
            }
        });
        let per_query = |total: u64| total / count as u64;
        (found, nanos / 1e3, per_query(work.codes_scored), per_query(work.vectors_scored))
    }
}

fn tail(rows: &Rows, queries: &[Query]) {
    let mut chunks = Vec::new();
    for start in (0..8_192u32.min(rows.norms.len() as u32)).step_by(1_024) {
        let mut chunk = TailChunk::with_capacity(Metric::Cosine, rows.dim, 1_024);
        (start..start + 1_024).for_each(|row| chunk.push(never(rows.vector(row))));
        chunks.push(chunk);
    }
    let chunks: Vec<&TailChunk> = chunks.iter().collect();
    let (mut scratch, mut work) = (Scratch::default(), Work::default());
    let nanos = best(3, queries.len(), || {
        work = Work::default();
        for query in queries {
            let ask = RunAsk { query, k: 64, mode: SeedMode::Auto, filter: RowFilter::none() };
            let found = search_tail(&chunks, 8_192, &key, rows, &ask, &mut scratch, &mut work);
            black_box(never(found));
        }
    });
    let reranked = work.vectors_scored / queries.len() as u64;
    println!("tail of 8192 rows, k=64: {:.0} us a query, {reranked} reranked", nanos / 1e3);
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let count = arguments.next().and_then(Result::ok).unwrap_or(10_000);
    let dim = arguments.next().and_then(Result::ok).unwrap_or(384);
    kernels(dim);
    let data = rows(count, dim, 1);
    let asked = rows(200, dim, 2);
    let queries: Vec<Query> =
        asked.values.chunks(dim).map(|values| Query::new(Metric::Cosine, values)).collect();
    let config = IndexConfig { ef_search: EfSearch::Auto, ..IndexConfig::default() };
    let (metric, key) = (Metric::Cosine, &key);
    let input = SealInput { metric, dim, rows: count as u32, config: &config, vectors: &data, key };
    let start = cpu();
    let sealed = never(seal(&input));
    println!("{count} rows x {dim}: sealed in {:.2} CPU s, {:?}", cpu() - start, sealed.meta);
    let terms: Vec<f32> = sealed
        .terms
        .chunks_exact(4)
        .map(|term| f32::from_le_bytes(term.try_into().expect("4 bytes")))
        .collect();
    let (stride, scale) = (code_stride(dim), sealed.meta.scale);
    let codes = NodeCodes { codes: &sealed.codes, terms: &terms, stride, scale };
    let levels: Vec<u8> = (0..codes.len()).map(|row| level_of(key(row), 0, config.m)).collect();
    let input = BuildInput { codes, metric, config: &config, levels: &levels };
    let start = cpu();
    let links = NativeBuilder.build(&input).expect("our own builder takes everything");
    let own = cpu() - start;
    let edges = links.base.iter().map(Vec::len).sum::<usize>() as f64 / count as f64;
    println!("native build: {own:.2} CPU s, {edges:.1} base links a node");
    let index = open(&sealed);
    let bench = Bench { index: &index, rows: &data, queries: &queries };
    tail(&data, &queries);
    for k in [10, 64] {
        let (truth, us, _, exact) = bench.run(k, SeedMode::Exact);
        println!("k={k} exact: {us:.0} us, {exact} vectors");
        let (found, us, codes, exact) = bench.run(k, SeedMode::Scan);
        let share = recall(&truth, &found);
        println!("k={k} scan: {us:.0} us, recall {share:.4}, {codes} codes, {exact} vectors");
        for rerank in [192, 768, 3_072] {
            let index = with_bits(&sealed, &data, rerank);
            let bench = Bench { index: &index, ..bench };
            let (found, us, codes, exact) = bench.run(k, SeedMode::Auto);
            let share = recall(&truth, &found);
            println!(
                "k={k} 1-bit rerank={rerank}: {us:.0} us, recall {share:.4}, {codes} codes, \
                 {exact} vectors"
            );
        }
        for ef in [64, 128, 256, 512] {
            let (found, us, codes, exact) = bench.run(k, SeedMode::Graph { ef });
            let share = recall(&truth, &found);
            println!(
                "k={k} ef={ef}: {us:.0} us, recall {share:.4}, {codes} codes, {exact} vectors"
            );
        }
    }
    if count <= 20_000 {
        against_the_crate(&input, own, &bench, &asked);
    }
}

/// The crate's own build and search over the same codes.
fn against_the_crate(input: &BuildInput<'_>, own: f64, bench: &Bench<'_>, asked: &Rows) {
    let start = cpu();
    let theirs = index_of(input).expect("a small m");
    let build = cpu() - start;
    println!("hnsw_rs build: {build:.2} CPU s, {:.1} times the native one", build / own);
    let size = f64::from(input.codes.scale);
    let stride = input.codes.stride;
    let ask: Vec<Vec<f32>> = asked
        .values
        .chunks(asked.dim)
        .zip(&asked.norms)
        .map(|(values, norm)| {
            let mut scaled: Vec<f32> =
                values.iter().map(|value| (f64::from(*value) / norm / size) as f32).collect();
            scaled.resize(stride, 0.0);
            scaled
        })
        .collect();
    for k in [10, 64] {
        let (truth, ..) = bench.run(k, SeedMode::Exact);
        for ef in [64, 128, 256, 512] {
            let mut found = Vec::new();
            let nanos = best(3, ask.len(), || {
                found = ask
                    .iter()
                    .map(|query| {
                        let answer = theirs.search(query, k, ef);
                        answer.into_iter().map(|near| near.d_id as u32).collect()
                    })
                    .collect();
            });
            println!(
                "k={k} ef={ef} hnsw_rs: {:.0} us, recall {:.4}",
                nanos / 1e3,
                recall(&truth, &found)
            );
        }
    }
}
