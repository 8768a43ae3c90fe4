//! Verifies a whole data folder offline: format, catalogue, log and every shard.

use crate::disk;
use crate::error::NodeError;
use crate::folder::shard_folders;
use crate::meta;
use hopbine_proto::disk::Disk;
use hopbine_proto::{GroupId, LogIndex, ShardId};
use hopbine_raft::LogPosition;
use hopbine_shard_store::StoreError;
use hopbine_shard_store::check::check_shard_folder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The group of the catalogue.
const CATALOGUE: GroupId = GroupId(0);

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
    let node = disk::known_node_id(disk.as_ref(), dir).unwrap_or_else(|error| {
        report.note(Path::new("node-id"), None, error.to_string());
        None
    });
    let mut saved = None;
    match meta::check_file(disk.as_ref(), dir) {
        Ok(found) => saved = found,
        Err(error) => report.note(Path::new("catalogue/STATE"), None, error.to_string()),
    }
    let mut held: BTreeMap<GroupId, LogIndex> = BTreeMap::new();
    if let Some((at, catalogue)) = &saved {
        report.graphs = catalogue.graphs().count();
        held.insert(CATALOGUE, at.index);
        // Graphs that are newer than the saved catalogue are in the log, checked when it opens.
        let replicas = catalogue.graphs().flat_map(|graph| &graph.shards);
        let nodes = replicas.flat_map(|shard| &shard.replicas).map(|(_, node)| *node);
        if let Some(other) = nodes.into_iter().find(|other| node.is_some_and(|node| node != *other))
        {
            let what = format!("the catalogue gives its shards to node {other}");
            report.note(Path::new("node-id"), None, what);
        }
    }
    let groups = check_log(disk, dir, &mut report);
    check_shards(disk, dir, &mut report, &mut held)?;
    if let Some((_, catalogue)) = &saved {
        // A dropped graph's folder goes after its part of the log.
        held.retain(|group, _| *group == CATALOGUE || !catalogue.has_dropped(ShardId(group.0)));
    }
    if let Some(groups) = groups {
        compare(&groups, &held, &mut report);
    }
    Ok(report)
}

impl Report {
    fn note(&mut self, file: &Path, offset: Option<u64>, what: String) {
        self.findings.push(Finding { file: file.to_owned(), offset, what });
    }
}

/// Whether the log joins on to what the catalogue and each shard hold. A group that only the log
/// knows must be in it from its beginning.
fn compare(
    groups: &BTreeMap<GroupId, (LogPosition, LogPosition)>,
    held: &BTreeMap<GroupId, LogIndex>,
    report: &mut Report,
) {
    for (group, index) in held {
        let (purged, last) = groups.get(group).copied().unwrap_or_default();
        if last.index < *index || purged.index > *index {
            let what = format!(
                "of group {group} it has what follows {purged} up to {last}, but {index} is held"
            );
            report.note(Path::new("raft"), None, what);
        }
    }
    for (group, (purged, _)) in groups {
        if !held.contains_key(group) && purged.index > LogIndex(0) {
            let what = format!("group {group} begins after {purged}, and what came before is gone");
            report.note(Path::new("raft"), None, what);
        }
    }
    if !groups.contains_key(&CATALOGUE) && !held.is_empty() {
        let what = "it has nothing of the catalogue".to_owned();
        report.note(Path::new("raft"), None, what);
    }
}

fn check_log(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    report: &mut Report,
) -> Option<BTreeMap<GroupId, (LogPosition, LogPosition)>> {
    let path = dir.join("raft");
    match hopbine_raft::check_log(disk.clone(), &path) {
        Ok(log) => {
            report.log_records = log.records;
            report.bytes += log.bytes;
            if let Some((file, offset)) = log.torn {
                let file = file.display();
                report.remarks.push(format!("{file} ends in a torn write at byte {offset}"));
            }
            return Some(log.groups);
        }
        Err(hopbine_raft::LogError::Damaged { file, offset, what }) => {
            report.note(&file, Some(offset), what.to_owned());
        }
        Err(error) => report.note(&path, None, error.to_string()),
    }
    None
}

fn check_shards(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    report: &mut Report,
    held: &mut BTreeMap<GroupId, LogIndex>,
) -> Result<(), NodeError> {
    let folders = shard_folders(disk.as_ref(), dir)?;
    for name in folders.others {
        report.remarks.push(format!("shards/{name} is no shard: it is left alone"));
    }
    for id in folders.shards {
        let name = id.to_string();
        let folder = dir.join("shards").join(&name);
        report.shards += 1;
        match check_shard_folder(disk.as_ref(), &folder) {
            Ok(shard) => {
                held.insert(GroupId(id.0), shard.applied.unwrap_or_default());
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
