//! Connections of HTTP/1.1, bounded in number and in the time that a silent client may take, to
//! send or to read; and the orderly end of them all.

use super::bounded_writes::BoundedWrites;
use super::http::{Surface, router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// Bytes of a request's head, and of one piece of its body.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// How long connections may take to end once no request is under way.
const LINGER_MAX: Duration = Duration::from_secs(3);
/// Pause after the system refused a connection, when files run out for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `surface` on `listener` until `shutdown` completes. Then requests under way are
/// finished, new ones are refused with `shutting_down`, and the call returns when none is left or
/// `drain_timeout` has passed.
pub async fn serve(
    listener: TcpListener,
    surface: Arc<Surface>,
    shutdown: impl Future<Output = ()>,
) {
    let router = router(surface.clone());
    let slots = Arc::new(Semaphore::new(surface.config.connections_max));
    let graceful = GracefulShutdown::new();
    let builder = builder(surface.config.head_timeout);
    let patience = surface.config.write_timeout;
    let start = |stream: TcpStream, slot| {
        let service = TowerToHyperService::new(router.clone());
        let stream = TokioIo::new(BoundedWrites::new(stream, patience));
        let connection = graceful.watch(builder.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(?error, "a connection broke off");
            }
            drop(slot);
        });
    };
    tokio::pin!(shutdown);
    accept(&listener, &slots, start, &mut shutdown).await;
    surface.close();
    info!(requests = surface.gate.requests(), "shutting down");
    let drained = async {
        sleep(surface.config.unready_for).await;
        surface.gate.idle().await;
    };
    let drained = timeout(surface.config.drain_timeout, drained);
    tokio::pin!(drained);
    accept(&listener, &slots, start, &mut drained).await;
    drop(listener);
    // No request is under way any more: what is left are replies on their way to slow readers, and
    // connections that will never ask.
    let linger = surface.config.drain_timeout.min(LINGER_MAX);
    if timeout(linger, graceful.shutdown()).await.is_err() {
        warn!("connections were cut that did not end in time");
    }
}

fn builder(head_timeout: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout).max_buf_size(HEAD_BYTES_MAX);
    builder
}

/// Hands each new connection to `start` until `until` completes.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    start: impl Fn(TcpStream, tokio::sync::OwnedSemaphorePermit),
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
