//! From a matched request to the engine and back: one function an endpoint.
//!
//! `graphs.rs` graphs, sizes, relations, entities · `facts.rs` writes and reads by key ·
//! `retrieval.rs` questions · `explain.rs` how they are answered, and slow ones. Each takes a
//! [`Call`] and returns a [`Reply`] or a problem.

pub mod explain;
pub mod facts;
pub mod graphs;
pub mod retrieval;

use super::decode::values::{CallFields, invalid};
use super::encode::Json;
use super::json::{Cursor, Read, Room, nearest, read_within};
use super::problem::Refused;
use super::routes::Route;
use crate::driver::{Bulk, Engine, apart};
use crate::memory::{Held, Memory};
use crate::reply::Timings;
use crate::request::{CallOptions, Origin};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::{Code, Problem};
use std::future::Future;
use std::sync::{Arc, OnceLock};
use tokio::task::JoinSet;

/// A request whose path and method are known and whose body is here.
pub struct Call<'a> {
    /// What is asked.
    pub route: &'static Route,
    /// Who answers.
    pub engine: &'a Engine,
    /// `{graph}` of the path.
    pub graph: String,
    /// `{id}` of the path.
    pub id: String,
    /// The query string, decoded.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body; empty where none is taken.
    pub body: Bytes,
    /// Where the request counts once it is read.
    pub memory: &'a Arc<Memory>,
    /// What it takes there, until it is answered.
    pub room: OnceLock<Room>,
    /// `X-Request-Id`: the client's, or one of our own.
    pub request_id: &'a str,
}

/// What an endpoint answers.
#[derive(Debug, Default)]
pub struct Reply {
    /// Status.
    pub status: StatusCode,
    /// JSON.
    pub body: Vec<u8>,
    /// `Consistency-Token`
    pub token: Option<String>,
    /// `ETag`
    pub etag: Option<String>,
    /// Stages for `Server-Timing`.
    pub timings: Option<Timings>,
    /// The body's bytes among those of all replies, until it is sent; `None` for a small one.
    pub held: Option<Held>,
}

impl Reply {
    /// A plain 200.
    pub fn ok(json: Json) -> Self {
        Self { body: json.into_bytes(), ..Self::default() }
    }

    /// The same with a consistency token.
    pub fn with_token(json: Json, token: String) -> Self {
        Self { token: Some(token), ..Self::ok(json) }
    }
}

/// The outcome of an endpoint.
pub type Outcome = Result<Reply, Refused>;

