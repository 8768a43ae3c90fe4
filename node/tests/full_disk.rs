//! A node whose disk is full: dropping a graph is how its user gets space back.

mod common;

use common::{write, write_once};
use hopbine_node::{Node, NodeConfig, Parts};
use hopbine_proto::call::WriteOp;
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::{Fact, FactKey};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOG_SEGMENT: u64 = 64 << 10;
/// Facts of a batch: some 6 KB.
const BATCH: u64 = 20;

async fn open(disk: &SimDisk, dir: &Path) -> Arc<Node> {
    let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
    // Memtables are flushed only when the log has no space: what is full first is the log.
    let config = NodeConfig { log_segment_bytes: LOG_SEGMENT, ..NodeConfig::default() };
    Node::open_on(parts, dir, config).await.expect("opened")
}

/// Facts of the entities from `first` on, with vectors that no compression makes smaller.
fn batch(first: u64) -> Vec<WriteOp> {
    let fact = |entity: u64| {
        let mut state = entity + 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let embedding: Vec<f32> = (0..64).map(|_| next()).collect();
        let key = FactKey::new(entity, 1, 2);
        Fact { key, names: None, embedding: Some(embedding.into()), payload: None }
    };
    (first..first + BATCH).map(|entity| WriteOp::Upsert(fact(entity))).collect()
}

fn problem(error: CallError) -> Problem {
    match error {
        CallError::Problem(problem) => *problem,
        other => panic!("{other}"),
    }
}

/// Writes to `graph` until nothing has been taken for two seconds.
async fn fill(node: &Node, graph: &GraphInfo) {
    let (mut first, mut taken) = (100_000, Instant::now());
    while taken.elapsed() < Duration::from_secs(2) {
        let Err(error) = write_once(node, graph, batch(first)).await else {
            (first, taken) = (first + BATCH, Instant::now());
            assert!(first < 200_000, "the disk is never full");
            continue;
        };
        let refused = problem(error);
        assert_eq!(refused.code, Code::DiskFull, "{refused}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("drop a graph")));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_is_dropped_on_a_full_disk_and_others_have_its_space() {
    let dir = Path::new("/data");
    for restarted in [false, true] {
        let disk = SimDisk::new();
        let mut node = open(&disk, dir).await;
        let create = async |name: &str| {
            let created = node.create(name.into(), GraphConfig::new(64, IdKind::U64)).await;
            created.expect("created").0
        };
        let (big, other) = (create("big").await, create("other").await);
        for number in 0..100 {
            write(&node, &big, batch(number * BATCH), None).await.expect("written");
        }
        write(&node, &other, batch(0), None).await.expect("written");
        node.settle().await.expect("settled");
        let files = disk.files().into_iter();
        let sizes = files.map(|path| disk.len(&path).expect("read").unwrap_or_default());
        disk.set_capacity(Some(sizes.sum::<u64>() + 4 * LOG_SEGMENT));
        fill(&node, &big).await;
        // It is the log, too, that has no space.
        let refused = node.register_relations(other.id, vec!["new".into()]).await;
        let refused = refused.expect_err("it takes space");
        assert_eq!(refused.code, Code::DiskFull, "{refused}");
        assert!(refused.hint.is_some());
        if restarted {
            // Not all that it tries to make durable finds room.
            let _ = node.shutdown().await;
            drop(node);
            node = open(&disk, dir).await;
        }

        node.drop_graph("big".into()).await.expect("dropped");
        assert!(node.graph("big").is_none() && node.graph("other").is_some());
        let folder = dir.join("shards").join(big.shards[0].id.to_string());
        let began = Instant::now();
        while disk.files().iter().any(|path| path.starts_with(&folder)) {
            assert!(began.elapsed() < Duration::from_secs(20), "the folder is still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while let Err(error) = write_once(&node, &other, batch(1_000)).await {
            let refused = problem(error);
            assert_eq!(refused.code, Code::DiskFull, "{refused}");
            assert!(began.elapsed() < Duration::from_secs(20), "there is no space");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(node.failure(), None);
        node.shutdown().await.expect("stopped");
        drop(node);
        let node = open(&disk, dir).await;
        assert!(node.graph("big").is_none());
        write(&node, &other, batch(2_000), None).await.expect("written");
        node.shutdown().await.expect("stopped");
    }
}
