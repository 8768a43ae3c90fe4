//! Proposes a batch's parts to their shards side by side and puts the outcomes together.

use super::split::{self, Part};
use crate::check::{self, facts::Places};
use crate::driver::{Engine, Reaction};
use crate::names::invalid;
use crate::reply::{FactVersion, WriteReply};
use crate::request::{FactInput, KeyRef, WriteOptions};
use crate::retrieval::answer::Namer;
use crate::token::{self, Indexes};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hopbine_proto::call::{self, Idempotency, WriteBatch, WriteContext, WriteOp};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::shard_map::ShardDescriptor;
use hopbine_proto::status::{Code, Outcome, Problem, ShardOutcome};
use hopbine_proto::{FactKey, limits};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What became of one part.
enum Fate {
    Applied(ShardDescriptor, call::WriteReply),
    Refused(ShardDescriptor, Problem),
    Unknown(ShardDescriptor, Problem),
    /// Its range has moved: cut it anew. Last, why it may have been applied after all.
    Moved(Vec<WriteOp>, Arc<GraphInfo>, Option<Problem>),
}

/// Checks a batch whole, then writes it. Nothing is written when any of it is wrong.
pub(crate) async fn write(
    engine: &Engine,
    graph: &str,
    upserts: Vec<FactInput>,
    deletes: &[KeyRef],
    places: Places,
    options: &WriteOptions,
) -> Result<WriteReply, Problem> {
    let started = engine.now();
    let mut graph = engine.graph(graph)?;
    check_options(options)?;
    let deadline = started + options.timeout;
    let upserted: Vec<KeyRef> = upserts.iter().map(|input| input.key.clone()).collect();
    let batch = check::facts::batch(&graph, upserts, deletes, places)?;
    if !batch.new_relations.is_empty() {
        let names = batch.new_relations.clone();
        let registered = engine.parts.catalogue.register_relations(graph.id, names);
        graph = match engine.within(deadline, registered).await {
            Some(graph) => graph?,
            None => {
                let detail = "the new relation names were not registered in time";
                return Err(Problem::new(Code::DeadlineExceeded, detail)
                    .hint("no fact was written; repeat the request"));
            }
        };
    }
    let applied = propose(engine, &graph, batch.ops, options, deadline).await?;
    let mut reply = summed(engine, &graph, &applied);
    let missing: HashSet<FactKey> =
        applied.iter().flat_map(|(_, part)| part.missing.iter().copied()).collect();
    for (given, key) in deletes.iter().zip(&batch.deletes) {
        if key.is_none_or(|key| missing.contains(&key)) {
            reply.missing.push(given.clone());
        }
    }
    // A reply that a shard remembered from the first try of a large batch has its counts alone.
    let left_out = batch.deletes.iter().filter(|key| key.is_none()).count() as u64;
    reply.not_found += left_out;
    let given = || upserted.iter().chain(deletes);
    reply.replaced_versions = replaced_versions(&graph, &applied, given);
    Ok(reply)
}

/// Writes operations that are checked already.
pub(crate) async fn write_ops(
    engine: &Engine,
    graph: Arc<GraphInfo>,
    ops: Vec<WriteOp>,
    options: &WriteOptions,
) -> Result<WriteReply, Problem> {
    check_options(options)?;
    let deadline = engine.now() + options.timeout;
    let applied = propose(engine, &graph, ops, options, deadline).await?;
    let mut reply = summed(engine, &graph, &applied);
    reply.replaced_versions = replaced_versions(&graph, &applied, std::iter::empty);
    Ok(reply)
}

fn check_options(options: &WriteOptions) -> Result<(), Problem> {
    check::timeout(options.timeout)?;
    let Some(key) = &options.idempotency_key else { return Ok(()) };
    let most = limits::IDEMPOTENCY_KEY_BYTES_MAX;
    if (1..=most).contains(&key.len()) {
        return Ok(());
    }
    Err(invalid("/idempotency_key", format!("must be 1 to {most} bytes, not {}", key.len())))
}

