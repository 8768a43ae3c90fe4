//! One run: build, gate, measure, report; repeated for each build seed.
//!
//! Each case is asked in passes over all questions, one latency per pass and question. Quality
//! and the comparison with the plain evaluation come from a pass of their own before the clock.

use crate::cases::{self, Baseline, Case, Executor, From, Quality, Store};
use crate::diagnostics::diagnose;
use crate::heap::Heap;
use crate::measure::{Recorder, peak_memory, process_cpu};
use crate::report::{BuildLine, CaseLine, DiagnosticsLine, Line, Params, spread};
use crate::spec::{BenchSpec, IndexChoice, WorkloadSpec};
use crate::target::{Built, Host};
use crate::workload::{Point, Query, Workload, boundaries, butler_gate};
use crate::{BenchError, ann, filters, multidepth};
use hopbine_proto::FactKey;
use hopbine_proto::call::SeedMode;
use hopbine_proto::graph::{GraphConfig, IdKind};
use std::time::{Duration, Instant};

/// Questions that plain rows with brute-force seeds are timed on: a thousand would take minutes
/// a row and say the same.
const PLAIN_QUERIES_MAX: usize = 64;

/// Where finished lines go, one by one.
pub type Emit<'a> = &'a mut dyn FnMut(&Line);

/// Runs `spec` on graphs that `host` builds; each line is handed to `emit` as soon as it is known.
/// Fails, and leaves off, at the first answer that differs from the plain evaluation.
pub async fn run(
    spec: &BenchSpec,
    host: &dyn Host,
    emit: Emit<'_>,
) -> Result<Vec<Line>, BenchError> {
    spec.validate()?;
    if let WorkloadSpec::Ann(size) = spec.workload {
        return ann::run(spec, size, emit).await;
    }
    let workload = spec.generate()?;
    if workload.facts.is_empty() || workload.queries.is_empty() {
        return Err(BenchError::Spec { detail: "no facts or no questions".to_owned() });
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // As many threads as the shards of one question can use.
    let heap = Heap::new(&workload.facts, threads.min(spec.shards as usize));
    let mut run = Run {
        spec,
        baseline: Baseline::new(heap, workload.seed_on),
        workload: &workload,
        lines: Vec::new(),
        emit,
    };
    if spec.sweep {
        run.sweep(host).await?;
    } else {
        for build in 0..u64::from(spec.builds) {
            run.one_build(host, spec.build_seed + build).await?;
        }
        run.spreads();
    }
    Ok(run.lines)
}

/// State of one run.
pub(crate) struct Run<'a> {
    pub(crate) spec: &'a BenchSpec,
    pub(crate) baseline: Baseline,
    pub(crate) workload: &'a Workload,
    lines: Vec<Line>,
    emit: Emit<'a>,
}

/// What a case is measured with.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) built: &'a Built,
    pub(crate) queries: &'a [Query],
    pub(crate) point: Point,
    pub(crate) mode: SeedMode,
    pub(crate) build_seed: u64,
}

