//! The door of every call: its id, its place among the requests under way, its time, and what
//! becomes of one that panics or that cannot be read.

use super::flow::{Flow, Outgoing};
use super::methods;
use crate::memory::Held;
use crate::server::gate::Pass;
use crate::server::http::Surface;
use crate::server::places::Crowded;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt;
use hopbine_proto::convert;
use hopbine_proto::status::{Code, Problem};
use hyper::body::{Body as HttpBody, Frame};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tracing::{debug, error};

/// One call on its way through; shared by those who read it and who answer it.
#[derive(Clone, Debug)]
pub struct Visit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pass: Mutex<Pass>,
    request_id: String,
    /// Why it was refused.
    code: OnceLock<Code>,
}

impl Visit {
    fn new(pass: Pass, request_id: String) -> Self {
        Self(Arc::new(Inner { pass: Mutex::new(pass), request_id, code: OnceLock::new() }))
    }

    fn pass(&self) -> MutexGuard<'_, Pass> {
        self.0.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place among the requests being answered; once.
    pub fn enter(&self) -> Result<(), Problem> {
        self.pass().enter()
    }

    /// Gives back what the messages read so far held.
    pub fn let_go(&self) {
        self.pass().let_go();
    }

    /// Whether the server is on its way out.
    pub fn is_last(&self) -> bool {
        self.pass().is_last()
    }

    /// The id in logs and replies.
    pub fn request_id(&self) -> &str {
        &self.0.request_id
    }

    /// The status that tells of `problem`, which is what became of the call. `sequence`: the chunk
    /// of a stream that it is about.
    pub fn refused(&self, problem: &Problem, sequence: Option<u64>) -> Status {
        // The first word counts.
        let _ = self.0.code.set(problem.code);
        convert::status(problem, self.request_id(), sequence)
    }
}

/// What a reply holds among the bytes of all replies, until its last byte is sent.
#[derive(Clone, Debug)]
pub struct Sent(pub Arc<Held>);

/// Answers one call, whatever happens.
pub async fn answer(
    State(surface): State<Arc<Surface>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let place = methods::place(request.uri().path());
    let request_id = surface.request_id(request.headers());
    let flow = request.extensions_mut().remove::<Arc<Flow>>();
    let (response, code) = if methods::is_api(place) {
        api(&surface, place, &request_id, request, next).await
    } else {
        (next.run(request).await, None)
    };
    let took = started.elapsed();
    let told = match (code, Status::from_header_map(response.headers())) {
        (Some(code), _) => code.as_str(),
        (None, Some(status)) if status.code() != tonic::Code::Ok => "other",
        _ => "ok",
    };
    surface.metrics.call(place, told, took);
    debug!(request_id, method = methods::METHODS[place], code = told, ?took, "answered a call");
    let (mut parts, body) = response.into_parts();
    // Once it is answered a call has no place among those under way, however slow its reader is.
    let held = parts.extensions.remove::<Sent>();
    set(&mut parts.headers, "x-request-id", &request_id);
    let body = Outgoing::new(body, flow, held);
    Response::from_parts(parts, Body::new(body))
}

fn set(headers: &mut axum::http::HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

async fn api(
    surface: &Surface,
    place: usize,
    request_id: &str,
    mut request: Request,
    next: Next,
) -> (Response, Option<Code>) {
    let arrived = match request.extensions().get::<Crowded>() {
        Some(_) => Err(Crowded::problem()),
        None => surface.gate.arrive(),
    };
    let pass = match arrived {
        Ok(pass) => pass,
        Err(problem) => {
            let status = convert::status(&problem, request_id, None);
            return (status.into_http(), Some(problem.code));
        }
    };
    let visit = Visit::new(pass, request_id.to_owned());
    request.extensions_mut().insert(visit.clone());
    let limit = (!methods::takes_stream(place)).then_some(surface.config.body_timeout);
    let request = request.map(|body| Body::new(Incoming::new(body, visit.clone(), limit)));
    let response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let reason = panic.downcast_ref::<String>().map(String::as_str);
            let reason = reason.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            surface.metrics.panic();
            error!(request_id, reason, "a call ended in a panic");
            let problem = Problem::new(Code::Internal, "the server failed on this request")
                .hint("the server's log holds the reason under this request_id");
            visit.refused(&problem, None).into_http()
        }
    };
    let response = in_our_words(&visit, response);
    let code = visit.0.code.get().copied();
    (response, code)
}

/// The library's own refusals of messages that it cannot read, told as ours are.
fn in_our_words(visit: &Visit, response: Response) -> Response {
    if visit.0.code.get().is_some() {
        return response;
    }
    let Some(status) = Status::from_header_map(response.headers()) else { return response };
    let problem = match unread(&status) {
        Some(problem) => problem,
        None => return response,
    };
    visit.refused(&problem, None).into_http()
}

/// Why a message could not be read, where that is what the library's status tells.
pub fn unread(status: &Status) -> Option<Problem> {
    match status.code() {
        tonic::Code::OutOfRange => {
            let most = super::MESSAGE_BYTES_MAX;
            let detail = format!("a message has at most {most} bytes: {}", status.message());
            Some(Problem::new(Code::PayloadTooLarge, detail).hint(
                "send smaller batches: UpsertStream takes any number of them over one connection",
            ))
        }
        tonic::Code::Internal => {
            let detail = format!("the message cannot be read: {}", status.message());
            Some(Problem::new(Code::InvalidRequest, detail))
        }
        _ => None,
    }
}

/// A request's body: its bytes count among those of all bodies, and it is not waited for longer
/// than others are.
struct Incoming {
    inner: Body,
    visit: Visit,
    late: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Incoming {
    fn new(inner: Body, visit: Visit, limit: Option<Duration>) -> Self {
        let late = limit.map(|limit| (Box::pin(sleep(limit)), limit));
        Self { inner, visit, late }
    }
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let Some((late, limit)) = &mut this.late else { return Poll::Pending };
                ready!(late.as_mut().poll(context));
                let detail = format!("the message did not arrive within {} ms", limit.as_millis());
                let problem = Problem::new(Code::DeadlineExceeded, detail);
                return Poll::Ready(Some(Err(this.visit.refused(&problem, None).into())));
            }
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(problem) = this.visit.pass().hold(data.len())
        {
            return Poll::Ready(Some(Err(this.visit.refused(&problem, None).into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}
