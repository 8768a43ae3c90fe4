//! Connections of HTTP/1.1, and of HTTP/2 for gRPC, bounded in number and in the time that a silent
//! client may take, to send or to read; and the orderly end of them all.

use super::bounded_writes::BoundedWrites;
use super::grpc::{self, flow::Flow};
use super::http::{Surface, router};
use super::places::{Crowded, Desk, Place, Places, Turn};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use futures::FutureExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use tracing::{debug, info, warn};

/// Bytes of a request's head, and of one piece of its body.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// How long connections may take to end once no request is under way.
const LINGER_MAX: Duration = Duration::from_secs(3);
/// Pause after the system refused a connection, when files run out for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Calls of one HTTP/2 connection at once.
const STREAMS_MAX: u32 = 256;
/// Bytes that a client may send ahead on one call, and on all calls of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Bytes of a call's metadata.
const METADATA_BYTES_MAX: u32 = 64 * 1024;

/// Where a server listens.
#[derive(Debug)]
pub struct Listeners {
    /// For HTTP/1.1.
    pub http: TcpListener,
    /// For gRPC.
    pub grpc: Option<TcpListener>,
}

/// Serves `surface` over HTTP/1.1 on `listener` until `shutdown` completes, then as
/// [`serve_all`].
pub async fn serve(
    listener: TcpListener,
    surface: Arc<Surface>,
    shutdown: impl Future<Output = ()>,
) {
    serve_all(Listeners { http: listener, grpc: None }, surface, shutdown).await;
}

/// Serves `surface` on `listeners` until `shutdown` completes. Then requests under way are
/// finished, new ones are refused with `shutting_down`, and the call returns when none is left or
/// `drain_timeout` has passed.
pub async fn serve_all(
    listeners: Listeners,
    surface: Arc<Surface>,
    shutdown: impl Future<Output = ()>,
) {
    let places = Places::new(surface.config.connections_max);
    let graceful = GracefulShutdown::new();
    let doors = Doors::new(&listeners, &surface, &graceful);
    doors.accept(&listeners, &places, shutdown).await;
    surface.close();
    info!(requests = surface.gate.requests(), "shutting down");
    let drained = async {
        sleep(surface.config.unready_for).await;
        surface.gate.idle().await;
    };
    let drained = timeout(surface.config.drain_timeout, drained);
    doors.accept(&listeners, &places, drained.map(|_| ())).await;
    drop((doors, listeners));
    // No request is under way any more: what is left are replies on their way to slow readers, and
    // connections that will never ask.
    let linger = surface.config.drain_timeout.min(LINGER_MAX);
    if timeout(linger, graceful.shutdown()).await.is_err() {
        warn!("connections were cut that did not end in time");
    }
}

/// What new connections are given to.
struct Doors<'a> {
    http: Router,
    http1: http1::Builder,
    grpc: Option<(Router, http2::Builder<TokioExecutor>)>,
    graceful: &'a GracefulShutdown,
    patience: Duration,
}

impl<'a> Doors<'a> {
    fn new(listeners: &Listeners, surface: &Arc<Surface>, graceful: &'a GracefulShutdown) -> Self {
        let mut http1 = http1::Builder::new();
        let head_timeout = surface.config.head_timeout;
        http1.timer(TokioTimer::new()).header_read_timeout(head_timeout);
        http1.max_buf_size(HEAD_BYTES_MAX);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2.timer(TokioTimer::new()).keep_alive_interval(head_timeout);
        http2.keep_alive_timeout(head_timeout).max_concurrent_streams(STREAMS_MAX);
        http2.initial_stream_window_size(STREAM_WINDOW);
        http2.initial_connection_window_size(CONNECTION_WINDOW);
        http2.max_header_list_size(METADATA_BYTES_MAX);
        Self {
            http: router(surface.clone()),
            http1,
            grpc: listeners.grpc.as_ref().map(|_| (grpc::router(surface), http2)),
            graceful,
            patience: surface.config.write_timeout,
        }
    }

    /// Takes connections until `until` completes.
    async fn accept(
        &self,
        listeners: &Listeners,
        places: &Arc<Places>,
        until: impl Future<Output = ()>,
    ) {
        let until = until.shared();
        let start = |stream, place| self.http(stream, place);
        let http = accept(&listeners.http, places, start, until.clone());
        let grpc = async {
            match (&listeners.grpc, &self.grpc) {
                (Some(listener), Some((router, builder))) => {
                    let start = |stream, place| self.grpc(router, builder, stream, place);
                    accept(listener, places, start, until).await;
                }
                _ => until.await,
            }
        };
        tokio::join!(http, grpc);
    }

    fn http(&self, stream: TcpStream, place: Place) {
        let (desk, router) = (place.desk(), self.http.clone());
        let service = service_fn(move |request| {
            let router = router.clone();
            answered(&desk, request, |request| router.oneshot(request))
        });
        let stream = BoundedWrites::new(stream, self.patience);
        let stalled = stream.stalled();
        let connection = self.http1.serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move { told(place.serve(connection, &stalled).await) });
    }

    fn grpc(
        &self,
        router: &Router,
        builder: &http2::Builder<TokioExecutor>,
        stream: TcpStream,
        place: Place,
    ) {
        let flow = Arc::new(Flow::default());
        let (desk, router, own) = (place.desk(), router.clone(), flow.clone());
        let service = service_fn(move |request| {
            let (router, own) = (router.clone(), own.clone());
            answered(&desk, request, |mut request| {
                request.extensions_mut().insert(own);
                router.oneshot(request)
            })
        });
        let stream = BoundedWrites::of_http2(stream, self.patience);
        let stalled = stream.stalled();
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        let patience = self.patience;
        tokio::spawn(async move {
            tokio::select! {
                ended = place.serve(connection, &stalled) => told(ended),
                () = flow.stuck(patience) => {
                    debug!("a connection was cut whose client read nothing of a reply");
                }
            }
        });
    }
}

/// What became of a connection, for the log.
fn told(ended: Option<hyper::Result<()>>) {
    match ended {
        Some(Ok(())) => {}
        Some(Err(error)) => debug!(?error, "a connection broke off"),
        None => debug!("an idle connection ended to make room for a new one"),
    }
}

/// The answer to a request that counts at `desk` from now until the last byte of the answer is
/// taken, or it is given up. An error, which ends the connection, when its place is another's.
fn answered<A, F>(
    desk: &Desk,
    request: Request<Incoming>,
    answer: A,
) -> impl Future<Output = io::Result<Response<Counted>>> + use<A, F>
where
    A: FnOnce(Request<Body>) -> F,
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    let turn = desk.request();
    let mut request = request.map(Body::new);
    if turn.as_ref().is_some_and(Turn::is_crowded) {
        request.extensions_mut().insert(Crowded);
    }
    let answer = turn.map(|turn| (turn, answer(request)));
    async move {
        let (turn, answer) = answer.ok_or(io::ErrorKind::ConnectionAborted)?;
        let Ok(response) = answer.await;
        Ok(response.map(|inner| Counted { inner, _turn: turn }))
    }
}

/// The body of a reply whose request is under way until it is gone.
struct Counted {
    inner: Body,
    _turn: Turn,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Hands each new connection to `start` until `until` completes.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Places>,
    start: impl Fn(TcpStream, Place),
    until: impl Future,
) {
    tokio::pin!(until);
    loop {
        let next = async {
            places.room().await;
            listener.accept().await
        };
        tokio::select! {
            biased;
            _ = &mut until => return,
            accepted = next => match accepted {
                Ok((stream, _)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        debug!(%error, "a connection was gone at once");
                    }
                    start(stream, places.take());
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}
