//! Groups over a log without space for more: what gives space back is taken all the same, and a
//! process that starts in this state serves.

#[path = "support/log.rs"]
mod log;
mod support;

use bytes::Bytes;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{Epoch, GroupId, ReplicaId};
use hopbine_raft::{
    Checkpoint, Command, Entry, Founding, Group, Halt, LogPosition, Machine, RaftConfig, RaftError,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Node, Toy};

const SEGMENT: u64 = 64 * 1024;
/// The group that the log is full of.
const LARGE: GroupId = GroupId(500);

/// A toy whose commands may use the reserve.
struct Small(Arc<Toy>);

impl Machine for Small {
    fn apply(&self, at: LogPosition, entry: Entry<'_>) -> Result<Bytes, Halt> {
        self.0.apply(at, entry)
    }

    fn uses_reserve(&self) -> bool {
        true
    }

    fn recovered(&self) -> Checkpoint {
        self.0.recovered()
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        self.0.checkpoint()
    }
}

/// Fills the log until not even an entry of a byte finds room.
fn fill(disk: &SimDisk) {
    disk.set_capacity(Some(4 * SEGMENT));
    for bytes in [4_000, 1] {
        let opened = log::open(disk, SEGMENT).expect("opened");
        let group = opened.group(LARGE);
        let patience = Duration::from_millis(500);
        while let Ok(written) = log::append(&group, 1, bytes).recv_timeout(patience) {
            written.expect("durable");
        }
        assert!(opened.space_pressure());
    }
}

fn open(disk: &SimDisk) -> Node {
    let config = RaftConfig { segment_bytes: SEGMENT, ..RaftConfig::default() };
    Node::open(Arc::new(disk.clone()), Path::new("/node"), config).expect("opened")
}

async fn start_small(node: &Node) -> (Arc<Group>, Arc<Toy>) {
    let toy = Toy::open(node.disk.clone(), &node.dir.join("toy-9"));
    let machine = Arc::new(Small(toy.clone()));
    let (id, replica) = (GroupId(9), ReplicaId(109));
    let started = node.groups.start_group(id, replica, machine, Founding::OneVoter).await;
    let started = started.expect("started");
    started.ready(node.soon()).await.expect("ready");
    (started, toy)
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_takes_what_gives_space_back_and_does_so_after_every_restart() {
    let disk = SimDisk::new();
    fill(&disk);
    let command = |text: &str| Command::new(Epoch(1), text.as_bytes().to_vec());
    for restart in 0..3 {
        let node = open(&disk);
        let (small, toy) = start_small(&node).await;
        let (other, _) = node.start(1).await;
        assert_eq!(toy.applied().len(), restart);
        until("full", || node.groups.space_pressure()).await;
        for group in [&small, &other] {
            let refused = group.propose(command("takes space"), node.soon()).await;
            assert_eq!(refused, Err(RaftError::Full));
        }
        let taken = small.propose_freeing(command("gives space"), node.soon()).await;
        taken.expect("taken");
        assert_eq!(toy.applied().len(), restart + 1);
        node.groups.shutdown().await;
    }
    let node = open(&disk);
    let (small, toy) = start_small(&node).await;
    node.groups.remove_group(LARGE).await.expect("removed");
    until("space", || !node.groups.space_pressure()).await;
    small.propose(command("takes space"), node.soon()).await.expect("there is some");
    assert_eq!(toy.applied().len(), 4);
    node.groups.shutdown().await;
}
