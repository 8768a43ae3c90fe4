//! Replies to the letter of the contract.

use super::api::Api;
use super::fake::Interruption;
use hopbine_coordinator::server::HttpConfig;
use serde_json::json;

#[tokio::test]
async fn an_answer_has_the_contracts_fields_in_the_contracts_order() {
    let api = Api::filled().await;
    let body = r#"{"query": {"embedding": [1, 0]}, "relation_path": ["discovered", "named_after"],
        "ann_k": 1}"#;
    let answer = api.ask("POST /v1/graphs/people/graph_rag", body).await;
    let token = answer.header("consistency-token").expect("a token").to_owned();
    let expected = concat!(
        r#"{"results":[{"distance":0.4,"#,
        r#""fact":{"entity":"polonium","relation":"named_after","target":"Poland","#,
        r#""payload":"a country"},"path":["#,
        r#"{"entity":"Marie Curie","relation":"discovered","target":"polonium","distance":0.0},"#,
        r#"{"entity":"polonium","relation":"named_after","target":"Poland","distance":0.4}]}],"#,
        r#""partial":false,"coverage":{"shards":2,"answered":2,"missing":[],"hops":["#,
        r#"{"hop":1,"frontier":1,"read":1,"kept":1,"cut":0},"#,
        r#"{"hop":2,"frontier":1,"read":1,"kept":1,"cut":0}]},"#,
        r#""consistency_token":"TOKEN"}"#,
    );
    let expected = expected.replace("TOKEN", &token);
    assert_eq!(answer.body, expected);
    let timing = answer.header("server-timing").expect("stages");
    for stage in ["plan;dur=", "seeds;dur=", "hop1;dur=", "hop2;dur=", "fetch;dur=", "total;dur="] {
        assert!(timing.contains(stage), "{timing}");
    }
}

#[tokio::test]
async fn parts_appear_where_they_are_asked_for() {
    let api = Api::filled().await;
    let body = r#"{"query": {"embedding": [1, 0]}, "relation_path": ["discovered", "named_after"],
        "with": ["vector", "path_payloads", "version"]}"#;
    let reply = api.done("POST /v1/graphs/people/graph_rag", body).await;
    let result = &reply["results"][0];
    assert_eq!(result["fact"]["embedding"], json!([3.0, 4.0]));
    assert!(result["fact"]["version"]["index"].is_u64(), "{result}");
    assert_eq!(result["path"][0]["payload"]["year"], 1898, "{result}");
    assert!(result["path"][0]["version"]["shard"].is_u64(), "{result}");
    assert!(reply["coverage"]["hops"][0]["indexes"][0]["index"].is_u64(), "{reply}");
    let body = r#"{"query": {"embedding": [1, 0]}, "with": []}"#;
    let reply = api.done("POST /v1/graphs/people/search", body).await;
    let keys: Vec<_> = reply["results"][0]["fact"].as_object().expect("a fact").keys().collect();
    assert_eq!(keys, ["entity", "relation", "target"]);
    assert!(reply.get("consistency_token").is_none() && reply["results"][0].get("path").is_none());
}

