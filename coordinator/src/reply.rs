//! What a user gets back: typed values that the surfaces only have to write down.

use crate::explain::Explanation;
use crate::memory::Held;
use crate::request::{EntityRef, KeyRef, RelationRef};
use hopbine_proto::FactKey;
use hopbine_proto::call::{HopCounts, Row, ShardStats, Work};
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
        let parts = parts_bytes(self.embedding.as_deref(), self.payload.as_deref());
        key_text_bytes(&self.key) + parts
    }
}

/// Bytes of a fact's field names, numbers and punctuation.
const FACT_BYTES: usize = 96;
/// The same of a version, of one hop in an account, of a segment, and of what a reply or a shard
/// says of itself.
const VERSION_BYTES: usize = 64;
const HOP_BYTES: usize = 192;
const SEGMENT_BYTES: usize = 192;
const REPLY_BYTES: usize = 512;

/// About how many bytes a key takes as text.
fn key_text_bytes(key: &KeyRef) -> usize {
    let entity = |entity: &EntityRef| match entity {
        EntityRef::Name(name) => string_bytes(name),
        EntityRef::Number(_) => 0,
    };
    FACT_BYTES + entity(&key.entity) + relation_bytes(&key.relation) + entity(&key.target)
}

fn relation_bytes(relation: &RelationRef) -> usize {
    match relation {
        RelationRef::Name(name) => string_bytes(name),
        RelationRef::Number(_) => 0,
    }
}

fn facts_text_bytes(facts: &[FactOut]) -> usize {
    facts.iter().map(FactOut::text_bytes).sum()
}

/// About how many bytes a row takes as text, but for the name of its relation.
pub fn row_text_bytes(row: &Row) -> usize {
    let fact = &row.fact;
    let names = fact.names.as_ref();
    let names = names.map_or(0, |names| string_bytes(&names.entity) + string_bytes(&names.target));
    FACT_BYTES + names + parts_bytes(fact.embedding.as_deref(), fact.payload.as_deref())
}

fn parts_bytes(embedding: Option<&[f32]>, payload: Option<&str>) -> usize {
    // The shortest text of a component of a unit vector takes 12 to 13 bytes with its comma.
    embedding.map_or(0, |embedding| embedding.len() * 14) + payload.map_or(0, str::len)
}

/// Bytes of `text` between the quotes of a JSON string.
fn string_bytes(text: &str) -> usize {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        byte if byte < b' ' => 5,
        _ => 0,
    };
    text.len() + text.bytes().map(escape).sum::<usize>()
}

/// Adds up a reply while its parts come in, so that one too large is refused before it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplySize {
    bytes: usize,
    bytes_max: usize,
}

impl Default for ReplySize {
    /// Nothing yet, at most [`REPLY_BYTES_MAX`].
    fn default() -> Self {
        Self::up_to(REPLY_BYTES_MAX)
    }
}

impl ReplySize {
    /// Nothing yet, at most `bytes_max`.
    pub fn up_to(bytes_max: usize) -> Self {
        Self { bytes: 0, bytes_max }
    }

    /// Bytes so far.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Adds a part of `bytes`. `payload_too_large` once the sum is above the bound; `hint` says
    /// what to ask for instead.
    pub fn add(&mut self, bytes: usize, hint: &str) -> Result<(), Problem> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= self.bytes_max {
            return Ok(());
        }
        let most = self.bytes_max;
        let detail = format!("the reply would take more than the {most} bytes allowed");
        Err(Problem::new(Code::PayloadTooLarge, detail).hint(hint))
    }
}

/// Advice on a retrieval's reply that is too large.
pub const FEWER_RESULTS: &str = "ask for fewer results, or for fewer parts of each";
/// Advice on facts by key that are too large together.
pub const FEWER_KEYS: &str = "ask for fewer keys at once, or for fewer parts of each fact";
/// Advice on a batch whose replies are too large together.
pub const FEWER_REQUESTS: &str = "send fewer requests in one batch, or ask for fewer parts";

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
    /// Checking the request, embedding its text and waiting for its turn.
    pub plan_ms: f64,
    /// Of that, embedding the text; 0 when a vector was given.
    pub embed_ms: f64,
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
    /// How it was, or would be, answered, when that was asked for.
    pub explain: Option<Box<Explanation>>,
    /// Its bytes among those of all replies of the process.
    pub held: Option<Arc<Held>>,
}

impl RetrievalReply {
    /// The reply to a request that was explained and not answered.
    pub fn of_plan(explanation: Explanation, consistency_token: String) -> Self {
        Self {
            results: Vec::new(),
            partial: false,
            coverage: Coverage::default(),
            next_page_token: None,
            consistency_token,
            seeds: 0,
            timings: Timings::default(),
            work: Work::default(),
            explain: Some(Box::new(explanation)),
            held: None,
        }
    }

    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let result = |result: &ResultOut| {
            let steps = result.path.iter().map(|step| step.fact.text_bytes());
            result.fact.text_bytes() + steps.sum::<usize>()
        };
        let hops = self.coverage.hops.iter();
        let account = hops.map(|hop| HOP_BYTES + hop.indexes.len() * VERSION_BYTES).sum::<usize>();
        let results = self.results.iter().map(result).sum::<usize>();
        let explain = self.explain.as_ref().map_or(0, |explain| explain.text_bytes());
        REPLY_BYTES + account + self.consistency_token.len() + results + explain
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
    /// How it was, or would be, answered, when that was asked for.
    pub explain: Option<Box<Explanation>>,
}

