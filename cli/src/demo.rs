//! `hopbine demo`: a small real graph in a temporary folder, three questions whose answers take
//! two facts, and beside each what vector search alone finds. Real output, whatever it is.

use crate::embedded::Embedded;
use crate::failure::Failure;
use crate::graph;
use crate::import::embed;
use crate::output::{Output, distance_text, path_text, payload_text, plain, unreadable};
use crate::session::Body;
use crate::settings::Settings;
use crate::transport::{Call, NDJSON, Transport, graph_path};
use bytes::Bytes;
use hopbine_coordinator::embed::{Lexical, Tokenizer};
use hyper::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Instant;

const FACTS: &str = include_str!("../demo/facts.jsonl");
const QUESTIONS: &str = include_str!("../demo/questions.json");
/// Components of the lexical embedder here: enough that few words share a direction.
const DIM: usize = 384;
/// Answers shown per question and way.
const SHOWN: u64 = 3;
const GRAPH: &str = "demo";

/// One question of the demo.
#[derive(Deserialize)]
struct Question {
    text: String,
    relation_path: Vec<String>,
    answers: Vec<String>,
}

/// Loads, asks and shows.
pub async fn run(settings: &Settings) -> Result<(), Failure> {
    let dir = tempfile::Builder::new().prefix("hopbine-demo-").tempdir();
    let dir = dir.map_err(|error| Failure::Failed(format!("temporary folder: {error}")))?;
    let output = Output::new(settings.output);
    let engine = Embedded::open(dir.path(), &settings.node).await?;
    let engine = Transport::embedded(engine, settings.timeout);
    let shown = show(&engine, &output).await;
    Failure::joined(shown, engine.close().await)
}

async fn show(engine: &Transport, output: &Output) -> Result<(), Failure> {
    let questions: Vec<Question> = serde_json::from_str(QUESTIONS).map_err(unreadable)?;
    let began = Instant::now();
    let facts = load(engine).await?;
    let seconds = began.elapsed().as_secs_f64();
    output.lines([
        format!("{facts} facts loaded into a temporary folder in {seconds:.2} s."),
        "Each question needs two facts; a path joins them, a search finds one.".to_owned(),
    ])?;
    for (number, question) in questions.iter().enumerate() {
        output.lines([String::new(), format!("{}. {}", number + 1, question.text)])?;
        let path_place = along_path(engine, output, question).await?;
        let search_place = by_search(engine, output, question).await?;
        output.lines([verdict(question, path_place, search_place)])?;
    }
    Ok(())
}

/// Writes every fact with the vector of its own sentence. Returns their number.
async fn load(engine: &Transport) -> Result<usize, Failure> {
    let configuration: Body = [
        ("vector".to_owned(), json!({"dim": DIM})),
        ("embedder".to_owned(), Value::from("lexical")),
    ]
    .into_iter()
    .collect();
    engine.send(graph::put_graph(GRAPH, configuration)).await?;
    let lexical = Lexical::new(Tokenizer::Generic, DIM);
    let mut body = String::new();
    for line in FACTS.lines() {
        let line = embed::embedded(line, "text", &lexical);
        let line = line.map_err(|(_, reason)| Failure::Failed(format!("demo facts: {reason}")))?;
        body.push_str(&line);
        body.push('\n');
    }
    let timeout = engine.timeout().map(|timeout| format!("?timeout={timeout}"));
    let path = graph_path(GRAPH, &format!("/facts{}", timeout.unwrap_or_default()));
    let body = Bytes::from(body);
    engine.send(Call { content_type: NDJSON, body, ..Call::bare(Method::PUT, path) }).await?;
    Ok(FACTS.lines().count())
}

