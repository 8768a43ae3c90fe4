//! `hopbine bench`: the workloads, each in a fresh graph of an engine in this process or of a
//! server. Graphs are dropped at the end, also after a failure or an interruption. `ann` makes
//! none.

use crate::failure::{Failure, file_failure};
use crate::local::{self, Local};
use crate::output::{Format, Output};
use crate::patience::{ANSWER, Patience};
use crate::settings::{Origin, Resolved};
use crate::transport::{Call, Transport};
use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use hopbine_bench::report::{self, Line};
use hopbine_bench::target::{Built, Host, Pending};
use hopbine_bench::workload::synthetic::Size;
use hopbine_bench::workload::{gutenberg, multidepth};
use hopbine_bench::{
    BenchError, BenchSpec, EngineTarget, Http, IndexChoice, RemoteHost, WorkloadSpec, ann,
};
use hopbine_coordinator::Engine;
use hopbine_node::NodeConfig;
use hopbine_proto::graph::GraphConfig;
use hopbine_proto::{Fact, limits};
use hyper::Method;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(subcommand)]
    workload: Workload,
    /// One JSON object a line
    #[arg(long, global = true)]
    json: bool,
    /// Only the case of this name; of ann an engine or a data set
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
    /// Seed facts [default: the workload's]
    #[arg(long, global = true, value_name = "N")]
    ann_k: Option<u32>,
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
    /// Paragraphs of real books, each leading to the next
    Gutenberg {
        /// Books, 128 at most
        #[arg(long, default_value_t = 64)]
        books: u32,
        /// Paragraphs a book, 256 at most
        #[arg(long, default_value_t = 128)]
        paragraphs: u32,
        /// Components
        #[arg(long, default_value_t = 32)]
        dim: u32,
    },
    /// Chains asked along one to five hops, in one store and in segments
    Multidepth {
        /// Chains
        #[arg(long, default_value_t = 5_000)]
        pairs: u32,
        /// Hops of a chain, 5 at most
        #[arg(long, default_value_t = 5)]
        depth: u32,
        /// Components
        #[arg(long, default_value_t = 384)]
        dim: u32,
        /// Graphs of the segmented form; 0: leave it out
        #[arg(long, default_value_t = 8)]
        segments: u32,
        /// Segments that the bounded route asks
        #[arg(long, default_value_t = 2)]
        fan_out: u32,
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
    /// The engines of approximate search beside each other, hnsw_rs among them
    Ann {
        /// Vectors
        #[arg(long, default_value_t = 20_000)]
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
            Workload::Gutenberg { books, paragraphs, dim } => {
                WorkloadSpec::Gutenberg(gutenberg::Size { books, paragraphs, dim })
            }
            Workload::Multidepth { pairs, depth, dim, segments, fan_out } => {
                let size = multidepth::Size { pairs, depth, dim };
                WorkloadSpec::Multidepth(multidepth::Layout { size, segments, fan_out })
            }
            Workload::ButlerGate => WorkloadSpec::ButlerGate,
            Workload::Filters { rows, dim } => WorkloadSpec::Filters { rows, dim },
            Workload::Ann { rows, dim } => WorkloadSpec::Ann(ann::Size { rows, dim }),
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
            ann_k: self.ann_k,
            build_seed: self.build_seed,
            builds: self.builds,
            runs: self.runs,
            queries: self.queries,
            sweep: self.sweep,
            ..BenchSpec::new(workload)
        }
    }
}

/// The engine of a data folder in this process, and the names of our graphs in it.
struct Here {
    local: Local,
    engine: Engine,
    made: Mutex<Vec<String>>,
}

impl Here {
    async fn open(dir: &Path, config: &NodeConfig) -> Result<Self, Failure> {
        let (local, engine) = local::open(dir, config).await?;
        Ok(Self { local, engine, made: Mutex::default() })
    }

    /// Drops the graphs that were built.
    async fn clean(&self) -> Result<(), BenchError> {
        let made = std::mem::take(&mut *lock(&self.made));
        let mut dropped = Ok(());
        for graph in made {
            let refused = |problem| BenchError::Refused { call: "drop", problem };
            let one = self.engine.drop_graph(&graph).await;
            dropped = dropped.and(one.map_err(|problem| refused(Box::new(problem))));
        }
        dropped
    }

    async fn load(&self, config: GraphConfig, facts: &[Fact]) -> Result<Built, BenchError> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let graph = format!("bench-{}", now.as_nanos());
        lock(&self.made).push(graph.clone());
        hopbine_bench::load(&self.engine, &graph, config, facts).await?;
        let failed = |error: hopbine_node::NodeError| {
            let detail = error.to_string();
            BenchError::Failed { call: "settle", detail }
        };
        self.local.0.settle().await.map_err(failed)?;
        EngineTarget::new(self.engine.clone(), &graph, Box::new(())).built().await
    }
}

impl Host for Here {
    fn build<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(async move {
            self.clean().await?;
            self.load(config, facts).await
        })
    }

    fn build_beside<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(self.load(config, facts))
    }
}

/// Where a workload is measured that builds no graph.
struct Nowhere;

impl Host for Nowhere {
    fn build<'a>(&'a self, _: GraphConfig, _: &'a [Fact]) -> Pending<'a, Built> {
        Box::pin(async {
            let detail = "this workload builds no graph".to_owned();
            Err::<Built, BenchError>(BenchError::Spec { detail })
        })
    }

    fn build_beside<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built> {
        self.build(config, facts)
    }
}

/// Pause before a batch is sent again that the server had no room for.
const OVERLOADED_PAUSE: Duration = Duration::from_millis(200);

/// A server, and the first thing that went wrong on the way to it.
struct There {
    transport: Transport,
    failure: Mutex<Option<Failure>>,
}

