//! A node from opening its folder to its shutdown: its parts, its groups, the catalogue's commands.
//! Calls of coordinators are answered in `server.rs`.

use super::upkeep::Upkeep;
use crate::catalogue::{Catalogue, CatalogueCommand, CatalogueReply};
use crate::config::NodeConfig;
use crate::disk::{self, FolderLock, Identity};
use crate::error::{MAKE_SPACE, NodeError};
use crate::folder::{NOTHING_LEFT, is_empty};
use crate::meta::{self, Meta};
use crate::replica::Replica;
use crate::views::Views;
use hopbine_proto::disk::{Disk, OsDisk};
use hopbine_proto::driver::{SystemClock, Threads};
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{Clock, Epoch, GraphId, GroupId, NodeId, ReplicaId, ShardId, Spawn};
use hopbine_raft::{
    Command, Founding, Group, Groups, LogError, Machine, NoPeers, RaftConfig, RaftError, World,
};
use hopbine_shard_store::Shard;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use tracing::{info, warn};

/// The group of the catalogue, and its only replica in a cluster of one.
pub(super) const CATALOGUE: GroupId = GroupId(0);
const CATALOGUE_REPLICA: ReplicaId = ReplicaId(1);
/// How long a group may take until it serves: replaying its log is most of it.
const START_DEADLINE: Duration = Duration::from_secs(600);
/// How long a stop waits for a graph that is being created.
const SHAPING_PATIENCE: Duration = Duration::from_secs(10);

/// The outside world of a node.
#[derive(Clone)]
pub struct Parts {
    /// Where the data lies.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Threads.
    pub spawn: Arc<dyn Spawn>,
}

impl Default for Parts {
    /// The machine's own.
    fn default() -> Self {
        Self {
            disk: Arc::new(OsDisk),
            clock: Arc::new(SystemClock::default()),
            spawn: Arc::new(Threads),
        }
    }
}

/// One process's replicas, over one data folder.
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) parts: Parts,
    pub(crate) config: NodeConfig,
    pub(crate) dir: PathBuf,
    pub(crate) groups: Arc<Groups>,
    pub(crate) meta: Arc<Meta>,
    pub(crate) meta_group: Arc<Group>,
    pub(crate) hosted: RwLock<BTreeMap<ShardId, Arc<Hosted>>>,
    pub(crate) views: Views,
    pub(crate) upkeep: Arc<Upkeep>,
    pub(crate) workers: Arc<tokio::sync::Semaphore>,
    pub(crate) stopping: AtomicBool,
    /// Monotonic milliseconds before which nothing is scrubbed.
    pub(crate) scrub_due: AtomicU64,
    /// Held while the list of hosted shards follows the catalogue: of a new graph from before it is
    /// in the catalogue, so that whoever finds it there finds it made, or taken back.
    pub(crate) shaping: tokio::sync::Mutex<()>,
    /// Graphs of which a shard could not be made and is not yet.
    pub(super) unmade: Mutex<BTreeSet<GraphId>>,
    lock: Mutex<Option<FolderLock>>,
}

/// One shard that this node serves.
pub(crate) struct Hosted {
    pub graph: GraphId,
    /// Whether it is the only shard of its graph.
    pub alone: bool,
    pub epoch: Epoch,
    pub shard: Arc<Shard>,
    pub replica: Arc<Replica>,
    pub group: Arc<Group>,
    /// Why the shard is not served any more.
    pub damaged: OnceLock<String>,
    /// Its graph was dropped: work on it may fail in any way.
    pub dropped: AtomicBool,
    /// Monotonic milliseconds before which no merge is tried, after one that failed.
    pub merge_due: AtomicU64,
    /// Merges in a row that failed.
    pub merges_failed: AtomicU32,
}

impl Node {
    /// Opens the data folder `dir` of this machine, alone: a second process gets `Locked`.
    pub async fn open(dir: &Path, config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        let lock = disk::lock(dir)?;
        Self::start(Parts::default(), dir, config, Some(lock)).await
    }

    /// Opens a data folder on a given world, without a lock: for simulated disks.
    pub async fn open_on(
        parts: Parts,
        dir: &Path,
        config: NodeConfig,
    ) -> Result<Arc<Self>, NodeError> {
        Self::start(parts, dir, config, None).await
    }

