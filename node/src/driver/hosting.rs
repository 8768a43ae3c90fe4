//! The shards of the catalogue's graphs come to be served here, and those that could not be made
//! are made later.
//!
//! A graph that is new is served as a whole or not at all: until its last shard is made, nobody
//! finds any of them, so that one which finds no space can be taken back with nothing lost.

use super::node::{Hosted, Node, start_group};
use crate::error::NodeError;
use crate::folder::{folders_of_dropped, refuse_unknown};
use crate::replica::Replica;
use futures::StreamExt;
use futures::future::join_all;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::{GroupId, ReplicaId, ShardId};
use hopbine_shard_store::{Shard, ShardConfig, StoreError};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use tracing::{info, warn};

/// Shards opened or created side by side.
const HOSTED_AT_ONCE: usize = 32;

/// What making a shard may do where there is no space for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Leave a shard that never held anything to later: what it needs is a node on which a graph
    /// can be dropped.
    Starting,
    /// Fail, before the log has to wait for space.
    Serving,
}

/// Shards that were made and are not served yet, and why another one was not.
type Made = (Vec<Arc<Hosted>>, Result<(), NodeError>);

impl Node {
    /// Hosts every shard of the catalogue, and removes the folders of shards whose graphs were
    /// dropped. Touches nothing before it is clear that log, catalogue, shards and this node's
    /// number belong together.
    pub(super) async fn host_all(&self) -> Result<(), NodeError> {
        let catalogue = self.catalogue();
        let dropped = folders_of_dropped(self.parts.disk.as_ref(), &self.dir, &catalogue, self.id)?;
        refuse_unknown(self.groups.known(), &catalogue)?;
        let data = &self.parts.disk;
        data.create_dir(&self.dir.join("shards"))
            .and_then(|()| data.sync_dir(&self.dir))
            .map_err(NodeError::io("create the shards folder"))?;
        let graphs: Vec<_> = catalogue.graphs().collect();
        let shards = graphs
            .iter()
            .flat_map(|graph| self.missing(graph).map(move |shard| (&***graph, shard)));
        let shards = shards.collect();
        let (made, outcome) = self.make_each(shards, When::Starting).await;
        self.serve(made);
        outcome?;
        for graph in graphs {
            self.note_missing(graph);
        }
        self.remove_leftovers(dropped).await
    }

    /// Makes the shards of a graph that the caller has just put into the catalogue, holding
    /// `shaping` since before. When one of them fails none is served, and what was made of the
    /// others may be removed: nobody has written to them.
    pub(super) async fn host_new(&self, graph: &GraphInfo) -> Result<(), NodeError> {
        if !self.wants(graph) {
            return Ok(());
        }
        let missing = self.missing(graph).map(|shard| (graph, shard)).collect();
        let (made, outcome) = self.make_each(missing, When::Serving).await;
        match &outcome {
            Ok(()) => self.serve(made),
            // So that each can be started again.
            Err(_) => {
                let stopping = made.iter().map(|hosted| self.groups.stop_group(hosted.group.id()));
                join_all(stopping).await;
            }
        }
        outcome
    }

    /// Makes the shards that a graph lacks and serves them, each for itself; those that are there
    /// already are left alone. The caller holds `shaping`.
    pub(super) async fn host_rest(&self, graph: &GraphInfo) -> Result<(), NodeError> {
        if !self.wants(graph) {
            return Ok(());
        }
        let missing = self.missing(graph).map(|shard| (graph, shard)).collect();
        let (made, outcome) = self.make_each(missing, When::Serving).await;
        self.serve(made);
        self.note_missing(graph);
        outcome
    }

    /// Makes what could not be made before: what a full disk or a crash left out.
    pub(crate) async fn host_missing(&self) {
        for graph in self.catalogue().graphs() {
            let _shaping = self.shaping.lock().await;
            if !self.wants(graph) || self.missing(graph).next().is_none() {
                continue;
            }
            match self.host_rest(graph).await {
                Ok(()) => info!(graph = %graph.name, "its missing shards are made"),
                Err(failure) => {
                    warn!(error = %failure, graph = %graph.name, "its shards are made later");
                }
            }
        }
    }

    /// Whether a graph has a shard that should be here and is not, be it that it is made just now.
    pub(super) fn lacks_shards(&self) -> bool {
        self.catalogue().graphs().any(|graph| self.missing(graph).next().is_some())
    }

    /// What stays to be made though nobody is at it: one line a graph. Cheap.
    pub(super) fn unmade(&self) -> Vec<String> {
        let unmade = self.unmade.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let catalogue = self.catalogue();
        let graphs = catalogue.graphs().filter(|graph| unmade.contains(&graph.id));
        let lines = graphs.filter_map(|graph| {
            let (missing, all) = (self.missing(graph).count(), graph.shards.len());
            let line = || format!("graph {}: {missing} of {all} shards are not made", graph.name);
            (missing > 0).then(line)
        });
        lines.collect()
    }

    /// Remembers that a graph lacks shards, or that it does no more.
    pub(super) fn note_missing(&self, graph: &GraphInfo) {
        let lacks = self.missing(graph).next().is_some();
        let mut unmade = self.unmade.lock().unwrap_or_else(PoisonError::into_inner);
        match lacks {
            true => unmade.insert(graph.id),
            false => unmade.remove(&graph.id),
        };
    }

