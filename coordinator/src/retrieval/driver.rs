//! Runs one retrieval: sends what the machine asks for, waits, and takes the time.

use super::machine::{Action, Answer, Event, Retrieval, Stage, Task};
use super::plan::Plan;
use crate::client::Shards;
use crate::driver::{Call, Engine, Failure, Reaction, Turn, rows_bytes};
use crate::memory::Held;
use crate::reply::row_text_bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hopbine_proto::ShardId;
use hopbine_proto::call::{FetchReply, HopReply, ReadContext, SeedReply};
use hopbine_proto::status::{CallError, Code, Problem};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// What a shard call came to.
enum Outcome {
    Seeds(Result<SeedReply, CallError>),
    Hop(Result<HopReply, CallError>),
    /// With the turn that they were read in: over once they are held.
    Rows(Result<FetchReply, CallError>, Turn),
    /// A pause is over.
    Awake,
}

impl Outcome {
    /// About how many bytes of a reply come with it.
    fn text_bytes(&self) -> usize {
        match self {
            Self::Rows(Ok(reply), _) => reply.rows.iter().flatten().map(row_text_bytes).sum(),
            _ => 0,
        }
    }
}

type Pending<'a> = Pin<Box<dyn Future<Output = (ShardId, Task, Outcome)> + Send + 'a>>;

/// Runs `plan` to its answer; beside it stands what the answer holds. `planned` is when the plan
/// was ready. The call keeps the time, also of what fails, and a trace if it has one.
pub(crate) async fn run(
    engine: &Engine,
    call: &mut Call,
    plan: Plan,
    planned: Duration,
) -> Result<(Answer, Held), Failure> {
    // A partial answer keeps some time back for the names and payloads of what it shows.
    let partial = plan.allow_partial;
    let reserve = if partial { engine.parts.config.partial_reserve_pct.min(90) } else { 0 };
    let mut until = call.deadline - (call.deadline.saturating_sub(planned)) * reserve as u32 / 100;
    let (mut retrieval, mut actions) = Retrieval::start(plan, call.graph.clone());
    let mut watch = Watch { stage: retrieval.stage(), since: planned };
    let mut pending: FuturesUnordered<Pending<'_>> = FuturesUnordered::new();
    let (mut held, mut tries) = (engine.parts.replies.hold(), 0);
    loop {
        for action in actions {
            match action {
                Action::Finish(answer) => return Ok((*answer, held)),
                Action::Fail(problem) => {
                    return Err(engine.unless_gone(&call.graph, problem).into());
                }
                ask => pending.push(send(engine, call, ask)),
            }
        }
        // What is ready at once meets no timer. A partial answer still takes it for what it shows;
        // one that must be whole has come too late.
        let late = !partial && engine.now() >= until;
        let next = if late { None } else { engine.within(until, pending.next()).await };
        let event = match next {
            None => {
                pending.clear();
                until = call.deadline;
                Event::Deadline
            }
            Some(done) => {
                let (shard, task, outcome) =
                    done.expect("an unfinished retrieval waits for a shard");
                held.grow(outcome.text_bytes())?;
                match event(shard, task, outcome) {
                    Ok(event) => event,
                    Err(error) => {
                        match refused(engine, call, &mut retrieval, error, tries).await? {
                            Some(problem) => Event::Lost(shard, task, problem),
                            None => {
                                pending.push(pause(engine.pause(tries), shard, task));
                                tries += 1;
                                actions = Vec::new();
                                continue;
                            }
                        }
                    }
                }
            }
        };
        let begun = engine.now();
        if let Some(trace) = &mut call.trace {
            trace.happened(watch.stage, &event, begun);
        }
        actions = match retrieval.rows(&event) > INLINE_ROWS_MAX && may_block() {
            true => block_in_place(|| retrieval.step(event)),
            false => retrieval.step(event),
        };
        watch.note(call, retrieval.stage(), begun, engine.now());
    }
}

/// Rows that are put together on an async thread: some half a millisecond.
const INLINE_ROWS_MAX: usize = 4096;

/// Whether this thread may leave its other tasks to another one.
fn may_block() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

