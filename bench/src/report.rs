//! What a run says: one JSON object a line, or a table.

use crate::ann::{AnnLine, AnnMatchLine};
use crate::cases::Store;
use crate::diagnostics::Diagnostics;
use crate::measure::{Latency, Spread};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Settings that a line's figures belong to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Params {
    /// Who answers.
    pub store: Store,
    /// `auto`, `graph`, `scan` or `exact`; `brute force` for plain rows.
    pub index: &'static str,
    /// Beam, where the graph is forced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ef: Option<u32>,
    /// Input of the index builder.
    pub build_seed: u64,
    /// Shards.
    pub shards: u32,
    /// `ann`, `exact`, `given` (searched before the clock starts) or `none`.
    pub seeds: &'static str,
    /// Seed facts.
    pub ann_k: u32,
    /// Results.
    pub top_k: u32,
    /// Neighbours per node.
    pub m: u32,
    /// Beam while building.
    pub ef_construction: u32,
    /// Questions.
    pub queries: u64,
    /// Passes over them.
    pub runs: u32,
    /// The workload's own parameters.
    #[serde(flatten)]
    pub workload: BTreeMap<&'static str, u64>,
}

/// Figures of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseLine {
    /// Which data.
    pub workload: &'static str,
    /// Which case.
    pub case: String,
    /// Settings.
    pub params: Params,
    /// Wall times.
    #[serde(flatten)]
    pub latency: Latency,
    /// Processor time of the process per answer, all threads.
    pub cpu_ms: f64,
    /// Share of questions whose first row is the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit1_pct: Option<f64>,
    /// Share of questions whose rows hold the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hitk_pct: Option<f64>,
    /// Share of the rows of exact seeds.
    pub recall: f64,
    /// Share of questions whose rows are, as a set, those of exact seeds.
    pub equal_sets_pct: f64,
    /// Rows per question.
    pub rows: f64,
    /// Smallest number of rows of a question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_min: Option<u64>,
    /// Fact blocks per question.
    pub blocks_read: f64,
    /// Bytes of them.
    pub block_bytes: f64,
    /// Approximate distances per question.
    pub codes_scored: f64,
    /// Exact distances per question.
    pub vectors_scored: f64,
    /// Median of the fastest plain row of the same work over this median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_plain: Option<f64>,
    /// The same ratio of processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_times_plain: Option<f64>,
    /// This median over the unfiltered one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_unfiltered: Option<f64>,
    /// Median of the same case in one store over this median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_one_store: Option<f64>,
    /// Every way taken through a segment or memtable.
    pub ways: Vec<String>,
    /// Milliseconds by stage, mean.
    pub stages: BTreeMap<String, f64>,
    /// Digest of all rows: keys, scores to the bit, payloads and paths.
    pub results_sha256: String,
}

impl CaseLine {
    /// Whether both are the same case with the same settings in another build.
    pub fn repeats(&self, other: &Self) -> bool {
        let build_seed = self.params.build_seed;
        self.case == other.case && self.params == Params { build_seed, ..other.params.clone() }
    }
}

/// One build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BuildLine {
    /// Which data.
    pub workload: &'static str,
    /// `build`, or `build_segmented` for all parts of a segmented form.
    pub case: &'static str,
    /// Input of the index builder.
    pub build_seed: u64,
    /// Neighbours per node.
    pub m: u32,
    /// Beam while building.
    pub ef_construction: u32,
    /// Facts loaded.
    pub facts: u64,
    /// From the empty graph to the last fact durable and indexed.
    pub wall_s: f64,
    /// Processor time of the process meanwhile.
    pub cpu_s: f64,
    /// Largest resident memory of the process so far, its data included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes of the segments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Live facts of each shard.
    pub shard_facts: Vec<u64>,
    /// Facts in no sealed segment yet.
    pub memtable_facts: u64,
    /// How each segment is searched by default.
    pub ways: Vec<String>,
}

