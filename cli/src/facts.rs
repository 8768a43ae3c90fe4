//! `hopbine facts {get,put,delete,scan}`: facts by key, and in key order.

use crate::failure::{Failure, file_failure};
use crate::output::{Cell, Column, elements, payload_text, plain};
use crate::question::{self, id, keys};
use crate::session::{Body, Session, put};
use crate::transport::{Call, NDJSON, graph_path};
use bytes::Bytes;
use clap::{ArgAction, Args, Subcommand};
use hyper::Method;
use serde_json::Value;
use std::io::Read;

const PAYLOAD_EXAMPLE: &str = r#"'{"text": "hello"}' or --payload '"hello"'"#;

/// What to do with facts.
#[derive(Subcommand, Debug)]
pub enum Facts {
    /// Facts by key
    Get(Get),
    /// Insert or replace facts: one by its parts, or JSON lines from a file
    Put(Put),
    /// Remove facts by key, or all of an entity
    Delete(Delete),
    /// Facts in key order
    Scan(Scan),
}

/// Flags of `facts get`.
#[derive(Args, Debug)]
pub struct Get {
    /// The graph
    #[arg(long, short)]
    graph: String,
    /// A fact's key; may be repeated
    #[arg(long, num_args = 3, required = true, value_names = ["ENTITY", "RELATION", "TARGET"])]
    key: Vec<String>,
    /// Parts to return: payload, vector, version
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    with: Option<Vec<String>>,
}

/// Flags of `facts put`.
#[derive(Args, Debug)]
pub struct Put {
    /// The graph
    #[arg(long, short)]
    graph: String,
    /// JSON lines, or - for standard input
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    file: Option<String>,
    /// The fact's key
    // Once: a second key would have neither payload nor vector of its own.
    #[arg(long, num_args = 3, action = ArgAction::Set,
          value_names = ["ENTITY", "RELATION", "TARGET"])]
    key: Vec<String>,
    /// The fact's payload, as JSON
    #[arg(long, requires = "key", value_name = "JSON")]
    payload: Option<String>,
    /// The fact's vector, as a JSON list
    #[arg(long, requires = "key", value_name = "JSON")]
    embedding: Option<String>,
    /// When the write counts as done
    #[arg(long, value_parser = ["committed", "applied", "indexed"], default_value = "committed")]
    wait: String,
}

/// Flags of `facts delete`.
#[derive(Args, Debug)]
pub struct Delete {
    /// The graph
    #[arg(long, short)]
    graph: String,
    /// A fact's key; may be repeated
    #[arg(long, num_args = 3, required_unless_present = "entity", conflicts_with = "entity",
          value_names = ["ENTITY", "RELATION", "TARGET"])]
    key: Vec<String>,
    /// All facts of this entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Only along this relation
    #[arg(long, requires = "entity", value_name = "R")]
    relation: Option<String>,
}

/// Flags of `facts scan`.
#[derive(Args, Debug)]
pub struct Scan {
    /// The graph
    #[arg(long, short)]
    graph: String,
    /// Only facts of this entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Only along this relation
    #[arg(long, requires = "entity", value_name = "R")]
    relation: Option<String>,
    /// Facts a page
    #[arg(long, value_name = "N")]
    page_size: Option<u64>,
    /// Where the last page ended
    #[arg(long, value_name = "TOKEN", conflicts_with = "all")]
    page_token: Option<String>,
    /// All pages; as JSON they are one page each
    #[arg(long)]
    all: bool,
    /// Parts to return: payload, vector, version
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    with: Option<Vec<String>>,
}

const COLUMNS: &[Column] = &[
    Column { title: "entity", cell: |row| Cell::Text(plain(&row["entity"])) },
    Column { title: "relation", cell: |row| Cell::Text(plain(&row["relation"])) },
    Column { title: "target", cell: |row| Cell::Text(plain(&row["target"])) },
    Column { title: "payload", cell: |row| Cell::Text(payload_text(row)) },
];

/// Does what was asked.
pub async fn run(session: &Session, verb: &Facts) -> Result<(), Failure> {
    match verb {
        Facts::Get(args) => get(session, args).await,
        Facts::Put(args) => upsert(session, args).await,
        Facts::Delete(args) => delete(session, args).await,
        Facts::Scan(args) => scan(session, args).await,
    }
}

