//! A test per error code that can arise: status, code and pointer.

use super::api::{Answer, Api};
use super::fake::Interruption;
use hopbine_coordinator::server::{Check, Health, HttpConfig, Surface, router};
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;

fn assert_problem(answer: &Answer, code: Code, pointer: &str, what: &str) {
    assert_eq!(answer.problem(), (code.to_string(), pointer.to_owned()), "{what}: {}", answer.body);
    assert_eq!(answer.status, code.http(), "{what}");
    assert_eq!(answer.header("retry-after").is_some(), code.retryable(), "{what}");
}

/// Line, body, code and pointer of one bad request.
pub type Case = (&'static str, &'static str, Code, &'static str);

const RAG: &str = "POST /v1/graphs/people/graph_rag";
const PUT: &str = "PUT /v1/graphs/people/facts";
const NUMBERS: &str = "PUT /v1/graphs/numbers/facts";

pub const RETRIEVAL: &[Case] = &[
    (RAG, "", Code::InvalidRequest, ""),
    (RAG, "[]", Code::InvalidRequest, ""),
    (RAG, "{\"query\": {}", Code::InvalidRequest, ""),
    (RAG, "{}", Code::InvalidRequest, "/query"),
    (RAG, r#"{"query": {"embedding": [1, 0]}, "topk": 3}"#, Code::UnknownField, "/topk"),
    (RAG, r#"{"query": {"vector": [1, 0]}}"#, Code::UnknownField, "/query/vector"),
    (RAG, r#"{"query": {"embedding": [1, 0, 0]}}"#, Code::DimensionMismatch, "/query/embedding"),
    (RAG, r#"{"query": {"embedding": [0, 0]}}"#, Code::NotFinite, "/query/embedding"),
    (RAG, r#"{"query": {"embedding": [0, 1e99]}}"#, Code::NotFinite, "/query/embedding/1"),
    (RAG, r#"{"query": {"embedding": [1, 0]}, "top_k": 10001}"#, Code::InvalidRequest, "/top_k"),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "top_k": 1, "top_k": 2}"#,
        Code::InvalidRequest,
        "/top_k",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "relation_path": ["*", "named"]}"#,
        Code::RelationNotFound,
        "/relation_path/1",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "filter": {"must": [{"key": "a"}]}}"#,
        Code::BadFilter,
        "/filter/must/0",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "filter": {"must": [], "must": []}}"#,
        Code::BadFilter,
        "/filter/must",
    ),
    (RAG, r#"{"query": {"embedding": [1, 0]}, "timeout": "2"}"#, Code::InvalidRequest, "/timeout"),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "with": ["payloads"]}"#,
        Code::InvalidRequest,
        "/with/0",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "explain": "plans"}"#,
        Code::InvalidRequest,
        "/explain",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "seeds": {"names": true}}"#,
        Code::InvalidRequest,
        "/seeds/names",
    ),
    (
        RAG,
        r#"{"query": {"embedding": [1, 0]}, "consistency": "strong", "max_staleness": "1s"}"#,
        Code::InvalidRequest,
        "/max_staleness",
    ),
    (
        "POST /v1/graphs/people/graph_rag/batch",
        r#"{"requests": []}"#,
        Code::InvalidRequest,
        "/requests",
    ),
    (
        "POST /v1/graphs/people/search",
        r#"{"query": {"embedding": [1, 0]}, "k": -1}"#,
        Code::InvalidRequest,
        "/k",
    ),
    (
        "POST /v1/graphs/people/expand",
        r#"{"from": [], "relation_path": ["*"]}"#,
        Code::InvalidRequest,
        "/from",
    ),
    (
        "POST /v1/graphs/people/expand",
        r#"{"from": [1], "relation_path": ["*"]}"#,
        Code::InvalidRequest,
        "/from/0",
    ),
    (
        "POST /v1/graphs/people/rerank",
        r#"{"query": {"embedding": [1, 0]}}"#,
        Code::InvalidRequest,
        "/paths",
    ),
];

pub const FACTS: &[Case] = &[
    (PUT, r#"{"facts": []}"#, Code::InvalidRequest, "/facts"),
    (
        PUT,
        r#"{"facts": [{"entity": 1, "relation": "r", "target": "t"}]}"#,
        Code::InvalidRequest,
        "/facts/0/entity",
    ),
    (
        PUT,
        r#"{"facts": [{"entity": "e", "relation": "*", "target": "t"}]}"#,
        Code::InvalidRequest,
        "/facts/0/relation",
    ),
    (
        PUT,
        r#"{"facts": [{"entity": "e", "relation": "r", "target": "t", "embedding": [1]}]}"#,
        Code::DimensionMismatch,
        "/facts/0/embedding",
    ),
    (
        PUT,
        r#"{"facts": [{"entity": "e", "relation": "r", "target": "t", "embedding": [0, 0]}]}"#,
        Code::NotFinite,
        "/facts/0/embedding",
    ),
    (
        PUT,
        r#"{"facts": [{"entity": "e", "relation": "r", "target": "t"},
                        {"entity": "e", "relation": "r", "target": "t"}]}"#,
        Code::InvalidRequest,
        "/facts/1",
    ),
    (
        NUMBERS,
        r#"{"facts": [{"entity": "e", "relation": 1, "target": 1}]}"#,
        Code::InvalidRequest,
        "/facts/0/entity",
    ),
    (
        NUMBERS,
        r#"{"facts": [{"entity": 1, "relation": 4294967296, "target": 1}]}"#,
        Code::InvalidRequest,
        "/facts/0/relation",
    ),
    (
        NUMBERS,
        r#"{"facts": [{"entity": 18446744073709551616, "relation": 1, "target": 1}]}"#,
        Code::InvalidRequest,
        "/facts/0/entity",
    ),
    (
        "POST /v1/graphs/people/facts/get",
        r#"{"with": ["path_payloads"]}"#,
        Code::InvalidRequest,
        "/with/0",
    ),
    ("POST /v1/graphs/people/facts/delete", "{}", Code::InvalidRequest, ""),
    (
        "POST /v1/graphs/people/facts/scan",
        r#"{"page_token": "x"}"#,
        Code::InvalidRequest,
        "/page_token",
    ),
    (
        "POST /v1/graphs/people/facts/count",
        r#"{"prefix": {}}"#,
        Code::InvalidRequest,
        "/prefix/entity",
    ),
    ("PUT /v1/graphs/people/facts?wait=soon", r#"{"facts": []}"#, Code::InvalidRequest, ""),
    ("PUT /v1/graphs/people/facts?wiat=applied", r#"{"facts": []}"#, Code::UnknownField, ""),
    ("GET /v1/graphs/people/entities/nobody", "", Code::FactNotFound, ""),
];

pub const GRAPHS: &[Case] = &[
    ("PUT /v1/graphs/new", "{}", Code::InvalidRequest, "/vector"),
    ("PUT /v1/graphs/new", r#"{"vector": {}}"#, Code::InvalidRequest, "/vector/dim"),
    ("PUT /v1/graphs/new", r#"{"vector": {"dim": 5000}}"#, Code::InvalidRequest, "/vector/dim"),
    (
        "PUT /v1/graphs/new",
        r#"{"vector": {"dim": 2, "metrics": "l2"}}"#,
        Code::UnknownField,
        "/vector/metrics",
    ),
    (
        "PUT /v1/graphs/new",
        r#"{"vector": {"dim": 2}, "ids": "u64", "shards": {"initial": 2}}"#,
        Code::InvalidRequest,
        "/shards/initial",
    ),
    ("PUT /v1/graphs/people", r#"{"vector": {"dim": 3}}"#, Code::GraphExists, "/embedder"),
    (
        "PATCH /v1/graphs/people",
        r#"{"index": {"recall_target": 0.9}}"#,
        Code::PreconditionFailed,
        "",
    ),
    ("PATCH /v1/graphs/people", r#"{"vector": {}}"#, Code::UnknownField, "/vector"),
    ("DELETE /v1/graphs/people", "", Code::InvalidRequest, ""),
    ("DELETE /v1/graphs/people?confirm=numbers", "", Code::InvalidRequest, ""),
    ("GET /v1/graphs/nothing", "", Code::GraphNotFound, ""),
    ("POST /v1/graphs/nothing/search", "{}", Code::GraphNotFound, ""),
    ("DELETE /v1/graphs/nothing?confirm=nothing", "", Code::GraphNotFound, ""),
];

#[tokio::test]
async fn a_bad_request_is_refused_with_its_code_and_place() {
    let api = Api::filled().await;
    for (line, body, code, pointer) in RETRIEVAL.iter().chain(FACTS).chain(GRAPHS) {
        let answer = api.ask(line, body).await;
        assert_problem(&answer, *code, pointer, &format!("{line} {body}"));
    }
    assert_eq!(api.world.unreleased(), 0);
}

#[tokio::test]
async fn a_hint_names_what_was_meant() {
    let api = Api::filled().await;
    let hint = async |line, body| api.ask(line, body).await.json()["hint"].to_string();
    let path = r#"{"query": {"embedding": [1, 0]}, "relation_path": ["discoverd"]}"#;
    assert!(hint(RAG, path).await.contains("discovered"));
    assert!(hint(RAG, r#"{"querry": {}}"#).await.contains("query"));
    assert!(hint("DELETE /v1/graphs/people", "").await.contains("?confirm="));
    assert!(hint("PUT /v1/graphs/people/facts?wiat=applied", "{}").await.contains("wait"));
}

#[tokio::test]
async fn what_a_shard_refuses_reaches_the_client_as_it_is() {
    let api = Api::filled().await;
    let shard = api.world.shards("numbers")[0].id;
    for code in Code::ALL {
        let problem = Problem::new(*code, "why").hint("what to do");
        api.world.interrupt(shard, Interruption::Fail(problem.into()));
        let body = r#"{"prefix": {"entity": 7}}"#;
        let answer = api.ask("POST /v1/graphs/numbers/facts/count", body).await;
        assert_problem(&answer, *code, "", code.as_str());
        assert_eq!(answer.json()["hint"], "what to do");
    }
}

#[tokio::test]
async fn a_read_without_answer_ends_at_its_deadline() {
    let api = Api::filled().await;
    api.world.interrupt(api.world.shards("numbers")[0].id, Interruption::Hang);
    let body = r#"{"prefix": {"entity": 7}, "timeout": "20ms"}"#;
    let answer = api.ask("POST /v1/graphs/numbers/facts/count", body).await;
    assert_problem(&answer, Code::DeadlineExceeded, "", "a hanging shard");
}

#[tokio::test]
async fn a_write_without_answer_lists_its_outcomes() {
    let api = Api::filled().await;
    let shards = api.world.shards("numbers");
    api.world.interrupt(shards[1].id, Interruption::Hang);
    let body = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1},
                             {"entity": 200, "relation": 1, "target": 1}]}"#;
    let answer = api.ask("PUT /v1/graphs/numbers/facts?timeout=20ms", body).await;
    assert_problem(&answer, Code::OutcomeUnknown, "", "a hanging shard");
    let outcomes = answer.json()["outcomes"].clone();
    assert_eq!(outcomes[0]["outcome"], "applied", "{outcomes}");
    assert_eq!(outcomes[1]["outcome"], "unknown", "{outcomes}");
    assert_eq!(outcomes[1]["shard"], shards[1].id.0, "{outcomes}");
}

#[tokio::test]
async fn a_refusal_after_a_try_of_unknown_fate_leaves_it_unknown() {
    let api = Api::filled().await;
    let shard = api.world.shards("numbers")[0].id;
    let body = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    let headers = [("idempotency-key", "k")];
    for (code, told) in [
        (Code::Overloaded, Code::OutcomeUnknown),
        (Code::DiskFull, Code::OutcomeUnknown),
        (Code::DataDamaged, Code::OutcomeUnknown),
        // What the log decides tells of the try before, too.
        (Code::IdempotencyConflict, Code::IdempotencyConflict),
    ] {
        for code in [Code::OutcomeUnknown, code] {
            api.world.interrupt(shard, Interruption::Fail(Problem::new(code, "why").into()));
        }
        let answer = api.send(NUMBERS, &headers, body).await;
        assert_problem(&answer, told, "", code.as_str());
        let expected = if told == Code::OutcomeUnknown { "unknown" } else { "" };
        let outcome = answer.json()["outcomes"][0]["outcome"].clone();
        assert_eq!(outcome.as_str().unwrap_or_default(), expected, "{code}");
    }
}

#[tokio::test]
async fn a_refusal_repeats_little_of_what_it_refuses() {
    let api = Api::filled().await;
    // Each of these letters is written down as six.
    let name = "\u{7f}".repeat(1 << 20);
    let condition = format!(r#"{{"query": {{"embedding": [1, 0]}}, "filter": {{"{name}": 1}}}}"#);
    for body in [format!(r#"{{"{name}": 1}}"#), condition] {
        let answer = api.ask(RAG, &body).await;
        assert_eq!(answer.status, 400);
        assert!(answer.body.len() < 64 * 1024, "{} bytes", answer.body.len());
    }
}

#[tokio::test]
async fn an_idempotency_key_stands_for_one_batch() {
    let api = Api::filled().await;
    let headers = [("idempotency-key", "k1")];
    let one = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    let two = r#"{"facts": [{"entity": 1, "relation": 1, "target": 2}]}"#;
    let first = api.send(NUMBERS, &headers, one).await;
    let again = api.send(NUMBERS, &headers, one).await;
    assert_eq!((first.status.as_u16(), &first.body), (200, &again.body));
    let other = api.send(NUMBERS, &headers, two).await;
    assert_problem(&other, Code::IdempotencyConflict, "", "another batch");
}

#[tokio::test]
async fn a_fault_of_a_header_names_the_header_and_points_nowhere() {
    let api = Api::filled().await;
    let fact = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    let question = r#"{"query": {"embedding": [1, 0]}}"#;
    let explained = format!(r#"{{"request": {question}, "endpoint": "search", "mode": "plan"}}"#);
    let token = ("consistency-token", "nonsense");
    let long = "k".repeat(limits::IDEMPOTENCY_KEY_BYTES_MAX + 1);
    for (line, header, body, named) in [
        (NUMBERS, ("idempotency-key", long.as_str()), fact, "header Idempotency-Key: "),
        (NUMBERS, ("idempotency-key", ""), fact, "header Idempotency-Key: "),
        (RAG, token, question, "header Consistency-Token: "),
        ("POST /v1/graphs/people/search", token, question, "header Consistency-Token: "),
        ("POST /v1/graphs/people/explain", token, &explained, "header Consistency-Token: "),
        ("POST /v1/graphs/people/facts/scan", token, "{}", "header Consistency-Token: "),
        ("GET /v1/graphs/people/stats", token, "", "header Consistency-Token: "),
        ("GET /v1/graphs/people/entities/polonium", token, "", "header Consistency-Token: "),
    ] {
        let answer = api.send(line, &[header], body.to_owned()).await;
        assert_problem(&answer, Code::InvalidRequest, "", line);
        let problem = answer.json();
        assert!(problem.get("errors").is_none(), "{line}: {problem}");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.starts_with(named), "{line}: {detail}");
    }
    let line = "POST /v1/graphs/people/graph_rag/batch";
    let body = format!(r#"{{"requests": [{question}]}}"#);
    let reply = api.send(line, &[token], body).await.json()["replies"][0].clone();
    assert!(reply.get("errors").is_none(), "{reply}");
    assert!(
        reply["detail"].as_str().is_some_and(|text| text.starts_with("header Consi")),
        "{reply}"
    );
    // No body has a field for it.
    let body = r#"{"query": {"embedding": [1, 0]}, "consistency_token": "nonsense"}"#;
    assert_problem(&api.ask(RAG, body).await, Code::UnknownField, "/consistency_token", "a field");
}

#[tokio::test]
async fn a_graph_of_numbers_says_which_numbers_its_ids_are() {
    let api = Api::filled().await;
    let entities = "ids of this graph are whole numbers from 0 to 18446744073709551615";
    let relations = "relations of this graph are whole numbers from 0 to 4294967295";
    let beyond = [
        "18446744073709551616",
        "1e30",
        "-1",
        "1.5",
        "1.0",
        r#""18446744073709551616""#,
        r#""-1""#,
        r#""1.5""#,
        r#""Marie Curie""#,
    ];
    let mut cases = Vec::new();
    for id in beyond {
        let fact = |entity: &str, relation: &str, target: &str| {
            format!(r#"{{"entity": {entity}, "relation": {relation}, "target": {target}}}"#)
        };
        let write = |fact: String| (NUMBERS, format!(r#"{{"facts": [{fact}]}}"#));
        cases.push((write(fact(id, "1", "1")), "/facts/0/entity", entities));
        cases.push((write(fact("1", id, "1")), "/facts/0/relation", relations));
        cases.push((write(fact("1", "1", id)), "/facts/0/target", entities));
        let expand = "POST /v1/graphs/numbers/expand";
        let from = format!(r#"{{"from": [{id}], "relation_path": ["*"]}}"#);
        cases.push(((expand, from), "/from/0", entities));
        let path = format!(r#"{{"from": [1], "relation_path": [{id}]}}"#);
        cases.push(((expand, path), "/relation_path/0", relations));
        let prefix = format!(r#"{{"prefix": {{"entity": {id}}}}}"#);
        cases.push((("POST /v1/graphs/numbers/facts/count", prefix), "/prefix/entity", entities));
    }
    for relation in ["4294967296", r#""4294967296""#] {
        let body = format!(r#"{{"prefix": {{"entity": 1, "relation": {relation}}}}}"#);
        let scan = "POST /v1/graphs/numbers/facts/scan";
        cases.push(((scan, body), "/prefix/relation", relations));
    }
    for ((line, body), pointer, words) in &cases {
        let answer = api.ask(line, body).await;
        assert_problem(&answer, Code::InvalidRequest, pointer, body);
        let problem = answer.json();
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(words) && !detail.contains("name"), "{body}: {detail}");
    }
    let line = "GET /v1/graphs/numbers/entities/18446744073709551616";
    assert!(api.ask(line, "").await.body.contains(entities));
    let lines = r#"{"entity": -1, "relation": 1, "target": 1}"#;
    let answer = api.send(NUMBERS, &[("content-type", "application/x-ndjson")], lines).await;
    assert!(answer.body.contains(entities), "{}", answer.body);
    for relation in ["1.5", "-1", "18446744073709551616"] {
        let body = format!(r#"{{"filter": {{"must": [{{"relation": [{relation}]}}]}}}}"#);
        let answer = api.ask("POST /v1/graphs/numbers/facts/count", &body).await;
        assert_problem(&answer, Code::BadFilter, "/filter/must/0/relation/0", &body);
        assert!(answer.body.contains(relations), "{}", answer.body);
    }
    // A graph of names takes no number at all, and says so of each.
    for id in ["7", "-1", "1.5", "18446744073709551616"] {
        let body = format!(r#"{{"prefix": {{"entity": {id}}}}}"#);
        let answer = api.ask("POST /v1/graphs/people/facts/count", &body).await;
        assert_problem(&answer, Code::InvalidRequest, "/prefix/entity", &body);
        assert!(answer.body.contains("names as ids, not numbers"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_graph_is_dropped_at_the_version_that_is_meant() {
    let line = "DELETE /v1/graphs/people?confirm=people";
    let api = Api::filled().await;
    let tag = api.ask("GET /v1/graphs/people", "").await.header("etag").expect("a tag").to_owned();
    let weak = format!("W/{tag}");
    for refused in ["\"0-0\"", "\"0-0\", \"1-1\"", "", &weak, "nonsense"] {
        let answer = api.send(line, &[("if-match", refused)], "").await;
        assert_problem(&answer, Code::PreconditionFailed, "", refused);
        assert!(answer.json()["hint"].as_str().is_some_and(|hint| hint.contains("If-Match")));
    }
    let unconfirmed = "DELETE /v1/graphs/people?confirm=persons";
    let answer = api.send(unconfirmed, &[("if-match", &tag)], "").await;
    assert_problem(&answer, Code::InvalidRequest, "", "not confirmed");
    let listed = format!("\"0-0\", {tag}");
    for taken in [
        &[("if-match", tag.as_str())][..],
        &[("if-match", &listed)],
        &[("if-match", "*")],
        &[("if-match", "\"0-0\""), ("if-match", &tag)],
        &[],
    ] {
        let api = Api::filled().await;
        let current = api.ask("GET /v1/graphs/people", "").await;
        assert_eq!(current.header("etag"), Some(tag.as_str()), "worlds begin alike");
        assert_eq!(api.send(line, taken, "").await.status, 200, "{taken:?}");
        assert_eq!(api.ask("GET /v1/graphs/people", "").await.status, 404);
        let answer = api.send(line, &[("if-match", "*")], "").await;
        assert_problem(&answer, Code::GraphNotFound, "", "nothing is there");
    }
}

#[tokio::test]
async fn a_graph_that_the_client_has_is_not_sent_again() {
    let api = Api::filled().await;
    let shown = api.ask("GET /v1/graphs/people", "").await;
    let tag = shown.header("etag").expect("a tag").to_owned();
    let (weak, listed) = (format!("W/{tag}"), format!("\"0-0\",W/{tag}"));
    for (headers, status) in [
        (&[("if-none-match", tag.as_str())][..], 304),
        (&[("if-none-match", &weak)], 304),
        (&[("if-none-match", &listed)], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"0-0\""), ("if-none-match", &tag)], 304),
        (&[("if-none-match", "\"0-0\"")], 200),
        (&[("if-none-match", "")], 200),
    ] {
        for method in ["GET", "HEAD"] {
            let answer = api.send(&format!("{method} /v1/graphs/people"), headers, "").await;
            assert_eq!(answer.status, status, "{method} {headers:?}");
            assert_eq!(answer.header("etag"), Some(tag.as_str()), "{method} {headers:?}");
            assert!(answer.header("x-request-id").is_some());
            if status == 304 {
                assert!(answer.body.is_empty() && answer.header("content-type").is_none());
                assert_eq!(answer.header("content-length"), None, "{method}");
            } else if method == "GET" {
                assert_eq!(answer.body, shown.body);
            }
        }
    }
    let change = r#"{"index": {"recall_target": 0.9}}"#;
    api.send("PATCH /v1/graphs/people", &[("if-match", &tag)], change).await;
    let answer = api.send("GET /v1/graphs/people", &[("if-none-match", &tag)], "").await;
    assert_eq!(answer.status, 200, "another version");
    let gone = api.send("GET /v1/graphs/nothing", &[("if-none-match", "*")], "").await;
    assert_problem(&gone, Code::GraphNotFound, "", "nothing is there");
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused() {
    let api = Api::filled().await;
    let announced = (limits::QUERY_BYTES_MAX + 1).to_string();
    let answer = api.send(RAG, &[("content-length", &announced)], "{}").await;
    assert_problem(&answer, Code::PayloadTooLarge, "", "announced");
    let spaces = " ".repeat(limits::QUERY_BYTES_MAX + 1);
    assert_problem(&api.ask(RAG, &spaces).await, Code::PayloadTooLarge, "", "sent");
}

#[tokio::test]
async fn a_full_or_closing_server_asks_to_come_back() {
    let full = Api::with(HttpConfig { requests_max: 0, ..HttpConfig::default() });
    assert_problem(&full.ask("GET /v1/graphs", "").await, Code::Overloaded, "", "full");
    assert_eq!(full.ask("GET /livez", "").await.status, 200);
    let tight = Api::with(HttpConfig { body_bytes_max: 3, ..HttpConfig::default() });
    let answer = tight.ask("PUT /v1/graphs/g", r#"{"vector": {"dim": 2}}"#).await;
    assert_problem(&answer, Code::Overloaded, "", "no room for the body");
    let narrow = Api::with(HttpConfig { requests_bytes_max: 99, ..HttpConfig::default() });
    let body = r#"{"vector": {"dim": 2}, "payload_index": ["year"]}"#;
    let answer = narrow.ask("PUT /v1/graphs/g", body).await;
    assert_problem(&answer, Code::MemoryLimit, "", "no room for what the body says");
    let closing = Api::new();
    closing.surface.close();
    let answer = closing.ask("GET /v1/graphs", "").await;
    assert_problem(&answer, Code::ShuttingDown, "", "closing");
    assert_eq!(answer.header("connection"), Some("close"));
    let ready = closing.ask("GET /readyz", "").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.starts_with("[-]shutdown failed: "), "{}", ready.body);
}

struct Broken;

impl Health for Broken {
    fn checks(&self) -> Vec<Check> {
        panic!("a fault of the server")
    }
}

#[tokio::test]
async fn a_panic_becomes_a_problem_and_the_server_lives_on() {
    let mut api = Api::new();
    let surface = Surface::new(api.world.engine(), Arc::new(Broken), HttpConfig::default());
    api = Api::over(api.world, surface.clone(), router(surface));
    let answer = api.ask("GET /readyz", "").await;
    assert_problem(&answer, Code::Internal, "", "a panic");
    assert!(!answer.body.contains("a fault of the server"), "{}", answer.body);
    let metrics = api.ask("GET /metrics", "").await.body;
    assert!(metrics.contains("\nhopbine_http_panics_total 1\n"), "{metrics}");
}

#[tokio::test]
async fn paths_methods_and_media_types_that_are_not_there_are_named() {
    let api = Api::filled().await;
    for path in ["/", "/v1/cluster", "/v1/graphs/people/explanation", "/ui"] {
        let answer = api.ask(&format!("GET {path}"), "").await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (404, "invalid_request"));
    }
    for (line, allow) in [
        ("OPTIONS /v1/graphs/people", "GET, HEAD, PUT, PATCH, DELETE"),
        ("POST /v1/graphs", "GET, HEAD"),
        ("GET /v1/graphs/people/search", "POST"),
        ("PUT /metrics", "GET, HEAD"),
    ] {
        let answer = api.ask(line, "").await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some(allow)), "{line}");
        assert_eq!(answer.problem().0, "invalid_request");
    }
    let facts = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    for (kind, status) in [
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("application/json; charset=latin1", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/vnd.apache.arrow.stream", 415),
        ("application/vnd.apache.parquet", 415),
        ("text/plain", 415),
    ] {
        let answer = api.send(NUMBERS, &[("content-type", kind)], facts).await;
        assert_eq!(answer.status, status, "{kind}");
        if status == 415 {
            assert_eq!(answer.problem().0, "invalid_request");
            assert!(answer.body.contains("application/x-ndjson"), "{}", answer.body);
        }
    }
    let answer = api.send(NUMBERS, &[("content-encoding", "gzip")], facts).await;
    assert_eq!(answer.status, 415);
}
