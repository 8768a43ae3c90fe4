//! The shared log driven from outside, and a plain model of what it must hold after any crash.
#![allow(dead_code)] // each test binary uses its own part

use bytes::Bytes;
use hopbine_proto::disk::Disk;
use hopbine_proto::driver::Threads;
use hopbine_proto::sim_disk::SimDisk;
use hopbine_proto::{GroupId, ReplicaId, Spawn};
use hopbine_raft::log::driver::Done;
use hopbine_raft::log::index::VoteRecord;
use hopbine_raft::log::{GroupLog, LogSettings, SharedLog};
use hopbine_raft::{LogError, LogPosition};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

pub const DIR: &str = "/node/log";

/// A log with small segments on a simulated disk.
pub fn open(disk: &SimDisk, segment_bytes: u64) -> Result<SharedLog, LogError> {
    open_on(Arc::new(disk.clone()), segment_bytes)
}

/// The same on any disk.
pub fn open_on(disk: Arc<dyn Disk>, segment_bytes: u64) -> Result<SharedLog, LogError> {
    open_with(disk, &Threads, segment_bytes)
}

/// The same with a thread of any kind.
pub fn open_with(
    disk: Arc<dyn Disk>,
    spawn: &dyn Spawn,
    segment_bytes: u64,
) -> Result<SharedLog, LogError> {
    let settings = LogSettings { segment_bytes, cache_bytes_max: 2_000 };
    SharedLog::open(disk, spawn, Path::new(DIR), settings, Box::new(|_| {}))
}

/// A thread that starts when it is told to. Changes that were submitted before gather into the
/// same batches every time.
#[derive(Default)]
pub struct Later(Mutex<Option<Box<dyn FnOnce() + Send>>>);

/// Starts the thread when it is dropped, be it by a panic: a log can not be closed before.
pub struct Starter<'a>(&'a Later);

impl Later {
    pub fn starter(&self) -> Starter<'_> {
        Starter(self)
    }
}

impl Drop for Starter<'_> {
    fn drop(&mut self) {
        let work = self.0.0.lock().ok().and_then(|mut work| work.take());
        work.into_iter().for_each(|work| Threads.spawn("raft-log", work));
    }
}

impl Spawn for Later {
    fn spawn(&self, _name: &'static str, work: Box<dyn FnOnce() + Send>) {
        *self.0.lock().expect("not poisoned") = Some(work);
    }
}

/// Receives whether something is durable.
pub type Told = mpsc::Receiver<Result<(), LogError>>;

/// A callback, and what it is called with.
pub fn told() -> (Done, Told) {
    let (sender, receiver) = mpsc::channel();
    // Nobody may wait any more.
    (Box::new(move |result| drop(sender.send(result))), receiver)
}

/// Appends one entry.
pub fn append(group: &Arc<GroupLog>, term: u64, bytes: usize) -> Told {
    let (done, told) = told();
    let at = LogPosition::new(term, group.last().index.0 + 1);
    group.append(vec![(at, vec![1; bytes].into())], done);
    told
}

/// Votes for the leader of `term`.
pub fn vote(group: &Arc<GroupLog>, term: u64) -> Told {
    let (done, told) = told();
    group.save_vote(VoteRecord { term, candidate: ReplicaId(1), committed: true }, done);
    told
}

/// Purges all but the last `kept` entries.
pub fn purge_all_but(group: &Arc<GroupLog>, kept: u64) -> Told {
    let (done, told) = told();
    let upto = group.position(group.last().index.0 - kept).expect("an entry");
    group.purge(upto, done);
    told
}

/// Waits for it, but not for ever.
pub fn durable(told: &Told) {
    told.recv_timeout(Duration::from_secs(20)).expect("told in time").expect("durable");
}

/// One change of one group.
#[derive(Clone, Debug)]
pub enum Op {
    Vote {
        term: u64,
        committed: bool,
    },
    Append {
        term: u64,
        count: u64,
        bytes: usize,
    },
    /// Drops this many entries from the end.
    Truncate {
        count: u64,
    },
    /// Drops this many entries from the start.
    Purge {
        count: u64,
    },
    /// Notes the last entry as committed.
    Commit,
    Remove,
}

