//! Questions.

use super::{Call, Outcome, Reply, apart};
use crate::reply::{RetrievalReply, refuse_large};
use crate::server::decode::retrieval::{self as decode, BatchItem};
use crate::server::decode::values::CallFields;
use crate::server::encode::Json;
use crate::server::encode::retrieval::{self as encode, Shape};
use crate::server::metrics::Metrics;
use crate::server::problem::{self, Refused};
use futures::StreamExt;
use hopbine_proto::status::Problem;

/// Requests of a batch in progress at once: enough to keep every shard busy, and a bound on the
/// memory of one batch.
const BATCH_CONCURRENCY: usize = 8;

async fn answered(reply: RetrievalReply, shape: Shape, metrics: &Metrics) -> Outcome {
    metrics.retrieval(&reply.timings, &reply.work, reply.partial);
    let (token, timings) = (reply.consistency_token.clone(), reply.timings.clone());
    let bytes = reply.text_bytes();
    let json = apart(bytes, move || {
        let mut json = Json::with_capacity(bytes);
        encode::answer(&mut json, &reply, shape);
        json
    });
    Ok(Reply { timings: Some(timings), ..Reply::with_token(json.await, token) })
}

/// `POST .../graph_rag`
pub async fn graph_rag(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let (request, fields) = call.read(decode::graph_rag).await?;
    let options = call.options(fields)?;
    let reply = call.engine.graph_rag(&call.graph, &request, &options).await?;
    let indexes = request.with.version;
    let shape = Shape { path: true, token: true, page: false, indexes };
    answered(reply, shape, metrics).await
}

/// `POST .../search`
pub async fn search(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let (request, fields) = call.read(decode::search).await?;
    let options = call.options(fields)?;
    let reply = call.engine.search(&call.graph, &request, &options).await?;
    let shape = Shape { indexes: request.with.version, ..Shape::default() };
    answered(reply, shape, metrics).await
}

/// `POST .../expand`
pub async fn expand(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let (request, fields) = call.read(decode::expand).await?;
    let options = call.options(fields)?;
    let reply = call.engine.expand(&call.graph, &request, &options).await?;
    let page = request.query.is_none();
    let shape = Shape { path: true, token: true, page, indexes: request.with.version };
    answered(reply, shape, metrics).await
}

/// `POST .../rerank`
pub async fn rerank(call: &Call<'_>) -> Outcome {
    let (request, fields) = call.read(decode::rerank).await?;
    let options = call.options(fields)?;
    let reply = call.engine.rerank(&call.graph, &request, &options).await?;
    Ok(Reply::with_token(encode::rerank(&reply), reply.consistency_token))
}

/// `POST .../graph_rag/batch`: each request with its own options, else the batch's.
pub async fn batch(call: &Call<'_>, metrics: &Metrics, request_id: &str) -> Outcome {
    let (items, outer) = call.read(decode::batch).await?;
    let replies = futures::stream::iter(items)
        .map(|item| one(call, item, outer, metrics))
        .buffered(BATCH_CONCURRENCY)
        .collect::<Vec<_>>()
        .await;
    let sizes = replies.iter().map(|reply| reply.as_ref().map_or(512, |(r, _)| r.text_bytes()));
    let bytes = sizes.sum();
    refuse_large(bytes, "send fewer requests in one batch, or ask for fewer parts")?;
    let request_id = request_id.to_owned();
    let json = apart(bytes, move || {
        let mut json = Json::with_capacity(bytes);
        json.object(|json| {
            json.name("replies").array(replies, |json, reply| match reply {
                Ok((reply, shape)) => encode::answer(json, &reply, shape),
                Err(problem) => {
                    let refused = Refused::from(problem);
                    json.value_into(|out| problem::write(out, &refused, &request_id));
                }
            });
        });
        json
    });
    Ok(Reply::ok(json.await))
}

async fn one(
    call: &Call<'_>,
    item: BatchItem,
    outer: CallFields,
    metrics: &Metrics,
) -> Result<(RetrievalReply, Shape), Problem> {
    let (request, fields) = item?;
    let options = call.options(fields.or(outer))?;
    let reply = call.engine.graph_rag(&call.graph, &request, &options).await?;
    metrics.retrieval(&reply.timings, &reply.work, reply.partial);
    let indexes = request.with.version;
    Ok((reply, Shape { path: true, token: true, page: false, indexes }))
}
