//! Vectors to search, and questions that are none of them.

use crate::workload::{Mt19937, WorkloadError, clustered, multihop};
use hopbine_coordinator::embed::{Lexical, Tokenizer, round_6};
use hopbine_proto::{Fact, FactKey};
use hopbine_shard_store::graph::{VectorRow, VectorSource};
use hopbine_shard_store::kernel::norm;
use std::convert::Infallible;
use std::sync::Arc;

/// Rows that differ from one vector by a little.
const CLUMP: u32 = 32;
/// How much, as a share of its length.
const NOISE: f64 = 0.01;
/// Rows around one centre, as in the workload `filters`.
const CLUSTER: u32 = 200;
const SEED: u32 = 20_261;

/// Which vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Sentences of `multihop`: sums of a few signs, nearly orthogonal, hard for a graph. The
    /// questions are sentences that were left out.
    Lexical,
    /// Points around centres, as sentence embeddings are; questions around the same centres.
    Clustered,
    /// Clumps of near-duplicates; the questions are further ones.
    Duplicates,
}

impl Data {
    /// All of them.
    pub const EVERY: [Self; 3] = [Self::Lexical, Self::Clustered, Self::Duplicates];

    /// As in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lexical => "lexical",
            Self::Clustered => "clustered",
            Self::Duplicates => "duplicates",
        }
    }

    /// Draws `rows` rows of `dim` components and `queries` questions, the same every time.
    pub fn draw(self, rows: u32, dim: u32, queries: u32) -> Result<Sample, WorkloadError> {
        match self {
            Self::Lexical => lexical(rows, dim as usize, queries),
            Self::Clustered => Ok(around_centres(rows, dim as usize, queries)),
            Self::Duplicates => Ok(near_duplicates(rows, dim as usize, queries)),
        }
    }
}

/// Rows and questions.
pub struct Sample {
    /// What is searched.
    pub rows: Rows,
    /// What is asked.
    pub queries: Vec<Arc<[f32]>>,
}

/// Rows in memory, in key order.
pub struct Rows {
    dim: usize,
    keys: Vec<FactKey>,
    values: Vec<f32>,
    norms: Vec<f64>,
}

impl Rows {
    fn new(dim: usize, mut facts: Vec<Fact>) -> Self {
        facts.sort_by_key(|fact| fact.key);
        let mut rows = Self { dim, keys: Vec::new(), values: Vec::new(), norms: Vec::new() };
        for fact in facts {
            let Some(embedding) = fact.embedding else { continue };
            rows.keys.push(fact.key);
            rows.norms.push(norm(&embedding));
            rows.values.extend_from_slice(&embedding);
        }
        rows
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Components of each.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The key of one.
    pub fn key(&self, row: u32) -> FactKey {
        self.keys[row as usize]
    }

    /// The vector of one.
    pub fn row(&self, row: u32) -> VectorRow<'_> {
        let values = &self.values[row as usize * self.dim..][..self.dim];
        VectorRow { values, norm: self.norms[row as usize] }
    }

    /// Bytes of a row as every engine keeps it: its components and its norm.
    pub fn bytes_per_row(&self) -> usize {
        self.dim * size_of::<f32>() + size_of::<f64>()
    }
}

impl VectorSource for Rows {
    type Error = Infallible;

    fn vector(&self, row: u32) -> Result<Option<VectorRow<'_>>, Infallible> {
        Ok(Some(self.row(row)))
    }
}

fn lexical(rows: u32, dim: usize, queries: u32) -> Result<Sample, WorkloadError> {
    let embedder = Lexical::new(Tokenizer::Generic, dim);
    let all = rows + queries;
    let mut facts = multihop::generate(all.div_ceil(2), 0, &|text| embedder.embed(text))?.facts;
    facts.truncate(all as usize);
    // Evenly spread, so that questions are of both relations.
    let step = (all / queries.max(1)).max(1) as usize;
    let (mut kept, mut asked) = (Vec::new(), Vec::new());
    for (at, fact) in facts.into_iter().enumerate() {
        if at % step == (at / step) % 2 && asked.len() < queries as usize {
            asked.extend(fact.embedding);
        } else {
            kept.push(fact);
        }
    }
    Ok(Sample { rows: Rows::new(dim, kept), queries: asked })
}

fn around_centres(rows: u32, dim: usize, queries: u32) -> Sample {
    let drawn = clustered::generate(rows, dim, (rows / CLUSTER).max(1), queries);
    let queries = drawn.queries.into_iter().map(|query| query.vector).collect();
    Sample { rows: Rows::new(dim, drawn.facts), queries }
}

fn near_duplicates(rows: u32, dim: usize, queries: u32) -> Sample {
    let clumps = rows.div_ceil(CLUMP);
    let originals = clustered::generate(clumps, dim, (clumps / CLUSTER).max(1), 0).facts;
    let mut rng = Mt19937::new(SEED);
    let mut near = |clump: u32| {
        let original = originals[clump as usize].embedding.as_deref().unwrap_or_default();
        perturbed(&mut rng, original)
    };
    let mut facts = Vec::with_capacity(rows as usize);
    for row in 0..rows {
        let key = FactKey::new(u64::from(row) + 1, 1, u64::from(rows) + u64::from(row) + 1);
        let embedding = Some(near(row / CLUMP));
        facts.push(Fact { key, names: None, embedding, payload: None });
    }
    // Spread over all clumps.
    let queries = (0..queries).map(|at| near(at.wrapping_mul(7_919) % clumps)).collect();
    Sample { rows: Rows::new(dim, facts), queries }
}

/// A vector of length 1 that is `NOISE` away from `original`.
fn perturbed(rng: &mut Mt19937, original: &[f32]) -> Arc<[f32]> {
    // A uniform draw has variance 1/12.
    let size = NOISE * (12.0 / original.len() as f64).sqrt();
    let moved: Vec<f64> =
        original.iter().map(|x| f64::from(*x) + size * (rng.unit() - 0.5)).collect();
    let norm = moved.iter().map(|x| x * x).sum::<f64>().sqrt();
    moved.into_iter().map(|x| round_6(x / norm)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_data_set_has_the_rows_and_questions_asked_for_and_none_is_both() {
        for data in Data::EVERY {
            let sample = data.draw(1_001, 32, 50).expect("drawn");
            assert_eq!((sample.rows.count(), sample.queries.len()), (1_001, 50), "{data:?}");
            for query in &sample.queries {
                assert_eq!(query.len(), 32);
                let same = (0..1_001).any(|row| *sample.rows.row(row).values == query[..]);
                assert!(!same, "{data:?} asks for a row");
            }
            let again = data.draw(1_001, 32, 50).expect("drawn");
            assert!(again.rows.values == sample.rows.values && again.queries == sample.queries);
        }
    }

    #[test]
    fn near_duplicates_are_nearer_to_each_other_than_anything_else() {
        let sample = Data::Duplicates.draw(320, 64, 1).expect("drawn");
        let product = |a: u32, b: u32| {
            let (a, b) = (sample.rows.row(a).values, sample.rows.row(b).values);
            a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>()
        };
        assert!((0..31).all(|row| product(row, row + 1) > 0.999));
        assert!((0..9).all(|clump| product(clump * 32, clump * 32 + 32) < 0.999));
    }
}
