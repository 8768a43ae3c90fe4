//! What users get back.

use super::fake::World;
use super::worlds::*;
use hopbine_coordinator::request::*;
use hopbine_proto::FactKey;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::Code;
use serde_json::json;

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
