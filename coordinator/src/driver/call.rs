//! What one call carries, and one shard read repeated while that is safe, within its deadline.

use super::Engine;
use crate::client::{Reply, Shards};
use crate::reply::Timings;
use crate::request::{CallOptions, Explain};
use crate::retrieval::trace::Trace;
use crate::token::{self, Indexes};
use crate::{check, names};
use hopbine_proto::call::{Freshness, ReadContext};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::limits;
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::status::{CallError, Code, Problem};
use hopbine_proto::{Epoch, RequestId, ShardId};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One read request under way. Dropping it lets go of the views that it pinned.
pub(crate) struct Call {
    /// The graph as this call sees it.
    pub graph: Arc<GraphInfo>,
    /// When the caller wants its answer, on the engine's clock.
    pub deadline: Duration,
    /// About how many bytes the request takes.
    pub request_bytes: usize,
    /// What the caller's token stands for.
    pub token: Indexes,
    /// Wall time of the stages so far.
    pub timings: Timings,
    /// Each shard's answers, when they are to be told.
    pub trace: Option<Trace>,
    /// Nanoseconds that embedding the question took; 0: nothing was embedded.
    embedding: AtomicU64,
    request: RequestId,
    freshness: Freshness,
    shards: Arc<dyn Shards>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.shards.release(self.request);
    }
}

impl Call {
    /// The question's text was embedded within `took`.
    pub fn embedded(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.embedding.store(nanos.max(1), Ordering::Relaxed);
    }

    /// Whether the question's text was embedded.
    pub fn embeds(&self) -> bool {
        self.embedding.load(Ordering::Relaxed) > 0
    }

