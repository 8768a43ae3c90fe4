//! A node whose disk is full: dropping a graph is how its user gets space back.

mod common;

use common::{read_at, write, write_once};
use hopbine_node::{Node, NodeConfig, Parts};
use hopbine_proto::call::WriteOp;
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::{Fact, FactKey, KeyRange};
use std::io::ErrorKind;
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
        disk.set_capacity(Some(used(&disk) + 4 * LOG_SEGMENT));
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

fn used(disk: &SimDisk) -> u64 {
    let files = disk.files().into_iter();
    files.map(|path| disk.len(&path).expect("read").unwrap_or_default()).sum()
}

/// Creates `name` once there is space for it, and writes to it.
async fn use_graph(node: &Arc<Node>, name: &str) {
    let began = Instant::now();
    let graph = loop {
        match node.create(name.into(), GraphConfig::new(64, IdKind::U64)).await {
            Ok((graph, _)) => break graph,
            Err(refused) => assert_eq!(refused.code, Code::DiskFull, "{refused}"),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "there is no space");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    while let Err(error) = write_once(node, &graph, batch(0)).await {
        let refused = problem(error);
        assert_eq!(refused.code, Code::DiskFull, "{refused}");
        assert!(began.elapsed() < Duration::from_secs(20), "there is no space");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A node whose graph `old` holds sealed facts.
async fn with_old(disk: &SimDisk, dir: &Path) -> Arc<Node> {
    let node = open(disk, dir).await;
    let old = node.create("old".into(), GraphConfig::new(64, IdKind::U64)).await;
    for number in 0..10 {
        write(&node, &old.as_ref().expect("created").0, batch(number * BATCH), None)
            .await
            .expect("written");
    }
    node.settle().await.expect("settled");
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_finds_no_space_leaves_nothing_behind() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let node = with_old(&disk, dir).await;
    // The log has room in its segment, a new shard has none on the disk.
    disk.set_capacity(Some(used(&disk)));
    let refused = node.create("new".into(), GraphConfig::new(64, IdKind::U64)).await;
    let refused = refused.expect_err("no space");
    assert_eq!(refused.code, Code::DiskFull, "{refused}");
    assert!(node.graph("new").is_none() && node.graph("old").is_some());
    let _ = node.shutdown().await;
    drop(node);
    let node = open(&disk, dir).await;
    node.drop_graph("old".into()).await.expect("dropped");
    use_graph(&node, "new").await;
    node.shutdown().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_half_made_before_the_disk_was_full_keeps_no_node_from_starting() {
    let dir = Path::new("/data");
    let mut half_made = 0;
    for point in 0.. {
        let disk = SimDisk::new();
        let node = with_old(&disk, dir).await;
        disk.fail_from(disk.sync_points() + point);
        let created = node.create("new".into(), GraphConfig::new(64, IdKind::U64)).await;
        drop(node);
        disk.crash(Tear::Lost);
        disk.set_capacity(Some(used(&disk)));
        let node = open(&disk, dir).await;
        half_made += usize::from(created.is_err() && node.graph("new").is_some());
        node.drop_graph("old".into()).await.expect("dropped");
        use_graph(&node, "new").await;
        node.shutdown().await.expect("stopped");
        if created.is_ok() {
            break;
        }
        assert!(point < 100, "it is never created");
    }
    assert!(half_made > 0, "no crash fell between log and shard");
}

/// A graph of 64 shards, one an entity.
fn many_shards() -> GraphConfig {
    let mut config = GraphConfig::new(64, IdKind::U64);
    config.shards.boundaries = (1..64).collect();
    config
}

/// One fact for each shard of such a graph.
fn one_each() -> impl Iterator<Item = Vec<WriteOp>> {
    (0..64).step_by(BATCH as usize).flat_map(batch).take(64).map(|op| vec![op])
}

/// Why `/readyz` would say no to the shards.
fn shards_failed(node: &Node) -> Option<String> {
    node.health().into_iter().find(|check| check.name == "shards").expect("it is looked at").failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_for_which_space_ends_half_way_is_taken_back_whole() {
    let dir = Path::new("/data");
    let mut refusals = 0;
    for room in (0..).step_by(400) {
        let disk = SimDisk::new();
        let node = with_old(&disk, dir).await;
        let old = node.graph("old").expect("there").shards[0].id.to_string();
        let old = dir.join("shards").join(old);
        disk.set_capacity(Some(used(&disk) + room));
        let created = node.create("new".into(), many_shards()).await;
        if let Err(refused) = &created {
            assert_eq!(refused.code, Code::DiskFull, "{room}: {refused}");
            assert!(node.graph("new").is_none(), "{room}");
            assert_eq!(shards_failed(&node), None, "{room}");
            let mut shards = disk.files();
            shards.retain(|path| path.starts_with(dir.join("shards")) && !path.starts_with(&old));
            assert!(shards.is_empty(), "{room}: {shards:?}");
            disk.set_capacity(None);
            // The log may look for space a moment later.
            let began = Instant::now();
            while node.create("new".into(), many_shards()).await.is_err() {
                assert!(began.elapsed() < Duration::from_secs(20), "{room}: there is no space");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            refusals += 1;
        }
        disk.set_capacity(None);
        let graph = node.graph("new").expect("created");
        for op in one_each() {
            write(&node, &graph, op, None).await.expect("written");
        }
        node.shutdown().await.expect("stopped");
        if created.is_ok() {
            break;
        }
        assert!(room < 200_000, "it is never created");
    }
    assert!(refusals > 3, "{refusals} of them never began or were done at once");
}

/// Four clients create one graph while its space comes and goes, and write to it as soon as they
/// were told of it: whoever was told has it, and finds what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_that_somebody_was_told_of_is_not_taken_back() {
    let dir = Path::new("/data");
    for room in (0..12_000).step_by(3_000) {
        let disk = SimDisk::new();
        let node = with_old(&disk, dir).await;
        disk.set_capacity(Some(used(&disk) + room));
        let clients = (0..4).map(|client| {
            let node = node.clone();
            tokio::spawn(async move {
                let began = Instant::now();
                let (told, _) = loop {
                    match node.create("new".into(), many_shards()).await {
                        Ok(created) => break created,
                        Err(refused) => assert_eq!(refused.code, Code::DiskFull, "{refused}"),
                    }
                    assert!(began.elapsed() < Duration::from_secs(20), "there is no space");
                    tokio::time::sleep(Duration::from_millis(client)).await;
                };
                for op in one_each() {
                    // There may be no space for it yet; then nothing was written.
                    while let Err(refused) = write(&node, &told, op.clone(), None).await {
                        let full = matches!(&refused, CallError::Problem(problem)
                            if problem.code == Code::DiskFull);
                        assert!(full && began.elapsed() < Duration::from_secs(20), "{refused:?}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                told.id
            })
        });
        let clients: Vec<_> = clients.collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        disk.set_capacity(None);
        for client in clients {
            let told = client.await.expect("served");
            assert_eq!(node.graph("new").expect("there").id, told);
        }
        node.shutdown().await.expect("stopped");
    }
}

/// The power goes between the log and the shards, and the next start finds no space for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_without_its_shards_is_unready_until_there_is_space_and_asks_for_nothing_more() {
    let dir = Path::new("/data");
    for point in 0..100 {
        let disk = SimDisk::new();
        let node = with_old(&disk, dir).await;
        disk.fail_from(disk.sync_points() + point);
        let created = node.create("new".into(), many_shards()).await;
        drop(node);
        disk.crash(Tear::Lost);
        disk.set_capacity(Some(used(&disk)));
        let node = open(&disk, dir).await;
        let Some(graph) = node.graph("new").filter(|_| created.is_err()) else {
            assert_eq!(shards_failed(&node), None, "{point}");
            node.shutdown().await.expect("stopped");
            continue;
        };
        let failed = shards_failed(&node).expect("some of them are missing");
        assert!(failed.contains("graph new") && failed.contains("of 64 shards"), "{failed}");
        // It is tried, and fails, and is tried again.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(shards_failed(&node).is_some());
        disk.set_capacity(None);
        let began = Instant::now();
        while let Some(failed) = shards_failed(&node) {
            assert!(began.elapsed() < Duration::from_secs(20), "{failed}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for op in one_each() {
            write(&node, &graph, op, None).await.expect("written");
        }
        node.shutdown().await.expect("stopped");
        return;
    }
    panic!("no crash fell between log and shards");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_on_a_full_disk_is_none_that_failed_and_loses_nothing() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let node = with_old(&disk, dir).await;
    let (new, _) = node.create("new".into(), many_shards()).await.expect("created");
    for op in one_each() {
        write(&node, &new, op, None).await.expect("written");
    }
    disk.set_capacity(Some(used(&disk)));
    node.shutdown().await.expect("it is in the log");
    drop(node);

    // The power may go, too.
    disk.crash(Tear::Lost);
    for capacity in [Some(used(&disk)), None] {
        disk.set_capacity(capacity);
        let node = open(&disk, dir).await;
        let kept = node.graph("new").expect("created");
        assert_eq!(kept, new);
        for op in one_each() {
            let entity = op[0].entity();
            let at = read_at(&node, &new, entity.0, entity.0.into());
            let found = node.count(at, KeyRange::entity(entity), None).await.expect("read");
            assert_eq!(found.count, 1, "{entity}");
        }
        node.shutdown().await.expect("stopped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_whose_disk_fails_otherwise_has_failed() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let node = with_old(&disk, dir).await;
    node.create("new".into(), many_shards()).await.expect("created");
    disk.set_write_error(Some(ErrorKind::PermissionDenied));
    node.shutdown().await.expect_err("the catalogue is not saved");
}
