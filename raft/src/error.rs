//! Errors by what the caller does next.

use hopbine_proto::{GroupId, ReplicaId};
use std::path::PathBuf;

/// Bytes that are not what they should be: from a peer, a caller or the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

/// Why a group did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RaftError {
    /// Ask `leader`, or any other replica when it is unknown, with back-off. Nothing was written.
    #[error("not the leader of group {group}")]
    NotLeader {
        /// The group asked.
        group: GroupId,
        /// Its leader, when known.
        leader: Option<ReplicaId>,
    },
    /// Back off and retry. Nothing was written.
    #[error("group {0} has too many proposals waiting")]
    Overloaded(GroupId),
    /// The log's disk is nearly full: retry after space was made. Nothing was written.
    #[error("the disk of the raft log is full")]
    Full,
    /// Larger than one entry may be. Nothing was written.
    #[error("a command of {0} bytes is larger than one log entry may be")]
    TooLarge(usize),
    /// The deadline passed before the proposal was handed over. Nothing was written.
    #[error("the deadline passed before group {0} took the request")]
    Late(GroupId),
    /// May or may not be written: retry under the same idempotency key.
    #[error("the fate of a proposal to group {0} is not known")]
    Unknown(GroupId),
    /// No quorum confirmed the leader in time; retry elsewhere or later.
    #[error("group {0} has no leader with a quorum")]
    NoQuorum(GroupId),
    /// This replica does not run here (any more).
    #[error("group {0} is stopped")]
    Stopped(GroupId),
    /// Another live replica of the group runs here already.
    #[error("group {0} runs already")]
    Running(GroupId),
    /// The log or the machine is broken: the process must stop serving; a human looks.
    #[error("group {group} failed: {reason}")]
    Failed {
        /// The group.
        group: GroupId,
        /// What happened.
        reason: String,
    },
    /// Stop serving; restore the log or what it belongs to: one of the two is not whole.
    #[error("group {group}: {reason}")]
    Lost {
        /// Which group.
        group: GroupId,
        /// How they contradict each other.
        reason: String,
    },
    /// The log itself can not be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Why the shared log can not be opened or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Refuse to start: acknowledged records are damaged. Restore this node from its peers.
    #[error("raft log {file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment.
        file: PathBuf,
        /// Where the first bad record starts.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The disk failed: stop the process; nothing may be assumed about the unsynced part.
    #[error("raft log failed: {0}")]
    Failed(String),
    /// No space left, and nothing was written.
    #[error("no space for the raft log")]
    Full,
}