    async fn start(
        parts: Parts,
        dir: &Path,
        config: NodeConfig,
        lock: Option<FolderLock>,
    ) -> Result<Arc<Self>, NodeError> {
        if let Some(fault) = config.faults().into_iter().next() {
            return Err(NodeError::Config(fault));
        }
        let data = parts.disk.as_ref();
        disk::check_format(data, dir)?;
        let identity = disk::identity(data, dir, disk::fresh_number())?;
        if identity.founded && is_empty(data, dir) {
            return Err(nothing_left());
        }
        let meta = Arc::new(Meta::open(parts.disk.clone(), dir)?);
        let raft = RaftConfig { segment_bytes: config.log_segment_bytes, ..Default::default() };
        let world = World {
            disk: parts.disk.clone(),
            spawn: parts.spawn.clone(),
            clock: parts.clock.clone(),
            peers: Arc::new(NoPeers),
        };
        let log = dir.join("raft");
        let opened = tokio::task::spawn_blocking(move || Groups::open(world, &log, raft));
        let opened = opened.await.unwrap_or(Err(RaftError::Stopped(CATALOGUE)));
        let groups = opened.map_err(|error| group_error(CATALOGUE, error))?;
        let clock = parts.clock.as_ref();
        let meta_group =
            start_group(&groups, clock, CATALOGUE, CATALOGUE_REPLICA, meta.clone()).await?;
        let workers = Arc::new(tokio::sync::Semaphore::new(config.worker_reads_max));
        let node = Arc::new(Self {
            id: identity.id,
            parts,
            config,
            dir: dir.to_owned(),
            groups,
            meta,
            meta_group,
            hosted: RwLock::default(),
            views: Views::default(),
            upkeep: Arc::new(Upkeep::default()),
            workers,
            stopping: AtomicBool::new(false),
            scrub_due: AtomicU64::new(0),
            shaping: tokio::sync::Mutex::default(),
            unmade: Mutex::default(),
            lock: Mutex::new(lock),
        });
        node.found(identity).await?;
        node.host_all().await?;
        Upkeep::run(&node);
        Ok(node)
    }

    /// This node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Identity of the cluster.
    pub fn cluster_id(&self) -> u64 {
        self.catalogue().cluster_id
    }

