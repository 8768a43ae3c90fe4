//! How a replica reaches its peers: the trait that the node's network implements.
//!
//! A process whose groups have one voter each has no peers: `NoPeers`.

use crate::config::{TypeConfig, Vote};
use futures::future::BoxFuture;
use hopbine_proto::{GroupId, ReplicaId};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::storage::Snapshot;
use openraft::{EmptyNode, OptionalSend};
use std::future::Future;
use std::sync::Arc;

/// The peer can not be reached now; raft tries again by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replica {0} can not be reached")]
pub struct PeerUnreachable(pub ReplicaId);

/// The answer of a peer, later.
pub type PeerReply<'a, T> = BoxFuture<'a, Result<T, PeerUnreachable>>;

/// One replica of one group on another node.
pub trait Peer: Send + Sync {
    /// Sends entries or a heartbeat.
    fn append(
        &self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> PeerReply<'_, AppendEntriesResponse<TypeConfig>>;

    /// Asks for a vote.
    fn vote(&self, request: VoteRequest<TypeConfig>) -> PeerReply<'_, VoteResponse<TypeConfig>>;

    /// Asks whether a vote would be given.
    fn pre_vote(&self, request: VoteRequest<TypeConfig>)
    -> PeerReply<'_, VoteResponse<TypeConfig>>;
}

/// Finds peers.
pub trait Peers: Send + Sync {
    /// The peer that is `replica` of `group`, or `None` while its node is not known.
    fn peer(&self, group: GroupId, replica: ReplicaId) -> Option<Arc<dyn Peer>>;
}

/// Nobody else is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl Peers for NoPeers {
    fn peer(&self, _group: GroupId, _replica: ReplicaId) -> Option<Arc<dyn Peer>> {
        None
    }
}

/// Gives openraft the connections of one group.
pub struct GroupNetwork {
    group: GroupId,
    peers: Arc<dyn Peers>,
}

impl GroupNetwork {
    /// The network as one group sees it.
    pub fn new(group: GroupId, peers: Arc<dyn Peers>) -> Self {
        Self { group, peers }
    }
}

impl RaftNetworkFactory<TypeConfig> for GroupNetwork {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _node: &EmptyNode) -> Connection {
        Connection { group: self.group, target: ReplicaId(target), peers: self.peers.clone() }
    }
}

/// The way from one replica to another of the same group.
pub struct Connection {
    group: GroupId,
    target: ReplicaId,
    peers: Arc<dyn Peers>,
}

fn unreachable(error: PeerUnreachable) -> Unreachable<TypeConfig> {
    Unreachable::new(&error)
}

impl Connection {
    fn peer(&self) -> Result<Arc<dyn Peer>, Unreachable<TypeConfig>> {
        let peer = self.peers.peer(self.group, self.target);
        peer.ok_or_else(|| unreachable(PeerUnreachable(self.target)))
    }
}

impl RaftNetworkV2<TypeConfig> for Connection {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.peer()?.append(request).await.map_err(unreachable)?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.peer()?.vote(request).await.map_err(unreachable)?)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Ok(self.peer()?.pre_vote(request).await.map_err(unreachable)?)
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: Snapshot<crate::config::LeaderTerm, u64, EmptyNode, ()>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        // Snapshots have no data to send yet; a peer that needs one stays behind.
        Err(StreamingError::Unreachable(unreachable(PeerUnreachable(self.target))))
    }
}
