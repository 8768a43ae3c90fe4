//! A toy machine and the set-up that the tests of this crate share.
#![allow(dead_code)] // each test binary uses its own part

pub mod hooked_disk;

use bytes::Bytes;
use hopbine_proto::disk::Disk;
use hopbine_proto::driver::{SystemClock, Threads};
use hopbine_proto::{Clock, Epoch, GroupId, ReplicaId};
use hopbine_raft::{
    Checkpoint, Command, Entry, Founding, Group, Groups, Halt, LogPosition, Machine, NoPeers,
    RaftConfig, RaftError, World,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keeps every command it applied; its durable point is a file.
pub struct Toy {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    at: LogPosition,
    membership: Bytes,
    applied: Vec<(LogPosition, Bytes)>,
    durable: Option<Checkpoint>,
    halt: bool,
}

type Saved = (LogPosition, Vec<u8>, Vec<(LogPosition, Vec<u8>)>);

impl Toy {
    /// Reads the machine's file, if there is one.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> Arc<Self> {
        let mut state = State::default();
        if let Ok(bytes) = disk.read(path) {
            let (at, membership, applied): Saved =
                postcard::from_bytes(&bytes).expect("the toy's own bytes");
            let membership = Bytes::from(membership);
            state.at = at;
            state.durable = Some(Checkpoint { at, membership: membership.clone() });
            state.membership = membership;
            state.applied = applied.into_iter().map(|(at, body)| (at, body.into())).collect();
        }
        Arc::new(Self { disk, path: path.to_owned(), state: Mutex::new(state) })
    }

    /// Moves the durable point to what was applied.
    pub fn flush(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        let applied = state.applied.iter().map(|(at, body)| (*at, body.to_vec())).collect();
        let saved: Saved = (state.at, state.membership.to_vec(), applied);
        let bytes = postcard::to_stdvec(&saved).expect("encoded");
        self.disk.replace(&self.path, &bytes).expect("replaced");
        state.durable = Some(Checkpoint { at: state.at, membership: state.membership.clone() });
    }

    /// From now on every `apply` fails.
    pub fn halt(&self) {
        self.state.lock().expect("not poisoned").halt = true;
    }

    /// The commands applied, in order.
    pub fn applied(&self) -> Vec<Bytes> {
        let state = self.state.lock().expect("not poisoned");
        state.applied.iter().map(|(_, body)| body.clone()).collect()
    }
}

impl Machine for Toy {
    fn apply(&self, at: LogPosition, entry: Entry<'_>) -> Result<Bytes, Halt> {
        let mut state = self.state.lock().expect("not poisoned");
        if state.halt {
            return Err(Halt("the toy is broken".into()));
        }
        assert_eq!(at.index.0, state.at.index.0 + 1, "entries come in order");
        state.at = at;
        match entry {
            Entry::Blank => {}
            Entry::Membership(bytes) => state.membership = bytes.clone(),
            Entry::Command(command) => state.applied.push((at, command.body.clone())),
        }
        Ok(Bytes::from(format!("applied {}", at.index)))
    }

    fn recovered(&self) -> Checkpoint {
        let state = self.state.lock().expect("not poisoned");
        Checkpoint { at: state.at, membership: state.membership.clone() }
    }

    fn checkpoint(&self) -> Option<Checkpoint> {
        self.state.lock().expect("not poisoned").durable.clone()
    }
}

/// A process's groups over a disk, with toys as machines.
pub struct Node {
    pub groups: Arc<Groups>,
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<SystemClock>,
    pub dir: PathBuf,
}

impl Node {
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: RaftConfig) -> Result<Self, RaftError> {
        let clock = Arc::new(SystemClock::default());
        let world = World {
            disk: disk.clone(),
            spawn: Arc::new(Threads),
            clock: clock.clone(),
            peers: Arc::new(NoPeers),
        };
        disk.create_dir(dir).expect("folder made");
        let groups = Groups::open(world, &dir.join("log"), config)?;
        Ok(Self { groups, disk, clock, dir: dir.to_owned() })
    }

    /// A moment far enough away for a slow machine.
    pub fn soon(&self) -> Duration {
        self.clock.monotonic() + Duration::from_secs(30)
    }

    /// Starts a one-voter group and waits until it serves.
    pub async fn start(&self, group: u64) -> (Arc<Group>, Arc<Toy>) {
        let toy = Toy::open(self.disk.clone(), &self.dir.join(format!("toy-{group}")));
        let (id, replica) = (GroupId(group), ReplicaId(100 + group));
        let started = self.groups.start_group(id, replica, toy.clone(), Founding::OneVoter).await;
        let started = started.expect("started");
        started.ready(self.soon()).await.expect("ready");
        (started, toy)
    }

    pub async fn propose(&self, group: &Group, body: &[u8]) -> Result<u64, RaftError> {
        let command = Command::new(Epoch(1), body.to_vec());
        let reply = group.propose(command, self.soon()).await?;
        assert_eq!(reply.bytes, format!("applied {}", reply.index));
        Ok(reply.index.0)
    }
}
