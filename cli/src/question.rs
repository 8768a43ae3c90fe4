//! What the retrieval verbs share: the question, ids as the graph writes them, relation paths.

use crate::failure::{Failure, file_failure};
use crate::session::{Body, Session, put, put_flag};
use clap::{Args, ValueEnum};
use hyper::Method;
use serde_json::{Value, json};
use std::io::Read;

/// A list of numbers as a flag takes it, for those who wrote something else.
pub const EMBEDDING_EXAMPLE: &str = "'[0.5, 1, -0.25]'";
const FILTER_EXAMPLE: &str = r#"'{"must": [{"key": "year", "match": 1898}]}'"#;
const PATH_EXAMPLE: &str = r#"'["found_by", ["born_in", "died_in"]]'"#;

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Consistency {
    /// All writes acknowledged before.
    Strong,
    /// At most some seconds older.
    Bounded,
    /// Whatever is at hand.
    Eventual,
}

/// Which graph is asked what.
#[derive(Args, Debug)]
pub struct Question {
    /// The graph to ask
    #[arg(long, short)]
    pub graph: String,
    /// The question in words (the graph needs an embedder)
    #[arg(long, short)]
    pub text: Option<String>,
    /// The question as a vector: a JSON list, or a file that holds one, or - for standard input
    #[arg(long, value_name = "JSON|FILE")]
    pub embedding: Option<String>,
}

/// What seeds, hops and results obey, where a verb has them.
#[derive(Args, Debug)]
pub struct Limits {
    /// Only facts that pass this filter, such as `{"must": [{"key": "year", "match": 1898}]}`
    #[arg(long, value_name = "JSON")]
    pub filter: Option<String>,
    /// Parts to return: payload, vector, path_payloads, version
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    pub with: Option<Vec<String>>,
    /// How fresh the answer must be
    #[arg(long, value_enum)]
    pub consistency: Option<Consistency>,
    /// A labelled partial answer instead of an error at the deadline
    #[arg(long)]
    pub allow_partial: bool,
}

/// What rag and expand share beyond the question.
#[derive(Args, Debug)]
pub struct Walk {
    /// One relation a hop, `a|b` for either, `*` for any; or the JSON list of the HTTP interface
    #[arg(long, value_name = "R1,R2,...", default_value = "")]
    pub path: String,
    /// Results wanted
    #[arg(long, value_name = "N")]
    pub top_k: Option<u64>,
    /// path: sum of the hop distances; endpoint: the last fact's alone
    #[arg(long, value_name = "MODE", value_parser = ["path", "endpoint"])]
    pub score_mode: Option<String>,
    /// Factor of each hop's distance
    #[arg(long, value_delimiter = ',', value_name = "W1,W2,...", allow_hyphen_values = true)]
    pub hop_weights: Option<Vec<f64>>,
    /// Let a path end a hop where it began
    #[arg(long)]
    pub return_to_start: bool,
    /// Of one entity's matching facts keep the nearest N
    #[arg(long, value_name = "N")]
    pub limit_per_entity: Option<u64>,
    /// Distinct targets kept as the next frontier
    #[arg(long, value_name = "N")]
    pub beam: Option<u64>,
    /// Facts each shard reads per hop, the first in key order; more make the answer partial
    #[arg(long, value_name = "N")]
    pub limit_rows: Option<u64>,
}

impl Question {
    /// The `query` of a request; `None` when neither words nor a vector are given.
    pub fn query(&self) -> Result<Option<Body>, Failure> {
        let mut query = Body::new();
        put(&mut query, "text", self.text.clone());
        if let Some(given) = &self.embedding {
            query.insert("embedding".to_owned(), json_or_file("--embedding", given)?);
        }
        Ok((!query.is_empty()).then_some(query))
    }
}

impl Limits {
    /// Adds the fields to a request body.
    pub fn put_into(&self, body: &mut Body) -> Result<(), Failure> {
        if let Some(filter) = &self.filter {
            body.insert("filter".to_owned(), parse("--filter", filter, FILTER_EXAMPLE)?);
        }
        put(body, "with", self.with.clone());
        let consistency = self.consistency.map(|kind| match kind {
            Consistency::Strong => "strong",
            Consistency::Bounded => "bounded",
            Consistency::Eventual => "eventual",
        });
        put(body, "consistency", consistency);
        put_flag(body, "allow_partial", self.allow_partial);
        Ok(())
    }
}

