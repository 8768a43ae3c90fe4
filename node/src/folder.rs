//! Whether the parts of a data folder belong together: the node's number, the catalogue, the log
//! and the shard folders. What does not is damage, and nothing is removed because of it.

use crate::catalogue::Catalogue;
use crate::disk::DATA_FOLDERS;
use crate::error::NodeError;
use hopbine_proto::disk::Disk;
use hopbine_proto::{GroupId, NodeId, ShardId};
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong where a node has founded its cluster and nothing else knows of it.
pub const NOTHING_LEFT: &str =
    "the node has founded a cluster, but there is nothing of it: log and catalogue are lost";
/// What is wrong with a shard, or its part of the log, that no graph was ever given.
pub const NEVER_GIVEN: &str = "the catalogue has never heard of it: catalogue or log are lost";

/// Whether nothing lies in any of the folders that hold data, as before a first start.
pub fn is_empty(disk: &dyn Disk, dir: &Path) -> bool {
    let none = |below: &str| match disk.list(&dir.join(below)) {
        Ok(names) => names.is_empty(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    DATA_FOLDERS.into_iter().all(none)
}

/// Fails when one of the groups that the log knows is of a shard that was never given.
pub fn refuse_unknown(
    groups: impl IntoIterator<Item = GroupId>,
    catalogue: &Catalogue,
) -> Result<(), NodeError> {
    let given = |group: &GroupId| group.0 == 0 || catalogue.has_given(ShardId(group.0));
    match groups.into_iter().find(|group| !given(group)) {
        None => Ok(()),
        Some(group) => {
            let reason = format!("it has a group {group}, and {NEVER_GIVEN}");
            Err(NodeError::Damaged { file: "raft".to_owned(), reason })
        }
    }
}

/// What is in the folder of shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardFolders {
    /// Those named by a shard's number.
    pub shards: Vec<ShardId>,
    /// Names of everything else.
    pub others: Vec<String>,
}

/// Lists the shard folders below a data folder.
pub fn shard_folders(disk: &dyn Disk, dir: &Path) -> Result<ShardFolders, NodeError> {
    let names = match disk.list(&dir.join("shards")) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(NodeError::io("list the shards folder")(error)),
    };
    let mut found = ShardFolders::default();
    for name in names {
        match name.parse().map(ShardId) {
            Ok(id) if id.to_string() == name => found.shards.push(id),
            _ => found.others.push(name),
        }
    }
    Ok(found)
}

/// Folders that may go: of shards that the catalogue has given and that no graph has any more.
/// Fails when the catalogue gives shards to other nodes than `node`, which is alone, or when there
/// is a shard that the catalogue has never given: then one of them is not of this folder, or lost.
pub fn folders_of_dropped(
    disk: &dyn Disk,
    dir: &Path,
    catalogue: &Catalogue,
    node: NodeId,
) -> Result<Vec<PathBuf>, NodeError> {
    let shards = || catalogue.graphs().flat_map(|graph| &graph.shards);
    for (_, other) in shards().flat_map(|shard| &shard.replicas) {
        if *other != node {
            let reason = format!("it says {node}, but the catalogue gives its shards to {other}");
            return Err(NodeError::Damaged { file: "node-id".to_owned(), reason });
        }
    }
    let mut dropped = Vec::new();
    for id in shard_folders(disk, dir)?.shards {
        if !catalogue.has_given(id) {
            return Err(NodeError::Damaged {
                file: format!("shards/{id}"),
                reason: NEVER_GIVEN.to_owned(),
            });
        }
        if catalogue.has_dropped(id) {
            dropped.push(dir.join("shards").join(id.to_string()));
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CatalogueCommand;
    use hopbine_proto::graph::{GraphConfig, IdKind};
    use hopbine_proto::sim_disk::SimDisk;

    #[test]
    fn only_folders_of_dropped_graphs_may_go() {
        let (disk, dir) = (SimDisk::new(), Path::new("/data"));
        let mut catalogue = Catalogue::default();
        for name in ["first", "second"] {
            let config = GraphConfig::new(4, IdKind::U64);
            let (name, node) = (name.to_owned(), NodeId(7));
            catalogue.apply(CatalogueCommand::Create { name, config, node });
        }
        for shard in ["1", "2", "notes"] {
            disk.create_dir(&dir.join("shards").join(shard)).expect("made");
            disk.replace(&dir.join("shards").join(shard).join("x"), b"x").expect("written");
        }
        let dropped =
            |catalogue: &Catalogue, node| folders_of_dropped(&disk, dir, catalogue, NodeId(node));
        assert_eq!(dropped(&catalogue, 7).expect("whole"), Vec::<PathBuf>::new());
        let other = dropped(&catalogue, 8).expect_err("another node");
        assert!(matches!(&other, NodeError::Damaged { file, .. } if file == "node-id"), "{other}");
        catalogue.apply(CatalogueCommand::Drop { name: "first".to_owned() });
        assert_eq!(dropped(&catalogue, 7).expect("whole"), [dir.join("shards/1")]);
        let lost = dropped(&Catalogue::default(), 7).expect_err("the catalogue is lost");
        assert!(matches!(&lost, NodeError::Damaged { file, .. } if file == "shards/1"), "{lost}");
    }

    #[test]
    fn the_log_may_hold_groups_of_dropped_shards_and_none_of_unknown_ones() {
        let mut catalogue = Catalogue::default();
        let (name, config) = ("g".to_owned(), GraphConfig::new(4, IdKind::U64));
        catalogue.apply(CatalogueCommand::Create { name: name.clone(), config, node: NodeId(7) });
        catalogue.apply(CatalogueCommand::Drop { name });
        refuse_unknown([GroupId(0), GroupId(1)], &catalogue).expect("both are known");
        let unknown = refuse_unknown([GroupId(0), GroupId(2)], &catalogue).expect_err("unknown");
        let in_log = matches!(&unknown, NodeError::Damaged { file, .. } if file == "raft");
        assert!(in_log, "{unknown}");
    }
}
