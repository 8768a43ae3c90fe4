//! Searching one sealed segment: which way to take, and taking it.

use super::ask::{RowSet, RunAsk, VectorSource};
use super::index::{QueryScorer, SegmentIndex};
use super::layout::GraphView;
use super::members::Members;
use super::meta::Way;
use super::nearest::Nearest;
use super::scan::{Bounds, Scored, Seen};
use super::scratch::{Entry, Scratch};
use super::sketch::{Looks, Sketch};
use super::walk::{beam, collect, descend, two_hop};
use hopbine_proto::call::{SeedMode, Work};
use std::convert::Infallible;

/// Sets up to this size are scanned: at 20 to 30 ns a row that is less than a filtered walk.
const SET_SCAN_MAX: usize = 16 * 1024;
/// Above this share of passing nodes a plain walk meets enough of them.
const COLLECT_SHARE_MIN: f64 = 0.3;
/// Beam of a two-hop walk at least: its graph is a thinned one.
const TWO_HOP_EF_MIN: usize = 128;
/// The recorded beam was measured at this k.
const MEASURED_K: usize = 64;
/// Where one node in so many is an answer 4-bit codes would save little.
const ANSWERS_SHARE: usize = 4;
/// Rows asked to estimate the share that passes a predicate.
const PREDICATE_SAMPLES: u32 = 64;

/// What became of a node's rows.
struct Visited {
    /// Their exact distance, if it was computed.
    distance: Option<f64>,
    /// Whether any of them may be returned.
    passed: bool,
}

/// How many of the best candidates are reranked exactly.
pub fn rerank_count(k: usize) -> usize {
    k.saturating_mul(3).max(32)
}

/// The best `k` rows of a sealed segment by `(exact distance, row)` that pass the filter, best
/// first. Fewer only when fewer rows with a vector pass. Adds to `work` what it took, with one
/// entry of `ways`. Fails only with what `vectors` or the predicate fails with.
pub fn search_segment<V: VectorSource + ?Sized>(
    index: &SegmentIndex,
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    scratch: &mut Scratch,
    work: &mut Work,
) -> Result<Vec<(f64, u32)>, V::Error> {
    assert_eq!(ask.query.dim(), index.meta().dim as usize, "a query of another dimension");
    assert_eq!(ask.query.metric(), index.meta().metric, "a query of another metric");
    let mut search = Search { index, members: index.members(), vectors, ask, work };
    let way = match ask.mode {
        SeedMode::Auto => index.meta().way,
        SeedMode::Graph { ef } => Way::Graph { ef },
        SeedMode::Scan => Way::Scan,
        SeedMode::Exact => Way::Exact,
    };
    match (way, index.graph()) {
        (Way::Exact, _) => {
            search.work.ways.push(way.to_string());
            scan_exact(vectors, ask, index.meta().rows, |row| row, search.work)
        }
        (Way::Graph { ef }, Some(graph)) => search.walk(&graph, ef, scratch),
        (Way::Bits { rerank } | Way::Nibbles { rerank }, _) => search.sketched(rerank, scratch),
        _ => search.scan(scratch),
    }
}

struct Search<'a, V: VectorSource + ?Sized> {
    index: &'a SegmentIndex,
    members: Members<'a>,
    vectors: &'a V,
    ask: &'a RunAsk<'a, V::Error>,
    work: &'a mut Work,
}

