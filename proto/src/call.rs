//! What a coordinator asks of one shard, and what it gets back. All of it reads one pinned view.
//!
//! Ids only: names and payloads are fetched once, at the end, for what the user will see
//! (`FetchRequest`), from the same view that scored it.

use crate::fact::{Fact, FactKey, Names};
use crate::filter::Filter;
use crate::ids::{EntityId, Epoch, GraphId, LogIndex, RelationId, RequestId, ShardId};
use crate::range::KeyRange;
use crate::score::ScoreMode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Which state of which shard a read wants, and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadContext {
    /// Incarnation of the graph.
    pub graph: GraphId,
    /// The shard asked.
    pub shard: ShardId,
    /// Ownership that the caller believes in.
    pub epoch: Epoch,
    /// All reads of one request see the view that its first read pinned.
    pub request: RequestId,
    /// How fresh the view must be.
    pub freshness: Freshness,
    /// Log index that the view must hold at least (from a consistency token).
    pub min_index: LogIndex,
    /// On the process's monotonic clock.
    pub deadline: Duration,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// All writes acknowledged before the read began.
    Strong,
    /// At most this much older.
    Bounded {
        /// The bound.
        max_staleness: Duration,
    },
    /// Whatever the replica has.
    Eventual,
}

/// Which relations a hop or a seed may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relations {
    /// Every one.
    #[default]
    Any,
    /// These, sorted and distinct.
    Of(Vec<RelationId>),
}

impl Relations {
    /// Whether `relation` is one of them.
    pub fn contains(&self, relation: RelationId) -> bool {
        match self {
            Self::Any => true,
            Self::Of(list) => list.binary_search(&relation).is_ok(),
        }
    }
}

/// How seeds are searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeedMode {
    /// Per segment, the way recorded at seal.
    #[default]
    Auto,
    /// Graph walk with this beam wherever a segment has a graph.
    Graph {
        /// The beam.
        ef: u32,
    },
    /// 8-bit scan everywhere, exact rerank.
    Scan,
    /// Full scan with exact distances: the reference.
    Exact,
}

/// The facts nearest to a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct SeedRequest {
    /// The question, of the graph's dimension, finite, non-zero under cosine.
    pub query: Arc<[f32]>,
    /// Facts wanted.
    pub k: u32,
    /// Only facts of these relations.
    pub relations: Relations,
    /// Only facts that pass.
    pub filter: Option<Arc<Filter>>,
    /// How to search.
    pub mode: SeedMode,
}

/// One seed fact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seed {
    /// Exact distance to the query.
    pub distance: f64,
    /// Which fact.
    pub key: FactKey,
}

/// At most `k` seeds by `(distance, key)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeedReply {
    /// Best first.
    pub seeds: Vec<Seed>,
    /// What it took.
    pub work: Work,
    /// Log index of the view.
    pub index: LogIndex,
}

/// One way into a frontier entity: the best path from one start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Where the path began.
    pub start: EntityId,
    /// Its score so far.
    pub prefix: f64,
    /// Rank of its facts, compared backwards from the last, among the arrivals of this entity:
    /// decides between equal prefixes that end in the same fact.
    pub tie: u32,
}

/// One entity to expand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrontierEntity {
    /// Whose facts to read.
    pub entity: EntityId,
    /// Best first by `(prefix, last fact key, tie)`; never empty; distinct starts. One entry
    /// (the best) is enough when paths may return to their start.
    pub arrivals: Vec<Arrival>,
}

/// One hop over the frontier entities that the asked shard owns.
#[derive(Clone, Debug, PartialEq)]
pub struct HopRequest {
    /// Ascending by entity, distinct.
    pub frontier: Vec<FrontierEntity>,
    /// Which edges count.
    pub relations: Relations,
    /// The question; `None`: no distances, limits go by key, prefixes stay 0.
    pub query: Option<Arc<[f32]>>,
    /// Factor of this hop's distance.
    pub weight: f64,
    /// Only facts that pass.
    pub filter: Option<Arc<Filter>>,
    /// Of one entity's matching facts keep the nearest by `(distance, key)`.
    pub limit_per_entity: u32,
    /// Facts read at most; reaching it truncates the hop.
    pub limit_rows: u64,
    /// Whether a fact may lead back to its path's start.
    pub return_to_start: bool,
    /// What to send back.
    pub output: HopOutput,
}

