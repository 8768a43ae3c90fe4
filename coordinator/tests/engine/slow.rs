//! Queries that took long, or that had no answer in time, are remembered.

use super::fake::{Interruption, World};
use super::worlds::*;
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::*;
use hopbine_proto::ShardId;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::status::Code;

#[tokio::test]
async fn a_query_without_an_answer_in_time_is_remembered_and_a_quick_one_is_not() {
    let (world, engine) = numbers().await;
    engine.graph_rag("g", &two_hops(), &CallOptions::default()).await.expect("answered");
    assert_eq!(engine.slow_queries(), []);
    world.interrupt(ShardId(2), Interruption::Hang);
    let options = CallOptions { request_id: Some("mine".into()), ..quick() };
    engine.graph_rag("g", &two_hops(), &options).await.expect_err("no answer");
    let slow = engine.slow_queries();
    assert_eq!(slow.len(), 1);
    assert_eq!((slow[0].graph.as_str(), slow[0].endpoint), ("g", "graph_rag"));
    assert_eq!(slow[0].request_id.as_deref(), Some("mine"));
    assert_eq!((slow[0].code, slow[0].partial), (Some(Code::DeadlineExceeded), false));
    assert!(slow[0].ms >= 55.0 && slow[0].at > 0, "{slow:?}");
    let stages: Vec<&str> = slow[0].stages.iter().map(|stage| stage.stage.as_str()).collect();
    assert_eq!(stages, ["route", "ann"], "the stages that it came through");
}

#[tokio::test]
async fn a_partial_answer_that_took_long_is_remembered_as_one() {
    let world = World::new();
    let engine = world.engine_with(CoordinatorConfig { slow_query_ms: 20, ..Default::default() });
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.shards.boundaries = vec![100];
    engine.create_graph("g", config).await.expect("created");
    let shard = world.shards("g")[1].id;
    world.interrupt(shard, Interruption::Hang);
    let options = CallOptions { allow_partial: true, ..quick() };
    let request = SearchRequest { query: Query::vector([1.0, 0.0]), ..Default::default() };
    engine.search("g", &request, &options).await.expect("a partial answer");
    let slow = engine.slow_queries();
    assert_eq!((slow.len(), slow[0].endpoint), (1, "search"));
    assert_eq!((slow[0].code, slow[0].partial), (None, true));
}

#[tokio::test]
async fn nothing_is_remembered_when_that_is_switched_off() {
    let world = World::new();
    let engine = world.engine_with(CoordinatorConfig { slow_query_ms: 0, ..Default::default() });
    engine.create_graph("g", GraphConfig::new(2, IdKind::U64)).await.expect("created");
    world.interrupt(world.shards("g")[0].id, Interruption::Hang);
    let request = SearchRequest { query: Query::vector([1.0, 0.0]), ..Default::default() };
    engine.search("g", &request, &quick()).await.expect_err("no answer");
    assert_eq!(engine.slow_queries(), []);
}
