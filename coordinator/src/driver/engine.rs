//! [`Engine`]: its parts, questions and writes.

use super::admission::Admission;
use super::apart::in_place;
use super::call::{Call, Failure, too_late};
use super::explain::Asked;
use super::turns::Turns;
use crate::check::{self, facts::Places};
use crate::client::{Catalogue, Shards};
use crate::config::CoordinatorConfig;
use crate::embed::{Lexical, Tokenizer};
use crate::explain::Explanation;
use crate::memory::{Held, ReplyMemory};
use crate::reply::{
    FEWER_REQUESTS, FEWER_RESULTS, KeysReply, ReplySize, RetrievalReply, Timings, WriteReply,
};
use crate::request::{
    CallOptions, DeleteRequest, ExpandRequest, Explain, FactInput, GraphRagRequest, SearchRequest,
    WithParts, WriteOptions, WriteRequest,
};
use crate::retrieval::{self, Answer, Output, Plan};
use crate::slow::SlowQueries;
use crate::{ingest, names, token};
use futures::StreamExt;
use hopbine_proto::call::WriteOp;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{Clock, RequestId, limits};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Requests of one batch that are under way at once.
const BATCH_AT_ONCE: usize = 8;
/// Ways that all retrievals under way may keep together, counted in pieces of `WAYS_PIECE`: some
/// 1.3 GB. A retrieval of two hops with the default beam takes eight pieces.
const WAY_PIECES: usize = 16 * 1024;
const WAYS_PIECE: u64 = 1024;
/// When a retrieval that found no room should come back.
const WAYS_RETRY_MS: u64 = 200;
/// Embedders kept, one per tokeniser and dimension in use.
const EMBEDDERS_MAX: usize = 64;

/// Answers requests over the shards and the catalogue it was given. Cheap to clone and to share.
/// Its futures need a tokio runtime with time; dropping one lets go of all that it pinned.
#[derive(Clone)]
pub struct Engine {
    pub(crate) parts: Arc<Parts>,
}

pub(crate) struct Parts {
    pub shards: Arc<dyn Shards>,
    pub catalogue: Arc<dyn Catalogue>,
    pub clock: Arc<dyn Clock>,
    pub config: CoordinatorConfig,
    /// Tells this engine's requests from those of every other.
    instance: u64,
    requests: AtomicU64,
    ways: Semaphore,
    admission: Admission,
    pub replies: Arc<ReplyMemory>,
    pub reads: Turns,
    pub slow: SlowQueries,
    embedders: Mutex<HashMap<(Tokenizer, u32), Arc<Lexical>>>,
}

impl Engine {
    /// An engine over these parts. `clock` must be the one that the shards measure deadlines by.
    pub fn new(
        shards: Arc<dyn Shards>,
        catalogue: Arc<dyn Catalogue>,
        clock: Arc<dyn Clock>,
        config: CoordinatorConfig,
    ) -> Self {
        let replies_bytes_max = usize::try_from(config.replies_bytes_max).unwrap_or(usize::MAX);
        let parts = Parts {
            shards,
            catalogue,
            clock,
            config,
            instance: RandomState::new().hash_one(0),
            requests: AtomicU64::new(0),
            ways: Semaphore::new(WAY_PIECES),
            admission: Admission::of_machine(),
            replies: ReplyMemory::new(replies_bytes_max),
            reads: Turns::new(replies_bytes_max),
            slow: SlowQueries::default(),
            embedders: Mutex::new(HashMap::new()),
        };
        Self { parts: Arc::new(parts) }
    }

    /// What the replies under way hold together. A surface adds what it writes down.
    pub fn reply_memory(&self) -> &Arc<ReplyMemory> {
        &self.parts.replies
    }

    /// Seeds, hops along a relation path, exact path-aware rerank.
    pub async fn graph_rag(
        &self,
        graph: &str,
        request: &GraphRagRequest,
        options: &CallOptions,
    ) -> Result<RetrievalReply, Problem> {
        let plan = |call: &Call| {
            let embed = |graph: &GraphInfo, tokenizer, text: &str| {
                self.embed_for(call, graph, tokenizer, text)
            };
            check::retrieval::graph_rag(&call.graph, request, &embed, options.allow_partial)
        };
        // Only an expansion has pages; here `top_k` is the end.
        self.answer(Asked { endpoint: "graph_rag", graph, options }, plan, |_| None).await
    }

