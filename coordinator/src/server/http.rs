//! The HTTP server: connections, dispatch, what every response carries, and the shutdown.
//!
//! A request is answered on the task of its connection, from its head to its reply: no hop to
//! another task unless its body or reply is large.

use super::body::{collect, media};
use super::calls::{Call, Outcome, Reply, explain, facts, graphs, retrieval};
use super::gate::{Gate, Pass};
use super::head;
use super::health::{Health, report};
use super::metrics::{Metrics, UnderWay};
use super::openapi;
use super::places::Crowded;
use super::problem::{self, Refused};
use super::routes::{Endpoint, Route, allow, of_path, paths};
use super::sizes::Sizes;
use crate::driver::Engine;
use crate::memory::{Held, Memory};
use crate::reply::Timings;
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::routing::any;
use bytes::Bytes;
use futures::FutureExt;
use hopbine_proto::limits;
use hopbine_proto::status::{Code, Problem};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use std::convert::Infallible;
use std::fmt::Write;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;
use tracing::{debug, error};

/// Longest `X-Request-Id` that is taken over.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Bounds of the server: plain values with their units.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// Requests answered at once; beyond it `overloaded`.
    pub requests_max: usize,
    /// Bytes of request bodies held at once; beyond it `overloaded`.
    pub body_bytes_max: usize,
    /// Bytes of all requests being answered, as they are held once their bodies are read; beyond it
    /// `memory_limit`. A request that takes at most one in 2,048 of them finds room at any rate.
    pub requests_bytes_max: usize,
    /// Open connections; beyond it the one that has been idle longest ends for a new one, and while
    /// none is idle up to 64 more get health and the like alone. Also the requests whose bodies are
    /// on their way at once; beyond it `overloaded`.
    pub connections_max: usize,
    /// Time for a request's head, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// How long a client may read nothing while a reply waits for it; then its connection ends.
    pub write_timeout: Duration,
    /// How long the server keeps refusing with `shutting_down` before it stops to listen.
    pub unready_for: Duration,
    /// How long requests that were under way at the shutdown may take.
    pub drain_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            requests_max: 256,
            body_bytes_max: 1 << 30,
            // Twice and more what the largest write takes of whatever facts.
            requests_bytes_max: 2 << 30,
            connections_max: 4_096,
            head_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            unready_for: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Everything that the routes share.
pub struct Surface {
    pub(super) engine: Engine,
    health: Arc<dyn Health>,
    pub(super) config: HttpConfig,
    pub(super) gate: Arc<Gate>,
    /// What requests take once they are read.
    pub(super) memory: Arc<Memory>,
    pub(super) metrics: Metrics,
    sizes: Sizes,
    request_seed: u64,
    requests: AtomicU64,
}

impl Surface {
    /// The surface of `engine`, ready when `health` says so.
    pub fn new(engine: Engine, health: Arc<dyn Health>, config: HttpConfig) -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let process = u64::from(std::process::id()) << 32;
        Arc::new(Self {
            engine,
            health,
            gate: Gate::new(config.requests_max, config.connections_max, config.body_bytes_max),
            memory: Memory::of_requests(config.requests_bytes_max),
            config,
            metrics: Metrics::default(),
            sizes: Sizes::default(),
            request_seed: now.as_nanos() as u64 ^ process,
            requests: AtomicU64::new(0),
        })
    }

    /// Refuses every further request with `shutting_down` and shows the server as unready.
    pub fn close(&self) {
        self.gate.close();
    }

    /// Whether requests will be served.
    pub(super) fn is_ready(&self) -> bool {
        !self.gate.is_closed() && report(&self.health.checks(), false).0
    }

    /// The client's `X-Request-Id`, or one of our own.
    pub(super) fn request_id(&self, headers: &HeaderMap) -> String {
        let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
        let fits = |id: &&str| {
            let visible = id.bytes().all(|byte| byte.is_ascii_graphic());
            visible && (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
        };
        match given.filter(fits) {
            Some(id) => id.to_owned(),
            None => {
                let number = self.requests.fetch_add(1, Ordering::Relaxed);
                format!("{:016x}-{number:x}", self.request_seed)
            }
        }
    }
}