/// Why questions are missed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiagnosticsLine {
    /// Which data.
    pub workload: &'static str,
    /// `diagnostics`.
    pub case: &'static str,
    /// Settings; `seeds` says whether found by the index or exact.
    pub params: Params,
    /// Shares and ranks.
    #[serde(flatten)]
    pub diagnostics: Diagnostics,
}

/// One case over repeated builds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpreadLine {
    /// Which data.
    pub workload: &'static str,
    /// Which case.
    pub case: String,
    /// Settings of the first build.
    pub params: Params,
    /// Number of builds.
    pub builds: u64,
    /// By metric.
    pub over_builds: BTreeMap<&'static str, Spread>,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// Figures of one case.
    Case(Box<CaseLine>),
    /// One build.
    Build(BuildLine),
    /// Why questions are missed.
    Diagnostics(DiagnosticsLine),
    /// One case over repeated builds.
    Spread(SpreadLine),
    /// One engine with one setting over one data set.
    Ann(AnnLine),
    /// The graph that finds as much as a point of the hnsw_rs crate.
    AnnMatch(AnnMatchLine),
}

impl Line {
    /// The JSON object, without a newline.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("lines hold numbers, strings and maps by string")
    }
}

/// One figure of a case.
type Metric = fn(&CaseLine) -> Option<f64>;

