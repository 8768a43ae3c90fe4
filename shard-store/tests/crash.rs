//! The power fails at every sync point of a script of writes, freezes, flushes and merges, with
//! each kind of tear: what the folder then holds plus the log above it is what the model holds.

mod oracle;

use hopbine_proto::call::{ScanRequest, SeedMode, SeedRequest, With, WriteOp};
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{IdKind, IndexConfig};
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::{EntityRange, Epoch, KeyRange, LogIndex, Metric, ShardId};
use hopbine_shard_store::{Pressure, Shard, ShardConfig, StoreError};
use oracle::Model;
use oracle::draw::{Draw, World};
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/data/shards/1";
const WORLD: World = World { ids: IdKind::U64, metric: Metric::Cosine, dim: 3, entities: 6 };

fn config() -> ShardConfig {
    ShardConfig {
        shard: ShardId(1),
        range: EntityRange::ALL,
        epoch: Epoch(1),
        dim: 3,
        metric: Metric::Cosine,
        vector_required: false,
        ids: IdKind::U64,
        index: IndexConfig::default(),
        memtable_bytes_max: 4 * 1024,
        merge_memory_max: 1 << 20,
    }
}

/// What the script does after a write.
#[derive(Clone, Copy)]
enum Act {
    Nothing,
    Freeze,
    Flush,
    Compact,
}

fn script() -> Vec<(Vec<WriteOp>, Act)> {
    let mut draw = Draw(5);
    let acts = [
        Act::Nothing,
        Act::Freeze,
        Act::Flush,
        Act::Nothing,
        Act::Freeze,
        Act::Nothing,
        Act::Freeze,
        Act::Flush,
        Act::Compact,
        Act::Flush,
    ];
    let batches = 60;
    let with_act = |number: usize| (WORLD.batch(&mut draw), acts[number % acts.len()]);
    (0..batches).map(with_act).collect()
}

/// Runs the script until the first error; returns the entries that were applied.
fn play(disk: &SimDisk, script: &[(Vec<WriteOp>, Act)]) -> usize {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let Ok(shard) = Shard::create(disk, DIR, config()) else { return 0 };
    for (number, (ops, act)) in script.iter().enumerate() {
        let index = LogIndex(number as u64 + 1);
        shard.apply(1, index, ops).expect("memory does not fail");
        let result = match act {
            Act::Nothing => Ok(false),
            Act::Freeze => {
                shard.freeze(index.0.to_le_bytes().to_vec(), Vec::new());
                Ok(false)
            }
            Act::Flush => shard.flush_oldest(),
            Act::Compact => shard.compact_once(),
        };
        if result.is_err() {
            return number + 1;
        }
    }
    script.len()
}

fn everything(shard: &Shard) -> hopbine_proto::call::ScanReply {
    let request = ScanRequest {
        range: KeyRange::ALL,
        filter: None,
        limit: u32::MAX,
        with: With { payload: true, vector: true },
    };
    shard.view().scan(&request, &|| false).expect("scanned")
}

fn check(shard: &Shard, model: &Model) {
    let request = ScanRequest {
        range: KeyRange::ALL,
        filter: None,
        limit: u32::MAX,
        with: With { payload: true, vector: true },
    };
    let expected = model.scan(&request);
    let found = everything(shard);
    for (row, expected) in found.rows.iter().zip(&expected.rows) {
        assert_eq!(row, expected);
    }
    assert_eq!(found.rows.len(), expected.rows.len());
    assert_eq!(found.index, expected.index);
    let request = SeedRequest {
        query: vec![1.0, -0.5, 0.25].into(),
        k: 10_000,
        relations: Default::default(),
        filter: None,
        mode: SeedMode::Exact,
    };
    let reply = shard.view().seeds(&request, &|| false).expect("searched");
    assert_eq!(reply.seeds, model.seeds(&request));
}

