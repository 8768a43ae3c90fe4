//! Creating, changing and dropping graphs whose callers go away in the middle.

use hopbine_node::{Node, NodeConfig};
use hopbine_proto::call::{Freshness, ReadContext, Relations, SeedMode, SeedRequest};
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::{LogIndex, RequestId};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Polls `call` until `done`, then drops it, as a server does whose client has gone. `false`: the
/// call ended first.
async fn dropped_once<T>(call: impl Future<Output = T>, done: impl Fn() -> bool) -> bool {
    let mut call = pin!(call);
    loop {
        if tokio::time::timeout(Duration::from_micros(20), &mut call).await.is_ok() {
            return false;
        }
        if done() {
            return true;
        }
    }
}

/// Waits until `done`, at most ten seconds.
async fn eventually(done: impl AsyncFn() -> bool) -> bool {
    for _ in 0..1_000 {
        if done().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_whose_creator_goes_away_is_usable() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened");
    let mut dropped = 0;
    for number in 0..8 {
        let name = format!("g{number}");
        let there = || node.graph(&name).is_some();
        let create = node.create(name.clone(), GraphConfig::new(4, IdKind::U64));
        dropped += usize::from(dropped_once(create, there).await);
        let graph = node.graph(&name).expect("in the catalogue");
        let usable = eventually(async || {
            let at = ReadContext {
                graph: graph.id,
                shard: graph.shards[0].id,
                epoch: graph.shards[0].epoch,
                request: RequestId(1),
                freshness: Freshness::Strong,
                min_index: LogIndex(0),
                deadline: node.clock().monotonic() + Duration::from_secs(5),
            };
            let (query, relations, filter) = (vec![1.0; 4].into(), Relations::Any, None);
            let ask = SeedRequest { query, k: 1, relations, filter, mode: SeedMode::Auto };
            node.seeds(at, Arc::new(ask)).await.is_ok()
        });
        assert!(usable.await, "{name} is in the catalogue and not served");
    }
    assert!(dropped > 0, "every call ended before it could be dropped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_whose_dropper_goes_away_gives_its_space_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened");
    for number in 1..=8 {
        node.create("g".into(), GraphConfig::new(4, IdKind::U64)).await.expect("created");
        let folder = dir.path().join(format!("shards/{number}"));
        assert!(folder.exists());
        let gone = || node.graph("g").is_none();
        dropped_once(node.drop_graph("g".into()), gone).await;
        let given_back = eventually(async || !folder.exists()).await;
        assert!(given_back, "the shard of drop {number} is still there");
    }
}
