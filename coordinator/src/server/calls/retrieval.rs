//! Questions.

use super::{Call, Outcome, Reply, beside, write_down};
use crate::check;
use crate::driver::Engine;
use crate::memory::Held;
use crate::reply::{FEWER_REQUESTS, ReplySize, RetrievalReply};
use crate::request::{CallOptions, GraphRagRequest};
use crate::server::decode::retrieval::{self as decode, BatchItem};
use crate::server::decode::values::CallFields;
use crate::server::encode::Json;
use crate::server::encode::retrieval::{self as encode, Shape};
use crate::server::metrics::Metrics;
use crate::server::problem::{self, Refused};
use futures::{Stream, StreamExt};
use hopbine_proto::status::{Code, Problem};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Requests of a batch in progress at once: enough to keep every shard busy, and a bound on the
/// memory of one batch.
const BATCH_CONCURRENCY: usize = 8;
/// About what a problem takes in a batch's reply.
const PROBLEM_BYTES: usize = 512;

/// Least time that a request of a batch is given, once it has its turn.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// What a request of a batch may take beyond its time to say what became of it.
const LAST_WORD: Duration = Duration::from_millis(100);

async fn answered(
    call: &Call<'_>,
    reply: RetrievalReply,
    shape: Shape,
    metrics: &Metrics,
) -> Outcome {
    // What was only planned took nothing.
    if reply.timings.total_ms > 0.0 {
        metrics.retrieval(&reply.timings, &reply.work, reply.partial);
    }
    let (token, timings) = (reply.consistency_token.clone(), reply.timings.clone());
    let bytes = reply.text_bytes();
    let write = move || {
        let mut json = Json::with_capacity(bytes);
        encode::answer(&mut json, &reply, shape);
        json
    };
    let written = call.written(bytes, write).await?;
    Ok(Reply { token: Some(token), timings: Some(timings), ..written })
}

/// `POST .../graph_rag`
pub async fn graph_rag(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let body = call.read(decode::graph_rag).await?;
    let (request, fields) = &*body;
    let options = call.options(*fields)?;
    let reply = call.engine.graph_rag(&call.graph, request, &options).await?;
    let indexes = request.with.version;
    let shape = Shape { path: true, token: true, page: false, indexes };
    answered(call, reply, shape, metrics).await
}

/// `POST .../search`
pub async fn search(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let body = call.read(decode::search).await?;
    let (request, fields) = &*body;
    let options = call.options(*fields)?;
    let reply = call.engine.search(&call.graph, request, &options).await?;
    let shape = Shape { indexes: request.with.version, ..Shape::default() };
    answered(call, reply, shape, metrics).await
}

/// `POST .../expand`
pub async fn expand(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let body = call.read(decode::expand).await?;
    let (request, fields) = &*body;
    let options = call.options(*fields)?;
    let reply = call.engine.expand(&call.graph, request, &options).await?;
    let page = request.query.is_none();
    let shape = Shape { path: true, token: true, page, indexes: request.with.version };
    answered(call, reply, shape, metrics).await
}

/// `POST .../rerank`
pub async fn rerank(call: &Call<'_>) -> Outcome {
    let body = call.read(decode::rerank).await?;
    let (request, fields) = &*body;
    let options = call.options(*fields)?;
    let reply = call.engine.rerank(&call.graph, request, &options).await?;
    let (token, bytes) = (reply.consistency_token.clone(), reply.text_bytes());
    let written = call.written(bytes, move || encode::rerank(&reply)).await?;
    Ok(Reply { token: Some(token), ..written })
}

/// `POST .../graph_rag/batch`: each request with its own options, else the batch's.
pub async fn batch(call: &Call<'_>, metrics: &Metrics, request_id: &str) -> Outcome {
    let begun = Instant::now();
    let (items, outer) = call.read(decode::batch).await?.into_inner();
    // Also where every request has one of its own.
    outer.timeout.map_or(Ok(()), check::timeout)?;
    let items = items.into_iter().map(|item| ready(call, item, outer)).collect();
    let (replies, bytes) = answer_all(call.engine, &call.graph, items, begun, metrics).await?;
    let request_id = request_id.to_owned();
    let write = move |held: &mut Held| {
        let mut json = Json::with_capacity(bytes);
        json.object(|json| {
            json.name("replies").array(replies, |json, reply| {
                match reply {
                    Ok((reply, shape)) => encode::answer(json, &reply, shape),
                    Err(problem) => {
                        let refused = Refused::from(problem);
                        json.value_into(|out| problem::write(out, &refused, &request_id));
                    }
                }
                // An answer is let go of as soon as it is written down: it never counts twice.
                held.settle(json.written());
            });
        });
        json
    };
    Ok(write_down(call.engine.reply_memory().hold(), bytes, write).await)
}

/// One request of a batch and how it is to be carried out, or what is wrong with it.
pub type Ready = Result<(GraphRagRequest, CallOptions), Problem>;

