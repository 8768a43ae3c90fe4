//! What requests may hold and take together: the memory of replies, that of what is read of their
//! bodies, and the time of a batch.

use super::api::Api;
use super::fake::Interruption;
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::server::HttpConfig;
use serde_json::json;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const BATCH: &str = "POST /v1/graphs/g/graph_rag/batch";
const GET: &str = "POST /v1/graphs/g/facts/get";
const KEY: &str = r#"{"keys": [{"entity": 1, "relation": 1, "target": 1}]}"#;

/// A server with one fact of a MiB, and this much memory for replies.
async fn heavy(replies_bytes_max: usize) -> Api {
    let replies_bytes_max = replies_bytes_max as u64;
    let settings = CoordinatorConfig { replies_bytes_max, ..CoordinatorConfig::default() };
    let api = Api::with_settings(HttpConfig::default(), settings);
    let config = r#"{"vector": {"dim": 2}, "ids": "u64", "payload_bytes_max": "2MiB"}"#;
    api.done("PUT /v1/graphs/g", config).await;
    let fact = json!({"entity": 1, "relation": 1, "target": 1, "embedding": [1, 0],
        "payload": "x".repeat(MIB)});
    api.done("PUT /v1/graphs/g/facts", &json!({"facts": [fact]}).to_string()).await;
    api
}

async fn gauge(api: &Api, name: &str) -> usize {
    let metrics = api.ask("GET /metrics", "").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.expect("a gauge").parse().expect("a number")
}

async fn reply_bytes(api: &Api) -> usize {
    gauge(api, "hopbine_reply_bytes").await
}

async fn request_bytes(api: &Api) -> usize {
    gauge(api, "hopbine_request_bytes").await
}

/// A batch of so many requests for the fact of a MiB.
fn batch(requests: usize) -> String {
    let one = json!({"query": {"embedding": [1, 0]}, "top_k": 1, "timeout": "60s"});
    json!({"requests": vec![one; requests]}).to_string()
}

#[tokio::test]
async fn a_reply_counts_until_its_body_is_gone() {
    let api = heavy(8 * MIB).await;
    assert_eq!(reply_bytes(&api).await, 0);
    let response = api.begin(GET, &[], KEY).await;
    assert_eq!(response.status(), 200);
    let held = reply_bytes(&api).await;
    assert!((MIB..2 * MIB).contains(&held), "{held} bytes: the text alone");
    drop(response);
    assert_eq!(reply_bytes(&api).await, 0);
    let one = batch(1);
    for (line, body) in [
        ("POST /v1/graphs/g/search", r#"{"query": {"embedding": [1, 0]}}"#),
        (
            "POST /v1/graphs/g/expand",
            r#"{"from": [1], "relation_path": ["*"], "return_to_start": true}"#,
        ),
        ("POST /v1/graphs/g/facts/scan", "{}"),
        ("GET /v1/graphs/g/entities/1", ""),
        (BATCH, one.as_str()),
    ] {
        let response = api.begin(line, &[], body.to_owned()).await;
        assert_eq!(response.status(), 200, "{line}");
        let held = reply_bytes(&api).await;
        assert!((MIB..2 * MIB).contains(&held), "{line}: {held} bytes");
        drop(response);
        assert_eq!(reply_bytes(&api).await, 0, "{line}");
    }
}

#[tokio::test]
async fn a_reply_that_finds_no_memory_asks_to_come_back() {
    let api = heavy(3 * MIB).await;
    let unread = api.begin(GET, &[], KEY).await;
    let answer = api.ask(GET, KEY).await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (429, "memory_limit"));
    assert!(answer.header("retry-after").is_some());
    drop(unread);
    assert_eq!(api.ask(GET, KEY).await.status, 200);
}

#[tokio::test]
async fn a_batch_that_finds_no_memory_is_given_up_as_a_whole() {
    let api = heavy(3 * MIB).await;
    let answer = api.ask(BATCH, &batch(2)).await;
    assert_eq!((answer.status.as_u16(), answer.body.len() > 2 * MIB), (200, true));
    let answer = api.ask(BATCH, &batch(20)).await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (429, "memory_limit"));
    assert!(answer.header("retry-after").is_some());
    // Requests that were under way let go of what they have when their tasks end.
    let given_back = async {
        while reply_bytes(&api).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), given_back).await.expect("given back");
}