impl<V: VectorSource + ?Sized> Search<'_, V> {
    /// Graph walk where the filter allows one; a scan otherwise, or when too little was found.
    fn walk(
        &mut self,
        graph: &GraphView<'_>,
        ef: u32,
        scratch: &mut Scratch,
    ) -> Result<Vec<(f64, u32)>, V::Error> {
        let (filter, nodes) = (&self.ask.filter, graph.nodes() as usize);
        let set = match filter.rows {
            RowSet::All => None,
            RowSet::Sorted(set) => Some(set),
        };
        let share = self.share_that_lives() * self.share_that_passes()?;
        let grown = ef as f64 * (self.ask.k as f64 / MEASURED_K as f64).max(1.0) / share;
        // A walk that would see most nodes, or whose filter lets almost nothing pass.
        if set.is_some_and(|set| set.len() <= SET_SCAN_MAX) || grown * 4.0 >= nodes as f64 {
            return self.scan(scratch);
        }
        let ef = (grown.ceil() as usize).max(self.ask.k).max(1);
        let codes = self.index.codes();
        let query = self.ask.query;
        let mut scorer = QueryScorer {
            codes,
            query: query.codes(),
            kernels: query.kernels(),
            dots: &mut scratch.dots,
            scored: 0,
        };
        let start = descend(graph, &mut scorer);
        scratch.beam.visited.start(nodes);
        let (name, complete) = match set {
            None => {
                beam(graph, &mut scorer, &[start], ef, &mut scratch.beam);
                ("graph", true)
            }
            Some(set) => {
                scratch.passing.start(nodes);
                let passing = set.iter().filter_map(|row| self.members.node_of(*row));
                passing.for_each(|node| scratch.passing.insert(node));
                let passes = |node| scratch.passing.contains(node);
                let (in_set, beam) =
                    (set.len() as f64 / f64::from(self.index.meta().vectors), &mut scratch.beam);
                if in_set >= COLLECT_SHARE_MIN {
                    let bounds = (ef, in_set);
                    let done = collect(graph, &mut scorer, start, bounds, passes, beam);
                    ("graph, collecting", done)
                } else {
                    let bounds = (ef.max(TWO_HOP_EF_MIN), set.len() / 2);
                    ("acorn", two_hop(graph, &mut scorer, start, bounds, passes, beam))
                }
            }
        };
        self.work.codes_scored += scorer.scored;
        if complete && let Some(best) = self.rerank(&scratch.beam.pool, ef, share)? {
            self.work.ways.push(format!("{name} ef={ef}"));
            self.work.ef = self.work.ef.max(ef as u64);
            return Ok(best);
        }
        self.scan(scratch)
    }

    /// Exact distances of the best of the beam; `None` when too few of it may be returned.
    fn rerank(
        &mut self,
        pool: &[Entry],
        ef: usize,
        share: f64,
    ) -> Result<Option<Vec<(f64, u32)>>, V::Error> {
        let mut nearest = Nearest::new(self.ask.k);
        let (wanted, mut reranked) = (rerank_count(self.ask.k), 0);
        let set = match self.ask.filter.rows {
            RowSet::All => None,
            RowSet::Sorted(set) => Some(set),
        };
        for entry in pool {
            if reranked == wanted {
                break;
            }
            reranked += usize::from(self.visit_node(entry.node(), set, &mut nearest)?.passed);
        }
        // Half of what the share promised: less says that the filter goes with the question, and
        // that the beam ended before it met enough.
        let enough = reranked >= wanted.min((ef as f64 * share / 2.0) as usize);
        Ok((enough && nearest.limit().is_some()).then(|| nearest.into_sorted()))
    }

    /// Shows the rows of a node to `nearest`.
    fn visit_node(
        &mut self,
        node: u32,
        set: Option<&[u32]>,
        nearest: &mut Nearest<u32>,
    ) -> Result<Visited, V::Error> {
        let filter = &self.ask.filter;
        let (mut distance, mut passed) = (None, false);
        self.members.each_row(node, |row| {
            let outside = set.is_some_and(|set| set.binary_search(&row).is_err());
            if outside || filter.is_dead(row) {
                return Ok(true);
            }
            let exact = match distance {
                Some(exact) => exact,
                None => {
                    let Some(vector) = self.vectors.vector(row)? else { return Ok(true) };
                    self.work.vectors_scored += 1;
                    *distance.insert(self.ask.query.distance(vector.values, vector.norm))
                }
            };
            if !nearest.wants(exact, row) {
                // Later rows of this node are even later in the order.
                passed |= filter.predicate.is_none();
                return Ok(false);
            }
            if filter.passes(row)? {
                passed = true;
                nearest.push(exact, row);
            }
            Ok(true)
        })?;
        Ok(Visited { distance, passed })
    }

    /// Short codes of all nodes where nothing but dead rows is left out; a scan otherwise, or when
    /// too little was found.
    fn sketched(
        &mut self,
        rerank: u32,
        scratch: &mut Scratch,
    ) -> Result<Vec<(f64, u32)>, V::Error> {
        let (codes, query, filter) = (self.index.codes(), self.ask.query, &self.ask.filter);
        let plain = matches!(filter.rows, RowSet::All) && filter.predicate.is_none();
        let wanted = (self.ask.k as f64 / MEASURED_K as f64).max(1.0) / self.share_that_lives();
        let count = (f64::from(rerank) * wanted).ceil() as usize;
        let (half, sketch) = (codes.len() as usize / 2, self.index.sketch().filter(|_| plain));
        let count = match sketch {
            // Far fewer are looked at than may be.
            Some(Sketch::Nibbles(_)) if self.ask.k * ANSWERS_SHARE < 2 * half => count.min(half),
            Some(Sketch::Signs(_)) if count < half => count,
            _ => return self.scan(scratch),
        };
        let Some(sketch) = sketch else { return self.scan(scratch) };
        let (members, vectors, meta) = (self.members, self.vectors, self.index.meta());
        let mut nearest = Nearest::new(self.ask.k);
        let lives = |node: u32| {
            let mut lives = false;
            let seen: Result<(), Infallible> = members.each_row(node, |row| {
                lives = !filter.is_dead(row);
                Ok(!lives)
            });
            seen.is_ok() && lives
        };
        let looks = Looks {
            sketch: &sketch,
            codes: &codes,
            query,
            terms_max: (meta.error_max, meta.size_max),
            count,
            k: self.ask.k,
            lives: filter.dead.is_some().then_some(&lives as &dyn Fn(u32) -> bool),
        };
        let soon = |node: u32| vectors.expect(members.first_row(node));
        let scored = looks.each_promising(scratch, &soon, &mut |node| {
            let distance = self.visit_node(node, None, &mut nearest)?.distance;
            Ok(Seen { distance, limit: nearest.limit() })
        })?;
        self.work.codes_scored += scored;
        if self.ask.k > 0 && nearest.limit().is_none() {
            return self.scan(scratch);
        }
        self.work.ways.push(sketch.way(count as u32).to_string());
        Ok(nearest.into_sorted())
    }

    /// Codes of all nodes or of the given set, then exact distances of what could still win.
    fn scan(&mut self, scratch: &mut Scratch) -> Result<Vec<(f64, u32)>, V::Error> {
        let (codes, query, meta) = (self.index.codes(), self.ask.query, self.index.meta());
        let Scratch { dots, scores, batch, nodes, .. } = scratch;
        let mut nearest = Nearest::new(self.ask.k);
        if self.ask.k == 0 {
            return Ok(Vec::new());
        }
        let first = (self.ask.k.max(32) as f64 / self.share_that_lives()).ceil() as usize;
        let terms_max = (meta.error_max, meta.size_max);
        let RowSet::Sorted(set) = self.ask.filter.rows else {
            self.work.ways.push("scan".to_owned());
            codes.score_all(query.kernels(), query.codes(), dots, scores);
            self.work.codes_scored += u64::from(codes.len());
            let terms = |node| (codes.error(node), codes.size(node));
            let bounds = Bounds::Certain { terms: &terms, terms_max, query: query.codes() };
            let scored = Scored { scores, bounds };
            let (members, vectors) = (self.members, self.vectors);
            let soon = |node: u32| vectors.expect(members.first_row(node));
            scored.each_promising(first, batch, &soon, &mut |node| {
                self.visit_node(node, None, &mut nearest)?;
                Ok(Seen::limited(nearest.limit()))
            })?;
            return Ok(nearest.into_sorted());
        };
        self.work.ways.push("postings scan".to_owned());
        nodes.clear();
        nodes.extend(set.iter().filter_map(|row| self.members.node_of(*row)));
        nodes.dedup();
        if matches!(self.members, Members::Listed { .. }) {
            nodes.sort_unstable();
            nodes.dedup();
        }
        let (kernels, query) = (query.kernels(), query.codes());
        let mut scorer = QueryScorer { codes, query, kernels, dots, scored: 0 };
        super::walk::Scorer::score(&mut scorer, nodes, scores);
        self.work.codes_scored += scorer.scored;
        let terms = |at: u32| (codes.error(nodes[at as usize]), codes.size(nodes[at as usize]));
        let bounds = Bounds::Certain { terms: &terms, terms_max, query };
        let scored = Scored { scores, bounds };
        let (members, vectors) = (self.members, self.vectors);
        let soon = |at: u32| vectors.expect(members.first_row(nodes[at as usize]));
        scored.each_promising(first, batch, &soon, &mut |at| {
            self.visit_node(nodes[at as usize], Some(set), &mut nearest)?;
            Ok(Seen::limited(nearest.limit()))
        })?;
        Ok(nearest.into_sorted())
    }

    /// Share of rows that are not dead, at least one of them.
    fn share_that_lives(&self) -> f64 {
        let rows = f64::from(self.index.meta().rows.max(1));
        ((rows - f64::from(self.ask.filter.dead_rows)) / rows).max(1.0 / rows)
    }

    /// Share of rows that pass the predicate, estimated on evenly spread live ones. An estimate of
    /// few or none comes out small, which leads to a scan: the safe side.
    fn share_that_passes(&self) -> Result<f64, V::Error> {
        let filter = &self.ask.filter;
        if filter.predicate.is_none() {
            return Ok(1.0);
        }
        let candidates = match filter.rows {
            RowSet::All => self.index.meta().rows,
            RowSet::Sorted(set) => set.len() as u32,
        };
        let (mut asked, mut passed) = (0u32, 0u32);
        let step = (candidates / PREDICATE_SAMPLES).max(1);
        for at in (0..candidates).step_by(step as usize) {
            let row = match filter.rows {
                RowSet::All => at,
                RowSet::Sorted(set) => set[at as usize],
            };
            if !filter.is_dead(row) && self.members.node_of(row).is_some() {
                asked += 1;
                passed += u32::from(filter.passes(row)?);
            }
        }
        let share = f64::from(passed) / f64::from(asked.max(1));
        Ok(if share < COLLECT_SHARE_MIN { f64::MIN_POSITIVE } else { share })
    }
}