/// Proposes all parts side by side; returns what each did, ascending by range, or the problem that
/// tells what became of every part.
async fn propose(
    engine: &Engine,
    graph: &Arc<GraphInfo>,
    ops: Vec<WriteOp>,
    options: &WriteOptions,
    deadline: Duration,
) -> Result<Vec<(ShardDescriptor, call::WriteReply)>, Problem> {
    let key = options.idempotency_key.as_deref();
    let idempotency = key.map(|key| split::idempotency(key, &ops));
    let begin = |part: Part, graph: Arc<GraphInfo>, doubt: Option<Problem>| {
        let proposal = Proposal { part, graph, idempotency, deadline, options, doubt };
        proposal.run(engine)
    };
    let parts = split::split(ops, &graph.shards).into_iter();
    let mut pending: FuturesUnordered<_> =
        parts.map(|part| begin(part, graph.clone(), None)).collect();
    let mut fates = Vec::new();
    while let Some(fate) = pending.next().await {
        match fate {
            Fate::Moved(ops, graph, doubt) => {
                let parts = split::split(ops, &graph.shards).into_iter();
                pending.extend(parts.map(|part| begin(part, graph.clone(), doubt.clone())));
            }
            fate => fates.push(fate),
        }
    }
    outcome(fates)
}

/// One shard's part on its way.
struct Proposal<'a> {
    part: Part,
    graph: Arc<GraphInfo>,
    idempotency: Option<Idempotency>,
    deadline: Duration,
    options: &'a WriteOptions,
    /// Why an earlier try may have been applied after all.
    doubt: Option<Problem>,
}

impl Proposal<'_> {
    /// Repeats only what certainly was not applied, or what the shard would recognise.
    async fn run(mut self, engine: &Engine) -> Fate {
        for tries in 0.. {
            let batch = WriteBatch { ops: self.part.ops.clone(), idempotency: self.idempotency };
            let at = WriteContext {
                graph: self.graph.id,
                shard: self.part.shard.id,
                epoch: self.part.shard.epoch,
                deadline: self.deadline,
                wait: self.options.wait,
            };
            let answer = engine.within(self.deadline, engine.parts.shards.write(at, batch)).await;
            let error = match answer {
                None => return Fate::Unknown(self.part.shard, unknown("no answer in time")),
                Some(Ok(reply)) => return Fate::Applied(self.part.shard, reply),
                Some(Err(error)) => error,
            };
            let refusal = error.to_string();
            let mut moved = None;
            match engine.reaction(&self.graph, error) {
                Reaction::Tell(problem) if !is_unknown(&problem) => {
                    return refused(self.part.shard, problem, self.doubt);
                }
                Reaction::Tell(problem) if self.idempotency.is_none() => {
                    return Fate::Unknown(self.part.shard, problem);
                }
                Reaction::Tell(problem) => {
                    if engine.wait(tries, self.deadline).await.is_err() {
                        return Fate::Unknown(self.part.shard, problem);
                    }
                    self.doubt = Some(problem);
                    continue;
                }
                Reaction::Wait => {}
                Reaction::Refresh => match self.refresh(engine) {
                    Ok(graph) => moved = graph,
                    Err(problem) => return refused(self.part.shard, problem, self.doubt),
                },
            }
            if engine.wait(tries, self.deadline).await.is_err() {
                let problem = Problem::new(Code::ShardUnavailable, refusal)
                    .hint("nothing of this part was written; repeat the request");
                return refused(self.part.shard, problem, self.doubt);
            }
            if let Some(graph) = moved {
                return Fate::Moved(self.part.ops, graph, self.doubt);
            }
        }
        Fate::Unknown(self.part.shard, unknown("no answer in time"))
    }

    /// Takes the shard's newer epoch, or returns the new map when its range has changed.
    fn refresh(&mut self, engine: &Engine) -> Result<Option<Arc<GraphInfo>>, Problem> {
        let fresh = engine.graph(&self.graph.name)?;
        if fresh.id != self.graph.id {
            return Err(Problem::new(Code::GraphNotFound, "the graph was dropped meanwhile"));
        }
        let known = &self.part.shard;
        match fresh.shards.iter().find(|shard| shard.id == known.id) {
            Some(shard) if shard.range == known.range => {
                self.part.shard = shard.clone();
                self.graph = fresh;
                Ok(None)
            }
            _ => Ok(Some(fresh)),
        }
    }
}

/// The fate of a part whose last try met `problem`, with `doubt` about one before it: that was
/// refused, too, only where the log decided, which knows what it applied, or the graph is gone.
fn refused(shard: ShardDescriptor, problem: Problem, doubt: Option<Problem>) -> Fate {
    let decided = matches!(
        problem.code,
        Code::IdempotencyConflict
            | Code::NameCollision
            | Code::InvalidRequest
            | Code::PayloadTooLarge
            | Code::GraphNotFound
    );
    match doubt {
        Some(doubt) if !decided => Fate::Unknown(shard, doubt),
        _ => Fate::Refused(shard, problem),
    }
}

