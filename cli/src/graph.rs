//! `hopbine graph {create,list,show,drop}`.

use crate::failure::Failure;
use crate::output::{Cell, Column, plain};
use crate::rag;
use crate::session::{Body, Session, put};
use crate::transport::{Call, escape, graph_path};
use clap::{Args, Subcommand};
use hopbine_coordinator::check;
use hopbine_coordinator::embed::Tokenizer;
use hopbine_coordinator::server::decode;
use hopbine_coordinator::server::json::read;
use hopbine_proto::graph::Embedder;
use hopbine_proto::status::Problem;
use hyper::Method;
use serde_json::Value;

/// What to do with graphs.
#[derive(Subcommand, Debug)]
pub enum Graph {
    /// Create a graph; the same again is fine
    Create(Create),
    /// All graphs
    List,
    /// One graph's configuration, or with --stats its sizes, or with --relations its relations
    Show(Show),
    /// Remove a graph and its facts
    Drop(Drop),
}

/// Flags of `graph create`.
#[derive(Args, Debug)]
pub struct Create {
    /// Name of the graph
    name: String,
    /// Components of every embedding
    #[arg(long, value_name = "N")]
    dim: u32,
    #[command(flatten)]
    options: Options,
}

/// What a graph's creator may decide besides its dimension.
#[derive(Args, Debug, Default)]
pub struct Options {
    /// cosine, l2 or dot
    #[arg(long, value_parser = ["cosine", "l2", "dot"])]
    metric: Option<String>,
    /// names or u64
    #[arg(long, value_parser = ["names", "u64"])]
    pub ids: Option<String>,
    /// lexical or lexical-code: questions may be asked in words
    #[arg(long, value_name = "NAME")]
    pub embedder: Option<String>,
    /// Even cuts of a graph of names
    #[arg(long, value_name = "N", conflicts_with = "boundaries")]
    shards: Option<u32>,
    /// Where a new shard begins, in a graph of numbers
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    boundaries: Option<Vec<u64>>,
    /// Payload fields with an index of their own
    #[arg(long, value_delimiter = ',', value_name = "FIELD,...")]
    payload_index: Option<Vec<String>>,
    /// Neighbours per node of the index
    #[arg(long, value_name = "N")]
    m: Option<u32>,
    /// Beam while the index is built
    #[arg(long, value_name = "N")]
    ef_construction: Option<u32>,
    /// Default search beam: a number, or auto
    #[arg(long, value_name = "N|auto")]
    ef_search: Option<String>,
    /// Recall that the automatic choice must reach
    #[arg(long, value_name = "SHARE")]
    recall_target: Option<f64>,
    /// Refuse facts without an embedding
    #[arg(long)]
    vector_required: bool,
}

/// Flags of `graph show`.
#[derive(Args, Debug)]
pub struct Show {
    /// Name of the graph
    name: String,
    /// Sizes, segments and index state instead of the configuration
    #[arg(long)]
    stats: bool,
    /// The relations, each with the number of its facts, instead of the configuration
    #[arg(long, conflicts_with = "stats")]
    relations: bool,
}

/// Flags of `graph drop`.
#[derive(Args, Debug)]
pub struct Drop {
    /// Name of the graph
    name: String,
    /// The name again: its facts are gone afterwards
    #[arg(long, value_name = "NAME")]
    confirm: String,
}

const COLUMNS: &[Column] = &[
    Column { title: "graph", cell: |row| Cell::Text(plain(&row["name"])) },
    Column { title: "dim", cell: |row| Cell::Text(plain(&row["config"]["vector"]["dim"])) },
    Column { title: "metric", cell: |row| Cell::Text(plain(&row["config"]["vector"]["metric"])) },
    Column { title: "ids", cell: |row| Cell::Text(plain(&row["config"]["ids"])) },
    Column { title: "embedder", cell: |row| Cell::Text(plain(&row["config"]["embedder"])) },
];

const RELATIONS: &[Column] = &[
    Column { title: "relation", cell: |row| Cell::Text(plain(&row["relation"])) },
    Column { title: "facts", cell: |row| Cell::Text(plain(&row["facts"])) },
];

