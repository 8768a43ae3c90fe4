//! An engine in the same process as what is measured, and how facts get into it.

use crate::BenchError;
use crate::target::{
    Answer, AnswerRow, Built, ExpandAsk, Pending, RagAsk, Rank, SeedsAsk, Stage, Target,
};
use crate::workload::SeedOn;
use hopbine_coordinator::Engine;
use hopbine_coordinator::reply::{KeysReply, RetrievalReply, Timings};
use hopbine_coordinator::request::{
    CallOptions, EntityRef, ExpandRequest, FactInput, GraphRagRequest, HopRelations, KeyRef, Query,
    RelationRef, SearchRequest, SeedOn as EngineSeedOn, WithParts, WriteOptions,
};
use hopbine_proto::call::{Relations, Wait};
use hopbine_proto::graph::GraphConfig;
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, Fact};
use serde_json::value::RawValue;
use std::any::Any;
use std::time::{Duration, Instant};

/// Facts of one write while loading: at 384 components about 20 MiB of the 64 allowed.
const LOAD_BATCH: usize = 10_000;
/// A load waits for flushes and index builds.
const LOAD_TIMEOUT: Duration = limits::TIMEOUT_MAX;
/// No measured call comes near it; one that does is an error and not a figure.
const ASK_TIMEOUT: Duration = Duration::from_secs(60);

/// One graph of an engine.
pub struct EngineTarget {
    engine: Engine,
    graph: String,
    options: CallOptions,
    _keep: Box<dyn Any + Send + Sync>,
}

impl EngineTarget {
    /// Answers from `graph`; `keep` lives as long as the target (a temporary folder, a node).
    pub fn new(engine: Engine, graph: &str, keep: Box<dyn Any + Send + Sync>) -> Self {
        let options = CallOptions { timeout: ASK_TIMEOUT, ..CallOptions::default() };
        Self { engine, graph: graph.to_owned(), options, _keep: keep }
    }

    /// The graph with what its shards say of themselves.
    pub async fn built(self) -> Result<Built, BenchError> {
        let stats = self
            .engine
            .stats(&self.graph, &self.options)
            .await
            .map_err(|problem| refused("stats", problem))?;
        let way = |segment: &hopbine_proto::call::SegmentStats| match segment.recall {
            Some(recall) => format!("{} (recall@64 {recall:.4})", segment.way),
            None => segment.way.clone(),
        };
        Ok(Built {
            shard_facts: stats.shards.iter().map(|(_, shard)| shard.facts).collect(),
            memtable_facts: stats.total.memtable_facts,
            disk_bytes: Some(stats.total.disk_bytes),
            ways: stats.shards.iter().flat_map(|(_, s)| s.segments.iter().map(way)).collect(),
            target: Box::new(self),
        })
    }
}

/// Creates `graph` and writes `facts` into it; returns once all are acknowledged as indexed.
pub async fn load(
    engine: &Engine,
    graph: &str,
    config: GraphConfig,
    facts: &[Fact],
) -> Result<(), BenchError> {
    let created = engine.create_graph(graph, config).await;
    created.map_err(|problem| refused("create graph", problem))?;
    let batches = facts.len().div_ceil(LOAD_BATCH);
    for (at, batch) in facts.chunks(LOAD_BATCH).enumerate() {
        let wait = if at + 1 == batches { Wait::Indexed } else { Wait::Committed };
        let options = WriteOptions { wait, timeout: LOAD_TIMEOUT, ..WriteOptions::default() };
        let inputs = batch.iter().map(fact_input).collect::<Result<Vec<_>, _>>()?;
        let deadline = Instant::now() + LOAD_TIMEOUT;
        loop {
            let written = engine.upsert(graph, inputs.clone(), &options).await;
            let Err(problem) = written else { break };
            // Nothing of an overloaded shard's batch is written: it may come again.
            let pause = problem.retry_after_ms.filter(|_| problem.code == Code::Overloaded);
            match pause {
                Some(ms) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                }
                _ => return Err(refused("upsert", problem)),
            }
        }
    }
    Ok(())
}

fn refused(call: &'static str, problem: Problem) -> BenchError {
    BenchError::Refused { call, problem: Box::new(problem) }
}

fn fact_input(fact: &Fact) -> Result<FactInput, BenchError> {
    let payload = match &fact.payload {
        None => None,
        Some(text) => Some(RawValue::from_string(text.to_string()).map_err(|error| {
            BenchError::Failed { call: "upsert", detail: format!("payload: {error}") }
        })?),
    };
    Ok(FactInput {
        key: KeyRef {
            entity: entity(fact.key.entity),
            relation: RelationRef::Number(fact.key.relation.0.into()),
            target: entity(fact.key.target),
        },
        embedding: fact.embedding.clone(),
        payload,
    })
}

fn entity(id: EntityId) -> EntityRef {
    EntityRef::Number(id.0)
}