impl There {
    /// A load says itself how long it may take; a question may take what `--timeout` says.
    fn call(&self, method: Method, path: String, mut body: Vec<u8>) -> Call {
        let (asks, loads) = (method == Method::POST, path.contains("/facts?"));
        let timeout = self.transport.timeout().filter(|_| asks);
        if let (Some(timeout), Some(fields)) = (timeout, body.strip_prefix(b"{")) {
            body = [format!("{{\"timeout\":\"{timeout}\",").as_bytes(), fields].concat();
        }
        let call = Call { body: Bytes::from(body), ..Call::bare(method, path) };
        match (asks, loads) {
            (true, _) => Call { changes: false, patience: Patience::Usual(ANSWER), ..call },
            (_, true) => Call { patience: Patience::Own(limits::TIMEOUT_MAX), ..call },
            _ => call,
        }
    }
}

impl Http for There {
    fn send(&self, method: &'static str, path: String, body: Vec<u8>) -> Pending<'_, Vec<u8>> {
        Box::pin(async move {
            let method = Method::from_bytes(method.as_bytes()).expect("a method of the contract");
            let loads = method == Method::PUT;
            let call = self.call(method, path, body);
            let until = tokio::time::Instant::now() + limits::TIMEOUT_MAX;
            loop {
                let failure = match self.transport.send(call.clone()).await {
                    Ok(reply) => return Ok(reply.into()),
                    Err(failure) => failure,
                };
                // A load may outrun the flushes; a question that is refused is a result.
                let full = matches!(&failure, Failure::Refused(r) if r.code == "overloaded");
                if !(loads && full) || tokio::time::Instant::now() > until {
                    let detail = failure.to_string();
                    lock(&self.failure).get_or_insert(failure);
                    return Err(BenchError::Failed { call: "request", detail });
                }
                tokio::time::sleep(OVERLOADED_PAUSE).await;
            }
        })
    }
}

/// What is behind these locks is replaced in one step: a panic leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measures and reports.
pub async fn run(resolved: &Resolved, args: &Bench) -> Result<(), Failure> {
    let settings = &resolved.settings;
    if settings.output == Some(Format::Csv) && !args.json {
        let text = "a benchmark writes no CSV: use -o table, or --json for one object a line";
        return Err(Failure::Usage(text.to_owned()));
    }
    // Before a data folder is made.
    args.spec().validate().map_err(failure)?;
    match (resolved.origin("data"), resolved.origin("url")) {
        (Origin::Flag, _) | (_, Origin::Flag) if matches!(args.workload, Workload::Ann { .. }) => {
            let text = "ann compares engines in this process: leave out --data and --url";
            Err(Failure::Usage(text.to_owned()))
        }
        _ if matches!(args.workload, Workload::Ann { .. }) => {
            measure(resolved, args, &Nowhere).await
        }
        (Origin::Flag, Origin::Flag) => {
            let text = "--data measures an engine here, --url a server: give one of them";
            Err(Failure::Usage(text.to_owned()))
        }
        (_, Origin::Flag) => there(resolved, args).await,
        (Origin::Flag, _) => here(&settings.data, resolved, args).await,
        _ => {
            let made = tempfile::Builder::new().prefix("hopbine-").tempdir();
            let dir = made.map_err(file_failure("a temporary folder"))?;
            here(dir.path(), resolved, args).await
        }
    }
}

async fn here(dir: &Path, resolved: &Resolved, args: &Bench) -> Result<(), Failure> {
    let host = Here::open(dir, &resolved.settings.node).await?;
    let measured = measure(resolved, args, &host).await;
    let cleaned = host.clean().await.map_err(failure);
    let closed = host.local.0.shutdown().await.map_err(Failure::from);
    Failure::joined(Failure::joined(measured, cleaned), closed)
}

async fn there(resolved: &Resolved, args: &Bench) -> Result<(), Failure> {
    if let Index::Scan = args.index {
        let text = "a scan cannot be forced over HTTP: leave out --url or --index scan";
        return Err(Failure::Usage(text.to_owned()));
    }
    // As of the address, only what the command line says counts.
    let timeout = resolved.settings.timeout.filter(|_| *resolved.origin("timeout") == Origin::Flag);
    let transport = Transport::remote(&resolved.settings.url, timeout)?;
    let http = Arc::new(There { transport, failure: Mutex::default() });
    let host = RemoteHost::new(http.clone());
    let measured = measure(resolved, args, &host).await;
    // What the server said tells more than what the benchmark made of it.
    let measured = measured.map_err(|error| lock(&http.failure).take().unwrap_or(error));
    let cleaned = host.clean().await;
    let cleaned =
        cleaned.map_err(|error| lock(&http.failure).take().unwrap_or_else(|| failure(error)));
    Failure::joined(measured, cleaned)
}

/// Lines of JSON come as soon as they are known, a table at the end.
async fn measure(resolved: &Resolved, args: &Bench, host: &dyn Host) -> Result<(), Failure> {
    let output = Output::new(resolved.settings.output);
    let lines_wanted = args.json || !matches!(output.format(), Format::Table);
    let mut written = Ok(());
    let mut emit = |line: &Line| {
        if lines_wanted && written.is_ok() {
            written = output.lines([line.json()]);
        }
    };
    let spec = args.spec();
    let lines = tokio::select! {
        lines = hopbine_bench::run(&spec, host, &mut emit) => lines.map_err(failure)?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Interrupted),
    };
    written?;
    if lines_wanted { Ok(()) } else { output.lines([report::table(&lines, args.exact_seeds)]) }
}

fn failure(error: BenchError) -> Failure {
    match &error {
        BenchError::Spec { .. } | BenchError::Workload(_) => Failure::Usage(error.to_string()),
        _ => Failure::Failed(error.to_string()),
    }
}
