//! A shard that meets damage stops alone.

mod common;

use hopbine_node::{Node, NodeConfig, Parts};
use hopbine_proto::call::WriteOp;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::status::{CallError, Code};
use hopbine_proto::{Fact, FactKey};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn write(node: &Node, graph: &GraphInfo, entities: &[u64]) -> Result<(), CallError> {
    let fact = |entity: &u64| {
        let key = FactKey::new(*entity, 1, 2);
        WriteOp::Upsert(Fact { key, names: None, embedding: None, payload: None })
    };
    common::write_once(node, graph, entities.iter().map(fact).collect()).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_meets_damage_stops_its_shard_and_nothing_else() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let open = async || {
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        Node::open_on(parts, dir, NodeConfig::default()).await.expect("opened")
    };
    let node = open().await;
    let create = async |name: &str| {
        let created = node.create(name.into(), GraphConfig::new(4, IdKind::U64)).await;
        created.expect("created").0
    };
    let (bad, good) = (create("bad").await, create("good").await);
    let all: Vec<u64> = (0..30_000).collect();
    for graph in [&bad, &good] {
        for entities in all.chunks(3_000) {
            write(&node, graph, entities).await.expect("written");
        }
    }
    node.shutdown().await.expect("stopped");
    // Without vectors a segment is keys for the most part, which a start reads nothing of.
    let folder = dir.join("shards").join(bad.shards[0].id.to_string());
    let segments = disk.files().into_iter().filter(|path| {
        path.starts_with(&folder) && path.extension().is_some_and(|end| end == "segment")
    });
    let tampered: Vec<_> = segments
        .inspect(|path| {
            disk.tamper(path, |bytes| {
                let at = bytes.len() / 4;
                bytes[at] ^= 1;
            });
        })
        .collect();
    assert!(!tampered.is_empty());

    let node = open().await;
    let mut refused = None;
    for entity in (0..30_000).step_by(500) {
        if let Err(error) = write(&node, &bad, &[entity]).await {
            refused = Some(error);
            break;
        }
    }
    let code = |error: CallError| match error {
        CallError::Problem(problem) => problem.code,
        other => panic!("{other}"),
    };
    // It is in the log, and nobody knows whether it can ever be applied.
    assert_eq!(refused.map(code), Some(Code::OutcomeUnknown));
    assert!(node.health().iter().any(|check| check.name == "shards" && check.failed.is_some()));
    for _ in 0..2 {
        assert_eq!(write(&node, &bad, &[1]).await.map_err(code), Err(Code::DataDamaged));
    }
    write(&node, &good, &all[..3_000]).await.expect("the other shard goes on");
    let failed: Vec<_> = node.health().into_iter().filter(|check| check.failed.is_some()).collect();
    assert!(failed.iter().all(|check| check.name == "shards") && !failed.is_empty());
    let stop = async |node: Arc<Node>| {
        let stopped = tokio::time::timeout(Duration::from_secs(15), node.shutdown()).await;
        stopped.expect("in time").expect("stopped");
    };
    stop(node).await;

    // A start meets it again, in what it applies of the log, and says so.
    let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
    let refused = Node::open_on(parts, dir, NodeConfig::default()).await.err();
    let reason = refused.expect("not whole").to_string();
    assert!(reason.contains("segment 1 is damaged in its fact blocks"), "{reason}");
}
