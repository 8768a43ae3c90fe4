//! Creating, changing and dropping graphs whose callers go away in the middle.

mod common;

use common::{read_at, write_once};
use hopbine_node::{Node, NodeConfig};
use hopbine_proto::call::{Relations, SeedMode, SeedRequest, WriteOp};
use hopbine_proto::graph::{GraphConfig, IdKind, IndexConfig};
use hopbine_proto::{Fact, FactKey};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
            let at = read_at(&node, &graph, 0, 1);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_of_many_shards_goes_quickly_and_its_name_is_free_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened");
    let mut many = GraphConfig::new(4, IdKind::Names);
    many.shards.initial = 128;
    let (old, _) = node.create("g".into(), many.clone()).await.expect("created");
    let began = Instant::now();
    node.drop_graph("g".into()).await.expect("dropped");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "dropping 128 shards took {took:?}");
    let (new, fresh) = node.create("g".into(), many).await.expect("created again");
    assert!(fresh && new.id != old.id);
    let folders = || std::fs::read_dir(dir.path().join("shards")).expect("listed").count();
    assert!(eventually(async || folders() == 128).await, "{} folders", folders());
    node.shutdown().await.expect("stopped");
    drop(node);
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened again");
    assert_eq!(node.graph("g").map(|graph| graph.shards.clone()), Some(new.shards.clone()));
    assert_eq!(folders(), 128);
    node.shutdown().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_graph_is_created_or_dropped_leaves_a_folder_that_opens() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut many = GraphConfig::new(4, IdKind::Names);
    many.shards.initial = 32;
    for number in 0..6 {
        let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opens");
        let there = node.graph("g").is_some();
        let shaping = async {
            if there {
                let _ = node.drop_graph("g".into()).await;
            } else {
                let _ = node.create("g".into(), many.clone()).await;
            }
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(3 * number)).await;
            node.shutdown().await.expect("stopped");
        };
        tokio::join!(shaping, stop);
    }
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opens");
    let shards = node.graph("g").map_or(0, |graph| graph.shards.len());
    let folders = std::fs::read_dir(dir.path().join("shards")).expect("listed").count();
    assert_eq!(folders, shards);
    node.shutdown().await.expect("stopped");
}

/// A fact whose vector resembles no other.
fn fact(entity: u64) -> Fact {
    let mut state = entity + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let embedding: Vec<f32> = (0..64).map(|_| next()).collect();
    let (names, payload) = (None, None);
    Fact { key: FactKey::new(entity, 1, 2), names, embedding: Some(embedding.into()), payload }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_dropped_while_it_is_sealed_takes_nothing_else_with_it() {
    let dir = tempfile::tempdir().expect("a folder");
    // Sealing so many rows takes much longer than a drop waits.
    let config = NodeConfig { memtable_bytes_max: 8 << 20, ..NodeConfig::default() };
    let node = Node::open(dir.path(), config).await.expect("opened");
    let slow = GraphConfig {
        index: IndexConfig { ef_construction: 800, m: 48, ..IndexConfig::default() },
        ..GraphConfig::new(64, IdKind::U64)
    };
    let (sealed, _) = node.create("sealed".into(), slow).await.expect("created");
    let (other, _) =
        node.create("other".into(), GraphConfig::new(64, IdKind::U64)).await.expect("created");
    let folder = dir.path().join("shards").join(sealed.shards[0].id.to_string());
    let sealing = || {
        let files = std::fs::read_dir(&folder).expect("listed").flatten();
        files.map(|file| file.file_name()).any(|name| name.to_string_lossy().contains("segment"))
    };
    let mut rows = 0;
    while !sealing() {
        assert!(rows < 100_000, "nothing is sealed");
        let ops = (rows..rows + 500).map(|entity| WriteOp::Upsert(fact(entity))).collect();
        write_once(&node, &sealed, ops).await.expect("written");
        rows += 500;
    }
    assert!(rows > 8_192, "{rows} rows get no graph");
    node.drop_graph("sealed".into()).await.expect("dropped");
    assert!(eventually(async || !folder.exists()).await, "the folder stays");
    assert_eq!(node.failure(), None);
    let ops = vec![WriteOp::Upsert(fact(1))];
    write_once(&node, &other, ops).await.expect("the other graph works");
    node.settle().await.expect("settled");
    assert_eq!(node.failure(), None);
    node.shutdown().await.expect("stopped");
}
