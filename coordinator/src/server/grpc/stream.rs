//! A load of any size over one stream: chunks in order, each written before the next is taken, and
//! each acknowledged. A chunk that is sent again, over whatever connection, is known by the name of
//! its stream and its sequence, and applies once.

use super::call::{Call, wait};
use super::door::unread;
use super::facts::{read, size};
use crate::request::WriteOptions;
use futures::StreamExt;
use futures::stream::BoxStream;
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::upsert_stream_request::Message as Step;
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::{Code, Problem};
use prost::Message;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming};

/// Bytes of a stream's name.
const STREAM_BYTES_MAX: usize = 128;
/// How often a stream that is waited for looks whether the server is on its way out.
const LEAVING_LOOK: Duration = Duration::from_millis(200);
/// Pause before a chunk asks again for a place among the requests being answered.
const PLACE_PAUSE: Duration = Duration::from_millis(50);

/// One open stream.
struct Load {
    call: Call,
    messages: Streaming<v1::UpsertStreamRequest>,
    graph: String,
    ids: IdKind,
    stream: String,
    options: WriteOptions,
    /// The sequence of the last chunk written.
    last: Option<u64>,
    ended: bool,
}

/// Reads the first message of a stream; its acknowledgements.
pub async fn open(
    call: Call,
    mut messages: Streaming<v1::UpsertStreamRequest>,
) -> Result<BoxStream<'static, Result<v1::UpsertStreamReply, Status>>, Status> {
    let first = async {
        let begun = next(&call, &mut messages).await?;
        let Some(Step::Open(open)) = begun else {
            return Err(Problem::new(
                Code::InvalidRequest,
                "the first message must open the stream",
            )
            .at("/open", "the first message must open the stream"));
        };
        let ids = call.ids(&open.graph)?;
        if !(1..=STREAM_BYTES_MAX).contains(&open.stream.len()) {
            let detail =
                format!("must be 1 to {STREAM_BYTES_MAX} bytes, not {}", open.stream.len());
            return Err(Problem::new(Code::InvalidRequest, &*detail).at("/stream", &*detail));
        }
        let default = WriteOptions::default();
        let timeout = open.timeout_ms.map_or(default.timeout, Duration::from_millis);
        crate::check::timeout(timeout)?;
        Ok((
            open.graph,
            ids,
            open.stream,
            WriteOptions { wait: wait(open.wait)?, timeout, ..default },
        ))
    };
    let (graph, ids, stream, options) = match first.await {
        Ok(opened) => opened,
        Err(problem) => return Err(call.visit.refused(&problem, None)),
    };
    let load = Load { call, messages, graph, ids, stream, options, last: None, ended: false };
    let acks = futures::stream::unfold(load, |mut load| async move {
        if load.ended {
            return None;
        }
        match load.step().await {
            Ok(Some(ack)) => Some((Ok(ack), load)),
            Ok(None) => None,
            Err((problem, sequence)) => {
                load.ended = true;
                Some((Err(load.call.visit.refused(&problem, sequence)), load))
            }
        }
    });
    Ok(acks.boxed())
}

/// The next message; `None` once the client has sent the last.
async fn next(
    call: &Call,
    messages: &mut Streaming<v1::UpsertStreamRequest>,
) -> Result<Option<Step>, Problem> {
    loop {
        // Dropping the wait loses nothing: what has arrived stays with the stream.
        match timeout(LEAVING_LOOK, messages.message()).await {
            Ok(Ok(None)) => return Ok(None),
            Ok(Ok(Some(request))) => {
                let missing = || Problem::new(Code::InvalidRequest, "the message is empty");
                return Ok(Some(request.message.ok_or_else(missing)?));
            }
            Ok(Err(status)) => {
                let told = hopbine_proto::convert::problem(&status).or_else(|| unread(&status));
                return Err(told.unwrap_or_else(|| {
                    let detail = format!("the stream broke off: {}", status.message());
                    Problem::new(Code::InvalidRequest, detail)
                }));
            }
            Err(_) if call.visit.is_last() => {
                let detail = "the server is on its way out: open the stream again elsewhere or \
                              later, from the first chunk without an acknowledgement";
                return Err(Problem::new(Code::ShuttingDown, detail).retry_after_ms(1_000));
            }
            Err(_) => {}
        }
    }
}

impl Load {
    /// Writes the next chunk. `Err` names the chunk that it is about: nothing of it, unless its
    /// fate is unknown, and nothing after it is written.
    async fn step(&mut self) -> Result<Option<v1::UpsertStreamReply>, (Problem, Option<u64>)> {
        let step = next(&self.call, &mut self.messages).await;
        let chunk = match step.map_err(|problem| (problem, self.last.map(|last| last + 1)))? {
            None => return Ok(None),
            Some(Step::Chunk(chunk)) => chunk,
            Some(Step::Open(_)) => {
                let detail = "the stream is open already";
                return Err((Problem::new(Code::InvalidRequest, detail), None));
            }
        };
        let sequence = chunk.sequence;
        self.call.visit.let_go();
        match self.write(chunk).await {
            Ok(ack) => {
                self.last = Some(sequence);
                Ok(Some(ack))
            }
            Err(problem) => Err((problem, Some(sequence))),
        }
    }

    async fn write(&self, chunk: v1::Chunk) -> Result<v1::UpsertStreamReply, Problem> {
        let expected = self.last.map(|last| last + 1);
        if chunk.sequence == 0 || expected.is_some_and(|expected| expected != chunk.sequence) {
            let wanted = expected.map_or("1 or more".to_owned(), |next| next.to_string());
            let detail = format!("expected {wanted}, found {}", chunk.sequence);
            return Err(Problem::new(Code::InvalidRequest, &*detail).at("/sequence", &*detail));
        }
        let _place = self.place().await?;
        let room = self.call.room(chunk.encoded_len())?;
        let (size, facts) = (size(&chunk.facts), chunk.facts);
        let work = read(room, self.ids, size, |reader| reader.facts("facts", facts));
        let (facts, _room) = work.await?;
        let key = format!("{}/{}", self.stream, chunk.sequence);
        let options = WriteOptions { idempotency_key: Some(key), ..self.options.clone() };
        let reply = self.call.engine().upsert(&self.graph, facts, &options).await?;
        Ok(v1::UpsertStreamReply {
            sequence: chunk.sequence,
            upserted: reply.upserted,
            replaced: reply.replaced,
            consistency_token: reply.consistency_token,
        })
    }

    /// A place among the requests being answered, for one chunk. A stream waits for it, since it
    /// has its client wait: that is what a stream is for.
    async fn place(&self) -> Result<crate::server::gate::Pass, Problem> {
        let begun = Instant::now();
        loop {
            let place = self.call.surface.gate.arrive();
            match place.and_then(|mut pass| pass.enter().map(|()| pass)) {
                Err(problem) if problem.code == Code::Overloaded => {
                    if begun.elapsed() > self.options.timeout {
                        return Err(problem);
                    }
                    sleep(PLACE_PAUSE).await;
                }
                placed => return placed,
            }
        }
    }
}
