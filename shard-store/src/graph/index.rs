//! A sealed index opened over its sections.
//!
//! | section | bytes                    | content                                               |
//! |---------|--------------------------|-------------------------------------------------------|
//! | codes   | nodes × stride           | 8-bit codes, see `codes.rs`; stride = dim up to 64s   |
//! | terms   | nodes × 8                | error f32, size f32 of each node, see `RowTerms`      |
//! | members | 0 or 4 × words           | rows ↔ nodes, see `members.rs`                        |
//! | graph   | 0 or varies              | links, see `layout.rs`                                |
//! | sketch  | 0 or varies              | codes of 1 bit (`signs.rs`) or of 4 (`nibbles.rs`)    |
//! | sketch  | 0 or 4 × (dim + 3 nodes) | of 1 bit: centre, then three f32 of each node         |
//! | terms   | or varies                | of 4 bits: see `nibbles.rs`                           |
//!
//! The chosen way in the record says which codes a sketch has; without one of them it is empty.
//!
//! Each section starts at a multiple of 64. Opening checks sizes, offsets and every number that is
//! later used as a place; the contents' checksums are the segment file's business.

use super::layout::GraphView;
use super::members::Members;
use super::meta::{IndexMeta, Way};
use super::sketch::Sketch;
use super::walk::Scorer;
use crate::codes::{CodeQuery, code_stride};
use crate::kernel::{Kernels, cast};
use crate::nibbles::Nibbles;
use crate::signs::{SIGN_TERMS, Signs, sign_section_words};
use hopbine_proto::disk::FileBytes;
use hopbine_proto::limits::DIM_MAX;
use std::ops::Range;

/// The sections do not fit together: the segment is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ann section {section} is damaged at byte {offset}: {what}")]
pub struct IndexDamage {
    /// `codes`, `terms`, `members`, `graph` or `sketch`.
    pub section: &'static str,
    /// Byte inside the section, 0 when the whole is wrong.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
}

/// A part of a file's bytes, kept alive by it.
#[derive(Clone)]
pub struct Section {
    bytes: FileBytes,
    range: Range<usize>,
}

impl Section {
    /// The part `range` of `bytes`; `None` when it reaches beyond them.
    pub fn new(bytes: FileBytes, range: Range<usize>) -> Option<Self> {
        bytes.get(range.clone())?;
        Some(Self { bytes, range })
    }

    /// A section of its own, copied: for tests and for what was sealed just now.
    pub fn copied_from(bytes: &[u8]) -> Self {
        Self { bytes: FileBytes::copied_from(bytes), range: 0..bytes.len() }
    }
}

impl std::ops::Deref for Section {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

/// The sections of one index, as `Sealed` made them.
#[derive(Clone)]
pub struct IndexSections {
    /// 8-bit codes.
    pub codes: Section,
    /// Two f32 per node.
    pub terms: Section,
    /// Rows and nodes; empty when they are the same.
    pub members: Section,
    /// Links; empty when there is no graph.
    pub graph: Section,
    /// Codes of 1 or 4 bits; empty when there are none.
    pub sketch: Section,
    /// What belongs to them; empty when there are none.
    pub sketch_terms: Section,
}

/// A sealed index, checked and ready to be searched.
#[derive(Clone)]
pub struct SegmentIndex {
    meta: IndexMeta,
    sections: IndexSections,
}

impl SegmentIndex {
    /// Checks the sections against `meta` and against each other. Reads all of members and graph,
    /// nothing of codes and terms. Fails when a size, an offset or a number is wrong.
    pub fn open(meta: IndexMeta, sections: IndexSections) -> Result<Self, IndexDamage> {
        let damage = |section, what| IndexDamage { section, offset: 0, what };
        let dim = meta.dim as usize;
        if dim == 0 || dim > DIM_MAX || meta.nodes > meta.vectors || meta.vectors > meta.rows {
            return Err(damage("codes", "impossible sizes"));
        }
        let nodes = meta.nodes as usize;
        if sections.codes.len() != nodes * code_stride(dim) {
            return Err(damage("codes", "another length than the record says"));
        }
        if cast::f32s(&sections.terms).is_none_or(|terms| terms.len() != 2 * nodes) {
            return Err(damage("terms", "another length than the record says"));
        }
        if !(meta.scale.is_finite() && meta.scale > 0.0 && meta.error_max >= 0.0) {
            return Err(damage("codes", "impossible scale"));
        }
        if !(sections.sketch.is_empty() && sections.sketch_terms.is_empty()) {
            let words = cast::u64s(&sections.sketch).map(<[u64]>::len);
            let terms = cast::f32s(&sections.sketch_terms).unwrap_or_default();
            let sound = match meta.way {
                Way::Nibbles { .. } => Nibbles::read(&sections.sketch, terms, nodes, dim)
                    .is_some_and(|nibbles| nibbles.is_sound(dim)),
                _ => {
                    let expected = (Some(sign_section_words(nodes, dim)), dim + SIGN_TERMS * nodes);
                    (words, terms.len()) == expected
                }
            };
            if !sound {
                return Err(damage("sketch", "another length than the record says"));
            }
        }
        if !sections.graph.is_empty() {
            GraphView::check(&sections.graph, meta.nodes).map_err(|what| damage("graph", what))?;
        }
        Members::open(&sections.members, meta.rows, meta.vectors, meta.nodes)
            .map_err(|what| damage("members", what))?;
        Ok(Self { meta, sections })
    }