async fn get(session: &Session, args: &Get) -> Result<(), Failure> {
    let ids = args.key.iter().map(String::as_str);
    let numbers = question::numbers(session, &args.graph, ids).await?;
    let mut body = Body::new();
    body.insert("keys".to_owned(), Value::from(keys(&args.key, numbers)));
    put(&mut body, "with", args.with.clone());
    let reply = session.post(&args.graph, "/facts/get", body).await?;
    let written = session.output.rows(&reply, "facts", COLUMNS);
    match elements(&reply, "not_found")?.as_slice() {
        [] => written,
        missing => {
            let missing: Vec<&str> = missing.iter().map(|key| key.get()).collect();
            Err(Failure::NotFound(format!("no fact under {}", missing.join(", "))))
        }
    }
}

async fn upsert(session: &Session, args: &Put) -> Result<(), Failure> {
    let body = match &args.file {
        Some(name) => read(name)?,
        None => one_fact(session, args).await?,
    };
    let path = graph_path(&args.graph, &format!("/facts?wait={}", args.wait));
    let path = session.timed(path);
    let call = Call { content_type: NDJSON, body, ..Call::bare(Method::PUT, path) };
    let reply = session.send(call).await?;
    session.output.object(&reply)
}

async fn one_fact(session: &Session, args: &Put) -> Result<Bytes, Failure> {
    let ids = args.key.iter().map(String::as_str);
    let numbers = question::numbers(session, &args.graph, ids).await?;
    let mut fact = keys(&args.key, numbers).swap_remove(0);
    if let Some(embedding) = &args.embedding {
        let example = question::EMBEDDING_EXAMPLE;
        fact["embedding"] = question::parse("--embedding", embedding, example)?;
    }
    let mut text = fact.to_string();
    if let Some(payload) = &args.payload {
        question::parse("--payload", payload, PAYLOAD_EXAMPLE)?;
        // As it was written, on one line: within a string there is no line break.
        let closing = text.pop();
        text.push_str(",\"payload\":");
        text.push_str(&payload.replace(['\n', '\r'], " "));
        text.extend(closing);
    }
    Ok(Bytes::from(text))
}

fn read(name: &str) -> Result<Bytes, Failure> {
    let mut bytes = Vec::new();
    if name == "-" {
        std::io::stdin().read_to_end(&mut bytes).map_err(file_failure("standard input"))?;
    } else {
        bytes = std::fs::read(name).map_err(file_failure(name))?;
    }
    let bytes = Bytes::from(bytes);
    // Some editors begin every file with a byte order mark, which is no part of the JSON.
    let begin = if bytes.starts_with("\u{feff}".as_bytes()) { "\u{feff}".len() } else { 0 };
    Ok(bytes.slice(begin..))
}

async fn delete(session: &Session, args: &Delete) -> Result<(), Failure> {
    let ids = args.key.iter().chain(&args.entity).chain(&args.relation).map(String::as_str);
    let numbers = question::numbers(session, &args.graph, ids).await?;
    let mut body = Body::new();
    match prefix(args.entity.as_deref(), args.relation.as_deref(), numbers) {
        Some(prefix) => body.insert("prefix".to_owned(), prefix),
        None => body.insert("keys".to_owned(), Value::from(keys(&args.key, numbers))),
    };
    let reply = session.change(&args.graph, "/facts/delete", body).await?;
    session.output.object(&reply)
}

async fn scan(session: &Session, args: &Scan) -> Result<(), Failure> {
    let ids = args.entity.iter().chain(&args.relation).map(String::as_str);
    let numbers = question::numbers(session, &args.graph, ids).await?;
    let mut body = Body::new();
    put(&mut body, "prefix", prefix(args.entity.as_deref(), args.relation.as_deref(), numbers));
    put(&mut body, "page_size", args.page_size);
    put(&mut body, "page_token", args.page_token.clone());
    put(&mut body, "with", args.with.clone());
    let mut pages = session.output.pages("facts", COLUMNS);
    loop {
        let reply = session.post(&args.graph, "/facts/scan", body.clone()).await?;
        match pages.page(&reply)? {
            Some(token) if args.all => put(&mut body, "page_token", Some(token)),
            next => {
                session.output.tell_of_next("facts", next.as_deref(), ", or --all");
                return Ok(());
            }
        }
    }
}

fn prefix(entity: Option<&str>, relation: Option<&str>, numbers: bool) -> Option<Value> {
    let mut prefix = Body::new();
    prefix.insert("entity".to_owned(), id(entity?, numbers));
    put(&mut prefix, "relation", relation.map(|relation| id(relation, numbers)));
    Some(Value::Object(prefix))
}
