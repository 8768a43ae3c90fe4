//! Writes and reads by key.

use super::call::{Answer, Call};
use super::values::{ROW_BYTES, Reader};
use super::{MESSAGE_BYTES_MAX, encode, stream};
use crate::driver::apart;
use crate::memory::Held;
use crate::request::WriteRequest;
use crate::server::http::Surface;
use crate::server::json::{Read, Room};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::fact_service_server::FactService;
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::Problem;
use prost::Message;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

/// The service of facts.
pub struct Facts(pub Arc<Surface>);

/// Reads a message of so many facts and keys and about `bytes` into a request, off the async
/// threads when it is large. What it takes counts from before it waits for its turn, and is given
/// back when the room is dropped.
pub(super) async fn read<T: Send + 'static>(
    mut room: Room,
    ids: IdKind,
    (rows, bytes): (usize, usize),
    read: impl FnOnce(&mut Reader<'_>) -> Read<T> + Send + 'static,
) -> Result<(T, Room), Problem> {
    room.take(rows.saturating_mul(ROW_BYTES)).map_err(Problem::from)?;
    apart(bytes, move || {
        let mut room = room;
        let value = read(&mut Reader { room: &mut room, ids }).map_err(Problem::from)?;
        room.settle();
        Ok((value, room))
    })
    .await
}

/// What a write did. It is told whatever others hold, since it is done.
async fn told(
    call: &Call,
    mut reply: crate::reply::WriteReply,
    versions: bool,
) -> Answer<v1::WriteReply> {
    let token = std::mem::take(&mut reply.consistency_token);
    let bytes = if versions { reply.text_bytes() } else { 0 };
    let shown = token.clone();
    let answer =
        call.written_at_any_rate(bytes, move || encode::write(&reply, versions, shown)).await;
    Answer { token: Some(token), ..answer }
}

async fn upsert(
    call: &Call,
    request: v1::UpsertRequest,
    room: Room,
) -> Result<Answer<v1::WriteReply>, Problem> {
    let ids = call.ids(&request.graph)?;
    let (options, versions) = call.write_options(request.options)?;
    let (size, facts) = (size(&request.facts), request.facts);
    let work = read(room, ids, size, |reader| reader.facts("facts", facts));
    let (facts, _room) = work.await?;
    let reply = call.engine().upsert(&request.graph, facts, &options).await?;
    Ok(told(call, reply, versions).await)
}

/// How many facts these are, and about their bytes.
pub(super) fn size(facts: &[v1::Fact]) -> (usize, usize) {
    let parts = |fact: &v1::Fact| {
        let payload = fact.payload.as_deref().map_or(0, str::len);
        64 + payload + fact.embedding.as_deref().map_or(0, <[u8]>::len)
    };
    (facts.len(), facts.iter().map(parts).sum())
}

async fn write(
    call: &Call,
    request: v1::WriteRequest,
    room: Room,
) -> Result<Answer<v1::WriteReply>, Problem> {
    let ids = call.ids(&request.graph)?;
    let (options, versions) = call.write_options(request.options)?;
    let (upsert, delete) = (request.upsert, request.delete);
    let (facts, bytes) = size(&upsert);
    let work = read(room, ids, (facts + delete.len(), bytes), |reader| {
        let upsert = reader.facts("upsert", upsert)?;
        Ok(WriteRequest { upsert, delete: reader.keys("delete", delete)? })
    });
    let (batch, _room) = work.await?;
    let reply = call.engine().write(&request.graph, batch, &options).await?;
    Ok(told(call, reply, versions).await)
}

async fn delete(
    call: &Call,
    request: v1::DeleteRequest,
    room: Room,
) -> Result<Answer<v1::WriteReply>, Problem> {
    let ids = call.ids(&request.graph)?;
    let (options, versions) = call.write_options(request.options)?;
    let (keys, prefix) = (request.keys, request.prefix);
    let work = read(room, ids, (keys.len(), 0), |reader| reader.delete(keys, prefix));
    let (wanted, _room) = work.await?;
    let reply = call.engine().delete(&request.graph, &wanted, &options).await?;
    Ok(told(call, reply, versions).await)
}

async fn get(
    call: &Call,
    mut request: v1::GetRequest,
    room: Room,
) -> Result<Answer<v1::GetReply>, Problem> {
    let graph = std::mem::take(&mut request.graph);
    let ids = call.ids(&graph)?;
    let options = call.options(request.options.take())?;
    let size = (request.keys.len(), 0);
    let (wanted, _room) = read(room, ids, size, |reader| reader.get(request)).await?;
    let reply = call.engine().get(&graph, &wanted, &options).await?;
    let token = reply.consistency_token.clone();
    let answer = call.written(reply.text_bytes(), move || encode::get(&reply)).await?;
    Ok(Answer { token: Some(token), ..answer })
}

