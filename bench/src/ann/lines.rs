//! What the comparison of engines reports.

use serde::Serialize;

/// One engine with one setting over one data set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnnLine {
    /// `ann`.
    pub workload: &'static str,
    /// `graph`, `scan` (8-bit), `scan1` (1-bit), `auto` (as seal chose) or `hnsw_rs`.
    pub engine: &'static str,
    /// Which vectors.
    pub data: &'static str,
    /// Neighbours per node above the base layer of a graph, 2m on it.
    pub m: u32,
    /// Input of the native builder; the hnsw_rs crate draws its levels from a seed of its own.
    pub build_seed: u64,
    /// Vectors searched.
    pub rows: u32,
    /// Components.
    pub dim: u32,
    /// Rows wanted.
    pub k: u32,
    /// Beam of a graph; of `scan1` the rows that are looked at again. `None`: not a choice.
    pub ef: Option<u32>,
    /// Share of the `k` nearest that were found, by distance, so that equal ones count alike.
    pub recall: f64,
    /// Median time of a question on one thread, microseconds.
    pub us_p50: f64,
    /// Processor time of building what this engine reads, vectors given, seconds.
    pub build_cpu_s: f64,
    /// Bytes of what this engine reads, its vectors included; of `hnsw_rs` at least.
    pub bytes_per_row: f64,
    /// What seal chose, of `auto` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    /// Questions that the graph was given and a scan answered, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_answers: Option<u64>,
}

/// The native graph that finds as much as one point of the hnsw_rs crate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnnMatchLine {
    /// `ann`.
    pub workload: &'static str,
    /// `graph_for_hnsw_rs`.
    pub case: &'static str,
    /// Which vectors.
    pub data: &'static str,
    /// Neighbours per node, of both.
    pub m: u32,
    /// Input of the native builder.
    pub build_seed: u64,
    /// Vectors searched.
    pub rows: u32,
    /// Components.
    pub dim: u32,
    /// Rows wanted.
    pub k: u32,
    /// The crate's beam.
    pub hnsw_rs_ef: u32,
    /// What it finds.
    pub hnsw_rs_recall: f64,
    /// Its median time.
    pub hnsw_rs_us_p50: f64,
    /// The native graph that finds at least that; `None`: no beam does, short of a scan.
    pub graph: Option<Matched>,
    /// Processor time of the crate's build over that of codes and native graph.
    pub build_times: f64,
}

/// The smallest beam that finds enough.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Matched {
    /// The beam.
    pub ef: u32,
    /// What it finds.
    pub recall: f64,
    /// Its median time.
    pub us_p50: f64,
    /// The crate's median time over it.
    pub times: f64,
}

impl AnnLine {
    /// The line for people.
    pub fn text(&self) -> String {
        let ef = self.ef.map_or_else(|| "-".to_owned(), |ef| ef.to_string());
        let mut text = format!(
            "{:<10}  {:<8} ef {:>5}  recall@{} {:.4}  {:>10.1} us  build {:>9.2} cpu s  \
             {:>7.0} bytes a row",
            self.data,
            self.engine,
            ef,
            self.k,
            self.recall,
            self.us_p50,
            self.build_cpu_s,
            self.bytes_per_row,
        );
        if let Some(way) = &self.way {
            text = format!("{text}  {way}");
        }
        if let Some(count) = self.scan_answers {
            text = format!("{text}  {count} answered by scan");
        }
        text + "\n"
    }
}

impl AnnMatchLine {
    /// The line for people.
    pub fn text(&self) -> String {
        let Self { data, hnsw_rs_ef, hnsw_rs_recall, build_times, .. } = self;
        let found = match self.graph {
            Some(Matched { ef, times, .. }) => format!("graph ef {ef}, {times:.1} times faster"),
            None => "no graph finds as much".to_owned(),
        };
        format!(
            "{data:<10}  hnsw_rs ef {hnsw_rs_ef} (recall {hnsw_rs_recall:.4}): {found}, \
             built {build_times:.1} times faster\n"
        )
    }
}