impl Call<'_> {
    /// A header's text; `invalid_request` when it is not visible ASCII.
    pub fn header(&self, name: &str) -> Result<Option<String>, Problem> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = value.to_str().map_err(|_| not_ascii(name))?;
        Ok(Some(text.to_owned()))
    }

    /// The elements of all headers of this name; `invalid_request` as above.
    pub fn list(&self, name: &str) -> Result<Vec<&str>, Problem> {
        let mut elements = Vec::new();
        for value in self.headers.get_all(name) {
            let text = value.to_str().map_err(|_| not_ascii(name))?;
            elements.extend(text.split(',').map(str::trim).filter(|element| !element.is_empty()));
        }
        Ok(elements)
    }

    /// A parameter of the query string.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Refuses parameters that the endpoint does not know, and those given twice.
    pub fn check_query(&self) -> Result<(), Problem> {
        for (place, (name, _)) in self.query.iter().enumerate() {
            if !self.route.query.contains(&name.as_str()) {
                let problem =
                    Problem::new(Code::UnknownField, format!("unknown query parameter {name:?}"));
                return Err(match nearest(name, self.route.query) {
                    Some(near) => problem.hint(format!("did you mean {near:?}?")),
                    None if self.route.query.is_empty() => problem.hint("none is known here"),
                    None => problem.hint(format!("known here: {}", self.route.query.join(", "))),
                });
            }
            if self.query[..place].iter().any(|(before, _)| before == name) {
                let detail = format!("the query parameter {name:?} is given twice");
                return Err(Problem::new(Code::InvalidRequest, detail));
            }
        }
        Ok(())
    }

    /// Call fields of the query string.
    pub fn query_fields(&self) -> Result<CallFields, Problem> {
        let mut fields = CallFields::default();
        for (name, value) in &self.query {
            fields.parse(name, value).map_err(|refusal| in_query(refusal.into(), name))?;
        }
        Ok(fields)
    }

    /// Options of a read whose body gave `fields`.
    pub fn options(&self, fields: CallFields) -> Result<CallOptions, Problem> {
        let options = fields.or(self.query_fields()?).options(self.header("consistency-token")?)?;
        let token_in = Origin::Beside("header Consistency-Token");
        let request_id = Some(self.request_id.into());
        Ok(CallOptions { token_in, request_id, request_bytes: self.body.len(), ..options })
    }

    /// How the graph writes its ids; `graph_not_found` when there is none of this name.
    pub fn ids(&self) -> Result<IdKind, Problem> {
        Ok(self.engine.graph(&self.graph)?.config.ids)
    }

    /// Reads the body in the shape that `shape` expects.
    pub async fn read<T: Send + 'static>(
        &self,
        shape: impl FnOnce(&mut Cursor<'_>) -> Read<T> + Send + 'static,
    ) -> Result<Bulk<T>, Problem> {
        let ids = self.ids()?;
        self.parse(move |room, body| read_within(room, body, ids, shape)).await
    }

    /// Hands the body to `parse`, once, off the async threads when it is large. What it takes is
    /// the call's to its end; while it is read, and when nobody waits for it any more, the work's.
    pub async fn parse<T: Send + 'static>(
        &self,
        parse: impl FnOnce(&mut Room, &[u8]) -> Read<T> + Send + 'static,
    ) -> Result<Bulk<T>, Problem> {
        let (body, mut room) = (self.body.clone(), Room::new(self.memory.hold()));
        let work = move || {
            // As a problem it repeats a bounded part of the body.
            let value = parse(&mut room, &body).map_err(Problem::from)?;
            room.settle();
            Ok::<_, Problem>((value, room))
        };
        let (value, room) = apart(self.body.len(), work).await?;
        assert!(self.room.set(room).is_ok(), "a body is read once");
        Ok(Bulk::new(value, self.body.len()))
    }

    /// The reply that `write` makes of about `bytes`; `memory_limit` when there is no room for it
    /// beside what `write` makes it of.
    pub async fn written(
        &self,
        bytes: usize,
        write: impl FnOnce() -> Json + Send + 'static,
    ) -> Result<Reply, Problem> {
        let mut held = self.engine.reply_memory().hold();
        held.grow(bytes)?;
        Ok(write_down(held, bytes, move |_| write()).await)
    }

    /// The same for what has happened already and must be told.
    pub async fn written_at_any_rate(
        &self,
        bytes: usize,
        write: impl FnOnce() -> Json + Send + 'static,
    ) -> Reply {
        let mut held = self.engine.reply_memory().hold();
        held.settle(bytes);
        write_down(held, bytes, move |_| write()).await
    }
}

/// The reply that `write` makes of about `bytes`. What it holds is the reply's own to its end: also
/// when nobody waits for it any more, and to the byte that was allocated.
pub async fn write_down(
    mut held: Held,
    bytes: usize,
    write: impl FnOnce(&mut Held) -> Json + Send + 'static,
) -> Reply {
    apart(bytes, move || {
        let mut reply = Reply::ok(write(&mut held));
        held.settle(reply.body.capacity());
        reply.held = Some(held);
        reply
    })
    .await
}

fn not_ascii(name: &str) -> Problem {
    let detail = format!("the header {name} holds more than visible ASCII");
    Problem::new(Code::InvalidRequest, detail)
}

/// A problem of the query string names the parameter instead of a place in the body.
fn in_query(mut problem: Problem, name: &str) -> Problem {
    problem.errors.clear();
    problem.detail = format!("query parameter {name}: {}", problem.detail);
    problem
}

/// Runs `work` as a task of its own, side by side with its caller even when it blocks its thread.
/// Dropping the future ends the task.
pub async fn beside<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = JoinSet::new();
    task.spawn(work);
    match task.join_next().await.expect("the one task is joined once") {
        Ok(done) => done,
        // As above: its panic is the call's.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A fault of the query string.
pub fn bad_parameter(name: &str, detail: String) -> Problem {
    in_query(invalid(detail).into(), name)
}
