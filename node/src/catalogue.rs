//! The catalogue: graphs, relation names and the shard map, as a pure state and its commands.
//!
//! It is the state machine of raft group 0 (`meta.rs`). A command either changes the state as a
//! whole or is refused with a problem; every replica answers alike.

use hopbine_proto::graph::{GraphConfig, GraphInfo, GraphPatch, IdKind};
use hopbine_proto::shard_map::{ShardDescriptor, even_boundaries, ranges};
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{
    Epoch, GraphId, NodeId, RelationId, ReplicaId, ShardId, limits, relation_name_id,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Shards of all graphs of one node: each costs about 150 KiB of memory and a raft group.
pub const SHARDS_MAX: usize = 2_048;

/// A change of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CatalogueCommand {
    /// Gives the cluster its identity, once.
    Found {
        /// Random, never 0.
        cluster_id: u64,
    },
    /// Creates a graph with its shards on `node`.
    Create {
        /// Name in URLs.
        name: String,
        /// All settings.
        config: GraphConfig,
        /// Who hosts the replicas.
        node: NodeId,
    },
    /// Changes settings of a graph at a version.
    Patch {
        /// Which graph.
        name: String,
        /// The version it must be at.
        version: u64,
        /// What to change.
        patch: GraphPatch,
    },
    /// Forgets a graph.
    Drop {
        /// Which graph.
        name: String,
    },
    /// Gives relation names their ids.
    Register {
        /// Which incarnation.
        graph: GraphId,
        /// Names, known ones included.
        names: Vec<String>,
    },
}

