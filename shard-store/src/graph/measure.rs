//! Choosing how a sealed segment is searched, by measuring it on its own vectors.
//!
//! Queries are sampled nodes, which do not count as their own answer; perturbed copies of nodes
//! would be too easy. The truth is a scan, which is exact. A 1-bit scan is tried with growing
//! numbers of candidates, a 4-bit scan once, and a graph walk with growing beams, each until it
//! reaches the recall target or costs more than what was found before; the cheapest wins. Where
//! the target is 1, only what is exact by itself will do, not what a sample found to be. Cost is
//! counted, not timed, so that every machine chooses alike.

use super::index::{NodeCodes, QueryScorer};
use super::layout::GraphView;
use super::meta::Way;
use super::nearest::Nearest;
use super::scan::{Bounds, Scored, Seen};
use super::scratch::Scratch;
use super::search::rerank_count;
use super::sketch::{Looks, Sketch};
use super::walk::{beam, descend};
use crate::codes::Query;
use crate::signs::sign_words;
use hopbine_proto::graph::{EfSearch, IndexConfig};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Beams tried, narrowest first.
const LADDER: [u32; 5] = [64, 128, 256, 512, 1024];
/// Candidates of a scan of 1-bit codes tried, fewest first.
const RERANKS: [u32; 6] = [192, 384, 768, 1536, 3072, 6144];
/// A scan of 4-bit codes finds out by itself how many candidates it needs: at most one node in so
/// many while it is measured, and later so many times what a sample needed at most.
const REFINED_SHARE: u32 = 8;
const REFINED_SPARE: u32 = 4;
/// Sampled queries: recall@64 is then the mean of 6,400 answers, within about 0.005.
const SAMPLES: usize = 100;
/// Answers that recall is measured at.
const K: usize = 64;
/// Below this recall@10 at the widest beam tried a person should know.
const RECALL10_FLOOR: f64 = 0.95;

/// Relative costs, in nanoseconds of an AVX-512 core (`examples/ann_speed.rs`, 20,000 rows, 384
/// components; a quiet machine takes half of it, a busy one twice): a node scanned in order and a
/// node met on a walk, each `(per node, per cache line of codes)` with everything that goes with
/// it, and one component of an exact distance.
const COST_IN_ORDER: (f64, f64) = (4.0, 1.5);
const COST_ON_WALK: (f64, f64) = (20.0, 3.0);
/// A node's 1-bit code, `(per node, per word of 64 components)`, its ranking included.
const COST_SIGNS: (f64, f64) = (1.5, 0.2);
/// A node's 4-bit code, `(per node, per cache line)`, its ranking included.
const COST_NIBBLES: (f64, f64) = (4.0, 1.5);
/// Share of the misses allowed that a scan of 4-bit codes may have: it seldom has any.
const NIBBLE_MISSES: f64 = 0.1;
const COST_EXACT: f64 = 0.3;

/// What was found.
pub(super) struct Choice {
    pub way: Way,
    pub recall64: f64,
    pub recall10: f64,
    pub alarm: Option<String>,
}

/// Hits and work of all samples with one way.
#[derive(Default)]
struct Tally {
    hits64: usize,
    hits10: usize,
    wanted64: usize,
    wanted10: usize,
    scored: u64,
    reranked: u64,
    /// Candidates of a sample, at most.
    candidates_most: u64,
}

impl Tally {
    fn recall64(&self) -> f64 {
        self.hits64 as f64 / self.wanted64.max(1) as f64
    }

    fn recall10(&self) -> f64 {
        self.hits10 as f64 / self.wanted10.max(1) as f64
    }

    /// Counts answers that are as near as the truth's; the node itself was taken out of both.
    fn count(&mut self, truth: &[(f64, u32)], found: &[(f64, u32)]) {
        let hits = |k: usize| {
            let limit = truth.get(..k).and_then(<[_]>::last).or(truth.last());
            let near = |(distance, _): &&(f64, u32)| limit.is_some_and(|l| *distance <= l.0);
            found.iter().take(k).filter(near).count()
        };
        self.hits64 += hits(K);
        self.hits10 += hits(10);
        self.wanted64 += truth.len().min(K);
        self.wanted10 += truth.len().min(10);
    }

    fn cost(&self, (per_row, per_line): (f64, f64), codes: &NodeCodes<'_>, dim: usize) -> f64 {
        let lines = (codes.stride / 64) as f64;
        self.scored as f64 * (per_row + per_line * lines)
            + self.reranked as f64 * COST_EXACT * dim as f64
    }
}

/// One index to be measured.
pub(super) struct Measured<'a> {
    pub codes: NodeCodes<'a>,
    pub terms_max: (f32, f32),
    pub graph: GraphView<'a>,
    pub sketches: [Sketch<'a>; 2],
    pub config: &'a IndexConfig,
}

