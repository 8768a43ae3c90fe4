//! Every engine with every setting over every data set, one question after the other on one thread;
//! then, for each point of the hnsw_rs crate, the native graph that finds as much.
//!
//! Recall is that of the `k` nearest by exact search over all rows. A pass that is not timed comes
//! first; a question's own preparation (codes, length) counts.

use super::data::{Data, Sample};
use super::lines::{AnnLine, AnnMatchLine, Matched};
use super::native::{Engine, Native};
use super::theirs::Theirs;
use crate::BenchError;
use crate::measure::median;
use crate::report::Line;
use crate::run::Emit;
use crate::spec::BenchSpec;
use hopbine_proto::Metric;
use hopbine_proto::graph::IndexConfig;
use hopbine_shard_store::graph::nearest::Nearest;
use hopbine_shard_store::kernel::{ExactQuery, Kernels};
use std::collections::HashSet;
use std::time::Instant;

/// Rows at least: with fewer distinct vectors a segment has no graph.
pub const ROWS_MIN: u32 = 10_000;

/// Beams of both graphs, where the command names none.
const BEAMS: [u32; 5] = [64, 128, 256, 512, 1_024];
/// Rows that are looked at again after 1-bit codes.
const RERANKS: [u32; 3] = [192, 768, 3_072];
/// Rows wanted, where the command does not say.
const K: u32 = 64;
/// Questions, where the command does not say.
const QUERIES: u32 = 200;
/// The smallest beam is found to so many.
const BEAM_STEP: u32 = 4;
/// The crate's name.
const THEIRS: &str = "hnsw_rs";

/// How many vectors of which dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Vectors: [`ROWS_MIN`] at least.
    pub rows: u32,
    /// Components.
    pub dim: u32,
}

/// Compares the engines over every data set, or over the one that the spec's case names; a case
/// may also name an engine. Each line is handed on as soon as it is known.
pub(crate) async fn run(
    spec: &BenchSpec,
    size: Size,
    emit: Emit<'_>,
) -> Result<Vec<Line>, BenchError> {
    let wanted = Wanted::of(spec.case.as_deref())?;
    let k = spec.ann_k.unwrap_or(K);
    if spec.ef.is_some_and(|ef| ef < k) {
        let detail = format!("a beam is widened to the {k} rows wanted: take {k} at least");
        return Err(BenchError::Spec { detail });
    }
    let mut lines = Vec::new();
    for build in 0..u64::from(spec.builds) {
        let plan = Plan {
            size,
            config: IndexConfig { build_seed: spec.build_seed + build, ..IndexConfig::default() },
            k,
            queries: spec.queries.unwrap_or(QUERIES),
            runs: spec.runs(),
            beams: spec.ef.map_or_else(|| BEAMS.to_vec(), |ef| vec![ef]),
            wanted: wanted.clone(),
        };
        for data in Data::EVERY.into_iter().filter(|data| wanted.data(*data)) {
            let mut emit = |line: Line| {
                emit(&line);
                lines.push(line);
            };
            plan.compare(data, &mut emit).await?;
        }
    }
    Ok(lines)
}

/// What a case's name leaves.
#[derive(Clone, Debug, Default)]
struct Wanted {
    data: Option<String>,
    engine: Option<String>,
}

impl Wanted {
    fn of(case: Option<&str>) -> Result<Self, BenchError> {
        let Some(case) = case else { return Ok(Self::default()) };
        let data = Data::EVERY.map(Data::name);
        if data.contains(&case) {
            return Ok(Self { data: Some(case.to_owned()), engine: None });
        }
        let native = [Engine::Graph, Engine::Scan, Engine::Scan1, Engine::Auto].map(Engine::name);
        if native.contains(&case) || case == THEIRS {
            return Ok(Self { data: None, engine: Some(case.to_owned()) });
        }
        let names = [&data[..], &native[..], &[THEIRS][..]].concat().join(", ");
        Err(BenchError::Spec { detail: format!("no case {case:?}; there are {names}") })
    }

    fn data(&self, data: Data) -> bool {
        self.data.as_deref().is_none_or(|name| name == data.name())
    }

    fn engine(&self, name: &str) -> bool {
        self.engine.as_deref().is_none_or(|wanted| wanted == name)
    }
}

/// Settings of one comparison.
struct Plan {
    size: Size,
    config: IndexConfig,
    k: u32,
    queries: u32,
    runs: u32,
    beams: Vec<u32>,
    wanted: Wanted,
}

