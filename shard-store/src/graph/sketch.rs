//! A first look at all nodes by their shortest codes, of 1 or 4 bits a component. After 1-bit codes
//! the most promising go on to their 8-bit codes, after 4-bit codes to the four bits that follow.

use super::index::{NodeCodes, QueryScorer};
use super::meta::Way;
use super::scan::{Bounds, Errors, Scored, Seen, smallest_in_order};
use super::scratch::Scratch;
use super::walk::Scorer;
use crate::codes::{NibbleQuery, Query};
use crate::kernel::SIGN_GROUP;
use crate::nibbles::Nibbles;
use crate::signs::Signs;

/// The short codes of an index.
#[derive(Clone, Copy, Debug)]
pub enum Sketch<'a> {
    /// One bit a component.
    Signs(Signs<'a>),
    /// Four bits a component.
    Nibbles(Nibbles<'a>),
}

impl Sketch<'_> {
    /// The way that looks at these codes and goes on with `rerank` nodes.
    pub(super) fn way(&self, rerank: u32) -> Way {
        match self {
            Self::Signs(_) => Way::Bits { rerank },
            Self::Nibbles(_) => Way::Nibbles { rerank },
        }
    }
}

/// One look through short codes.
pub(super) struct Looks<'a> {
    pub sketch: &'a Sketch<'a>,
    pub codes: &'a NodeCodes<'a>,
    pub query: &'a Query,
    /// Largest error and size of a row of `codes`.
    pub terms_max: (f32, f32),
    /// After 1-bit codes: so many nodes' 8-bit codes. After 4-bit codes: so many nodes' finer
    /// levels at most.
    pub count: usize,
    /// Answers wanted.
    pub k: usize,
    /// Whether a node has a row that is not dead; `None`: each has.
    pub lives: Option<&'a dyn Fn(u32) -> bool>,
}