impl Walk {
    /// Adds the fields to a request body; `numbers`: the graph's relations are numbers.
    pub fn put_into(&self, body: &mut Body, numbers: bool) -> Result<(), Failure> {
        body.insert("relation_path".to_owned(), relation_path(&self.path, numbers)?);
        put(body, "top_k", self.top_k);
        put(body, "score_mode", self.score_mode.clone());
        put(body, "hop_weights", self.hop_weights.clone());
        put_flag(body, "return_to_start", self.return_to_start);
        put(body, "limit_per_entity", self.limit_per_entity);
        put(body, "beam", self.beam);
        put(body, "limit_rows", self.limit_rows);
        Ok(())
    }
}

/// Whether `graph` writes ids as numbers. Asks the engine only when one of `ids` reads as a
/// number: anything else can only be a name.
pub async fn numbers<'a>(
    session: &Session,
    graph: &str,
    ids: impl IntoIterator<Item = &'a str>,
) -> Result<bool, Failure> {
    let digits = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    if !ids.into_iter().any(digits) {
        return Ok(false);
    }
    let reply = session.bare(Method::GET, graph, "").await?;
    let graph: Value = serde_json::from_slice(&reply).map_err(crate::output::unreadable)?;
    Ok(graph["config"]["ids"] == "u64")
}

/// An id as the graph writes it: a number where it can be one, else a string, which a graph of
/// numbers refuses with its own words.
pub fn id(text: &str, numbers: bool) -> Value {
    match text.parse::<u64>() {
        Ok(number) if numbers => Value::from(number),
        _ => Value::from(text),
    }
}

/// Three texts a key.
pub fn keys(texts: &[String], numbers: bool) -> Vec<Value> {
    let key = |part: &[String]| {
        json!({"entity": id(&part[0], numbers), "relation": id(&part[1], numbers),
               "target": id(&part[2], numbers)})
    };
    texts.chunks_exact(3).map(key).collect()
}

/// The pieces of a relation path that could be ids.
pub fn path_ids(path: &str) -> impl Iterator<Item = &str> {
    // A JSON list says itself what is a number.
    let plain = if path.starts_with('[') { "" } else { path };
    plain.split([',', '|'])
}

fn relation_path(path: &str, numbers: bool) -> Result<Value, Failure> {
    if path.is_empty() {
        return Ok(json!([]));
    }
    if path.starts_with('[') {
        return parse("--path", path, PATH_EXAMPLE);
    }
    let hop = |hop: &str| match hop.split_once('|') {
        None => id(hop, numbers),
        Some(_) => hop.split('|').map(|one| id(one, numbers)).collect(),
    };
    Ok(path.split(',').map(hop).collect())
}

/// JSON that a flag holds; `example` is shown to who wrote something else.
pub fn parse(flag: &str, text: &str, example: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        let text = format!("{flag} expects JSON: {error}\n  hint: as in {flag} {example}");
        Failure::Usage(text)
    })
}

fn json_or_file(flag: &str, given: &str) -> Result<Value, Failure> {
    if given.trim_start().starts_with('[') {
        return parse(flag, given, EMBEDDING_EXAMPLE);
    }
    let mut text = String::new();
    if given == "-" {
        std::io::stdin().read_to_string(&mut text).map_err(file_failure("standard input"))?;
    } else {
        text = std::fs::read_to_string(given).map_err(|error| {
            let wanted = "a list in brackets, or the name of a file that holds one";
            let example = format!("as in {flag} {EMBEDDING_EXAMPLE}");
            Failure::Usage(format!("{flag} {given}: {error}\n  hint: {wanted}, {example}"))
        })?;
    }
    parse(flag, &text, EMBEDDING_EXAMPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relation_path_is_read_hop_by_hop() {
        let path = |text: &str, numbers| relation_path(text, numbers).expect("a path");
        assert_eq!(path("", false), json!([]));
        assert_eq!(path("a,b|c,*", false), json!(["a", ["b", "c"], "*"]));
        assert_eq!(path("1,2|3,*", true), json!([1, [2, 3], "*"]));
        assert_eq!(path("1", false), json!(["1"]));
        assert_eq!(path(r#"["a,b", ["c"]]"#, false), json!(["a,b", ["c"]]));
        assert_eq!(relation_path("[", false).expect_err("no JSON").exit_code(), 2);
    }

    #[test]
    fn ids_are_numbers_only_in_a_graph_of_numbers() {
        assert_eq!(id("18446744073709551615", true), json!(u64::MAX));
        assert_eq!(id("7", false), json!("7"));
        assert_eq!(id("x7", true), json!("x7"));
        let texts: Vec<String> = ["1", "2", "3", "4", "5", "6"].map(str::to_owned).to_vec();
        assert_eq!(keys(&texts, true)[1], json!({"entity": 4, "relation": 5, "target": 6}));
    }
}
