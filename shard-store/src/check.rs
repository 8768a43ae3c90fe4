//! Verifies a shard folder that nobody serves: the manifest, and every segment it names.

use crate::error::StoreError;
use crate::manifest::{MANIFEST_FILE, Manifest, list_orphans};
use crate::segment::{Segment, VectorSpace};
use hopbine_proto::LogIndex;
use hopbine_proto::disk::Disk;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What is wrong with one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which file.
    pub file: PathBuf,
    /// Byte offset near which it is wrong, when known.
    pub offset: Option<u64>,
    /// What is wrong: a lower-case phrase.
    pub what: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Last log entry that the segments hold; `None` without a readable manifest.
    pub applied: Option<LogIndex>,
    /// Segments that the manifest names.
    pub segments: usize,
    /// Rows of the segments that are sound, tombstones and hidden ones included.
    pub rows: u64,
    /// Bytes of the segments that are sound.
    pub bytes: u64,
    /// Names dropped for another of the same id, over all sound segments: an alarm, no damage.
    pub name_collisions: u64,
    /// Files that are no part of the state and go at the next start: no damage.
    pub orphans: Vec<PathBuf>,
    /// Damage; empty when all is well.
    pub findings: Vec<Finding>,
}

/// What is found in a folder that has no manifest: damage, unless the shard was being created or
/// dropped.
pub const NO_MANIFEST: &str = "no manifest";

/// Checks everything in a shard folder, and goes on after damage to find all of it. Fails only
/// when the disk itself does.
pub fn check_shard_folder(disk: &dyn Disk, dir: &Path) -> Result<Report, StoreError> {
    let mut report = Report::default();
    let file = dir.join(MANIFEST_FILE);
    let manifest = match Manifest::load(disk, dir) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => {
            let what = NO_MANIFEST.to_owned();
            report.findings.push(Finding { file, offset: None, what });
            return Ok(report);
        }
        Err(error) => {
            report.findings.push(finding(file, error)?);
            return Ok(report);
        }
    };
    let space = VectorSpace { dim: manifest.dim, metric: manifest.metric };
    report.segments = manifest.segments.len();
    report.applied = Some(manifest.applied_index);
    let mut damaged = BTreeSet::new();
    for meta in &manifest.segments {
        let opened = Segment::open(disk, dir, meta, space);
        let checked = opened.and_then(|segment| segment.verify_all(&mut |_| true));
        if let Err(error) = checked {
            report.findings.push(finding(dir.join(meta.file_name()), error)?);
            damaged.insert(meta.id);
        }
    }
    for meta in manifest.segments.iter().filter(|meta| !damaged.contains(&meta.id)) {
        report.rows += u64::from(meta.rows);
        report.bytes += meta.bytes;
        report.name_collisions += u64::from(meta.name_collisions);
    }
    if let Some(newest) = manifest.segments.iter().map(|meta| meta.max_version).max()
        && newest > manifest.applied_index
    {
        let what = format!("a row of log index {newest} lies above the applied index");
        report.findings.push(Finding { file, offset: None, what });
    }
    report.orphans = list_orphans(disk, dir, &manifest)?;
    Ok(report)
}

/// What damage says about a file; any other error ends the check.
fn finding(file: PathBuf, error: StoreError) -> Result<Finding, StoreError> {
    let offset = match &error {
        StoreError::Damaged { offset, .. } => Some(*offset),
        StoreError::DamagedManifest { .. } | StoreError::UnknownVersion { .. } => None,
        _ => return Err(error),
    };
    Ok(Finding { file, offset, what: error.to_string() })
}