/// Shows the answers with their paths. Returns the place of the first right one, from 1.
async fn along_path(
    engine: &Transport,
    output: &Output,
    question: &Question,
) -> Result<Option<usize>, Failure> {
    let body = json!({"query": {"text": question.text}, "relation_path": question.relation_path,
                      "top_k": SHOWN, "timeout": engine.timeout()});
    let call = Call::question(graph_path(GRAPH, "/graph_rag"), &body);
    let (headers, reply) = engine.exchange(call).await?;
    let results = results(&reply)?;
    output.lines([format!("   along {}", question.relation_path.join(", "))])?;
    output.lines(results.iter().map(|result| {
        let distance = result["distance"].as_f64().unwrap_or_default();
        format!("     {}  {}", distance_text(distance), path_text(result))
    }))?;
    output.lines([format!("     {}", stages(&headers))])?;
    let right = |result: &Value| question.is_answer(&result["fact"]["target"]);
    Ok(results.iter().position(right).map(|at| at + 1))
}

/// Shows what is nearest to the question. Returns the place of the first fact with an answer.
async fn by_search(
    engine: &Transport,
    output: &Output,
    question: &Question,
) -> Result<Option<usize>, Failure> {
    let body = json!({"query": {"text": question.text}, "k": SHOWN, "timeout": engine.timeout()});
    let call = Call::question(graph_path(GRAPH, "/search"), &body);
    let results = results(&engine.send(call).await?)?;
    output.lines(["   by vector search alone"])?;
    output.lines(results.iter().map(|result| {
        let distance = result["distance"].as_f64().unwrap_or_default();
        format!("     {}  {}", distance_text(distance), payload_text(&result["fact"]))
    }))?;
    let right = |result: &Value| {
        question.is_answer(&result["fact"]["target"])
            || question.is_answer(&result["fact"]["entity"])
    };
    Ok(results.iter().position(right).map(|at| at + 1))
}

impl Question {
    fn is_answer(&self, id: &Value) -> bool {
        self.answers.contains(&plain(id))
    }
}

fn results(reply: &[u8]) -> Result<Vec<Value>, Failure> {
    let mut reply: Value = serde_json::from_slice(reply).map_err(unreadable)?;
    match reply["results"].take() {
        Value::Array(results) => Ok(results),
        _ => Err(Failure::Failed("the reply has no results".to_owned())),
    }
}

/// Milliseconds of each stage, from `Server-Timing`.
fn stages(headers: &HeaderMap) -> String {
    let timing = headers.get("server-timing").and_then(|value| value.to_str().ok());
    let stage = |stage: &str| {
        let (name, ms) = stage.trim().split_once(";dur=")?;
        Some(format!("{name} {ms} ms"))
    };
    timing.unwrap_or_default().split(',').filter_map(stage).collect::<Vec<_>>().join(" · ")
}

fn verdict(question: &Question, path: Option<usize>, search: Option<usize>) -> String {
    let said = |place: Option<usize>| match place {
        Some(1) => "right".to_owned(),
        Some(place) => format!("wrong, the right answer comes at place {place}"),
        None => format!("wrong, no right answer among {SHOWN}"),
    };
    let answers = question.answers.join(" or ");
    format!("   answer: {answers}; the path is {}; search is {}", said(path), said(search))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_has_three_questions_of_two_hops_whose_relations_and_answers_exist() {
        let questions: Vec<Question> = serde_json::from_str(QUESTIONS).expect("questions");
        assert_eq!(questions.len(), 3);
        let facts: Vec<Value> =
            FACTS.lines().map(|line| serde_json::from_str(line).expect("a fact")).collect();
        for question in &questions {
            assert_eq!(question.relation_path.len(), 2, "{}", question.text);
            for relation in &question.relation_path {
                assert!(facts.iter().any(|fact| fact["relation"] == **relation), "{relation}");
            }
            for answer in &question.answers {
                assert!(facts.iter().any(|fact| fact["target"] == **answer), "{answer}");
            }
        }
    }

    #[test]
    fn stage_times_are_read_from_the_header() {
        let mut headers = HeaderMap::new();
        let value = "seeds;dur=0.250, hop-1;dur=0.1,total;dur=0.500";
        headers.insert("server-timing", value.parse().expect("a value"));
        assert_eq!(stages(&headers), "seeds 0.250 ms · hop-1 0.1 ms · total 0.500 ms");
    }
}
