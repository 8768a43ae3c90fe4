//! `hopbine rag`: seeds, hops along a relation path, exact rerank; whole paths come back.

use crate::failure::Failure;
use crate::output::{Cell, Column, path_text, payload_text, plain, tell};
use crate::progress::grouped;
use crate::question::{self, Limits, Question, Walk};
use crate::session::{Body, Session, put, put_flag};
use clap::Args;
use serde_json::Value;

/// How the first column comes about.
pub const DISTANCE: &str = "\
Distance of a path (--score-mode path, the default):
  seed weight x seed distance + sum over the hops of hop weight x distance of the hop's fact
where the seed weight and every hop weight are 1 unless told otherwise. A seed that is also the
first fact of its path counts twice, as a seed and as a hop: --seed-weight 0 leaves the seed out.
--from has no seed distance. --score-mode endpoint: the distance of the last fact alone. Without
hops: the seed distance. docs/retrieval.md has an example to recompute.";

/// Flags of the verb.
#[derive(Args, Debug)]
pub struct Rag {
    #[command(flatten)]
    question: Question,
    /// Known starting point instead of a search for some; may be repeated
    #[arg(long, value_name = "ID")]
    from: Vec<String>,
    #[command(flatten)]
    walk: Walk,
    #[command(flatten)]
    limits: Limits,
    /// Seed facts kept
    #[arg(long, value_name = "N")]
    ann_k: Option<u64>,
    /// Search beam: a number, or auto
    #[arg(long, value_name = "N|auto")]
    ef: Option<String>,
    /// Seeds by full scan: exact
    #[arg(long)]
    exact_seeds: bool,
    /// Which column of a seed fact starts hop 1
    #[arg(long, value_parser = ["entity", "target"])]
    seed_on: Option<String>,
    /// Only facts of these relations may be seeds
    #[arg(long, value_delimiter = ',', value_name = "R1,R2,...")]
    seed_relations: Option<Vec<String>>,
    /// A start begins with this times its seed distance
    // A negative one is a value; whatever else begins with a hyphen is refused as no number.
    #[arg(long, value_name = "W", allow_hyphen_values = true)]
    seed_weight: Option<f64>,
}

/// A result with its whole path.
pub const COLUMNS: &[Column] = &[
    Column { title: "distance", cell: |row| Cell::Distance(row["distance"].as_f64()) },
    Column { title: "path", cell: |row| Cell::Text(path_text(row)) },
    Column { title: "text", cell: |row| Cell::Text(payload_text(&row["fact"])) },
];

/// Asks and writes the answer.
pub async fn run(session: &Session, args: &Rag) -> Result<(), Failure> {
    let body = request(session, args).await?;
    let reply = session.post(&args.question.graph, "/graph_rag", body).await?;
    warn_partial(&reply);
    session.output.rows(&reply, "results", COLUMNS)
}

impl Rag {
    /// The graph asked.
    pub fn graph(&self) -> &str {
        &self.question.graph
    }
}

/// The body of a request with these flags.
pub async fn request(session: &Session, args: &Rag) -> Result<Body, Failure> {
    let seed_relations = args.seed_relations.as_deref().unwrap_or_default();
    let ids = args.from.iter().chain(seed_relations).map(String::as_str);
    let ids = ids.chain(question::path_ids(&args.walk.path));
    let numbers = question::numbers(session, &args.question.graph, ids).await?;
    let mut query = args.question.query()?.unwrap_or_default();
    if !args.from.is_empty() {
        let from: Vec<Value> = args.from.iter().map(|id| question::id(id, numbers)).collect();
        query.insert("entities".to_owned(), Value::from(from));
    }
    let mut body = Body::new();
    body.insert("query".to_owned(), Value::Object(query));
    args.walk.put_into(&mut body, numbers)?;
    args.limits.put_into(&mut body)?;
    put(&mut body, "ann_k", args.ann_k);
    put(&mut body, "ef_search", ef("--ef", args.ef.as_deref())?);
    put_flag(&mut body, "exact_seeds", args.exact_seeds);
    put(&mut body, "seed_on", args.seed_on.clone());
    if args.seed_relations.is_some() {
        let ids: Vec<Value> = seed_relations.iter().map(|id| question::id(id, numbers)).collect();
        body.insert("seed_relations".to_owned(), Value::from(ids));
    }
    put(&mut body, "seed_weight", args.seed_weight);
    Ok(body)
}

/// The search beam that `flag` gives, as the HTTP interface writes it.
pub fn ef(flag: &str, text: Option<&str>) -> Result<Option<Value>, Failure> {
    match text {
        None => Ok(None),
        Some("auto") => Ok(Some(Value::from("auto"))),
        Some(number) => match number.parse::<u64>() {
            Ok(beam) => Ok(Some(Value::from(beam))),
            Err(_) => Err(Failure::Usage(format!("{flag} {number}: expected a number or auto"))),
        },
    }
}

/// A table does not show that an answer is partial: say it beside.
pub fn warn_partial(body: &[u8]) {
    let reply: Value = serde_json::from_slice(body).unwrap_or_default();
    if reply["partial"] == true {
        tell(format!("warning: the answer is partial: {}", shortfall(&reply["coverage"])));
    }
}

/// What an answer lacks and why, hop by hop, from the `coverage` of its reply.
fn shortfall(coverage: &Value) -> String {
    let none = Vec::new();
    let mut parts = Vec::new();
    for line in coverage["hops"].as_array().unwrap_or(&none) {
        let hop = &line["hop"];
        for why in line["why"].as_str().unwrap_or_default().split(',') {
            let part = match why {
                // These keep the nearest of what was read: nothing is missing.
                "" | "limit_per_entity" | "beam" => continue,
                "limit_rows" => {
                    let read = grouped(line["read"].as_u64().unwrap_or_default());
                    format!("hop {hop} reached --limit-rows, facts read: {read}")
                }
                "deadline" => format!("hop {hop} ran out of time, see --timeout"),
                "shard_unavailable" => format!("hop {hop} met a shard that failed"),
                other => format!("hop {hop}: {other}"),
            };
            parts.push(part);
        }
    }
    let missing = coverage["missing"].as_array().unwrap_or(&none);
    if !missing.is_empty() {
        let shards: Vec<String> = missing.iter().map(plain).collect();
        let (all, shards) = (&coverage["shards"], shards.join(", "));
        parts.push(format!("{} of {all} shards did not answer in full: {shards}", missing.len()));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_partial_answer_lacks_is_told_in_words() {
        let cut = json!({"shards": 1, "answered": 1, "missing": [], "hops": [
            {"hop": 1, "read": 12_000, "kept": 1, "cut": 7, "why": "beam,limit_rows"},
            {"hop": 2, "read": 1, "kept": 1, "cut": 0}]});
        assert_eq!(shortfall(&cut), "hop 1 reached --limit-rows, facts read: 12,000");
        let late = json!({"shards": 4, "answered": 2, "missing": [3, 9], "hops": [
            {"hop": 1, "why": "shard_unavailable"}, {"hop": 2, "why": "deadline"},
            {"hop": 3, "why": "a_later_reason"}]});
        let words = "hop 1 met a shard that failed; hop 2 ran out of time, see --timeout; \
                     hop 3: a_later_reason; 2 of 4 shards did not answer in full: 3, 9";
        assert_eq!(shortfall(&late), words);
        let seeds = json!({"shards": 4, "answered": 3, "missing": [7], "hops": []});
        assert_eq!(shortfall(&seeds), "1 of 4 shards did not answer in full: 7");
    }
}