impl Looks<'_> {
    /// Calls `visit` with the nodes that could be among the answers, most promising first; `soon`
    /// hears of a node a little before. Returns how many codes were scored.
    pub fn each_promising<E>(
        &self,
        scratch: &mut Scratch,
        soon: &dyn Fn(u32),
        visit: &mut dyn FnMut(u32) -> Result<Seen, E>,
    ) -> Result<u64, E> {
        let first = self.k.max(32);
        let all = u64::from(self.codes.len());
        match self.sketch {
            Sketch::Nibbles(nibbles) => {
                let asked = self.query.nibbles(nibbles);
                self.score_nibbles(nibbles, &asked, scratch);
                let refined = self.refine_nibbles(nibbles, &asked, scratch);
                let Scratch { finer, batch, nodes, .. } = scratch;
                let soon = |at: u32| soon(nodes[at as usize]);
                let visit = &mut |at: u32| visit(nodes[at as usize]);
                let scored = Scored { scores: finer, bounds: Bounds::Likely(asked.told()) };
                scored.each_promising(first, batch, &soon, visit)?;
                Ok(all + refined)
            }
            Sketch::Signs(signs) => {
                self.score_signs(signs, scratch);
                let Scratch { scores, batch, nodes, dots, .. } = scratch;
                // In the order of memory.
                smallest_in_order(scores, f32::NAN, self.count, batch, nodes);
                let (codes, kernels, query) =
                    (*self.codes, self.query.kernels(), self.query.codes());
                QueryScorer { codes, query, kernels, dots, scored: 0 }.score(nodes, scores);
                let terms = |at: u32| {
                    let node = nodes[at as usize];
                    (codes.error(node), codes.size(node))
                };
                let bounds = Bounds::Certain { terms: &terms, terms_max: self.terms_max, query };
                let soon = |at: u32| soon(nodes[at as usize]);
                let visit = &mut |at: u32| visit(nodes[at as usize]);
                Scored { scores, bounds }.each_promising(first, batch, &soon, visit)?;
                Ok(all + self.count as u64)
            }
        }
    }

    fn score_signs(&self, signs: &Signs<'_>, scratch: &mut Scratch) {
        let Scratch { sums, scores, .. } = scratch;
        let asked = self.query.signs(signs.centre);
        sums.clear();
        sums.resize(signs.len().next_multiple_of(SIGN_GROUP), 0);
        self.query.kernels().sign_sums(&asked.planes, signs.words, sums);
        asked.scores(signs, sums, |node| self.codes.size(node), scores);
    }

    /// Scores all nodes.
    fn score_nibbles(&self, nibbles: &Nibbles<'_>, asked: &NibbleQuery, scratch: &mut Scratch) {
        let Scratch { scores, dots, backwards, .. } = scratch;
        scores.clear();
        scores.resize(self.codes.len() as usize, 0.0);
        let mut score = |(number, scores): (usize, &mut [f32])| {
            let (first, count) = (number * BLOCK, scores.len());
            let levels = &nibbles.rows[first * nibbles.stride..][..count * nibbles.stride];
            dots.clear();
            dots.resize(count, 0);
            self.query.kernels().nibble_dots(&asked.numbers, levels, dots);
            asked.scores(nibbles, first..first + count, dots, scores);
            if asked.needs_sizes() {
                let of_block = (first as u32..).zip(scores);
                of_block.for_each(|(node, score)| *score += self.codes.size(node));
            }
        };
        // To and fro: what the last search left in the cache comes first.
        let blocks = scores.chunks_mut(BLOCK).enumerate();
        if *backwards {
            blocks.rev().for_each(&mut score)
        } else {
            blocks.for_each(&mut score)
        }
        *backwards = !*backwards;
    }

    /// Puts the nodes that are likely to hold the best k into `nodes` and their finer scores into
    /// `finer`: by how much these differ from the scores says how many nodes that are.
    /// Returns how many finer codes were scored.
    fn refine_nibbles(
        &self,
        nibbles: &Nibbles<'_>,
        asked: &NibbleQuery,
        scratch: &mut Scratch,
    ) -> u64 {
        let mut refined = 0;
        let Scratch { scores, finer, dots, batch, nodes, .. } = scratch;
        let mut refine = |nodes: &[u32], finer: &mut Vec<f32>| {
            refined += nodes.len() as u64;
            dots.clear();
            dots.resize(nodes.len(), 0);
            self.query.kernels().nibble_dots_at(&asked.numbers, nibbles.finer, nodes, dots);
            let scored = nodes.iter().map(|node| *node as usize).zip(&*dots);
            finer.clear();
            finer.extend(scored.map(|(node, dot)| asked.finer(nibbles, node, scores[node], *dot)));
        };
        // How far scores are off, from nodes that were not chosen for their scores.
        nodes.clear();
        nodes.extend((0..scores.len() as u32).step_by((scores.len() / ERRORS_LOOKED_AT).max(1)));
        refine(nodes, finer);
        let mut errors = Errors::default();
        let pairs = finer.iter().zip(&*nodes);
        pairs.for_each(|(finer, node)| errors.push(f64::from(finer - scores[*node as usize])));
        // The best k are not farther away than the k-th of those that look best.
        smallest_in_order(scores, f32::NAN, 2 * self.k.max(32), batch, nodes);
        if let Some(lives) = self.lives {
            // A dead node keeps no answer out.
            nodes.retain(|node| lives(*node));
        }
        refine(nodes, finer);
        let bound = match (errors.below(DEVIATIONS), self.k < finer.len()) {
            (Some(below), true) => {
                let (_, limit, _) = finer.select_nth_unstable_by(self.k, f32::total_cmp);
                (f64::from(*limit) - below) as f32
            }
            _ => f32::NAN,
        };
        smallest_in_order(scores, bound, self.count, batch, nodes);
        refine(nodes, finer);
        refined
    }
}

/// Nodes that tell how far scores are off.
const ERRORS_LOOKED_AT: usize = 96;
/// An error so many standard deviations below the mean is not likely to be met.
const DEVIATIONS: f64 = 5.0;
/// Rows scored at once: their dot products, 16 KiB, stay in the first cache.
const BLOCK: usize = 4096;
