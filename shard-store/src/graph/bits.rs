//! The 1-bit scan: estimates for all nodes, of which the most promising go on to their 8-bit codes.

use super::index::{NodeCodes, QueryScorer};
use super::scan::smallest;
use super::scratch::Scratch;
use super::walk::Scorer;
use crate::codes::Query;
use crate::kernel::SIGN_GROUP;
use crate::signs::Signs;

/// Puts the `count` nodes with the best estimates into `scratch.nodes` and their scores by 8-bit
/// codes into `scratch.scores`.
pub(super) fn promising(
    signs: &Signs<'_>,
    codes: &NodeCodes<'_>,
    query: &Query,
    count: usize,
    scratch: &mut Scratch,
) {
    let Scratch { sums, scores, batch, nodes, dots, .. } = scratch;
    let asked = query.signs(signs.centre);
    sums.clear();
    sums.resize(signs.len().next_multiple_of(SIGN_GROUP), 0);
    query.kernels().sign_sums(&asked.planes, signs.words, sums);
    asked.scores(signs, sums, |node| codes.size(node), scores);
    smallest(scores, None, f32::NAN, count, batch);
    nodes.clear();
    nodes.extend(batch.iter().map(|key| *key as u32));
    // In the order of memory.
    nodes.sort_unstable();
    let (codes, kernels) = (*codes, query.kernels());
    let mut scorer = QueryScorer { codes, query: query.codes(), kernels, dots, scored: 0 };
    scorer.score(nodes, scores);
}
