//! What does a person type? The binary `hopbine`: one file a verb, each of which builds the same
//! HTTP request whether a server answers it or the engine in this process.
//!
//! - `settings.rs` flag > environment > file > default · `failure.rs` exit codes
//! - `session.rs` what verbs hold · `transport.rs` socket or this process · `output.rs` formats
//! - `patience.rs` how long an answer is waited for
//! - `local.rs` node and coordinator in one process · `embedded.rs` a data folder behind verbs
//! - the verbs: `demo` `serve` `import` `rag` `search` `expand` `explain` `facts` `graph` `check`
//!   `bench` `config` `version`

mod bench;
mod check;
mod config;
mod demo;
mod embedded;
mod expand;
mod explain;
mod facts;
mod failure;
mod graph;
mod import;
mod local;
mod output;
mod patience;
mod progress;
mod question;
mod rag;
mod search;
mod serve;
mod session;
mod settings;
mod transport;
mod version;

use clap::{Args, Parser, Subcommand};
use failure::Failure;
use serde_json::{Map, Value};
use session::{Folder, Session};
use settings::{Flags, Origin, Resolved};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code of a command line that is wrong, as of `Failure::Usage`.
const USAGE: u8 = 2;

/// Answers are made of many small parts: a third less time for them than with the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// GraphRAG retrieval: facts, multi-hop paths and vectors in one engine.
#[derive(Parser)]
#[command(name = "hopbine", version)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Flags that every verb takes.
#[derive(Args)]
struct Global {
    /// Data folder: open the engine in this process
    #[arg(long, global = true, value_name = "DIR")]
    // Text, so that a name that is none is refused, not taken for a similar one.
    data: Option<String>,
    /// Server to talk to [default: http://127.0.0.1:7640]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// How results are written [default: table on a terminal, json elsewhere]
    #[arg(long, short, global = true, value_enum, value_name = "FORMAT")]
    output: Option<output::Format>,
    /// How long one request may take, such as 2s; a silent server is given up on then
    #[arg(long, global = true, value_name = "TIME")]
    timeout: Option<String>,
    /// Which log lines are written to standard error
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
    /// Settings file (TOML)
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Any setting by its key
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Subcommand)]
enum Verb {
    /// See it work: real facts in a temporary folder, three questions of two hops
    Demo,
    /// Serve a data folder over HTTP
    Serve(serve::Serve),
    #[command(flatten)]
    Ask(Box<Ask>),
    /// Verify a data folder that no process has open
    Check,
    /// Measure the workloads, in this process or at a server
    Bench(bench::Bench),
    /// Show settings, or check a settings file
    #[command(subcommand)]
    Config(config::Config),
    /// Version, build and processor
    Version,
}

/// Verbs that are requests, to a server or to the engine in this process.
#[derive(Subcommand)]
enum Ask {
    /// Load facts from a file
    #[command(subcommand)]
    Import(import::Import),
    /// Ask along a relation path: seeds, hops, exact rerank
    #[command(after_help = rag::DISTANCE)]
    Rag(Box<rag::Rag>),
    /// Find the facts nearest to a question
    Search(search::Search),
    /// Hop from known entities
    Expand(expand::Expand),
    /// Show how a question is answered: stages, shards, numbers, warnings
    #[command(after_help = explain::FORMS)]
    Explain(Box<explain::Explain>),
    /// Read and write facts
    #[command(subcommand)]
    Facts(facts::Facts),
    /// Create, list, show and drop graphs
    #[command(subcommand)]
    Graph(graph::Graph),
}

impl Cli {
    /// What the command line says, by settings key.
    fn flags(&self) -> Flags {
        let global = &self.global;
        let mut values = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                values.insert(key.to_owned(), value);
            }
        };
        put("data", global.data.clone().map(Value::from));
        put("url", global.url.clone().map(Value::from));
        put("output", global.output.and_then(|format| serde_json::to_value(format).ok()));
        put("timeout", global.timeout.clone().map(Value::from));
        put("log", global.log.clone().map(Value::from));
        if let Verb::Serve(serve) = &self.verb {
            put("http", serve.http.clone().map(Value::from));
            put("grpc", serve.grpc.clone().map(Value::from));
            put("insecure", serve.insecure.then_some(Value::from(true)));
        }
        Flags { values, set: global.set.clone(), config: global.config.clone() }
    }
}