/// Computes every exact distance of rows `0..rows`; `item` says how equal distances are ordered.
pub(super) fn scan_exact<V: VectorSource + ?Sized, T: Ord + Copy>(
    vectors: &V,
    ask: &RunAsk<'_, V::Error>,
    rows: u32,
    item: impl Fn(u32) -> T,
    work: &mut Work,
) -> Result<Vec<(f64, T)>, V::Error> {
    let mut nearest = Nearest::new(ask.k);
    if ask.k == 0 {
        return Ok(Vec::new());
    }
    let mut visit = |row: u32| -> Result<(), V::Error> {
        if ask.filter.is_dead(row) {
            return Ok(());
        }
        let Some(vector) = vectors.vector(row)? else { return Ok(()) };
        let distance = ask.query.distance(vector.values, vector.norm);
        work.vectors_scored += 1;
        if nearest.wants(distance, item(row)) && ask.filter.passes(row)? {
            nearest.push(distance, item(row));
        }
        Ok(())
    };
    match ask.filter.rows {
        RowSet::All => (0..rows).try_for_each(&mut visit)?,
        RowSet::Sorted(set) => {
            set.iter().take_while(|row| **row < rows).try_for_each(|row| visit(*row))?;
        }
    }
    Ok(nearest.into_sorted())
}
