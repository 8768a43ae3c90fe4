//! Building a graph over 8-bit codes: deterministic, one node after the other.
//!
//! HNSW (Malkov and Yashunin, 2016): a new node is linked, on each of its levels, to at most m of
//! the `ef_construction` nearest ones, chosen by the diversity heuristic (algorithm 4: a candidate
//! counts only if it is nearer to the new node than to everything chosen before); each of those
//! links back, and a full list (2m on the base, m above) is thinned by the same heuristic.

use super::index::NodeCodes;
use super::layout::{LEVELS_MAX, Links, UpperLevel};
use super::scratch::{BeamScratch, Entry};
use super::walk::{Adjacency, Scorer, beam};
use crate::kernel::{Kernels, SignedCodes};
use hopbine_proto::graph::IndexConfig;
use hopbine_proto::{FactKey, Metric};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a graph is built from: equal input gives an equal graph.
pub struct BuildInput<'a> {
    /// Codes of the nodes.
    pub codes: NodeCodes<'a>,
    /// Distance.
    pub metric: Metric,
    /// m and `ef_construction`.
    pub config: &'a IndexConfig,
    /// Highest level of each node, see [`level_of`].
    pub levels: &'a [u8],
}

/// Makes the links of a graph.
pub trait GraphBuilder {
    /// Links all nodes of `input`, of which there is at least one. Fails, with the reason, only
    /// when this builder cannot take the input at all.
    fn build(&self, input: &BuildInput<'_>) -> Result<Links, String>;
}

/// Highest level of a node: each level holds about one in `m` of the nodes below. Chance comes
/// from the key and the seed, so a rebuilt graph equals the old one.
pub fn level_of(key: FactKey, seed: u64, m: u32) -> u8 {
    let hash = xxh3_64_with_seed(&key.to_bytes(), seed);
    let (mut level, mut threshold) = (0, u64::MAX / u64::from(m.max(2)));
    while hash < threshold && usize::from(level) + 1 < LEVELS_MAX {
        level += 1;
        threshold /= u64::from(m.max(2));
    }
    level
}

/// Our own builder.
#[derive(Clone, Copy, Debug, Default)]
pub struct NativeBuilder;

impl GraphBuilder for NativeBuilder {
    fn build(&self, input: &BuildInput<'_>) -> Result<Links, String> {
        let mut build = Build::new(input);
        for node in 0..input.codes.len() {
            build.insert(node);
        }
        Ok(build.into_links())
    }
}

/// Distances between nodes over their codes.
pub(super) struct PairScorer<'a> {
    codes: NodeCodes<'a>,
    metric: Metric,
    kernels: &'static Kernels,
    from: SignedCodes,
    from_size: f64,
    dots: Vec<i32>,
}

impl<'a> PairScorer<'a> {
    /// Measures from nowhere yet.
    pub fn new(codes: NodeCodes<'a>, metric: Metric) -> Self {
        let from = SignedCodes::zeros(codes.stride);
        let kernels = Kernels::chosen();
        Self { codes, metric, kernels, from, from_size: 0.0, dots: Vec::new() }
    }

    /// Measures from `node` from now on.
    pub fn start_from(&mut self, node: u32) {
        self.from.set(self.codes.row(node));
        self.from_size = f64::from(self.codes.size(node));
    }
}

impl Scorer for PairScorer<'_> {
    fn score(&mut self, nodes: &[u32], scores: &mut Vec<f32>) {
        self.dots.clear();
        self.dots.resize(nodes.len(), 0);
        self.kernels.code_dots_at(&self.from, self.codes.codes, nodes, &mut self.dots);
        scores.clear();
        if self.metric != Metric::L2 {
            scores.extend(self.dots.iter().map(|dot| -*dot as f32));
            return;
        }
        let step = 2.0 * f64::from(self.codes.scale) * f64::from(self.codes.scale);
        scores.extend(nodes.iter().zip(&self.dots).map(|(node, dot)| {
            let sizes = self.from_size + f64::from(self.codes.size(*node));
            (sizes - f64::from(*dot) * step) as f32
        }));
    }
}

/// Neighbour lists of one layer while it grows.
struct Layer {
    /// Nodes on this layer, ascending; `None` on the base, which holds all.
    ids: Option<Vec<u32>>,
    capacity: usize,
    nodes: Vec<u32>,
    scores: Vec<f32>,
    counts: Vec<u32>,
}

impl Layer {
    fn new(ids: Option<Vec<u32>>, count: usize, capacity: usize) -> Self {
        let slots = count * capacity;
        Self {
            ids,
            capacity,
            nodes: vec![0; slots],
            scores: vec![0.0; slots],
            counts: vec![0; count],
        }
    }

    fn place(&self, node: u32) -> usize {
        match &self.ids {
            None => node as usize,
            Some(ids) => ids.binary_search(&node).expect("a walk stays on its layer"),
        }
    }

    fn entries(&self, place: usize) -> impl Iterator<Item = Entry> {
        let range = place * self.capacity..place * self.capacity + self.counts[place] as usize;
        let pairs = self.nodes[range.clone()].iter().zip(&self.scores[range]);
        pairs.map(|(node, score)| Entry::new(*score, *node))
    }

    fn set(&mut self, place: usize, entries: &[Entry]) {
        self.counts[place] = 0;
        entries.iter().for_each(|entry| self.push(place, *entry));
    }

    fn push(&mut self, place: usize, entry: Entry) {
        let slot = place * self.capacity + self.counts[place] as usize;
        (self.nodes[slot], self.scores[slot]) = (entry.node(), entry.score());
        self.counts[place] += 1;
    }