impl RerankReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let explain = self.explain.as_ref().map_or(0, |explain| explain.text_bytes());
        REPLY_BYTES + self.results.len() * VERSION_BYTES + explain
    }
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

impl WriteReply {
    /// About how many bytes it takes as text, with its versions.
    pub fn text_bytes(&self) -> usize {
        let replaced = self.replaced_versions.iter();
        let replaced = replaced.map(|(key, _)| key_text_bytes(key) + VERSION_BYTES).sum::<usize>();
        REPLY_BYTES + self.versions.len() * VERSION_BYTES + replaced
    }
}

/// Reply of `facts/get`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GetReply {
    /// Facts found, in request order.
    pub facts: Vec<FactOut>,
    /// Keys without a live fact, in request order.
    pub not_found: Vec<KeyRef>,
    /// At least the state that this answer saw.
    pub consistency_token: String,
    /// Its bytes among those of all replies of the process.
    pub held: Option<Arc<Held>>,
}

impl GetReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let not_found = self.not_found.iter().map(key_text_bytes).sum::<usize>();
        REPLY_BYTES + facts_text_bytes(&self.facts) + not_found
    }
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
    /// Its bytes among those of all replies of the process.
    pub held: Option<Arc<Held>>,
}

impl ScanReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        REPLY_BYTES + facts_text_bytes(&self.facts)
    }
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
    /// Its bytes among those of all replies of the process.
    pub held: Option<Arc<Held>>,
}

impl EntityReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let degrees = self.degrees.iter();
        let degrees = degrees.map(|(relation, _)| FACT_BYTES + relation_bytes(relation));
        REPLY_BYTES + degrees.sum::<usize>() + facts_text_bytes(&self.facts)
    }
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

impl RelationOut {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        FACT_BYTES + relation_bytes(&self.relation)
    }
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

impl StatsReply {
    /// About how many bytes it takes as text.
    pub fn text_bytes(&self) -> usize {
        let shard = |(_, stats): &(ShardDescriptor, ShardStats)| {
            REPLY_BYTES + stats.segments.len() * SEGMENT_BYTES
        };
        REPLY_BYTES + self.shards.iter().map(shard).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::{Fact, Names};

    #[test]
    fn a_string_counts_as_json_writes_it() {
        for text in ["", "Marie Curie", "é\u{7f}", "\"\\/", "\n\r\t\u{8}\u{c}", "\0\u{1f} "] {
            let json = serde_json::to_string(text).expect("a string");
            assert_eq!(string_bytes(text) + 2, json.len(), "{json}");
        }
    }

    #[test]
    fn names_payloads_and_vectors_count_in_facts_and_rows_alike() {
        let (long, payload) = ("\n".repeat(4_000), "\"text\"");
        let names = Names { entity: long.as_str().into(), target: "ab".into() };
        let key = FactKey::new(1, 2, 3);
        let fact = FactOut {
            id: key,
            key: KeyRef {
                entity: EntityRef::Name(names.entity.clone()),
                relation: RelationRef::Name("by".into()),
                target: EntityRef::Name(names.target.clone()),
            },
            embedding: Some(vec![1.0; 3].into()),
            payload: Some(payload.into()),
            version: None,
        };
        assert_eq!(fact.text_bytes(), FACT_BYTES + 8_000 + 2 + 2 + 42 + 6);
        let (embedding, payload) = (fact.embedding.clone(), fact.payload.clone());
        let fact_in = Fact { key, names: Some(names), embedding, payload };
        let row = Row { fact: fact_in, version: LogIndex(1), distance: None };
        assert_eq!(row_text_bytes(&row) + "by".len(), fact.text_bytes());
        let number = EntityRef::Number(7);
        let numbers =
            KeyRef { entity: number.clone(), relation: RelationRef::Number(1), target: number };
        let bare = FactOut { key: numbers, embedding: None, payload: None, ..fact };
        assert_eq!(bare.text_bytes(), FACT_BYTES);
    }

    #[test]
    fn a_reply_is_refused_at_the_part_that_makes_it_too_large() {
        let mut size = ReplySize::up_to(10);
        assert_eq!(size.add(6, FEWER_KEYS), Ok(()));
        assert_eq!(size.add(4, FEWER_KEYS), Ok(()));
        assert_eq!(size.bytes(), 10);
        let problem = size.add(1, FEWER_KEYS).expect_err("one too many");
        assert_eq!(problem.code, Code::PayloadTooLarge);
        assert_eq!(problem.hint.as_deref(), Some(FEWER_KEYS));
        assert!(ReplySize::default().add(REPLY_BYTES_MAX, FEWER_KEYS).is_ok());
        assert!(ReplySize::default().add(usize::MAX, FEWER_KEYS).is_err());
    }
}
