//! Memory that searches use one after the other.

/// Which nodes a walk has seen: a mark counts only if it carries the current epoch, so starting
/// anew costs nothing until the epochs run out.
#[derive(Debug, Default)]
pub struct Visited {
    epoch: u16,
    marks: Vec<u16>,
}

impl Visited {
    /// Forgets everything and makes room for `nodes` nodes.
    pub fn start(&mut self, nodes: usize) {
        if self.marks.len() < nodes {
            self.marks.resize(nodes, 0);
        }
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.marks.fill(0);
            self.epoch = 1;
        }
    }

    /// Replaces `fresh` by those of `nodes` that were not marked before, and marks them. Without a
    /// branch per node: whether a neighbour is fresh cannot be predicted.
    #[inline]
    pub fn fresh_of(&mut self, nodes: &[u32], fresh: &mut Vec<u32>) {
        fresh.clear();
        fresh.resize(nodes.len(), 0);
        let mut len = 0;
        for node in nodes {
            let mark = &mut self.marks[*node as usize];
            fresh[len] = *node;
            len += usize::from(*mark != self.epoch);
            *mark = self.epoch;
        }
        fresh.truncate(len);
    }

    /// Marks `node`; returns whether it was not marked before.
    #[inline]
    pub fn insert(&mut self, node: u32) -> bool {
        let mark = &mut self.marks[node as usize];
        let fresh = *mark != self.epoch;
        *mark = self.epoch;
        fresh
    }
}

/// A set of nodes, one bit each.
#[derive(Debug, Default)]
pub struct NodeBits(Vec<u64>);

impl NodeBits {
    /// Empties the set and makes room for `nodes` nodes.
    pub fn start(&mut self, nodes: usize) {
        self.0.clear();
        self.0.resize(nodes.div_ceil(64), 0);
    }

    /// Adds a node.
    #[inline]
    pub fn insert(&mut self, node: u32) {
        self.0[node as usize / 64] |= 1 << (node % 64);
    }

    /// Whether the set holds `node`.
    #[inline]
    pub fn contains(&self, node: u32) -> bool {
        self.0[node as usize / 64] & (1 << (node % 64)) != 0
    }
}

/// Memory of one walk.
#[derive(Debug, Default)]
pub struct BeamScratch {
    pub(super) visited: Visited,
    /// The beam, best first.
    pub(super) pool: Vec<Entry>,
    /// Fresh neighbours of the node being expanded, and their scores.
    pub(super) fresh: Vec<u32>,
    pub(super) scores: Vec<f32>,
}

/// A node in a beam: score, node and whether it was expanded, packed so that comparing numbers
/// compares `(score, node)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry(u64);

impl Entry {
    /// A node not yet expanded; `node` is below 2^31.
    #[inline]
    pub fn new(score: f32, node: u32) -> Self {
        Self(u64::from(ordered(score)) << 32 | u64::from(node) << 1)
    }

    /// Which node.
    #[inline]
    pub fn node(self) -> u32 {
        self.0 as u32 >> 1
    }

    /// Its score.
    #[inline]
    pub fn score(self) -> f32 {
        score_of((self.0 >> 32) as u32)
    }

    /// Whether it was expanded.
    #[inline]
    pub fn is_expanded(self) -> bool {
        self.0 & 1 == 1
    }

    /// Remembers that it was expanded.
    #[inline]
    pub fn expand(&mut self) {
        self.0 |= 1;
    }
}

/// A number whose order is the score's order.
#[inline]
pub fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The score of a number made by `ordered`.
#[inline]
pub fn score_of(ordered: u32) -> f32 {
    f32::from_bits(if ordered >> 31 == 1 { ordered ^ (1 << 31) } else { !ordered })
}

/// Memory of one search at a time; grows to the largest segment searched.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) passing: NodeBits,
    pub(super) beam: BeamScratch,
    pub(super) dots: Vec<i32>,
    pub(super) sums: Vec<u32>,
    pub(super) scores: Vec<f32>,
    pub(super) finer: Vec<f32>,
    pub(super) batch: Vec<u64>,
    pub(super) nodes: Vec<u32>,
    /// The next scan of short codes begins at their end.
    pub(super) backwards: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_are_ordered_by_score_then_node(
            a in (-1e30f32..1e30, 0u32..1 << 31), b in (-1e30f32..1e30, 0u32..1 << 31),
        ) {
            let (first, second) = (Entry::new(a.0, a.1), Entry::new(b.0, b.1));
            let expected = a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
            prop_assert_eq!(first.cmp(&second), expected);
            prop_assert_eq!((first.score(), first.node()), a);
            let mut expanded = first;
            expanded.expand();
            prop_assert!(expanded.is_expanded() && !first.is_expanded());
            prop_assert_eq!((expanded.score(), expanded.node()), a);
        }
    }

    #[test]
    fn a_mark_is_forgotten_at_every_start_even_when_epochs_run_out() {
        let mut visited = Visited::default();
        visited.start(2);
        assert!(visited.insert(1));
        assert!(!visited.insert(1));
        for _ in 0..=u32::from(u16::MAX) {
            visited.start(3);
            assert!(visited.insert(1));
        }
        assert!(visited.insert(2));
    }
}
