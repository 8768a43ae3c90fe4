//! How fast is the shared log? Prints durable appends and proposals a second, for one group and for
//! many, the time to open a log of 100,000 entries, and what idle groups cost.
//!
//! `cargo run --release -p hopbine-raft --example log_speed -- FOLDER`: FOLDER is made, filled and
//! removed; put it on the disk that is to be measured.

use bytes::Bytes;
use hopbine_proto::disk::OsDisk;
use hopbine_proto::driver::{SystemClock, Threads};
use hopbine_proto::{Clock, Epoch, GroupId, ReplicaId};
use hopbine_raft::log::{GroupLog, LogSettings, SharedLog};
use hopbine_raft::{
    Checkpoint, Command, Entry, Founding, Group, Groups, Halt, LogPosition, Machine, NoPeers,
    RaftConfig, World,
};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const PAYLOAD: usize = 1_024;
const RUN: Duration = Duration::from_secs(3);

/// Counts what it applies and keeps nothing.
#[derive(Default)]
struct Counter(AtomicU64);

impl Machine for Counter {
    fn apply(&self, _at: LogPosition, _entry: Entry<'_>) -> Result<Bytes, Halt> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Bytes::new())
    }

    fn recovered(&self) -> Checkpoint {
        Checkpoint::default()
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        None
    }
}

fn open_log(dir: &Path) -> SharedLog {
    let config = RaftConfig::default();
    let settings = LogSettings {
        segment_bytes: config.segment_bytes,
        cache_bytes_max: config.cache_bytes_max,
    };
    SharedLog::open(Arc::new(OsDisk), &Threads, dir, settings, Box::new(|_| {})).expect("opened")
}

/// Appends `batch` entries and waits until they are durable.
fn append(group: &Arc<GroupLog>, batch: u64, payload: &Bytes) {
    let next = group.last().index.0 + 1;
    let entries =
        (next..next + batch).map(|index| (LogPosition::new(1, index), payload.clone())).collect();
    let (sender, receiver) = mpsc::channel();
    group.append(entries, Box::new(move |result| sender.send(result).unwrap_or(())));
    receiver.recv().expect("told").expect("durable");
}

fn appends(dir: &Path, groups: u64, batch: u64) {
    let log = open_log(dir);
    let (payload, until) = (Bytes::from(vec![7; PAYLOAD]), Instant::now() + RUN);
    let before = log.stats();
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let run = |group| {
            let (log, payload) = (&log, &payload);
            scope.spawn(move || {
                let (group, mut count) = (log.group(GroupId(group)), 0);
                while Instant::now() < until {
                    append(&group, batch, payload);
                    count += batch;
                }
                count
            })
        };
        let threads: Vec<_> = (1..=groups).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let total: u64 = counts.iter().sum();
    let syncs = log.stats().batches - before.batches;
    let rate = total as f64 / RUN.as_secs_f64();
    println!("append  {groups:3} groups x {batch:3}: {rate:9.0} entries/s, {syncs} syncs");
    drop(log);
    std::fs::remove_dir_all(dir).expect("removed");
}

async fn start(dir: &Path, count: u64) -> (Arc<Groups>, Vec<Arc<Group>>, Arc<SystemClock>) {
    let clock = Arc::new(SystemClock::default());
    let world = World {
        disk: Arc::new(OsDisk),
        spawn: Arc::new(Threads),
        clock: clock.clone(),
        peers: Arc::new(NoPeers),
    };
    let groups = Groups::open(world, dir, RaftConfig::default()).expect("opened");
    let each = (1..=count).map(|id| {
        let machine = Arc::new(Counter::default());
        groups.start_group(GroupId(id), ReplicaId(id), machine, Founding::OneVoter)
    });
    let started = futures::future::try_join_all(each).await.expect("started");
    let deadline = clock.monotonic() + Duration::from_secs(60);
    let ready = started.iter().map(|group| group.ready(deadline));
    futures::future::try_join_all(ready).await.expect("ready");
    (groups, started, clock)
}

async fn proposals(dir: &Path, count: u64, clients: u64) {
    let (groups, started, clock) = start(dir, count).await;
    let (until, before) = (Instant::now() + RUN, groups.log_stats());
    let each = (0..clients).map(|client| {
        let group = started[(client % count) as usize].clone();
        let clock = clock.clone();
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while Instant::now() < until {
                let (asked, deadline) = (Instant::now(), clock.monotonic() + RUN);
                let command = Command::new(Epoch(1), vec![7; PAYLOAD]);
                group.propose(command, deadline).await.expect("proposed");
                waits.push(asked.elapsed());
            }
            waits
        })
    });
    let waits = futures::future::try_join_all(each).await.expect("no panic");
    let mut waits: Vec<Duration> = waits.into_iter().flatten().collect();
    waits.sort_unstable();
    let rate = waits.len() as f64 / RUN.as_secs_f64();
    let (p50, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    let syncs = groups.log_stats().batches - before.batches;
    println!(
        "propose {count:3} groups, {clients:3} clients: {rate:7.0}/s, p50 {p50:?}, p99 {p99:?}, \
         {syncs} syncs"
    );
    groups.shutdown().await;
    std::fs::remove_dir_all(dir).expect("removed");
}

async fn restart(dir: &Path) {
    let entries = 100_000;
    {
        let (groups, started, clock) = start(dir, 1).await;
        let deadline = clock.monotonic() + Duration::from_secs(300);
        for _ in 0..entries / 1_000 {
            let command = || Command::new(Epoch(1), vec![7; PAYLOAD]);
            let many = (0..1_000).map(|_| started[0].propose(command(), deadline));
            futures::future::try_join_all(many).await.expect("proposed");
        }
        groups.shutdown().await;
    }
    let opened = Instant::now();
    drop(open_log(dir));
    let open = opened.elapsed();
    let opened = Instant::now();
    let (groups, _, _) = start(dir, 1).await;
    println!("restart {entries} entries: log open {open:?}, all applied {:?}", opened.elapsed());
    groups.shutdown().await;
    std::fs::remove_dir_all(dir).expect("removed");
}

/// User and system time of this process in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / 100.0
}

async fn idle(dir: &Path, count: u64) {
    let began = Instant::now();
    let (groups, _started, _) = start(dir, count).await;
    let (ready, before) = (began.elapsed(), cpu_seconds());
    let wait = Duration::from_secs(10);
    tokio::time::sleep(wait).await;
    let share = (cpu_seconds() - before) / wait.as_secs_f64() * 100.0;
    println!("idle    {count:3} groups: ready after {ready:?}, then {share:.1} % of a core");
    groups.shutdown().await;
    std::fs::remove_dir_all(dir).expect("removed");
}

fn main() {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: log_speed FOLDER");
        std::process::exit(2);
    };
    let dir = Path::new(&dir);
    for (groups, batch) in [(1, 1), (1, 64), (32, 1), (32, 8)] {
        appends(dir, groups, batch);
    }
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        for (groups, clients) in [(1, 1), (1, 64), (32, 64), (32, 256)] {
            proposals(dir, groups, clients).await;
        }
        restart(dir).await;
        idle(dir, 64).await;
    });
}
