//! `hopbine bench`: the workloads, each in a fresh graph of an engine in this process.

use crate::failure::{Failure, file_failure};
use crate::local;
use crate::output::{Format, Output};
use crate::settings::{Origin, Resolved};
use clap::{Args, Subcommand, ValueEnum};
use hopbine_bench::report::{self, Line};
use hopbine_bench::target::{Built, Host, Pending};
use hopbine_bench::workload::synthetic::Size;
use hopbine_bench::{BenchError, BenchSpec, EngineTarget, IndexChoice, WorkloadSpec};
use hopbine_node::NodeConfig;
use hopbine_proto::Fact;
use hopbine_proto::graph::GraphConfig;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(subcommand)]
    workload: Workload,
    /// One JSON object a line
    #[arg(long, global = true)]
    json: bool,
    /// Only the case of this name
    #[arg(long, global = true, value_name = "NAME")]
    case: Option<String>,
    /// Shards, cut at quantiles of the entity ids
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    shards: u32,
    /// Seeds by full scan; prints a digest of the results
    #[arg(long, global = true)]
    exact_seeds: bool,
    /// How seeds are searched
    #[arg(long, global = true, value_enum, default_value = "auto")]
    index: Index,
    /// Search beam; forces the graph
    #[arg(long, global = true, value_name = "N")]
    ef: Option<u32>,
    /// Input of the index builder
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    build_seed: u64,
    /// Full builds, each measured, with consecutive build seeds
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    builds: u32,
    /// Passes over the questions
    #[arg(long, global = true, value_name = "N")]
    runs: Option<u32>,
    /// Questions
    #[arg(long, global = true, value_name = "N")]
    queries: Option<u32>,
    /// The grid of index and search settings (multihop)
    #[arg(long, global = true)]
    sweep: bool,
}

/// Which data and questions.
#[derive(Subcommand, Clone, Debug)]
enum Workload {
    /// Person, parent, city: two facts a chain
    Multihop {
        /// Chains
        #[arg(long, default_value_t = 5_000)]
        chains: u32,
    },
    /// Pure expansion over a regular graph
    Synthetic {
        /// Entities
        #[arg(long, default_value_t = 20_000)]
        entities: u32,
        /// Facts an entity
        #[arg(long, default_value_t = 16)]
        degree: u32,
        /// Bytes of every payload
        #[arg(long, default_value_t = 0)]
        payload_bytes: usize,
    },
    /// Seven facts, two questions
    #[command(name = "butler_gate")]
    ButlerGate,
    /// Search under filters by relation, over clusters
    Filters {
        /// Facts
        #[arg(long, default_value_t = 100_000)]
        rows: u32,
        /// Components
        #[arg(long, default_value_t = 384)]
        dim: u32,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Index {
    /// As each segment recorded at seal
    Auto,
    /// By graph walk
    Graph,
    /// By 8-bit scan
    Scan,
}

impl Bench {
    fn spec(&self) -> BenchSpec {
        let workload = match self.workload {
            Workload::Multihop { chains } => WorkloadSpec::Multihop { chains },
            Workload::Synthetic { entities, degree, payload_bytes } => {
                WorkloadSpec::Synthetic(Size { entities, degree, payload_bytes })
            }
            Workload::ButlerGate => WorkloadSpec::ButlerGate,
            Workload::Filters { rows, dim } => WorkloadSpec::Filters { rows, dim },
        };
        let index = match self.index {
            Index::Auto => IndexChoice::Auto,
            Index::Graph => IndexChoice::Graph,
            Index::Scan => IndexChoice::Scan,
        };
        BenchSpec {
            case: self.case.clone(),
            shards: self.shards,
            exact_seeds: self.exact_seeds,
            index,
            ef: self.ef,
            build_seed: self.build_seed,
            builds: self.builds,
            runs: self.runs,
            queries: self.queries,
            sweep: self.sweep,
            ..BenchSpec::new(workload)
        }
    }
}

/// Makes a folder and an engine of its own for every graph.
struct Folders {
    dir: PathBuf,
    config: NodeConfig,
    made: AtomicU64,
}

impl Host for Folders {
    fn build<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(async move {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let dir = self.dir.join(format!("bench-{}-{number}", std::process::id()));
            let failed = |detail: String| BenchError::Failed { call: "open", detail };
            let opened = local::open(&dir, &self.config).await;
            let (local, engine) = opened.map_err(|error| failed(error.to_string()))?;
            hopbine_bench::load(&engine, "bench", config, facts).await?;
            let settled = local.0.settle().await;
            settled.map_err(|error| failed(error.to_string()))?;
            EngineTarget::new(engine, "bench", Box::new(local)).built().await
        })
    }
}

/// Measures and reports. Lines of JSON come as soon as they are known, a table at the end.
pub async fn run(resolved: &Resolved, args: &Bench) -> Result<(), Failure> {
    if *resolved.origin("url") == Origin::Flag {
        let text = "bench measures an engine in this process: --url is not supported yet";
        return Err(Failure::Usage(text.to_owned()));
    }
    let parent = match resolved.origin("data") {
        Origin::Default => std::env::temp_dir(),
        _ => resolved.settings.data.clone(),
    };
    std::fs::create_dir_all(&parent).map_err(file_failure(&parent.display().to_string()))?;
    let dir = temporary(&parent)?;
    let host = Folders {
        dir: dir.path().to_owned(),
        config: resolved.settings.node.clone(),
        made: AtomicU64::new(0),
    };
    let output = Output::new(resolved.settings.output);
    let lines_wanted = args.json || !matches!(output.format(), Format::Table);
    let mut written = Ok(());
    let mut emit = |line: &Line| {
        if lines_wanted && written.is_ok() {
            written = output.lines([line.json()]);
        }
    };
    let lines = hopbine_bench::run(&args.spec(), &host, &mut emit).await.map_err(failure)?;
    written?;
    if lines_wanted { Ok(()) } else { output.lines([report::table(&lines, args.exact_seeds)]) }
}

fn temporary(parent: &Path) -> Result<tempfile::TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("hopbine-").tempdir_in(parent);
    made.map_err(file_failure(&parent.display().to_string()))
}

fn failure(error: BenchError) -> Failure {
    match &error {
        BenchError::Spec { .. } | BenchError::Workload(_) => Failure::Usage(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    }
}