/// Reopens the folder after a crash and replays the log up to entry `applied`.
fn recover(disk: &SimDisk, script: &[(Vec<WriteOp>, Act)], applied: usize) {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let exists = Shard::exists(&*shared, Path::new(DIR)).expect("asked");
    let shard = match exists {
        true => Shard::open(shared, DIR, config()).expect("opened"),
        false => Shard::create(shared, DIR, config()).expect("created"),
    };
    let durable = shard.durable();
    assert!(durable.index.0 as usize <= applied, "entries from the future");
    if durable.index.0 > 0 {
        assert_eq!(durable.membership, durable.index.0.to_le_bytes());
    }
    let mut model = Model::new(WORLD.metric);
    for number in 0..durable.index.0 {
        model.apply(LogIndex(number + 1), &script[number as usize].0);
    }
    check(&shard, &model);
    for (number, (ops, _)) in script[..applied].iter().enumerate().skip(durable.index.0 as usize) {
        let index = LogIndex(number as u64 + 1);
        shard.apply(1, index, ops).expect("applied");
        model.apply(index, ops);
    }
    check(&shard, &model);
    shard.freeze(model.index.0.to_le_bytes().to_vec(), Vec::new());
    while shard.flush_oldest().expect("flushed") {}
    while shard.compact_once().expect("merged") {}
    check(&shard, &model);
    let segments = shard.stats().expect("counted").segments.len();
    let files = disk.files().into_iter().filter(|path| path.extension() != Some("tmp".as_ref()));
    assert_eq!(files.count(), segments + 1, "only the manifest and live segments are left");
}

#[test]
fn a_crash_at_any_sync_point_leaves_a_prefix_that_replays_to_the_model() {
    let script = script();
    let whole = SimDisk::new();
    assert_eq!(play(&whole, &script), script.len());
    let points = whole.sync_points();
    assert!(points > 60, "the script reaches {points} sync points");
    for point in 0..points {
        let disk = SimDisk::new();
        disk.fail_from(point);
        let applied = play(&disk, &script);
        for tear in [Tear::Lost, Tear::HalfOfFirst, Tear::Kept] {
            let crashed = disk.fork();
            crashed.crash(tear);
            recover(&crashed, &script, applied);
        }
    }
}

#[test]
fn a_full_disk_pushes_writers_back_and_loses_nothing() {
    let (disk, script) = (SimDisk::new(), script());
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let shard = Shard::create(shared, DIR, config()).expect("created");
    let mut model = Model::new(WORLD.metric);
    disk.set_capacity(Some(2_000));
    let mut batches = script.iter().map(|(ops, _)| ops).cycle();
    while shard.write_pressure() == Pressure::Ok {
        let (ops, index) = (batches.next().expect("endless"), LogIndex(model.index.0 + 1));
        shard.apply(1, index, ops).expect("applied");
        model.apply(index, ops);
        if shard.should_freeze() {
            assert!(shard.freeze(Vec::new(), Vec::new()));
            let error = shard.flush_oldest().expect_err("there is no room");
            assert!(matches!(error, StoreError::DiskFull(_)), "{error}");
        }
        assert!(model.index.0 < 10_000, "pressure never came");
    }
    check(&shard, &model);
    assert_eq!(shard.durable().index, LogIndex(0));
    assert_eq!(disk.files().len(), 1, "unfinished files are removed");
    disk.set_capacity(None);
    assert!(shard.flush_oldest().expect("there is room"));
    assert_eq!(shard.write_pressure(), Pressure::Ok);
    check(&shard, &model);
}

#[test]
fn an_error_of_the_disk_is_tried_again_and_a_failed_sync_stops() {
    let disk = SimDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let shard = Shard::create(shared, DIR, config()).expect("created");
    let mut model = Model::new(WORLD.metric);
    for (number, (ops, _)) in script().iter().take(8).enumerate() {
        let index = LogIndex(number as u64 + 1);
        shard.apply(1, index, ops).expect("applied");
        model.apply(index, ops);
    }
    assert!(shard.freeze(Vec::new(), Vec::new()));
    disk.set_write_error(Some(std::io::ErrorKind::TimedOut));
    assert!(matches!(shard.flush_oldest(), Err(StoreError::Io(_))));
    disk.set_write_error(None);
    // The segment and its folder are synced; then the manifest cannot be swapped for certain.
    disk.fail_from(disk.sync_points() + 2);
    assert!(matches!(shard.flush_oldest(), Err(StoreError::SyncFailed(_))));
    check(&shard, &model);
    disk.crash(Tear::Kept);
    assert!(matches!(shard.flush_oldest(), Err(StoreError::SyncFailed(_))), "for good");
}