    /// One answer or problem per request, in order; each has the whole timeout. Once the answers
    /// are too large together, the rest is given up and the batch is `payload_too_large`; once one
    /// finds no memory, or no place to wait for its turn, the batch is `memory_limit` or
    /// `overloaded`, and what it holds is free for others.
    pub async fn graph_rag_batch(
        &self,
        graph: &str,
        requests: &[GraphRagRequest],
        options: &CallOptions,
    ) -> Result<Vec<Result<RetrievalReply, Problem>>, Problem> {
        self.graph(graph)?;
        if requests.is_empty() || requests.len() > limits::BATCH_REQUESTS_MAX {
            let most = limits::BATCH_REQUESTS_MAX;
            let detail = format!("must be 1 to {most} requests, not {}", requests.len());
            return Err(names::invalid("/requests", detail));
        }
        let options = CallOptions { patient: true, ..options.clone() };
        let calls: Vec<_> =
            requests.iter().map(|request| self.graph_rag(graph, request, &options)).collect();
        let mut answers = pin!(futures::stream::iter(calls).buffered(BATCH_AT_ONCE));
        let (mut replies, mut size) = (Vec::with_capacity(requests.len()), ReplySize::default());
        while let Some(reply) = answers.next().await {
            if let Err(problem) = &reply
                && matches!(problem.code, Code::MemoryLimit | Code::Overloaded)
            {
                return Err(problem.clone());
            }
            size.add(reply.as_ref().map_or(0, RetrievalReply::text_bytes), FEWER_REQUESTS)?;
            replies.push(reply);
        }
        Ok(replies)
    }

    /// The facts nearest to a question.
    pub async fn search(
        &self,
        graph: &str,
        request: &SearchRequest,
        options: &CallOptions,
    ) -> Result<RetrievalReply, Problem> {
        let plan = |call: &Call| {
            let embed = |graph: &GraphInfo, tokenizer, text: &str| {
                self.embed_for(call, graph, tokenizer, text)
            };
            check::retrieval::search(&call.graph, request, &embed, options.allow_partial)
        };
        self.answer(Asked { endpoint: "search", graph, options }, plan, |_| None).await
    }

    /// Hops from known entities: the best facts with a question, pages in key order without.
    pub async fn expand(
        &self,
        graph: &str,
        request: &ExpandRequest,
        options: &CallOptions,
    ) -> Result<RetrievalReply, Problem> {
        let plan = |call: &Call| self.expansion(call, request, options);
        let token = |found: &Found| self.page_token(found, request);
        self.answer(Asked { endpoint: "expand", graph, options }, plan, token).await
    }

    /// The keys alone of what `expand` answers without a question, in the same pages: for callers
    /// that go on from ids. A token of either call continues the other.
    pub async fn expand_keys(
        &self,
        graph: &str,
        request: &ExpandRequest,
        options: &CallOptions,
    ) -> Result<KeysReply, Problem> {
        let plan = |call: &Call| {
            let mut plan = self.expansion(call, request, options)?;
            let Output::Page { limit, after } = plan.output else {
                return Err(names::invalid("/query", "keys come without a question"));
            };
            plan.output = Output::Keys { limit, after };
            plan.with = WithParts::default();
            Ok(plan)
        };
        let found = self.retrieve(&Asked { endpoint: "expand", graph, options }, plan).await?;
        let next_page_token = self.page_token(&found, request);
        let Found { call, answer, timings, .. } = found;
        Ok(KeysReply {
            keys: answer.keys,
            partial: answer.partial,
            coverage: answer.coverage,
            next_page_token,
            consistency_token: self.token(&call, answer.indexes),
            timings,
            work: answer.work,
        })
    }

    fn expansion(
        &self,
        call: &Call,
        request: &ExpandRequest,
        options: &CallOptions,
    ) -> Result<Plan, Problem> {
        let cluster = self.parts.catalogue.cluster_id();
        let after = match &request.page_token {
            Some(text) if request.query.is_none() => {
                let hash = request_hash(request);
                Some(token::read_page_token(cluster, &call.graph, hash, text)?)
            }
            _ => None,
        };
        let embed =
            |graph: &GraphInfo, tokenizer, text: &str| self.embed_for(call, graph, tokenizer, text);
        check::retrieval::expand(&call.graph, request, after, &embed, options.allow_partial)
    }

