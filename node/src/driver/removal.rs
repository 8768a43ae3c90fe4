//! What is left of a dropped graph goes: its groups, their part of the log, its shards' folders.
//!
//! The catalogue forgets the graph first, durably. From then on its shards are known as dropped,
//! and no number of a shard is ever given twice. So the rest may run beside anything else, a new
//! graph of the same name included, may end anywhere, and is finished by the next start.

use super::node::{CATALOGUE, Hosted, Node, group_error};
use crate::error::NodeError;
use futures::StreamExt;
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::{GroupId, ShardId};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinError;
use tracing::{info, warn};

/// Shards removed side by side: those that wait for the log share its syncs.
const REMOVED_AT_ONCE: usize = 64;
/// How long the drop of a graph waits for work on its shards.
const FORGET_PATIENCE: Duration = Duration::from_secs(2);

impl Node {
    /// Stops the shards of a dropped graph and removes their folders and log records. One that a
    /// creation broke off over may be there in part.
    pub(crate) async fn unhost_graph(&self, graph: &GraphInfo) -> Result<(), NodeError> {
        let removed: Vec<(ShardId, Option<Arc<Hosted>>)> = {
            // Not while they are being hosted. Who comes later finds no such graph.
            let _shaping = self.shaping.lock().await;
            if self.stopping.load(Ordering::SeqCst) {
                // The next start does it.
                return Ok(());
            }
            self.unmade.lock().unwrap_or_else(PoisonError::into_inner).remove(&graph.id);
            let mut hosted = self.hosted.write().unwrap_or_else(PoisonError::into_inner);
            graph.shards.iter().map(|shard| (shard.id, hosted.remove(&shard.id))).collect()
        };
        // Whatever works on any of them ends before the first is waited for.
        for hosted in removed.iter().filter_map(|(_, hosted)| hosted.as_ref()) {
            hosted.dropped.store(true, Ordering::SeqCst);
        }
        // What is left by a crash from here on is known as dropped. The log says so too: a full
        // disk must not keep the space of a dropped graph.
        if let Err(failure) = self.save_catalogue().await {
            warn!(error = %failure, graph = %graph.name, "the catalogue is saved later");
        }
        let until = self.parts.clock.monotonic() + FORGET_PATIENCE;
        let forgetting = removed.into_iter().map(|(id, hosted)| self.forget(id, hosted, until));
        side_by_side(forgetting.collect()).await
    }

    /// Removes what a crash left of dropped graphs: the folders `dropped`, and every group of a
    /// shard that is not hosted.
    pub(super) async fn remove_leftovers(&self, dropped: Vec<PathBuf>) -> Result<(), NodeError> {
        for folder in dropped {
            info!(folder = %folder.display(), "removing the shard of a dropped graph");
            remove_folder(self.parts.disk.clone(), folder).await?;
        }
        let known = self.groups.known().into_iter();
        let left =
            known.filter(|group| *group != CATALOGUE && self.find(ShardId(group.0)).is_none());
        let left: Vec<GroupId> = left.collect();
        let removing = left.into_iter().map(|group| self.remove_group(group));
        side_by_side(removing.collect()).await
    }

    /// Saves the catalogue, off the async threads. Returns whether it had changed.
    pub(super) async fn save_catalogue(&self) -> Result<bool, NodeError> {
        let meta = self.meta.clone();
        let saved = tokio::task::spawn_blocking(move || meta.save()).await;
        let broke_off =
            |error: JoinError| Err(NodeError::io("save the catalogue")(io::Error::other(error)));
        saved.unwrap_or_else(broke_off)
    }

    /// Ends the group of a shard that is hosted no more and removes its folder: at once, or when
    /// something still works on it after `until`, once that has ended.
    async fn forget(
        &self,
        id: ShardId,
        hosted: Option<Arc<Hosted>>,
        until: Duration,
    ) -> Result<(), NodeError> {
        let gone = self.remove_group(GroupId(id.0)).await;
        let dir = self.dir.join("shards").join(id.to_string());
        let store = hosted.map(|hosted| hosted.shard.clone());
        let (upkeep, disk) = (self.upkeep.clone(), self.parts.disk.clone());
        let patience = until.saturating_sub(self.parts.clock.monotonic());
        if let Some(store) = store
            && !upkeep.forget(&store, patience).await
        {
            // A merge or a seal under way takes its time. A start removes what a crash leaves.
            tokio::spawn(async move {
                upkeep.forget(&store, Duration::MAX).await;
                drop(store);
                if let Err(error) = remove_folder(disk, dir).await {
                    warn!(shard = %id, %error, "the folder of a dropped shard is still there");
                }
            });
            return gone;
        }
        gone.and(remove_folder(disk, dir).await)
    }

    async fn remove_group(&self, group: GroupId) -> Result<(), NodeError> {
        let removed = self.groups.remove_group(group).await;
        removed.map_err(|error| group_error(group, error))
    }
}

/// Runs all to their ends, some at a time; an error of any of them is the result.
async fn side_by_side(
    all: Vec<impl Future<Output = Result<(), NodeError>>>,
) -> Result<(), NodeError> {
    let ended: Vec<Result<(), NodeError>> =
        futures::stream::iter(all).buffer_unordered(REMOVED_AT_ONCE).collect().await;
    ended.into_iter().collect()
}

/// Removes a folder, off the async threads.
async fn remove_folder(disk: Arc<dyn Disk>, dir: PathBuf) -> Result<(), NodeError> {
    let removed = tokio::task::spawn_blocking(move || disk.remove_dir(&dir)).await;
    let removed = removed.unwrap_or_else(|error| Err(io::Error::other(error)));
    removed.map_err(NodeError::io("remove a shard folder"))
}
