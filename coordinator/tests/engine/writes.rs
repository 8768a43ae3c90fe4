//! Writes and the tokens that bring them back.

use super::fake::{Interruption, World};
use super::worlds::*;
use hopbine_coordinator::request::*;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::status::{CallError, Code, Outcome, Problem};
use hopbine_proto::{LogIndex, ShardId};
use serde_json::json;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_token_brings_back_at_least_its_writes() {
    let (world, engine) = numbers().await;
    let written = engine
        .upsert("g", vec![fact(key(1, 1, 7), None, json!(1))], &WriteOptions::default())
        .await
        .expect("written");
    let token = Some(written.consistency_token);
    let options = CallOptions { token: token.clone(), ..CallOptions::default() };
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
    let token = Some(reply_token(&world).await);
    let options = CallOptions { token, ..CallOptions::default() };
    assert!(engine.count("g", &CountRequest::default(), &options).await.is_ok());
    let stale = CallOptions { token: Some(old_token(&graph)), ..quick() };
    let refused = engine.count("g", &CountRequest::default(), &stale).await.expect_err("old");
    assert_eq!(refused.errors[0].pointer, "/consistency_token");
}

async fn reply_token(world: &Arc<World>) -> String {
    let options = CallOptions::default();
    let reply = world.engine().count("g", &CountRequest::default(), &options).await;
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
    let options = CallOptions::default();
    let count = engine.count("g", &CountRequest::default(), &options).await.expect("counted");
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

/// What `work` came to, how long it took, and the longest time in which nothing beside it could
/// run.
async fn watched<T>(work: impl Future<Output = T>) -> (T, Duration, Duration) {
    let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut work = pin!(work);
    let outcome = loop {
        let tick = tokio::time::sleep(Duration::from_millis(1));
        let done = tokio::select! {
            outcome = &mut work => Some(outcome),
            () = tick => None,
        };
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if let Some(outcome) = done {
            break outcome;
        }
    };
    (outcome, begun.elapsed(), longest)
}

#[tokio::test]
async fn a_large_batch_leaves_its_thread_to_others() {
    let (world, engine) = numbers().await;
    let payload = json!({"a": [1, 2, 3], "b": {"c": "some words that are read again"}});
    let facts: Vec<FactInput> =
        (0..120_000).rev().map(|i| fact(key(i, 1, 1), None, payload.clone())).collect();
    // What the world in memory does with it is not looked at.
    let full = Problem::new(Code::DiskFull, "there is no space");
    world.interrupt(ShardId(2), Interruption::Fail(full.into()));
    let options = WriteOptions {
        timeout: Duration::from_secs(60),
        idempotency_key: Some("once".into()),
        ..WriteOptions::default()
    };
    let (outcome, took, longest) = watched(engine.upsert("g", facts, &options)).await;
    assert_eq!(outcome.expect_err("half refused").code, Code::DiskFull);
    assert!(longest * 4 < took, "held for {longest:?} of {took:?}");
}
