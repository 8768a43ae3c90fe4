//! The gRPC surface over real connections: every case of the HTTP contract again, streams, limits,
//! health, reflection, and the orderly end.

use super::api::Api;
use super::codes::{Case, FACTS, GRAPHS, RETRIEVAL};
use super::transcode::{Clients, ask};
use axum::body::Body;
use futures::{Stream, StreamExt};
use hopbine_coordinator::server::grpc::router;
use hopbine_coordinator::server::{HttpConfig, Listeners, serve_all};
use hopbine_proto::convert::v1::fact_service_client::FactServiceClient;
use hopbine_proto::convert::v1::upsert_stream_request::Message as Step;
use hopbine_proto::convert::{embedding_bytes, problem, v1};
use hopbine_proto::status::{Code, Problem};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tower::ServiceExt;

/// A surface that answers both over its router and over real connections.
struct Server {
    api: Api,
    channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<()>,
}

impl Server {
    async fn over(api: Api) -> Self {
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (http, grpc) = (bind().await.expect("a port"), bind().await.expect("a port"));
        let address = grpc.local_addr().expect("an address");
        let listeners = Listeners { http, grpc: Some(grpc) };
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(serve_all(listeners, api.surface.clone(), async {
            stopped.await.ok();
        }));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect().await.expect("a connection");
        Self { api, channel, stop: Some(stop), ended }
    }

    async fn filled() -> Self {
        Self::over(Api::filled().await).await
    }

    fn clients(&self) -> Clients {
        Clients::new(self.channel.clone())
    }
}

/// The problem behind a status, whose number must be the code's.
fn told(status: &Status) -> Problem {
    let problem = problem(status).unwrap_or_else(|| panic!("not one of ours: {status:?}"));
    assert_eq!(i32::from(status.code()), problem.code.grpc(), "{status:?}");
    problem
}

/// A reply of the HTTP surface in the form of `transcode`: tokens differ from call to call.
fn comparable(line: &str, mut reply: Value) -> Value {
    if line == "GET /v1/graphs" {
        let graphs = reply["graphs"].as_array().expect("a list").iter();
        return graphs.map(|graph| graph["name"].clone()).collect();
    }
    let tokenless = |reply: &mut Value| {
        if let Some(object) = reply.as_object_mut() {
            object.remove("consistency_token");
        }
    };
    tokenless(&mut reply);
    if let Some(replies) = reply["replies"].as_array_mut() {
        for reply in replies {
            tokenless(reply);
            if reply.get("code").is_some() {
                *reply = json!({"code": reply["code"], "pointer": reply["errors"][0]["pointer"]});
            }
        }
    } else if reply.get("replies").is_some_and(Value::is_null) {
        reply.as_object_mut().expect("an object").remove("replies");
    }
    reply
}

/// Bad requests that no message can say: bodies that are no JSON, fields, words and numbers that
/// the schema does not have, and what HTTP alone asks for.
const HTTP_ALONE: usize = 19;

#[tokio::test]
async fn a_bad_request_is_refused_as_over_http() {
    let server = Server::filled().await;
    let (mut alone, mut both) = (0, 0);
    for case in RETRIEVAL.iter().chain(FACTS).chain(GRAPHS) {
        let (line, body, code, pointer): &Case = case;
        let Some(outcome) = ask(server.clients(), line, body).await else {
            alone += 1;
            continue;
        };
        both += 1;
        let status = outcome.expect_err(line);
        let problem = told(&status);
        let found = problem.errors.first().map_or("", |fault| fault.pointer.as_str());
        assert_eq!((problem.code, found), (*code, *pointer), "{line} {body}: {status:?}");
    }
    assert!(both > alone, "{both} cases over gRPC");
    assert_eq!(alone, HTTP_ALONE, "cases that HTTP alone can say");
    assert_eq!(server.api.world.unreleased(), 0);
}

