//! All groups of a process, over one shared log: open, start, stop, remove.

use super::apply::Applier;
use super::group::{Group, GroupRaft, Parts, only_voter};
use super::store::GroupStore;
use crate::client::{GroupNetwork, Peers};
use crate::config::{RaftConfig, TypeConfig, log_id_of};
use crate::error::{LogError, RaftError};
use crate::log::{LogSettings, LogStats, SharedLog};
use crate::machine::Machine;
use futures::channel::oneshot;
use hopbine_proto::disk::Disk;
use hopbine_proto::{Clock, GroupId, ReplicaId, Spawn};
use openraft::errors::{InitializeError, RaftError as OpenraftError};
use openraft::{Config, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What to do with a group that has no log yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Founding {
    /// Found it, with this replica as its only voter. Nothing is done when it has a log.
    OneVoter,
    /// Wait until a leader sends its log.
    Joins,
}

/// The parts of the world that groups need.
#[derive(Clone)]
pub struct World {
    /// Where the log is.
    pub disk: Arc<dyn Disk>,
    /// Runs the log thread.
    pub spawn: Arc<dyn Spawn>,
    /// For deadlines and stamps.
    pub clock: Arc<dyn Clock>,
    /// Other nodes' replicas.
    pub peers: Arc<dyn Peers>,
}

/// All groups of a process.
pub struct Groups {
    log: Arc<SharedLog>,
    clock: Arc<dyn Clock>,
    peers: Arc<dyn Peers>,
    config: RaftConfig,
    running: Mutex<BTreeMap<GroupId, Arc<Group>>>,
    /// Groups being started or removed.
    changing: Mutex<BTreeSet<GroupId>>,
    failure: watch::Receiver<Option<LogError>>,
}

impl Groups {
    /// Opens the log in `dir`, which is created when missing. Blocks while it reads the log's end.
    /// Starts no group. Fails with `Damaged` when acknowledged records can not be trusted.
    pub fn open(world: World, dir: &Path, config: RaftConfig) -> Result<Arc<Self>, RaftError> {
        let settings = LogSettings {
            segment_bytes: config.segment_bytes,
            cache_bytes_max: config.cache_bytes_max,
        };
        let (failed, failure) = watch::channel(None);
        let on_failure = Box::new(move |error: &LogError| {
            failed.send_replace(Some(error.clone()));
        });
        let World { disk, spawn, clock, peers } = world;
        let log = Arc::new(SharedLog::open(disk, &*spawn, dir, settings, on_failure)?);
        let running = Mutex::default();
        let changing = Mutex::default();
        Ok(Arc::new(Self { log, clock, peers, config, running, changing, failure }))
    }

    /// Starts this process's replica of a group, whose machine goes on from where it recovered to.
    /// Returns once raft runs; `Group::ready` tells when it serves. A machine that lost what the
    /// log no longer has is refused with `Failed`.
    pub async fn start_group(
        &self,
        group: GroupId,
        replica: ReplicaId,
        machine: Arc<dyn Machine>,
        founding: Founding,
    ) -> Result<Arc<Group>, RaftError> {
        let _place = Place::take(self, group)?;
        let failed = |reason: &dyn std::fmt::Display| RaftError::Failed {
            group,
            reason: reason.to_string(),
        };
        let config = openraft_config(group, &self.config).validate();
        let config = Arc::new(config.map_err(|error| failed(&error))?);
        let log = self.log.group(group);
        let (purged, last, held) = (log.purged(), log.last(), machine.recovered().at);
        if purged.index > held.index {
            let reason = format!("the log begins after {purged}, but the machine holds {held}");
            return Err(RaftError::Lost { group, reason });
        }
        if last.index < held.index {
            let reason = format!("the log ends at {last}, but the machine holds {held}");
            return Err(RaftError::Lost { group, reason });
        }
        let store = GroupStore::of_machine(log.clone(), &*machine);
        let applier = Applier::new(machine).map_err(|error| failed(&error))?;
        let applied = applier.progress();
        let network = GroupNetwork::new(group, self.peers.clone());
        let raft = GroupRaft::new(replica.0, config, network, store, applier).await;
        let raft = raft.map_err(|fatal| failed(&fatal))?;
        let led = lead(&raft, replica, founding).await.map_err(|error| failed(&error));
        if let Err(error) = led {
            // So that the next try does not meet this one. A raft that panicked has stopped, too.
            let _ = raft.shutdown().await;
            return Err(error);
        }
        if let Some(held) = log_id_of(held).filter(|_| held.index > purged.index) {
            // The process may have ended between a flush and its purge, and no later flush need
            // come: on a full disk nothing new is taken before there is space.
            raft.trigger().purge_log(held.index).await.map_err(|fatal| failed(&fatal))?;
        }
        let (shared, clock) = (self.log.clone(), self.clock.clone());
        let parts = Parts { id: group, replica, raft, log, shared, clock, applied };
        let started = Arc::new(Group::new(parts, &self.config));
        self.running().insert(group, started.clone());
        Ok(started)
    }

    /// A running group.
    pub fn group(&self, group: GroupId) -> Option<Arc<Group>> {
        self.running().get(&group).cloned()
    }

    /// The groups that the log holds something of, running or not.
    pub fn known(&self) -> Vec<GroupId> {
        self.log.groups()
    }

    /// Stops this process's replica of a group. Its log stays.
    pub async fn stop_group(&self, group: GroupId) {
        let stopped = self.running().remove(&group);
        if let Some(stopped) = stopped {
            stopped.stop().await;
        }
    }

    /// Stops this process's replica of a group and removes its log for good.
    pub async fn remove_group(&self, group: GroupId) -> Result<(), RaftError> {
        self.stop_group(group).await;
        let _place = Place::take(self, group)?;
        let (sender, receiver) = oneshot::channel();
        let done = move |result| {
            // Nobody waits when the caller gave up.
            let _ = sender.send(result);
        };
        self.log.group(group).remove(Box::new(done));
        receiver.await.map_err(|_| RaftError::Stopped(group))?.map_err(RaftError::Log)
    }

    /// Why the log stopped for good, if it did. The process must then stop.
    pub fn failed(&self) -> Option<LogError> {
        self.log.failed()
    }

    /// Returns when the log stops for good.
    pub async fn until_failed(&self) -> LogError {
        let mut failure = self.failure.clone();
        match failure.wait_for(Option::is_some).await {
            Ok(failure) => failure.clone().unwrap_or(LogError::Full),
            // The log was closed without a failure: there will be none.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether there is no space for the log to grow: proposals are refused with `Full`, but for
    /// those that give space back.
    pub fn space_pressure(&self) -> bool {
        self.log.space_pressure()
    }

    /// What the log did and holds.
    pub fn log_stats(&self) -> LogStats {
        self.log.stats()
    }

    /// The groups that keep the log above its size: their machines should be flushed now, and
    /// `Group::purge_to_checkpoint` called.
    pub fn pinning(&self) -> Vec<GroupId> {
        self.log.pinning(self.config.log_bytes_max)
    }

    /// Stops all groups, writes what waits and closes the log.
    pub async fn shutdown(&self) {
        // They are known until they have stopped: who removes one meanwhile waits for that, too.
        let running: Vec<Arc<Group>> = self.running().values().cloned().collect();
        futures::future::join_all(running.iter().map(|group| group.stop())).await;
        self.running().clear();
        let log = self.log.clone();
        // A close that panicked has nothing left to close.
        let _ = tokio::task::spawn_blocking(move || log.close()).await;
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<GroupId, Arc<Group>>> {
        lock(&self.running)
    }
}

/// The right to start or remove one group, as long as it is held.
struct Place<'a> {
    groups: &'a Groups,
    group: GroupId,
}

impl<'a> Place<'a> {
    fn take(groups: &'a Groups, group: GroupId) -> Result<Self, RaftError> {
        if !lock(&groups.changing).insert(group) {
            return Err(RaftError::Running(group));
        }
        let place = Self { groups, group };
        match groups.group(group) {
            None => Ok(place),
            Some(_) => Err(RaftError::Running(group)),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.groups.changing).remove(&self.group);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn openraft_config(group: GroupId, config: &RaftConfig) -> Config {
    Config {
        cluster_name: format!("group {group}"),
        heartbeat_interval: config.heartbeat_ms,
        election_timeout_min: config.election_ms.0,
        election_timeout_max: config.election_ms.1,
        // The machine decides when its durable point moves; `purge_to_checkpoint` tells raft.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: config.entries_kept,
        enable_pre_vote: Some(true),
        ..Config::default()
    }
}

/// Founds the group if asked to, and stands for election at once when there is nobody else to ask.
async fn lead(
    raft: &GroupRaft,
    replica: ReplicaId,
    founding: Founding,
) -> Result<(), OpenraftError<TypeConfig, InitializeError<TypeConfig>>> {
    if founding == Founding::OneVoter {
        match raft.initialize(BTreeSet::from([replica.0])).await {
            Ok(()) => return Ok(()),
            Err(OpenraftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(error),
        }
    }
    if only_voter(raft, replica).await? {
        raft.trigger().elect(false).await?;
    }
    Ok(())
}
