//! Walking a graph: a beam of the best nodes seen, expanded best first.
//!
//! Beam search of HNSW (Malkov and Yashunin, 2016, algorithm 2), with the candidate list and the
//! result list in one sorted array.

use super::layout::GraphView;
use super::scratch::{BeamScratch, Entry};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Neighbours of a node on one layer.
pub(super) trait Adjacency {
    fn neighbours(&self, node: u32) -> &[u32];
    fn prefetch(&self, node: u32);
}

impl Adjacency for GraphView<'_> {
    fn neighbours(&self, node: u32) -> &[u32] {
        GraphView::neighbours(self, node)
    }

    fn prefetch(&self, node: u32) {
        GraphView::prefetch(self, node);
    }
}

/// Distance from a fixed point to nodes; smaller is nearer.
pub(super) trait Scorer {
    /// Replaces `scores` by one score per node.
    fn score(&mut self, nodes: &[u32], scores: &mut Vec<f32>);
}

/// Walks one layer from `start` with a beam of `ef`; leaves the beam in `scratch.pool`, best
/// first.
pub(super) fn beam(
    graph: &impl Adjacency,
    scorer: &mut impl Scorer,
    start: &[u32],
    ef: usize,
    scratch: &mut BeamScratch,
) {
    let BeamScratch { visited, pool, fresh, scores } = scratch;
    visited.fresh_of(start, fresh);
    scorer.score(fresh, scores);
    pool.clear();
    pool.extend(fresh.iter().zip(scores.iter()).map(|(node, score)| Entry::new(*score, *node)));
    pool.sort_unstable();
    pool.truncate(ef);
    let mut cursor = 0;
    while let Some(entry) = pool.get_mut(cursor) {
        if entry.is_expanded() {
            cursor += 1;
            continue;
        }
        entry.expand();
        let node = entry.node();
        visited.fresh_of(graph.neighbours(node), fresh);
        if let Some(next) = pool.get(cursor + 1) {
            graph.prefetch(next.node());
        }
        scorer.score(fresh, scores);
        for (node, score) in fresh.iter().zip(scores.iter()) {
            let place = insert(pool, Entry::new(*score, *node), ef);
            cursor = cursor.min(place);
        }
    }
}

/// Inserts into a sorted pool of at most `ef`; returns the place, `usize::MAX` when it is too far.
#[inline]
fn insert(pool: &mut Vec<Entry>, entry: Entry, ef: usize) -> usize {
    if pool.len() == ef {
        if pool.last().is_none_or(|last| *last <= entry) {
            return usize::MAX;
        }
        pool.pop();
    }
    let place = pool.partition_point(|other| *other < entry);
    pool.insert(place, entry);
    place
}

/// Goes down the upper levels, on each to the node nearest to the query; returns the base node
/// to start from.
pub(super) fn descend(graph: &GraphView<'_>, scorer: &mut impl Scorer) -> u32 {
    let (mut nodes, mut scores) = (Vec::new(), Vec::new());
    let mut node = graph.entry();
    let Some(top) = graph.levels().checked_sub(1) else { return node };
    let mut place = graph.level(top).ids.binary_search(&node).unwrap_or(0) as u32;
    for index in (0..=top).rev() {
        let level = graph.level(index);
        scorer.score(&[level.ids[place as usize]], &mut scores);
        let mut best = Entry::new(scores[0], place);
        loop {
            nodes.clear();
            let neighbours = level.neighbours(best.node());
            nodes.extend(neighbours.iter().map(|next| level.ids[*next as usize]));
            scorer.score(&nodes, &mut scores);
            let nearest =
                neighbours.iter().zip(&scores).map(|(next, score)| Entry::new(*score, *next));
            match nearest.min() {
                Some(next) if next < best => best = next,
                _ => break,
            }
        }
        place = level.down[best.node() as usize];
        node = level.ids[best.node() as usize];
    }
    node
}