/// Questions with the distance of the k-th nearest row each.
struct Asked<'a> {
    sample: &'a Sample,
    limits: Vec<f64>,
    k: u32,
}

/// What an engine did with all questions.
#[derive(Clone, Copy, Debug)]
struct Seen {
    recall: f64,
    us_p50: f64,
}

/// Gives way to whoever waits for the end of the run: the comparison itself waits for nothing.
async fn breathe() {
    tokio::task::yield_now().await;
}

impl Plan {
    async fn compare(&self, data: Data, emit: &mut dyn FnMut(Line)) -> Result<(), BenchError> {
        let sample = data.draw(self.size.rows, self.size.dim, self.queries)?;
        let asked = Asked::new(&sample, self.k);
        breathe().await;
        let mut native = Native::build(&sample.rows, &self.config)?;
        breathe().await;
        self.ours(data, &asked, &mut native, emit)?;
        if !self.wanted.engine(THEIRS) {
            return Ok(());
        }
        breathe().await;
        let theirs = Theirs::build(&sample.rows, &self.config);
        for ef in self.beams.iter().copied().filter(|ef| *ef >= self.k) {
            breathe().await;
            let mut search = |vector: &[f32]| theirs.search(ef, vector, self.k);
            let seen = asked.timed(self.runs, &mut search);
            let built = (theirs.build_cpu_s(), theirs.bytes_per_row());
            emit(Line::Ann(self.line(data, THEIRS, Some(ef), seen, built)));
            emit(Line::AnnMatch(self.matched(data, &asked, &mut native, &theirs, (ef, seen))));
        }
        Ok(())
    }

    /// The lines of our own engines.
    fn ours(
        &self,
        data: Data,
        asked: &Asked<'_>,
        native: &mut Native<'_>,
        emit: &mut dyn FnMut(Line),
    ) -> Result<(), BenchError> {
        let widest = native.beam_max(self.k);
        // Beams below k are widened to it.
        let walked = |ef: &&u32| (self.k..=widest).contains(*ef);
        for ef in self.beams.iter().filter(walked) {
            self.one(data, asked, native, (Engine::Graph, Some(*ef)), emit);
        }
        self.one(data, asked, native, (Engine::Scan, None), emit);
        for rerank in RERANKS {
            if !self.wanted.engine(Engine::Scan1.name()) {
                break;
            }
            let Some(mut bits) = native.with_bits(rerank, self.k)? else { break };
            self.one(data, asked, &mut bits, (Engine::Scan1, Some(rerank)), emit);
        }
        self.one(data, asked, native, (Engine::Auto, None), emit);
        Ok(())
    }

    /// One point of one of our engines, if it was asked for.
    fn one(
        &self,
        data: Data,
        asked: &Asked<'_>,
        native: &mut Native<'_>,
        (engine, ef): (Engine, Option<u32>),
        emit: &mut dyn FnMut(Line),
    ) {
        if !self.wanted.engine(engine.name()) {
            return;
        }
        native.take_scans();
        let beam = ef.unwrap_or_default();
        let mut search = |vector: &[f32]| native.search(engine, beam, vector, self.k);
        let seen = asked.timed(self.runs, &mut search);
        let scans = native.take_scans() / u64::from(self.runs + 1);
        let built = (native.build_cpu_s(engine), native.bytes_per_row(engine));
        let mut line = self.line(data, engine.name(), ef, seen, built);
        line.way = (engine == Engine::Auto).then(|| native.way().to_string());
        line.scan_answers = (engine != Engine::Auto && scans > 0).then_some(scans);
        emit(Line::Ann(line));
    }

    fn line(
        &self,
        data: Data,
        engine: &'static str,
        ef: Option<u32>,
        seen: Seen,
        (build_cpu_s, bytes_per_row): (f64, f64),
    ) -> AnnLine {
        AnnLine {
            workload: "ann",
            engine,
            data: data.name(),
            m: self.config.m,
            build_seed: self.config.build_seed,
            rows: self.size.rows,
            dim: self.size.dim,
            k: self.k,
            ef,
            recall: seen.recall,
            us_p50: seen.us_p50,
            build_cpu_s,
            bytes_per_row,
            way: None,
            scan_answers: None,
        }
    }