    /// Whether the shards of `graph` are to be made now: not when it was dropped between its
    /// creation and here, nor when a stop leaves them to the next start.
    fn wants(&self, graph: &GraphInfo) -> bool {
        let there = self.catalogue().graphs().any(|known| known.id == graph.id);
        there && !self.stopping.load(Ordering::SeqCst)
    }

    /// The shards of `graph` that belong to this node and are not served.
    fn missing<'a>(&self, graph: &'a GraphInfo) -> impl Iterator<Item = &'a ShardDescriptor> {
        let ours = graph.shards.iter().filter(|shard| self.replica_of(shard).is_some());
        ours.filter(|shard| self.find(shard.id).is_none())
    }

    /// The replica of a shard that this node has, if any.
    fn replica_of(&self, shard: &ShardDescriptor) -> Option<ReplicaId> {
        let ours = shard.replicas.iter().find(|(_, node)| *node == self.id);
        ours.map(|(replica, _)| *replica)
    }

    /// From here on they are found.
    fn serve(&self, made: Vec<Arc<Hosted>>) {
        let mut hosted = self.hosted.write().unwrap_or_else(PoisonError::into_inner);
        hosted.extend(made.into_iter().map(|made| (made.shard.config().shard, made)));
    }

    /// Makes many shards, some at a time: they share the syncs that each begins with.
    async fn make_each(&self, shards: Vec<(&GraphInfo, &ShardDescriptor)>, when: When) -> Made {
        let making = shards.into_iter().map(|(graph, shard)| self.make(graph, shard, when));
        let making: Vec<_> = making.collect();
        // Each to its end, also when another fails: a group half started could not be tried again.
        let ended: Vec<Result<Option<Arc<Hosted>>, NodeError>> =
            futures::stream::iter(making).buffer_unordered(HOSTED_AT_ONCE).collect().await;
        let (mut made, mut outcome) = (vec![], Ok(()));
        for ended in ended {
            match ended {
                Ok(one) => made.extend(one),
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        (made, outcome)
    }

    /// Opens the folder of a shard, or makes it, and starts its group. `None`: there is no space
    /// for it, and it is left to later.
    async fn make(
        &self,
        graph: &GraphInfo,
        descriptor: &ShardDescriptor,
        when: When,
    ) -> Result<Option<Arc<Hosted>>, NodeError> {
        let id = descriptor.id;
        let Some(replica_id) = self.replica_of(descriptor) else {
            return Ok(None);
        };
        if when == When::Serving && self.groups.space_pressure() {
            // Its group would wait for room in the log, and whoever drops a graph for that would
            // wait for the group.
            let full = io::Error::from(ErrorKind::StorageFull);
            return Err(NodeError::io(format!("start shard {id}"))(full));
        }
        let config = ShardConfig {
            memtable_bytes_max: self.config.memtable_bytes_max,
            merge_memory_max: self.config.merge_memory_max,
            ..ShardConfig::of_graph(id, descriptor.range, descriptor.epoch, &graph.config)
        };
        let dir = self.dir.join("shards").join(id.to_string());
        let data = self.parts.disk.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let known = data.len(&dir.join("MANIFEST")).ok().flatten().is_some();
            let opened = match known {
                true => Shard::open(data, &dir, config),
                false => Shard::create(data, &dir, config),
            };
            (known, opened)
        });
        let opened = opened.await.map_err(|error| shard_error(id, &error.to_string()))?;
        if let (false, Err(StoreError::DiskFull(failure))) = &opened
            && when == When::Starting
        {
            warn!(error = %failure, shard = %id, graph = %graph.name, "no space to make it");
            return Ok(None);
        }
        let shard = Arc::new(opened.1.map_err(|error| store_error(id, error))?);
        let upkeep = self.upkeep.clone();
        let replica = Replica::new(shard.clone(), Box::new(move || upkeep.wake()));
        let replica = Arc::new(replica.map_err(|error| shard_error(id, &error.to_string()))?);
        let clock = self.parts.clock.as_ref();
        let number = GroupId(id.0);
        let group = start_group(&self.groups, clock, number, replica_id, replica.clone()).await?;
        Ok(Some(Arc::new(Hosted {
            graph: graph.id,
            alone: graph.shards.len() == 1,
            epoch: descriptor.epoch,
            shard,
            replica,
            group,
            damaged: OnceLock::new(),
            dropped: AtomicBool::new(false),
            merge_due: AtomicU64::new(0),
            merges_failed: AtomicU32::new(0),
        })))
    }
}

/// A shard that did not open: a file that is wrong is another matter than a disk that fails.
fn store_error(shard: ShardId, error: StoreError) -> NodeError {
    let doing = format!("open shard {shard}");
    match error {
        StoreError::Io(source) | StoreError::DiskFull(source) | StoreError::SyncFailed(source) => {
            NodeError::Io { doing, source }
        }
        other => shard_error(shard, &other.to_string()),
    }
}

fn shard_error(shard: ShardId, reason: &str) -> NodeError {
    NodeError::Damaged { file: format!("shards/{shard}"), reason: reason.to_owned() }
}