/// Nodes met before a filter is judged.
const COLLECT_TRIAL: u32 = 512;
/// A filter that lets through less than this part of its share goes against the question.
const COLLECT_SHORT: f64 = 0.7;

/// Walks through all nodes but collects only those that pass, until the best `ef` of them are
/// certain as far as a beam can be. Leaves them in `scratch.pool`, best first. Returns `false`
/// when far fewer nodes passed than `share` of those met: the filter goes against the question,
/// and what passes lies where this walk does not lead.
pub(super) fn collect(
    graph: &GraphView<'_>,
    scorer: &mut impl Scorer,
    start: u32,
    (ef, share): (usize, f64),
    passes: impl Fn(u32) -> bool,
    scratch: &mut BeamScratch,
) -> bool {
    let BeamScratch { visited, pool, fresh, scores } = scratch;
    let (mut scored, mut passed) = (0u32, 0u32);
    let mut open = BinaryHeap::new();
    let mut found: BinaryHeap<Entry> = BinaryHeap::new();
    fresh.clear();
    fresh.push(start);
    visited.insert(start);
    loop {
        scorer.score(fresh, scores);
        scored += fresh.len() as u32;
        for (node, score) in fresh.iter().zip(scores.iter()) {
            let entry = Entry::new(*score, *node);
            let (full, admitted) = (found.len() == ef, passes(*node));
            passed += u32::from(admitted);
            if full && found.peek().is_some_and(|worst| *worst <= entry) {
                continue;
            }
            open.push(Reverse(entry));
            if admitted {
                if full {
                    found.pop();
                }
                found.push(entry);
            }
        }
        let expected = f64::from(scored) * share;
        if scored > COLLECT_TRIAL && f64::from(passed) < expected * COLLECT_SHORT {
            return false;
        }
        let Some(Reverse(next)) = open.pop() else { break };
        if found.len() == ef && found.peek().is_some_and(|worst| *worst < next) {
            break;
        }
        visited.fresh_of(graph.neighbours(next.node()), fresh);
    }
    pool.clear();
    pool.extend(found.into_sorted_vec());
    true
}

/// Two-hop expansion over passing nodes only (ACORN-1; Patel and others, 2024): a neighbour that
/// does not pass is replaced by its own neighbours that do. Leaves the beam in `scratch.pool`.
/// Returns `false` when `cap` scores were not enough.
pub(super) fn two_hop(
    graph: &GraphView<'_>,
    scorer: &mut impl Scorer,
    start: u32,
    (ef, cap): (usize, usize),
    passes: impl Fn(u32) -> bool,
    scratch: &mut BeamScratch,
) -> bool {
    let BeamScratch { visited, pool, fresh, scores } = scratch;
    let mut scored = 0;
    let gather = |node: u32, visited: &mut super::scratch::Visited, fresh: &mut Vec<u32>| {
        for next in graph.neighbours(node) {
            if !visited.insert(*next) {
                continue;
            }
            if passes(*next) {
                fresh.push(*next);
                continue;
            }
            for after in graph.neighbours(*next) {
                if passes(*after) && visited.insert(*after) {
                    fresh.push(*after);
                }
            }
        }
    };
    pool.clear();
    fresh.clear();
    visited.insert(start);
    if passes(start) {
        fresh.push(start);
    }
    gather(start, visited, fresh);
    let mut cursor = 0;
    loop {
        scored += fresh.len();
        if scored > cap {
            return false;
        }
        scorer.score(fresh, scores);
        for (node, score) in fresh.iter().zip(scores.iter()) {
            cursor = cursor.min(insert(pool, Entry::new(*score, *node), ef));
        }
        while pool.get(cursor).is_some_and(|entry| entry.is_expanded()) {
            cursor += 1;
        }
        let Some(entry) = pool.get_mut(cursor) else { return true };
        entry.expand();
        let node = entry.node();
        fresh.clear();
        gather(node, visited, fresh);
    }
}
