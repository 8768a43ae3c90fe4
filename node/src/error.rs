//! Why a node cannot open or go on, by what to do about it.

use hopbine_proto::status::{Code, Problem};
use std::io;
use std::path::PathBuf;

/// What a user can do about a full disk.
pub const MAKE_SPACE: &str =
    "drop a graph, which needs no space, or free some on the disk; deleting facts needs it, too";

/// An error that concerns the whole node, not one request.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Talk to the process that holds the folder, or stop it.
    #[error("data folder {} is held by process {pid}", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
        /// Who holds it.
        pid: u32,
        /// Where it serves HTTP, when it does.
        url: Option<String>,
    },
    /// Use the version that wrote it, or a newer one.
    #[error("data folder {} has format {found}, this version reads up to {known}", dir.display())]
    NewerFormat {
        /// The folder.
        dir: PathBuf,
        /// What the folder says.
        found: u32,
        /// What this version knows.
        known: u32,
    },
    /// Point to another folder: this one holds something else.
    #[error("{} is not a data folder of hopbine: {reason}", dir.display())]
    Foreign {
        /// The folder.
        dir: PathBuf,
        /// What speaks against it.
        reason: String,
    },
    /// Restore the file from a replica or a backup.
    #[error("{file} is damaged: {reason}")]
    Damaged {
        /// Which file, below the data folder.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Fix the disk; nothing acknowledged is lost.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// Change the setting.
    #[error("settings: {0}")]
    Config(String),
    /// A group could not start or stopped for good.
    #[error("raft group {group}: {reason}")]
    Group {
        /// Which.
        group: u64,
        /// What the group said.
        reason: String,
    },
}

impl NodeError {
    /// An I/O error with what was being done.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// Whether it is space that was missing.
    pub fn is_disk_full(&self) -> bool {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }
}

/// A shard that this node does not host, or not any more.
pub fn not_hosted(shard: hopbine_proto::ShardId) -> Problem {
    Problem::new(Code::ShardUnavailable, format!("shard {shard} is not hosted here"))
        .retry_after_ms(100)
}
