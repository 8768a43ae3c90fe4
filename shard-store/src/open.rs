//! Opening the folder of a shard: manifest, segments, and which of their rows are dead.

use crate::dead::DeadRows;
use crate::error::StoreError;
use crate::manifest::{MANIFEST_FILE, Manifest, SegmentMeta, list_orphans};
use crate::run::{Data, Run, SegmentFile};
use crate::segment::{Segment, Touched, VectorSpace};
use crate::shard::{DurableState, Shard, ShardConfig};
use hopbine_proto::disk::Disk;
use hopbine_proto::{EntityId, EntityRange, FactKey, KeyRange};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Shard {
    /// Makes the folder of a new shard, durable when this returns. Fails when there is one.
    pub fn create(
        disk: Arc<dyn Disk>,
        dir: impl Into<PathBuf>,
        config: ShardConfig,
    ) -> Result<Self, StoreError> {
        let dir = dir.into();
        disk.create_dir(&dir)?;
        if Manifest::load(&*disk, &dir)?.is_some() {
            let exists = std::io::ErrorKind::AlreadyExists;
            return Err(StoreError::Io(std::io::Error::new(exists, "the folder holds a shard")));
        }
        // Whoever lost the manifest must not lose the segments, too.
        if disk.list(&dir)?.iter().any(|name| name.ends_with(".segment")) {
            return Err(StoreError::DamagedManifest { what: "there is none beside the segments" });
        }
        let (range, epoch) = (config.range, config.epoch);
        let manifest = Manifest::new(config.shard, config.dim, config.metric, range, epoch);
        manifest.store(&*disk, &dir)?;
        if let Some(parent) = dir.parent() {
            disk.sync_dir(parent).map_err(StoreError::SyncFailed)?;
        }
        Self::open(disk, dir, config)
    }

    /// Opens the folder of a shard: manifest, segments, and which of their rows are dead. The
    /// memtable is empty; replay starts above `durable().index`. Removes files of unfinished work.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: impl Into<PathBuf>,
        config: ShardConfig,
    ) -> Result<Self, StoreError> {
        let dir = dir.into();
        let manifest = Manifest::load(&*disk, &dir)?
            .ok_or(StoreError::DamagedManifest { what: "there is none" })?;
        if manifest.shard != config.shard
            || (manifest.dim, manifest.metric) != (config.dim, config.metric)
        {
            return Err(StoreError::DamagedManifest { what: "it is of another shard or space" });
        }
        for orphan in list_orphans(&*disk, &dir, &manifest)? {
            disk.remove(&orphan)?;
        }
        let space = space_of(&config);
        let mut segments = Vec::new();
        for meta in &manifest.segments {
            segments.push(open_segment(&disk, &dir, meta, space)?);
        }
        let dead = dead_by_segments(&segments, &manifest.range)?;
        let runs = segments.into_iter().zip(&dead).map(|(file, dead)| Run {
            visible: file.segment.rows(),
            data: Data::Segment(file),
            dead: Arc::new(dead.clone()),
        });
        let runs = runs.collect();
        let ids = manifest.segments.iter().map(|meta| meta.id);
        let dead = ids.zip(dead).collect();
        Ok(Self::assemble(config, disk, dir, DurableState { manifest, dead }, runs))
    }

    /// Whether the folder holds a shard, even a damaged one.
    pub fn exists(disk: &dyn Disk, dir: &Path) -> Result<bool, StoreError> {
        Ok(disk.len(&dir.join(MANIFEST_FILE))?.is_some())
    }
}

/// The space that the shard's vectors live in.
pub(crate) fn space_of(config: &ShardConfig) -> VectorSpace {
    VectorSpace { dim: config.dim, metric: config.metric }
}

/// Opens the file that `meta` names.
pub(crate) fn open_segment(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    meta: &SegmentMeta,
    space: VectorSpace,
) -> Result<Arc<SegmentFile>, StoreError> {
    let segment = Segment::open(&**disk, dir, meta, space)?;
    let path = dir.join(meta.file_name());
    Ok(Arc::new(SegmentFile::new(segment, path, disk.clone())))
}

/// Rows of a segment that are tombstones: dead from the start.
pub(crate) fn tombstones_of(segment: &Segment) -> DeadRows {
    segment.tombstones().collect()
}

/// Per segment, newest first, the rows that are dead by the segments alone: tombstones, rows
/// outside the shard's range, and rows whose key a newer segment holds.
fn dead_by_segments(
    segments: &[Arc<SegmentFile>],
    range: &EntityRange,
) -> Result<Vec<DeadRows>, StoreError> {
    let mut all = Vec::with_capacity(segments.len());
    for (place, older) in segments.iter().enumerate() {
        let segment = &older.segment;
        let mut dead = tombstones_of(segment);
        dead.extend(outside(segment, range)?);
        for newer in &segments[..place] {
            kill_keys_of(&newer.segment, segment, &mut dead)?;
        }
        all.push(dead);
    }
    Ok(all)
}

/// Rows of entities that the shard does not own.
fn outside(
    segment: &Segment,
    range: &EntityRange,
) -> Result<impl Iterator<Item = u32> + use<>, StoreError> {
    let first_at_or_after = |entity: EntityId| {
        let from = KeyRange { start: FactKey::new(entity.0, 0, 0), end: None };
        Ok::<u32, StoreError>(segment.range(&from, &mut Touched::default())?.start)
    };
    let start = first_at_or_after(range.start)?;
    let end = range.end.map_or(Ok(segment.rows()), first_at_or_after)?;
    Ok((0..start).chain(end..segment.rows()))
}

/// Marks in `dead` the rows of `older` whose key `newer` holds, tombstones included.
pub(crate) fn kill_keys_of(
    newer: &Segment,
    older: &Segment,
    dead: &mut DeadRows,
) -> Result<(), StoreError> {
    let (Some(first), Some(last)) = (older.meta().min_key, older.meta().max_key) else {
        return Ok(());
    };
    let overlap = KeyRange { start: first, end: last.successor() };
    let rows = newer.range(&overlap, &mut Touched::default())?;
    let mut keys: Vec<FactKey> = Vec::with_capacity(rows.len());
    newer.for_each_key(rows, |_, key| keys.push(key))?;
    let mut touched = Touched::default();
    for key in keys {
        if let Some(row) = older.find(key, &mut touched)? {
            dead.insert(row);
        }
    }
    Ok(())
}
