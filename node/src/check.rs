//! Verifies a whole data folder offline: format, catalogue, log and every shard.

use crate::catalogue::Catalogue;
use crate::disk;
use crate::error::NodeError;
use crate::folder::{NEVER_GIVEN, NOTHING_LEFT, is_empty, refuse_unknown, shard_folders};
use crate::meta;
use hopbine_proto::disk::Disk;
use hopbine_proto::{GroupId, LogIndex, ShardId};
use hopbine_raft::LogPosition;
use hopbine_shard_store::StoreError;
use hopbine_shard_store::check::{NO_MANIFEST, check_shard_folder};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The group of the catalogue.
const CATALOGUE: GroupId = GroupId(0);

/// The groups that the log holds, each with its last purged entry and its last one.
type Groups = BTreeMap<GroupId, (LogPosition, LogPosition)>;

/// What catalogue and log say of a shard whose folder is there.
enum Standing {
    /// The log may have purged what the folder holds.
    Kept,
    /// All that the shard was ever told is in the log.
    New,
    /// Its graph is no more.
    Dropped,
    /// It was never given to a graph.
    Unknown,
}

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
    /// Graphs of the catalogue, those that only the log knows included.
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
    check_format(disk.as_ref(), dir)?;
    let mut report = Report::default();
    let identity = disk::known_identity(disk.as_ref(), dir).unwrap_or_else(|error| {
        report.note(Path::new("node-id"), None, error.to_string());
        None
    });
    let node = identity.map(|identity| identity.id);
    let founded = identity.is_some_and(|identity| identity.founded);
    let groups = check_log(disk, dir, founded, &mut report);
    let mut held: BTreeMap<GroupId, LogIndex> = BTreeMap::new();
    let logged = groups.as_ref().and_then(|groups| groups.get(&CATALOGUE).copied());
    let catalogue = check_catalogue(disk, dir, logged, &mut report, &mut held);
    report.graphs = catalogue.graphs().count();
    let replicas = catalogue.graphs().flat_map(|graph| &graph.shards);
    let nodes = replicas.flat_map(|shard| &shard.replicas).map(|(_, node)| *node);
    if let Some(other) = nodes.into_iter().find(|other| node.is_some_and(|node| node != *other)) {
        let what = format!("the catalogue gives its shards to node {other}");
        report.note(Path::new("node-id"), None, what);
    }
    // With a catalogue or a log that is damaged itself nobody can say what it has given.
    let mut known = report.findings.is_empty();
    if known && founded && catalogue.cluster_id == 0 {
        report.note(Path::new("catalogue"), None, NOTHING_LEFT.to_owned());
        known = false;
    }
    if let Some(groups) = groups.as_ref().filter(|_| known)
        && let Err(error) = refuse_unknown(groups.keys().copied(), &catalogue)
    {
        report.note(Path::new("raft"), None, error.to_string());
    }
    let standing = |id: ShardId| {
        let begins = |groups: &Groups| {
            groups.get(&GroupId(id.0)).is_none_or(|(purged, _)| purged.index == LogIndex(0))
        };
        match groups.as_ref().is_some_and(begins) {
            _ if catalogue.has_dropped(id) => Standing::Dropped,
            _ if known && !catalogue.has_given(id) => Standing::Unknown,
            true => Standing::New,
            false => Standing::Kept,
        }
    };
    check_shards(disk, dir, &mut report, &mut held, &standing)?;
    if let Some(mut groups) = groups {
        // A dropped graph's folder and its part of the log go one after the other.
        let of_dropped =
            |group: GroupId| group != CATALOGUE && catalogue.has_dropped(ShardId(group.0));
        held.retain(|group, _| !of_dropped(*group));
        groups.retain(|group, _| !of_dropped(*group));
        compare(&groups, &held, &mut report);
        let ahead = |(group, (purged, last)): (&GroupId, &(LogPosition, LogPosition))| {
            last.index.0.saturating_sub(held.get(group).copied().unwrap_or(purged.index).0)
        };
        let shards = groups.iter().filter(|(group, _)| **group != CATALOGUE);
        let waiting: u64 = shards.map(ahead).sum();
        if waiting > 0 {
            report.remarks.push(format!(
                "{waiting} entries of shards are in the log alone: the next start applies them; \
                 rows and segments are counted without them"
            ));
        }
    }
    Ok(report)
}

