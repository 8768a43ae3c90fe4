//! Gathers what an explanation needs beside the trace of a retrieval: sizes and names of the
//! shards; and notes which queries were slow. Only who asks to be told pays for the first.

use super::apart::in_place;
use super::call::Call;
use super::engine::Found;
use super::{Engine, milliseconds};
use crate::explain::{self, Done, Explanation, HubOut, Sizes};
use crate::reply::{RetrievalReply, Timings};
use crate::request::{CallOptions, EntityRef};
use crate::retrieval::trace::Trace;
use crate::retrieval::{Plan, Task};
use crate::slow::{SlowQuery, SlowStage};
use futures::future::join_all;
use hopbine_proto::call::EntityReply;
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::{Code, Problem};
use std::cmp::Reverse;
use std::time::Duration;
use tracing::warn;

/// What was asked of which graph, and how.
pub(crate) struct Asked<'a> {
    pub endpoint: &'static str,
    pub graph: &'a str,
    pub options: &'a CallOptions,
}

impl Engine {
    /// The last slow queries, newest first.
    pub fn slow_queries(&self) -> Vec<SlowQuery> {
        self.parts.slow.newest_first()
    }

    /// Logs and remembers a query that began at `started` and has just ended, if it took long or
    /// had no answer in time. The outcome is whether the answer was partial, or why there is none.
    pub(crate) fn note_query(
        &self,
        asked: &Asked<'_>,
        started: Duration,
        timings: &Timings,
        outcome: Result<bool, Code>,
    ) {
        let ms = milliseconds(self.now().saturating_sub(started));
        let slow = self.parts.config.slow_query_ms;
        let late = outcome == Err(Code::DeadlineExceeded);
        if slow == 0 || (ms < slow as f64 && !late) {
            return;
        }
        let Asked { endpoint, graph, options } = asked;
        let request_id = options.request_id.clone();
        let code = outcome.err();
        warn!(
            graph,
            endpoint,
            ms,
            request_id = request_id.as_deref(),
            code = code.map(Code::as_str),
            "a slow query"
        );
        self.parts.slow.push(SlowQuery {
            at: self.parts.clock.wall_ms(),
            graph: (*graph).to_owned(),
            endpoint: asked.endpoint,
            request_id,
            ms,
            stages: SlowStage::of(timings),
            partial: outcome.unwrap_or(false),
            code,
        });
    }

    /// What a retrieval would do. Nothing is searched.
    pub(crate) async fn plan_only(
        &self,
        graph: &str,
        options: &CallOptions,
        plan: impl Fn(&Call) -> Result<Plan, Problem>,
    ) -> Result<RetrievalReply, Problem> {
        let call = self.begin(graph, options, self.now())?;
        let plan = in_place(options.request_bytes, || plan(&call))?;
        let sizes = self.sizes(&call).await;
        let (embeds, freshness) = (call.embeds(), options.consistency);
        let explanation = explain::planned(&plan, &call.graph, freshness, embeds, &sizes);
        Ok(RetrievalReply::of_plan(explanation, self.token(&call, [])))
    }

    /// How a retrieval was answered, if it was to be told.
    pub(super) async fn explained(
        &self,
        found: &Found,
        options: &CallOptions,
    ) -> Option<Box<Explanation>> {
        let Found { call, plan, answer, timings, .. } = found;
        let (trace, plan) = (call.trace.as_ref()?, plan.as_ref()?);
        let sizes = self.sizes(call).await;
        let hubs = self.hubs(call, trace, answer.coverage.hops.len()).await;
        Some(Box::new(explain::analyzed(&Done {
            plan,
            graph: &call.graph,
            freshness: options.consistency,
            trace,
            timings,
            coverage: &answer.coverage,
            seeds: answer.seeds,
            sizes: &sizes,
            hubs: &hubs,
        })))
    }

    /// What the shards of a call hold; those that do not say in time are left out.
    pub(crate) async fn sizes(&self, call: &Call) -> Sizes {
        let asks = call.graph.shards.iter().map(|shard| async move {
            let stats = self.read(call, shard.id, |at| self.parts.shards.stats(at)).await;
            stats.ok().map(|stats| (shard.id, stats))
        });
        join_all(asks).await.into_iter().flatten().collect()
    }

    /// The largest entity that each hop cut, with its name and its degree.
    async fn hubs(&self, call: &Call, trace: &Trace, hops: usize) -> Vec<HubOut> {
        let mut hubs = Vec::new();
        for hop in 0..hops {
            let lines = trace.of(&[Task::Hop, Task::WholeHop], Some(hop));
            let cut = lines.filter_map(|line| Some((line.shard, line.hub?)));
            let largest = cut.max_by_key(|(_, hub)| (hub.facts, Reverse(hub.entity)));
            let Some((shard, hub)) = largest else { continue };
            let ask = |at| self.parts.shards.entity(at, hub.entity);
            let known = self.read(call, shard, ask).await.ok();
            let entity = match (call.graph.config.ids, &known) {
                (IdKind::U64, _) => Some(EntityRef::Number(hub.entity.0)),
                (IdKind::Names, Some(known)) => known.name.clone().map(EntityRef::Name),
                (IdKind::Names, None) => None,
            };
            let all =
                |known: EntityReply| known.degrees.iter().map(|(_, facts)| facts).sum::<u64>();
            let degree = known.map(all);
            hubs.push(HubOut { hop: hop + 1, entity, facts: hub.facts, degree });
        }
        hubs
    }
}
