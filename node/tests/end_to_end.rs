//! One node over a real folder and over a simulated disk: what was acknowledged is there after
//! every kind of stop.

mod common;

use common::{read_at, write};
use hopbine_node::{Node, NodeConfig, NodeError, Parts, check_folder};
use hopbine_proto::call::{
    Arrival, FetchRequest, FrontierEntity, HopOutput, HopRequest, Idempotency, Relations, SeedMode,
    SeedRequest, With, WriteOp,
};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{GraphConfig, GraphInfo, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::status::{CallError, Code};
use hopbine_proto::{EntityId, Fact, FactKey, RequestId};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn config() -> NodeConfig {
    let memtable_bytes_max = 64 << 10;
    NodeConfig { memtable_bytes_max, log_segment_bytes: 256 << 10, ..NodeConfig::default() }
}

fn graph_config(boundaries: &[u64]) -> GraphConfig {
    let mut config = GraphConfig::new(4, IdKind::U64);
    config.shards.boundaries = boundaries.to_vec();
    config
}

fn fact(entity: u64, target: u64, serial: u64) -> Fact {
    let angle = (entity * 31 + target) as f32;
    let embedding = vec![angle.sin(), angle.cos(), 0.5, 0.25];
    Fact {
        key: FactKey::new(entity, 1, target),
        names: None,
        embedding: Some(embedding.into()),
        payload: Some(format!("{{\"serial\":{serial}}}").into()),
    }
}

async fn payloads(node: &Node, graph: &GraphInfo, keys: &[FactKey]) -> Vec<Option<String>> {
    let mut found = Vec::new();
    for key in keys {
        let at = read_at(node, graph, key.entity.0, 1);
        let with = With { payload: true, vector: false };
        let ask = FetchRequest { keys: vec![*key], with, query: None };
        let reply = node.fetch(at, ask).await.expect("fetched");
        node.release(RequestId(1));
        let row = reply.rows.into_iter().next().flatten();
        found.push(row.and_then(|row| row.fact.payload).map(|text| text.to_string()));
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_has_its_graphs_its_facts_and_its_answers() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), config()).await.expect("opened");
    let (graph, fresh) = node.create("g".into(), graph_config(&[100])).await.expect("created");
    assert!(fresh && graph.shards.len() == 2);
    for entity in (0..2_000).step_by(10) {
        let ops = (0..10).map(|target| WriteOp::Upsert(fact(entity, target, entity))).collect();
        let reply = write(&node, &graph, ops, None).await.expect("written");
        assert_eq!((reply.upserted, reply.replaced), (10, 0));
    }
    let locked = Node::open(dir.path(), config()).await;
    assert!(matches!(locked, Err(NodeError::Locked { .. })));
    let cluster = node.cluster_id();
    node.shutdown().await.expect("stopped");
    drop(node);

    let disk: Arc<dyn hopbine_proto::disk::Disk> = Arc::new(hopbine_proto::disk::OsDisk);
    let report = check_folder(&disk, dir.path()).expect("checked");
    assert_eq!((report.graphs, report.shards, report.findings), (1, 2, vec![]));
    assert_eq!(report.rows, 2_000);

    let node = Node::open(dir.path(), config()).await.expect("opened again");
    assert_eq!(node.cluster_id(), cluster);
    let graph = node.graph("g").expect("the graph is there");
    let keys = [FactKey::new(0, 1, 3), FactKey::new(1_990, 1, 9), FactKey::new(5, 1, 5)];
    let found = payloads(&node, &graph, &keys).await;
    assert_eq!(found, [Some("{\"serial\":0}".into()), Some("{\"serial\":1990}".into()), None]);

    let query: Arc<[f32]> = fact(500, 4, 0).embedding.expect("has one");
    let ask = SeedRequest {
        query: query.clone(),
        k: 1,
        relations: Relations::Any,
        filter: None,
        mode: SeedMode::Auto,
    };
    let at = read_at(&node, &graph, 500, 2);
    let seeds = node.seeds(at.clone(), Arc::new(ask)).await.expect("searched").seeds;
    assert_eq!(seeds[0].key, FactKey::new(500, 1, 4));
    let arrival = Arrival { start: EntityId(500), prefix: 0.0, tie: 0 };
    let hop = HopRequest {
        frontier: vec![FrontierEntity { entity: EntityId(500), arrivals: vec![arrival].into() }],
        relations: Relations::Any,
        query: Some(query),
        weight: 1.0,
        filter: None,
        limit_per_entity: 10,
        limit_rows: 100,
        return_to_start: false,
        output: HopOutput::Facts { top_k: 1, score: ScoreMode::Path },
    };
    let facts = node.hop(at, hop).await.expect("walked").facts;
    assert_eq!(facts[0].key, FactKey::new(500, 1, 4));
    node.release(RequestId(2));
    node.shutdown().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_under_its_key_applies_once_even_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), config()).await.expect("opened");
    let (graph, _) = node.create("g".into(), graph_config(&[])).await.expect("created");
    let key = Some(Idempotency { key: 7, batch: 1 });
    let ops = vec![WriteOp::Upsert(fact(1, 2, 1))];
    let first = write(&node, &graph, ops.clone(), key).await.expect("written");
    write(&node, &graph, vec![WriteOp::Delete(FactKey::new(1, 1, 2))], None).await.expect("gone");
    node.shutdown().await.expect("stopped");
    drop(node);
    let node = Node::open(dir.path(), config()).await.expect("opened");
    let again = write(&node, &graph, ops.clone(), key).await.expect("answered");
    assert_eq!(first, again);
    assert_eq!(payloads(&node, &graph, &[FactKey::new(1, 1, 2)]).await, [None]);
    let other = Some(Idempotency { key: 7, batch: 2 });
    match write(&node, &graph, ops, other).await {
        Err(CallError::Problem(problem)) => assert_eq!(problem.code, Code::IdempotencyConflict),
        other => panic!("expected a conflict, got {other:?}"),
    }
    node.shutdown().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_graph_leaves_no_folder_and_no_answer() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), config()).await.expect("opened");
    let (graph, _) = node.create("g".into(), graph_config(&[])).await.expect("created");
    write(&node, &graph, vec![WriteOp::Upsert(fact(1, 2, 1))], None).await.expect("written");
    node.drop_graph("g".into()).await.expect("dropped");
    assert!(node.graph("g").is_none());
    let at = read_at(&node, &graph, 1, 3);
    assert!(node.stats(at).await.is_err());
    let left: Vec<_> = std::fs::read_dir(dir.path().join("shards")).expect("listed").collect();
    assert!(left.is_empty());
    let (again, fresh) = node.create("g".into(), graph_config(&[])).await.expect("created");
    assert!(fresh && again.id != graph.id);
    assert_eq!(payloads(&node, &again, &[FactKey::new(1, 1, 2)]).await, [None]);
    node.shutdown().await.expect("stopped");
}

