//! Shards that refuse, hang, go or move.

use super::fake::Interruption;
use super::worlds::*;
use futures::FutureExt;
use hopbine_coordinator::request::*;
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::{Epoch, FactKey, LogIndex, ShardId};
use serde_json::json;

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
