//! Rows that are not sealed yet: codes with a scale per row, scanned, then reranked exactly.

use super::ask::{RunAsk, VectorRow, VectorSource};
use super::search::{Scratch, scan_exact};
use crate::codes::{RowTerms, code_stride, encode_row, own_scale};
use hopbine_proto::call::Work;
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
    _chunks: &[&TailChunk],
    visible: u32,
    key: &dyn Fn(u32) -> FactKey,
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    _scratch: &mut Scratch,
    work: &mut Work,
) -> Result<Vec<(f64, u32)>, V::Error> {
    work.ways.push("exact".to_owned());
    let best = scan_exact(vectors, ask, visible, |row| (key(row), row), work)?;
    Ok(best.into_iter().map(|(distance, (_, row))| (distance, row)).collect())
}