#[tokio::test]
async fn ids_beyond_2_to_the_53_come_and_go_exactly() {
    let api = Api::filled().await;
    let scan = api.ask("POST /v1/graphs/numbers/facts/scan", r#"{"with": ["vector"]}"#).await;
    let expected = concat!(
        r#"{"facts":[{"entity":7,"relation":1,"target":"18446744073709551615","#,
        r#""embedding":[0.0,1.0]},"#,
        r#"{"entity":"18446744073709551615","relation":2,"target":"9007199254740993"}],"#,
        r#""next_page_token":null}"#,
    );
    assert_eq!(scan.body, expected);
    let line = "GET /v1/graphs/numbers/entities/18446744073709551615";
    let entity = api.done(line, "").await;
    assert_eq!(entity["degrees"], json!([{"relation": 2, "facts": 1}]));
    assert_eq!(entity["facts"][0]["target"], "9007199254740993");
}

#[tokio::test]
async fn writes_count_what_they_did_and_name_what_they_replaced() {
    let api = Api::filled().await;
    let fact = r#"{"entity": 7, "relation": 1, "target": 18446744073709551615}"#;
    let body = format!(r#"{{"facts": [{fact}, {{"entity": 8, "relation": 1, "target": 1}}]}}"#);
    let answer = api.ask("PUT /v1/graphs/numbers/facts?wait=applied", &body).await;
    assert_eq!(answer.body, r#"{"upserted":2,"replaced":1}"#);
    assert!(answer.header("consistency-token").is_some());
    let body = format!(
        r#"{{"upsert": [{fact}], "delete": [{{"entity": 9, "relation": 1, "target": 1}}],
            "with": ["version"]}}"#
    );
    let reply = api.done("POST /v1/graphs/numbers/facts/write", &body).await;
    assert_eq!((&reply["upserted"], &reply["not_found"]), (&json!(1), &json!(1)));
    assert_eq!(reply["replaced_versions"][0]["entity"], 7);
    assert!(reply["replaced_versions"][0]["version"]["index"].is_u64(), "{reply}");
    let body = r#"{"prefix": {"entity": 8}}"#;
    let answer = api.ask("POST /v1/graphs/numbers/facts/delete", body).await;
    assert_eq!(answer.body, r#"{"deleted":1,"not_found":0}"#);
    let count = api.ask("POST /v1/graphs/numbers/facts/count", "{}").await;
    assert_eq!(count.body, r#"{"count":2}"#);
}

#[tokio::test]
async fn a_token_makes_a_read_see_its_write_and_a_foreign_one_is_refused() {
    let api = Api::filled().await;
    let body = r#"{"facts": [{"entity": 1, "relation": 1, "target": 1}]}"#;
    let written = api.ask("PUT /v1/graphs/numbers/facts", body).await;
    let token = written.header("consistency-token").expect("a token");
    let line = "POST /v1/graphs/numbers/facts/count";
    let read = api.send(line, &[("consistency-token", token)], "{}").await;
    assert_eq!(read.body, r#"{"count":3}"#);
    let line = "POST /v1/graphs/people/facts/count";
    let read = api.send(line, &[("consistency-token", token)], "{}").await;
    assert_eq!(read.problem().0, "invalid_request");
}

#[tokio::test]
async fn a_graph_is_made_once_shown_changed_at_its_version_and_dropped_by_name() {
    let api = Api::new();
    let config = r#"{"vector": {"dim": 2}, "shards": {"split_at": "64MiB"}}"#;
    let made = api.ask("PUT /v1/graphs/g", config).await;
    let again = api.ask("PUT /v1/graphs/g", config).await;
    assert_eq!((made.status.as_u16(), again.status.as_u16()), (201, 200));
    assert_eq!(made.body, again.body);
    assert_eq!(made.json()["config"]["shards"]["split_at"], "64MiB");
    let shown = api.ask("GET /v1/graphs/g", "").await;
    let tag = shown.header("etag").expect("a tag");
    let change = r#"{"index": {"ef_search": 128, "recall_target": 0.95}}"#;
    let line = "PATCH /v1/graphs/g";
    let stale = api.send(line, &[("if-match", "\"0-0\"")], change).await;
    assert_eq!((stale.status.as_u16(), stale.problem().0.as_str()), (412, "precondition_failed"));
    let changed = api.send(line, &[("if-match", tag)], change).await;
    assert_eq!(changed.json()["config"]["index"]["ef_search"], 128);
    assert_ne!(changed.header("etag"), Some(tag));
    assert_eq!(api.send(line, &[("if-match", tag)], change).await.status, 412);
    let list = api.done("GET /v1/graphs", "").await;
    assert_eq!(list["graphs"].as_array().map(Vec::len), Some(1));
    let dropped = api.done("DELETE /v1/graphs/g?confirm=g", "").await;
    assert_eq!(dropped, json!({"dropped": "g"}));
    assert_eq!(api.ask("GET /v1/graphs/g", "").await.status, 404);
}

#[tokio::test]
async fn a_graph_that_is_there_says_what_differs_from_the_one_asked_for() {
    let api = Api::filled().await;
    let config = r#"{"vector": {"dim": 3, "metric": "l2"}, "ids": "u64",
        "shards": {"boundaries": [100]}}"#;
    let answer = api.ask("PUT /v1/graphs/numbers", config).await;
    assert_eq!(answer.problem(), ("graph_exists".to_owned(), "/vector/dim".to_owned()));
    let problem = answer.json();
    assert_eq!(problem["errors"][0]["detail"], "the graph has 2, the request 3");
    assert_eq!(problem["errors"][1]["pointer"], "/vector/metric");
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(2));
    let detail = problem["detail"].as_str().expect("a detail");
    let said = "/vector/dim: the graph has 2, the request 3, and 1 more";
    assert!(detail.ends_with(said), "{detail}");
}

#[tokio::test]
async fn a_batch_answers_each_request_by_itself() {
    let api = Api::filled().await;
    let body = r#"{"requests": [{"query": {"embedding": [1, 0]}, "top_k": 1}, {"quer": 1},
        {"query": {"embedding": [1]}}, {"query": {"text": "found"}, "timeout": "1s"}]}"#;
    let reply = api.done("POST /v1/graphs/people/graph_rag/batch", body).await;
    let replies = reply["replies"].as_array().expect("replies");
    assert_eq!(replies[0]["results"][0]["fact"]["entity"], "Marie Curie");
    assert_eq!(replies[1]["code"], "unknown_field");
    assert_eq!(replies[1]["errors"][0]["pointer"], "/quer");
    assert_eq!(replies[2]["code"], "dimension_mismatch");
    assert_eq!(replies.len(), 4);
}