/// The answer to one request of a batch, and how it is shown.
pub type Answered = Result<(RetrievalReply, Shape), Problem>;

fn ready(call: &Call<'_>, item: BatchItem, outer: CallFields) -> Ready {
    let (request, fields) = item?;
    Ok((request, call.options(fields.or(outer))?))
}

/// The answers to a batch that came in at `begun`, in its order, and about their bytes as text.
pub async fn answer_all(
    engine: &Engine,
    graph: &str,
    items: Vec<Ready>,
    begun: Instant,
    metrics: &Metrics,
) -> Result<(Vec<Answered>, usize), Problem> {
    let answers = futures::stream::iter(items)
        .map(|item| one(engine, graph, item, begun, metrics))
        .buffered(BATCH_CONCURRENCY);
    gather(answers, ReplySize::default()).await
}

/// All answers and their bytes as text. Once they are too large together, or one finds no memory or
/// no place to wait, no further one is waited for and those under way are given up: what a batch
/// holds that waits for memory is what others wait for.
async fn gather(
    answers: impl Stream<Item = Answered>,
    mut size: ReplySize,
) -> Result<(Vec<Answered>, usize), Problem> {
    let mut answers = pin!(answers);
    let mut replies = Vec::new();
    while let Some(reply) = answers.next().await {
        if let Err(problem) = &reply
            && matches!(problem.code, Code::MemoryLimit | Code::Overloaded)
        {
            return Err(problem.clone());
        }
        let bytes = reply.as_ref().map_or(PROBLEM_BYTES, |(reply, _)| reply.text_bytes());
        size.add(bytes, FEWER_REQUESTS)?;
        replies.push(reply);
    }
    Ok((replies, size.bytes()))
}

async fn one(
    engine: &Engine,
    graph: &str,
    item: Ready,
    begun: Instant,
    metrics: &Metrics,
) -> Answered {
    let (request, mut options) = item?;
    // The bounds are for what was written; then each has its time from the beginning of the batch.
    check::timeout(options.timeout)?;
    let left = options.timeout.saturating_sub(begun.elapsed());
    if left.is_zero() {
        return Err(late("the time, which begins with the batch, was over before its turn came"));
    }
    options.timeout = left.max(TIMEOUT_MIN);
    options.patient = true;
    let patience = options.timeout + LAST_WORD;
    let indexes = request.with.version;
    let (engine, graph) = (engine.clone(), graph.to_owned());
    // A read may block the task that asks for it: eight on one task would run one by one.
    let work = beside(async move { engine.graph_rag(&graph, &request, &options).await });
    let Ok(reply) = timeout(patience, work).await else { return Err(late("no answer in time")) };
    let reply = reply?;
    if reply.timings.total_ms > 0.0 {
        metrics.retrieval(&reply.timings, &reply.work, reply.partial);
    }
    Ok((reply, Shape { path: true, token: true, page: false, indexes }))
}

fn late(detail: &str) -> Problem {
    Problem::new(Code::DeadlineExceeded, detail).hint("give the request a longer timeout")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::{Coverage, Timings};
    use hopbine_proto::call::Work;
    use hopbine_proto::status::Code;
    use std::sync::Arc;

    /// An answer of 512 bytes.
    fn small() -> Answered {
        let reply = RetrievalReply {
            results: Vec::new(),
            partial: false,
            coverage: Coverage::default(),
            next_page_token: None,
            consistency_token: String::new(),
            seeds: 0,
            timings: Timings::default(),
            work: Work::default(),
            explain: None,
            held: None,
        };
        assert_eq!(reply.text_bytes(), 512);
        Ok((reply, Shape::default()))
    }

    #[tokio::test]
    async fn a_batch_whose_answers_are_too_large_together_waits_for_no_further_one() {
        let mut begun = 0;
        let answers = futures::stream::iter(0..10).map(|_| {
            begun += 1;
            small()
        });
        let refused = gather(answers, ReplySize::up_to(3 * 512)).await.expect_err("too large");
        assert_eq!((refused.code, begun), (Code::PayloadTooLarge, 4));
        let full: Answered = Err(Problem::new(Code::MemoryLimit, "why"));
        let answers = futures::stream::iter([small(), full, small()]);
        let refused = gather(answers, ReplySize::default()).await.expect_err("no memory");
        assert_eq!(refused.code, Code::MemoryLimit);
        let bad: Answered = Err(Problem::new(Code::InvalidRequest, "why"));
        let answers = futures::stream::iter([small(), bad]);
        let (replies, bytes) = gather(answers, ReplySize::up_to(1_024)).await.expect("they fit");
        assert_eq!((replies.len(), bytes), (2, 512 + PROBLEM_BYTES));
    }

    #[tokio::test]
    async fn work_beside_a_call_ends_with_it() {
        assert_eq!(beside(async { 7 }).await, 7);
        let held = Arc::new(());
        let mut waits = Box::pin(beside({
            let held = held.clone();
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        }));
        assert!(futures::poll!(&mut waits).is_pending());
        drop(waits);
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