#[tokio::test]
async fn a_body_that_would_take_too_much_is_refused_and_leaves_nothing_behind() {
    let config = HttpConfig { requests_bytes_max: 4 * MIB, ..HttpConfig::default() };
    let api = Api::with(config);
    api.done("PUT /v1/graphs/g", r#"{"vector": {"dim": 2}, "ids": "u64"}"#).await;
    let zeros = format!("[{}0]", "0,".repeat(100_000));
    let one = format!(r#"{{"query": {{"embedding": [1, 0]}}, "filter": {zeros}}}"#);
    let rows = r#"{"entity": 1, "relation": 1, "target": 1},"#.repeat(20_000);
    let rows = rows.trim_end_matches(',');
    let (json, lines) = ("application/json", "application/x-ndjson");
    for (line, kind, body) in [
        ("POST /v1/graphs/g/graph_rag", json, one.clone()),
        (BATCH, json, format!(r#"{{"requests": [{one}]}}"#)),
        ("POST /v1/graphs/g/facts/count", json, format!(r#"{{"filter": {zeros}}}"#)),
        (GET, json, format!(r#"{{"keys": [{rows}]}}"#)),
        ("PUT /v1/graphs/g/facts", json, format!(r#"{{"facts": [{rows}]}}"#)),
        ("PUT /v1/graphs/g/facts", lines, rows.replace("},", "}\n")),
    ] {
        let answer = api.send(line, &[("content-type", kind)], body).await;
        let (code, place) = answer.problem();
        assert_eq!((answer.status.as_u16(), code.as_str()), (429, "memory_limit"), "{line}");
        assert_eq!((place.as_str(), answer.header("retry-after")), ("", Some("1")), "{line}");
        assert_eq!(request_bytes(&api).await, 0, "{line}");
    }
    let fact = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    api.done("PUT /v1/graphs/g/facts", fact).await;
    assert_eq!(api.begin(GET, &[], KEY).await.status(), 200);
    assert_eq!(request_bytes(&api).await, 0, "after the answer");
    let bad = r#"{"facts": [{"entity": 1, "relation": 1, "target": -1}]}"#;
    assert_eq!(api.ask("PUT /v1/graphs/g/facts", bad).await.status, 400);
    assert_eq!(request_bytes(&api).await, 0, "after a fault");
}

#[tokio::test]
async fn a_request_counts_until_it_is_answered_or_given_up() {
    let api = Api::filled().await;
    let shard = api.world.shards("numbers")[0].id;
    api.world.interrupt(shard, Interruption::Hang);
    let body = r#"{"prefix": {"entity": 7}, "timeout": "60s", "filter": {"must": []}}"#;
    let mut asked = Box::pin(api.ask("POST /v1/graphs/numbers/facts/count", body));
    let waited = tokio::time::timeout(Duration::from_millis(50), &mut asked).await;
    assert!(waited.is_err(), "the shard hangs");
    let held = request_bytes(&api).await;
    assert!((640..4_096).contains(&held), "{held} bytes");
    drop(asked);
    assert_eq!(request_bytes(&api).await, 0);
}

#[tokio::test]
async fn a_timeout_in_a_batch_is_bounded_as_it_is_written() {
    let api = Api::filled().await;
    let line = "POST /v1/graphs/numbers/graph_rag/batch";
    let one = |timeout: &str| json!({"query": {"embedding": [1, 0]}, "timeout": timeout});
    let requests: Vec<_> = ["0ms", "601s", "600s", "1ms"].into_iter().map(one).collect();
    let reply = api.done(line, &json!({"requests": requests}).to_string()).await;
    for (place, written) in [(0, "0ns"), (1, "601s")] {
        let problem = &reply["replies"][place];
        assert_eq!(problem["code"], "invalid_request", "{problem}");
        assert_eq!(problem["errors"][0]["pointer"], "/timeout");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.ends_with(&format!("not {written}")), "{detail}");
    }
    assert!(reply["replies"][2]["results"].is_array(), "{reply}");
    assert_ne!(reply["replies"][3]["code"], "invalid_request");
    let body = json!({"requests": [one("1s")], "timeout": "700s"}).to_string();
    let answer = api.ask(line, &body).await;
    assert_eq!(answer.problem(), ("invalid_request".to_owned(), "/timeout".to_owned()));
}

#[tokio::test]
async fn a_batch_ends_with_the_time_of_its_requests() {
    let api = Api::filled().await;
    let shard = api.world.shards("numbers")[0].id;
    for _ in 0..50 {
        api.world.interrupt(shard, Interruption::Hang);
    }
    let requests = vec![json!({"query": {"embedding": [1, 0]}}); 50];
    let body = json!({"requests": requests, "timeout": "300ms"}).to_string();
    let begun = Instant::now();
    let reply = api.done("POST /v1/graphs/numbers/graph_rag/batch", &body).await;
    // Eight at a time would otherwise take seven times the timeout.
    assert!(begun.elapsed() < Duration::from_millis(1_500), "{:?}", begun.elapsed());
    let replies = reply["replies"].as_array().expect("replies");
    assert_eq!(replies.len(), 50);
    assert!(replies.iter().all(|one| one["code"] == "deadline_exceeded"), "{reply}");
}
