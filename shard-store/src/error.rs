//! What a caller of the store has to do next, one variant a reaction.

use hopbine_proto::SegmentId;
use std::io;

/// Every way in which the store can fail.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop serving this shard and rebuild the replica from its peers.
    #[error("segment {segment} is damaged in its {section} at byte {offset}: {what}")]
    Damaged {
        /// Which file.
        segment: SegmentId,
        /// Part of the file, as the format's table names it.
        section: &'static str,
        /// Byte offset in the file: of the page that fails its checksum, or of the section.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The same for the manifest: without it nothing of the folder may be served.
    #[error("manifest is damaged: {what}")]
    DamagedManifest {
        /// What is wrong.
        what: &'static str,
    },
    /// Run the release that wrote the file; nothing is damaged.
    #[error("{file} has format version {found}, this release reads {known}")]
    UnknownVersion {
        /// `segment` or `manifest`.
        file: &'static str,
        /// The version in the file.
        found: u32,
        /// The only version that this release reads.
        known: u32,
    },
    /// Push back on writers and try again later: nothing was lost.
    #[error("no space left for new data")]
    DiskFull(#[source] io::Error),
    /// Try again later: nothing was lost.
    #[error("reading or writing failed: {0}")]
    Io(#[source] io::Error),
    /// Stop the process: after a failed sync nothing about unsynced bytes may be assumed.
    #[error("sync to disk failed: {0}")]
    SyncFailed(#[source] io::Error),
    /// Ask for less: what was asked for takes more memory than one reply may.
    #[error("the facts asked for take more than {bytes_max} bytes")]
    TooLarge {
        /// The most allowed.
        bytes_max: usize,
    },
    /// The caller's deadline passed or it gave up; nothing was done.
    #[error("the read was stopped by its caller")]
    Stopped,
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(error),
            _ => Self::Io(error),
        }
    }
}