/// Requests that succeed, in an order that lets them.
const GOOD: &[(&str, &str)] = &[
    ("GET /v1/graphs", ""),
    ("GET /v1/graphs/people", ""),
    ("GET /v1/graphs/numbers", ""),
    (
        "PUT /v1/graphs/numbers",
        r#"{"vector": {"dim": 2}, "ids": "u64", "shards": {"boundaries": [100]}}"#,
    ),
    ("GET /v1/graphs/people/relations", ""),
    ("GET /v1/graphs/people/stats", ""),
    ("GET /v1/graphs/numbers/stats", ""),
    ("GET /v1/graphs/people/entities/polonium", ""),
    ("GET /v1/graphs/numbers/entities/18446744073709551615", ""),
    (
        "POST /v1/graphs/people/graph_rag",
        r#"{"query": {"embedding": [1, 0]}, "relation_path": ["discovered", "named_after"]}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag",
        r#"{"query": {"embedding": [1, 0]}, "relation_path": ["*", ["named_after", "kind_of"]],
            "ann_k": 2, "top_k": 3, "score_mode": "endpoint", "seed_weight": 0.5,
            "hop_weights": [1, 2], "return_to_start": true, "exact_seeds": true, "beam": 7,
            "limit_per_entity": 5, "limit_rows": 100, "consistency": "strong",
            "with": ["vector", "path_payloads", "version", "payload"]}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag",
        r#"{"query": {"entities": ["Marie Curie"], "embedding": [0, 1]}, "relation_path": ["*"],
            "seed_on": "entity", "timeout": "5s", "allow_partial": true}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag",
        r#"{"query": {"text": "country"}, "seed_relations": ["named_after"], "ef_search": 64,
            "filter": {"must_not": [{"key": "year", "range": {"gt": 1900}}]}, "with": []}"#,
    ),
    (
        "POST /v1/graphs/people/graph_rag/batch",
        r#"{"requests": [{"query": {"embedding": [1, 0]}}, {"query": {"embedding": [1]}},
            {"query": {"embedding": [0, 1]}, "relation_path": ["nothing"]}], "timeout": "3s"}"#,
    ),
    ("POST /v1/graphs/people/search", r#"{"query": {"embedding": [3, 4]}, "k": 2}"#),
    (
        "POST /v1/graphs/people/search",
        r#"{"query": {"embedding": [3, 4]}, "relations": ["discovered"], "exact": true,
            "filter": {"must": [{"key": "year", "match": 1898}]}, "with": ["vector"]}"#,
    ),
    (
        "POST /v1/graphs/people/expand",
        r#"{"from": ["Marie Curie"], "relation_path": ["*", "*"], "page_size": 1}"#,
    ),
    (
        "POST /v1/graphs/people/expand",
        r#"{"from": ["Marie Curie"], "relation_path": ["*"], "query": {"embedding": [1, 0]},
            "top_k": 1, "with": ["payload"]}"#,
    ),
    (
        "POST /v1/graphs/people/rerank",
        r#"{"query": {"embedding": [1, 0]}, "paths": [
            [{"entity": "polonium", "relation": "named_after", "target": "Poland"}],
            [{"entity": "Marie Curie", "relation": "discovered", "target": "polonium"}]]}"#,
    ),
    (
        "POST /v1/graphs/people/facts/get",
        r#"{"keys": [{"entity": "polonium", "relation": "named_after", "target": "Poland"},
            {"entity": "a", "relation": "named_after", "target": "b"}],
            "with": ["vector", "payload", "version"]}"#,
    ),
    ("POST /v1/graphs/people/facts/scan", r#"{"page_size": 2, "with": ["vector", "payload"]}"#),
    ("POST /v1/graphs/numbers/facts/scan", r#"{"prefix": {"entity": 7, "relation": 1}}"#),
    ("POST /v1/graphs/people/facts/count", r#"{"filter": {"must": [{"relation": ["kind_of"]}]}}"#),
    ("POST /v1/graphs/numbers/facts/count", "{}"),
];

#[tokio::test]
async fn an_answer_is_that_of_http() {
    let server = Server::filled().await;
    for (line, body) in GOOD {
        let over_http = comparable(line, server.api.done(line, body).await);
        let outcome = ask(server.clients(), line, body).await;
        let outcome = outcome.unwrap_or_else(|| panic!("{line} {body}: not a message"));
        let mut found = outcome.unwrap_or_else(|status| panic!("{line} {body}: {status:?}"));
        if let Some(token) = found.get_mut("next_page_token") {
            // A page's token names its call's state.
            let shown = &over_http["next_page_token"];
            assert_eq!(token.is_null(), shown.is_null(), "{line} {body}");
            *token = shown.clone();
        }
        assert_eq!(found, over_http, "{line} {body}");
    }
    assert_eq!(server.api.world.unreleased(), 0);
}

/// Writes with the same effect on two graphs of the same content, one over each surface.
#[tokio::test]
async fn a_write_does_what_it_does_over_http() {
    let (http, grpc) = (Api::filled().await, Server::filled().await);
    let steps = [
        (
            "PUT /v1/graphs/numbers/facts?wait=applied",
            r#"{"facts": [{"entity": 7, "relation": 1, "target": 18446744073709551615,
                "embedding": [1, 1], "payload": {"a": [1, 2.5, null, "x"]}},
                {"entity": 8, "relation": 1, "target": 1}], "with": ["version"]}"#,
        ),
        (
            "POST /v1/graphs/numbers/facts/write",
            r#"{"upsert": [{"entity": 9, "relation": 3, "target": 1}],
                "delete": [{"entity": 8, "relation": 1, "target": 1},
                           {"entity": 8, "relation": 1, "target": 2}], "with": ["version"]}"#,
        ),
        ("POST /v1/graphs/numbers/facts/delete", r#"{"prefix": {"entity": 9}}"#),
        (
            "POST /v1/graphs/numbers/facts/delete",
            r#"{"keys": [{"entity": 9, "relation": 3, "target": 1}]}"#,
        ),
        (
            "PUT /v1/graphs/new",
            r#"{"vector": {"dim": 4, "metric": "l2", "required": true},
            "index": {"m": 16, "ef_construction": 64, "ef_search": 32, "recall_target": 0.9},
            "payload_index": ["a.b"], "embedder": "lexical-code"}"#,
        ),
        ("DELETE /v1/graphs/new?confirm=new", ""),
        ("POST /v1/graphs/numbers/facts/scan", r#"{"with": ["vector", "payload", "version"]}"#),
    ];
    for (line, body) in steps {
        let shown = comparable(line, http.done(line, body).await);
        let outcome = ask(grpc.clients(), line, body).await.expect("a message");
        assert_eq!(outcome.expect(line), shown, "{line} {body}");
    }
}

