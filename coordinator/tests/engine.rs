//! The engine over a world in memory: what users get back, and how it treats shards that refuse,
//! hang or move.

mod fake;

use fake::{Interruption, World};
use futures::FutureExt;
use hopbine_coordinator::Engine;
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::*;
use hopbine_proto::graph::{EfSearch, Embedder, GraphConfig, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::{CallError, Code, Outcome, Problem};
use hopbine_proto::{Epoch, FactKey, LogIndex, ShardId, limits};
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

fn name(text: &str) -> EntityRef {
    EntityRef::Name(text.into())
}

fn relation(text: &str) -> RelationRef {
    RelationRef::Name(text.into())
}

fn named(entity: &str, by: &str, target: &str) -> KeyRef {
    KeyRef { entity: name(entity), relation: relation(by), target: name(target) }
}

fn key(entity: u64, by: u64, target: u64) -> KeyRef {
    KeyRef {
        entity: EntityRef::Number(entity),
        relation: RelationRef::Number(by),
        target: EntityRef::Number(target),
    }
}

fn fact(key: KeyRef, embedding: Option<&[f32]>, payload: serde_json::Value) -> FactInput {
    let payload = RawValue::from_string(payload.to_string()).expect("JSON");
    FactInput { key, embedding: embedding.map(Into::into), payload: Some(payload) }
}

/// A `names` graph over two shards with Marie Curie's first facts in it.
async fn curie() -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine();
    let mut config = GraphConfig::new(2, IdKind::Names);
    config.shards.initial = 2;
    config.embedder = Embedder::Lexical;
    engine.create_graph("g", config).await.expect("created");
    let facts = vec![
        fact(named("Marie Curie", "discovered", "polonium"), Some(&[1.0, 0.0]), json!({"n": 1})),
        fact(named("Marie Curie", "discovered", "radium"), Some(&[1.0, 1.0]), json!({"n": 2})),
        fact(named("polonium", "named_after", "Poland"), Some(&[0.5, 1.0]), json!({"n": 3})),
        fact(named("radium", "named_after", "ray"), None, json!({"n": 4})),
    ];
    let reply = engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    assert_eq!((reply.upserted, reply.replaced), (4, 0));
    (world, engine)
}

/// A `u64` graph whose shards begin at 0 and 100, with one fact in each.
async fn numbers() -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine();
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.shards.boundaries = vec![100];
    engine.create_graph("g", config).await.expect("created");
    let facts = vec![
        fact(key(1, 1, 100), Some(&[1.0, 0.0]), json!("a")),
        fact(key(100, 1, 2), Some(&[0.0, 1.0]), json!("b")),
    ];
    engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    (world, engine)
}

fn ask(path: &[&str]) -> GraphRagRequest {
    GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        ann_k: 1,
        relation_path: path.iter().map(|r| HopRelations::Of(vec![relation(r)])).collect(),
        ..GraphRagRequest::default()
    }
}

fn two_hops() -> GraphRagRequest {
    GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        ann_k: 1,
        relation_path: vec![HopRelations::Any, HopRelations::Any],
        ..GraphRagRequest::default()
    }
}