    /// Looks for the native graph that finds as much as the crate did with its beam.
    fn matched(
        &self,
        data: Data,
        asked: &Asked<'_>,
        native: &mut Native<'_>,
        theirs: &Theirs,
        (their_ef, seen): (u32, Seen),
    ) -> AnnMatchLine {
        let most = native.beam_max(self.k);
        let mut recall_at = |ef: u32| {
            let mut search = |vector: &[f32]| native.search(Engine::Graph, ef, vector, self.k);
            asked.recall(&mut search)
        };
        let ef = smallest_beam(&mut recall_at, self.k, most, seen.recall);
        native.take_scans();
        let graph = ef.and_then(|ef| {
            let mut search = |vector: &[f32]| native.search(Engine::Graph, ef, vector, self.k);
            let ours = asked.timed(self.runs, &mut search);
            let times = seen.us_p50 / ours.us_p50;
            let found = Matched { ef, recall: ours.recall, us_p50: ours.us_p50, times };
            (native.take_scans() == 0).then_some(found)
        });
        AnnMatchLine {
            workload: "ann",
            case: "graph_for_hnsw_rs",
            data: data.name(),
            m: self.config.m,
            build_seed: self.config.build_seed,
            rows: self.size.rows,
            dim: self.size.dim,
            k: self.k,
            hnsw_rs_ef: their_ef,
            hnsw_rs_recall: seen.recall,
            hnsw_rs_us_p50: seen.us_p50,
            graph,
            build_times: theirs.build_cpu_s() / native.build_cpu_s(Engine::Graph),
        }
    }
}

/// Answers one question.
type Search<'a> = &'a mut dyn FnMut(&[f32]) -> Vec<u32>;

impl<'a> Asked<'a> {
    /// Searches exactly.
    fn new(sample: &'a Sample, k: u32) -> Self {
        let limit = |query: &[f32]| {
            let exact = ExactQuery::new(query);
            let mut nearest = Nearest::new(k as usize);
            for row in 0..sample.rows.count() {
                nearest.push(distance(sample, &exact, row), row);
            }
            nearest.into_sorted().last().map_or(f64::INFINITY, |(distance, _)| *distance)
        };
        Self { sample, limits: sample.queries.iter().map(|query| limit(query)).collect(), k }
    }

    /// Share of the nearest that one pass over all questions finds.
    fn recall(&self, search: Search<'_>) -> f64 {
        let (mut hits, mut wanted) = (0, 0);
        for (query, limit) in self.sample.queries.iter().zip(&self.limits) {
            let exact = ExactQuery::new(query);
            let found: HashSet<u32> = search(query).into_iter().collect();
            let near = |row: &&u32| distance(self.sample, &exact, **row) <= *limit;
            let k = self.k.min(self.sample.rows.count()) as usize;
            // Rows as near as the last one may be more than k.
            hits += found.iter().filter(near).count().min(k);
            wanted += k;
        }
        hits as f64 / wanted.max(1) as f64
    }