#[tokio::test]
async fn a_graph_is_changed_at_its_version_or_at_any() {
    let server = Server::filled().await;
    let mut graphs = server.clients().graphs;
    let patch = |version| v1::PatchGraphRequest {
        graph: "people".into(),
        version,
        ef_search: Some(77),
        ..Default::default()
    };
    let stale = graphs.patch(patch(Some(9))).await.expect_err("another version");
    assert_eq!(told(&stale).code, Code::PreconditionFailed);
    let changed = graphs.patch(patch(Some(1))).await.expect("changed").into_inner();
    let index = changed.config.expect("settings").index.expect("an index");
    assert_eq!((changed.version, index.ef_search), (2, Some(77)));
    let any = v1::PatchGraphRequest { ef_search: Some(0), ..patch(None) };
    let changed = graphs.patch(any).await.expect("changed").into_inner();
    let index = changed.config.expect("settings").index.expect("an index");
    assert_eq!((changed.version, index.ef_search), (3, None));
    let empty = v1::PatchGraphRequest { ef_search: None, ..patch(None) };
    let refused = graphs.patch(empty).await.expect_err("nothing to change");
    assert_eq!(told(&refused).code, Code::InvalidRequest);
}

#[tokio::test]
async fn what_a_shard_refuses_reaches_the_client_as_it_is() {
    use super::fake::Interruption;
    let server = Server::filled().await;
    let shard = server.api.world.shards("numbers")[0].id;
    for code in Code::ALL {
        let refusal = Problem::new(*code, "why").hint("what to do");
        server.api.world.interrupt(shard, Interruption::Fail(refusal.into()));
        let body = r#"{"prefix": {"entity": 7}}"#;
        let line = "POST /v1/graphs/numbers/facts/count";
        let outcome = ask(server.clients(), line, body).await.expect("a message");
        let problem = told(&outcome.expect_err("refused"));
        assert_eq!((problem.code, problem.hint.as_deref()), (*code, Some("what to do")));
        assert_eq!(problem.retry_after_ms.is_some(), code.retryable(), "{code}");
    }
}