/// What a shard's refusal means for it: `None` to ask again after a pause, else why it is lost.
async fn refused(
    engine: &Engine,
    call: &mut Call,
    retrieval: &mut Retrieval,
    error: CallError,
    tries: u32,
) -> Result<Option<Problem>, Failure> {
    match engine.reaction(&call.graph, error) {
        Reaction::Tell(problem) if problem.code == Code::GraphNotFound => Err(problem.into()),
        Reaction::Tell(problem) => Ok(Some(problem)),
        Reaction::Wait => Ok(None),
        Reaction::Refresh => {
            refresh(engine, call, retrieval, tries).await?;
            Ok(None)
        }
    }
}

/// Takes the newer epochs of the same ranges; begins again when ranges have moved.
async fn refresh(
    engine: &Engine,
    call: &mut Call,
    retrieval: &mut Retrieval,
    tries: u32,
) -> Result<(), Failure> {
    match engine.refreshed(&call.graph)? {
        Some(fresh) => {
            call.graph = fresh.clone();
            retrieval.adopt(fresh);
            Ok(())
        }
        None => {
            engine.wait(tries, call.deadline).await?;
            Err(Failure::Moved)
        }
    }
}

fn send<'a>(engine: &'a Engine, call: &mut Call, action: Action) -> Pending<'a> {
    if let Some(trace) = &mut call.trace {
        match &action {
            Action::AskSeeds(shard, _) => trace.asked(*shard, Task::Seeds, engine.now()),
            Action::AskHop(shard, task, _) | Action::AskRows(shard, task, _) => {
                trace.asked(*shard, *task, engine.now());
            }
            Action::Finish(_) | Action::Fail(_) => {}
        }
    }
    let shards: &'a dyn Shards = &*engine.parts.shards;
    let at = |shard| -> ReadContext { call.context(shard) };
    match action {
        Action::AskSeeds(shard, ask) => {
            let answer = shards.seeds(at(shard), ask);
            Box::pin(async move { (shard, Task::Seeds, Outcome::Seeds(answer.await)) })
        }
        Action::AskHop(shard, task, ask) => {
            let answer = shards.hop(at(shard), ask);
            Box::pin(async move { (shard, task, Outcome::Hop(answer.await)) })
        }
        Action::AskRows(shard, task, ask) => {
            let (at, turn) = (at(shard), engine.parts.reads.take(rows_bytes(ask.keys.len())));
            Box::pin(async move {
                let turn = turn.await;
                (shard, task, Outcome::Rows(shards.fetch(at, ask).await, turn))
            })
        }
        Action::Finish(_) | Action::Fail(_) => unreachable!("the end of a retrieval is not sent"),
    }
}

fn pause<'a>(pause: Duration, shard: ShardId, task: Task) -> Pending<'a> {
    Box::pin(async move {
        tokio::time::sleep(pause).await;
        (shard, task, Outcome::Awake)
    })
}

fn event(shard: ShardId, task: Task, outcome: Outcome) -> Result<Event, CallError> {
    Ok(match outcome {
        Outcome::Seeds(reply) => Event::Seeds(shard, reply?),
        Outcome::Hop(reply) => Event::Hop(shard, task, reply?),
        Outcome::Rows(reply, turn) => {
            drop(turn);
            Event::Rows(shard, task, reply?)
        }
        Outcome::Awake => Event::Again(shard, task),
    })
}

/// Takes the wall time of each stage.
struct Watch {
    stage: Stage,
    since: Duration,
}

impl Watch {
    /// The machine worked from `begun` to `now` and stands at `stage`.
    fn note(&mut self, call: &mut Call, stage: Stage, begun: Duration, now: Duration) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let worked = now.saturating_sub(begun);
        if let Some(trace) = &mut call.trace {
            trace.merged(self.stage, worked);
        }
        let timings = &mut call.timings;
        timings.merge_ms += ms(worked);
        if stage == self.stage {
            return;
        }
        let spent = ms(now.saturating_sub(self.since));
        match self.stage {
            Stage::Seeds => timings.seeds_ms = spent,
            Stage::Hop(_) => timings.hops_ms.push(spent),
            Stage::Fetch => timings.fetch_ms = spent,
            Stage::Done => {}
        }
        self.stage = stage;
        self.since = now;
    }
}