fn main() -> ExitCode {
    small_pages();
    let ended = match Cli::try_parse() {
        Ok(cli) => environment()
            .and_then(|environment| Resolved::new(&cli.flags(), environment))
            .and_then(|resolved| start(&cli.verb, &resolved)),
        // Help and version are results, and have to arrive as any other.
        Err(help) if !help.use_stderr() => {
            help.print().and_then(|()| io::stdout().flush()).map_err(output::unwritten)
        }
        Err(usage) => {
            // Who closed standard error still gets the exit code.
            let _ = usage.print();
            return ExitCode::from(USAGE);
        }
    };
    match ended {
        Ok(()) | Err(Failure::ClosedOutput) => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(format!("error: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Asks the system for small pages only. A raft group reserves about a megabyte and touches little
/// of it; in a huge page that is two megabytes for every empty shard.
fn small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        // Only the memory of empty shards depends on it.
        tracing::debug!(%error, "huge pages stay on");
    }
}

/// Variables whose name is text. Ours must be text as a whole, others are nobody's business.
fn environment() -> Result<Vec<(String, String)>, Failure> {
    let mut found = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => found.push((name, value)),
            Err(_) if name.starts_with("HOPBINE_") => {
                return Err(Failure::Usage(format!("{name}: the value is not UTF-8")));
            }
            Err(_) => {}
        }
    }
    Ok(found)
}

fn start(verb: &Verb, resolved: &Resolved) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::Failed(format!("start threads: {error}")))?;
    let ended = runtime.block_on(run(verb, resolved));
    // A thread that still reads standard input must not keep the process alive, and one that just
    // ends must not meet the runtime letting go of it: the process ends with all of them.
    std::mem::forget(runtime);
    ended
}

async fn run(verb: &Verb, resolved: &Resolved) -> Result<(), Failure> {
    // Only a server logs unasked.
    if matches!(verb, Verb::Serve(_)) || *resolved.origin("log") == Origin::Flag {
        serve::log(&resolved.settings)?;
    }
    match verb {
        Verb::Demo => demo::run(&resolved.settings).await,
        Verb::Serve(args) => serve::run(&resolved.settings, args).await,
        Verb::Ask(verb) => ask(verb, resolved).await,
        Verb::Check => check::run(&resolved.settings).await,
        Verb::Bench(args) => bench::run(resolved, args).await,
        Verb::Config(verb) => config::run(resolved, verb).await,
        Verb::Version => version::run(resolved),
    }
}

async fn ask(verb: &Ask, resolved: &Resolved) -> Result<(), Failure> {
    let folder = match verb {
        Ask::Import(_) | Ask::Graph(graph::Graph::Create(_)) => Folder::MadeWhenMissing,
        _ => Folder::MustExist,
    };
    let session = Session::open(resolved, folder).await?;
    let asked = async {
        match verb {
            Ask::Import(args) => import::run(&session, args).await,
            Ask::Rag(args) => rag::run(&session, args).await,
            Ask::Search(args) => search::run(&session, args).await,
            Ask::Expand(args) => expand::run(&session, args).await,
            Ask::Explain(args) => explain::run(&session, args).await,
            Ask::Facts(verb) => facts::run(&session, verb).await,
            Ask::Graph(verb) => graph::run(&session, verb).await,
        }
    };
    let ended = tokio::select! {
        ended = asked => ended,
        _ = interrupted(verb) => Err(Failure::Interrupted),
    };
    Failure::joined(ended, session.close().await)
}

/// Ends at Ctrl-C. An import ends by itself, so that it can say what was loaded.
async fn interrupted(verb: &Ask) {
    if matches!(verb, Ask::Import(_)) || tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