    fn is_full(&self, place: usize) -> bool {
        self.counts[place] as usize == self.capacity
    }

    fn into_lists(self) -> Vec<Vec<u32>> {
        let places = 0..self.counts.len() as u32;
        let list = |place: u32| {
            let start = place as usize * self.capacity;
            self.nodes[start..start + self.counts[place as usize] as usize].to_vec()
        };
        places.map(list).collect()
    }
}

impl Adjacency for Layer {
    fn neighbours(&self, node: u32) -> &[u32] {
        let place = self.place(node);
        &self.nodes[place * self.capacity..][..self.counts[place] as usize]
    }

    fn prefetch(&self, node: u32) {
        if self.ids.is_none() {
            let start = node as usize * self.capacity;
            let list = &self.nodes[start..start + self.capacity];
            list.chunks(16).for_each(|line| crate::kernel::prefetch(&line[0]));
        }
    }
}

struct Build<'a> {
    input: &'a BuildInput<'a>,
    layers: Vec<Layer>,
    entry: Option<u32>,
    nearness: PairScorer<'a>,
    between: PairScorer<'a>,
    scratch: BeamScratch,
    chosen: Vec<Entry>,
    left: Vec<Entry>,
    left_nodes: Vec<u32>,
    scores: Vec<f32>,
}

impl<'a> Build<'a> {
    fn new(input: &'a BuildInput<'a>) -> Self {
        let (m, nodes) = (input.config.m as usize, input.codes.len());
        let highest = input.levels.iter().copied().max().unwrap_or(0);
        let mut layers = vec![Layer::new(None, nodes as usize, 2 * m)];
        for level in 1..=highest {
            let on_level = |node: &u32| input.levels[*node as usize] >= level;
            let ids: Vec<u32> = (0..nodes).filter(on_level).collect();
            let count = ids.len();
            layers.push(Layer::new(Some(ids), count, m));
        }
        Self {
            input,
            layers,
            entry: None,
            nearness: PairScorer::new(input.codes, input.metric),
            between: PairScorer::new(input.codes, input.metric),
            scratch: BeamScratch::default(),
            chosen: Vec::new(),
            left: Vec::new(),
            left_nodes: Vec::new(),
            scores: Vec::new(),
        }
    }

    fn insert(&mut self, node: u32) {
        let level = usize::from(self.input.levels[node as usize]);
        let Some(entry) = self.entry else {
            self.entry = Some(node);
            return;
        };
        let top = usize::from(self.input.levels[entry as usize]);
        self.nearness.start_from(node);
        let mut nearest = entry;
        for layer in (0..=top).rev() {
            let ef = if layer > level { 1 } else { self.input.config.ef_construction as usize };
            self.scratch.visited.start(self.input.codes.len() as usize);
            let start = [nearest];
            beam(&self.layers[layer], &mut self.nearness, &start, ef, &mut self.scratch);
            nearest = self.scratch.pool[0].node();
            if layer <= level {
                self.link(layer, node);
            }
        }
        if level > top {
            self.entry = Some(node);
        }
    }

    /// Links `node` to the best of the beam, and those back to it.
    fn link(&mut self, layer: usize, node: u32) {
        let candidates = std::mem::take(&mut self.scratch.pool);
        // As many links forward as the layer holds: with half of them a walk over nearly
        // orthogonal vectors misses its way more often than the saved distances are worth.
        let count = self.layers[layer].capacity;
        self.choose(&candidates, count);
        self.scratch.pool = candidates;
        let place = self.layers[layer].place(node);
        self.layers[layer].set(place, &self.chosen);
        for entry in self.chosen.clone() {
            let back = Entry::new(entry.score(), node);
            let place = self.layers[layer].place(entry.node());
            if !self.layers[layer].is_full(place) {
                self.layers[layer].push(place, back);
                continue;
            }
            let mut candidates: Vec<Entry> = self.layers[layer].entries(place).collect();
            candidates.push(back);
            candidates.sort_unstable();
            let capacity = self.layers[layer].capacity;
            self.choose(&candidates, capacity);
            self.layers[layer].set(place, &self.chosen);
        }
    }

    /// Chooses at most `count` of the sorted candidates by the diversity heuristic: each one
    /// chosen strikes out those that are nearer to it than to the node being linked.
    fn choose(&mut self, candidates: &[Entry], count: usize) {
        self.chosen.clear();
        self.left.clear();
        self.left.extend(candidates.iter().map(|entry| Entry::new(entry.score(), entry.node())));
        while self.chosen.len() < count && !self.left.is_empty() {
            let best = self.left.remove(0);
            self.chosen.push(best);
            self.left_nodes.clear();
            self.left_nodes.extend(self.left.iter().map(|entry| entry.node()));
            self.between.start_from(best.node());
            self.between.score(&self.left_nodes, &mut self.scores);
            let mut scores = self.scores.iter();
            self.left.retain(|entry| scores.next().is_some_and(|score| *score >= entry.score()));
        }
    }

    fn into_links(self) -> Links {
        let mut layers = self.layers.into_iter();
        let base = layers.next().map(Layer::into_lists).unwrap_or_default();
        let upper = layers.map(|mut layer| {
            let ids = layer.ids.take().unwrap_or_default();
            UpperLevel { ids, links: layer.into_lists() }
        });
        let upper = upper.collect();
        Links { entry: self.entry.unwrap_or(0), m: self.input.config.m, base, upper }
    }
}
