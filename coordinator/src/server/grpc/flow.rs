//! Readers that read nothing: over HTTP/2 a client decides how much of a reply it takes, and one
//! that takes none would hold the reply for ever.
//!
//! A body tells the [`Flow`] of its connection from when on it waits for its reader. Whoever serves
//! the connection ends it once one of its bodies has waited too long. A body goes out in small
//! pieces: what the protocol's library has taken over counts nowhere and is waited for by nobody.

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Bytes that a body hands over at once.
const PIECE_BYTES: usize = 32 * 1024;

/// The bodies of one connection that wait for its reader.
#[derive(Debug, Default)]
pub struct Flow(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

impl Flow {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the body that waits longest has waited.
    pub fn longest(&self) -> Option<Duration> {
        self.lock().since.values().min().map(Instant::elapsed)
    }

    /// Returns once a body has waited for longer than `patience`.
    pub async fn stuck(&self, patience: Duration) {
        loop {
            let waited = self.longest().unwrap_or_default();
            if waited > patience {
                return;
            }
            sleep((patience - waited).max(patience / 16)).await;
        }
    }
}

/// A body on its way to a reader, with whatever must live as long as it is sent.
pub struct Outgoing<T> {
    inner: Body,
    /// What the last piece left of what `inner` gave.
    rest: Bytes,
    flow: Option<(Arc<Flow>, u64)>,
    _held: T,
}

impl<T> Outgoing<T> {
    /// `inner`, which waits for its reader from now on.
    pub fn new(inner: Body, flow: Option<Arc<Flow>>, held: T) -> Self {
        let flow = flow.map(|flow| {
            let id = {
                let mut waiting = flow.lock();
                let id = waiting.next;
                waiting.next += 1;
                waiting.since.insert(id, Instant::now());
                id
            };
            (flow, id)
        });
        Self { inner, rest: Bytes::new(), flow, _held: held }
    }
}

impl<T> Outgoing<T> {
    /// The next piece, or whatever else comes next.
    fn piece(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl<T> HttpBody for Outgoing<T>
where
    T: Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let frame = this.piece(context);
        if let Some((flow, id)) = &this.flow {
            // Asked for a piece, the reader is there; with one in hand it is waited for again.
            match &frame {
                Poll::Ready(Some(Ok(_))) => flow.lock().since.insert(*id, Instant::now()),
                _ => flow.lock().since.remove(id),
            };
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }
}

impl<T> Drop for Outgoing<T> {
    fn drop(&mut self) {
        if let Some((flow, id)) = &self.flow {
            flow.lock().since.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use http_body_util::BodyExt;

    #[tokio::test(start_paused = true)]
    async fn a_body_waits_from_its_beginning_until_it_is_read_or_gone() {
        let flow = Arc::new(Flow::default());
        assert_eq!(flow.longest(), None);
        let mut body = Outgoing::new(Body::from("text"), Some(flow.clone()), ());
        assert!(flow.longest().is_some());
        let frame = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), "text");
        assert!(flow.longest().is_some(), "the rest was not asked for");
        assert!(body.frame().await.is_none());
        assert_eq!(flow.longest(), None);
        let idle = Body::from_stream(futures::stream::pending::<Result<Bytes, axum::Error>>());
        let mut idle = Outgoing::new(idle, Some(flow.clone()), ());
        assert!(idle.frame().now_or_never().is_none());
        assert_eq!(flow.longest(), None, "it waits for the server, not for its reader");
        let unread = Outgoing::new(Body::from("text"), Some(flow.clone()), ());
        assert!(flow.longest().is_some());
        drop(unread);
        assert_eq!(flow.longest(), None);
    }

    #[tokio::test]
    async fn a_body_goes_out_in_small_pieces_and_whole() {
        let text: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut body = Outgoing::new(Body::from(text.clone()), None, ());
        let (mut read, mut pieces) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let data = frame.expect("no error").into_data().expect("data");
            assert!((1..=PIECE_BYTES).contains(&data.len()), "{} bytes", data.len());
            read.extend_from_slice(&data);
            pieces += 1;
        }
        assert_eq!((read, pieces), (text, 7));
    }

    #[tokio::test]
    async fn a_flow_is_stuck_once_a_body_has_waited_too_long() {
        let flow = Arc::new(Flow::default());
        let patience = Duration::from_millis(20);
        let unread = Outgoing::new(Body::from("text"), Some(flow.clone()), ());
        let begun = Instant::now();
        flow.stuck(patience).await;
        assert!(begun.elapsed() >= patience);
        drop(unread);
        assert!(flow.stuck(Duration::from_secs(3_600)).now_or_never().is_none());
    }
}