struct Sample {
    node: u32,
    query: Query,
    truth: Vec<(f64, u32)>,
}

impl Measured<'_> {
    /// Measures and chooses. `query` prepares a node's own vector as a query; `exact` gives the
    /// exact distance of a query to a node.
    pub fn choose<E>(
        &self,
        query: &dyn Fn(u32) -> Result<Query, E>,
        exact: &dyn Fn(&Query, u32) -> Result<f64, E>,
    ) -> Result<Choice, E> {
        let mut scratch = Scratch::default();
        let (mut samples, mut scan) = (Vec::new(), Tally::default());
        for node in self.sampled() {
            let query = query(node)?;
            let truth = self.scan(&query, node, exact, &mut scratch, &mut scan)?;
            samples.push(Sample { node, query, truth });
        }
        let fixed = match self.config.ef_search {
            EfSearch::Auto => None,
            EfSearch::Fixed(ef) => Some(ef),
        };
        let ladder = fixed.as_ref().map_or(&LADDER[..], std::slice::from_ref);
        let dim = samples.first().map_or(0, |sample| sample.query.dim());
        let mut cost = scan.cost(COST_IN_ORDER, &self.codes, dim);
        let exactly = fixed.is_none() && self.config.recall_target >= 1.0;
        let mut short = None;
        if fixed.is_none() && !exactly {
            for sketch in &self.sketches {
                let found = self.cheapest_of(sketch, &samples, exact, &mut scratch, cost)?;
                if let Some((choice, of_sketch)) = found {
                    (short, cost) = (Some(choice), of_sketch);
                }
            }
        }
        let instead = |choice: Choice| match short {
            Some(Choice { way, recall64, recall10, .. }) => {
                Choice { way, recall64, recall10, ..choice }
            }
            None => choice,
        };
        let mut last = (0, Tally::default());
        for ef in ladder {
            let tally = self.try_beam(*ef, &samples, exact, &mut scratch)?;
            let reached = !exactly && tally.recall64() >= self.config.recall_target;
            let too_dear = tally.cost(COST_ON_WALK, &self.codes, dim) >= cost;
            last = (*ef, tally);
            if reached && !too_dear {
                break;
            }
            if too_dear && fixed.is_none() {
                return Ok(instead(scanned(&last, reached)));
            }
        }
        let (ef, tally) = &last;
        if fixed.is_none() && (exactly || tally.recall64() < self.config.recall_target) {
            return Ok(instead(scanned(&last, false)));
        }
        let low = tally.recall10() < RECALL10_FLOOR;
        let alarm = low.then(|| format!("recall@10 is {:.3} at ef={ef}", tally.recall10()));
        let (recall64, recall10) = (tally.recall64(), tally.recall10());
        Ok(Choice { way: Way::Graph { ef: *ef }, recall64, recall10, alarm })
    }

    /// Distinct nodes, spread by a hash of the build seed.
    fn sampled(&self) -> Vec<u32> {
        let nodes = u64::from(self.codes.len());
        let draw =
            |at: u64| (xxh3_64_with_seed(&at.to_le_bytes(), self.config.build_seed) % nodes) as u32;
        let mut sampled: Vec<u32> = (0..SAMPLES as u64).map(draw).collect();
        sampled.sort_unstable();
        sampled.dedup();
        sampled
    }

    fn scan<E>(
        &self,
        query: &Query,
        node: u32,
        exact: &dyn Fn(&Query, u32) -> Result<f64, E>,
        scratch: &mut Scratch,
        tally: &mut Tally,
    ) -> Result<Vec<(f64, u32)>, E> {
        let Scratch { dots, scores, batch, .. } = scratch;
        self.codes.score_all(query.kernels(), query.codes(), dots, scores);
        tally.scored += u64::from(self.codes.len());
        let terms = |node| (self.codes.error(node), self.codes.size(node));
        let bounds =
            Bounds::Certain { terms: &terms, terms_max: self.terms_max, query: query.codes() };
        let scored = Scored { scores, bounds };
        let mut nearest = Nearest::new(K);
        scored.each_promising(K + 1, batch, &|_| {}, &mut |other| {
            if other != node {
                tally.reranked += 1;
                nearest.push(exact(query, other)?, other);
            }
            Ok(Seen::limited(nearest.limit()))
        })?;
        Ok(nearest.into_sorted())
    }

    /// The smallest scan of these short codes that reaches the recall target below `cost`, and its
    /// own cost.
    fn cheapest_of<E>(
        &self,
        sketch: &Sketch<'_>,
        samples: &[Sample],
        exact: &dyn Fn(&Query, u32) -> Result<f64, E>,
        scratch: &mut Scratch,
        cost: f64,
    ) -> Result<Option<(Choice, f64)>, E> {
        let dim = samples.first().map_or(0, |sample| sample.query.dim());
        let nodes = (self.codes.len() as usize * samples.len()) as f64;
        let misses = 1.0 - self.config.recall_target;
        let ((per_node, per_part), parts, misses) = match sketch {
            Sketch::Signs(_) => (COST_SIGNS, sign_words(dim), misses),
            Sketch::Nibbles(of) => (COST_NIBBLES, of.stride / 64, misses * NIBBLE_MISSES),
        };
        let of_sketch = nodes * (per_node + per_part * parts as f64);
        let bound = [self.codes.len() / REFINED_SHARE];
        let reranks = match sketch {
            Sketch::Signs(_) => &RERANKS[..],
            Sketch::Nibbles(_) => &bound[..],
        };
        for rerank in reranks.iter().copied() {
            if rerank as usize * 2 >= self.codes.len() as usize {
                break;
            }
            let tally = self.try_sketch(sketch, rerank, samples, exact, scratch)?;
            let own = of_sketch + tally.cost(COST_ON_WALK, &self.codes, dim);
            if own >= cost {
                break;
            }
            let (recall64, recall10) = (tally.recall64(), tally.recall10());
            if recall64 >= 1.0 - misses {
                let way = sketch.way(match sketch {
                    Sketch::Signs(_) => rerank,
                    Sketch::Nibbles(_) => tally.candidates_most as u32 * REFINED_SPARE,
                });
                return Ok(Some((Choice { way, recall64, recall10, alarm: None }, own)));
            }
        }
        Ok(None)
    }

    fn try_sketch<E>(
        &self,
        sketch: &Sketch<'_>,
        rerank: u32,
        samples: &[Sample],
        exact: &dyn Fn(&Query, u32) -> Result<f64, E>,
        scratch: &mut Scratch,
    ) -> Result<Tally, E> {
        let (codes, terms_max) = (&self.codes, self.terms_max);
        let mut tally = Tally::default();
        for sample in samples {
            let query = &sample.query;
            // One more of each, since the node itself is taken out.
            let (count, k) = (rerank as usize + 1, K + 1);
            let looks = Looks { sketch, codes, query, terms_max, count, k, lives: None };
            let (mut nearest, mut reranked) = (Nearest::new(K), 0);
            let scored = looks.each_promising(scratch, &|_| {}, &mut |other| {
                if other == sample.node {
                    return Ok(Seen::limited(nearest.limit()));
                }
                reranked += 1;
                let distance = exact(query, other)?;
                nearest.push(distance, other);
                Ok(Seen { distance: Some(distance), limit: nearest.limit() })
            })?;
            // The look at all short codes has its own price.
            let candidates = scored - u64::from(codes.len());
            tally.scored += candidates;
            tally.candidates_most = tally.candidates_most.max(candidates);
            tally.reranked += reranked;
            tally.count(&sample.truth, &nearest.into_sorted());
        }
        Ok(tally)
    }

    fn try_beam<E>(
        &self,
        ef: u32,
        samples: &[Sample],
        exact: &dyn Fn(&Query, u32) -> Result<f64, E>,
        scratch: &mut Scratch,
    ) -> Result<Tally, E> {
        let mut tally = Tally::default();
        let ef = (ef as usize).max(K + 1);
        for sample in samples {
            let query = &sample.query;
            let (codes, kernels) = (self.codes, query.kernels());
            let (query_codes, dots) = (query.codes(), &mut scratch.dots);
            let mut scorer = QueryScorer { codes, query: query_codes, kernels, dots, scored: 0 };
            let start = descend(&self.graph, &mut scorer);
            scratch.beam.visited.start(self.graph.nodes() as usize);
            beam(&self.graph, &mut scorer, &[start], ef, &mut scratch.beam);
            tally.scored += scorer.scored;
            let mut nearest = Nearest::new(K);
            let others = scratch.beam.pool.iter().map(|entry| entry.node());
            for other in others.filter(|other| *other != sample.node).take(rerank_count(K)) {
                tally.reranked += 1;
                nearest.push(exact(query, other)?, other);
            }
            tally.count(&sample.truth, &nearest.into_sorted());
        }
        Ok(tally)
    }
}

/// The choice of a scan, and why the graph lost.
fn scanned((ef, tally): &(u32, Tally), reached: bool) -> Choice {
    let (recall64, recall10) = (tally.recall64(), tally.recall10());
    let alarm = if reached {
        format!("a scan is cheaper than the graph at ef={ef}")
    } else if recall10 < RECALL10_FLOOR {
        format!("the graph finds {recall10:.3} of the nearest 10 at ef={ef}")
    } else {
        format!("the graph finds {recall64:.3} of the nearest 64 at ef={ef}")
    };
    // A scan is exact.
    Choice { way: Way::Scan, recall64: 1.0, recall10: 1.0, alarm: Some(alarm) }
}
