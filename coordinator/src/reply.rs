//! What a user gets back: typed values that the surfaces only have to write down.

use crate::request::{EntityRef, KeyRef, RelationRef};
use hopbine_proto::FactKey;
use hopbine_proto::call::{HopCounts, ShardStats, Work};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::ids::{Epoch, LogIndex, RelationId, ShardId};
use hopbine_proto::limits::REPLY_BYTES_MAX;
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;

/// Which write made a fact what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactVersion {
    /// Whose log.
    pub shard: ShardId,
    /// Ownership at which it was read or written.
    pub epoch: Epoch,
    /// Its place in the log.
    pub index: LogIndex,
}

/// One fact in a reply. Parts that were not asked for are `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct FactOut {
    /// The key by its ids.
    pub id: FactKey,
    /// The key as the user writes it.
    pub key: KeyRef,
    /// The embedding, with `vector`.
    pub embedding: Option<Arc<[f32]>>,
    /// JSON text, with `payload`; `None` also when the writer gave none.
    pub payload: Option<Arc<str>>,
    /// With `version`.
    pub version: Option<FactVersion>,
}

impl FactOut {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let vector = self.embedding.as_ref().map_or(0, |embedding| embedding.len() * 12);
        96 + vector + self.payload.as_ref().map_or(0, |payload| payload.len())
    }
}

/// Refuses a reply of more than [`REPLY_BYTES_MAX`] bytes; `hint` says what to ask for instead.
pub fn refuse_large(bytes: usize, hint: &str) -> Result<(), Problem> {
    if bytes <= REPLY_BYTES_MAX {
        return Ok(());
    }
    let detail =
        format!("the reply would take {bytes} bytes, more than the {REPLY_BYTES_MAX} allowed");
    Err(Problem::new(Code::PayloadTooLarge, detail).hint(hint))
}

/// One fact of a result's path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStep {
    /// The fact walked.
    pub fact: FactOut,
    /// Its own unweighted distance; `None` without a question.
    pub distance: Option<f64>,
}

/// One result: a distinct last fact with its best path.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultOut {
    /// The score; `None` without a question.
    pub distance: Option<f64>,
    /// The fact found.
    pub fact: FactOut,
    /// From hop 1 to the fact itself; empty for a seed fact.
    pub path: Vec<PathStep>,
}

/// Reply of `expand_keys`.
#[derive(Clone, Debug, PartialEq)]
pub struct KeysReply {
    /// Facts of the last hop, ascending.
    pub keys: Vec<FactKey>,
    /// Whether a shard, the deadline or `limit_rows` kept something from the answer.
    pub partial: bool,
    /// The account.
    pub coverage: Coverage,
    /// The next page.
    pub next_page_token: Option<String>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
    /// Wall time per stage.
    pub timings: Timings,
    /// What it took, over all shards and stages.
    pub work: Work,
}

/// What one hop read and dropped, over all shards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HopCoverage {
    /// From 1.
    pub hop: u32,
    /// Entities expanded.
    pub frontier: u64,
    /// Facts of matching relation read.
    pub read: u64,
    /// Facts that passed filter, limits and the start test.
    pub kept: u64,
    /// Facts cut by `limit_per_entity` plus targets cut by `beam`.
    pub cut: u64,
    /// Why anything was cut or is missing: `limit_per_entity`, `beam`, `limit_rows`,
    /// `shard_unavailable`, `deadline`, joined by commas; `None` when nothing was.
    pub why: Option<String>,
    /// The counts behind the sums above.
    pub counts: HopCounts,
    /// Log index read per shard asked, ascending by shard; shown with `version`.
    pub indexes: Vec<(ShardId, LogIndex)>,
}

/// Which shards answered, and what each hop did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Distinct shards asked.
    pub shards: u64,
    /// Those that answered everything asked of them.
    pub answered: u64,
    /// The others, ascending.
    pub missing: Vec<ShardId>,
    /// One line a hop that began.
    pub hops: Vec<HopCoverage>,
}

