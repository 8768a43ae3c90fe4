//! openraft's own store suite, on one shared log that other groups write to all the while; and
//! groups of a process whose disk dies under them.

mod support;

use futures::{Stream, TryStreamExt};
use hopbine_proto::disk::Disk;
use hopbine_proto::driver::Threads;
use hopbine_proto::sim_disk::{SimDisk, Tear};
use hopbine_proto::{Epoch, GroupId, ReplicaId};
use hopbine_raft::config::{LogId, Membership, TypeConfig};
use hopbine_raft::driver::GroupStore;
use hopbine_raft::log::index::VoteRecord;
use hopbine_raft::log::{LogSettings, SharedLog};
use hopbine_raft::{Command, LogPosition, RaftConfig, RaftError};
use openraft::storage::{EntryResponder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{EmptyNode, EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use support::Node;

type Term = hopbine_raft::config::LeaderTerm;
type Meta = SnapshotMeta<Term, u64, EmptyNode>;
type EmptySnapshot = Snapshot<Term, u64, EmptyNode, ()>;

/// The suite wants a state machine that installs snapshots: this one is positions and members only.
#[derive(Clone, Default)]
struct Positions {
    applied: Option<LogId>,
    membership: Membership,
    /// The last snapshot; a builder shares it with its machine.
    snapshot: Arc<Mutex<Option<Meta>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for Positions {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<EmptySnapshot, io::Error> {
        let meta = Meta { last_log_id: self.applied, last_membership: self.membership.clone() };
        *self.snapshot.lock().expect("not poisoned") = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<TypeConfig> for Positions {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, _)) = entries.try_next().await? {
            self.applied = Some(entry.log_id);
            if let EntryPayload::Membership(members) = entry.payload {
                self.membership = Membership::new(Some(entry.log_id), members);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &Meta, _data: ()) -> Result<(), io::Error> {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        *self.snapshot.lock().expect("not poisoned") = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<EmptySnapshot>, io::Error> {
        let snapshot = self.snapshot.lock().expect("not poisoned").clone();
        Ok(snapshot.map(|meta| Snapshot { meta, snapshot: () }))
    }
}

struct Builder {
    log: Arc<SharedLog>,
    next: AtomicU64,
}

impl StoreBuilder<TypeConfig, GroupStore, Positions> for Builder {
    async fn build(&self) -> Result<((), GroupStore, Positions), StorageError<TypeConfig>> {
        let group = GroupId(self.next.fetch_add(1, Ordering::Relaxed));
        Ok(((), GroupStore::new(self.log.group(group)), Positions::default()))
    }
}

fn small_log(disk: &SimDisk) -> SharedLog {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let settings = LogSettings { segment_bytes: 16 * 1024, cache_bytes_max: 1_000 };
    SharedLog::open(disk, &Threads, Path::new("/log"), settings, Box::new(|_| {})).expect("opened")
}

/// Appends, votes and purges of a group until told to stop; returns the rounds made.
fn other_group(log: &SharedLog, group: u64, stop: &AtomicBool) -> u64 {
    let (log, mut round) = (log.group(GroupId(group)), 0);
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let candidate = ReplicaId(1);
        log.save_vote(VoteRecord { term: round, candidate, committed: true }, Box::new(|_| {}));
        let at = LogPosition::new(round, log.last().index.0 + 1);
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap_or(()));
        log.append(vec![(at, vec![7; 100].into())], done);
        receiver.recv().expect("told").expect("durable");
        if round % 16 == 0 {
            log.purge(at, Box::new(|_| {}));
        }
    }
    round
}

/// Tells the writers to stop, also when the suite panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_store_suite_passes_while_other_groups_write_to_the_same_log() {
    let log = Arc::new(small_log(&SimDisk::new()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |group: u64| {
            let (log, stop) = (&log, &stop);
            scope.spawn(move || other_group(log, group, stop))
        };
        let writers: Vec<_> = (1..4).map(write).collect();
        let until_done = Stop(&stop);
        let builder = Builder { log: log.clone(), next: AtomicU64::new(100) };
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        runtime.block_on(Suite::test_all(builder)).expect("the suite passes");
        drop(until_done);
        let rounds: Vec<u64> = writers.into_iter().map(|w| w.join().expect("no panic")).collect();
        assert!(rounds.iter().all(|rounds| *rounds > 10), "{rounds:?}");
    });
}

/// Proposals of three groups at once while the power goes at some moment: whatever was answered is
/// there when the groups are started again on what the disk kept.
#[tokio::test(flavor = "multi_thread")]
async fn every_answered_proposal_survives_a_power_loss() {
    let config = RaftConfig { segment_bytes: 8 * 1024, ..RaftConfig::default() };
    for (round, tear) in
        [Tear::Lost, Tear::HalfOfFirst, Tear::Kept].into_iter().cycle().take(12).enumerate()
    {
        let disk = SimDisk::new();
        let node =
            Node::open(Arc::new(disk.clone()), Path::new("/node"), config.clone()).expect("opened");
        let mut groups = Vec::new();
        for id in 1..4 {
            groups.push(node.start(id).await);
        }
        disk.fail_from(disk.sync_points() + 3 + 4 * round as u64);
        let each = groups.iter().map(|(group, toy)| {
            let node = &node;
            async move {
                let mut answered = Vec::new();
                loop {
                    let body = format!("{} {}", group.id(), answered.len()).into_bytes();
                    let command = Command::new(Epoch(1), body.clone());
                    match group.propose(command, node.soon()).await {
                        Ok(_) => answered.push(bytes::Bytes::from(body)),
                        Err(RaftError::Failed { .. } | RaftError::Unknown(_)) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
                assert!(toy.applied().starts_with(&answered));
                answered
            }
        });
        let answered = futures::future::join_all(each).await;
        node.groups.until_failed().await;
        node.groups.shutdown().await;
        disk.crash(tear);
        let node = Node::open(Arc::new(disk), Path::new("/node"), config.clone()).expect("opened");
        for (id, answered) in (1..4).zip(answered) {
            let (_, toy) = node.start(id).await;
            let applied = toy.applied();
            assert!(applied.starts_with(&answered), "{applied:?} after {answered:?}");
            assert!(applied.len() <= answered.len() + 1, "{applied:?} after {answered:?}");
        }
        node.groups.shutdown().await;
    }
}
