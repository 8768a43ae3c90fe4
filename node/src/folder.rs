//! Whether the parts of a data folder belong together: the node's number, the catalogue and the
//! shard folders. What does not is damage, and nothing is removed because of it.

use crate::catalogue::Catalogue;
use crate::error::NodeError;
use hopbine_proto::disk::Disk;
use hopbine_proto::{NodeId, ShardId};
use std::io;
use std::path::{Path, PathBuf};

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
                reason: "the catalogue has never heard of it: catalogue or log are lost".to_owned(),
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
}
