//! Answers that are too large together.

use super::fake::Interruption;
use super::worlds::*;
use futures::poll;
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::*;
use hopbine_proto::ShardId;
use hopbine_proto::status::Code;
use std::thread::available_parallelism;
use std::time::Duration;

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
async fn heavy_retrievals_wait_for_their_turn_and_light_ones_do_not() {
    let (world, engine) = numbers().await;
    let heavy = GraphRagRequest { beam: 50_000, ..two_hops() };
    let patient = CallOptions { timeout: Duration::from_secs(60), ..CallOptions::default() };
    let turns = 2 * available_parallelism().map_or(1, usize::from);
    let mut hanging = Vec::new();
    for _ in 0..turns {
        world.interrupt(ShardId(1), Interruption::Hang);
        hanging.push(Box::pin(engine.graph_rag("g", &heavy, &patient)));
        assert!(poll!(hanging.last_mut().expect("the new one")).is_pending());
    }
    let before = world.calls().len();
    // Some 100 ms are expected: too much for 60, and for half a second only what came to be.
    let refused = engine.graph_rag("g", &heavy, &quick()).await.expect_err("no time to wait");
    assert_eq!((refused.code, world.calls().len()), (Code::Overloaded, before));
    let options = CallOptions { timeout: Duration::from_millis(500), ..patient.clone() };
    let late = engine.graph_rag("g", &heavy, &options).await.expect_err("nobody made room");
    assert_eq!((late.code, world.calls().len()), (Code::DeadlineExceeded, before));
    assert!(late.hint.expect("a hint").contains("wait for each other"));
    let light = engine.graph_rag("g", &two_hops(), &patient).await.expect("answered");
    let mut waits = Box::pin(engine.graph_rag("g", &heavy, &patient));
    assert!(poll!(&mut waits).is_pending());
    hanging.pop();
    assert_eq!(waits.await.expect("its turn").results[0].fact.id, light.results[0].fact.id);
    drop(hanging);
    assert_eq!(world.unreleased(), 0);
}