/// Whether the folder says that it is ours, in a format that this version reads. Unlike a start it
/// makes nothing of a folder that does not say so.
fn check_format(disk: &dyn Disk, dir: &Path) -> Result<(), NodeError> {
    let format = disk.len(&dir.join("FORMAT")).map_err(NodeError::io("look at FORMAT"))?;
    if format.is_some() {
        return disk::check_format(disk, dir);
    }
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(NodeError::io("list the data folder"))?,
    };
    if names.iter().any(|name| disk::DATA_FOLDERS.contains(&&**name)) {
        let reason = "it is missing, but there is data".to_owned();
        return Err(NodeError::Damaged { file: "FORMAT".to_owned(), reason });
    }
    let reason = "it has no FORMAT".to_owned();
    Err(NodeError::Foreign { dir: dir.to_owned(), reason })
}

/// The catalogue as the next start will have it: what was saved and what the log adds to it. `log`
/// is how far the log of the catalogue's group reaches, when it holds any of it.
fn check_catalogue(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    log: Option<(LogPosition, LogPosition)>,
    report: &mut Report,
    held: &mut BTreeMap<GroupId, LogIndex>,
) -> Catalogue {
    let (mut at, mut catalogue) = (LogPosition::NONE, Catalogue::default());
    match meta::check_file(disk.as_ref(), dir) {
        Ok(None) => {}
        Ok(Some(saved)) => {
            (at, catalogue) = saved;
            held.insert(CATALOGUE, at.index);
        }
        Err(error) => {
            report.note(Path::new("catalogue/STATE"), None, error.to_string());
            return catalogue;
        }
    }
    // A log that begins later than what was saved adds nothing that could be understood.
    if log.is_none_or(|(purged, _)| purged.index > at.index) {
        return catalogue;
    }
    match hopbine_raft::commands_of(disk.clone(), &dir.join("raft"), CATALOGUE) {
        Ok(commands) => {
            for (_, command) in commands.iter().filter(|(position, _)| position.index > at.index) {
                // What this version cannot read a start refuses by itself.
                if let Ok(command) = postcard::from_bytes(&command.body) {
                    catalogue.apply(command);
                }
            }
        }
        Err(error) => report.note(Path::new("raft"), None, error.to_string()),
    }
    catalogue
}

impl Report {
    fn note(&mut self, file: &Path, offset: Option<u64>, what: String) {
        self.findings.push(Finding { file: file.to_owned(), offset, what });
    }
}

/// Whether the log joins on to what the catalogue and each shard hold. A group that only the log
/// knows must be in it from its beginning.
fn compare(groups: &Groups, held: &BTreeMap<GroupId, LogIndex>, report: &mut Report) {
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
    founded: bool,
    report: &mut Report,
) -> Option<Groups> {
    let path = dir.join("raft");
    if is_empty(disk.as_ref(), dir) {
        if !founded {
            report.remarks.push("the folder was being made: nothing was written yet".to_owned());
        }
        return Some(Groups::new());
    }
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
    standing: &dyn Fn(ShardId) -> Standing,
) -> Result<(), NodeError> {
    let folders = shard_folders(disk.as_ref(), dir)?;
    for name in folders.others {
        report.remarks.push(format!("shards/{name} is no shard: it is left alone"));
    }
    for id in folders.shards {
        let name = id.to_string();
        let folder = dir.join("shards").join(&name);
        let standing = standing(id);
        match standing {
            Standing::Dropped => {
                report.remarks.push(format!("shards/{name} is of a dropped graph: a leftover"));
                continue;
            }
            Standing::Unknown => report.note(&folder, None, NEVER_GIVEN.to_owned()),
            Standing::Kept | Standing::New => {}
        }
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
                    match standing {
                        Standing::New if found.what == NO_MANIFEST => {
                            report.remarks.push(format!("shards/{name} was being created"));
                        }
                        // It should not be there at all, which is said.
                        Standing::Unknown if found.what == NO_MANIFEST => {}
                        _ => report.note(&found.file, found.offset, found.what),
                    }
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
