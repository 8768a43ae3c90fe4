//! A first look at all nodes by their shortest codes, of 1 or 4 bits a component, of which the most
//! promising go on to their 8-bit codes.

use super::index::{NodeCodes, QueryScorer};
use super::meta::Way;
use super::scan::smallest;
use super::scratch::Scratch;
use super::walk::Scorer;
use crate::codes::Query;
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

    /// Estimated scores of all nodes, smaller is nearer.
    fn scores(&self, codes: &NodeCodes<'_>, query: &Query, scratch: &mut Scratch) {
        let Scratch { sums, scores, dots, .. } = scratch;
        match self {
            Self::Signs(signs) => {
                let asked = query.signs(signs.centre);
                sums.clear();
                sums.resize(signs.len().next_multiple_of(SIGN_GROUP), 0);
                query.kernels().sign_sums(&asked.planes, signs.words, sums);
                asked.scores(signs, sums, |node| codes.size(node), scores);
            }
            Self::Nibbles(nibbles) => {
                let asked = query.nibbles(nibbles);
                scores.clear();
                scores.reserve(codes.len() as usize);
                let numbers = nibbles.numbers.chunks(BLOCK);
                for (block, numbers) in nibbles.rows.chunks(BLOCK * nibbles.stride).zip(numbers) {
                    dots.clear();
                    dots.resize(block.len() / nibbles.stride, 0);
                    query.kernels().nibble_dots(&asked.numbers, block, dots);
                    let first = scores.len() as u32;
                    if asked.needs_sizes() {
                        let sized = (first..).map(|node| codes.size(node)).zip(numbers);
                        let scored = dots.iter().zip(sized);
                        scores.extend(scored.map(|(dot, (size, n))| asked.score(*dot, *n, size)));
                    } else {
                        let scored = dots.iter().zip(numbers);
                        scores.extend(scored.map(|(dot, n)| asked.score(*dot, *n, 0.0)));
                    }
                }
            }
        }
    }

    /// Puts the `count` nodes with the best estimates into `scratch.nodes` and their scores by
    /// 8-bit codes into `scratch.scores`.
    pub(super) fn promising(
        &self,
        codes: &NodeCodes<'_>,
        query: &Query,
        count: usize,
        scratch: &mut Scratch,
    ) {
        self.scores(codes, query, scratch);
        let Scratch { scores, batch, nodes, dots, .. } = scratch;
        smallest(scores, None, f32::NAN, count, batch);
        nodes.clear();
        nodes.extend(batch.iter().map(|key| *key as u32));
        // In the order of memory.
        nodes.sort_unstable();
        let (codes, kernels) = (*codes, query.kernels());
        let mut scorer = QueryScorer { codes, query: query.codes(), kernels, dots, scored: 0 };
        scorer.score(nodes, scores);
    }
}

/// Rows scored at once: their dot products, 16 KiB, stay in the first cache.
const BLOCK: usize = 4096;