    /// Sizes, chosen way, measured recall.
    pub fn meta(&self) -> &IndexMeta {
        &self.meta
    }

    /// The map between rows and nodes.
    pub fn members(&self) -> Members<'_> {
        Members::read(&self.sections.members, self.meta.rows, self.meta.nodes)
            .expect("open checked this section")
    }

    /// The graph, if there is one.
    pub fn graph(&self) -> Option<GraphView<'_>> {
        let graph = &self.sections.graph;
        (!graph.is_empty()).then(|| GraphView::read(graph).expect("open checked this section"))
    }

    /// The short codes of the nodes, if there are any.
    pub fn sketch(&self) -> Option<Sketch<'_>> {
        let (sketch, dim) = (&self.sections.sketch, self.meta.dim as usize);
        if sketch.is_empty() {
            return None;
        }
        let numbers = cast::f32s(&self.sections.sketch_terms).expect("open checked this section");
        if let Way::Nibbles { .. } = self.meta.way {
            let nodes = self.meta.nodes as usize;
            return Nibbles::read(sketch, numbers, nodes, dim).map(Sketch::Nibbles);
        }
        let words = cast::u64s(sketch).expect("open checked this section");
        let (centre, terms) = numbers.split_at_checked(dim)?;
        Some(Sketch::Signs(Signs { words, centre, terms }))
    }

    /// Codes and terms of the nodes.
    pub fn codes(&self) -> NodeCodes<'_> {
        NodeCodes {
            codes: &self.sections.codes,
            terms: cast::f32s(&self.sections.terms).expect("open checked this section"),
            stride: code_stride(self.meta.dim as usize),
            scale: self.meta.scale,
        }
    }
}

/// Codes of distinct vectors with one scale, and their terms.
#[derive(Clone, Copy, Debug)]
pub struct NodeCodes<'a> {
    /// Rows of codes.
    pub codes: &'a [u8],
    /// Error and size of each node.
    pub terms: &'a [f32],
    /// Bytes of a row of codes.
    pub stride: usize,
    /// One step of the codes.
    pub scale: f32,
}

impl<'a> NodeCodes<'a> {
    /// Number of nodes.
    pub fn len(&self) -> u32 {
        (self.terms.len() / 2) as u32
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Codes of one node.
    pub fn row(&self, node: u32) -> &'a [u8] {
        &self.codes[node as usize * self.stride..][..self.stride]
    }

    /// How far the codes are off, at most.
    #[inline]
    pub fn error(&self, node: u32) -> f32 {
        self.terms[2 * node as usize]
    }

    /// See `RowTerms::size`.
    #[inline]
    pub fn size(&self, node: u32) -> f32 {
        self.terms[2 * node as usize + 1]
    }

    /// Scores every node in order, some cache-resident number at a time.
    pub fn score_all(
        &self,
        kernels: &Kernels,
        query: &CodeQuery,
        dots: &mut Vec<i32>,
        scores: &mut Vec<f32>,
    ) {
        scores.clear();
        scores.reserve(self.len() as usize);
        for (block, codes) in self.codes.chunks(BLOCK * self.stride).enumerate() {
            dots.clear();
            dots.resize(codes.len() / self.stride, 0);
            kernels.code_dots(query.codes(), codes, dots);
            if query.needs_sizes() {
                let sizes = self.terms[2 * BLOCK * block..].iter().skip(1).step_by(2);
                let scored = dots.iter().zip(sizes);
                scores.extend(scored.map(|(dot, size)| query.score(*dot, self.scale, *size)));
            } else {
                scores.extend(dots.iter().map(|dot| query.score(*dot, self.scale, 0.0)));
            }
        }
    }
}

/// Rows scored at once by a scan: their dot products, 16 KiB, stay in the first cache.
const BLOCK: usize = 4096;

/// Scores nodes against a query, and counts them.
pub(super) struct QueryScorer<'a> {
    pub codes: NodeCodes<'a>,
    pub query: &'a CodeQuery,
    pub kernels: &'a Kernels,
    pub dots: &'a mut Vec<i32>,
    pub scored: u64,
}

impl Scorer for QueryScorer<'_> {
    fn score(&mut self, nodes: &[u32], scores: &mut Vec<f32>) {
        self.scored += nodes.len() as u64;
        self.dots.clear();
        self.dots.resize(nodes.len(), 0);
        self.kernels.code_dots_at(self.query.codes(), self.codes.codes, nodes, self.dots);
        scores.clear();
        let scored = nodes.iter().zip(self.dots.iter());
        scores.extend(
            scored.map(|(node, dot)| {
                self.query.score(*dot, self.codes.scale, self.codes.size(*node))
            }),
        );
    }
}