/// All routes, for a server of any kind.
pub fn router(surface: Arc<Surface>) -> Router {
    let mut router = Router::new();
    for path in paths() {
        let surface = surface.clone();
        let answer = move |request| {
            let surface = surface.clone();
            async move { answer(&surface, Some(path), request).await }
        };
        router = router.route(path, any(answer));
    }
    router.fallback(move |request: Request| {
        let surface = surface.clone();
        async move { answer(&surface, None, request).await }
    })
}

/// What became of a request on its way to an answer.
struct Progress {
    /// The place of the matched route in the table, once known.
    matched: Option<usize>,
    /// The body until somebody reads it.
    body: Option<Body>,
    /// Whether somebody began to and did not come to its end.
    cut_off: bool,
}

/// A body that nobody wanted is read to its end when it is said to be no longer than this and is
/// about to be here: its connection can go on then.
const UNWANTED_BYTES_MAX: usize = 64 * 1024;
const UNWANTED_PATIENCE: Duration = Duration::from_millis(20);

impl Progress {
    /// Reads what nobody wanted; whether all is read, so that a further request can follow it.
    async fn read_out(self, headers: &HeaderMap) -> bool {
        let Some(body) = self.body else { return !self.cut_off };
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let short = announced.and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
        if short > UNWANTED_BYTES_MAX || headers.contains_key(header::EXPECT) {
            return false;
        }
        let rest = timeout(UNWANTED_PATIENCE, body.collect()).await;
        rest.is_ok_and(|read| read.is_ok())
    }
}

/// Answers one request, whatever happens.
async fn answer(surface: &Surface, path: Option<&'static str>, request: Request) -> Response<Body> {
    let started = Instant::now();
    let (mut parts, body) = request.into_parts();
    let request_id = surface.request_id(&parts.headers);
    let unread = !HttpBody::is_end_stream(&body);
    let mut progress = Progress { matched: None, body: unread.then_some(body), cut_off: false };
    let work = dispatch(surface, path, &mut parts, &request_id, &mut progress);
    let outcome = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<String>().map(String::as_str);
        let reason = reason.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        surface.metrics.panic();
        error!(request_id, reason, "a request ended in a panic");
        let hint = "the server's log holds the reason under this request_id";
        Err(Problem::new(Code::Internal, "the server failed on this request").hint(hint).into())
    });
    let took = started.elapsed();
    let (mut response, code) = match outcome {
        Ok(response) => (response, "ok"),
        Err(refused) => (problem::response(&refused, &request_id), refused.problem.code.as_str()),
    };
    surface.metrics.request(progress.matched, code, took);
    let trace = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
    let (status, path) = (response.status().as_u16(), parts.uri.path());
    debug!(request_id, trace, method = %parts.method, path, status, code, ?took, "answered");
    let last = surface.gate.is_closed() || parts.extensions.get::<Crowded>().is_some();
    if !progress.read_out(&parts.headers).await || last {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let head = parts.method == Method::HEAD && response.status() != StatusCode::NOT_MODIFIED;
    finish(&mut response, &request_id, took, head);
    response
}