/// Wall time per stage, milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// Checking the request and embedding its text.
    pub plan_ms: f64,
    /// Seed search over all shards, merge included; 0 when there was none.
    pub seeds_ms: f64,
    /// Each hop, merge included.
    pub hops_ms: Vec<f64>,
    /// Names, payloads and vectors of what is shown.
    pub fetch_ms: f64,
    /// Of the stages above, time spent merging in the coordinator.
    pub merge_ms: f64,
    /// The whole call.
    pub total_ms: f64,
}

/// Reply of `graph_rag`, `search` and `expand`.
#[derive(Clone, Debug, PartialEq)]
pub struct RetrievalReply {
    /// By `(distance, key)`; by key without a question.
    pub results: Vec<ResultOut>,
    /// Whether a shard, the deadline or `limit_rows` kept something from the answer.
    pub partial: bool,
    /// The account.
    pub coverage: Coverage,
    /// The next page of an expansion without a question.
    pub next_page_token: Option<String>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
    /// Distinct seed facts used; 0 when starts were given.
    pub seeds: u64,
    /// Wall time per stage.
    pub timings: Timings,
    /// What it took, over all shards and stages.
    pub work: Work,
}

impl RetrievalReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let result = |result: &ResultOut| {
            let steps = result.path.iter().map(|step| step.fact.text_bytes());
            result.fact.text_bytes() + steps.sum::<usize>()
        };
        512 + self.results.iter().map(result).sum::<usize>()
    }
}

/// One line of a `rerank` reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RerankResult {
    /// Position in the request's `paths`.
    pub index: u64,
    /// The score.
    pub distance: f64,
}

/// Reply of `rerank`.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankReply {
    /// By `(distance, index)`.
    pub results: Vec<RerankResult>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
}

/// Reply of every write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteReply {
    /// Facts written, replaced ones included.
    pub upserted: u64,
    /// Of these, facts that were there before.
    pub replaced: u64,
    /// Facts removed.
    pub deleted: u64,
    /// Keys to delete that had no live fact.
    pub not_found: u64,
    /// Those keys, in request order.
    pub missing: Vec<KeyRef>,
    /// The version that each replaced or deleted fact had, in key order. A fact removed by a
    /// prefix has its key by hash only and is left out in a `names` graph.
    pub replaced_versions: Vec<(KeyRef, FactVersion)>,
    /// The log index of each shard's part, ascending by shard.
    pub versions: Vec<FactVersion>,
    /// A read with it sees this write.
    pub consistency_token: String,
}

/// Reply of `facts/get`.
#[derive(Clone, Debug, PartialEq)]
pub struct GetReply {
    /// Facts found, in request order.
    pub facts: Vec<FactOut>,
    /// Keys without a live fact, in request order.
    pub not_found: Vec<KeyRef>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
}

/// Reply of `facts/scan`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanReply {
    /// Ascending by key.
    pub facts: Vec<FactOut>,
    /// `None` after the last page.
    pub next_page_token: Option<String>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
}

/// Reply of `facts/count`.
#[derive(Clone, Debug, PartialEq)]
pub struct CountReply {
    /// Live facts that match.
    pub count: u64,
    /// At least the state that this answer saw.
    pub consistency_token: String,
}

/// Reply of `entities/{id}`.
#[derive(Clone, Debug, PartialEq)]
pub struct EntityReply {
    /// The entity as the user writes it.
    pub entity: EntityRef,
    /// Live facts per relation, ascending by relation id.
    pub degrees: Vec<(RelationRef, u64)>,
    /// Its first facts in key order, with payloads.
    pub facts: Vec<FactOut>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
}

/// One relation of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationOut {
    /// As the user writes it.
    pub relation: RelationRef,
    /// Its id.
    pub id: RelationId,
    /// Live facts along it.
    pub facts: u64,
}

/// Sizes and state of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct StatsReply {
    /// The graph.
    pub graph: Arc<GraphInfo>,
    /// Sums over the shards that answered; `segments` stays empty here.
    pub total: ShardStats,
    /// Each shard's own, ascending by range.
    pub shards: Vec<(ShardDescriptor, ShardStats)>,
}
