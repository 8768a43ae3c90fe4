//! The graph that an import loads into: taken as it is when it is what the command line says, else
//! made, with its data folder if need be, once the facts of the first batch were understood.

use super::agreement;
use super::batches::{BadLine, Batch, Change};
use super::driver::Jsonl;
use super::embed;
use super::fault::in_file;
use crate::failure::{Failure, Refusal};
use crate::graph;
use crate::output::{tell, unreadable};
use crate::session::{Body, Session};
use hopbine_coordinator::check;
use hopbine_coordinator::embed::Lexical;
use hopbine_coordinator::server::decode;
use hopbine_coordinator::server::json::read;
use hopbine_proto::GraphId;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::status::{Code, Problem};
use hyper::Method;
use serde_json::Value;
use std::collections::BTreeMap;

const HOW_TO_CREATE: &str = "give --dim N and the import creates the graph";

/// Where an import goes.
pub enum Destination {
    /// A graph of this configuration, which agrees with the command line.
    There(Value),
    /// No graph yet: what the engine said of it.
    Missing(Box<Refusal>),
}

/// The graph, ready for facts.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Whether it turns words into vectors by itself.
    pub embeds: bool,
}

impl Destination {
    /// Looks for the graph. Fails with `Conflict` when it is not what the flags say.
    pub async fn find(session: &Session, args: &Jsonl) -> Result<Self, Failure> {
        if session.is_new() {
            let detail = format!("there is no graph {:?}", args.graph);
            let refusal = Refusal::from(Problem::new(Code::GraphNotFound, detail));
            return Self::missing(args, Box::new(refusal));
        }
        match session.bare(Method::GET, &args.graph, "").await {
            Ok(reply) => {
                let mut there: Value = serde_json::from_slice(&reply).map_err(unreadable)?;
                let config = there.get_mut("config").map(Value::take).unwrap_or_default();
                let said = args.options.said(args.dim)?;
                agreement::check(&args.graph, &said, &config)?;
                Ok(Self::There(config))
            }
            Err(Failure::Refused(refusal)) if refusal.code == "graph_not_found" => {
                Self::missing(args, refusal)
            }
            Err(other) => Err(other),
        }
    }

    fn missing(args: &Jsonl, mut refusal: Box<Refusal>) -> Result<Self, Failure> {
        if args.embed.is_some() && args.dim.is_none() {
            refusal.hint = Some(HOW_TO_CREATE.to_owned());
            return Err(Failure::Refused(refusal));
        }
        Ok(Self::Missing(refusal))
    }

    /// What `--embed` does to every line, with the graph's dimension and embedder.
    pub fn change(&self, args: &Jsonl) -> Result<Option<Change>, Failure> {
        let Some(field) = args.embed.clone() else { return Ok(None) };
        let (embedder, dim, hint) = match self {
            Self::There(config) => {
                let dim = config["vector"]["dim"].as_u64();
                (config["embedder"].as_str(), dim, "this graph has no embedder of its own")
            }
            Self::Missing(_) => {
                let dim = args.dim.map(u64::from);
                (args.options.embedder.as_deref(), dim, "give --embedder lexical or lexical-code")
            }
        };
        let (Some(tokenizer), Some(dim)) = (embedder.and_then(graph::tokenizer), dim) else {
            return Err(Failure::Usage(format!("--embed needs a graph with an embedder: {hint}")));
        };
        let lexical = Lexical::new(tokenizer, dim as usize);
        Ok(Some(Box::new(move |line| embed::embedded(line, &field, &lexical))))
    }

    /// Makes sure that the graph is there, creating it when the flags say how. Nothing is created
    /// before all facts of the first batch were understood. `None`: there is neither graph nor
    /// fact.
    pub async fn prepare(
        self,
        session: &Session,
        args: &Jsonl,
        first: Option<&Result<Batch, BadLine>>,
    ) -> Result<Option<Target>, Failure> {
        let mut refusal = match self {
            Self::There(config) => return Ok(Some(Target::of(config["embedder"].as_str()))),
            Self::Missing(refusal) => refusal,
        };
        let target = Target::of(args.options.embedder.as_deref());
        let batch = match first {
            // The load ends with it.
            Some(Err(_)) => return Ok(Some(target)),
            Some(Ok(batch)) => Some(batch),
            None => None,
        };
        let line = batch.and_then(|batch| batch.line(0)).unwrap_or_default();
        let fact: Value = serde_json::from_str(line).unwrap_or_default();
        let dim = args.dim.or_else(|| fact["embedding"].as_array().map(|list| list.len() as u32));
        let given = args.dim.is_some() || args.options.any();
        let (Some(dim), true) = (dim, given) else {
            refusal.hint = Some(HOW_TO_CREATE.to_owned());
            return Err(Failure::Refused(refusal));
        };
        let Some(batch) = batch else { return Ok(None) };
        let mut body = args.options.configuration(dim)?;
        if args.options.ids.is_none() && fact["entity"].is_number() {
            body.insert("ids".to_owned(), Value::from("u64"));
        }
        if session.is_new() {
            graph::acceptable(&args.graph, &body)?;
        }
        understood(batch, &body).map_err(|problem| in_file(&args.file, batch, problem.into()))?;
        session.found().await?;
        session.send(graph::put_graph(&args.graph, body)).await?;
        tell(format!("created graph {} with dimension {dim}", args.graph));
        Ok(Some(target))
    }
}

impl Target {
    fn of(embedder: Option<&str>) -> Self {
        Self { embeds: embedder.and_then(graph::tokenizer).is_some() }
    }
}

/// Whether a graph of this configuration takes the facts of a batch. A configuration that is none
/// is left to the engine to refuse.
fn understood(batch: &Batch, configuration: &Body) -> Result<(), Problem> {
    let text = Value::Object(configuration.clone()).to_string();
    let Ok(config) = read(text.as_bytes(), decode::graphs::config) else {
        return Ok(());
    };
    let facts = decode::facts::upsert_lines(&batch.body, config.ids)?;
    let (id, name, version) = (GraphId::default(), String::new(), 0);
    let (relations, shards) = (BTreeMap::new(), Vec::new());
    let graph = GraphInfo { id, name, config, version, relations, shards };
    let places = check::facts::Places { upsert: "/facts", delete: "" };
    check::facts::batch(&graph, facts, &[], places).map(|_| ())
}