/// Adds what every response carries.
fn finish(response: &mut Response<Body>, request_id: &str, took: Duration, head: bool) {
    let headers = response.headers_mut();
    set(headers, HeaderName::from_static("x-request-id"), request_id);
    let name = HeaderName::from_static("server-timing");
    let stages = headers.get(&name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let total = format!("{stages}total;dur={:.3}", took.as_secs_f64() * 1e3);
    set(headers, name, &total);
    if head {
        let bytes = HttpBody::size_hint(response.body()).exact().unwrap_or(0);
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
        *response.body_mut() = Body::empty();
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // Values are our own visible ASCII, or a client's that came in a header.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

async fn dispatch(
    surface: &Surface,
    path: Option<&'static str>,
    parts: &mut Parts,
    request_id: &str,
    progress: &mut Progress,
) -> Result<Response<Body>, Refused> {
    head::check(parts)?;
    let route = find(path, parts)?;
    progress.matched = Some(route.0);
    let route = route.1;
    if !route.endpoint.is_api() {
        return operations(surface, route, parts).await;
    }
    if parts.extensions.get::<Crowded>().is_some() {
        return Err(Crowded::problem().into());
    }
    let mut pass = surface.gate.arrive()?;
    let (graph, id) = parameters(parts).await?;
    let query = query(parts)?;
    let body = match route.body.is_some() {
        true => receive(surface, route, parts, progress, &mut pass).await?,
        false => Bytes::new(),
    };
    pass.enter()?;
    let call = Call {
        route,
        engine: &surface.engine,
        graph,
        id,
        query,
        headers: &parts.headers,
        body,
        memory: &surface.memory,
        room: OnceLock::new(),
        request_id,
    };
    call.check_query()?;
    let reply = run(&call, &surface.metrics, request_id).await?;
    Ok(respond(reply))
}

/// The route of a request, or 404 or 405.
fn find(path: Option<&'static str>, parts: &Parts) -> Result<(usize, &'static Route), Refused> {
    let Some(path) = path else {
        let detail = format!("there is no endpoint {}", parts.uri.path());
        let hint = "GET /openapi.json lists all endpoints of this version";
        let problem = Problem::new(Code::InvalidRequest, detail).hint(hint);
        return Err(Refused::with_status(problem, StatusCode::NOT_FOUND));
    };
    let wanted = if parts.method == Method::HEAD { "GET" } else { parts.method.as_str() };
    of_path(path).find(|(_, route)| route.method == wanted).ok_or_else(|| {
        let allow = allow(path);
        let detail = format!("{path} has no method {}", parts.method);
        let problem = Problem::new(Code::InvalidRequest, detail).hint(format!("it has {allow}"));
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Refused { allow: Some(allow), ..Refused::with_status(problem, status) }
    })
}

/// `{graph}` and `{id}` of the path.
async fn parameters(parts: &mut Parts) -> Result<(String, String), Problem> {
    let (mut graph, mut id) = (String::new(), String::new());
    let found = RawPathParams::from_request_parts(parts, &()).await;
    let found = found.map_err(|_| Problem::new(Code::InvalidRequest, "the path is not UTF-8"))?;
    for (name, value) in &found {
        *(if name == "graph" { &mut graph } else { &mut id }) = value.to_owned();
    }
    Ok((graph, id))
}

fn query(parts: &Parts) -> Result<Vec<(String, String)>, Problem> {
    if parts.uri.query().is_none() {
        return Ok(Vec::new());
    }
    let parsed = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
    parsed.map(|Query(query)| query).map_err(|error| {
        Problem::new(Code::InvalidRequest, format!("the query string is malformed: {error}"))
    })
}

async fn receive(
    surface: &Surface,
    route: &Route,
    parts: &Parts,
    progress: &mut Progress,
    pass: &mut Pass,
) -> Result<Bytes, Refused> {
    media(&parts.headers, route.endpoint == Endpoint::Upsert)?;
    let most = match route.endpoint {
        Endpoint::Upsert | Endpoint::Write => limits::WRITE_BYTES_MAX,
        _ => limits::QUERY_BYTES_MAX,
    };
    let Some(body) = progress.body.take() else { return Ok(Bytes::new()) };
    progress.cut_off = true;
    let body = collect(&parts.headers, body, most, surface.config.body_timeout, pass).await?;
    progress.cut_off = false;
    Ok(body)
}

async fn run(call: &Call<'_>, metrics: &Metrics, request_id: &str) -> Outcome {
    match call.route.endpoint {
        Endpoint::ListGraphs => graphs::list(call).await,
        Endpoint::GetGraph => graphs::get(call),
        Endpoint::PutGraph => graphs::put(call).await,
        Endpoint::PatchGraph => graphs::patch(call).await,
        Endpoint::DropGraph => graphs::drop_graph(call).await,
        Endpoint::Stats => graphs::stats(call).await,
        Endpoint::Relations => graphs::relations(call).await,
        Endpoint::Entity => graphs::entity(call).await,
        Endpoint::Upsert => facts::upsert(call).await,
        Endpoint::Write => facts::write(call).await,
        Endpoint::Get => facts::get(call).await,
        Endpoint::Delete => facts::delete(call).await,
        Endpoint::Scan => facts::scan(call).await,
        Endpoint::Count => facts::count(call).await,
        Endpoint::Search => retrieval::search(call, metrics).await,
        Endpoint::Expand => retrieval::expand(call, metrics).await,
        Endpoint::Rerank => retrieval::rerank(call).await,
        Endpoint::GraphRag => retrieval::graph_rag(call, metrics).await,
        Endpoint::GraphRagBatch => retrieval::batch(call, metrics, request_id).await,
        Endpoint::Explain => explain::explain(call, metrics).await,
        Endpoint::SlowQueries => explain::slow_queries(call).await,
        Endpoint::Version
        | Endpoint::Live
        | Endpoint::Ready
        | Endpoint::Metrics
        | Endpoint::OpenApi => unreachable!("answered before the gate"),
    }
}

/// A body whose bytes count among those of all replies until the last of them is sent, or its
/// connection is gone.
struct Counted {
    bytes: Vec<u8>,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// No body, without a word on its length: what the client has of it is as long as ever.
struct Unsaid;

impl HttpBody for Unsaid {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

fn respond(reply: Reply) -> Response<Body> {
    let mut response = match reply.status {
        StatusCode::NOT_MODIFIED => {
            let mut response = Response::new(Body::new(Unsaid));
            *response.status_mut() = reply.status;
            response
        }
        status => {
            let body = Bytes::from_owner(Counted { bytes: reply.body, _held: reply.held });
            text(status, "application/json", body)
        }
    };
    let headers = response.headers_mut();
    if let Some(token) = &reply.token {
        set(headers, HeaderName::from_static("consistency-token"), token);
    }
    if let Some(etag) = &reply.etag {
        set(headers, header::ETAG, etag);
    }
    if let Some(timings) = &reply.timings {
        let stages = stages(timings) + ", ";
        set(headers, HeaderName::from_static("server-timing"), &stages);
    }
    response
}

/// A retrieval's stages as `Server-Timing` has them.
pub(super) fn stages(timings: &Timings) -> String {
    let mut stages = String::with_capacity(160);
    let _ = write!(stages, "plan;dur={:.3}, seeds;dur={:.3}", timings.plan_ms, timings.seeds_ms);
    for (hop, ms) in timings.hops_ms.iter().enumerate() {
        let _ = write!(stages, ", hop{};dur={ms:.3}", hop + 1);
    }
    let (fetch, merge) = (timings.fetch_ms, timings.merge_ms);
    let _ = write!(stages, ", fetch;dur={fetch:.3}, merge;dur={merge:.3}");
    stages
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Endpoints that answer at any load and during the shutdown.
async fn operations(
    surface: &Surface,
    route: &'static Route,
    parts: &Parts,
) -> Result<Response<Body>, Refused> {
    let plain = "text/plain; charset=utf-8";
    Ok(match route.endpoint {
        Endpoint::Version => {
            let version = env!("CARGO_PKG_VERSION");
            let body = format!("{{\"name\":\"hopbine\",\"version\":\"{version}\",\"api\":\"v1\"}}");
            text(StatusCode::OK, "application/json", body)
        }
        Endpoint::Ready => {
            let verbose = query(parts)?.iter().any(|(name, _)| name == "verbose");
            let (ready, mut lines) = report(&surface.health.checks(), verbose);
            let closed = surface.gate.is_closed();
            if closed {
                lines.insert_str(0, "[-]shutdown failed: the server is on its way out\n");
            }
            let fit = ready && !closed;
            let status = if fit { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            text(status, plain, lines)
        }
        Endpoint::Metrics => {
            let graphs = surface.sizes.of(&surface.engine).await;
            let now = UnderWay {
                requests: surface.gate.requests(),
                body_bytes: surface.gate.body_bytes(),
                request_bytes: surface.memory.bytes(),
                reply_bytes: surface.engine.reply_memory().bytes(),
            };
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            text(StatusCode::OK, kind, surface.metrics.text(now, &graphs))
        }
        Endpoint::OpenApi => text(StatusCode::OK, "application/json", openapi::document()),
        _ => text(StatusCode::OK, plain, "ok\n"),
    })
}
