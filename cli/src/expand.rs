//! `hopbine expand`: hops from known entities; reranked with a question, in key order without.

use crate::failure::Failure;
use crate::question::{self, Limits, Question, Walk};
use crate::rag;
use crate::session::{Body, Session, put};
use clap::Args;
use serde_json::Value;

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Expand {
    #[command(flatten)]
    question: Question,
    /// Where paths start; several one after another, or the flag again
    #[arg(long, required = true, num_args = 1.., value_name = "ID")]
    from: Vec<String>,
    #[command(flatten)]
    walk: Walk,
    #[command(flatten)]
    limits: Limits,
    /// Facts a page, without a question
    #[arg(long, value_name = "N")]
    page_size: Option<u64>,
    /// Where the last page ended
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
}

/// Asks and writes the answer.
pub async fn run(session: &Session, args: &Expand) -> Result<(), Failure> {
    let ids = args.from.iter().map(String::as_str).chain(question::path_ids(&args.walk.path));
    let numbers = question::numbers(session, &args.question.graph, ids).await?;
    let from: Vec<Value> = args.from.iter().map(|id| question::id(id, numbers)).collect();
    let mut body = Body::new();
    body.insert("from".to_owned(), Value::from(from));
    put(&mut body, "query", args.question.query()?.map(Value::Object));
    args.walk.put_into(&mut body, numbers)?;
    args.limits.put_into(&mut body)?;
    put(&mut body, "page_size", args.page_size);
    put(&mut body, "page_token", args.page_token.clone());
    let reply = session.post(&args.question.graph, "/expand", body).await?;
    rag::warn_partial(&reply);
    session.output.rows(&reply, "results", rag::COLUMNS)
}
