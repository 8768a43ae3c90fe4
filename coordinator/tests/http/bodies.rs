//! Bodies of any kind: never a panic, always JSON.

use super::api::Api;
use axum::http::StatusCode;
use proptest::prelude::*;
use tokio::runtime::Runtime;

/// A good body of every endpoint that takes one.
const GOOD: &[(&str, &str)] = &[
    (
        "PUT /v1/graphs/fresh",
        r#"{"vector": {"dim": 2, "metric": "cosine"}, "ids": "u64",
        "index": {"m": 24, "ef_search": "auto"},
        "shards": {"boundaries": [7], "split_at": "1MiB"}}"#,
    ),
    ("PATCH /v1/graphs/people", r#"{"index": {"ef_search": 64}, "shards": {"split_at": "1GiB"}}"#),
    (
        "PUT /v1/graphs/people/facts",
        r#"{"facts": [{"entity": "a", "relation": "discovered",
        "target": "b", "embedding": [0.5, -1e-3], "payload": {"t": ["\u00e9", null, 1.5]}}]}"#,
    ),
    (
        "PUT /v1/graphs/numbers/facts",
        r#"{"facts": [{"entity": 1, "relation": 2,
        "target": "18446744073709551615"}]}"#,
    ),
    (
        "POST /v1/graphs/people/facts/write",
        r#"{"upsert": [{"entity": "a", "relation": "r",
        "target": "b"}], "delete": [{"entity": "a", "relation": "r", "target": "c"}]}"#,
    ),
    (
        "POST /v1/graphs/people/facts/get",
        r#"{"keys": [{"entity": "polonium",
        "relation": "kind_of", "target": "metal"}], "with": ["payload", "vector", "version"]}"#,
    ),
    (
        "POST /v1/graphs/people/facts/delete",
        r#"{"prefix": {"entity": "x", "relation": "kind_of"}}"#,
    ),
    (
        "POST /v1/graphs/people/facts/scan",
        r#"{"page_size": 1, "filter": {"must": [{"key": "year",
        "range": {"gte": 1800, "lt": 1900.5}}]}}"#,
    ),
    ("POST /v1/graphs/people/facts/count", r#"{"prefix": {"entity": "polonium"}}"#),
    (
        "POST /v1/graphs/people/search",
        r#"{"query": {"text": "found in 1898"}, "k": 2,
        "relations": ["discovered"], "exact": true}"#,
    ),
    (
        "POST /v1/graphs/people/expand",
        r#"{"from": ["Marie Curie"], "relation_path": ["discovered",
        ["named_after", "kind_of"]], "query": {"embedding": [1, 1]}, "hop_weights": [1, 0.5]}"#,
    ),
    (
        "POST /v1/graphs/people/rerank",
        r#"{"query": {"embedding": [1, 1]}, "paths": [[{"entity":
        "polonium", "relation": "named_after", "target": "Poland"}]], "score_mode": "endpoint"}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag",
        r#"{"query": {"embedding": [1, 0.25]}, "relation_path":
        ["named_after"], "seed_on": "target", "seeds": {"ann": {"k": 3}}, "seed_weight": 0,
        "filter": {"must_not": [{"relation": ["kind_of"]}]}, "consistency": "strong",
        "timeout": "1s", "with": ["path_payloads", "version"], "return_to_start": true}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag/batch",
        r#"{"requests": [{"query": {"embedding": [1, 0]}},
        {"query": {}}], "allow_partial": true}"#,
    ),
];

/// One edit of a body: what goes where.
fn edits() -> impl Strategy<Value = Vec<(usize, usize, Vec<u8>)>> {
    let pieces: Vec<&[u8]> = vec![
        b"",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"\\",
        b"null",
        b"true",
        b"-",
        b"1e999",
        b"0",
        b"99999999999999999999",
        b"\"a\"",
        b"\xff",
        b"\0",
        b"{\"query\": {}}",
        b"NaN",
    ];
    let piece = proptest::sample::select(pieces).prop_map(<[u8]>::to_vec);
    proptest::collection::vec((any::<usize>(), 0usize..6, piece), 0..4)
}

fn run(runtime: &Runtime, api: &Api, line: &str, body: Vec<u8>) -> StatusCode {
    let shown = String::from_utf8_lossy(&body).into_owned();
    let answer = runtime.block_on(api.send(line, &[], body));
    serde_json::from_str::<serde_json::Value>(&answer.body)
        .unwrap_or_else(|error| panic!("{line} {shown}: {error} in {}", answer.body));
    assert!(!answer.status.is_server_error(), "{line} {shown}: {}", answer.body);
    if !answer.status.is_success() {
        answer.problem();
    }
    answer.status
}

#[test]
fn any_edit_of_a_good_body_is_answered_with_json() {
    let runtime = Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::filled());
    for (line, body) in GOOD {
        let status = run(&runtime, &api, line, body.as_bytes().to_vec());
        let expected = if line.starts_with("PATCH") { 412 } else { 200 };
        assert!(status == expected || status == 201, "{line}: {status}");
    }
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) };
    proptest!(cases, |(edits in edits(), which in 0..GOOD.len())| {
        let (line, body) = GOOD[which];
        let mut body = body.as_bytes().to_vec();
        for (place, removed, piece) in edits {
            let start = place % (body.len() + 1);
            let end = (start + removed).min(body.len());
            body.splice(start..end, piece);
        }
        run(&runtime, &api, line, body);
    });
}

#[test]
fn random_bytes_are_answered_with_json() {
    let runtime = Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::filled());
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let bytes = proptest::collection::vec(any::<u8>(), 0..80);
    proptest!(cases, |(bytes in bytes, which in 0..GOOD.len())| {
        prop_assert!(run(&runtime, &api, GOOD[which].0, bytes).is_client_error());
    });
}

#[test]
fn a_large_batch_is_read_off_the_async_threads_and_names_its_bad_row() {
    let runtime = Runtime::new().expect("a runtime");
    let api = runtime.block_on(Api::filled());
    let row = |number: usize, component: &str| {
        let key = format!(r#""entity": {number}, "relation": 1, "target": 1"#);
        format!(r#"{{{key}, "embedding": [1, {component}]}}"#)
    };
    let mut rows: Vec<_> = (0..4_000).map(|number| row(number, "0.5")).collect();
    let good = format!("{{\"facts\": [{}]}}", rows.join(","));
    let line = "PUT /v1/graphs/numbers/facts";
    let reply = runtime.block_on(api.done(line, &good));
    assert_eq!(reply["upserted"], 4_000);
    rows[3_999] = row(3_999, "null");
    let bad = format!("{{\"facts\": [{}]}}", rows.join(","));
    let answer = runtime.block_on(api.ask(line, &bad));
    let place = "/facts/3999/embedding/1".to_owned();
    assert_eq!(answer.problem(), ("not_finite".to_owned(), place));
    let headers = [("content-type", "application/x-ndjson")];
    let answer = runtime.block_on(api.send(line, &headers, rows[..3_999].join("\n")));
    assert_eq!(answer.json()["replaced"], 3_999);
}