    /// Milliseconds that it took.
    pub fn embed_ms(&self) -> f64 {
        self.embedding.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// The context for a read of `shard`.
    pub fn context(&self, shard: ShardId) -> ReadContext {
        let known = self.graph.shards.iter().find(|known| known.id == shard);
        ReadContext {
            graph: self.graph.id,
            shard,
            epoch: known.map_or(Epoch(0), |known| known.epoch),
            request: self.request,
            freshness: self.freshness,
            min_index: self.token.get(&shard).copied().unwrap_or_default(),
            deadline: self.deadline,
        }
    }
}

/// Why a try of a call did not succeed.
pub(crate) enum Failure {
    /// Ranges have moved: begin again with the new shard map.
    Moved,
    /// Tell the user.
    Problem(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// What to do about a shard's refusal.
pub(crate) enum Reaction {
    /// Look at the catalogue again, then repeat.
    Refresh,
    /// Repeat after a pause.
    Wait,
    /// Nothing to repeat.
    Tell(Problem),
}

impl Engine {
    /// What to do about the refusal of a shard of `graph`. A shard whose graph was dropped under
    /// the call is not waited for: there is no such graph, and nothing to come back for.
    pub(crate) fn reaction(&self, graph: &GraphInfo, error: CallError) -> Reaction {
        match error {
            CallError::StaleEpoch { .. } => Reaction::Refresh,
            CallError::NotLeader { .. } | CallError::Behind { .. } if self.is_gone(graph) => {
                Reaction::Tell(graph_not_found(&graph.name))
            }
            CallError::NotLeader { .. } | CallError::Behind { .. } => Reaction::Wait,
            CallError::Problem(problem) => Reaction::Tell(self.unless_gone(graph, *problem)),
        }
    }

    /// `problem`, or `graph_not_found` where the drop of `graph` is the reason for it.
    pub(crate) fn unless_gone(&self, graph: &GraphInfo, problem: Problem) -> Problem {
        let may_be_drop =
            matches!(problem.code, Code::ShardUnavailable | Code::NoQuorum | Code::ShuttingDown);
        if may_be_drop && self.is_gone(graph) { graph_not_found(&graph.name) } else { problem }
    }

    /// Whether this incarnation of a graph was dropped, as far as the catalogue knows.
    fn is_gone(&self, graph: &GraphInfo) -> bool {
        self.parts.catalogue.graph(&graph.name).is_none_or(|known| known.id != graph.id)
    }

    /// Begins a read of `graph`. `started` is when the caller's timeout began to run.
    pub(crate) fn begin(
        &self,
        graph: &str,
        options: &CallOptions,
        started: Duration,
    ) -> Result<Call, Problem> {
        check::timeout(options.timeout)?;
        let graph = self.graph(graph)?;
        let cluster = self.parts.catalogue.cluster_id();
        let token = match &options.token {
            None => Indexes::new(),
            Some(text) => token::read_consistency_token(cluster, &graph, text)
                .map_err(|problem| options.token_in.place(problem))?,
        };
        Ok(Call {
            graph,
            request_bytes: options.request_bytes,
            deadline: started + options.timeout,
            token,
            timings: Timings::default(),
            trace: (options.explain == Explain::Analyze).then(Trace::default),
            embedding: AtomicU64::new(0),
            request: self.next_request(),
            freshness: options.consistency,
            shards: self.parts.shards.clone(),
        })
    }

    /// Waits for `future` until `deadline`; `None` when it passes first. What is ready at once is
    /// taken without a timer.
    pub(crate) async fn within<F: Future>(
        &self,
        deadline: Duration,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        if let std::task::Poll::Ready(output) = futures::poll!(&mut future) {
            return Some(output);
        }
        let left = deadline.saturating_sub(self.now());
        tokio::time::timeout(left, future).await.ok()
    }

    /// Fails once the deadline of `call` has passed.
    pub(crate) fn in_time(&self, call: &Call) -> Result<(), Problem> {
        if self.now() < call.deadline { Ok(()) } else { Err(too_late()) }
    }

    /// The pause before try number `tries`, which doubles each time.
    pub(crate) fn pause(&self, tries: u32) -> Duration {
        let config = &self.parts.config;
        let factor = 1u64 << tries.min(20);
        let pause = config.retry_pause_ms.saturating_mul(factor).min(config.retry_pause_max_ms);
        Duration::from_millis(pause)
    }

    /// Waits before a repetition, or fails when the deadline would pass meanwhile.
    pub(crate) async fn wait(&self, tries: u32, deadline: Duration) -> Result<(), Problem> {
        let pause = self.pause(tries);
        if self.now() + pause >= deadline {
            return Err(too_late());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// The catalogue's newer view of `graph`: `Some` when the same shards hold the same ranges,
    /// `None` when ranges have moved.
    pub(crate) fn refreshed(&self, graph: &GraphInfo) -> Result<Option<Arc<GraphInfo>>, Problem> {
        let fresh = self.graph(&graph.name)?;
        if fresh.id != graph.id {
            return Err(graph_not_found(&graph.name));
        }
        let ranges = |shards: &[ShardDescriptor]| -> Vec<_> {
            shards.iter().map(|shard| (shard.id, shard.range)).collect()
        };
        Ok((ranges(&fresh.shards) == ranges(&graph.shards)).then_some(fresh))
    }

    /// Reads from one shard, repeating while it is not ready.
    pub(crate) async fn read<'a, T>(
        &'a self,
        call: &Call,
        shard: ShardId,
        ask: impl Fn(ReadContext) -> Reply<'a, T>,
    ) -> Result<T, Failure> {
        let mut at = call.context(shard);
        for tries in 0.. {
            // A shard that answers at once would never meet the timer.
            self.in_time(call)?;
            let answer = self.within(call.deadline, ask(at.clone())).await;
            let error = match answer {
                None => return Err(too_late().into()),
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => error,
            };
            match self.reaction(&call.graph, error) {
                Reaction::Tell(problem) => return Err(problem.into()),
                Reaction::Wait => {}
                Reaction::Refresh => {
                    let Some(fresh) = self.refreshed(&call.graph)? else {
                        self.wait(tries, call.deadline).await?;
                        return Err(Failure::Moved);
                    };
                    let known = fresh.shards.iter().find(|known| known.id == shard);
                    at.epoch = known.map_or(at.epoch, |known| known.epoch);
                }
            }
            self.wait(tries, call.deadline).await?;
        }
        Err(too_late().into())
    }

    /// The token of an answer that saw `seen`.
    pub(crate) fn token(&self, call: &Call, seen: impl IntoIterator<Item = Seen>) -> String {
        let mut indexes = call.token.clone();
        for (shard, index) in seen {
            let newest = indexes.entry(shard).or_default();
            *newest = (*newest).max(index);
        }
        let cluster = self.parts.catalogue.cluster_id();
        token::consistency_token(cluster, &call.graph, &indexes)
    }
}

/// A shard and the log index of the view that answered.
pub(crate) type Seen = (ShardId, hopbine_proto::LogIndex);

/// The deadline passed.
pub(crate) fn too_late() -> Problem {
    Problem::new(Code::DeadlineExceeded, "no answer in time")
        .hint("give the request a longer timeout")
}

/// No graph of this name, with near ones in the hint.
pub(crate) fn graph_not_found(name: &str) -> Problem {
    Problem::new(Code::GraphNotFound, format!("there is no graph {name:?}"))
}

impl Engine {
    /// One graph as last seen; `graph_not_found` when there is none of this name.
    pub fn graph(&self, name: &str) -> Result<Arc<GraphInfo>, Problem> {
        if let Some(graph) = self.parts.catalogue.graph(name) {
            return Ok(graph);
        }
        let graphs = self.parts.catalogue.graphs();
        let near = names::near_names(graphs.iter().map(|graph| graph.name.as_str()), name);
        let problem = graph_not_found(name);
        Err(match near.first() {
            Some(near) => problem.hint(format!("did you mean {near:?}?")),
            None => problem,
        })
    }
}

// The longest timeout keeps deadlines far from the end of the clock.
const _: () = assert!(limits::TIMEOUT_MAX.as_secs() < 86_400);