impl CatalogueCommand {
    /// Whether it makes room on the disk, so that a full one must not refuse it.
    pub fn gives_space_back(&self) -> bool {
        matches!(self, Self::Drop { .. })
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CatalogueReply {
    /// Nothing to say.
    Done,
    /// The graph as it is now, and whether this command created it.
    Graph(Arc<GraphInfo>, bool),
    /// The graph that is gone.
    Dropped(Arc<GraphInfo>),
    /// Nothing was changed.
    Refused(Problem),
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalogue {
    /// 0 until founded.
    pub cluster_id: u64,
    next_graph: u64,
    next_shard: u64,
    next_replica: u64,
    graphs: BTreeMap<String, Arc<GraphInfo>>,
}

impl Catalogue {
    /// All graphs by name.
    pub fn graphs(&self) -> impl Iterator<Item = &Arc<GraphInfo>> {
        self.graphs.values()
    }

    /// Whether its counters can have been reached; counting on from others could overflow.
    pub fn is_possible(&self) -> bool {
        let counters = [self.next_graph, self.next_shard, self.next_replica];
        counters.iter().all(|counter| *counter <= limits::COUNTER_MAX)
    }

    /// Whether a shard of this number was ever given to a graph, dropped or not.
    pub fn has_given(&self, shard: ShardId) -> bool {
        (1..=self.next_shard).contains(&shard.0)
    }

    /// Whether a shard of this number was given to a graph that is no more.
    pub fn has_dropped(&self, shard: ShardId) -> bool {
        let mut shards = self.graphs().flat_map(|graph| &graph.shards);
        self.has_given(shard) && !shards.any(|known| known.id == shard)
    }

    /// Why a graph of this configuration would be too much for one node. Asked before a creation
    /// is proposed: what the log holds was accepted.
    pub fn too_many_shards(&self, name: &str, config: &GraphConfig) -> Option<Problem> {
        let there: usize = self.graphs().map(|graph| graph.shards.len()).sum();
        let asked = (config.shards.boundaries.len() + 1).max(config.shards.initial as usize);
        if self.graph(name).is_some() || there + asked <= SHARDS_MAX {
            return None;
        }
        let detail = format!("{there} shards and {asked} more are above {SHARDS_MAX}");
        let problem = Problem::new(Code::InvalidRequest, detail);
        Some(problem.at("/shards", "too many shards").hint("ask for fewer, or drop a graph"))
    }

    /// One graph by name.
    pub fn graph(&self, name: &str) -> Option<&Arc<GraphInfo>> {
        self.graphs.get(name)
    }

    /// Applies one command.
    pub fn apply(&mut self, command: CatalogueCommand) -> CatalogueReply {
        let result = match command {
            CatalogueCommand::Found { cluster_id } => {
                if self.cluster_id == 0 {
                    self.cluster_id = cluster_id;
                }
                Ok(CatalogueReply::Done)
            }
            CatalogueCommand::Create { name, config, node } => self.create(name, config, node),
            CatalogueCommand::Patch { name, version, patch } => self.patch(&name, version, &patch),
            CatalogueCommand::Drop { name } => match self.graphs.remove(&name) {
                Some(graph) => Ok(CatalogueReply::Dropped(graph)),
                None => Err(graph_not_found(&name)),
            },
            CatalogueCommand::Register { graph, names } => self.register(graph, &names),
        };
        result.unwrap_or_else(CatalogueReply::Refused)
    }

    fn create(
        &mut self,
        name: String,
        config: GraphConfig,
        node: NodeId,
    ) -> Result<CatalogueReply, Problem> {
        if let Some(known) = self.graphs.get(&name) {
            if known.config == config {
                return Ok(CatalogueReply::Graph(known.clone(), false));
            }
            let detail = format!("graph {name} exists with another configuration");
            return Err(Problem::new(Code::GraphExists, detail)
                .hint("choose another name, or drop the graph first"));
        }
        if self.graphs.len() >= limits::GRAPHS_MAX {
            let detail = format!("there are {} graphs, the most allowed", limits::GRAPHS_MAX);
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        let boundaries = match config.ids {
            IdKind::Names if config.shards.boundaries.is_empty() => {
                even_boundaries(config.shards.initial)
            }
            _ => config.shards.boundaries.clone(),
        };
        self.next_graph += 1;
        let mut shards = Vec::new();
        for range in ranges(&boundaries) {
            self.next_shard += 1;
            self.next_replica += 1;
            shards.push(ShardDescriptor {
                id: ShardId(self.next_shard),
                range,
                epoch: Epoch(1),
                replicas: vec![(ReplicaId(self.next_replica), node)],
            });
        }
        let graph = Arc::new(GraphInfo {
            id: GraphId(self.next_graph),
            name: name.clone(),
            config,
            version: 1,
            relations: BTreeMap::new(),
            shards,
        });
        self.graphs.insert(name, graph.clone());
        Ok(CatalogueReply::Graph(graph, true))
    }

    fn patch(
        &mut self,
        name: &str,
        version: u64,
        patch: &GraphPatch,
    ) -> Result<CatalogueReply, Problem> {
        let entry = self.graphs.get_mut(name).ok_or_else(|| graph_not_found(name))?;
        if entry.version != version {
            let detail = format!(
                "graph {name} is at version {}, the request names {version}",
                entry.version
            );
            return Err(Problem::new(Code::PreconditionFailed, detail)
                .hint("read the graph again and repeat with its ETag in If-Match"));
        }
        let mut changed = entry.config.clone();
        let config = &mut changed;
        if let Some(ef_search) = patch.ef_search {
            config.index.ef_search = ef_search;
        }
        if let Some(recall_target) = patch.recall_target {
            config.index.recall_target = recall_target;
        }
        if let Some(split_at_bytes) = patch.split_at_bytes {
            config.shards.split_at_bytes = split_at_bytes;
        }
        if let Some(payload_bytes_max) = patch.payload_bytes_max {
            config.payload_bytes_max = payload_bytes_max;
        }
        // What changes nothing moves nobody's ETag.
        if changed != entry.config {
            let graph = Arc::make_mut(entry);
            graph.config = changed;
            graph.version += 1;
        }
        Ok(CatalogueReply::Graph(entry.clone(), false))
    }

    fn register(&mut self, id: GraphId, names: &[String]) -> Result<CatalogueReply, Problem> {
        let entry = self.graphs.values_mut().find(|graph| graph.id == id);
        let entry = entry.ok_or_else(|| {
            Problem::new(Code::GraphNotFound, format!("there is no graph number {id}"))
        })?;
        let mut by_id: HashMap<RelationId, &str> =
            entry.relations.iter().map(|(name, id)| (*id, name.as_str())).collect();
        for name in names {
            let relation = relation_name_id(name);
            let known = *by_id.entry(relation).or_insert(name);
            if known != name {
                let detail = format!("relations {known:?} and {name:?} share the id {relation}");
                return Err(Problem::new(Code::NameCollision, detail)
                    .hint("rename one of the two relations"));
            }
        }
        if by_id.len() > limits::RELATIONS_MAX {
            let detail = format!("a graph holds at most {} relations", limits::RELATIONS_MAX);
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        let new = names.iter().filter(|name| !entry.relations.contains_key(*name));
        let new: Vec<&String> = new.collect();
        if !new.is_empty() {
            let graph = Arc::make_mut(entry);
            let ids = new.into_iter().map(|name| (name.clone(), relation_name_id(name)));
            // No new version: that is one of the settings, which no write of facts may move under
            // whoever is about to change them.
            graph.relations.extend(ids);
        }
        Ok(CatalogueReply::Graph(entry.clone(), false))
    }
}

fn graph_not_found(name: &str) -> Problem {
    Problem::new(Code::GraphNotFound, format!("there is no graph {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(catalogue: &mut Catalogue, name: &str, config: GraphConfig) -> CatalogueReply {
        catalogue.apply(CatalogueCommand::Create { name: name.into(), config, node: NodeId(7) })
    }

    fn created(reply: CatalogueReply) -> (Arc<GraphInfo>, bool) {
        match reply {
            CatalogueReply::Graph(graph, fresh) => (graph, fresh),
            other => panic!("expected a graph, got {other:?}"),
        }
    }

    fn refused(reply: CatalogueReply) -> Code {
        match reply {
            CatalogueReply::Refused(problem) => problem.code,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn counters_from_which_counting_on_would_overflow_are_not_possible() {
        let mut catalogue = Catalogue::default();
        created(create(&mut catalogue, "g", GraphConfig::new(8, IdKind::Names)));
        assert!(catalogue.is_possible());
        let (graph, shard, replica) =
            (catalogue.next_graph, catalogue.next_shard, catalogue.next_replica);
        for past in [limits::COUNTER_MAX + 1, u64::MAX] {
            for (graph, shard, replica) in
                [(past, shard, replica), (graph, past, replica), (graph, shard, past)]
            {
                let counters = Catalogue {
                    next_graph: graph,
                    next_shard: shard,
                    next_replica: replica,
                    ..catalogue.clone()
                };
                assert!(!counters.is_possible());
            }
        }
    }

    #[test]
    fn the_same_creation_again_changes_nothing_and_another_is_refused() {
        let mut catalogue = Catalogue::default();
        let config = GraphConfig::new(8, IdKind::Names);
        let (first, fresh) = created(create(&mut catalogue, "g", config.clone()));
        assert!(fresh);
        let (second, fresh) = created(create(&mut catalogue, "g", config));
        assert!(!fresh);
        assert_eq!(first, second);
        let other = GraphConfig::new(9, IdKind::Names);
        assert_eq!(refused(create(&mut catalogue, "g", other)), Code::GraphExists);
    }

    #[test]
    fn a_graph_dropped_and_made_again_is_another_incarnation_with_new_shards() {
        let mut catalogue = Catalogue::default();
        let config = GraphConfig::new(8, IdKind::Names);
        let (first, _) = created(create(&mut catalogue, "g", config.clone()));
        catalogue.apply(CatalogueCommand::Drop { name: "g".into() });
        let (second, _) = created(create(&mut catalogue, "g", config));
        assert_ne!(first.id, second.id);
        assert_ne!(first.shards[0].id, second.shards[0].id);
        assert_ne!(first.shards[0].replicas[0].0, second.shards[0].replicas[0].0);
    }

    #[test]
    fn the_shards_of_all_graphs_together_are_bounded() {
        let mut catalogue = Catalogue::default();
        let mut config = GraphConfig::new(8, IdKind::Names);
        config.shards.initial = 256;
        for number in 0..SHARDS_MAX / 256 {
            assert_eq!(catalogue.too_many_shards("more", &config), None);
            created(create(&mut catalogue, &format!("g{number}"), config.clone()));
        }
        let problem = catalogue.too_many_shards("more", &config).expect("too many");
        assert_eq!(problem.code, Code::InvalidRequest);
        assert_eq!(catalogue.too_many_shards("g0", &config), None, "it is there already");
        catalogue.apply(CatalogueCommand::Drop { name: "g0".into() });
        assert_eq!(catalogue.too_many_shards("more", &config), None);
    }

    #[test]
    fn shards_cut_the_hash_space_or_follow_the_given_boundaries() {
        let mut catalogue = Catalogue::default();
        let mut config = GraphConfig::new(8, IdKind::Names);
        config.shards.initial = 4;
        let (graph, _) = created(create(&mut catalogue, "names", config));
        assert_eq!(graph.shards.len(), 4);
        let mut config = GraphConfig::new(8, IdKind::U64);
        config.shards.boundaries = vec![10, 20];
        let (graph, _) = created(create(&mut catalogue, "numbers", config));
        let starts: Vec<u64> = graph.shards.iter().map(|shard| shard.range.start.0).collect();
        assert_eq!(starts, [0, 10, 20]);
    }

    #[test]
    fn a_patch_needs_the_current_version() {
        let mut catalogue = Catalogue::default();
        created(create(&mut catalogue, "g", GraphConfig::new(8, IdKind::U64)));
        let patch = |version| CatalogueCommand::Patch {
            name: "g".into(),
            version,
            patch: GraphPatch { recall_target: Some(0.9), ..GraphPatch::default() },
        };
        let (graph, _) = created(catalogue.apply(patch(1)));
        assert_eq!((graph.version, graph.config.index.recall_target), (2, 0.9));
        assert_eq!(refused(catalogue.apply(patch(1))), Code::PreconditionFailed);
        let (same, _) = created(catalogue.apply(patch(2)));
        assert_eq!(same.version, 2, "nothing was changed");
    }

    #[test]
    fn relation_names_keep_their_ids_and_move_no_settings_under_a_patch() {
        let mut catalogue = Catalogue::default();
        let (read, _) = created(create(&mut catalogue, "g", GraphConfig::new(8, IdKind::Names)));
        let names = vec!["knows".to_owned(), "likes".to_owned()];
        let register = CatalogueCommand::Register { graph: read.id, names };
        let (graph, _) = created(catalogue.apply(register.clone()));
        assert_eq!(graph.relations["knows"], relation_name_id("knows"));
        let (again, _) = created(catalogue.apply(register));
        assert_eq!(graph, again);
        let patch = GraphPatch { recall_target: Some(0.9), ..GraphPatch::default() };
        let patch = CatalogueCommand::Patch { name: "g".into(), version: read.version, patch };
        let (patched, _) = created(catalogue.apply(patch));
        assert_eq!((patched.version, patched.relations.len()), (read.version + 1, 2));
    }
}