/// What a hop sends back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum HopOutput {
    /// A middle hop: the best `beam` targets by `(smallest prefix, id)`, each with its best
    /// `starts` arrivals from distinct starts.
    Targets {
        /// Targets kept.
        beam: u32,
        /// Arrivals kept per target (hops left after this one, plus 1; 1 when paths may return).
        starts: u32,
    },
    /// The last hop: the best `top_k` facts by `(score, key)`, each with its best arrival.
    Facts {
        /// Facts kept.
        top_k: u32,
        /// What decides.
        score: ScoreMode,
    },
    /// The last hop without a query: facts in key order, after `after`.
    Page {
        /// Facts kept.
        limit: u32,
        /// Where the last page ended.
        after: Option<FactKey>,
    },
}

/// One way into a target through one fact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The fact walked.
    pub key: FactKey,
    /// Its own unweighted distance; `None` without a query.
    pub distance: Option<f64>,
    /// Prefix of the path up to and with it.
    pub prefix: f64,
    /// Where the path began.
    pub start: EntityId,
    /// `Arrival::tie` of the arrival it came from.
    pub tie: u32,
}

/// A target of a middle hop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetReply {
    /// Which entity.
    pub target: EntityId,
    /// Best first by `(prefix, key, tie)`, distinct starts, never empty.
    pub steps: Vec<Step>,
}

/// What one hop found in one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HopReply {
    /// `HopOutput::Targets`: by `(steps[0].prefix, target)`.
    pub targets: Vec<TargetReply>,
    /// `HopOutput::Facts`: by `(score, key)`. `HopOutput::Page`: by key.
    pub facts: Vec<Step>,
    /// Counts for the reply's account.
    pub counts: HopCounts,
    /// What it took.
    pub work: Work,
    /// Log index of the view.
    pub index: LogIndex,
}

/// How many facts and targets a hop saw and dropped in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopCounts {
    /// Entities asked for.
    pub frontier: u64,
    /// Live facts of matching relation read.
    pub read: u64,
    /// Facts that passed filter, `limit_per_entity` and the start test.
    pub kept: u64,
    /// Facts that did not pass the filter.
    pub cut_filter: u64,
    /// Facts beyond `limit_per_entity`.
    pub cut_limit_per_entity: u64,
    /// Facts that only lead back to their start.
    pub cut_return: u64,
    /// Distinct targets found (middle hops).
    pub targets: u64,
    /// Distinct targets beyond `beam`.
    pub cut_beam: u64,
    /// Whether `limit_rows` stopped the reading.
    pub truncated: bool,
}

/// What a read took; added up for `explain`, metrics and the benchmark.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Segments and memtables of the view.
    pub runs: u64,
    /// Those that had to be read.
    pub runs_read: u64,
    /// Distinct fact blocks read.
    pub blocks_read: u64,
    /// Bytes of those blocks.
    pub block_bytes: u64,
    /// Approximate distances computed over 8-bit codes.
    pub codes_scored: u64,
    /// Exact distances computed.
    pub vectors_scored: u64,
    /// Way taken per run of the view, `graph ef=128`, `scan`, `postings scan`, ...
    pub ways: Vec<String>,
}

impl Work {
    /// Adds another read's work.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.runs_read += other.runs_read;
        self.blocks_read += other.blocks_read;
        self.block_bytes += other.block_bytes;
        self.codes_scored += other.codes_scored;
        self.vectors_scored += other.vectors_scored;
        self.ways.extend_from_slice(&other.ways);
    }
}

/// Which parts of a fact to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct With {
    /// The JSON text.
    pub payload: bool,
    /// The embedding.
    pub vector: bool,
}

/// Facts by key, from the pinned view.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchRequest {
    /// Any order; the reply keeps it.
    pub keys: Vec<FactKey>,
    /// Which parts.
    pub with: With,
    /// When given, each row carries its exact distance.
    pub query: Option<Arc<[f32]>>,
}

/// One live fact as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The fact; parts that were not asked for are `None`.
    pub fact: Fact,
    /// Log index that wrote it.
    pub version: LogIndex,
    /// Exact distance when a query was given: `DISTANCE_WITHOUT_EMBEDDING` without embedding.
    pub distance: Option<f64>,
}

/// Rows of a fetch, one per asked key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FetchReply {
    /// `None` where no live fact has the key.
    pub rows: Vec<Option<Row>>,
    /// What it took.
    pub work: Work,
    /// Log index of the view.
    pub index: LogIndex,
}

/// Facts of a range in key order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRequest {
    /// Which keys; cut to the shard's range by the shard.
    pub range: KeyRange,
    /// Only relations and payloads that pass.
    pub filter: Option<Arc<Filter>>,
    /// Facts at most.
    pub limit: u32,
    /// Which parts.
    pub with: With,
}