/// Writes, loses the power at a sync point, opens what is left, and checks what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_moment_of_a_power_loss_acknowledged_writes_are_there() {
    let dir = Path::new("/data");
    for (number, tear) in [Tear::Lost, Tear::HalfOfFirst, Tear::Kept].into_iter().enumerate() {
        for point in (0..120).step_by(4) {
            let disk = SimDisk::new();
            disk.fail_from(point + number as u64);
            let acknowledged = write_until_failure(&disk, dir).await;
            disk.crash(tear);
            no_damage(&disk, dir, &format!("at point {point} after {tear:?}"));
            let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
            let node = Node::open_on(parts, dir, config()).await.expect("what is left opens");
            let Some(graph) = node.graph("g") else {
                assert!(acknowledged.is_empty(), "the graph of acknowledged facts is gone");
                continue;
            };
            for (key, serial) in acknowledged {
                let expected = serial.map(|serial| format!("{{\"serial\":{serial}}}"));
                let found = payloads(&node, &graph, &[key]).await;
                assert_eq!(found, [expected], "{key:?} at point {point} after {tear:?}");
            }
            node.shutdown().await.expect("stopped");
        }
    }
}

/// Returns the last acknowledged state of every key: its serial, or `None` when deleted.
async fn write_until_failure(disk: &SimDisk, dir: &Path) -> Vec<(FactKey, Option<u64>)> {
    let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
    let Ok(node) = Node::open_on(parts, dir, config()).await else {
        return Vec::new();
    };
    let mut acknowledged = std::collections::BTreeMap::new();
    if let Ok((graph, _)) = node.create("g".into(), graph_config(&[])).await {
        for serial in 0..60u64 {
            let entity = serial % 7;
            let mut ops: Vec<WriteOp> =
                (0..20).map(|target| WriteOp::Upsert(fact(entity, target, serial))).collect();
            ops.push(WriteOp::Delete(FactKey::new(entity, 1, 100)));
            if serial % 3 == 2 {
                ops = (0..10).map(|t| WriteOp::Delete(FactKey::new(entity, 1, t))).collect();
            }
            if write(&node, &graph, ops.clone(), None).await.is_err() {
                // The batch in flight may be there or not: its keys are not checked.
                ops.iter().for_each(|op| forget(op, &mut acknowledged));
                break;
            }
            ops.iter().for_each(|op| note(op, serial, &mut acknowledged));
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(5), node.shutdown()).await;
    acknowledged.into_iter().collect()
}

type State = std::collections::BTreeMap<FactKey, Option<u64>>;

fn note(op: &WriteOp, serial: u64, state: &mut State) {
    match op {
        WriteOp::Upsert(fact) => state.insert(fact.key, Some(serial)),
        WriteOp::Delete(key) => state.insert(*key, None),
        WriteOp::DeletePrefix { .. } => unreachable!("not written here"),
    };
}

fn forget(op: &WriteOp, state: &mut State) {
    match op {
        WriteOp::Upsert(fact) => state.remove(&fact.key),
        WriteOp::Delete(key) => state.remove(key),
        WriteOp::DeletePrefix { .. } => unreachable!("not written here"),
    };
}

/// The offline check of what a crash left finds nothing that a start would not put right.
fn no_damage(disk: &SimDisk, dir: &Path, when: &str) {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    match check_folder(&disk, dir) {
        Ok(report) => assert_eq!(report.findings, [], "{when}"),
        // Before anything was acknowledged there may be no folder of ours yet.
        Err(error) => assert!(matches!(error, NodeError::Foreign { .. }), "{when}: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_while_graphs_come_and_go_is_no_damage() {
    let dir = Path::new("/data");
    let (mut point, mut done) = (0, false);
    while !done {
        let (disk, mut acknowledged) = (SimDisk::new(), None);
        disk.fail_from(point);
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        if let Ok(node) = Node::open_on(parts, dir, config()).await {
            for round in 0..2 {
                let name = || "g".to_owned();
                if node.create(name(), graph_config(&[100, 200])).await.is_ok()
                    && let Some(graph) = node.graph("g")
                {
                    let ops = vec![WriteOp::Upsert(fact(1, 2, graph.id.0))];
                    if write(&node, &graph, ops, None).await.is_ok() {
                        acknowledged = Some(graph.id);
                    }
                }
                done = round == 1 && node.drop_graph(name()).await.is_ok();
                if round == 0 {
                    let _ = node.drop_graph(name()).await;
                }
            }
        }
        disk.crash(Tear::HalfOfFirst);
        no_damage(&disk, dir, &format!("at point {point}"));
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        let node = Node::open_on(parts, dir, config()).await.expect("what is left opens");
        let mut shards = Vec::new();
        if let Some(graph) = node.graph("g") {
            // Its own fact, never that of the graph which had the name before.
            let found = payloads(&node, &graph, &[FactKey::new(1, 1, 2)]).await;
            let own = Some(format!("{{\"serial\":{}}}", graph.id));
            let may_be_lost = acknowledged != Some(graph.id) && found == [None];
            assert!(may_be_lost || found == [own], "{found:?} at point {point}");
            shards = graph.shards.iter().map(|shard| shard.id.to_string()).collect();
        }
        assert_eq!(disk.list(&dir.join("shards")).expect("listed"), shards, "at point {point}");
        node.shutdown().await.expect("stopped");
        point += 1;
        assert!(point < 2_000, "the rounds never got through");
    }
    assert!(point > 20, "{point} points are too few");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_shard_does_not_hold_up_a_stop() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let open = async || {
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        let config = NodeConfig { memtable_bytes_max: 4 << 20, ..config() };
        Node::open_on(parts, dir, config).await.expect("opened")
    };
    let node = open().await;
    let (graph, _) = node.create("g".into(), graph_config(&[])).await.expect("created");
    for entity in (0..3_000).step_by(10) {
        let ops = (0..10).map(|target| WriteOp::Upsert(fact(entity, target, entity))).collect();
        write(&node, &graph, ops, None).await.expect("written");
    }
    node.shutdown().await.expect("stopped");
    for path in disk.files() {
        if path.extension().is_some_and(|end| end == "segment") {
            // Most of it are codes, which no start reads.
            disk.tamper(&path, |bytes| {
                let at = bytes.len() * 4 / 5;
                bytes[at] ^= 1;
            });
        }
    }
    let node = open().await;
    write(&node, &graph, vec![WriteOp::Upsert(fact(1, 2, 3))], None).await.expect("written");
    let query = vec![1.0; 4].into();
    let (relations, filter) = (Relations::Any, None);
    let ask = SeedRequest { query, k: 5, relations, filter, mode: SeedMode::Auto };
    let found = node.seeds(read_at(&node, &graph, 1, 1), Arc::new(ask)).await;
    assert!(found.is_err_and(|error| error.to_string().contains("damaged")));
    let stopped = tokio::time::timeout(Duration::from_secs(15), node.shutdown()).await;
    stopped.expect("in time").expect("stopped");
}

/// Takes something away from a data folder.
type Loss = (&'static str, fn(&SimDisk, &Path));

const LOSSES: [Loss; 8] = [
    ("the node's number", |disk, dir| disk.remove(&dir.join("node-id")).expect("removed")),
    ("the right number", |disk, dir| disk.tamper(&dir.join("node-id"), |text| text[0] ^= 1)),
    ("a manifest", |disk, dir| disk.remove(&dir.join("shards/1/MANIFEST")).expect("removed")),
    ("a shard", |disk, dir| disk.remove_dir(&dir.join("shards/1")).expect("removed")),
    ("the log", |disk, dir| disk.remove_dir(&dir.join("raft")).expect("removed")),
    ("the log's records", |disk, dir| {
        for path in disk.files().iter().filter(|path| path.starts_with(dir.join("raft"))) {
            disk.tamper(path, |bytes| bytes.truncate(64));
        }
    }),
    ("log and catalogue", |disk, dir| {
        disk.remove_dir(&dir.join("raft")).expect("removed");
        // A short-lived node may not have saved its catalogue yet.
        let _ = disk.remove_dir(&dir.join("catalogue"));
    }),
    ("log, catalogue and shards", |disk, dir| {
        for folder in ["raft", "catalogue", "shards"] {
            disk.remove_dir(&dir.join(folder)).expect("removed");
        }
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_all_it_had_is_not_taken_for_a_new_one() {
    let dir = Path::new("/data");
    for left in [false, true] {
        let disk = SimDisk::new();
        let open = || {
            let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
            Node::open_on(parts, dir, config())
        };
        let node = open().await.expect("opened");
        node.shutdown().await.expect("stopped");
        drop(node);
        no_damage(&disk, dir, "while all is there");
        for folder in ["raft", "catalogue", "shards"] {
            disk.remove_dir(&dir.join(folder)).expect("removed");
        }
        if left {
            disk.replace(&dir.join("shards/notes/today"), b"not ours").expect("written");
        }
        for time in ["first", "second"] {
            let checked: Arc<dyn Disk> = Arc::new(disk.clone());
            let report = check_folder(&checked, dir).expect("checked");
            assert!(!report.findings.is_empty(), "the {time} check finds nothing");
            let refused = open().await.err();
            let damaged = matches!(refused, Some(NodeError::Damaged { .. }));
            assert!(damaged, "{time} time: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_folder_of_nobody_is_one_finding_and_no_remark() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let open = || {
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        Node::open_on(parts, dir, config())
    };
    let node = open().await.expect("opened");
    node.create("g".into(), graph_config(&[])).await.expect("created");
    node.shutdown().await.expect("stopped");
    drop(node);
    disk.create_dir(&dir.join("shards/99")).expect("made");
    let checked: Arc<dyn Disk> = Arc::new(disk.clone());
    let report = check_folder(&checked, dir).expect("checked");
    let files: Vec<_> = report.findings.iter().map(|found| found.file.clone()).collect();
    assert_eq!(files, [dir.join("shards/99")]);
    assert!(!report.remarks.iter().any(|remark| remark.contains("99")), "{:?}", report.remarks);
    let refused = open().await.err();
    assert!(matches!(&refused, Some(NodeError::Damaged { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_lost_a_part_is_refused_and_the_rest_of_it_is_left_alone() {
    let (disk, dir) = (SimDisk::new(), Path::new("/data"));
    let open = |disk: &SimDisk| {
        let parts = Parts { disk: Arc::new(disk.clone()), ..Parts::default() };
        Node::open_on(parts, dir, config())
    };
    let node = open(&disk).await.expect("opened");
    let (graph, _) = node.create("g".into(), graph_config(&[100])).await.expect("created");
    for entity in (0..3_000).step_by(10) {
        let ops = (0..10).map(|target| WriteOp::Upsert(fact(entity % 200, target, entity)));
        write(&node, &graph, ops.collect(), None).await.expect("written");
    }
    node.shutdown().await.expect("stopped");
    drop(node);
    let shards = |disk: &SimDisk| -> Vec<_> {
        let files = disk.files().into_iter();
        files.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect()
    };
    assert!(shards(&disk).len() >= 2, "{:?}", disk.files());
    for (what, take) in LOSSES {
        let disk = disk.fork();
        take(&disk, dir);
        let before = shards(&disk);
        for time in ["first", "second"] {
            let checked: Arc<dyn Disk> = Arc::new(disk.clone());
            let report = check_folder(&checked, dir).expect("checked");
            assert!(!report.findings.is_empty(), "without {what} the {time} check finds nothing");
            let refused = open(&disk).await.err();
            let damaged = matches!(refused, Some(NodeError::Damaged { .. }));
            assert!(damaged, "without {what}, {time} time: {refused:?}");
            assert_eq!(shards(&disk), before, "without {what}");
        }
    }
}

#[tokio::test]
async fn a_large_batch_leaves_its_thread_to_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened");
    let (graph, _) = node.create("g".into(), graph_config(&[])).await.expect("created");
    let ops: Vec<WriteOp> =
        (0..150_000).map(|entity| WriteOp::Upsert(fact(entity, 1, entity))).collect();
    for round in 0..2 {
        let begun = Instant::now();
        let (mut last, mut longest) = (begun, Duration::ZERO);
        let mut work = pin!(write(&node, &graph, ops.clone(), None));
        let outcome = loop {
            let done = tokio::select! {
                outcome = &mut work => Some(outcome),
                () = tokio::time::sleep(Duration::from_millis(1)) => None,
            };
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if let Some(outcome) = done {
                break outcome;
            }
        };
        let took = begun.elapsed();
        assert_eq!(outcome.expect("written").replaced, round * 150_000);
        assert!(longest * 4 < took, "held for {longest:?} of {took:?}");
    }
}
