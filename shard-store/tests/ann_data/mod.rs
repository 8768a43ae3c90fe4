//! Vectors for the index tests: generators, an in-memory source, and plain brute force.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{FactKey, Metric};
use hopbine_shard_store::codes::Query;
use hopbine_shard_store::graph::{
    IndexSections, RowFilter, RunAsk, Scratch, SealInput, Sealed, Section, SegmentIndex, VectorRow,
    VectorSource, seal, search_segment,
};
use hopbine_shard_store::kernel::norm;
use std::convert::Infallible;

/// A small generator of repeatable numbers (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// About normal, standard deviation 1.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f32>() / 1.414
    }
}

/// Rows around random centres; like sentence embeddings, easy for a graph.
pub fn clustered(rows: usize, dim: usize, seed: u64) -> Vec<Option<Vec<f32>>> {
    let mut numbers = Numbers(seed);
    let centres: Vec<Vec<f32>> =
        (0..rows.div_ceil(40)).map(|_| (0..dim).map(|_| numbers.normal()).collect()).collect();
    let shared: Vec<f32> = (0..dim).map(|_| numbers.normal()).collect();
    let row = |_| {
        let centre = &centres[numbers.below(centres.len() as u64) as usize];
        let parts = centre.iter().zip(&shared);
        Some(parts.map(|(c, s)| s + c + 0.5 * numbers.normal()).collect())
    };
    (0..rows).map(row).collect()
}

/// Sums of a few random sign vectors: nearly orthogonal, hard for a graph.
pub fn lexical(rows: usize, dim: usize, seed: u64) -> Vec<Option<Vec<f32>>> {
    let mut numbers = Numbers(seed);
    let word = |word: u64, at: usize| {
        let bits = Numbers(word * 1_000_003 + at as u64).next();
        if bits & 1 == 0 { 1.0f32 } else { -1.0 }
    };
    let row = |_| {
        let words: Vec<u64> = (0..5).map(|_| numbers.below(3_000)).collect();
        let component = |at| words.iter().map(|w| word(*w, at)).sum::<f32>() + 0.01;
        Some((0..dim).map(component).collect())
    };
    (0..rows).map(row).collect()
}

/// Sums of three random sign vectors, of which a heavy one is that of the row's relation (see
/// `Rows::key`): what tells rows of one relation apart is small and has few values.
pub fn related(rows: usize, dim: usize, seed: u64) -> Vec<Option<Vec<f32>>> {
    let mut numbers = Numbers(seed);
    let sign = |word: u64, at: usize| {
        let bits = Numbers(word * 1_000_003 + at as u64).next();
        if bits & 1 == 0 { 1.0f32 } else { -1.0 }
    };
    let row = |row| {
        let relation = 1_000_000 + row as u64 % 3;
        let (one, other) = (numbers.below(9_000), numbers.below(9_000));
        let component = |at| 2.5 * sign(relation, at) + sign(one, at) + sign(other, at);
        Some((0..dim).map(component).collect())
    };
    (0..rows).map(row).collect()
}

/// Rows in memory.
pub struct Rows {
    pub metric: Metric,
    pub dim: usize,
    pub rows: Vec<Option<Vec<f32>>>,
    pub norms: Vec<f64>,
}

impl Rows {
    pub fn new(metric: Metric, dim: usize, rows: Vec<Option<Vec<f32>>>) -> Self {
        let norms = rows.iter().map(|row| row.as_deref().map_or(0.0, norm)).collect();
        Self { metric, dim, rows, norms }
    }

    pub fn len(&self) -> u32 {
        self.rows.len() as u32
    }

    pub fn key(row: u32) -> FactKey {
        FactKey::new(u64::from(row / 3), row % 3, u64::from(row))
    }

    pub fn seal(&self, config: &IndexConfig) -> Sealed {
        let input = SealInput {
            metric: self.metric,
            dim: self.dim,
            rows: self.len(),
            config,
            vectors: self,
            key: &Self::key,
        };
        never(seal(&input))
    }

    /// The best `k` rows that `passes` lets through, by sorting all of them.
    pub fn brute(&self, query: &Query, k: usize, passes: impl Fn(u32) -> bool) -> Vec<(f64, u32)> {
        let mut all: Vec<(f64, u32)> = Vec::new();
        for row in (0..self.len()).filter(|row| passes(*row)) {
            if let Some(values) = &self.rows[row as usize] {
                all.push((query.distance(values, self.norms[row as usize]), row));
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.truncate(k);
        all
    }
}

impl VectorSource for Rows {
    type Error = Infallible;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, Infallible> {
        let norm = self.norms[row as usize];
        Ok(self.rows[row as usize].as_deref().map(|values| VectorRow { values, norm }))
    }
}

pub fn never<T>(result: Result<T, Infallible>) -> T {
    result.unwrap_or_else(|never| match never {})
}

pub fn open(sealed: &Sealed) -> SegmentIndex {
    SegmentIndex::open(sealed.meta.clone(), sections(sealed)).expect("sealed just now")
}

pub fn sections(sealed: &Sealed) -> IndexSections {
    IndexSections {
        codes: Section::copied_from(&sealed.codes),
        terms: Section::copied_from(&sealed.terms),
        members: Section::copied_from(&sealed.members),
        graph: Section::copied_from(&sealed.graph),
        sketch: Section::copied_from(&sealed.sketch),
        sketch_terms: Section::copied_from(&sealed.sketch_terms),
    }
}

/// One search; returns the answer and what it took.
pub fn ask(
    index: &SegmentIndex,
    rows: &Rows,
    query: &Query,
    k: usize,
    mode: SeedMode,
    filter: RowFilter<'_, Infallible>,
) -> (Vec<(f64, u32)>, Work) {
    let mut work = Work::default();
    let ask = RunAsk { query, k, mode, filter };
    let found = search_segment(index, rows, &ask, &mut Scratch::default(), &mut work);
    (never(found), work)
}

/// Share of the true answers that were found.
pub fn recall(truth: &[(f64, u32)], found: &[(f64, u32)]) -> f64 {
    let hits = truth.iter().filter(|(_, row)| found.iter().any(|(_, other)| other == row)).count();
    hits as f64 / truth.len().max(1) as f64
}
