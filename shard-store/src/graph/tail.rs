//! Rows that are not sealed yet: codes with a scale per row, scanned, then reranked exactly.

use super::ask::{RowSet, RunAsk, VectorRow, VectorSource};
use super::nearest::Nearest;
use super::scan::{Bounds, Scored, Seen};
use super::scratch::Scratch;
use super::search::scan_exact;
use crate::codes::{Query, RowTerms, code_stride, encode_row, own_scale};
use hopbine_proto::call::{SeedMode, Work};
use hopbine_proto::{FactKey, Metric};

/// Codes of some neighbouring rows of a memtable. The owner of the rows decides how many go into
/// one chunk and how readers share them; rows are only ever appended.
#[derive(Clone, Debug)]
pub struct TailChunk {
    metric: Metric,
    dim: usize,
    codes: Vec<u8>,
    terms: Vec<Option<RowTerms>>,
}

impl TailChunk {
    /// An empty chunk with room for `capacity` rows.
    pub fn with_capacity(metric: Metric, dim: usize, capacity: usize) -> Self {
        let codes = Vec::with_capacity(capacity * code_stride(dim));
        Self { metric, dim, codes, terms: Vec::with_capacity(capacity) }
    }

    /// Appends one row; a row without vector (a tombstone, a structural edge) takes its place too.
    pub fn push(&mut self, vector: Option<VectorRow<'_>>) {
        let terms = vector.map(|vector| {
            let scale = own_scale(self.metric, vector.values, vector.norm);
            encode_row(self.metric, vector.values, vector.norm, scale, &mut self.codes)
        });
        if terms.is_none() {
            self.codes.resize(self.codes.len() + code_stride(self.dim), 128);
        }
        self.terms.push(terms);
    }

    /// Appends the scores of the first `rows` rows; a row without vector scores worst.
    fn score(&self, query: &Query, rows: usize, dots: &mut Vec<i32>, scores: &mut Vec<f32>) {
        let codes = &self.codes[..rows * code_stride(self.dim)];
        dots.clear();
        dots.resize(rows, 0);
        query.kernels().code_dots(query.codes().codes(), codes, dots);
        scores.extend(dots.iter().zip(&self.terms).map(|(dot, terms)| match terms {
            Some(terms) => query.codes().score(*dot, terms.scale, terms.size),
            None => f32::INFINITY,
        }));
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether it holds no row.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.codes.capacity() + self.terms.capacity() * size_of::<Option<RowTerms>>()
    }
}

/// The best `k` rows below `visible` by `(exact distance, key)` that pass the filter, best first;
/// the same answer as a full exact scan. `chunks` lie one after the other from row 0 and cover at
/// least `visible` rows; `key` orders rows of equal distance, since a memtable's rows are not in
/// key order. Otherwise as [`super::search_segment`].
pub fn search_tail<V: VectorSource + ?Sized>(
    chunks: &[&TailChunk],
    visible: u32,
    key: &dyn Fn(u32) -> FactKey,
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    scratch: &mut Scratch,
    work: &mut Work,
) -> Result<Vec<(f64, u32)>, V::Error> {
    let best = if ask.mode == SeedMode::Exact {
        work.ways.push("exact".to_owned());
        scan_exact(vectors, ask, visible, |row| (key(row), row), work)?
    } else {
        work.ways.push("tail scan".to_owned());
        scan(chunks, visible, key, vectors, ask, scratch, work)?
    };
    Ok(best.into_iter().map(|(distance, (_, row))| (distance, row)).collect())
}

fn scan<V: VectorSource + ?Sized>(
    chunks: &[&TailChunk],
    visible: u32,
    key: &dyn Fn(u32) -> FactKey,
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    scratch: &mut Scratch,
    work: &mut Work,
) -> Result<Vec<Keyed>, V::Error> {
    if ask.k == 0 {
        return Ok(Vec::new());
    }
    let Scratch { dots, scores, batch, nodes, .. } = scratch;
    let mut terms = Vec::new();
    scores.clear();
    for chunk in chunks {
        let left = (visible as usize).saturating_sub(terms.len()).min(chunk.len());
        chunk.score(ask.query, left, dots, scores);
        terms.extend_from_slice(&chunk.terms[..left]);
    }
    work.codes_scored += scores.len() as u64;
    // Candidates are the rows of the set; a scan of a few thousand codes costs less than
    // gathering them.
    let set = match ask.filter.rows {
        RowSet::All => None,
        RowSet::Sorted(set) => {
            nodes.clear();
            nodes.extend(set.iter().copied().filter(|row| (*row as usize) < terms.len()));
            let picked: Vec<f32> = nodes.iter().map(|row| scores[*row as usize]).collect();
            scores.clone_from(&picked);
            Some(&nodes[..])
        }
    };
    let row_of = |at: u32| set.map_or(at, |set| set[at as usize]);
    let terms_of = |at: u32| {
        let terms = terms[row_of(at) as usize].unwrap_or_default();
        (terms.error, terms.size)
    };
    let most = |max: (f32, f32), terms: &RowTerms| (max.0.max(terms.error), max.1.max(terms.size));
    let terms_max = terms.iter().flatten().fold((0.0, 0.0), most);
    let query = ask.query.codes();
    let bounds = Bounds::Certain { terms: &terms_of, terms_max, query };
    let scored = Scored { scores, bounds };
    let mut nearest = Nearest::new(ask.k);
    let soon = |at: u32| vectors.expect(row_of(at));
    scored.each_promising(ask.k.max(32), batch, &soon, &mut |at| {
        let row = row_of(at);
        if !ask.filter.is_dead(row)
            && let Some(vector) = vectors.vector(row)?
        {
            work.vectors_scored += 1;
            let (distance, item) =
                (ask.query.distance(vector.values, vector.norm), (key(row), row));
            if nearest.wants(distance, item) && ask.filter.passes(row)? {
                nearest.push(distance, item);
            }
        }
        Ok(Seen::limited(nearest.limit()))
    })?;
    Ok(nearest.into_sorted())
}

/// A row at an exact distance, with the key that orders equal distances.
type Keyed = (f64, (FactKey, u32));
