//! Proposes a batch's parts to their shards side by side and puts the outcomes together.

use super::split::{self, Part};
use crate::check::{self, facts::Places};
use crate::driver::{Engine, Reaction, apart};
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
use hopbine_proto::{FactKey, Names, limits};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a row of a batch takes beside its vector and payload.
const ROW_BYTES: usize = 64;

/// What became of one part.
enum Fate {
    Applied(ShardDescriptor, call::WriteReply),
    Refused(ShardDescriptor, Problem),
    Unknown(ShardDescriptor, Problem),
    /// Its range has moved, so it was cut anew. Last, why it may have been applied after all.
    Moved(Vec<Part>, Arc<GraphInfo>, Option<Problem>),
}

/// Checks a batch whole, then writes it. Nothing is written when any of it is wrong. What looks at
/// every row of a large batch does so off the async threads.
pub(crate) async fn write(
    engine: &Engine,
    graph: &str,
    upserts: Vec<FactInput>,
    deletes: Vec<KeyRef>,
    places: Places,
    options: &WriteOptions,
) -> Result<WriteReply, Problem> {
    let started = engine.now();
    let mut graph = engine.graph(graph)?;
    check_options(options)?;
    let deadline = started + options.timeout;
    let (known, bytes) = (graph.clone(), inputs_bytes(&upserts, &deletes));
    let work = apart(bytes, move || {
        let batch = check::facts::batch(&known, upserts, &deletes, places);
        batch.map(|batch| (batch, deletes))
    });
    let checked = engine.within(deadline, work).await;
    let (batch, deletes) =
        checked.ok_or_else(|| too_late("the batch was not checked in time"))??;
    if !batch.new_relations.is_empty() {
        let names = batch.new_relations.clone();
        let registered = engine.parts.catalogue.register_relations(graph.id, names);
        let registered = engine.within(deadline, registered).await;
        graph = registered
            .ok_or_else(|| too_late("the new relation names were not registered in time"))??;
    }
    let deleted = Deleted { given: deletes, keys: batch.deletes };
    propose_and_tell(engine, graph, batch.ops, deleted, options, deadline).await
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
    propose_and_tell(engine, graph, ops, Deleted::default(), options, deadline).await
}

/// About how many bytes a batch takes before it is checked.
fn inputs_bytes(upserts: &[FactInput], deletes: &[KeyRef]) -> usize {
    let parts = |input: &FactInput| {
        let embedding = input.embedding.as_ref().map_or(0, |embedding| 4 * embedding.len());
        embedding + input.payload.as_ref().map_or(0, |payload| payload.get().len())
    };
    let upserts: usize = upserts.iter().map(|input| ROW_BYTES + parts(input)).sum();
    upserts + ROW_BYTES * deletes.len()
}

fn bytes_of(ops: &[WriteOp]) -> usize {
    ops.iter().map(WriteOp::bytes).sum()
}

/// The deadline passed before anything was proposed.
fn too_late(detail: &str) -> Problem {
    Problem::new(Code::DeadlineExceeded, detail).hint("no fact was written; repeat the request")
}

fn check_options(options: &WriteOptions) -> Result<(), Problem> {
    check::timeout(options.timeout)?;
    let Some(key) = &options.idempotency_key else { return Ok(()) };
    let most = limits::IDEMPOTENCY_KEY_BYTES_MAX;
    if (1..=most).contains(&key.len()) {
        return Ok(());
    }
    let problem =
        invalid("/idempotency_key", format!("must be 1 to {most} bytes, not {}", key.len()));
    Err(options.key_in.place(problem))
}

/// The keys to delete, as given and as ids.
#[derive(Default)]
struct Deleted {
    given: Vec<KeyRef>,
    /// `None`: no fact can have the key.
    keys: Vec<Option<FactKey>>,
}

/// What one shard did with its part.
type Applied = (ShardDescriptor, call::WriteReply);

/// Cuts a checked batch into parts, proposes these, and tells what they did.
async fn propose_and_tell(
    engine: &Engine,
    graph: Arc<GraphInfo>,
    ops: Vec<WriteOp>,
    deleted: Deleted,
    options: &WriteOptions,
    deadline: Duration,
) -> Result<WriteReply, Problem> {
    let (bytes, key, cut_for) = (bytes_of(&ops), options.idempotency_key.clone(), graph.clone());
    let cut = apart(bytes, move || {
        let idempotency = key.map(|key| split::idempotency(&key, &ops));
        (split::split(ops, &cut_for.shards), idempotency)
    });
    let cut = engine.within(deadline, cut).await;
    let (parts, idempotency) = cut.ok_or_else(|| too_late("the batch was not cut in time"))?;
    let applied = propose(engine, &graph, &parts, idempotency, options, deadline).await;
    let cluster = engine.parts.catalogue.cluster_id();
    // Here the operations are let go of, too.
    apart(bytes, move || {
        let applied = applied?;
        let mut reply = summed(cluster, &graph, &applied);
        add_missing(&mut reply, &deleted, &applied);
        reply.replaced_versions = replaced_versions(&graph, &parts, &deleted, &applied);
        Ok(reply)
    })
    .await
}

