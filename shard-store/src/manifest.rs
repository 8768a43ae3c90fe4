//! The manifest of a shard folder: which segments are live, and up to which log entry they hold
//! everything. Swapped whole by one rename, so a crash leaves the old one or the new one.
//!
//! | part     | bytes  | content                                                        |
//! |----------|--------|----------------------------------------------------------------|
//! | magic    | 8      | `HBMANIF` and a zero byte                                      |
//! | version  | 4      | format version, 1                                              |
//! | length   | 4      | bytes of the body                                              |
//! | body     | length | the `Manifest` in postcard coding, fields in order             |
//! | checksum | 4      | crc32c of everything before                                    |
//!
//! Integers are little-endian; postcard writes varints.

use crate::error::StoreError;
use hopbine_proto::disk::Disk;
use hopbine_proto::limits::COUNTER_MAX;
use hopbine_proto::{EntityRange, Epoch, FactKey, LogIndex, Metric, SegmentId, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// File name of the manifest inside a shard folder.
pub const MANIFEST_FILE: &str = "MANIFEST";
/// The only format version that this release reads and writes.
pub const MANIFEST_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"HBMANIF\0";
const HEAD_BYTES: usize = 16;

/// The durable point of one shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Whose folder this is.
    pub shard: ShardId,
    /// Components of every embedding.
    pub dim: u32,
    /// Distance of the graph.
    pub metric: Metric,
    /// Entities that the shard owns; rows of segments outside it count as dead.
    pub range: EntityRange,
    /// Version of that ownership.
    pub epoch: Epoch,
    /// Raft term of the last entry held.
    pub applied_term: u64,
    /// Index of the last entry held: everything up to it is in the segments.
    pub applied_index: LogIndex,
    /// Raft membership as of that entry; the store does not look inside.
    pub membership: Vec<u8>,
    /// Client sessions as of that entry; the store does not look inside.
    pub sessions: Vec<u8>,
    /// Number of the next segment file; never used before in this folder.
    pub next_segment: SegmentId,
    /// Newest first: a key of an earlier segment hides the same key of a later one.
    pub segments: Vec<SegmentMeta>,
}

/// What the manifest says of one segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SegmentMeta {
    /// Names the file.
    pub id: SegmentId,
    /// Rows, tombstones included.
    pub rows: u32,
    /// Rows with an embedding.
    pub vectors: u32,
    /// Rows that only say that a key is gone.
    pub tombstones: u32,
    /// Smallest key; `None` when there is no row.
    pub min_key: Option<FactKey>,
    /// Largest key; `None` when there is no row.
    pub max_key: Option<FactKey>,
    /// Smallest log index of a row; 0 when there is no row.
    pub min_version: LogIndex,
    /// Largest log index of a row; 0 when there is no row.
    pub max_version: LogIndex,
    /// Bytes of the file.
    pub bytes: u64,
    /// 128-bit xxh3 over the file's page checksums and footer: equal files have equal hashes,
    /// so a snapshot skips what its receiver has, and a swapped file is noticed at open.
    pub content_hash: u128,
    /// Names dropped because another name of the same id was met while writing: an alarm.
    pub name_collisions: u32,
    /// How seeds are searched by default, as the seal chose.
    pub way: String,
    /// Recall@64 of that way, when it was measured.
    pub recall: Option<f64>,
    /// Why the way is not the wished one.
    pub alarm: Option<String>,
}

impl SegmentMeta {
    /// Name of the file inside the shard folder.
    pub fn file_name(&self) -> String {
        segment_file_name(self.id)
    }
}

/// Name of a segment's file inside the shard folder.
pub fn segment_file_name(id: SegmentId) -> String {
    format!("{:016x}.segment", id.0)
}

impl Manifest {
    /// The manifest of a shard without data, owned from its first epoch on.
    pub fn new(shard: ShardId, dim: u32, metric: Metric, range: EntityRange, epoch: Epoch) -> Self {
        Self {
            shard,
            dim,
            metric,
            range,
            epoch,
            applied_term: 0,
            applied_index: LogIndex(0),
            membership: Vec::new(),
            sessions: Vec::new(),
            next_segment: SegmentId(1),
            segments: Vec::new(),
        }
    }