/// What a group holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub vote: Option<VoteRecord>,
    pub purged: LogPosition,
    pub entries: BTreeMap<u64, (u64, Bytes)>,
}

impl Held {
    fn last(&self) -> LogPosition {
        let last = self.entries.last_key_value();
        last.map_or(self.purged, |(index, (term, _))| LogPosition::new(*term, *index))
    }

    /// Reads a group of the log whole.
    pub fn read(group: &GroupLog) -> Result<Self, LogError> {
        let entries = group.read(0..u64::MAX, usize::MAX)?;
        let entries =
            entries.into_iter().map(|(at, bytes)| (at.index.0, (at.term, bytes))).collect();
        Ok(Self { vote: group.vote(), purged: group.purged(), entries })
    }
}

/// The states that a group went through, record by record, and how far they are acknowledged.
pub struct Story {
    pub states: Vec<Held>,
    pub acknowledged: usize,
    /// Grows with every entry ever made, so that no two are alike.
    serial: u64,
}

/// A change under way: the state that it leads to, and what tells when that is durable.
pub type Waiting = (usize, Told);

impl Default for Story {
    fn default() -> Self {
        Self { states: vec![Held::default()], acknowledged: 0, serial: 0 }
    }
}

impl Story {
    pub fn now(&self) -> &Held {
        self.states.last().expect("there is a first state")
    }

    /// Submits a change and writes down the states it leads through.
    pub fn submit(&mut self, log: &SharedLog, id: GroupId, op: &Op) -> Waiting {
        let group = log.group(id);
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap_or(()));
        let mut held = self.now().clone();
        match op {
            Op::Vote { term, committed } => {
                let (candidate, committed) = (ReplicaId(term % 3), *committed);
                let vote = VoteRecord { term: *term, candidate, committed };
                held.vote = Some(vote);
                group.save_vote(vote, done);
            }
            Op::Append { term, count, bytes } => {
                let mut entries = Vec::new();
                for _ in 0..*count {
                    self.serial += 1;
                    let mut payload = format!("{id} {} ", self.serial).into_bytes();
                    payload.resize(*bytes + 12, self.serial as u8);
                    let at = LogPosition::new(*term, held.last().index.0 + 1);
                    entries.push((at, Bytes::from(payload.clone())));
                    held.entries.insert(at.index.0, (*term, payload.into()));
                    self.states.push(held.clone());
                }
                group.append(entries, done);
            }
            Op::Truncate { count } => {
                let keep = held.last().index.0.saturating_sub(*count).max(held.purged.index.0);
                held.entries.split_off(&(keep + 1));
                group.truncate(held.last(), done);
            }
            Op::Purge { count } => {
                let upto = held.last().index.0.min(held.purged.index.0 + count);
                let upto = match held.entries.get(&upto) {
                    Some((term, _)) => LogPosition::new(*term, upto),
                    None => held.purged,
                };
                held.entries = held.entries.split_off(&(upto.index.0 + 1));
                held.purged = upto;
                group.purge(upto, done);
            }
            Op::Commit => {
                group.save_committed(held.last());
                done(Ok(()));
                return (self.acknowledged, receiver);
            }
            Op::Remove => {
                held = Held::default();
                group.remove(done);
            }
        }
        self.states.push(held);
        (self.states.len() - 1, receiver)
    }

    /// Waits for a change; `false` when the disk failed.
    pub fn settle(&mut self, (state, receiver): Waiting) -> bool {
        let result = receiver.recv().unwrap_or(Err(LogError::Full));
        if result.is_ok() {
            self.acknowledged = self.acknowledged.max(state);
        }
        result.is_ok()
    }

    /// Checks what a reopened log holds, and goes on from there.
    pub fn reopened(&mut self, group: &GroupLog) {
        let held = Held::read(group).expect("readable");
        let possible = &self.states[self.acknowledged..];
        assert!(
            possible.contains(&held),
            "group {} holds {held:?}, acknowledged was {:?}",
            group.id(),
            self.states[self.acknowledged]
        );
        assert!(group.committed().index <= group.last().index);
        self.states = vec![held];
        self.acknowledged = 0;
    }
}