fn relation_refs(relations: &Relations) -> Option<Vec<RelationRef>> {
    match relations {
        Relations::Any => None,
        Relations::Of(ids) => Some(ids.iter().map(|id| RelationRef::Number(id.0.into())).collect()),
    }
}

fn path(hops: &[Relations]) -> Vec<HopRelations> {
    hops.iter().map(|hop| relation_refs(hop).map_or(HopRelations::Any, HopRelations::Of)).collect()
}

/// The whole answer, or an error when any of it is missing.
fn whole(call: &'static str, reply: Result<RetrievalReply, Problem>) -> Result<Answer, BenchError> {
    let reply = reply.map_err(|problem| refused(call, problem))?;
    if reply.partial || reply.next_page_token.is_some() {
        return Err(cut(call));
    }
    let row = |result: hopbine_coordinator::reply::ResultOut| AnswerRow {
        key: result.fact.id,
        score: result.distance,
        vector: result.fact.embedding,
        payload: result.fact.payload,
        path: result.path.iter().map(|step| step.fact.id).collect(),
    };
    Ok(Answer {
        rows: reply.results.into_iter().map(row).collect(),
        stages: stages(&reply.timings),
        work: reply.work,
    })
}

/// The keys of an expansion, or an error when any is missing.
fn keys(reply: Result<KeysReply, Problem>) -> Result<Answer, BenchError> {
    let reply = reply.map_err(|problem| refused("expand", problem))?;
    if reply.partial || reply.next_page_token.is_some() {
        return Err(cut("expand"));
    }
    let row = |key| AnswerRow { key, score: None, vector: None, payload: None, path: Vec::new() };
    Ok(Answer {
        rows: reply.keys.into_iter().map(row).collect(),
        stages: stages(&reply.timings),
        work: reply.work,
    })
}

fn cut(call: &'static str) -> BenchError {
    let detail = "the answer was cut, so its time means nothing".to_owned();
    BenchError::Failed { call, detail }
}

fn stages(timings: &Timings) -> Vec<(Stage, f64)> {
    let hop =
        |(at, ms): (usize, &f64)| (Stage { hop: Some(at + 1), ..Stage::named("expand") }, *ms);
    let mut stages = Vec::with_capacity(4 + timings.hops_ms.len());
    stages.push((Stage::named("plan"), timings.plan_ms));
    stages.push((Stage::named("ann"), timings.seeds_ms));
    stages.extend(timings.hops_ms.iter().enumerate().map(hop));
    stages.push((Stage::named("payload"), timings.fetch_ms));
    stages.push((Stage::named("merge"), timings.merge_ms));
    stages
}

fn with(vectors: bool) -> WithParts {
    WithParts { vector: vectors, ..WithParts::default() }
}

impl Target for EngineTarget {
    fn seeds(&self, ask: SeedsAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let request = SearchRequest {
                query: Query::vector(ask.vector),
                k: ask.k.into(),
                seed_mode: Some(ask.mode),
                relations: relation_refs(&ask.relations),
                with: with(false),
                ..SearchRequest::default()
            };
            whole("search", self.engine.search(&self.graph, &request, &self.options).await)
        })
    }

    fn expand(&self, ask: ExpandAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let keys_alone = ask.rank.is_none() && !ask.vectors;
            let mut request = ExpandRequest {
                from: ask.from.into_iter().map(entity).collect(),
                relation_path: path(&ask.hops),
                page_size: Some(limits::PAGE_SIZE_MAX.into()),
                return_to_start: true,
                with: with(ask.vectors),
                ..ExpandRequest::default()
            };
            if let Some(Rank { vector, top_k, score }) = ask.rank {
                request.query = Some(Query::vector(vector));
                request.page_size = None;
                request.top_k = Some(top_k.into());
                request.score_mode = score;
                request.with.payload = true;
            }
            if keys_alone {
                let reply = self.engine.expand_keys(&self.graph, &request, &self.options).await;
                return keys(reply);
            }
            whole("expand", self.engine.expand(&self.graph, &request, &self.options).await)
        })
    }

    fn graph_rag(&self, ask: RagAsk) -> Pending<'_, Answer> {
        Box::pin(async move {
            let seed_on = match ask.seed_on {
                SeedOn::Entity => EngineSeedOn::Entity,
                SeedOn::Target => EngineSeedOn::Target,
            };
            let request = GraphRagRequest {
                query: Query::vector(ask.rank.vector),
                relation_path: path(&ask.hops),
                seed_on,
                ann_k: ask.ann_k.into(),
                seed_mode: Some(ask.mode),
                top_k: ask.rank.top_k.into(),
                score_mode: ask.rank.score,
                seed_weight: 0.0,
                return_to_start: true,
                with: WithParts::PAYLOAD,
                ..GraphRagRequest::default()
            };
            whole("graph_rag", self.engine.graph_rag(&self.graph, &request, &self.options).await)
        })
    }
}
