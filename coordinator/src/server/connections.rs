//! Connections of HTTP/1.1, and of HTTP/2 for gRPC, bounded in number and in the time that a silent
//! client may take, to send or to read; and the orderly end of them all.

use super::bounded_writes::BoundedWrites;
use super::grpc::{self, flow::Flow};
use super::http::{Surface, router};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use futures::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    let slots = Arc::new(Semaphore::new(surface.config.connections_max));
    let graceful = GracefulShutdown::new();
    let doors = Doors::new(&listeners, &surface, &graceful);
    doors.accept(&listeners, &slots, shutdown).await;
    surface.close();
    info!(requests = surface.gate.requests(), "shutting down");
    let drained = async {
        sleep(surface.config.unready_for).await;
        surface.gate.idle().await;
    };
    let drained = timeout(surface.config.drain_timeout, drained);
    doors.accept(&listeners, &slots, drained.map(|_| ())).await;
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
        slots: &Arc<Semaphore>,
        until: impl Future<Output = ()>,
    ) {
        let until = until.shared();
        let http =
            accept(&listeners.http, slots, |stream, slot| self.http(stream, slot), until.clone());
        let grpc = async {
            match (&listeners.grpc, &self.grpc) {
                (Some(listener), Some((router, builder))) => {
                    let start = |stream, slot| self.grpc(router, builder, stream, slot);
                    accept(listener, slots, start, until).await;
                }
                _ => until.await,
            }
        };
        tokio::join!(http, grpc);
    }

    fn http(&self, stream: TcpStream, slot: OwnedSemaphorePermit) {
        let service = TowerToHyperService::new(self.http.clone());
        let stream = TokioIo::new(BoundedWrites::new(stream, self.patience));
        let connection = self.graceful.watch(self.http1.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(?error, "a connection broke off");
            }
            drop(slot);
        });
    }

    fn grpc(
        &self,
        router: &Router,
        builder: &http2::Builder<TokioExecutor>,
        stream: TcpStream,
        slot: OwnedSemaphorePermit,
    ) {
        let flow = Arc::new(Flow::default());
        let own = flow.clone();
        let service = router.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(own.clone());
            request.map(Body::new)
        });
        let stream = TokioIo::new(BoundedWrites::of_http2(stream, self.patience));
        let service = TowerToHyperService::new(service);
        let connection = self.graceful.watch(builder.serve_connection(stream, service));
        let patience = self.patience;
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {

                    debug!(?error, "a connection broke off");
                },
                () = flow.stuck(patience) => {
                    debug!("a connection was cut whose client read nothing of a reply");
                }
            }
            drop(slot);
        });
    }
}

/// Hands each new connection to `start` until `until` completes.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    start: impl Fn(TcpStream, OwnedSemaphorePermit),
    until: impl Future,
) {
    tokio::pin!(until);
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, slot)
        };
        tokio::select! {
            biased;
            _ = &mut until => return,
            (accepted, slot) = next => match accepted {
                Ok((stream, _)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        debug!(%error, "a connection was gone at once");
                    }
                    start(stream, slot);
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}