/// Does what was asked.
pub async fn run(session: &Session, verb: &Graph) -> Result<(), Failure> {
    match verb {
        Graph::Create(args) => {
            let body = args.options.configuration(args.dim)?;
            if session.is_new() {
                acceptable(&args.name, &body)?;
                session.found().await?;
            }
            let reply = session.send(put_graph(&args.name, body)).await?;
            session.output.object(&reply)
        }
        Graph::List => {
            let reply = session.send(Call::bare(Method::GET, "/v1/graphs".to_owned())).await?;
            session.output.rows(&reply, "graphs", COLUMNS)
        }
        Graph::Show(args) if args.relations => {
            let path = session.timed(graph_path(&args.name, "/relations"));
            let reply = session.send(Call::bare(Method::GET, path)).await?;
            session.output.rows(&reply, "relations", RELATIONS)
        }
        Graph::Show(args) => {
            let path = match args.stats {
                true => session.timed(graph_path(&args.name, "/stats")),
                false => graph_path(&args.name, ""),
            };
            let reply = session.send(Call::bare(Method::GET, path)).await?;
            session.output.object(&reply)
        }
        Graph::Drop(args) => {
            let rest = format!("?confirm={}", escape(&args.confirm));
            let reply = session.bare(Method::DELETE, &args.name, &rest).await?;
            if reply.is_empty() { Ok(()) } else { session.output.object(&reply) }
        }
    }
}

/// Whether an engine that has no graph would create this one; fails with what it would say. So no
/// data folder is made for a graph that cannot be.
pub fn acceptable(name: &str, configuration: &Body) -> Result<(), Failure> {
    let refused = |problem: Problem| Failure::Refused(Box::new(problem.into()));
    let text = Value::Object(configuration.clone()).to_string();
    let config = read(text.as_bytes(), decode::graphs::config);
    let config = config.map_err(|refusal| refused(refusal.into()))?;
    check::graph::name(name).map_err(refused)?;
    check::graph::config(&config).map_err(refused)
}

/// The request that creates a graph.
pub fn put_graph(name: &str, body: Body) -> Call {
    Call::json(Method::PUT, graph_path(name, ""), &Value::Object(body))
}

/// How the built-in embedder of this name cuts texts; `None` for any other name.
pub fn tokenizer(embedder: &str) -> Option<Tokenizer> {
    Tokenizer::of(match embedder {
        "lexical" => &Embedder::Lexical,
        "lexical-code" => &Embedder::LexicalCode,
        _ => return None,
    })
}

impl Options {
    /// Whether any of them is given.
    pub fn any(&self) -> bool {
        let Self { metric, ids, embedder, shards, boundaries, .. } = self;
        let Self { payload_index, m, ef_construction, ef_search, recall_target, .. } = self;
        metric.is_some()
            || ids.is_some()
            || embedder.is_some()
            || shards.is_some()
            || boundaries.is_some()
            || payload_index.is_some()
            || m.is_some()
            || ef_construction.is_some()
            || ef_search.is_some()
            || recall_target.is_some()
            || self.vector_required
    }

    /// The configuration of a graph with them; what is not given is the engine's default.
    pub fn configuration(&self, dim: u32) -> Result<Body, Failure> {
        self.said(Some(dim))
    }

    /// What is given of a configuration.
    pub fn said(&self, dim: Option<u32>) -> Result<Body, Failure> {
        let mut vector = Body::new();
        put(&mut vector, "dim", dim);
        put(&mut vector, "metric", self.metric.clone());
        put(&mut vector, "required", self.vector_required.then_some(true));
        let mut index = Body::new();
        put(&mut index, "m", self.m);
        put(&mut index, "ef_construction", self.ef_construction);
        put(&mut index, "ef_search", rag::ef("--ef-search", self.ef_search.as_deref())?);
        put(&mut index, "recall_target", self.recall_target);
        let mut shards = Body::new();
        put(&mut shards, "initial", self.shards);
        put(&mut shards, "boundaries", self.boundaries.clone());
        let mut body = Body::new();
        body.insert("vector".to_owned(), Value::Object(vector));
        put(&mut body, "ids", self.ids.clone());
        put(&mut body, "embedder", self.embedder.clone());
        put(&mut body, "payload_index", self.payload_index.clone());
        for (name, part) in [("index", index), ("shards", shards)] {
            put(&mut body, name, (!part.is_empty()).then_some(Value::Object(part)));
        }
        Ok(body)
    }
}
