//! Vectors in, index out.

use super::ask::{VectorRow, VectorSource};
use super::build::{BuildInput, GraphBuilder, NativeBuilder, level_of};
use super::hnsw_crate::HnswCrateBuilder;
use super::index::NodeCodes;
use super::layout::GraphView;
use super::measure::Measured;
use super::members::Groups;
use super::meta::{IndexMeta, Way};
use super::reach::repair;
use super::sketch::Sketch;
use crate::codes::{Query, code_stride, encode_row, factor, scale_for};
use crate::kernel::cast;
use crate::nibbles::{Means, NibbleEncoder, Nibbles, centred_relations};
use crate::signs::{SignEncoder, Signs};
use hopbine_proto::disk::FileBytes;
use hopbine_proto::graph::{BuilderKind, IndexConfig};
use hopbine_proto::{FactKey, Metric};
use std::collections::HashMap;

/// Distinct vectors from which on a graph is built: below, a scan costs less than a walk.
pub const GRAPH_NODES_MIN: u32 = 8 * 1024;
/// Links that a graph's 32-bit offsets surely hold, and nodes that a beam's entries hold.
const GRAPH_LINKS_MAX: u64 = 1 << 31;
/// Components looked at to find the scale of the codes.
const SCALE_SAMPLES: usize = 1 << 20;
/// Share of components that must fit the codes; the rest is clamped.
const SCALE_SHARE: f64 = 0.9999;

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
    /// Codes of 1 or 4 bits; empty when neither is the chosen way.
    pub sketch: Vec<u8>,
    /// What belongs to them.
    pub sketch_terms: Vec<u8>,
    /// What to open it with again.
    pub meta: IndexMeta,
}

/// Codes the vectors, builds a graph where it pays, measures it, and chooses how to search.
/// Deterministic: equal input gives equal bytes. Fails only with what `vectors` fails with.
pub fn seal<V: VectorSource + ?Sized>(input: &SealInput<'_, V>) -> Result<Sealed, V::Error> {
    let groups = Groups::of(input.rows, input.vectors)?;
    let first_rows: Vec<u32> = groups.nodes.iter().map(|rows| rows[0]).collect();
    let nodes = Nodes { input, first_rows };
    let scale = nodes.scale()?;
    let (codes, terms) = nodes.encode(scale)?;
    let max = |at: usize| terms.iter().skip(at).step_by(2).copied().fold(0.0, f32::max);
    let mut meta = IndexMeta {
        dim: input.dim as u32,
        metric: input.metric,
        rows: input.rows,
        vectors: groups.vectors,
        nodes: nodes.first_rows.len() as u32,
        scale,
        error_max: max(0),
        size_max: max(1),
        way: Way::Scan,
        recall64: None,
        recall10: None,
        alarm: None,
    };
    let (mut graph, mut sketch) = (Vec::new(), (Vec::new(), Vec::new()));
    if meta.nodes >= GRAPH_NODES_MIN {
        let stride = code_stride(input.dim);
        let codes = NodeCodes { codes: &codes, terms: &terms, stride, scale };
        match nodes.build(codes) {
            Ok(bytes) => {
                let (signs, nibbles) = (nodes.signs()?, nodes.nibbles()?);
                nodes.measure(codes, &bytes, &signs, &nibbles, &mut meta)?;
                graph = bytes;
                match meta.way {
                    Way::Bits { .. } => sketch = signs,
                    Way::Nibbles { .. } => sketch = nibbles,
                    Way::Graph { .. } | Way::Scan | Way::Exact => {}
                }
            }
            Err(reason) => meta.alarm = Some(reason),
        }
    }
    let terms = terms.iter().flat_map(|term| term.to_le_bytes()).collect();
    let (sketch, sketch_terms) = sketch;
    Ok(Sealed { codes, terms, members: groups.to_bytes(), graph, sketch, sketch_terms, meta })
}

/// The distinct vectors of an input, each by its first row.
struct Nodes<'a, V: ?Sized> {
    input: &'a SealInput<'a, V>,
    first_rows: Vec<u32>,
}