async fn count(
    call: &Call,
    request: v1::CountRequest,
    room: Room,
) -> Result<Answer<v1::CountReply>, Problem> {
    let ids = call.ids(&request.graph)?;
    let options = call.options(request.options)?;
    let (prefix, filter) = (request.prefix, request.filter);
    let (wanted, _room) = read(room, ids, (0, 0), |reader| reader.count(prefix, filter)).await?;
    let reply = call.engine().count(&request.graph, &wanted, &options).await?;
    let token = reply.consistency_token;
    let message = v1::CountReply { count: reply.count, consistency_token: token.clone() };
    Ok(Answer::with_token(message, token))
}

/// Pages one after another; each is read once the reader has taken the one before.
struct Pages {
    call: Call,
    graph: String,
    request: crate::request::ScanRequest,
    options: crate::request::CallOptions,
    left: u64,
    done: bool,
    _room: Room,
}

impl Pages {
    async fn begin(
        call: Call,
        mut request: v1::ScanRequest,
        room: Room,
    ) -> Result<Self, (Call, Problem)> {
        let ready = async {
            let graph = std::mem::take(&mut request.graph);
            let ids = call.ids(&graph)?;
            let options = call.options(request.options.take())?;
            let left = request.pages.unwrap_or(u64::MAX);
            let (request, room) = read(room, ids, (0, 0), |reader| reader.scan(request)).await?;
            Ok((graph, options, left, request, room))
        };
        match ready.await {
            Ok((graph, options, left, request, room)) => {
                let done = left == 0;
                Ok(Self { call, graph, request, options, left, done, _room: room })
            }
            Err(problem) => Err((call, problem)),
        }
    }

    /// The next page in messages, with what they hold until all of them are taken.
    async fn next(&mut self) -> Result<(Vec<v1::ScanReply>, Held), Problem> {
        let engine = self.call.engine();
        let reply = engine.scan(&self.graph, &self.request, &self.options).await?;
        self.request.page_token = reply.next_page_token.clone();
        self.left -= 1;
        self.done = self.left == 0 || reply.next_page_token.is_none();
        // Later pages see at least what earlier ones did.
        self.options.token = Some(reply.consistency_token.clone());
        let bytes = reply.text_bytes();
        let mut held = engine.reply_memory().hold();
        held.grow(bytes)?;
        let write = move || {
            let messages = encode::scan(&reply, MESSAGE_BYTES_MAX);
            held.settle(messages.iter().map(Message::encoded_len).sum());
            (messages, held)
        };
        Ok(apart(bytes, write).await)
    }

    fn stream(self) -> BoxStream<'static, Result<v1::ScanReply, Status>> {
        let pages = futures::stream::unfold(self, |mut pages| async move {
            if pages.done {
                return None;
            }
            let page = pages.next().await.map_err(|problem| {
                pages.done = true;
                pages.call.visit.refused(&problem, None)
            });
            Some((page, pages))
        });
        pages.map_ok(messages).try_flatten().boxed()
    }
}

/// A page's messages, one after another.
fn messages(
    (page, held): (Vec<v1::ScanReply>, Held),
) -> impl Stream<Item = Result<v1::ScanReply, Status>> {
    futures::stream::iter(page).map(move |message| {
        let _until_the_last_is_taken = &held;
        Ok(message)
    })
}

#[tonic::async_trait]
impl FactService for Facts {
    async fn upsert(
        &self,
        request: Request<v1::UpsertRequest>,
    ) -> Result<Response<v1::WriteReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(upsert(&call, request, room).await)
    }

    type UpsertStreamStream = BoxStream<'static, Result<v1::UpsertStreamReply, Status>>;

    async fn upsert_stream(
        &self,
        request: Request<Streaming<v1::UpsertStreamRequest>>,
    ) -> Result<Response<Self::UpsertStreamStream>, Status> {
        let (call, messages) = Call::open(&self.0, request)?;
        let acks = stream::open(call, messages).await?;
        Ok(Response::new(acks))
    }

    async fn write(
        &self,
        request: Request<v1::WriteRequest>,
    ) -> Result<Response<v1::WriteReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(write(&call, request, room).await)
    }

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(get(&call, request, room).await)
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::WriteReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(delete(&call, request, room).await)
    }

    type ScanStream = BoxStream<'static, Result<v1::ScanReply, Status>>;

    async fn scan(
        &self,
        request: Request<v1::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        let pages = Pages::begin(call, request, room).await;
        let mut pages = pages.map_err(|(call, problem)| call.visit.refused(&problem, None))?;
        // The first page is read before the call is answered: what is wrong is told at once.
        if pages.done {
            return Ok(Response::new(pages.stream()));
        }
        match pages.next().await {
            Ok(first) => Ok(Response::new(messages(first).chain(pages.stream()).boxed())),
            Err(problem) => Err(pages.call.visit.refused(&problem, None)),
        }
    }

    async fn count(
        &self,
        request: Request<v1::CountRequest>,
    ) -> Result<Response<v1::CountReply>, Status> {
        let (call, request, room) = Call::begin(&self.0, request)?;
        call.respond(count(&call, request, room).await)
    }
}