#[tokio::test]
async fn expansion_without_a_question_comes_in_pages_without_distances() {
    let api = Api::filled().await;
    let line = "POST /v1/graphs/people/expand";
    let body = r#"{"from": ["polonium"], "relation_path": ["*"], "page_size": 1}"#;
    let first = api.done(line, body).await;
    let token = first["next_page_token"].as_str().expect("another page");
    assert!(first["results"][0]["distance"].is_null(), "{first}");
    let body = format!("{},\"page_token\":\"{token}\"}}", body.trim_end_matches('}'));
    let second = api.done(line, &body).await;
    assert_ne!(first["results"][0]["fact"], second["results"][0]["fact"]);
    assert!(second["results"].as_array().is_some_and(|list| list.len() == 1), "{second}");
}

#[tokio::test]
async fn operations_answer_in_their_own_formats() {
    let api = Api::with(HttpConfig::default());
    let version = api.done("GET /version", "").await;
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(api.ask("GET /livez", "").await.body, "ok\n");
    assert_eq!(api.ask("GET /readyz?verbose", "").await.body, "ready\n");
    let filled = Api::filled().await;
    filled.ask("POST /v1/graphs/people/search", r#"{"query": {"embedding": [1, 0]}}"#).await;
    let metrics = filled.ask("GET /metrics", "").await;
    for line in [
        "hopbine_http_requests_total{route=\"put_graph\",method=\"PUT\",code=\"ok\"} 2",
        "hopbine_http_requests_total{route=\"search\",method=\"POST\",code=\"ok\"} 1",
        "hopbine_retrieval_stage_seconds_count{stage=\"seeds\"} 1",
        "hopbine_graphs 2",
    ] {
        assert!(metrics.body.lines().any(|found| found == line), "{line} in {}", metrics.body);
    }
    assert!(metrics.body.contains("hopbine_shard_facts{graph=\"numbers\",shard=\""));
    let stats = filled.done("GET /v1/graphs/people/stats?consistency=strong", "").await;
    assert_eq!((&stats["facts"], &stats["graph"]), (&json!(3), &json!("people")));
    let relations = filled.done("GET /v1/graphs/people/relations", "").await;
    assert_eq!(relations["relations"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn sizes_are_read_once_for_all_who_scrape_at_once() {
    let api = Api::filled().await;
    let scrapes = (0..8).map(|_| api.ask("GET /metrics", ""));
    for answer in futures::future::join_all(scrapes).await {
        assert!(answer.body.contains("\nhopbine_graphs 2\n"), "{}", answer.body);
    }
    let calls = api.world.calls();
    let reads = calls.iter().filter(|call| call.starts_with("stats ")).count();
    assert_eq!(reads, 4, "one of each shard of two graphs");
}

#[tokio::test]
async fn a_request_keeps_its_id_or_gets_one_of_its_own() {
    let api = Api::new();
    let id = [("x-request-id", "mine-1"), ("traceparent", "00-0af7-b7ad-01")];
    assert_eq!(api.send("GET /livez", &id, "").await.header("x-request-id"), Some("mine-1"));
    let long = "x".repeat(200);
    let (first, second) = (
        api.send("GET /livez", &[("x-request-id", &long)], "").await,
        api.ask("GET /livez", "").await,
    );
    assert!(first.header("x-request-id").is_some_and(|id| id != long));
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

#[tokio::test]
async fn a_request_is_explained_beside_its_results_or_by_itself() {
    let api = Api::filled().await;
    let question = r#""query": {"embedding": [1, 0]}, "relation_path": ["discovered"]"#;
    let body = format!(r#"{{{question}, "explain": "analyze"}}"#);
    let reply = api.done("POST /v1/graphs/people/graph_rag", &body).await;
    assert_eq!(reply["results"].as_array().map(Vec::len), Some(1));
    let explanation = &reply["explain"];
    let stages = json!(["route", "ann", "expand:1", "merge", "payload"]);
    let plan = json!({"stages": stages, "consistency": "bounded", "fan_out": 2});
    assert_eq!(explanation["plan"], plan);
    assert!(explanation["total_ms"].is_f64() && explanation["warnings"].is_array());
    assert_eq!(explanation["stages"][2]["rows_read"], 1);
    assert_eq!(explanation["nodes"].as_array().map(Vec::len), Some(2));
    let calls = api.world.calls().len();
    let body = format!(
        r#"{{"request": {{{question}, "timeout": "1s"}}, "endpoint": "graph_rag",
            "consistency": "strong"}}"#
    );
    let line = "POST /v1/graphs/people/explain";
    let planned = api.done(line, &body).await;
    assert_eq!(planned["plan"]["consistency"], "strong");
    assert!(planned.get("total_ms").is_none() && planned["stages"][1].get("ms").is_none());
    let asked = api.world.calls().split_off(calls);
    assert!(asked.iter().all(|call| call.starts_with("stats ")), "{asked:?}");
    for (endpoint, request) in [
        ("search", r#"{"query": {"text": "found"}}"#),
        ("expand", r#"{"from": ["polonium"], "relation_path": ["*"]}"#),
        (
            "rerank",
            r#"{"query": {"embedding": [1, 0]}, "paths": [[{"entity": "polonium",
            "relation": "named_after", "target": "Poland"}]]}"#,
        ),
    ] {
        let body =
            format!(r#"{{"endpoint": "{endpoint}", "mode": "analyze", "request": {request}}}"#);
        let told = api.done(line, &body).await;
        assert!(told["total_ms"].is_f64() && told.get("results").is_none(), "{told}");
        let embeds = told["plan"]["stages"][1] == "embed";
        assert_eq!(embeds, endpoint == "search", "{told}");
    }
    for (body, pointer) in [
        (r#"{"request": {"quer": 1}, "endpoint": "search"}"#, "/request/quer"),
        (r#"{"request": {}, "endpoint": "scan"}"#, "/endpoint"),
        (r#"{"endpoint": "search"}"#, "/request"),
    ] {
        assert_eq!(api.ask(line, body).await.problem().1, pointer);
    }
}

#[tokio::test]
async fn queries_without_an_answer_in_time_are_listed_newest_first() {
    let api = Api::filled().await;
    assert_eq!(api.done("GET /v1/slow_queries", "").await, json!({"slow_queries": []}));
    let shard = api.world.shards("people")[0].id;
    let body = r#"{"query": {"embedding": [1, 0]}, "timeout": "30ms"}"#;
    for id in ["first", "second"] {
        api.world.interrupt(shard, Interruption::Hang);
        let line = "POST /v1/graphs/people/search";
        let late = api.send(line, &[("x-request-id", id)], body).await;
        assert_eq!(late.problem().0, "deadline_exceeded");
    }
    let list = api.done("GET /v1/slow_queries", "").await;
    let slow = list["slow_queries"].as_array().expect("a list");
    assert_eq!((slow.len(), &slow[0]["request_id"]), (2, &json!("second")));
    assert_eq!((&slow[1]["graph"], &slow[1]["endpoint"]), (&json!("people"), &json!("search")));
    assert_eq!(
        (&slow[1]["code"], &slow[1]["partial"]),
        (&json!("deadline_exceeded"), &json!(false))
    );
    assert!(slow[1]["ms"].as_f64().is_some_and(|ms| ms > 25.0), "{list}");
    assert!(slow[1]["at"].as_str().is_some_and(|at| at.ends_with('Z')), "{list}");
    assert_eq!(slow[1]["stages"][0]["stage"], "route");
}