fn quick() -> CallOptions {
    CallOptions { timeout: Duration::from_millis(60), ..CallOptions::default() }
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn an_answer_names_its_facts_and_its_whole_path() {
    let (world, engine) = curie().await;
    let mut request = ask(&["discovered", "named_after"]);
    request.with.path_payloads = true;
    request.with.version = true;
    let options = CallOptions::default();
    let reply = is_send(engine.graph_rag("g", &request, &options)).await.expect("answered");
    let best = &reply.results[0];
    assert_eq!(best.fact.key, named("polonium", "named_after", "Poland"));
    assert_eq!(best.fact.payload.as_deref(), Some("{\"n\":3}"));
    assert_eq!(best.path[0].fact.key, named("Marie Curie", "discovered", "polonium"));
    assert_eq!(best.path[0].fact.payload.as_deref(), Some("{\"n\":1}"));
    assert_eq!(best.path[0].distance, Some(0.0));
    assert_eq!(best.path[1].fact.key, best.fact.key);
    assert!(best.fact.version.is_some() && best.path[0].fact.version.is_some());
    assert_eq!(reply.results[1].path[1].distance, Some(1.0), "radium's fact has no embedding");
    assert_eq!((reply.coverage.hops.len(), reply.partial), (2, false));
    assert_eq!(reply.timings.hops_ms.len(), 2);
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn a_text_is_embedded_and_stop_words_alone_are_refused() {
    let (_, engine) = curie().await;
    let search = |text: &str| SearchRequest { query: Query::text(text), ..Default::default() };
    let options = CallOptions::default();
    let reply = engine.search("g", &search("radium"), &options).await.expect("answered");
    assert_eq!(reply.results.len(), 3, "a fact without embedding is no seed");
    assert!(reply.results[0].path.is_empty());
    let refused = engine.search("g", &search("where does the"), &options).await.expect_err("zero");
    assert_eq!(refused.errors[0].pointer, "/query/text");
}

#[tokio::test]
async fn nothing_is_fetched_when_only_ids_are_shown() {
    let (world, engine) = numbers().await;
    let mut request = two_hops();
    request.with = WithParts::default();
    let before = world.calls().len();
    let reply = engine.graph_rag("g", &request, &CallOptions::default()).await.expect("answered");
    assert_eq!(reply.results[0].fact.id, FactKey::new(100, 1, 2));
    assert_eq!(world.calls()[before..], ["seeds 1", "seeds 2", "hop 1", "hop 2"]);
}

type Change = fn(&mut GraphRagRequest);

/// Each change of a good question is refused with its code, at its place.
async fn refuses(code: Code, changes: &[(&str, Change)]) {
    let (_, engine) = curie().await;
    for (pointer, change) in changes {
        let mut request = ask(&["discovered"]);
        change(&mut request);
        let problem = engine.graph_rag("g", &request, &CallOptions::default()).await;
        let problem = problem.expect_err(pointer);
        assert_eq!((problem.code, &*problem.errors[0].pointer), (code, *pointer));
    }
}

#[tokio::test]
async fn a_bad_vector_is_refused_at_its_place() {
    let wrong_length: Change = |r| r.query = Query::vector([1.0]);
    refuses(Code::DimensionMismatch, &[("/query/embedding", wrong_length)]).await;
    refuses(
        Code::NotFinite,
        &[
            ("/query/embedding", |r| r.query = Query::vector([0.0, 0.0])),
            ("/query/embedding/1", |r| r.query = Query::vector([1.0, f32::INFINITY])),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_number_out_of_bounds_is_refused_at_its_place() {
    refuses(
        Code::InvalidRequest,
        &[
            ("/query", |r| r.query = Query::default()),
            ("/query/text", |r| {
                r.query = Query::text("x".repeat(limits::QUERY_TEXT_BYTES_MAX + 1));
            }),
            ("/ann_k", |r| r.ann_k = 0),
            ("/ann_k", |r| r.ann_k = 10_001),
            ("/top_k", |r| r.top_k = u64::MAX),
            ("/beam", |r| r.beam = 100_001),
            ("/limit_rows", |r| r.limit_rows = 0),
            ("/limit_per_entity", |r| r.limit_per_entity = 0),
            ("/seed_weight", |r| r.seed_weight = f64::NAN),
            ("/hop_weights", |r| r.hop_weights = Some(vec![])),
            ("/hop_weights/0", |r| r.hop_weights = Some(vec![f64::INFINITY])),
            ("/ef_search", |r| r.ef_search = Some(EfSearch::Fixed(0))),
            ("/relation_path", |r| r.relation_path = vec![HopRelations::Any; 17]),
            ("/beam", |r| {
                r.beam = 100_000;
                r.relation_path = vec![HopRelations::Any; 16];
            }),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_bad_name_or_filter_is_refused_at_its_place() {
    refuses(
        Code::InvalidRequest,
        &[
            ("/relation_path/0", |r| r.relation_path = vec![HopRelations::Of(vec![])]),
            ("/seed_relations", |r| r.seed_relations = Some(vec![])),
            ("/query/entities/0", |r| r.query.entities = vec![EntityRef::Number(1)]),
            ("/relation_path", |r| {
                r.query.entities = vec![name("a")];
                r.relation_path.clear();
            }),
        ],
    )
    .await;
    refuses(
        Code::RelationNotFound,
        &[
            ("/relation_path/0", |r| {
                r.relation_path = vec![HopRelations::Of(vec![relation("knows")])];
            }),
            ("/relation_path/0/1", |r| {
                let list = vec![relation("discovered"), relation("knows")];
                r.relation_path = vec![HopRelations::Of(list)];
            }),
            ("/filter/must/0/relation/0", |r| {
                r.filter = Some(json!({"must": [{"relation": ["knows"]}]}));
            }),
        ],
    )
    .await;
    let unknown_field: Change = |r| r.filter = Some(json!({"x": 1}));
    refuses(Code::BadFilter, &[("/filter/x", unknown_field)]).await;
}

#[tokio::test]
async fn other_bad_calls_name_their_fault() {
    let (_, engine) = curie().await;
    let missing = engine.graph_rag("h", &two_hops(), &quick()).await.expect_err("no graph");
    assert_eq!(missing.code, Code::GraphNotFound);
    let long = CallOptions { timeout: Duration::from_secs(601), ..CallOptions::default() };
    let refused = engine.graph_rag("g", &two_hops(), &long).await.expect_err("too long");
    assert_eq!(refused.errors[0].pointer, "/timeout");
    let empty = engine.graph_rag_batch("g", &[], &quick()).await.expect_err("an empty batch");
    assert_eq!(empty.errors[0].pointer, "/requests");
    let expand = ExpandRequest { page_size: Some(1), ..ExpandRequest::default() };
    let refused = engine.expand("g", &expand, &quick()).await.expect_err("no start");
    assert_eq!(refused.errors[0].pointer, "/from");
}

#[tokio::test]
async fn a_shard_that_is_not_ready_is_asked_again() {
    let (world, engine) = numbers().await;
    for shard in [ShardId(1), ShardId(2)] {
        world.interrupt(shard, Interruption::Fail(CallError::NotLeader { shard, leader: None }));
        let behind = CallError::Behind { shard, applied: LogIndex(0), needed: LogIndex(1) };
        world.interrupt(shard, Interruption::Fail(behind));
        let stale = CallError::StaleEpoch { shard, sent: Epoch(1), current: Epoch(1) };
        world.interrupt(shard, Interruption::Fail(stale));
    }
    let reply = engine.graph_rag("g", &two_hops(), &CallOptions::default()).await;
    assert_eq!(reply.expect("answered").results[0].fact.id, FactKey::new(100, 1, 2));
    let shard = ShardId(1);
    world.interrupt(shard, Interruption::Fail(CallError::NotLeader { shard, leader: None }));
    let count = engine.count("g", &CountRequest::default(), &CallOptions::default()).await;
    assert_eq!(count.expect("counted").count, 2);
}

#[tokio::test]
async fn a_silent_shard_ends_at_the_deadline_or_in_a_partial_answer() {
    let (world, engine) = numbers().await;
    world.interrupt(ShardId(2), Interruption::Hang);
    let late = engine.graph_rag("g", &two_hops(), &quick()).await.expect_err("no answer");
    assert_eq!(late.code, Code::DeadlineExceeded);
    world.interrupt(ShardId(2), Interruption::Hang);
    let options = CallOptions { allow_partial: true, ..quick() };
    let mut request = two_hops();
    request.relation_path.clear();
    let reply = engine.graph_rag("g", &request, &options).await.expect("a partial answer");
    assert!(reply.partial);
    assert_eq!(reply.coverage.missing, [ShardId(2)]);
    assert_eq!(reply.results[0].fact.payload.as_deref(), Some("\"a\""));
    world.interrupt(ShardId(1), Interruption::Hang);
    let late = engine.count("g", &CountRequest::default(), &quick()).await.expect_err("no answer");
    assert_eq!(late.code, Code::DeadlineExceeded);
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn a_dropped_call_lets_go_of_its_views() {
    let (world, engine) = numbers().await;
    world.interrupt(ShardId(2), Interruption::Hang);
    let request = two_hops();
    let options = CallOptions::default();
    let call = Box::pin(engine.graph_rag("g", &request, &options));
    assert!(call.now_or_never().is_none(), "the second shard is silent");
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn a_refusal_of_a_shard_is_told_as_it_is() {
    let (world, engine) = numbers().await;
    let damaged = || Interruption::Fail(Problem::new(Code::DataDamaged, "bad bytes").into());
    world.interrupt(ShardId(1), damaged());
    let problem = engine.graph_rag("g", &two_hops(), &quick()).await.expect_err("damaged");
    assert_eq!(problem.code, Code::DataDamaged);
    world.interrupt(ShardId(1), damaged());
    let problem = engine.stats("g", &quick()).await.expect_err("damaged");
    assert_eq!(problem.code, Code::DataDamaged);
}

#[tokio::test]
async fn a_call_whose_graph_is_dropped_under_it_says_that_there_is_none() {
    for allow_partial in [false, true] {
        let options = CallOptions { allow_partial, ..CallOptions::default() };
        let (world, engine) = numbers().await;
        world.interrupt(ShardId(1), Interruption::Drop("g"));
        let problem = engine.graph_rag("g", &two_hops(), &options).await.expect_err("dropped");
        assert_eq!(problem.code, Code::GraphNotFound, "{problem}");
        let (world, engine) = numbers().await;
        world.interrupt(ShardId(2), Interruption::Drop("g"));
        let problem = engine.scan("g", &ScanRequest::default(), &options).await;
        assert_eq!(problem.expect_err("dropped").code, Code::GraphNotFound);
    }
    let (world, engine) = numbers().await;
    world.interrupt(ShardId(1), Interruption::Drop("g"));
    let facts = vec![fact(key(1, 1, 1), Some(&[1.0, 0.0]), json!(null))];
    let problem = engine.upsert("g", facts, &WriteOptions::default()).await.expect_err("dropped");
    assert_eq!(problem.code, Code::GraphNotFound);
    // A shard that is only away is another matter.
    let (world, engine) = numbers().await;
    let away = Problem::new(Code::ShardUnavailable, "its node is down");
    world.interrupt(ShardId(1), Interruption::Fail(away.into()));
    let problem = engine.stats("g", &quick()).await.expect_err("away");
    assert_eq!(problem.code, Code::ShardUnavailable);
}

#[tokio::test]
async fn a_token_brings_back_at_least_its_writes() {
    let (world, engine) = numbers().await;
    let written = engine
        .upsert("g", vec![fact(key(1, 1, 7), None, json!(1))], &WriteOptions::default())
        .await
        .expect("written");
    let token = Some(written.consistency_token);
    let options = CallOptions { token: token.clone(), ..quick() };
    assert!(engine.count("g", &CountRequest::default(), &options).await.is_ok());
    // A token of a state that no replica has yet is waited for until the deadline.
    let graph = engine.graph("g").expect("known");
    let ahead = [(ShardId(1), LogIndex(99))].into_iter().collect();
    let token = hopbine_coordinator::token::consistency_token(77, &graph, &ahead);
    let options = CallOptions { token: Some(token), ..quick() };
    let late = engine.count("g", &CountRequest::default(), &options).await.expect_err("behind");
    assert_eq!(late.code, Code::DeadlineExceeded);
    // A graph that was dropped and made again has another past.
    engine.drop_graph("g").await.expect("dropped");
    let config = GraphConfig::new(2, IdKind::U64);
    engine.create_graph("g", config).await.expect("created again");
    let options = CallOptions { token: Some(reply_token(&world).await), ..quick() };
    assert!(engine.count("g", &CountRequest::default(), &options).await.is_ok());
    let stale = CallOptions { token: Some(old_token(&graph)), ..quick() };
    let refused = engine.count("g", &CountRequest::default(), &stale).await.expect_err("old");
    assert_eq!(refused.errors[0].pointer, "/consistency_token");
}

async fn reply_token(world: &Arc<World>) -> String {
    let reply = world.engine().count("g", &CountRequest::default(), &quick()).await;
    reply.expect("counted").consistency_token
}

fn old_token(graph: &hopbine_proto::graph::GraphInfo) -> String {
    hopbine_coordinator::token::consistency_token(77, graph, &Default::default())
}

#[tokio::test]
async fn a_write_tells_what_it_replaced_removed_and_missed() {
    let (_, engine) = curie().await;
    let request = WriteRequest {
        upsert: vec![fact(named("radium", "named_after", "ray"), None, json!(5))],
        delete: vec![
            named("polonium", "named_after", "nobody"),
            named("polonium", "named_after", "Poland"),
            named("polonium", "unheard_of", "Poland"),
        ],
    };
    let options = WriteOptions::default();
    let reply = engine.write("g", request, &options).await.expect("written");
    assert_eq!((reply.upserted, reply.replaced, reply.deleted), (1, 1, 1));
    let missing =
        [named("polonium", "named_after", "nobody"), named("polonium", "unheard_of", "Poland")];
    assert_eq!((reply.not_found, &reply.missing[..]), (2, &missing[..]));
    let replaced: Vec<&KeyRef> = reply.replaced_versions.iter().map(|(key, _)| key).collect();
    assert!(replaced.contains(&&named("radium", "named_after", "ray")));
    assert!(replaced.contains(&&named("polonium", "named_after", "Poland")));
    let prefix = PrefixRef { entity: name("Marie Curie"), relation: None };
    let reply = engine.delete("g", &DeleteRequest::Prefix(prefix), &options).await.expect("gone");
    assert_eq!(reply.deleted, 2);
    let unheard = DeleteRequest::Keys(vec![named("a", "unheard_of", "b")]);
    let reply = engine.delete("g", &unheard, &options).await.expect("nothing to do");
    assert_eq!((reply.deleted, reply.not_found), (0, 1));
    let count = engine.count("g", &CountRequest::default(), &quick()).await.expect("counted");
    assert_eq!(count.count, 1);
}

#[tokio::test]
async fn a_batch_with_a_mixed_fate_lists_every_part() {
    let (world, engine) = numbers().await;
    let batch = || vec![fact(key(1, 1, 1), None, json!(1)), fact(key(100, 1, 1), None, json!(1))];
    let full = Problem::new(Code::Overloaded, "the memtable is full").retry_after_ms(10);
    world.interrupt(ShardId(2), Interruption::Fail(full.into()));
    let options = WriteOptions { timeout: Duration::from_millis(60), ..Default::default() };
    let problem = engine.upsert("g", batch(), &options).await.expect_err("half refused");
    assert_eq!((problem.code, problem.retry_after_ms), (Code::Overloaded, Some(10)));
    let fates: Vec<Outcome> = problem.outcomes.iter().map(|part| part.outcome).collect();
    assert_eq!(fates, [Outcome::Applied, Outcome::Refused]);
    world.interrupt(ShardId(1), Interruption::Hang);
    let problem = engine.upsert("g", batch(), &options).await.expect_err("half unknown");
    assert_eq!(problem.code, Code::OutcomeUnknown);
    let fates: Vec<Outcome> = problem.outcomes.iter().map(|part| part.outcome).collect();
    assert_eq!(fates, [Outcome::Unknown, Outcome::Applied]);
}

#[tokio::test]
async fn a_write_is_repeated_only_when_that_is_safe() {
    let (world, engine) = numbers().await;
    let shard = ShardId(1);
    let not_leader = || Interruption::Fail(CallError::NotLeader { shard, leader: None });
    let unknown = || Interruption::Fail(Problem::new(Code::OutcomeUnknown, "who knows").into());
    let options = WriteOptions::default();
    let batch = || vec![fact(key(1, 1, 1), None, json!(1))];
    world.interrupt(shard, not_leader());
    assert!(engine.upsert("g", batch(), &options).await.is_ok(), "a refusal is safe to repeat");
    world.interrupt(shard, unknown());
    let problem = engine.upsert("g", batch(), &options).await.expect_err("not safe");
    assert_eq!(problem.code, Code::OutcomeUnknown);
    // With a key the shard recognises what it has applied.
    world.interrupt(shard, unknown());
    let keyed = WriteOptions { idempotency_key: Some("once".into()), ..options.clone() };
    let first = engine.upsert("g", batch(), &keyed).await.expect("written");
    let again = engine.upsert("g", batch(), &keyed).await.expect("recognised");
    assert_eq!(first, again);
    let other = vec![fact(key(1, 1, 1), None, json!(2))];
    let conflict = engine.upsert("g", other, &keyed).await.expect_err("another batch");
    assert_eq!(conflict.code, Code::IdempotencyConflict);
    let long = WriteOptions { idempotency_key: Some("x".repeat(257)), ..options };
    let refused = engine.upsert("g", batch(), &long).await.expect_err("too long");
    assert_eq!(refused.errors[0].pointer, "/idempotency_key");
}

#[tokio::test]
async fn calls_follow_a_shard_that_was_split_under_them() {
    let (world, engine) = numbers().await;
    // The engine's first try fails as it would when the map had changed after it was read.
    let stale = CallError::StaleEpoch { shard: ShardId(1), sent: Epoch(1), current: Epoch(2) };
    world.interrupt(ShardId(1), Interruption::Fail(stale.clone()));
    let call = async {
        let options = CallOptions::default();
        engine.graph_rag("g", &two_hops(), &options).await.expect("answered")
    };
    let (reply, ()) = futures::join!(call, async { world.split("g", 1) });
    assert_eq!(reply.results[0].fact.id, FactKey::new(100, 1, 2));
    assert_eq!(world.shards("g").len(), 3);
    let shard = world.shards("g")[1].id;
    world.interrupt(shard, Interruption::Fail(stale));
    let batch = vec![fact(key(1, 1, 9), None, json!(1)), fact(key(50, 1, 9), None, json!(1))];
    let options = WriteOptions::default();
    let write = async { engine.upsert("g", batch, &options).await.expect("written") };
    let (reply, ()) = futures::join!(write, async { world.split("g", 20) });
    assert_eq!((reply.upserted, reply.versions.len()), (2, 2));
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn facts_are_got_scanned_and_counted() {
    let (_, engine) = curie().await;
    let options = CallOptions::default();
    let known = named("polonium", "named_after", "Poland");
    let unknown = named("polonium", "named_after", "Paris");
    let keys = vec![unknown.clone(), known.clone(), known.clone()];
    let request = GetRequest { keys, with: WithParts { vector: true, ..WithParts::PAYLOAD } };
    let reply = engine.get("g", &request, &options).await.expect("got");
    assert_eq!((reply.facts.len(), &reply.not_found[..]), (2, &[unknown][..]));
    assert_eq!(reply.facts[0].key, known);
    assert_eq!(reply.facts[0].embedding.as_deref(), Some(&[0.5, 1.0][..]));
    let mut scan = ScanRequest { page_size: Some(3), ..ScanRequest::default() };
    let first = engine.scan("g", &scan, &options).await.expect("a page");
    scan.page_token = first.next_page_token;
    let second = engine.scan("g", &scan, &options).await.expect("the last page");
    assert_eq!((first.facts.len(), second.facts.len()), (3, 1));
    assert_eq!(second.next_page_token, None);
    let ids: Vec<FactKey> = first.facts.iter().chain(&second.facts).map(|f| f.id).collect();
    assert!(ids.is_sorted());
    scan.filter = Some(json!({"must": [{"key": "n", "range": {"gt": 2}}]}));
    let foreign = engine.scan("g", &scan, &options).await.expect_err("another request's token");
    assert_eq!(foreign.errors[0].pointer, "/page_token");
    let prefix = PrefixRef { entity: name("Marie Curie"), relation: Some(relation("discovered")) };
    let count = CountRequest { prefix: Some(prefix), filter: None };
    assert_eq!(engine.count("g", &count, &options).await.expect("counted").count, 2);
}

#[tokio::test]
async fn keys_alone_are_the_keys_of_the_same_pages() {
    let (_, engine) = curie().await;
    let options = CallOptions::default();
    let mut request = ExpandRequest {
        from: vec![name("Marie Curie"), name("polonium"), name("Warsaw")],
        relation_path: vec![HopRelations::Any],
        page_size: Some(1),
        return_to_start: true,
        ..ExpandRequest::default()
    };
    let mut pages = 0;
    loop {
        let facts = engine.expand("g", &request, &options).await.expect("a page of facts");
        let keys = engine.expand_keys("g", &request, &options).await.expect("a page of keys");
        let expected: Vec<FactKey> = facts.results.iter().map(|result| result.fact.id).collect();
        assert_eq!((keys.keys.len(), &keys.keys), (1, &expected));
        assert_eq!((keys.coverage, keys.partial), (facts.coverage, facts.partial));
        assert_eq!(keys.next_page_token, facts.next_page_token);
        pages += 1;
        request.page_token = keys.next_page_token;
        if request.page_token.is_none() {
            break;
        }
    }
    assert!(pages > 1, "{pages} page");
    request.query = Some(Query::vector([1.0, 0.0]));
    request.page_size = None;
    let refused = engine.expand_keys("g", &request, &options).await.expect_err("a question");
    assert_eq!(refused.errors[0].pointer, "/query");
}

#[tokio::test]
async fn an_entity_shows_its_degrees_and_first_facts() {
    let (_, engine) = curie().await;
    let options = CallOptions::default();
    let reply = engine.entity("g", &name("Marie Curie"), &options).await.expect("known");
    assert_eq!(reply.degrees, [(relation("discovered"), 2)]);
    assert_eq!(reply.facts.len(), 2);
    let missing = engine.entity("g", &name("Poland"), &options).await.expect_err("a target only");
    assert_eq!(missing.code, Code::FactNotFound);
    let relations = engine.relations("g", &options).await.expect("listed");
    let counts: Vec<u64> = relations.iter().map(|line| line.facts).collect();
    assert_eq!(counts, [2, 2]);
    let stats = engine.stats("g", &options).await.expect("known");
    assert_eq!((stats.total.facts, stats.total.vectors, stats.shards.len()), (4, 3, 2));
}

#[tokio::test]
async fn paths_are_reranked_by_their_sum_or_their_end() {
    let (_, engine) = curie().await;
    let options = CallOptions::default();
    let polonium = vec![
        named("Marie Curie", "discovered", "polonium"),
        named("polonium", "named_after", "Poland"),
    ];
    let radium = vec![named("Marie Curie", "discovered", "radium")];
    let mut request = RerankRequest {
        query: Query::vector([1.0, 0.0]),
        paths: vec![polonium, radium],
        score_mode: ScoreMode::Path,
        top_k: 10,
    };
    let reply = engine.rerank("g", &request, &options).await.expect("scored");
    let order: Vec<u64> = reply.results.iter().map(|line| line.index).collect();
    assert_eq!(order, [1, 0]);
    assert_eq!(reply.results[0].distance, 1.0 - 1.0 / 2f64.sqrt());
    request.paths[1].push(named("radium", "named_after", "nobody"));
    let missing = engine.rerank("g", &request, &options).await.expect_err("no such fact");
    assert_eq!(missing.errors[0].pointer, "/paths/1/1");
}

#[tokio::test]
async fn a_batch_answers_each_request_in_its_place() {
    let (_, engine) = numbers().await;
    let bad = GraphRagRequest { top_k: 0, ..two_hops() };
    let requests = [two_hops(), bad, two_hops()];
    let options = CallOptions::default();
    let replies = engine.graph_rag_batch("g", &requests, &options).await.expect("answered");
    let good: Vec<bool> = replies.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, true]);
}

/// A `u64` graph of four shards with a fact of 15 MiB in each.
async fn heavy() -> (Arc<World>, Engine) {
    heavy_with(CoordinatorConfig::default()).await
}

async fn heavy_with(settings: CoordinatorConfig) -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine_with(settings);
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.shards.boundaries = vec![100, 200, 300];
    config.payload_bytes_max = 16 << 20;
    engine.create_graph("g", config).await.expect("created");
    let payload = json!("x".repeat(15 << 20));
    for entity in [1, 100, 200, 300] {
        let facts = vec![fact(key(entity, 1, 1), Some(&[1.0, 0.0]), payload.clone())];
        engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    }
    (world, engine)
}

#[tokio::test]
async fn a_batch_whose_answers_are_too_large_together_is_given_up() {
    let (world, engine) = heavy().await;
    let request = GraphRagRequest { query: Query::vector([1.0, 0.0]), ..Default::default() };
    let options = CallOptions { timeout: Duration::from_secs(60), ..CallOptions::default() };
    let alone = engine.graph_rag("g", &request, &options).await.expect("one answer fits");
    assert_eq!(alone.results.len(), 4);
    let before = world.calls().len();
    let requests = vec![request; 60];
    let refused = engine.graph_rag_batch("g", &requests, &options).await.expect_err("too large");
    assert_eq!(refused.code, Code::PayloadTooLarge);
    // Seeds and rows of four shards each.
    let calls = world.calls().len() - before;
    assert!(calls < 30 * 8, "{calls} calls for sixty requests");
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn all_replies_under_way_share_one_bound() {
    let settings = CoordinatorConfig { replies_bytes_max: 50 << 20, ..Default::default() };
    let (world, engine) = heavy_with(settings).await;
    let options = CallOptions { timeout: Duration::from_secs(60), ..CallOptions::default() };
    let get = |entities: &[u64]| GetRequest {
        keys: entities.iter().map(|entity| key(*entity, 1, 1)).collect(),
        with: WithParts::PAYLOAD,
    };
    let four = get(&[1, 100, 200, 300]);
    let refused = engine.get("g", &four, &options).await.expect_err("60 MiB");
    assert_eq!(refused.code, Code::MemoryLimit);
    assert_eq!(engine.reply_memory().bytes(), 0, "it was given up");
    let (one, three) = (get(&[1]), get(&[1, 100, 200]));
    let held = engine.get("g", &one, &options).await.expect("15 MiB");
    let bytes = engine.reply_memory().bytes();
    assert!((15 << 20..16 << 20).contains(&bytes), "{bytes}");
    let refused = engine.get("g", &three, &options).await.expect_err("60 MiB with the other");
    assert_eq!(refused.code, Code::MemoryLimit);
    // Whatever the call is.
    let nearest = SearchRequest { query: Query::vector([1.0, 0.0]), ..Default::default() };
    let refused = engine.search("g", &nearest, &options).await.expect_err("60 MiB more");
    assert_eq!(refused.code, Code::MemoryLimit);
    let refused = engine.scan("g", &ScanRequest::default(), &options).await;
    assert_eq!(refused.expect_err("45 MiB more").code, Code::MemoryLimit);
    let entity = EntityRef::Number(1);
    let shown = engine.entity("g", &entity, &options).await.expect("15 MiB more");
    drop((held, shown));
    assert_eq!(engine.reply_memory().bytes(), 0);
    engine.get("g", &three, &options).await.expect("45 MiB");
    let top = GraphRagRequest { query: Query::vector([1.0, 0.0]), top_k: 1, ..Default::default() };
    let batch = vec![top; 4];
    let refused = engine.graph_rag_batch("g", &batch, &options).await;
    let refused = refused.expect_err("60 MiB together");
    assert_eq!(refused.code, Code::MemoryLimit);
    assert_eq!(engine.reply_memory().bytes(), 0);
    assert_eq!(world.unreleased(), 0);
}

#[tokio::test]
async fn a_page_asks_no_further_shard_once_it_has_its_bytes() {
    let (world, engine) = heavy().await;
    let options = CallOptions { timeout: Duration::from_secs(60), ..CallOptions::default() };
    let mut request = ScanRequest::default();
    let before = world.calls().len();
    let first = engine.scan("g", &request, &options).await.expect("read");
    let entities = |facts: &[hopbine_coordinator::reply::FactOut]| -> Vec<u64> {
        facts.iter().map(|fact| fact.id.entity.0).collect()
    };
    assert_eq!(entities(&first.facts), [1, 100, 200]);
    assert_eq!(world.calls()[before..], ["scan 1", "scan 2", "scan 3"]);
    request.page_token = first.next_page_token;
    assert!(request.page_token.is_some());
    let second = engine.scan("g", &request, &options).await.expect("read");
    assert_eq!((entities(&second.facts), second.next_page_token), (vec![300], None));
}

#[tokio::test]
async fn graphs_are_made_found_and_dropped() {
    let world = World::new();
    let engine = world.engine();
    let config = GraphConfig::new(2, IdKind::U64);
    let created = engine.create_graph("papers", config.clone()).await.expect("created");
    assert!(created.1);
    assert!(!engine.create_graph("papers", config).await.expect("the same").1);
    let other = engine.create_graph("papers", GraphConfig::new(3, IdKind::U64)).await;
    assert_eq!(other.expect_err("another").code, Code::GraphExists);
    let missing = engine.graph("paper").expect_err("not there");
    assert_eq!(missing.hint.as_deref(), Some("did you mean \"papers\"?"));
    let bad = engine.create_graph("a/b", GraphConfig::new(2, IdKind::U64)).await;
    assert_eq!(bad.expect_err("a bad name").code, Code::InvalidRequest);
    let patch =
        hopbine_coordinator::client::GraphPatch { recall_target: Some(0.9), ..Default::default() };
    let version = created.0.version;
    let patched = engine.patch_graph("papers", version, patch.clone()).await.expect("patched");
    assert_eq!(patched.config.index.recall_target, 0.9);
    let stale = engine.patch_graph("papers", version, patch).await.expect_err("an old version");
    assert_eq!(stale.code, Code::PreconditionFailed);
    assert_eq!(engine.graphs().len(), 1);
    engine.drop_graph("papers").await.expect("dropped");
    assert!(engine.graphs().is_empty());
}