fn unknown(detail: &str) -> Problem {
    Problem::new(Code::OutcomeUnknown, detail)
}

fn is_unknown(problem: &Problem) -> bool {
    matches!(problem.code, Code::OutcomeUnknown | Code::DeadlineExceeded)
}

/// All applied, or one problem that lists what became of every part.
fn outcome(mut fates: Vec<Fate>) -> Result<Vec<(ShardDescriptor, call::WriteReply)>, Problem> {
    fates.sort_by_key(|fate| match fate {
        Fate::Applied(shard, _) | Fate::Refused(shard, _) | Fate::Unknown(shard, _) => {
            shard.range.start
        }
        Fate::Moved(..) => Default::default(),
    });
    let mut applied = Vec::new();
    let mut outcomes = Vec::new();
    let (mut first_refused, mut first_unknown) = (None, None);
    for fate in fates {
        let (shard, outcome, code) = match fate {
            Fate::Moved(..) => continue,
            Fate::Applied(shard, reply) => {
                let id = shard.id;
                applied.push((shard, reply));
                (id, Outcome::Applied, None)
            }
            Fate::Refused(shard, problem) => {
                let code = problem.code;
                first_refused.get_or_insert(problem);
                (shard.id, Outcome::Refused, Some(code))
            }
            Fate::Unknown(shard, problem) => {
                let code = problem.code;
                first_unknown.get_or_insert(problem);
                (shard.id, Outcome::Unknown, Some(code))
            }
        };
        outcomes.push(ShardOutcome { shard, outcome, code });
    }
    let (refused, unknown) = (first_refused, first_unknown);
    let mut problem = match (unknown, refused) {
        (None, None) => return Ok(applied),
        (Some(cause), _) => {
            let detail =
                format!("it is not known whether all of the batch was written: {}", cause.detail);
            Problem::new(Code::OutcomeUnknown, detail)
                .hint("repeat the request with the same idempotency key")
        }
        (None, Some(refused)) => refused,
    };
    let mixed = outcomes.len() > 1 || problem.code == Code::OutcomeUnknown;
    if mixed {
        problem.outcomes = outcomes;
    }
    Err(problem)
}

fn summed(
    engine: &Engine,
    graph: &GraphInfo,
    applied: &[(ShardDescriptor, call::WriteReply)],
) -> WriteReply {
    let mut reply = WriteReply::default();
    let mut indexes = Indexes::new();
    for (shard, part) in applied {
        reply.upserted += part.upserted;
        reply.replaced += part.replaced;
        reply.deleted += part.deleted;
        reply.not_found += part.not_found;
        let version = FactVersion { shard: shard.id, epoch: shard.epoch, index: part.index };
        reply.versions.push(version);
        let newest = indexes.entry(shard.id).or_default();
        *newest = (*newest).max(part.index);
    }
    let cluster = engine.parts.catalogue.cluster_id();
    reply.consistency_token = token::consistency_token(cluster, graph, &indexes);
    reply
}

/// What each replaced or deleted fact was before, under the key that the user gave.
fn replaced_versions<'a, I: Iterator<Item = &'a KeyRef>>(
    graph: &GraphInfo,
    applied: &[(ShardDescriptor, call::WriteReply)],
    given: impl Fn() -> I,
) -> Vec<(KeyRef, FactVersion)> {
    if applied.iter().all(|(_, part)| part.replaced_versions.is_empty()) {
        return Vec::new();
    }
    let namer = Namer::new(graph);
    let by_key: HashMap<FactKey, &KeyRef> = given()
        .filter_map(|key| Some((crate::names::fact_key(graph, key, String::new).ok()??, key)))
        .collect();
    let mut versions = Vec::new();
    for (shard, part) in applied {
        for (key, index) in &part.replaced_versions {
            let written = by_key.get(key).map(|key| (*key).clone());
            let Some(written) = written.or_else(|| namer.key(*key, None)) else { continue };
            let version = FactVersion { shard: shard.id, epoch: shard.epoch, index: *index };
            versions.push((written, version));
        }
    }
    versions
}
