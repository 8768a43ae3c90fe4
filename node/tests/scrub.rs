//! The background check of what lies on disk.

mod common;

use hopbine_node::{Node, NodeConfig};
use hopbine_proto::call::WriteOp;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::{Fact, FactKey};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn fact(entity: u64) -> Fact {
    let embedding = (0..64).map(|axis| ((entity * 64 + axis) as f32).sin()).collect::<Vec<f32>>();
    let (names, payload) = (None, None);
    Fact { key: FactKey::new(entity, 1, 2), names, embedding: Some(embedding.into()), payload }
}

/// Writes a hundred facts, as soon as there is room for them.
async fn write(node: &Node, graph: &GraphInfo, first: u64) {
    let ops = (first..first + 100).map(|id| WriteOp::Upsert(fact(id))).collect();
    common::write(node, graph, ops, None).await.expect("written");
}

/// Flips a bit of every segment of a shard.
fn damage(folder: &Path) {
    let mut damaged = 0;
    for entry in std::fs::read_dir(folder).expect("listed") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|end| end == "segment") {
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&path);
            let file = file.expect("opened");
            let at = file.metadata().expect("its length").len() * 4 / 5;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("read");
            file.write_all_at(&[byte[0] ^ 1], at).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "no segment in {}", folder.display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_found_though_one_flush_follows_the_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let memtable_bytes_max = 64 << 10;
    let config = NodeConfig { memtable_bytes_max, scrub_pause_ms: 1, ..NodeConfig::default() };
    let node = Node::open(dir.path(), config).await.expect("opened");
    let create = |name: &str| node.create(name.into(), GraphConfig::new(64, IdKind::U64));
    let (still, _) = create("still").await.expect("created");
    let (busy, _) = create("busy").await.expect("created");
    for round in 0..3 {
        write(&node, &still, round * 100).await;
    }
    node.settle().await.expect("settled");
    damage(&dir.path().join("shards").join(still.shards[0].id.to_string()));
    let noticed = || {
        let checks = node.health();
        checks.iter().any(|check| check.name == "shards" && check.failed.is_some())
    };
    let (began, mut first) = (Instant::now(), 0);
    while !noticed() {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody looked");
        write(&node, &busy, first).await;
        first = (first + 100) % 2_000;
    }
    node.shutdown().await.expect("stopped");
}
