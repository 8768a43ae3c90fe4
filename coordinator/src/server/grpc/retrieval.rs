//! Questions.

use super::call::{Answer, Call};
use super::encode;
use super::facts::read;
use crate::reply::RetrievalReply;
use crate::request::{CallOptions, Origin};
use crate::server::calls::retrieval::{Answered, Ready, answer_all};
use crate::server::encode::retrieval::Shape;
use crate::server::http::Surface;
use crate::server::json::{Read, Room};
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::batch_reply::Reply;
use hopbine_proto::convert::v1::retrieval_service_server::RetrievalService;
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Response, Status};

/// The service of questions.
pub struct Retrievals(pub Arc<Surface>);

async fn answered(
    call: &Call,
    reply: RetrievalReply,
    shape: Shape,
) -> Result<Answer<v1::RetrievalReply>, Problem> {
    call.surface.metrics.retrieval(&reply.timings, &reply.work, reply.partial);
    let (token, timings) = (reply.consistency_token.clone(), reply.timings.clone());
    let answer = call.written(reply.text_bytes(), move || encode::answer(&reply, shape)).await?;
    Ok(Answer { token: Some(token), timings: Some(timings), ..answer })
}

async fn graph_rag(
    call: &Call,
    mut request: v1::GraphRagRequest,
    room: Room,
) -> Result<Answer<v1::RetrievalReply>, Problem> {
    let graph = std::mem::take(&mut request.graph);
    let ids = call.ids(&graph)?;
    let options = call.options(request.options.take())?;
    let (wanted, _room) = read(room, ids, (0, 0), |reader| reader.graph_rag(request)).await?;
    let reply = call.engine().graph_rag(&graph, &wanted, &options).await?;
    let indexes = wanted.with.version;
    answered(call, reply, Shape { path: true, token: true, page: false, indexes }).await
}

async fn search(
    call: &Call,
    mut request: v1::SearchRequest,
    room: Room,
) -> Result<Answer<v1::RetrievalReply>, Problem> {
    let graph = std::mem::take(&mut request.graph);
    let ids = call.ids(&graph)?;
    let options = call.options(request.options.take())?;
    let (wanted, _room) = read(room, ids, (0, 0), |reader| reader.search(request)).await?;
    let reply = call.engine().search(&graph, &wanted, &options).await?;
    answered(call, reply, Shape { indexes: wanted.with.version, ..Shape::default() }).await
}

async fn expand(
    call: &Call,
    mut request: v1::ExpandRequest,
    room: Room,
) -> Result<Answer<v1::RetrievalReply>, Problem> {
    let graph = std::mem::take(&mut request.graph);
    let ids = call.ids(&graph)?;
    let options = call.options(request.options.take())?;
    let (wanted, _room) = read(room, ids, (0, 0), |reader| reader.expand(request)).await?;
    let reply = call.engine().expand(&graph, &wanted, &options).await?;
    let (page, indexes) = (wanted.query.is_none(), wanted.with.version);
    answered(call, reply, Shape { path: true, token: true, page, indexes }).await
}

async fn rerank(
    call: &Call,
    mut request: v1::RerankRequest,
    room: Room,
) -> Result<Answer<v1::RerankReply>, Problem> {
    let graph = std::mem::take(&mut request.graph);
    let ids = call.ids(&graph)?;
    let options = call.options(request.options.take())?;
    let size = (request.paths.iter().map(|path| path.facts.len()).sum(), 0);
    let (wanted, _room) = read(room, ids, size, |reader| reader.rerank(request)).await?;
    let reply = call.engine().rerank(&graph, &wanted, &options).await?;
    let token = reply.consistency_token.clone();
    let answer = call.written(reply.text_bytes(), move || encode::rerank(&reply)).await?;
    Ok(Answer { token: Some(token), ..answer })
}

