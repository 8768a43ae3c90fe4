//! What a user may ask, as typed values with the contract's defaults.
//!
//! These are the raw requests: ids may be names, numbers may be out of bounds. `check` turns each
//! into a plan that the rest of the crate trusts, or into a `Problem` that names the place.

use hopbine_proto::call::{Freshness, SeedMode, Wait};
use hopbine_proto::graph::EfSearch;
use hopbine_proto::limits;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::Problem;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

/// An entity or target as users write it: a name in a `names` graph, a number in a `u64` graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntityRef {
    /// In a `names` graph.
    Name(Arc<str>),
    /// In a `u64` graph.
    Number(u64),
}

/// A relation as users write it. Numbers above `u32::MAX` are refused when checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RelationRef {
    /// In a `names` graph.
    Name(Arc<str>),
    /// In a `u64` graph.
    Number(u64),
}

/// The key of one fact as users write it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef {
    /// The subject.
    pub entity: EntityRef,
    /// The kind of the edge.
    pub relation: RelationRef,
    /// The object.
    pub target: EntityRef,
}

/// All facts of an entity, or of an entity along one relation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrefixRef {
    /// The subject.
    pub entity: EntityRef,
    /// Only along this relation.
    pub relation: Option<RelationRef>,
}

/// One fact to write.
#[derive(Clone, Debug)]
pub struct FactInput {
    /// Its key.
    pub key: KeyRef,
    /// One f32 per dimension of the graph, or none for a structural edge.
    pub embedding: Option<Arc<[f32]>>,
    /// Any JSON.
    pub payload: Option<Box<RawValue>>,
}

/// One element of `relation_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HopRelations {
    /// `"*"`: every relation.
    Any,
    /// A relation, or a list of them (not empty).
    Of(Vec<RelationRef>),
}

/// What is asked: at least one of the three.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// The question's vector.
    pub embedding: Option<Arc<[f32]>>,
    /// The question's words; embedded when the graph has an embedder and no vector is given.
    pub text: Option<String>,
    /// Known starting points instead of seeds: no ANN search, prefix 0 each.
    pub entities: Vec<EntityRef>,
}

impl Query {
    /// A question by its vector.
    pub fn vector(embedding: impl Into<Arc<[f32]>>) -> Self {
        Self { embedding: Some(embedding.into()), ..Self::default() }
    }

    /// A question by its words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }
}

/// Which column of a seed fact starts hop 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeedOn {
    /// The seed fact's subject.
    #[default]
    Entity,
    /// The seed fact's object.
    Target,
}

/// Which parts of facts a reply carries. `Default` is nothing but keys; requests default to
/// [`WithParts::PAYLOAD`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithParts {
    /// Payloads of result facts.
    pub payload: bool,
    /// Embeddings of result facts.
    pub vector: bool,
    /// Payloads of the facts on each result's path.
    pub path_payloads: bool,
    /// The log index that wrote each fact, and the read index per shard.
    pub version: bool,
}

impl WithParts {
    /// `["payload"]`, the contract's default.
    pub const PAYLOAD: Self =
        Self { payload: true, vector: false, path_payloads: false, version: false };
}

/// `graph_rag`: seeds, hops, exact rerank. `Default` is the contract's default of every field;
/// the contract's `seeds: {"ann": {"k"}}` is `ann_k` here.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphRagRequest {
    /// The question.
    pub query: Query,
    /// One element a hop; empty: the seed facts themselves.
    pub relation_path: Vec<HopRelations>,
    /// Which column of a seed fact starts hop 1.
    pub seed_on: SeedOn,
    /// Only facts of these relations may be seeds.
    pub seed_relations: Option<Vec<RelationRef>>,
    /// Seed facts kept over the whole graph, 1 to 10,000.
    pub ann_k: u64,
    /// Search beam; `None`: the graph's own setting.
    pub ef_search: Option<EfSearch>,
    /// Seeds by full scan.
    pub exact_seeds: bool,
    /// Overrides how seeds are searched, for measurements; not reachable from the network.
    pub seed_mode: Option<SeedMode>,
    /// Results, 1 to 10,000.
    pub top_k: u64,
    /// What a result's distance is.
    pub score_mode: ScoreMode,
    /// One finite factor per hop; `None`: all 1.
    pub hop_weights: Option<Vec<f64>>,
    /// A start's prefix is this times its seed distance.
    pub seed_weight: f64,
    /// Of one frontier entity's matching facts keep the nearest.
    pub limit_per_entity: u64,
    /// Distinct targets kept as the next frontier.
    pub beam: u64,
    /// Safety bound on facts read per hop in one shard.
    pub limit_rows: u64,
    /// Whether a path may end a hop where it began.
    pub return_to_start: bool,
    /// Filter in the contract's JSON form.
    pub filter: Option<Value>,
    /// Parts of facts to return.
    pub with: WithParts,
}

