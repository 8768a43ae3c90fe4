//! What a graph is configured to be, and the catalogue's entry for it.

use crate::ids::{GraphId, RelationId};
use crate::limits;
use crate::score::Metric;
use crate::shard_map::ShardDescriptor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How entities and relations are named by users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdKind {
    /// Strings; the id is the hash of the name.
    #[default]
    Names,
    /// The user's own numbers.
    U64,
}

/// The vector space of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorConfig {
    /// Components of every embedding: 1 to 4,096.
    pub dim: u32,
    /// Distance; default cosine.
    #[serde(default)]
    pub metric: Metric,
    /// Whether a fact without embedding is refused; default false.
    #[serde(default)]
    pub required: bool,
}

/// Which builder makes a sealed segment's graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderKind {
    /// Ours, over 8-bit codes.
    #[default]
    Native,
    /// The hnsw_rs crate, frozen into the same layout.
    HnswRs,
}

/// Search beam: chosen at seal by measured recall, or forced to a graph walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EfSearch {
    /// The cheapest way that reached `recall_target` when the segment was sealed.
    #[default]
    Auto,
    /// A graph walk with this beam.
    Fixed(u32),
}

/// The approximate index of every sealed segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexConfig {
    /// Neighbours per node above the base layer, 2m on it: 4 to 128.
    pub m: u32,
    /// Beam while building: 8 to 4,096.
    pub ef_construction: u32,
    /// Default search beam.
    pub ef_search: EfSearch,
    /// Recall@64 that the automatic choice must reach: 0.5 to 1.
    pub recall_target: f64,
    /// Who builds.
    pub builder: BuilderKind,
    /// Input of every random-looking decision of the builder.
    pub build_seed: u64,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            m: 24,
            ef_construction: 200,
            ef_search: EfSearch::Auto,
            recall_target: 0.99,
            builder: BuilderKind::Native,
            build_seed: 0,
        }
    }
}

/// How a graph is cut into shards at its creation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardsConfig {
    /// Even cuts of the hash space; a `u64` graph takes `boundaries` instead.
    pub initial: u32,
    /// First entity of every shard but the first, ascending.
    pub boundaries: Vec<u64>,
    /// Replicas per shard.
    pub replicas: u32,
    /// Bytes after which a shard splits.
    pub split_at_bytes: u64,
}

impl Default for ShardsConfig {
    fn default() -> Self {
        Self { initial: 1, boundaries: Vec::new(), replicas: 1, split_at_bytes: 512 << 20 }
    }
}

/// What turns `query.text` into a vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Embedder {
    /// None: a query needs its embedding.
    #[default]
    None,
    /// The built-in hash of weighted words.
    Lexical,
    /// The same with identifiers cut into words.
    LexicalCode,
    /// An outside service.
    Http(String),
}

/// Everything a graph's creator decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphConfig {
    /// The vector space.
    pub vector: VectorConfig,
    /// Names or numbers.
    pub ids: IdKind,
    /// The approximate index.
    pub index: IndexConfig,
    /// Initial cuts and replicas.
    pub shards: ShardsConfig,
    /// Payload fields with an index of their own.
    pub payload_index: Vec<String>,
    /// Text to vector.
    pub embedder: Embedder,
    /// Largest payload, bytes.
    pub payload_bytes_max: u32,
}

impl GraphConfig {
    /// The defaults for a vector space.
    pub fn new(dim: u32, ids: IdKind) -> Self {
        Self {
            vector: VectorConfig { dim, metric: Metric::default(), required: false },
            ids,
            index: IndexConfig::default(),
            shards: ShardsConfig::default(),
            payload_index: Vec::new(),
            embedder: Embedder::None,
            payload_bytes_max: limits::PAYLOAD_BYTES_MAX as u32,
        }
    }
}

/// What a `PATCH` of a graph may change; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GraphPatch {
    /// Default search beam.
    pub ef_search: Option<EfSearch>,
    /// Recall that the automatic choice must reach in segments sealed from now on.
    pub recall_target: Option<f64>,
    /// Bytes after which a shard splits.
    pub split_at_bytes: Option<u64>,
    /// Largest payload, bytes.
    pub payload_bytes_max: Option<u32>,
}

/// The catalogue's entry for one graph, as coordinators hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphInfo {
    /// This incarnation.
    pub id: GraphId,
    /// The name in URLs.
    pub name: String,
    /// What it was created or patched to be.
    pub config: GraphConfig,
    /// Grows with every change of `config`, and with nothing else; the ETag.
    pub version: u64,
    /// Relation names and their ids; empty in a `u64` graph.
    pub relations: BTreeMap<String, RelationId>,
    /// Ascending and gapless over all entities.
    pub shards: Vec<ShardDescriptor>,
}

impl GraphInfo {
    /// Name of a relation in a `names` graph.
    pub fn relation_name(&self, id: RelationId) -> Option<&str> {
        // The map is small; a reverse map would have to be kept in step on the wire too.
        self.relations.iter().find(|(_, known)| **known == id).map(|(name, _)| name.as_str())
    }
}