/// Proposes all parts side by side; returns what each did, ascending by range, or the problem that
/// tells what became of every part.
async fn propose(
    engine: &Engine,
    graph: &Arc<GraphInfo>,
    parts: &[Part],
    idempotency: Option<Idempotency>,
    options: &WriteOptions,
    deadline: Duration,
) -> Result<Vec<Applied>, Problem> {
    let begin = |part: Part, graph: Arc<GraphInfo>, doubt: Option<Problem>| {
        let proposal = Proposal { part, graph, idempotency, deadline, options, doubt };
        proposal.run(engine)
    };
    let mut pending: FuturesUnordered<_> =
        parts.iter().map(|part| begin(part.clone(), graph.clone(), None)).collect();
    let mut fates = Vec::new();
    while let Some(fate) = pending.next().await {
        match fate {
            Fate::Moved(parts, graph, doubt) => {
                let parts = parts.into_iter();
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
                return Fate::Moved(self.cut_anew(&graph).await, graph, self.doubt);
            }
        }
        Fate::Unknown(self.part.shard, unknown("no answer in time"))
    }

    async fn cut_anew(&self, graph: &Arc<GraphInfo>) -> Vec<Part> {
        let (ops, graph) = (self.part.ops.clone(), graph.clone());
        apart(bytes_of(&ops), move || split::split(ops.to_vec(), &graph.shards)).await
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
fn outcome(mut fates: Vec<Fate>) -> Result<Vec<Applied>, Problem> {
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

fn summed(cluster: u64, graph: &GraphInfo, applied: &[Applied]) -> WriteReply {
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
    reply.consistency_token = token::consistency_token(cluster, graph, &indexes);
    reply
}

/// Adds the keys to delete that no fact had, in request order.
fn add_missing(reply: &mut WriteReply, deleted: &Deleted, applied: &[Applied]) {
    let missing: HashSet<FactKey> =
        applied.iter().flat_map(|(_, part)| part.missing.iter().copied()).collect();
    for (given, key) in deleted.given.iter().zip(&deleted.keys) {
        if key.is_none_or(|key| missing.contains(&key)) {
            reply.missing.push(given.clone());
        }
    }
    // A reply that a shard remembered from the first try of a large batch has its counts alone.
    reply.not_found += deleted.keys.iter().filter(|key| key.is_none()).count() as u64;
}

/// What each replaced or deleted fact was before, under the key that the user gave.
fn replaced_versions(
    graph: &GraphInfo,
    parts: &[Part],
    deleted: &Deleted,
    applied: &[Applied],
) -> Vec<(KeyRef, FactVersion)> {
    if applied.iter().all(|(_, part)| part.replaced_versions.is_empty()) {
        return Vec::new();
    }
    let namer = Namer::new(graph);
    let deletes: HashMap<FactKey, &KeyRef> = deleted
        .keys
        .iter()
        .zip(&deleted.given)
        .filter_map(|(key, given)| Some(((*key)?, given)))
        .collect();
    let mut versions = Vec::new();
    for (shard, part) in applied {
        for (key, index) in &part.replaced_versions {
            let written = match deletes.get(key) {
                Some(given) => Some((*given).clone()),
                None => namer.key(*key, names_of(parts, *key)),
            };
            let Some(written) = written else { continue };
            let version = FactVersion { shard: shard.id, epoch: shard.epoch, index: *index };
            versions.push((written, version));
        }
    }
    versions
}

/// The names of an upserted fact. Parts ascend, and so do the operations of each.
fn names_of(parts: &[Part], key: FactKey) -> Option<&Names> {
    let after = parts.partition_point(|part| part.shard.range.start <= key.entity);
    let ops = &parts[after.checked_sub(1)?].ops;
    let place = ops.binary_search_by_key(&key, WriteOp::first_key).ok()?;
    match &ops[place] {
        WriteOp::Upsert(fact) => fact.names.as_ref(),
        WriteOp::Delete(_) | WriteOp::DeletePrefix { .. } => None,
    }
}