impl Default for GraphRagRequest {
    fn default() -> Self {
        Self {
            query: Query::default(),
            relation_path: Vec::new(),
            seed_on: SeedOn::Entity,
            seed_relations: None,
            ann_k: 64,
            ef_search: None,
            exact_seeds: false,
            seed_mode: None,
            top_k: 10,
            score_mode: ScoreMode::Path,
            hop_weights: None,
            seed_weight: 1.0,
            limit_per_entity: limits::LIMIT_PER_ENTITY_DEFAULT.into(),
            beam: limits::BEAM_DEFAULT.into(),
            limit_rows: limits::LIMIT_ROWS_DEFAULT,
            return_to_start: false,
            filter: None,
            with: WithParts::PAYLOAD,
        }
    }
}

/// `search`: the facts nearest to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchRequest {
    /// The question; `entities` must be empty.
    pub query: Query,
    /// Results, 1 to 10,000.
    pub k: u64,
    /// Search beam; `None`: the graph's own setting.
    pub ef_search: Option<EfSearch>,
    /// By full scan.
    pub exact: bool,
    /// Overrides how facts are searched, for measurements; not reachable from the network.
    pub seed_mode: Option<SeedMode>,
    /// Filter in the contract's JSON form.
    pub filter: Option<Value>,
    /// Only facts of these relations.
    pub relations: Option<Vec<RelationRef>>,
    /// Parts of facts to return.
    pub with: WithParts,
}

impl Default for SearchRequest {
    fn default() -> Self {
        Self {
            query: Query::default(),
            k: 10,
            ef_search: None,
            exact: false,
            seed_mode: None,
            filter: None,
            relations: None,
            with: WithParts::PAYLOAD,
        }
    }
}

/// `expand`: hops from known entities, reranked when there is a question, in key order otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpandRequest {
    /// Where paths start; not empty.
    pub from: Vec<EntityRef>,
    /// One element a hop; not empty.
    pub relation_path: Vec<HopRelations>,
    /// The question, or `None` for plain expansion; `entities` must be empty.
    pub query: Option<Query>,
    /// Results with a question (default 10); without one the same as `page_size`.
    pub top_k: Option<u64>,
    /// What a result's distance is.
    pub score_mode: ScoreMode,
    /// One finite factor per hop; `None`: all 1.
    pub hop_weights: Option<Vec<f64>>,
    /// Facts per page without a question, 1 to 10,000; default 1,000.
    pub page_size: Option<u64>,
    /// Where the last page ended; the rest of the request must be the same.
    pub page_token: Option<String>,
    /// Safety bound on facts read per hop in one shard.
    pub limit_rows: u64,
    /// Of one frontier entity's matching facts keep the nearest (the first without a question).
    pub limit_per_entity: u64,
    /// Distinct targets kept as the next frontier.
    pub beam: u64,
    /// Whether a path may end a hop where it began.
    pub return_to_start: bool,
    /// Filter in the contract's JSON form.
    pub filter: Option<Value>,
    /// Parts of facts to return.
    pub with: WithParts,
}

impl Default for ExpandRequest {
    fn default() -> Self {
        Self {
            from: Vec::new(),
            relation_path: Vec::new(),
            query: None,
            top_k: None,
            score_mode: ScoreMode::Path,
            hop_weights: None,
            page_size: None,
            page_token: None,
            limit_rows: limits::LIMIT_ROWS_DEFAULT,
            limit_per_entity: limits::LIMIT_PER_ENTITY_DEFAULT.into(),
            beam: limits::BEAM_DEFAULT.into(),
            return_to_start: false,
            filter: None,
            with: WithParts::PAYLOAD,
        }
    }
}

/// `rerank`: scores paths that the caller already has.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankRequest {
    /// The question; `entities` must be empty.
    pub query: Query,
    /// Each path's facts, first to last; none empty. Facts need not be joined.
    pub paths: Vec<Vec<KeyRef>>,
    /// Sum of the distances, or the last fact's alone.
    pub score_mode: ScoreMode,
    /// Results, 1 to 10,000.
    pub top_k: u64,
}

/// `facts/write`: upserts and deletes, atomic within a shard.
#[derive(Clone, Debug, Default)]
pub struct WriteRequest {
    /// Facts to insert or replace.
    pub upsert: Vec<FactInput>,
    /// Keys to remove.
    pub delete: Vec<KeyRef>,
}