/// Requests of a batch, each with its own options, else the batch's. One that cannot be read spoils
/// no other one.
fn requests(
    call: &Call,
    batch: v1::GraphRagBatchRequest,
    room: Room,
) -> Result<(Vec<Ready>, Room), Problem> {
    let refuse = |detail: String| {
        Err(Problem::new(Code::InvalidRequest, &*detail).at("/requests", &*detail))
    };
    let (count, most) = (batch.requests.len(), limits::BATCH_REQUESTS_MAX);
    if count == 0 {
        return refuse("the batch is empty".into());
    }
    if count > most {
        return refuse(format!("at most {most} elements, not {count}"));
    }
    let ids = call.ids(&batch.graph)?;
    let outer_token = call.token(batch.options.as_ref())?;
    let outer = call.fields(batch.options.as_ref())?;
    outer.timeout.map_or(Ok(()), crate::check::timeout)?;
    // The call's own deadline bounds each request's time.
    let own = call.options(batch.options.clone())?.timeout;
    let mut room = room;
    let mut ready = Vec::with_capacity(count);
    for mut request in batch.requests {
        let given = request.options.take();
        let options = || {
            let fields = call.fields(given.as_ref())?.or(outer);
            let inner = given.as_ref().and_then(|given| given.consistency_token.clone());
            let (token, token_in) = match inner {
                Some(token) => (Some(token), Origin::Body),
                None => outer_token.clone(),
            };
            let mut options = CallOptions { token_in, ..fields.options(token)? };
            if fields.timeout.is_none() {
                options.timeout = own;
            }
            options.request_id = Some(call.visit.request_id().into());
            Ok::<_, Problem>(options)
        };
        if !request.graph.is_empty() && request.graph != batch.graph {
            let detail = "a batch asks one graph";
            ready.push(Err(Problem::new(Code::InvalidRequest, detail).at("/graph", detail)));
            continue;
        }
        let item: Read<_> = super::values::Reader { room: &mut room, ids }.graph_rag(request);
        match item.map_err(Problem::from).and_then(|request| Ok((request, options()?))) {
            Err(problem) if problem.code == Code::MemoryLimit => return Err(problem),
            item => ready.push(item),
        }
    }
    room.settle();
    Ok((ready, room))
}

async fn batch(
    call: &Call,
    request: v1::GraphRagBatchRequest,
    room: Room,
) -> Result<Answer<v1::GraphRagBatchReply>, Problem> {
    let begun = Instant::now();
    let graph = request.graph.clone();
    let (items, _room) = requests(call, request, room)?;
    let metrics = &call.surface.metrics;
    let (replies, bytes) = answer_all(call.engine(), &graph, items, begun, metrics).await?;
    let one = |reply: Answered| v1::BatchReply {
        reply: Some(match reply {
            Ok((reply, shape)) => Reply::Answer(encode::answer(&reply, shape)),
            Err(problem) => Reply::Problem(encode::problem(&problem)),
        }),
    };
    let write = move || v1::GraphRagBatchReply { replies: replies.into_iter().map(one).collect() };
    call.written(bytes, write).await
}

#[tonic::async_trait]
impl RetrievalService for Retrievals {
    async fn search(
        &self,
        request: Request<v1::SearchRequest>,
    ) -> Result<Response<v1::RetrievalReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(search(&call, request, room).await)
    }

    async fn expand(
        &self,
        request: Request<v1::ExpandRequest>,
    ) -> Result<Response<v1::RetrievalReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(expand(&call, request, room).await)
    }

    async fn rerank(
        &self,
        request: Request<v1::RerankRequest>,
    ) -> Result<Response<v1::RerankReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(rerank(&call, request, room).await)
    }

    async fn graph_rag(
        &self,
        request: Request<v1::GraphRagRequest>,
    ) -> Result<Response<v1::RetrievalReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(graph_rag(&call, request, room).await)
    }

    async fn graph_rag_batch(
        &self,
        request: Request<v1::GraphRagBatchRequest>,
    ) -> Result<Response<v1::GraphRagBatchReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(batch(&call, request, room).await)
    }
}
