//! Exact scores of paths that the caller has.

use super::apart::in_place;
use super::call::{Call, Failure};
use super::explain::Asked;
use super::facts::{Fetched, owner_of};
use super::{Engine, milliseconds};
use crate::check::{self, retrieval::vector_question};
use crate::explain::{self, Explanation, Reranked};
use crate::names::{self, invalid, problem_at};
use crate::reply::{RerankReply, RerankResult, Timings};
use crate::request::{CallOptions, Explain, KeyRef, RerankRequest};
use crate::retrieval::trace::Trace;
use hopbine_proto::call::With;
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{FactKey, ShardId, limits};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The facts of a path; `None` for one that cannot be there.
type PathKeys = Vec<Option<FactKey>>;

impl Engine {
    /// Scores paths that the caller has; `fact_not_found` when one of their facts is not there.
    pub async fn rerank(
        &self,
        graph: &str,
        request: &RerankRequest,
        options: &CallOptions,
    ) -> Result<RerankReply, Problem> {
        let asked = Asked { endpoint: "rerank", graph, options };
        let (started, mut timings) = (self.now(), Timings::default());
        let reply = self.rerank_since(started, &asked, request, &mut timings).await;
        let outcome = reply.as_ref().map(|_| false).map_err(|problem| problem.code);
        if options.explain != Explain::Plan {
            self.note_query(&asked, started, &timings, outcome);
        }
        reply
    }

    async fn rerank_since(
        &self,
        started: Duration,
        asked: &Asked<'_>,
        request: &RerankRequest,
        timings: &mut Timings,
    ) -> Result<RerankReply, Problem> {
        loop {
            let call = self.begin(asked.graph, asked.options, started)?;
            *timings = Timings::default();
            match self.rerank_once(&call, started, asked.options, request, timings).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Moved) => {}
                Err(Failure::Problem(problem)) => return Err(problem),
            }
        }
    }

    async fn rerank_once(
        &self,
        call: &Call,
        started: Duration,
        options: &CallOptions,
        request: &RerankRequest,
        timings: &mut Timings,
    ) -> Result<RerankReply, Failure> {
        let embed =
            |graph: &GraphInfo, tokenizer, text: &str| self.embed_for(call, graph, tokenizer, text);
        let (query, top_k, paths) = in_place(options.request_bytes, || {
            let query = vector_question(&call.graph, &request.query, &embed)?;
            let top_k = check::count_u32(request.top_k, limits::TOP_K_MAX, "/top_k")? as usize;
            Ok::<_, Problem>((query, top_k, path_keys(&call.graph, &request.paths)?))
        })?;
        if options.explain == Explain::Plan {
            return Ok(self.rerank_plan(call, options, &paths).await);
        }
        let begun = self.now();
        timings.embed_ms = call.embed_ms();
        timings.plan_ms = milliseconds(begun.saturating_sub(started));
        let keys = paths.iter().flatten().flatten().copied();
        let fetched = self.fetch(call, keys, With::default(), Some(query)).await?;
        let read = self.now();
        timings.fetch_ms = milliseconds(read.saturating_sub(begun));
        let mut results = scores(&paths, &fetched, request.score_mode)?;
        results.sort_by(|a, b| a.distance.total_cmp(&b.distance));
        results.truncate(top_k);
        let now = self.now();
        timings.merge_ms = milliseconds(now.saturating_sub(read));
        timings.total_ms = milliseconds(now.saturating_sub(started));
        let Fetched { seen, lines, .. } = fetched;
        let explain = match options.explain {
            Explain::Analyze => {
                let trace = Trace::of_lines(lines);
                Some(self.rerank_account(call, options, timings, &trace).await)
            }
            Explain::None | Explain::Plan => None,
        };
        Ok(RerankReply { results, consistency_token: self.token(call, seen), explain })
    }

    async fn rerank_plan(
        &self,
        call: &Call,
        options: &CallOptions,
        paths: &[PathKeys],
    ) -> RerankReply {
        let keys: BTreeSet<FactKey> = paths.iter().flatten().flatten().copied().collect();
        let mut facts: BTreeMap<ShardId, u64> = BTreeMap::new();
        for key in keys {
            *facts.entry(owner_of(&call.graph, key.entity).id).or_default() += 1;
        }
        let sizes = self.sizes(call).await;
        let (embeds, freshness) = (call.embeds(), options.consistency);
        let plan = explain::planned_rerank(&facts, &call.graph, freshness, embeds, &sizes);
        let consistency_token = self.token(call, []);
        RerankReply { results: Vec::new(), consistency_token, explain: Some(Box::new(plan)) }
    }

    async fn rerank_account(
        &self,
        call: &Call,
        options: &CallOptions,
        timings: &Timings,
        trace: &Trace,
    ) -> Box<Explanation> {
        let (graph, freshness) = (&*call.graph, options.consistency);
        let sizes = self.sizes(call).await;
        let done = Reranked { graph, freshness, trace, timings, sizes: &sizes };
        Box::new(explain::reranked(&done))
    }
}

/// The score of each path, in their order.
fn scores(
    paths: &[PathKeys],
    fetched: &Fetched,
    mode: ScoreMode,
) -> Result<Vec<RerankResult>, Problem> {
    let mut results = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        let (mut sum, mut last) = (0.0, 0.0);
        for (j, key) in path.iter().enumerate() {
            let row = key.and_then(|key| fetched.rows.get(&key));
            let Some(distance) = row.and_then(|row| row.distance) else {
                let place = format!("/paths/{i}/{j}");
                return Err(problem_at(Code::FactNotFound, place, "there is no such fact"));
            };
            sum += distance;
            last = distance;
        }
        let distance = if mode == ScoreMode::Path { sum } else { last };
        results.push(RerankResult { index: i as u64, distance });
    }
    Ok(results)
}

fn path_keys(graph: &GraphInfo, paths: &[Vec<KeyRef>]) -> Result<Vec<PathKeys>, Problem> {
    if paths.is_empty() {
        return Err(invalid("/paths", "needs at least one path"));
    }
    let facts: usize = paths.iter().map(Vec::len).sum();
    if facts > limits::KEYS_MAX {
        let detail = format!("at most {} facts in all, not {facts}", limits::KEYS_MAX);
        return Err(invalid("/paths", detail));
    }
    let mut keys = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        if path.is_empty() {
            return Err(invalid(format!("/paths/{i}"), "a path has at least one fact"));
        }
        let mut found = Vec::with_capacity(path.len());
        for (j, key) in path.iter().enumerate() {
            found.push(names::fact_key(graph, key, || format!("/paths/{i}/{j}"))?);
        }
        keys.push(found);
    }
    Ok(keys)
}