    /// The token of the page after an expansion's, when more facts follow.
    fn page_token(&self, found: &Found, request: &ExpandRequest) -> Option<String> {
        let cluster = self.parts.catalogue.cluster_id();
        let last = found.answer.more_after?;
        Some(token::page_token(cluster, &found.call.graph, request_hash(request), last))
    }

    /// Inserts or replaces facts, atomically within a shard. Faults are at `/facts/i/...`.
    pub async fn upsert(
        &self,
        graph: &str,
        facts: Vec<FactInput>,
        options: &WriteOptions,
    ) -> Result<WriteReply, Problem> {
        let places = Places { upsert: "/facts", delete: "" };
        ingest::write(self, graph, facts, Vec::new(), places, options).await
    }

    /// Upserts and deletes, atomically within a shard. Faults are at `/upsert/i/...` and
    /// `/delete/i/...`.
    pub async fn write(
        &self,
        graph: &str,
        request: WriteRequest,
        options: &WriteOptions,
    ) -> Result<WriteReply, Problem> {
        let places = Places { upsert: "/upsert", delete: "/delete" };
        ingest::write(self, graph, request.upsert, request.delete, places, options).await
    }

    /// Removes facts by key or by prefix. Faults are at `/keys/i/...` or `/prefix/...`.
    pub async fn delete(
        &self,
        graph: &str,
        request: &DeleteRequest,
        options: &WriteOptions,
    ) -> Result<WriteReply, Problem> {
        match request {
            DeleteRequest::Keys(keys) => {
                let places = Places { upsert: "", delete: "/keys" };
                ingest::write(self, graph, Vec::new(), keys.clone(), places, options).await
            }
            DeleteRequest::Prefix(prefix) => {
                let info = self.graph(graph)?;
                let (entity, relation, _) = names::prefix_range(&info, prefix, "/prefix")?;
                let op = WriteOp::DeletePrefix { entity, relation };
                ingest::write_ops(self, info, vec![op], options).await
            }
        }
    }

    /// Explains one retrieval, or runs it and puts its reply together.
    async fn answer(
        &self,
        asked: Asked<'_>,
        plan: impl Fn(&Call) -> Result<Plan, Problem>,
        next_page_token: impl Fn(&Found) -> Option<String>,
    ) -> Result<RetrievalReply, Problem> {
        if asked.options.explain == Explain::Plan {
            return self.plan_only(asked.graph, asked.options, plan).await;
        }
        let found = self.retrieve(&asked, plan).await?;
        let explain = self.explained(&found, asked.options).await;
        let token = in_place(asked.options.request_bytes, || next_page_token(&found));
        self.reply(found, token, explain)
    }

    /// Runs one retrieval and notes it when it was slow.
    async fn retrieve(
        &self,
        asked: &Asked<'_>,
        plan: impl Fn(&Call) -> Result<Plan, Problem>,
    ) -> Result<Found, Problem> {
        let (started, mut failed) = (self.now(), Timings::default());
        let found = self.retrieve_since(started, asked, plan, &mut failed).await;
        let (timings, outcome) = match &found {
            Ok(found) => (&found.timings, Ok(found.answer.partial)),
            Err(problem) => (&failed, Err(problem.code)),
        };
        self.note_query(asked, started, timings, outcome);
        found
    }

    /// Runs one retrieval, again from the beginning whenever ranges move under it. `failed` is the
    /// time that one without an answer took.
    async fn retrieve_since(
        &self,
        started: Duration,
        asked: &Asked<'_>,
        plan: impl Fn(&Call) -> Result<Plan, Problem>,
        failed: &mut Timings,
    ) -> Result<Found, Problem> {
        let Asked { graph, options, .. } = asked;
        loop {
            let mut call = self.begin(graph, options, started)?;
            let plan = in_place(options.request_bytes, || plan(&call))?;
            let kept = call.trace.is_some().then(|| plan.clone());
            let (admission, shown) = (&self.parts.admission, plan.rows_fetched() as usize);
            let left = match options.patient {
                true => Duration::MAX,
                false => call.deadline.saturating_sub(self.now()),
            };
            let begins = admission.begin(call.graph.id, &plan, left, &self.parts.replies);
            let begun = self.within(call.deadline, begins).await.ok_or_else(never_began)??;
            let _room = self.room_for(&plan)?;
            let planned = self.now();
            call.timings.plan_ms = milliseconds(planned - started);
            call.timings.embed_ms = call.embed_ms();
            let ended = retrieval::run(self, &mut call, plan, planned).await;
            let mut timings = std::mem::take(&mut call.timings);
            let took = self.now().saturating_sub(planned);
            match ended {
                Err(Failure::Moved) => continue,
                Err(Failure::Problem(problem)) => {
                    if problem.code == Code::DeadlineExceeded {
                        begun.ended(took, false);
                    }
                    *failed = timings;
                    return Err(problem);
                }
                Ok((answer, held)) => {
                    for (id, names) in &answer.name_collisions {
                        let (one, other) = (&names.entity, &names.target);
                        tracing::error!(graph, %id, %one, %other, "name collision on a path");
                    }
                    begun.ended(took, !answer.partial);
                    admission.replied(call.graph.id, shown, held.bytes());
                    timings.total_ms = milliseconds(self.now() - started);
                    return Ok(Found { call, plan: kept, answer, timings, held });
                }
            }
        }
    }