impl Run<'_> {
    pub(crate) fn emit(&mut self, line: Line) {
        (self.emit)(&line);
        self.lines.push(line);
    }

    async fn one_build(&mut self, host: &dyn Host, build_seed: u64) -> Result<(), BenchError> {
        let point = self.workload.point;
        let built = self.build(host, &point, build_seed).await?;
        let mode = self.spec.seed_mode(&point);
        let queries = &self.workload.queries;
        let setting = Setting { built: &built, queries, point, mode, build_seed };
        match self.spec.workload {
            WorkloadSpec::Synthetic(_) => self.cases(&setting, cases::synthetic()).await,
            WorkloadSpec::Gutenberg(_) => self.cases(&setting, cases::gutenberg()).await,
            WorkloadSpec::Multidepth(layout) => {
                multidepth::measure(self, host, &setting, layout).await
            }
            WorkloadSpec::Multihop { .. } => {
                self.cases(&setting, cases::multihop()).await?;
                self.diagnostics(&setting).await
            }
            WorkloadSpec::ButlerGate => {
                self.cases(&setting, cases::butler_gate()).await?;
                let tight = butler_gate::TIGHT_K;
                let point = Point { ann_k: tight, top_k: tight, ..point };
                self.cases(&Setting { point, ..setting }, cases::butler_gate()).await
            }
            WorkloadSpec::Filters { .. } => filters::measure(self, &setting).await,
            // Needs no graph: `run` has seen to it.
            WorkloadSpec::Ann(_) => Ok(()),
        }
    }

    /// Builds the graph and refuses one with an empty shard.
    async fn build(
        &mut self,
        host: &dyn Host,
        point: &Point,
        build_seed: u64,
    ) -> Result<Built, BenchError> {
        let facts = &self.workload.facts;
        let mut config = self.config(point, build_seed);
        config.shards.boundaries = boundaries(facts, self.spec.shards).ok_or_else(|| {
            let detail = format!("fewer entities than {} shards", self.spec.shards);
            BenchError::Spec { detail }
        })?;
        let since = (Instant::now(), process_cpu());
        let built = host.build(config, facts).await?;
        self.built("build", (point, build_seed), since, std::slice::from_ref(&built))?;
        Ok(built)
    }

    /// How every graph of this workload is made; one shard.
    pub(crate) fn config(&self, point: &Point, build_seed: u64) -> GraphConfig {
        let mut config = GraphConfig::new(self.workload.dim as u32, IdKind::U64);
        config.index.m = point.m;
        config.index.ef_construction = point.ef_construction;
        config.index.build_seed = build_seed;
        config
    }

    /// Reports a build of one or more graphs that together hold the workload. Fails when they do
    /// not, and when a shard is empty.
    pub(crate) fn built(
        &mut self,
        case: &'static str,
        (point, build_seed): (&Point, u64),
        (started, cpu): (Instant, Duration),
        graphs: &[Built],
    ) -> Result<(), BenchError> {
        let facts = self.workload.facts.len() as u64;
        let shard_facts: Vec<u64> =
            graphs.iter().flat_map(|built| built.shard_facts.iter().copied()).collect();
        let line = BuildLine {
            workload: self.workload.name,
            case,
            build_seed,
            m: point.m,
            ef_construction: point.ef_construction,
            facts,
            wall_s: started.elapsed().as_secs_f64(),
            cpu_s: (process_cpu() - cpu).as_secs_f64(),
            peak_memory_bytes: peak_memory(),
            disk_bytes: graphs.iter().map(|built| built.disk_bytes).sum(),
            shard_facts: shard_facts.clone(),
            memtable_facts: graphs.iter().map(|built| built.memtable_facts).sum(),
            ways: graphs.iter().flat_map(|built| built.ways.iter().cloned()).collect(),
        };
        self.emit(Line::Build(line));
        let shards = if graphs.len() > 1 { graphs.len() } else { self.spec.shards as usize };
        let whole = shard_facts.len() == shards
            && shard_facts.iter().all(|&count| count > 0)
            && shard_facts.iter().sum::<u64>() == facts;
        if !whole {
            let detail = format!("shards hold {shard_facts:?} of {facts} facts");
            return Err(BenchError::Failed { call: "build", detail });
        }
        Ok(())
    }

    /// Gate, quality and time of each case that was asked for.
    pub(crate) async fn cases(
        &mut self,
        setting: &Setting<'_>,
        list: Vec<Case>,
    ) -> Result<(), BenchError> {
        let named = |case: &Case| self.spec.case.as_ref().is_none_or(|name| case.name == name);
        if !list.iter().any(named) {
            let mut names: Vec<&str> = list.iter().map(|case| case.name).collect();
            names.dedup();
            let asked = self.spec.case.as_deref().unwrap_or_default();
            let detail = format!("no case {asked:?}; there are {}", names.join(", "));
            return Err(BenchError::Spec { detail });
        }
        // With each case come the plain rows that it is compared with.
        let compared = |case: &Case| {
            let engine_rows = list.iter().filter(|other| other.store == Store::Hopbine);
            case.store == Store::Plain
                && engine_rows.filter(|other| named(other)).any(|other| case.comparable(other))
        };
        let wanted: Vec<Case> =
            list.iter().filter(|case| named(case) || compared(case)).cloned().collect();
        let k = setting.point.ann_k;
        let queries = setting.queries.iter();
        let exact: Vec<Vec<FactKey>> = queries.map(|q| self.baseline.seeds(q, k)).collect();
        let mut plain: Vec<(Case, f64, f64)> = Vec::new();
        for case in wanted {
            let mut line = match case.store {
                Store::Plain => self.plain_case(setting, &case, &exact),
                Store::Hopbine => self.engine_case(setting, &case, &exact).await?,
            };
            if case.store == Store::Plain {
                plain.push((case, line.latency.p50_ms, line.cpu_ms));
            } else {
                let same = plain.iter().filter(|(other, ..)| other.comparable(&case));
                let fastest = same.min_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
                line.times_plain = fastest.map(|(_, ms, _)| ms / line.latency.p50_ms);
                line.cpu_times_plain = fastest.map(|(.., cpu_ms)| cpu_ms / line.cpu_ms);
            }
            self.emit(Line::Case(Box::new(line)));
        }
        Ok(())
    }

    fn plain_case(&self, setting: &Setting<'_>, case: &Case, exact: &[Vec<FactKey>]) -> CaseLine {
        let mut tally = cases::Tally::default();
        for (query, seeds) in setting.queries.iter().zip(exact) {
            let rows = self.baseline.expected(case, query, &setting.point, seeds);
            tally.add(query, &rows, &rows);
        }
        let count = setting.queries.len().min(PLAIN_QUERIES_MAX);
        let mut recorder = Recorder::default();
        for _ in 0..self.spec.runs() {
            let cpu = process_cpu();
            for (query, seeds) in setting.queries.iter().zip(exact).take(count) {
                let started = Instant::now();
                let outcome = self.baseline.run(case, query, &setting.point, seeds);
                recorder.add(started.elapsed(), &outcome.stages, &outcome.work);
            }
            recorder.add_cpu(process_cpu() - cpu);
        }
        self.line(setting, case, &recorder, tally.quality(), count)
    }

    async fn engine_case(
        &self,
        setting: &Setting<'_>,
        case: &Case,
        exact: &[Vec<FactKey>],
    ) -> Result<CaseLine, BenchError> {
        let (queries, point) = (setting.queries, &setting.point);
        let target = &*setting.built.target;
        let executor = Executor::new(target, self.workload.seed_on, setting.mode);
        let quality = cases::check(&executor, &self.baseline, case, queries, point, exact).await?;
        let mut recorder = Recorder::default();
        for _ in 0..self.spec.runs() {
            let cpu = process_cpu();
            for (query, seeds) in queries.iter().zip(exact) {
                let started = Instant::now();
                let outcome = executor.run(case, query, point, seeds).await?;
                recorder.add(started.elapsed(), &outcome.stages, &outcome.work);
            }
            recorder.add_cpu(process_cpu() - cpu);
        }
        Ok(self.line(setting, case, &recorder, quality, queries.len()))
    }

    pub(crate) fn line(
        &self,
        setting: &Setting<'_>,
        case: &Case,
        recorder: &Recorder,
        quality: Quality,
        queries: usize,
    ) -> CaseLine {
        let per = recorder.per_answer();
        CaseLine {
            workload: self.workload.name,
            case: case.name.to_owned(),
            params: self.params(setting, case.store, case.from, queries),
            latency: recorder.latency(),
            cpu_ms: per.cpu_ms,
            hit1_pct: quality.hit1_pct,
            hitk_pct: quality.hitk_pct,
            recall: quality.recall,
            equal_sets_pct: quality.equal_sets_pct,
            rows: quality.rows,
            rows_min: None,
            blocks_read: per.blocks_read,
            block_bytes: per.block_bytes,
            codes_scored: per.codes_scored,
            vectors_scored: per.vectors_scored,
            times_plain: None,
            cpu_times_plain: None,
            times_unfiltered: None,
            times_one_store: None,
            ways: per.ways,
            stages: per.stages_ms,
            results_sha256: quality.results_sha256,
        }
    }

    pub(crate) fn params(
        &self,
        setting: &Setting<'_>,
        store: Store,
        from: From,
        queries: usize,
    ) -> Params {
        let mode = if from == From::ExactSeeds { SeedMode::Exact } else { setting.mode };
        let (index, ef) = match (store, mode) {
            (Store::Plain, _) => ("brute force", None),
            (_, SeedMode::Exact) => ("exact", None),
            (_, SeedMode::Scan) => ("scan", None),
            (_, SeedMode::Auto) => ("auto", None),
            (_, SeedMode::Graph { ef }) => ("graph", Some(ef)),
        };
        Params {
            store,
            index,
            ef,
            build_seed: setting.build_seed,
            shards: self.spec.shards,
            seeds: from.name(),
            ann_k: setting.point.ann_k,
            top_k: setting.point.top_k,
            m: setting.point.m,
            ef_construction: setting.point.ef_construction,
            queries: queries as u64,
            runs: self.spec.runs(),
            workload: self.spec.parameters(),
        }
    }

    /// The diagnostics for the seeds of the index, and for exact ones.
    async fn diagnostics(&mut self, setting: &Setting<'_>) -> Result<(), BenchError> {
        let (queries, point) = (&self.workload.queries, &setting.point);
        let target = &*setting.built.target;
        let executor = Executor::new(target, self.workload.seed_on, setting.mode);
        let Some(case) = cases::multihop().into_iter().find(|case| case.from == From::Seeds) else {
            return Ok(());
        };
        let mut found = Vec::new();
        for query in queries {
            let answer = executor.seeds(&case, query, point).await?;
            found.push(answer.rows.iter().map(|row| row.key).collect::<Vec<FactKey>>());
        }
        let exact = queries.iter().map(|q| self.baseline.seeds(q, point.ann_k)).collect();
        for (from, seeds) in [(From::Seeds, found), (From::ExactSeeds, exact)] {
            let line = DiagnosticsLine {
                workload: self.workload.name,
                case: "diagnostics",
                params: self.params(setting, Store::Hopbine, from, queries.len()),
                diagnostics: diagnose(&self.baseline, queries, &seeds, point),
            };
            self.emit(Line::Diagnostics(line));
        }
        Ok(())
    }

    /// The grid of index and search settings, with a forced graph unless a scan was asked for.
    async fn sweep(&mut self, host: &dyn Host) -> Result<(), BenchError> {
        let one_call = ["seed_graph_rag_twohop_scan_fn", "seed_graph_rag_twohop_path_scan_fn"];
        let base = self.workload.point;
        for m in [16, 24, 32] {
            for ef_construction in [64, 200, 400] {
                let point = Point { m, ef_construction, ..base };
                let built = self.build(host, &point, self.spec.build_seed).await?;
                for ann_k in [64, 80, 96, 128] {
                    for ef in [64, 96, 128, 192, 256] {
                        let mode = match self.spec.index {
                            IndexChoice::Scan => SeedMode::Scan,
                            _ => SeedMode::Graph { ef },
                        };
                        let point = Point { ann_k, ..point };
                        let build_seed = self.spec.build_seed;
                        let queries = &self.workload.queries;
                        let setting = Setting { built: &built, queries, point, mode, build_seed };
                        let mut list = cases::multihop();
                        list.retain(|case| one_call.contains(&case.name));
                        self.cases(&setting, list).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The median of a case of the engine in the build of this seed, if it was measured.
    pub(crate) fn p50_ms(&self, case: &str, build_seed: u64) -> Option<f64> {
        let of_engine = |line: &&CaseLine| {
            let params = &line.params;
            line.case == case && params.store == Store::Hopbine && params.build_seed == build_seed
        };
        let mut cases = self.lines.iter().filter_map(|line| match line {
            Line::Case(line) => Some(&**line),
            _ => None,
        });
        cases.rfind(of_engine).map(|line| line.latency.p50_ms)
    }

    /// One line per case over all builds, when there was more than one.
    fn spreads(&mut self) {
        if self.spec.builds < 2 {
            return;
        }
        let mut groups: Vec<Vec<&CaseLine>> = Vec::new();
        for line in &self.lines {
            let Line::Case(line) = line else { continue };
            let same = |group: &Vec<&CaseLine>| group[0].repeats(line);
            match groups.iter_mut().find(|group| same(group)) {
                Some(group) => group.push(line),
                None => groups.push(vec![line]),
            }
        }
        let spreads: Vec<_> = groups.iter().filter_map(|group| spread(group)).collect();
        for line in spreads {
            self.emit(Line::Spread(line));
        }
    }
}
