//! Reads of one shard: which view, seeds, facts by key, scans, counts, sizes; and what they took.

use crate::fact::{Fact, FactKey};
use crate::filter::Filter;
use crate::ids::{Epoch, GraphId, LogIndex, RelationId, RequestId, SegmentId, ShardId};
use crate::range::KeyRange;
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
    /// The same run by run, newest first; runs without live rows are left out.
    pub runs: Vec<RunWork>,
    /// Log index of the view.
    pub index: LogIndex,
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
    /// Largest beam of a graph walk; 0: none was walked.
    pub ef: u64,
    /// Nanoseconds from the beginning of the read in its node to its end.
    pub nanos: u64,
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
        self.ef = self.ef.max(other.ef);
        self.nanos += other.nanos;
    }
}

/// What a search for seeds took in one run of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWork {
    /// Which segment; `None`: a memtable.
    pub segment: Option<SegmentId>,
    /// Live rows.
    pub rows: u64,
    /// Way taken; `None`: nothing of it could be wanted.
    pub way: Option<String>,
    /// Beam, when a graph was walked; else 0.
    pub ef: u64,
    /// Approximate distances computed over 8-bit codes.
    pub codes_scored: u64,
    /// Exact distances computed.
    pub vectors_scored: u64,
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
    /// Memtables that wait for their flush.
    pub frozen_memtables: u64,
    /// Whether segments wait to be merged or rewritten.
    pub compaction_due: bool,
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