/// The spread of each metric of one case over its builds.
pub fn spread(lines: &[&CaseLine]) -> Option<SpreadLine> {
    let first = lines.first()?;
    let mut over_builds = BTreeMap::new();
    let metrics: [(&'static str, Metric); 8] = [
        ("p50_ms", |line| Some(line.latency.p50_ms)),
        ("p95_ms", |line| Some(line.latency.p95_ms)),
        ("avg_ms", |line| Some(line.latency.avg_ms)),
        ("cpu_ms", |line| Some(line.cpu_ms)),
        ("hit1_pct", |line| line.hit1_pct),
        ("hitk_pct", |line| line.hitk_pct),
        ("recall", |line| Some(line.recall)),
        ("equal_sets_pct", |line| Some(line.equal_sets_pct)),
    ];
    for (name, metric) in metrics {
        let values: Vec<f64> = lines.iter().filter_map(|line| metric(line)).collect();
        over_builds.extend(Spread::of(&values).map(|spread| (name, spread)));
    }
    Some(SpreadLine {
        workload: first.workload,
        case: first.case.clone(),
        params: first.params.clone(),
        builds: lines.len() as u64,
        over_builds,
    })
}

/// All lines as a table for people; `digests` adds the digest of each case's results.
pub fn table(lines: &[Line], digests: bool) -> String {
    let mut out = String::new();
    let mut cases: Vec<&CaseLine> = Vec::new();
    for line in lines {
        if let Line::Case(case) = line {
            cases.push(case);
            continue;
        }
        flush_cases(&mut out, &mut cases, digests);
        match line {
            Line::Case(_) => {}
            Line::Build(build) => out.push_str(&build_text(build)),
            Line::Diagnostics(line) => out.push_str(&diagnostics_text(line)),
            Line::Spread(line) => out.push_str(&spread_text(line)),
            Line::Ann(line) => out.push_str(&line.text()),
            Line::AnnMatch(line) => out.push_str(&line.text()),
        }
    }
    flush_cases(&mut out, &mut cases, digests);
    out
}

const HEADINGS: [&str; 16] = [
    "case", "store", "seeds", "index", "p50 ms", "p95 ms", "p99 ms", "avg ms", "cpu ms", "hit@1",
    "hit@k", "recall", "equal %", "rows", "blocks", "KiB",
];

/// Columns that only some cases have a figure for.
const OPTIONAL: [(&str, Metric); 2] =
    [("x unfiltered", |case| case.times_unfiltered), ("x one store", |case| case.times_one_store)];

fn flush_cases(out: &mut String, cases: &mut Vec<&CaseLine>, digests: bool) {
    if cases.is_empty() {
        return;
    }
    let mut rows: Vec<Vec<String>> = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows[0].extend(["x plain", "x cpu"].map(str::to_owned));
    let mut shown = OPTIONAL.to_vec();
    shown.retain(|(_, figure)| cases.iter().any(|case| figure(case).is_some()));
    rows[0].extend(shown.iter().map(|(heading, _)| (*heading).to_owned()));
    if digests {
        rows[0].push("results".to_owned());
    }
    for case in cases.drain(..) {
        let mut row = cells(case);
        row.extend(shown.iter().map(|(_, figure)| optional(figure(case), 2)));
        if digests {
            row.push(case.results_sha256.chars().take(16).collect());
        }
        rows.push(row);
    }
    align(out, &rows);
}

fn optional(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

fn cells(case: &CaseLine) -> Vec<String> {
    let (params, latency) = (&case.params, &case.latency);
    let index = match params.ef {
        Some(ef) => format!("{} ef={ef}", params.index),
        None => params.index.to_owned(),
    };
    let store = match params.store {
        Store::Hopbine => "hopbine",
        Store::Plain => "plain",
    };
    vec![
        case.case.clone(),
        store.to_owned(),
        params.seeds.to_owned(),
        index,
        format!("{:.4}", latency.p50_ms),
        format!("{:.4}", latency.p95_ms),
        format!("{:.4}", latency.p99_ms),
        format!("{:.4}", latency.avg_ms),
        format!("{:.4}", case.cpu_ms),
        optional(case.hit1_pct, 1),
        optional(case.hitk_pct, 1),
        format!("{:.4}", case.recall),
        format!("{:.1}", case.equal_sets_pct),
        format!("{:.2}", case.rows),
        format!("{:.1}", case.blocks_read),
        format!("{:.1}", case.block_bytes / 1024.0),
        optional(case.times_plain, 2),
        optional(case.cpu_times_plain, 2),
    ]
}

/// Columns as wide as their widest cell, two spaces apart; the first four to the left.
fn align(out: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a string cannot fail.
            let _ = if column < 4 {
                write!(line, "{cell:<width$}  ")
            } else {
                write!(line, "{cell:>width$}  ")
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn build_text(build: &BuildLine) -> String {
    let per_fact = build.disk_bytes.map(|bytes| bytes as f64 / build.facts.max(1) as f64);
    let mib = build.peak_memory_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    format!(
        "\nbuild seed {} (m {}, ef_construction {}): {} facts in {:.2} s, cpu {:.2} s, \
         {} bytes on disk a fact, peak memory {} MiB\nfacts per shard {:?}, not sealed {}; \
         segments: {}\n",
        build.build_seed,
        build.m,
        build.ef_construction,
        build.facts,
        build.wall_s,
        build.cpu_s,
        optional(per_fact, 0),
        optional(mib, 0),
        build.shard_facts,
        build.memtable_facts,
        if build.ways.is_empty() { "unknown".to_owned() } else { build.ways.join("; ") },
    )
}

fn diagnostics_text(line: &DiagnosticsLine) -> String {
    let d = &line.diagnostics;
    format!(
        "{} seeds: person among seeds {:.1} %, city reached {:.1} %, person rank {:.2}, \
         city rank avg {:.2}, p50 {}, p95 {}, max {}\n",
        line.params.seeds,
        d.seed_person_pct,
        d.expanded_city_pct,
        d.avg_person_rank,
        d.city_rank_avg,
        d.city_rank_p50,
        d.city_rank_p95,
        d.city_rank_max,
    )
}

fn spread_text(line: &SpreadLine) -> String {
    let mut text = format!("{} over {} builds:", line.case, line.builds);
    for (name, spread) in &line.over_builds {
        let Spread { median, min, max, .. } = spread;
        // Writing to a string cannot fail.
        let _ = write!(text, " {name} {median:.3} ({min:.3} to {max:.3})");
    }
    text.push('\n');
    text
}