#[tokio::test]
async fn a_calls_own_deadline_counts() {
    use super::fake::Interruption;
    let server = Server::filled().await;
    server.api.world.interrupt(server.api.world.shards("numbers")[0].id, Interruption::Hang);
    let count = v1::CountRequest {
        graph: "numbers".into(),
        prefix: Some(v1::Prefix { entity: Some(number(7)), relation: None }),
        ..Default::default()
    };
    let mut request = Request::new(count);
    request.metadata_mut().insert("grpc-timeout", "30m".parse().expect("metadata"));
    // The library's client would give up by itself: this one waits for the server's word.
    let service = router(&server.api.surface)
        .map_request(|request: axum::http::Request<tonic::body::Body>| request.map(Body::new));
    let late = FactServiceClient::new(service).count(request).await.expect_err("it hangs");
    assert_eq!(told(&late).code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn tokens_and_ids_travel_as_metadata() {
    let server = Server::filled().await;
    let mut facts = server.clients().facts;
    let write = upsert(vec![fact(1), fact(2)]);
    let mut request = Request::new(write.clone());
    request.metadata_mut().insert("x-request-id", "mine-1".parse().expect("metadata"));
    request.metadata_mut().insert("idempotency-key", "k1".parse().expect("metadata"));
    let reply = facts.upsert(request).await.expect("written");
    assert_eq!(reply.metadata().get("x-request-id").expect("echoed"), "mine-1");
    let token = reply.metadata().get("consistency-token").expect("a token").clone();
    assert_eq!(token, reply.get_ref().consistency_token.as_str());
    let mut request = Request::new(write);
    request.metadata_mut().insert("idempotency-key", "k1".parse().expect("metadata"));
    let again = facts.upsert(request).await.expect("known").into_inner();
    assert_eq!((again.upserted, again.replaced), (2, 0), "applied once");
    let count = v1::CountRequest { graph: "people".into(), ..Default::default() };
    let mut request = Request::new(count);
    request.metadata_mut().insert("consistency-token", token);
    let foreign = facts.count(request).await.expect_err("of another graph");
    let problem = told(&foreign);
    assert_eq!((problem.code, problem.errors.len()), (Code::InvalidRequest, 0));
    assert!(problem.detail.starts_with("metadata consistency-token: "), "{}", problem.detail);
    let options =
        Some(v1::ReadOptions { consistency_token: Some("nonsense".into()), ..Default::default() });
    let count = v1::CountRequest { graph: "people".into(), options, ..Default::default() };
    let refused = facts.count(count).await.expect_err("no token of ours");
    assert_eq!(told(&refused).errors[0].pointer, "/consistency_token");
    let mut request = Request::new(upsert(vec![fact(1)]));
    let long = "k".repeat(257).parse().expect("metadata");
    request.metadata_mut().insert("idempotency-key", long);
    let problem = told(&facts.upsert(request).await.expect_err("a long key"));
    assert_eq!((problem.code, problem.errors.len()), (Code::InvalidRequest, 0));
    assert!(problem.detail.starts_with("metadata idempotency-key: "), "{}", problem.detail);
}

fn number(number: u64) -> v1::Id {
    v1::Id { id: Some(v1::id::Id::Number(number)) }
}

fn fact(entity: u64) -> v1::Fact {
    v1::Fact {
        entity: Some(number(entity)),
        relation: Some(number(1)),
        target: Some(number(1)),
        embedding: Some(embedding_bytes(&[1.0, entity as f32]).into()),
        payload: Some(format!("{{\"n\": {entity}}}")),
        version: None,
    }
}

fn upsert(facts: Vec<v1::Fact>) -> v1::UpsertRequest {
    v1::UpsertRequest { graph: "numbers".into(), facts, options: None }
}

fn open(stream: &str) -> v1::UpsertStreamRequest {
    let open =
        v1::OpenStream { graph: "numbers".into(), stream: stream.into(), ..Default::default() };
    v1::UpsertStreamRequest { message: Some(Step::Open(open)) }
}

/// The facts `10 * sequence` to `10 * sequence + 4`.
fn chunk(sequence: u64) -> v1::UpsertStreamRequest {
    let facts = (0..5).map(|n| fact(1_000 + 10 * sequence + n)).collect();
    v1::UpsertStreamRequest { message: Some(Step::Chunk(v1::Chunk { sequence, facts })) }
}

/// Messages that are sent one by one.
fn fed() -> (mpsc::Sender<v1::UpsertStreamRequest>, impl Stream<Item = v1::UpsertStreamRequest>) {
    let (send, messages) = mpsc::channel(1);
    let messages = futures::stream::unfold(messages, |mut messages| async {
        messages.recv().await.map(|message| (message, messages))
    });
    (send, messages)
}

async fn count(server: &Server) -> u64 {
    let request = v1::CountRequest { graph: "numbers".into(), ..Default::default() };
    server.clients().facts.count(request).await.expect("a count").into_inner().count
}

#[tokio::test]
async fn a_load_is_acknowledged_chunk_by_chunk_and_goes_on_where_it_broke_off() {
    let server = Server::filled().await;
    let before = count(&server).await;
    let mut facts = server.clients().facts;
    let (send, messages) = fed();
    send.send(open("load")).await.expect("room");
    let mut acks = facts.upsert_stream(messages).await.expect("open").into_inner();
    for sequence in 1..=3 {
        send.send(chunk(sequence)).await.expect("room");
        let ack = acks.message().await.expect("a reply").expect("an acknowledgement");
        assert_eq!((ack.sequence, ack.upserted, ack.replaced), (sequence, 5, 0));
        assert!(!ack.consistency_token.is_empty());
        assert_eq!(count(&server).await, before + 5 * sequence, "written once told");
    }
    // The connection is gone; the client does not know of chunk 3 and begins there again.
    drop((acks, send));
    let again = futures::stream::iter([open("load"), chunk(3), chunk(4)]);
    let acks = facts.upsert_stream(again).await.expect("open").into_inner();
    let acks: Vec<_> = acks.map(|ack| ack.expect("written")).collect().await;
    let told: Vec<_> = acks.iter().map(|ack| (ack.sequence, ack.upserted, ack.replaced)).collect();
    assert_eq!(told, [(3, 5, 0), (4, 5, 0)], "chunk 3 has the counts of its first try");
    assert_eq!(count(&server).await, before + 20);
}

/// What a stream of these messages ends with, and the acknowledgements before that.
async fn ends(server: &Server, messages: Vec<v1::UpsertStreamRequest>) -> (Vec<u64>, Status) {
    let mut facts = server.clients().facts;
    let mut acks = match facts.upsert_stream(futures::stream::iter(messages)).await {
        Ok(acks) => acks.into_inner(),
        Err(status) => return (Vec::new(), status),
    };
    let mut sequences = Vec::new();
    loop {
        match acks.message().await {
            Ok(ack) => sequences.push(ack.expect("it ends with an error").sequence),
            Err(status) => return (sequences, status),
        }
    }
}

#[tokio::test]
async fn a_chunk_that_is_refused_ends_its_load_and_is_named() {
    let server = Server::filled().await;
    let before = count(&server).await;
    let mut bad = chunk(2);
    if let Some(Step::Chunk(chunk)) = &mut bad.message {
        chunk.facts[3].embedding = Some(embedding_bytes(&[1.0]).into());
    }
    let (acks, status) = ends(&server, vec![open("a"), chunk(1), bad, chunk(3)]).await;
    let problem = told(&status);
    assert_eq!((acks, problem.code), (vec![1], Code::DimensionMismatch));
    assert_eq!(problem.errors[0].pointer, "/facts/3/embedding");
    use tonic_types::StatusExt;
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.metadata["sequence"], "2");
    assert_eq!(count(&server).await, before + 5, "nothing of it and nothing after it");
    let other = chunk(9);
    let conflicting = match other.message {
        Some(Step::Chunk(chunk)) => v1::Chunk { sequence: 1, ..chunk },
        _ => unreachable!("a chunk"),
    };
    let conflicting = v1::UpsertStreamRequest { message: Some(Step::Chunk(conflicting)) };
    for (messages, code) in [
        (vec![open("a"), conflicting], Code::IdempotencyConflict),
        (vec![chunk(1)], Code::InvalidRequest),
        (vec![open(""), chunk(1)], Code::InvalidRequest),
        (vec![open(&"x".repeat(129)), chunk(1)], Code::InvalidRequest),
        (vec![open("b"), chunk(0)], Code::InvalidRequest),
        (vec![open("c"), open("c")], Code::InvalidRequest),
        (vec![v1::UpsertStreamRequest { message: None }], Code::InvalidRequest),
    ] {
        let shown = format!("{messages:?}");
        let (acks, status) = ends(&server, messages).await;
        assert_eq!((acks, told(&status).code), (vec![], code), "{shown}");
    }
    let (acks, status) = ends(&server, vec![open("d"), chunk(5), chunk(7)]).await;
    assert_eq!((acks, told(&status).code), (vec![5], Code::InvalidRequest), "a gap");
    let nowhere =
        v1::OpenStream { graph: "nothing".into(), stream: "e".into(), ..Default::default() };
    let nowhere = v1::UpsertStreamRequest { message: Some(Step::Open(nowhere)) };
    let (_, status) = ends(&server, vec![nowhere]).await;
    assert_eq!(told(&status).code, Code::GraphNotFound);
}

#[tokio::test]
async fn messages_of_more_than_4_mib_are_refused_with_what_to_do() {
    let server = Server::filled().await;
    let large = |bytes: usize| {
        let payload = Some(format!("\"{}\"", "x".repeat(bytes)));
        v1::Fact { payload, ..fact(1) }
    };
    let mut facts = server.clients().facts;
    let refused = facts.upsert(upsert(vec![large(5 << 20)])).await.expect_err("too large");
    let problem = told(&refused);
    assert_eq!(problem.code, Code::PayloadTooLarge, "{refused:?}");
    assert!(problem.hint.expect("what to do").contains("UpsertStream"));
    let chunk = v1::Chunk { sequence: 1, facts: vec![large(5 << 20)] };
    let chunk = v1::UpsertStreamRequest { message: Some(Step::Chunk(chunk)) };
    let (_, status) = ends(&server, vec![open("large"), chunk]).await;
    assert_eq!(told(&status).code, Code::PayloadTooLarge);
    // A hundred facts of 60,000 bytes: no one message holds them.
    let many: Vec<_> =
        (0..100).map(|n| v1::Fact { entity: Some(number(5_000 + n)), ..large(60_000) }).collect();
    for part in many.chunks(50) {
        facts.upsert(upsert(part.to_vec())).await.expect("written");
    }
    let scan = v1::ScanRequest { graph: "numbers".into(), ..Default::default() };
    let pages = facts.scan(scan).await.expect("open").into_inner();
    let pages: Vec<_> = pages.map(|page| page.expect("a page")).collect().await;
    assert!(pages.len() > 1, "{} messages", pages.len());
    assert_eq!(pages.iter().map(|page| page.facts.len()).sum::<usize>(), 102);
    let keys = many.iter().map(|fact| v1::FactKey {
        entity: fact.entity.clone(),
        relation: fact.relation.clone(),
        target: fact.target.clone(),
    });
    let get =
        v1::GetRequest { graph: "numbers".into(), keys: keys.collect(), ..Default::default() };
    let refused = facts.get(get.clone()).await.expect_err("too large");
    let problem = told(&refused);
    assert_eq!(problem.code, Code::PayloadTooLarge);
    assert!(problem.hint.expect("what to do").contains("hopbine-max-reply-bytes"));
    let mut request = Request::new(get);
    let bound = "16000000".parse().expect("metadata");
    request.metadata_mut().insert("hopbine-max-reply-bytes", bound);
    let mut roomy = facts.max_decoding_message_size(16_000_000);
    assert_eq!(roomy.get(request).await.expect("it fits").into_inner().facts.len(), 100);
}

#[tokio::test]
async fn a_message_that_is_none_and_a_method_that_is_none_are_told() {
    let server = Server::filled().await;
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<Vec<u8>, v1::CountReply>::default();
    // Bytes where the schema has a message.
    let path = "/hopbine.v1.FactService/Count".parse().expect("a path");
    let request = Request::new(b"\xff\xff\xff".to_vec());
    let status = client.unary(request, path, codec).await.expect_err("no message");
    assert_eq!(told(&status).code, Code::InvalidRequest);
    client.ready().await.expect("connected");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = "/hopbine.v1.FactService/Nothing".parse().expect("a path");
    let status = client.unary(Request::new(()), path, codec).await.expect_err("no method");
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}

#[tokio::test]
async fn a_full_server_asks_to_come_back_and_health_passes() {
    let full = Api::with(HttpConfig { requests_max: 0, ..HttpConfig::default() });
    let server = Server::over(full).await;
    let status = server.clients().graphs.list(v1::ListGraphsRequest {}).await.expect_err("full");
    let problem = told(&status);
    assert_eq!(problem.code, Code::Overloaded);
    assert!(problem.retry_after_ms.is_some());
    let mut health = HealthClient::new(server.channel.clone());
    let ready = health.check(HealthCheckRequest { service: String::new() }).await;
    assert_eq!(ready.expect("an answer").into_inner().status(), ServingStatus::Serving);
    let tight = HttpConfig { body_bytes_max: 3, ..HttpConfig::default() };
    let server = Server::over(Api::with(tight)).await;
    let get = v1::GetGraphRequest { graph: "a longer name".into() };
    let status = server.clients().graphs.get(get.clone()).await.expect_err("no room");
    assert_eq!(told(&status).code, Code::Overloaded);
    let narrow = HttpConfig { requests_bytes_max: 9, ..HttpConfig::default() };
    let server = Server::over(Api::with(narrow)).await;
    let status = server.clients().graphs.get(get).await.expect_err("no memory");
    assert_eq!(told(&status).code, Code::MemoryLimit);
    // Two bytes a fact become a few hundred.
    let narrow = HttpConfig { requests_bytes_max: 1 << 20, ..HttpConfig::default() };
    let api = Api::with(narrow);
    api.done("PUT /v1/graphs/numbers", r#"{"vector": {"dim": 2}, "ids": "u64"}"#).await;
    let server = Server::over(api).await;
    let empty = upsert(vec![v1::Fact::default(); 4_000]);
    let status = server.clients().facts.upsert(empty).await.expect_err("no memory");
    assert_eq!(told(&status).code, Code::MemoryLimit);
}

#[tokio::test]
async fn a_place_that_http_does_not_have_is_named_as_the_message_has_it() {
    let server = Server::filled().await;
    let parts = Some(v1::Parts { path_payloads: true, ..Default::default() });
    let get = v1::GetRequest { graph: "people".into(), parts, ..Default::default() };
    let refused = server.clients().facts.get(get).await.expect_err("no paths here");
    assert_eq!(told(&refused).errors[0].pointer, "/parts/path_payloads");
    let create = v1::CreateGraphRequest {
        graph: "new".into(),
        config: Some(v1::GraphConfig {
            vector: Some(v1::VectorConfig { dim: 2, metric: 9, required: false }),
            ..Default::default()
        }),
    };
    let refused = server.clients().graphs.create(create).await.expect_err("no such metric");
    assert_eq!(told(&refused).errors[0].pointer, "/vector/metric");
}

#[tokio::test]
async fn health_and_reflection_tell_what_there_is() {
    let server = Server::filled().await;
    let mut health = HealthClient::new(server.channel.clone());
    for service in ["", "hopbine.v1.FactService", "hopbine.v1.RetrievalService"] {
        // The reporter may be on its way.
        let status = loop {
            let request = HealthCheckRequest { service: service.to_owned() };
            match health.check(request).await {
                Ok(reply) => break reply.into_inner().status(),
                Err(status) => assert_eq!(status.code(), tonic::Code::NotFound),
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let mut reflection = ServerReflectionClient::new(server.channel.clone());
    let ask =
        |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("hopbine.v1.FactService".into())),
    ];
    let replies = reflection.server_reflection_info(futures::stream::iter(requests)).await;
    let replies = replies.expect("a stream").into_inner();
    let replies: Vec<_> =
        replies.map(|reply| reply.expect("a reply").message_response).collect().await;
    let Some(MessageResponse::ListServicesResponse(list)) = &replies[0] else {
        panic!("{:?}", replies[0]);
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["hopbine.v1.GraphService", "hopbine.v1.FactService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{name} among {names:?}");
    }
    assert!(matches!(&replies[1], Some(MessageResponse::FileDescriptorResponse(_))));
}

#[tokio::test]
async fn at_its_end_the_server_finishes_calls_and_ends_loads() {
    let mut server = Server::filled().await;
    let mut facts = server.clients().facts;
    let (send, messages) = fed();
    send.send(open("load")).await.expect("room");
    let mut acks = facts.upsert_stream(messages).await.expect("open").into_inner();
    send.send(chunk(1)).await.expect("room");
    assert_eq!(acks.message().await.expect("a reply").expect("an ack").sequence, 1);
    server.stop.take().expect("once").send(()).expect("it runs");
    let status = acks.message().await.expect_err("it is told to go");
    assert_eq!(told(&status).code, Code::ShuttingDown);
    drop((acks, send, facts));
    drop(std::mem::replace(
        &mut server.channel,
        Channel::from_static("http://[::1]:1").connect_lazy(),
    ));
    let ended = tokio::time::timeout(Duration::from_secs(20), &mut server.ended).await;
    ended.expect("it ends").expect("without a panic");
}

#[tokio::test]
async fn a_client_that_reads_nothing_of_a_reply_loses_its_connection() {
    let patience = Duration::from_millis(300);
    let config = HttpConfig { write_timeout: patience, ..HttpConfig::default() };
    let api = Api::with(config);
    api.done("PUT /v1/graphs/numbers", r#"{"vector": {"dim": 2}, "ids": "u64"}"#).await;
    let server = Server::over(api).await;
    let mut facts = server.clients().facts;
    let payload = || Some(format!("\"{}\"", "x".repeat(60_000)));
    let large = |n| v1::Fact { entity: Some(number(n)), payload: payload(), ..fact(1) };
    facts.upsert(upsert((0..60).map(large).collect())).await.expect("written");
    let scan = v1::ScanRequest { graph: "numbers".into(), ..Default::default() };
    let mut pages = facts.scan(scan).await.expect("open").into_inner();
    let held = async || server.api.reply_bytes().await;
    // Nothing is read; what waits for the reader is let go of.
    let begun = std::time::Instant::now();
    assert!(held().await > 0, "the page waits for its reader");
    while held().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "still held");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut read = 0;
    let broken = loop {
        match pages.message().await {
            Ok(Some(page)) => read += page.facts.len(),
            Ok(None) => break None,
            Err(status) => break Some(status),
        }
    };
    assert!(broken.is_some(), "all {read} facts came");
}
