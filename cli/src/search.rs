//! `hopbine search`: the facts nearest to a question, without hops.

use crate::failure::Failure;
use crate::output::{Cell, Column, path_text, payload_text};
use crate::question::{self, Limits, Question};
use crate::rag;
use crate::session::{Body, Session, put, put_flag};
use clap::Args;
use serde_json::Value;

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Search {
    #[command(flatten)]
    question: Question,
    /// Results wanted
    #[arg(long, short, value_name = "N", visible_alias = "top-k")]
    k: Option<u64>,
    /// Search beam: a number, or auto
    #[arg(long, value_name = "N|auto")]
    ef: Option<String>,
    /// By full scan
    #[arg(long)]
    exact: bool,
    /// Only facts of these relations
    #[arg(long, value_delimiter = ',', value_name = "R1,R2,...")]
    relations: Option<Vec<String>>,
    #[command(flatten)]
    limits: Limits,
}

/// A found fact.
pub const COLUMNS: &[Column] = &[
    Column { title: "distance", cell: |row| Cell::Distance(row["distance"].as_f64()) },
    Column { title: "fact", cell: |row| Cell::Text(path_text(row)) },
    Column { title: "text", cell: |row| Cell::Text(payload_text(&row["fact"])) },
];

/// Asks and writes the answer.
pub async fn run(session: &Session, args: &Search) -> Result<(), Failure> {
    let mut body = Body::new();
    let query = args.question.query()?.unwrap_or_default();
    body.insert("query".to_owned(), Value::Object(query));
    put(&mut body, "k", args.k);
    put(&mut body, "ef_search", rag::ef("--ef", args.ef.as_deref())?);
    put_flag(&mut body, "exact", args.exact);
    if let Some(relations) = &args.relations {
        let ids = relations.iter().map(String::as_str);
        let numbers = question::numbers(session, &args.question.graph, ids).await?;
        let ids: Vec<Value> = relations.iter().map(|id| question::id(id, numbers)).collect();
        body.insert("relations".to_owned(), Value::from(ids));
    }
    args.limits.put_into(&mut body)?;
    let reply = session.post(&args.question.graph, "/search", body).await?;
    rag::warn_partial(&reply);
    session.output.rows(&reply, "results", COLUMNS)
}
