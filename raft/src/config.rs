//! The settings of log and groups, and the one set of types that openraft is instantiated with.

use crate::command::{Command, LogPosition, Outcome};
use hopbine_proto::ReplicaId;
use openraft::impls::leader_id_std;
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// The one instantiation of openraft. A node id is a `ReplicaId`; addresses are kept elsewhere.
    pub TypeConfig:
        D = Command,
        R = Outcome,
        NodeId = u64,
        Node = openraft::impls::EmptyNode,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
);

type LeaderId = leader_id_std::LeaderId<u64, u64>;
/// The part of a leader's id that log ids carry: its term.
pub type LeaderTerm = <LeaderId as openraft::vote::RaftLeaderId>::Committed;
/// A log id of openraft; its first index is 0 where ours is 1.
pub type LogId = openraft::LogId<LeaderTerm>;
/// A vote of openraft.
pub type Vote = openraft::Vote<LeaderId>;
/// A group's members as of one log id.
pub type Membership = openraft::StoredMembership<LeaderTerm, u64, openraft::EmptyNode>;
/// An entry of openraft.
pub type RaftEntry = <TypeConfig as openraft::RaftTypeConfig>::Entry;

/// Translates a log id of openraft to ours.
pub fn position_of(id: &LogId) -> LogPosition {
    LogPosition::new(*id.leader_id, id.index + 1)
}

/// Translates our position to a log id of openraft; `None` for `LogPosition::NONE`.
pub fn log_id_of(position: LogPosition) -> Option<LogId> {
    let index = position.index.0.checked_sub(1)?;
    Some(LogId::new_term_index(position.term, index))
}

/// The replica that a number of openraft names.
pub fn replica_of(node: u64) -> ReplicaId {
    ReplicaId(node)
}

/// Settings of the shared log and of the groups over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RaftConfig {
    /// Bytes of one log segment, 16 KiB to 1 GiB. Space is reserved a segment ahead.
    pub segment_bytes: u64,
    /// Bytes of recent entries kept in memory, all groups together.
    pub cache_bytes_max: usize,
    /// Bytes of the whole log above which the groups that hold its oldest segments are named in
    /// `Groups::pinning`, so that their machines be flushed.
    pub log_bytes_max: u64,
    /// Milliseconds between a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// Smallest and largest milliseconds without a leader before a replica stands for election.
    pub election_ms: (u64, u64),
    /// Proposals of one group that may wait at once; beyond it callers get `Overloaded`.
    pub proposals_max: usize,
    /// Bytes of proposals of one group that may wait at once; one larger command may wait alone.
    pub proposal_bytes_max: usize,
    /// Entries kept below the durable point for peers that lag a little.
    pub entries_kept: u64,
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            cache_bytes_max: 64 * 1024 * 1024,
            log_bytes_max: 1024 * 1024 * 1024,
            heartbeat_ms: 250,
            election_ms: (1_000, 2_000),
            proposals_max: 4_096,
            proposal_bytes_max: 128 * 1024 * 1024,
            entries_kept: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_log_ids_translate_both_ways() {
        assert_eq!(log_id_of(LogPosition::NONE), None);
        for (term, index) in [(0, 1), (3, 9)] {
            let position = LogPosition::new(term, index);
            let id = log_id_of(position).expect("an entry has an id");
            assert_eq!((id.index, position_of(&id)), (index - 1, position));
        }
    }
}