impl<V: VectorSource + ?Sized> Nodes<'_, V> {
    fn vector(&self, node: u32) -> Result<VectorRow<'_>, V::Error> {
        let vector = self.input.vectors.vector(self.first_rows[node as usize])?;
        Ok(vector.expect("a node's row had a vector when it was grouped"))
    }

    /// The step of the codes, from evenly spread rows.
    fn scale(&self) -> Result<f32, V::Error> {
        let step = (self.first_rows.len() * self.input.dim).div_ceil(SCALE_SAMPLES).max(1);
        let mut sizes: Vec<f64> = Vec::new();
        for node in (0..self.first_rows.len() as u32).step_by(step) {
            let vector = self.vector(node)?;
            let factor = factor(self.input.metric, vector.norm);
            sizes.extend(vector.values.iter().map(|value| f64::from(value.abs()) * factor));
        }
        let Some(last) = sizes.len().checked_sub(1) else { return Ok(1.0) };
        let place = (last as f64 * SCALE_SHARE).ceil() as usize;
        let (_, most, above) = sizes.select_nth_unstable_by(place, f64::total_cmp);
        // Where nearly all components are zero the few others decide.
        let most = if *most > 0.0 { *most } else { above.iter().copied().fold(0.0, f64::max) };
        Ok(scale_for(most))
    }

    fn encode(&self, scale: f32) -> Result<(Vec<u8>, Vec<f32>), V::Error> {
        let count = self.first_rows.len();
        let mut codes = Vec::with_capacity(count * code_stride(self.input.dim));
        let mut terms = Vec::with_capacity(2 * count);
        for node in 0..count as u32 {
            let vector = self.vector(node)?;
            let metric = self.input.metric;
            let row = encode_row(metric, vector.values, vector.norm, scale, &mut codes);
            terms.extend([row.error, row.size]);
        }
        Ok((codes, terms))
    }

    /// 1-bit codes around the mean of all vectors.
    fn signs(&self) -> Result<(Vec<u8>, Vec<u8>), V::Error> {
        let (metric, count) = (self.input.metric, self.first_rows.len());
        let mut mean = vec![0.0f64; self.input.dim];
        for node in 0..count as u32 {
            let vector = self.vector(node)?;
            let share = factor(metric, vector.norm) / count as f64;
            mean.iter_mut().zip(vector.values).for_each(|(m, x)| *m += share * f64::from(*x));
        }
        let centre = mean.into_iter().map(|mean| mean as f32).collect();
        let mut encoder = SignEncoder::new(metric, centre);
        for node in 0..count as u32 {
            let vector = self.vector(node)?;
            encoder.push(vector.values, vector.norm);
        }
        Ok(encoder.finish())
    }

    /// 4-bit codes around the means of the frequent relations.
    fn nibbles(&self) -> Result<(Vec<u8>, Vec<u8>), V::Error> {
        let (metric, dim, count) =
            (self.input.metric, self.input.dim, self.first_rows.len() as u32);
        let relation = |node: u32| (self.input.key)(self.first_rows[node as usize]).relation;
        let mut rows = HashMap::new();
        (0..count).for_each(|node| *rows.entry(relation(node)).or_default() += 1);
        let centred = centred_relations(&rows);
        let number = |node| centred.get(&relation(node)).copied().unwrap_or(0);
        let mut means = Means::new(metric, centred.len() + 1, dim);
        for node in 0..count {
            let vector = self.vector(node)?;
            means.push(number(node), vector.values, vector.norm);
        }
        let mut encoder = NibbleEncoder::new(metric, dim, means.finish());
        for node in 0..count {
            let vector = self.vector(node)?;
            encoder.push(number(node), vector.values, vector.norm);
        }
        Ok(encoder.finish())
    }

    fn build(&self, codes: NodeCodes<'_>) -> Result<Vec<u8>, String> {
        let config = self.input.config;
        let links = u64::from(codes.len()) * (u64::from(config.m) * 2 + 8);
        if links >= GRAPH_LINKS_MAX {
            return Err("too many vectors for one graph: served by scan".to_owned());
        }
        let level = |row: &u32| level_of((self.input.key)(*row), config.build_seed, config.m);
        let levels: Vec<u8> = self.first_rows.iter().map(level).collect();
        let input = BuildInput { codes, metric: self.input.metric, config, levels: &levels };
        let builder: &dyn GraphBuilder = match config.builder {
            BuilderKind::Native => &NativeBuilder,
            BuilderKind::HnswRs => &HnswCrateBuilder,
        };
        let mut links = builder.build(&input)?;
        repair(&mut links, &input);
        Ok(links.to_bytes())
    }

    fn measure(
        &self,
        codes: NodeCodes<'_>,
        graph: &[u8],
        (signs, sign_terms): &(Vec<u8>, Vec<u8>),
        (nibbles, nibble_terms): &(Vec<u8>, Vec<u8>),
        meta: &mut IndexMeta,
    ) -> Result<(), V::Error> {
        let words = FileBytes::copied_from(signs);
        let numbers = FileBytes::copied_from(sign_terms);
        let nibble_terms = FileBytes::copied_from(nibble_terms);
        let numbers = cast::f32s(&numbers).expect("copied to an aligned place");
        let (centre, terms) = numbers.split_at(self.input.dim);
        let words = cast::u64s(&words).expect("copied to an aligned place");
        let signs = Sketch::Signs(Signs { words, centre, terms });
        let of_nibbles = cast::f32s(&nibble_terms).expect("copied to an aligned place");
        let nodes = codes.len() as usize;
        let nibbles = Nibbles::read(nibbles, of_nibbles, nodes, self.input.dim);
        let nibbles = Sketch::Nibbles(nibbles.expect("laid out just now"));
        let sketches = [signs, nibbles];
        let graph = crate::graph::Section::copied_from(graph);
        let graph = GraphView::read(&graph).expect("the graph was laid out just now");
        let terms_max = (meta.error_max, meta.size_max);
        let measured = Measured { codes, terms_max, graph, sketches, config: self.input.config };
        let query = |node| Ok(Query::new(self.input.metric, self.vector(node)?.values));
        let exact = |query: &Query, node| {
            let vector = self.vector(node)?;
            Ok(query.distance(vector.values, vector.norm))
        };
        let choice = measured.choose(&query, &exact)?;
        meta.way = choice.way;
        meta.recall64 = Some(choice.recall64);
        meta.recall10 = Some(choice.recall10);
        meta.alarm = choice.alarm;
        Ok(())
    }
}
