//! Verifies a whole data folder offline: format, catalogue, log and every shard.

use crate::disk;
use crate::error::NodeError;
use crate::meta;
use hopbine_proto::disk::Disk;
use hopbine_shard_store::StoreError;
use hopbine_shard_store::check::check_shard_folder;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which file, below the data folder.
    pub file: PathBuf,
    /// Byte offset near which it is wrong, when known.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}

/// What a check saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Graphs of the saved catalogue; newer ones may lie in the log.
    pub graphs: usize,
    /// Shard folders.
    pub shards: usize,
    /// Segments of all shards.
    pub segments: usize,
    /// Rows of all sound segments, dead ones included.
    pub rows: u64,
    /// Records of the log.
    pub log_records: u64,
    /// Bytes read and found sound.
    pub bytes: u64,
    /// Harmless remarks: leftovers that the next start removes, a torn last write.
    pub remarks: Vec<String>,
    /// Damage; empty when all is well.
    pub findings: Vec<Finding>,
}

/// Reads everything below `dir` and verifies every checksum, changing nothing. Goes on after
/// damage to find all of it. The folder must not be open in any process (the caller holds its
/// lock). Fails only when the folder is not ours or the disk itself fails.
pub fn check_folder(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Report, NodeError> {
    let missing = disk.len(&dir.join("FORMAT")).map_err(NodeError::io("look at FORMAT"))?.is_none();
    if missing {
        let reason = "it has no FORMAT".to_owned();
        return Err(NodeError::Foreign { dir: dir.to_owned(), reason });
    }
    disk::check_format(disk.as_ref(), dir)?;
    let mut report = Report::default();
    if let Err(error) = disk::node_id(disk.as_ref(), dir, 0) {
        report.note(Path::new("node-id"), None, error.to_string());
    }
    match meta::check_file(disk.as_ref(), dir) {
        Ok(Some(catalogue)) => report.graphs = catalogue.graphs().count(),
        Ok(None) => {}
        Err(error) => report.note(Path::new("catalogue/STATE"), None, error.to_string()),
    }
    check_log(disk, dir, &mut report);
    check_shards(disk, dir, &mut report)?;
    Ok(report)
}

impl Report {
    fn note(&mut self, file: &Path, offset: Option<u64>, what: String) {
        self.findings.push(Finding { file: file.to_owned(), offset, what });
    }
}

fn check_log(disk: &Arc<dyn Disk>, dir: &Path, report: &mut Report) {
    let path = dir.join("raft");
    match hopbine_raft::check_log(disk.clone(), &path) {
        Ok(log) => {
            report.log_records = log.records;
            report.bytes += log.bytes;
            if let Some((file, offset)) = log.torn {
                let file = file.display();
                report.remarks.push(format!("{file} ends in a torn write at byte {offset}"));
            }
        }
        Err(hopbine_raft::LogError::Damaged { file, offset, what }) => {
            report.note(&file, Some(offset), what.to_owned());
        }
        Err(error) => report.note(&path, None, error.to_string()),
    }
}

fn check_shards(disk: &Arc<dyn Disk>, dir: &Path, report: &mut Report) -> Result<(), NodeError> {
    let shards = dir.join("shards");
    let names = match disk.list(&shards) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(NodeError::io("list the shards folder")(error)),
    };
    for name in names {
        let folder = shards.join(&name);
        report.shards += 1;
        match check_shard_folder(disk.as_ref(), &folder) {
            Ok(shard) => {
                report.segments += shard.segments;
                report.rows += shard.rows;
                report.bytes += shard.bytes;
                for orphan in shard.orphans {
                    report.remarks.push(format!("{} is a leftover", orphan.display()));
                }
                for found in shard.findings {
                    report.note(&found.file, found.offset, found.what);
                }
            }
            Err(StoreError::Io(error) | StoreError::DiskFull(error)) => {
                return Err(NodeError::io(format!("read shard {name}"))(error));
            }
            Err(error) => report.note(&folder, None, error.to_string()),
        }
    }
    Ok(())
}