/// One page of a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanReply {
    /// Ascending by key.
    pub rows: Vec<Row>,
    /// Whether more facts follow in this shard.
    pub more: bool,
    /// Log index of the view.
    pub index: LogIndex,
}

/// What a count found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountReply {
    /// Live facts that match.
    pub count: u64,
    /// Log index of the view.
    pub index: LogIndex,
}

/// What a shard knows of one entity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EntityReply {
    /// Its name, in a `names` graph with at least one fact of it.
    pub name: Option<Arc<str>>,
    /// Live facts per relation, ascending.
    pub degrees: Vec<(RelationId, u64)>,
    /// Log index of the view.
    pub index: LogIndex,
}

/// Sizes and state of one shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardStats {
    /// Live facts.
    pub facts: u64,
    /// Live facts with an embedding.
    pub vectors: u64,
    /// Rows of segments that are dead.
    pub dead_rows: u64,
    /// Facts still in memtables.
    pub memtable_facts: u64,
    /// Bytes of memtables.
    pub memtable_bytes: u64,
    /// Bytes of segment files.
    pub disk_bytes: u64,
    /// Live facts per relation, ascending.
    pub relations: Vec<(RelationId, u64)>,
    /// One line per segment.
    pub segments: Vec<SegmentStats>,
    /// Applied log index.
    pub index: LogIndex,
}

/// One segment in `ShardStats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentStats {
    /// Which.
    pub id: u64,
    /// Rows, dead ones included.
    pub rows: u64,
    /// Dead rows.
    pub dead: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// How seeds are searched there by default.
    pub way: String,
    /// Recall@64 measured at seal for that way, when it was measured.
    pub recall: Option<f64>,
    /// Why the chosen way is not the graph although there is one, or other alarms.
    pub alarm: Option<String>,
}

/// One change of one fact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WriteOp {
    /// Inserts or replaces the whole fact.
    Upsert(Fact),
    /// Removes the fact if it is there.
    Delete(FactKey),
    /// Removes every live fact of the entity (and relation), as of the moment of applying.
    DeletePrefix {
        /// Whose facts.
        entity: EntityId,
        /// Only along this relation.
        relation: Option<RelationId>,
    },
}

impl WriteOp {
    /// The entity that decides the shard.
    pub fn entity(&self) -> EntityId {
        match self {
            Self::Upsert(fact) => fact.key.entity,
            Self::Delete(key) => key.entity,
            Self::DeletePrefix { entity, .. } => *entity,
        }
    }
}

/// A shard's part of a client's batch: applied whole or not at all, at one log index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteBatch {
    /// No key twice; applied in order.
    pub ops: Vec<WriteOp>,
    /// Makes a retry apply once.
    pub idempotency: Option<Idempotency>,
}

/// A client's promise that equal keys mean the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Idempotency {
    /// Hash of the client's key.
    pub key: u128,
    /// Hash of the client's whole batch, before it was split by shard.
    pub batch: u128,
}

/// Where a write goes.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteContext {
    /// Incarnation of the graph.
    pub graph: GraphId,
    /// The shard asked.
    pub shard: ShardId,
    /// Ownership that the caller believes in; checked again when the entry is applied.
    pub epoch: Epoch,
    /// On the process's monotonic clock.
    pub deadline: Duration,
    /// What to wait for.
    pub wait: Wait,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Committed and applied on the leader.
    #[default]
    Committed,
    /// Applied on all live replicas.
    Applied,
    /// And found by an index or a scan.
    Indexed,
}

/// What one shard's part of a write did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReply {
    /// Facts written, replaced ones included.
    pub upserted: u64,
    /// Of these, facts that were there before.
    pub replaced: u64,
    /// Facts removed.
    pub deleted: u64,
    /// Keys to delete that had no live fact.
    pub not_found: u64,
    /// Log index of the batch.
    pub index: LogIndex,
    /// Keys to delete that had no live fact, in request order.
    pub missing: Vec<FactKey>,
    /// Log index of each replaced or deleted version, in key order.
    pub replaced_versions: Vec<(FactKey, LogIndex)>,
}

/// Checks that `names` are what a stored fact claims: used where two names of one id may meet.
pub fn same_name(known: Option<&Names>, new: Option<&Names>) -> bool {
    match (known, new) {
        (Some(known), Some(new)) => known.entity == new.entity,
        _ => true,
    }
}
