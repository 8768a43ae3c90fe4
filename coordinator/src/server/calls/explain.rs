//! How a question is answered, and which ones were slow.

use super::{Call, Outcome, Reply};
use crate::reply::RetrievalReply;
use crate::server::decode::retrieval::{self as decode, Explained};
use crate::server::encode::explain as encode;
use crate::server::metrics::Metrics;
use crate::slow::SlowQuery;
use hopbine_proto::status::{Code, Problem};

/// `POST .../explain`: the request is planned, or run and its results dropped.
pub async fn explain(call: &Call<'_>, metrics: &Metrics) -> Outcome {
    let body = call.read(decode::explain).await?;
    let (request, fields) = &*body;
    let options = call.options(*fields)?;
    let (engine, graph) = (call.engine, call.graph.as_str());
    let told = |reply: RetrievalReply| {
        // A plan has taken no time at all.
        if reply.timings.total_ms > 0.0 {
            metrics.retrieval(&reply.timings, &reply.work, reply.partial);
        }
        (reply.explain, reply.consistency_token)
    };
    let (explanation, token) = match request {
        Explained::GraphRag(request) => told(engine.graph_rag(graph, request, &options).await?),
        Explained::Search(request) => told(engine.search(graph, request, &options).await?),
        Explained::Expand(request) => told(engine.expand(graph, request, &options).await?),
        Explained::Rerank(request) => {
            let reply = engine.rerank(graph, request, &options).await?;
            (reply.explain, reply.consistency_token)
        }
    };
    let nothing = || Problem::new(Code::Internal, "the request was answered and not explained");
    let explanation = explanation.ok_or_else(nothing)?;
    let bytes = explanation.text_bytes();
    let written = call.written(bytes, move || encode::explanation(&explanation)).await?;
    Ok(Reply { token: Some(token), ..written })
}

/// `GET /v1/slow_queries`
pub async fn slow_queries(call: &Call<'_>) -> Outcome {
    let queries = call.engine.slow_queries();
    let bytes = queries.iter().map(SlowQuery::bytes).sum();
    call.written(bytes, move || encode::slow_queries(&queries)).await.map_err(Into::into)
}