    /// Holds the memory that the hops of `plan` may take, or says that others have it.
    fn room_for(&self, plan: &Plan) -> Result<SemaphorePermit<'_>, Problem> {
        let pieces = u32::try_from(plan.ways().div_ceil(WAYS_PIECE)).unwrap_or(u32::MAX);
        self.parts.ways.try_acquire_many(pieces).map_err(|_| {
            let detail = "the retrievals under way keep as many ways as memory may hold";
            Problem::new(Code::MemoryLimit, detail)
                .retry_after_ms(WAYS_RETRY_MS)
                .hint("come back a little later, or ask with a smaller beam or fewer hops")
        })
    }

    fn reply(
        &self,
        found: Found,
        next_page_token: Option<String>,
        explain: Option<Box<Explanation>>,
    ) -> Result<RetrievalReply, Problem> {
        let Found { call, answer, timings, mut held, .. } = found;
        let mut reply = RetrievalReply {
            results: answer.results,
            partial: answer.partial,
            coverage: answer.coverage,
            next_page_token,
            consistency_token: self.token(&call, answer.indexes),
            seeds: answer.seeds,
            timings,
            work: answer.work,
            explain,
            held: None,
        };
        let bytes = reply.text_bytes();
        ReplySize::default().add(bytes, FEWER_RESULTS)?;
        held.fit(bytes)?;
        reply.held = Some(Arc::new(held));
        Ok(reply)
    }

    pub(crate) fn now(&self) -> Duration {
        self.parts.clock.monotonic()
    }

    pub(crate) fn next_request(&self) -> RequestId {
        let number = self.parts.requests.fetch_add(1, Ordering::Relaxed);
        RequestId(u128::from(self.parts.instance) << 64 | u128::from(number))
    }

    /// The vector of a question's text; the call remembers how long that took.
    pub(crate) fn embed_for(
        &self,
        call: &Call,
        graph: &GraphInfo,
        tokenizer: Tokenizer,
        text: &str,
    ) -> Vec<f32> {
        let begun = self.now();
        let vector = self.embedder(graph, tokenizer).embed(text);
        call.embedded(self.now().saturating_sub(begun));
        vector
    }

    pub(crate) fn embedder(&self, graph: &GraphInfo, tokenizer: Tokenizer) -> Arc<Lexical> {
        let dim = graph.config.vector.dim;
        let mut known = self.parts.embedders.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= EMBEDDERS_MAX && !known.contains_key(&(tokenizer, dim)) {
            known.clear();
        }
        let new = || Arc::new(Lexical::new(tokenizer, dim as usize));
        known.entry((tokenizer, dim)).or_insert_with(new).clone()
    }
}

/// The deadline passed in the queue.
fn never_began() -> Problem {
    too_late().hint("larger retrievals than others wait for each other: come back a little later")
}

/// What a retrieval came to.
pub(super) struct Found {
    pub call: Call,
    /// What was asked, when that is to be told.
    pub plan: Option<Plan>,
    pub answer: Answer,
    pub timings: Timings,
    /// What the answer holds.
    held: Held,
}

/// What the pages of one expansion have in common.
fn request_hash(request: &ExpandRequest) -> u64 {
    let ExpandRequest { from, relation_path, filter, limit_rows, limit_per_entity, beam, .. } =
        request;
    let bounds = (limit_rows, limit_per_entity, beam, request.return_to_start);
    let text = format!("{:?}", (from, relation_path, filter, bounds));
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