    /// The clock that deadlines of calls are measured on.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.parts.clock.clone()
    }

    /// Tells whoever finds the folder locked where this process serves.
    pub fn announce(&self, url: &str) -> Result<(), NodeError> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        lock.as_mut().map_or(Ok(()), |lock| lock.say(Some(url)))
    }

    /// The catalogue as of its last applied command.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.meta.catalogue()
    }

    /// Stops taking calls, makes everything durable in segments, and closes the groups. Safe to
    /// skip: a process that is killed instead replays its log at the next start. So a full disk,
    /// which takes neither segments nor the catalogue's file, is no failure.
    pub async fn shutdown(self: &Arc<Self>) -> Result<(), NodeError> {
        if self.stopping.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // What is being created ends first: it writes into the folder that is let go of below.
        let shaped = tokio::time::timeout(SHAPING_PATIENCE, self.shaping.lock()).await;
        for hosted in self.all_hosted() {
            hosted.replica.freeze();
        }
        let ended = self.upkeep.stop(self).await;
        let saved = self.save_catalogue().await;
        self.groups.shutdown().await;
        if ended && shaped.is_ok() {
            *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        match saved {
            Err(failure) if failure.is_disk_full() && self.failure().is_none() => {
                warn!(error = %failure, "no space: the next start reads it from the log");
                Ok(())
            }
            saved => saved.map(|_| ()),
        }
    }

    /// Gives a new cluster its identity, and keeps that it has one.
    async fn found(&self, identity: Identity) -> Result<(), NodeError> {
        match (identity.founded, self.catalogue().cluster_id) {
            (true, 0) => return Err(nothing_left()),
            (false, 0) => self.found_cluster().await?,
            (true, _) => return Ok(()),
            (false, _) => {}
        }
        disk::keep_founded(self.parts.disk.as_ref(), &self.dir, self.id)
    }

    async fn found_cluster(&self) -> Result<(), NodeError> {
        let command = CatalogueCommand::Found { cluster_id: disk::fresh_number() };
        let deadline = self.parts.clock.monotonic() + START_DEADLINE;
        let founded = self.propose_meta(&command, deadline).await;
        founded.map_err(|problem| NodeError::Group {
            group: CATALOGUE.0,
            reason: problem.to_string(),
        })?;
        info!(node = %self.id, "founded a cluster");
        Ok(())
    }

    pub(crate) fn find(&self, shard: ShardId) -> Option<Arc<Hosted>> {
        self.hosted.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// The numbers of all hosted shards, for whoever works on one after the other: each is looked
    /// up when its turn comes, so that nothing holds those that wait.
    pub(crate) fn hosted_ids(&self) -> Vec<ShardId> {
        let hosted = self.hosted.read().unwrap_or_else(PoisonError::into_inner);
        hosted.keys().copied().collect()
    }

    pub(crate) fn all_hosted(&self) -> Vec<Arc<Hosted>> {
        let hosted = self.hosted.read().unwrap_or_else(PoisonError::into_inner);
        hosted.values().cloned().collect()
    }

    /// Runs a command through the catalogue group.
    pub(crate) async fn propose_meta(
        &self,
        command: &CatalogueCommand,
        deadline: Duration,
    ) -> Result<CatalogueReply, Problem> {
        let encoded = Command::new(Epoch(0), meta::encode(command));
        let proposed = match command.gives_space_back() {
            true => self.meta_group.propose_freeing(encoded, deadline).await,
            false => self.meta_group.propose(encoded, deadline).await,
        };
        let reply = proposed.map_err(problem_of)?;
        match postcard::from_bytes(&reply.bytes) {
            Ok(CatalogueReply::Refused(problem)) => Err(problem),
            Ok(reply) => Ok(reply),
            Err(_) => Err(Problem::new(Code::VersionSkew, "the catalogue's reply is unreadable")),
        }
    }
}

/// Starts a group of one voter and waits until it has applied all that its log holds.
pub(super) async fn start_group(
    groups: &Arc<Groups>,
    clock: &dyn Clock,
    id: GroupId,
    replica: ReplicaId,
    machine: Arc<dyn Machine>,
) -> Result<Arc<Group>, NodeError> {
    let failed = |error| group_error(id, error);
    let group =
        groups.start_group(id, replica, machine, Founding::OneVoter).await.map_err(failed)?;
    if let Err(error) = group.ready(clock.monotonic() + START_DEADLINE).await {
        // So that it can be started again.
        groups.stop_group(id).await;
        return Err(failed(error));
    }
    Ok(group)
}

/// A start that finds nothing of what an earlier one has founded.
fn nothing_left() -> NodeError {
    NodeError::Damaged { file: "catalogue".to_owned(), reason: NOTHING_LEFT.to_owned() }
}

pub(super) fn group_error(group: GroupId, error: RaftError) -> NodeError {
    match error {
        RaftError::Lost { .. } | RaftError::Log(LogError::Damaged { .. }) => {
            NodeError::Damaged { file: "raft".to_owned(), reason: error.to_string() }
        }
        _ => NodeError::Group { group: group.0, reason: error.to_string() },
    }
}

/// What a user is told when a group did not take a command.
pub(crate) fn problem_of(error: RaftError) -> Problem {
    let code = match &error {
        RaftError::NotLeader { .. } | RaftError::NoQuorum(_) => Code::NoQuorum,
        RaftError::Overloaded(_) => Code::Overloaded,
        RaftError::Full => Code::DiskFull,
        RaftError::TooLarge(_) => Code::PayloadTooLarge,
        RaftError::Late(_) => Code::DeadlineExceeded,
        RaftError::Unknown(_) => Code::OutcomeUnknown,
        RaftError::Stopped(_) => Code::ShuttingDown,
        RaftError::Running(_)
        | RaftError::Failed { .. }
        | RaftError::Lost { .. }
        | RaftError::Log(_) => Code::ShardUnavailable,
    };
    let problem = Problem::new(code, error.to_string());
    match code {
        Code::Overloaded | Code::NoQuorum => problem.retry_after_ms(100),
        Code::DiskFull => problem.hint(MAKE_SPACE).retry_after_ms(1_000),
        Code::ShardUnavailable => problem.retry_after_ms(1_000),
        _ => problem,
    }
}