    /// Recall, then the median time of `runs` passes.
    fn timed(&self, runs: u32, search: Search<'_>) -> Seen {
        let recall = self.recall(search);
        let mut micros = Vec::with_capacity(runs as usize * self.sample.queries.len());
        for _ in 0..runs {
            for query in &self.sample.queries {
                let started = Instant::now();
                std::hint::black_box(search(query));
                micros.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        Seen { recall, us_p50: median(&micros) }
    }
}

fn distance(sample: &Sample, query: &ExactQuery, row: u32) -> f64 {
    let vector = sample.rows.row(row);
    query.distance(Kernels::chosen(), Metric::Cosine, vector.values, vector.norm)
}

/// The smallest beam from `least` to `most`, to `BEAM_STEP`, that finds `recall`: doubled until one
/// does, then halved in between. `None` when the widest does not.
fn smallest_beam(
    recall_at: &mut dyn FnMut(u32) -> f64,
    least: u32,
    most: u32,
    recall: f64,
) -> Option<u32> {
    let (mut short, mut enough) = (least, least);
    while recall_at(enough) < recall {
        if enough >= most {
            return None;
        }
        short = enough;
        enough = enough.saturating_mul(2).min(most);
    }
    while enough - short > BEAM_STEP {
        let between = short + (enough - short) / 2;
        if recall_at(between) < recall {
            short = between;
        } else {
            enough = between;
        }
    }
    Some(enough)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    #[test]
    fn the_smallest_beam_is_found_to_a_step() {
        let find = |threshold: u32, most| {
            let mut recall_at = |ef: u32| if ef >= threshold { 0.9 } else { 0.5 };
            smallest_beam(&mut recall_at, 64, most, 0.9)
        };
        assert_eq!(find(10, 4_096), Some(64));
        for threshold in [65, 100, 777, 1_024, 4_000] {
            let found = find(threshold, 4_096).expect("there is one");
            assert!((threshold..threshold + BEAM_STEP).contains(&found), "{found}, {threshold}");
        }
        assert_eq!(find(5_000, 4_096), None);
        assert_eq!(find(2_000, 1_999), None);
    }

    #[test]
    fn a_case_names_a_data_set_or_an_engine() {
        let wanted = |case| Wanted::of(Some(case)).expect("known");
        assert!(wanted("lexical").data(Data::Lexical) && !wanted("lexical").data(Data::Clustered));
        assert!(wanted("lexical").engine("scan") && !wanted("scan").engine(THEIRS));
        assert!(wanted(THEIRS).data(Data::Duplicates));
        let error = Wanted::of(Some("faiss")).expect_err("no such engine").to_string();
        assert!(error.contains("duplicates") && error.contains("scan1"), "{error}");
    }

    /// Every engine over one small data set, with graphs of few links.
    fn small(data: Data) -> (Vec<AnnLine>, Vec<AnnMatchLine>) {
        let config = IndexConfig { m: 8, ef_construction: 24, ..IndexConfig::default() };
        let plan = Plan {
            size: Size { rows: 8_400, dim: 32 },
            config,
            k: 64,
            queries: 10,
            runs: 1,
            beams: vec![64, 256],
            wanted: Wanted::default(),
        };
        let (mut lines, mut matches) = (Vec::new(), Vec::new());
        let mut emit = |line: Line| match line {
            Line::Ann(line) => lines.push(line),
            Line::AnnMatch(line) => matches.push(line),
            other => panic!("{other:?}"),
        };
        block_on(plan.compare(data, &mut emit)).expect("compared");
        (lines, matches)
    }

    #[test]
    fn every_engine_has_its_lines_over_every_data_set() {
        for data in Data::EVERY {
            let (lines, matches) = small(data);
            let engines: Vec<(&str, Option<u32>)> =
                lines.iter().map(|line| (line.engine, line.ef)).collect();
            let graph: [(&str, Option<u32>); 3] =
                [("graph", Some(64)), ("graph", Some(256)), ("scan", None)];
            let others = [("scan1", Some(192)), ("scan1", Some(768)), ("scan1", Some(3_072))];
            let last = [("auto", None), ("hnsw_rs", Some(64)), ("hnsw_rs", Some(256))];
            assert_eq!(engines, [graph, others, last].concat(), "{data:?}");
            assert_eq!(matches.len(), 2);
            for line in &lines {
                assert!((0.0..=1.0).contains(&line.recall) && line.us_p50 > 0.0, "{line:?}");
                assert!(line.build_cpu_s > 0.0 && line.bytes_per_row > 136.0, "{line:?}");
                assert_eq!(line.way.is_some(), line.engine == "auto");
            }
            let of = |engine: &'static str| lines.iter().filter(move |line| line.engine == engine);
            assert!(of("scan").all(|line| line.recall == 1.0), "an 8-bit scan is exact");
            assert!(of("auto").all(|line| line.recall > 0.9), "{data:?}");
            for point in matches {
                let enough = |found: Matched| found.recall >= point.hnsw_rs_recall;
                assert!(point.graph.is_none_or(enough), "{point:?}");
                assert!(point.build_times > 0.0);
            }
        }
    }

    #[test]
    fn a_line_has_the_fields_of_the_contract() {
        let (lines, _) = small(Data::Clustered);
        let scan = lines.into_iter().find(|line| line.engine == "scan").expect("a scan");
        let json = Line::Ann(scan).json();
        let json: serde_json::Value = serde_json::from_str(&json).expect("one JSON object");
        let fields: HashSet<&str> =
            json.as_object().expect("an object").keys().map(String::as_str).collect();
        let contract = [
            "workload",
            "engine",
            "data",
            "m",
            "build_seed",
            "rows",
            "dim",
            "k",
            "ef",
            "recall",
            "us_p50",
            "build_cpu_s",
            "bytes_per_row",
        ];
        assert_eq!(fields, HashSet::from(contract));
    }
}