    /// Reads the manifest of a folder; `None` when the folder has none.
    pub fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(MANIFEST_FILE);
        if disk.len(&path)?.is_none() {
            return Ok(None);
        }
        Self::decode(&disk.read(&path)?).map(Some)
    }

    /// Makes this the manifest of the folder. The segments it names must be durable already.
    /// After `DiskFull` the old one is still there and the call may be repeated; after any other
    /// error it is open which of the two a crash would leave, so the process must stop.
    pub fn store(&self, disk: &dyn Disk, dir: &Path) -> Result<(), StoreError> {
        let stored = disk.replace(&dir.join(MANIFEST_FILE), &self.encode());
        stored.map_err(|error| match StoreError::from(error) {
            StoreError::Io(error) => StoreError::SyncFailed(error),
            other => other,
        })
    }

    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("plain values always encode");
        let length = u32::try_from(body.len()).expect("sessions and segments stay below 4 GiB");
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len() + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&MANIFEST_VERSION.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The manifest behind the bytes of a file.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |what| StoreError::DamagedManifest { what };
        let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(damaged("shorter than its head"));
        };
        if !head.starts_with(MAGIC) {
            return Err(damaged("no manifest by its first bytes"));
        }
        let Some((covered, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(damaged("shorter than its head"));
        };
        if crc32c::crc32c(covered) != u32::from_le_bytes(*crc) {
            return Err(damaged("checksum differs"));
        }
        let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if found != MANIFEST_VERSION {
            let (file, known) = ("manifest", MANIFEST_VERSION);
            return Err(StoreError::UnknownVersion { file, found, known });
        }
        let length = u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize;
        let body = covered.get(HEAD_BYTES..).unwrap_or_default();
        if body.len() != length {
            return Err(damaged("length differs"));
        }
        let manifest: Self =
            postcard::from_bytes(body).map_err(|_| damaged("body does not decode"))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Segments must have distinct numbers below the next one.
    fn check(&self) -> Result<(), StoreError> {
        let numbers: BTreeSet<SegmentId> = self.segments.iter().map(|meta| meta.id).collect();
        if numbers.len() != self.segments.len() {
            return Err(StoreError::DamagedManifest { what: "a segment is named twice" });
        }
        if numbers.last().is_some_and(|last| *last >= self.next_segment) {
            return Err(StoreError::DamagedManifest { what: "a segment number is not below next" });
        }
        // Counting on from there would end at a number that was given before.
        if self.next_segment.0 > COUNTER_MAX {
            return Err(StoreError::DamagedManifest { what: "a number that no shard reaches" });
        }
        Ok(())
    }
}

/// Files of a shard folder that are no part of the state which `manifest` names: segments of an
/// unfinished flush or compaction and temporary files. Whoever owns the folder may remove them.
pub fn list_orphans(
    disk: &dyn Disk,
    dir: &Path,
    manifest: &Manifest,
) -> Result<Vec<PathBuf>, StoreError> {
    let live: BTreeSet<String> = manifest.segments.iter().map(SegmentMeta::file_name).collect();
    let mut orphans = Vec::new();
    for name in disk.list(dir)? {
        let ours = name.ends_with(".segment") || name.ends_with(".tmp");
        if ours && !live.contains(&name) {
            orphans.push(dir.join(name));
        }
    }
    Ok(orphans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::EntityId;

    #[test]
    fn a_manifest_from_which_counting_on_would_overflow_is_refused() {
        let range = EntityRange { start: EntityId(0), end: None };
        let fresh = Manifest::new(ShardId(1), 2, Metric::Cosine, range, Epoch(1));
        for (next, fits) in [(COUNTER_MAX, true), (COUNTER_MAX + 1, false), (u64::MAX, false)] {
            let manifest = Manifest { next_segment: SegmentId(next), ..fresh.clone() };
            let read = Manifest::decode(&manifest.encode());
            assert_eq!(read.is_ok(), fits, "{next}: {read:?}");
        }
    }
}