/// `facts/delete`.
#[derive(Clone, Debug, PartialEq)]
pub enum DeleteRequest {
    /// These facts.
    Keys(Vec<KeyRef>),
    /// Every fact of an entity (and relation) as of the moment of applying.
    Prefix(PrefixRef),
}

/// `facts/get`.
#[derive(Clone, Debug, PartialEq)]
pub struct GetRequest {
    /// Which facts; a key asked twice is answered twice.
    pub keys: Vec<KeyRef>,
    /// Parts of facts to return (`path_payloads` has no meaning here).
    pub with: WithParts,
}

/// `facts/scan`: facts in key order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRequest {
    /// Only these; `None`: the whole graph.
    pub prefix: Option<PrefixRef>,
    /// Filter in the contract's JSON form.
    pub filter: Option<Value>,
    /// Facts per page, 1 to 10,000; default 1,000.
    pub page_size: Option<u64>,
    /// Where the last page ended; the rest of the request must be the same.
    pub page_token: Option<String>,
    /// Parts of facts to return (`path_payloads` has no meaning here).
    pub with: WithParts,
}

impl Default for ScanRequest {
    fn default() -> Self {
        Self {
            prefix: None,
            filter: None,
            page_size: None,
            page_token: None,
            with: WithParts::PAYLOAD,
        }
    }
}

/// `facts/count`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountRequest {
    /// Only these; `None`: the whole graph.
    pub prefix: Option<PrefixRef>,
    /// Filter in the contract's JSON form.
    pub filter: Option<Value>,
}

/// Whether a retrieval says how it was, or would be, answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explain {
    /// No.
    #[default]
    None,
    /// What would be done; nothing is.
    Plan,
    /// What was done, beside the results.
    Analyze,
}

/// How a read is to be carried out. Views are pinned under an id that the engine makes itself, so
/// that two calls never share one; a client's `X-Request-Id` is for logs only.
#[derive(Clone, Debug, PartialEq)]
pub struct CallOptions {
    /// How fresh; default bounded by 5 s.
    pub consistency: Freshness,
    /// A `Consistency-Token` of an earlier reply: at least the writes that it stands for.
    pub token: Option<String>,
    /// Where the token was given.
    pub token_in: Origin,
    /// For the whole call, from its beginning; 1 ms to 10 min, default 2 s.
    pub timeout: Duration,
    /// At the deadline or with a shard down: a labelled partial answer instead of an error.
    pub allow_partial: bool,
    /// Of a retrieval: whether it explains itself.
    pub explain: Explain,
    /// The caller's name for the request in logs.
    pub request_id: Option<Arc<str>>,
    /// Of a retrieval: whether it waits for its turn until its deadline, rather than be refused for
    /// a long queue, as the parts of a batch do.
    pub patient: bool,
    /// About how many bytes the request takes. What looks at all of a large one leaves the async
    /// threads; 0 stands for a small one.
    pub request_bytes: usize,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            consistency: Freshness::Bounded { max_staleness: limits::MAX_STALENESS_DEFAULT },
            token: None,
            token_in: Origin::Body,
            timeout: limits::TIMEOUT_DEFAULT,
            allow_partial: false,
            explain: Explain::None,
            request_id: None,
            patient: false,
            request_bytes: 0,
        }
    }
}

/// Where a caller gave what may stand in the request or beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// In a field of the request.
    #[default]
    Body,
    /// Where these words say: no place in the request leads there.
    Beside(&'static str),
}

impl Origin {
    /// `problem` of a value that was given here: it points into the request, or says where else.
    pub fn place(self, mut problem: Problem) -> Problem {
        if let Self::Beside(place) = self {
            problem.errors.clear();
            problem.detail = format!("{place}: {}", problem.detail);
        }
        problem
    }
}

/// How a write is to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteOptions {
    /// What to wait for.
    pub wait: Wait,
    /// For the whole call; 1 ms to 10 min.
    pub timeout: Duration,
    /// Makes a retried batch apply once: 1 to 256 bytes.
    pub idempotency_key: Option<String>,
    /// Where the key was given.
    pub key_in: Origin,
}

impl Default for WriteOptions {
    fn default() -> Self {
        // A write waits for a disk sync and perhaps for a flush: far longer than a read.
        Self {
            wait: Wait::Committed,
            timeout: Duration::from_secs(30),
            idempotency_key: None,
            key_in: Origin::Body,
        }
    }
}
