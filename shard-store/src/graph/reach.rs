//! Making every node reachable from the entry along base links.

use super::build::{BuildInput, PairScorer};
use super::layout::Links;
use super::scratch::BeamScratch;
use super::walk::{Adjacency, beam};

/// Beam of the search for a node from which an unreached one can be linked.
const EF: usize = 64;

struct BaseLists<'a>(&'a [Vec<u32>]);

impl Adjacency for BaseLists<'_> {
    fn neighbours(&self, node: u32) -> &[u32] {
        &self.0[node as usize]
    }

    fn prefetch(&self, _node: u32) {}
}

/// Links each node that the entry does not reach from the nearest reached node that has room for a
/// link, or from the nearest at all. Returns how many needed that.
pub(super) fn repair(links: &mut Links, input: &BuildInput<'_>) -> u32 {
    let mut reached = vec![false; links.base.len()];
    spread(&links.base, links.entry, &mut reached);
    let mut scorer = PairScorer::new(input.codes, input.metric);
    let mut scratch = BeamScratch::default();
    let mut repaired = 0;
    for node in 0..links.base.len() as u32 {
        if reached[node as usize] {
            continue;
        }
        scorer.start_from(node);
        scratch.visited.start(links.base.len());
        beam(&BaseLists(&links.base), &mut scorer, &[links.entry], EF, &mut scratch);
        let room = |at: &u32| links.base[*at as usize].len() < 2 * links.m as usize;
        let mut found = scratch.pool.iter().map(|entry| entry.node());
        let nearest = found.clone().next().unwrap_or(links.entry);
        let from = found.find(room).unwrap_or(nearest);
        links.base[from as usize].push(node);
        repaired += 1;
        spread(&links.base, node, &mut reached);
    }
    repaired
}

/// Marks everything that `start` reaches.
fn spread(base: &[Vec<u32>], start: u32, reached: &mut [bool]) {
    let mut open = vec![start];
    reached[start as usize] = true;
    while let Some(node) = open.pop() {
        for next in &base[node as usize] {
            if !std::mem::replace(&mut reached[*next as usize], true) {
                open.push(*next);
            }
        }
    }
}
