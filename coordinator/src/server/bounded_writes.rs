//! A stream whose writes must get on: whoever asks for a large reply and does not read it would
//! otherwise hold a connection, and the reply in memory, for good. And whoever begins with HTTP/2
//! gets an answer.

use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How a client of HTTP/2 that asks for no other version begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a write of a stream waits for its peer, for those who no longer have the stream.
#[derive(Clone, Debug, Default)]
pub struct Stalled(Arc<AtomicBool>);

impl Stalled {
    /// Whether one waits now.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::SeqCst);
    }
}

/// `inner`, but a write that waits longer than `patience` for its peer fails, as do all later ones.
#[derive(Debug)]
pub struct BoundedWrites<S> {
    inner: S,
    patience: Duration,
    /// Whether nothing was read yet, and HTTP/1 is what is spoken.
    fresh: bool,
    /// Runs from the moment that a write has to wait until one gets on.
    patient: Option<Pin<Box<Sleep>>>,
    stalled: Stalled,
}

impl<S> BoundedWrites<S> {
    /// `inner` with this patience, for HTTP/1; it needs a tokio runtime with time.
    pub fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience, fresh: true, patient: None, stalled: Stalled::default() }
    }

    /// The same for HTTP/2.
    pub fn of_http2(inner: S, patience: Duration) -> Self {
        Self { fresh: false, ..Self::new(inner, patience) }
    }

    /// Whether a write waits, for as long as there is the stream.
    pub fn stalled(&self) -> Stalled {
        self.stalled.clone()
    }

    /// What the caller hears of the outcome of a write.
    fn bounded(
        &mut self,
        outcome: Poll<Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize>> {
        if outcome.is_ready() {
            if self.patient.take().is_some() {
                self.stalled.set(false);
            }
            return outcome;
        }
        let (patience, stalled) = (self.patience, &self.stalled);
        let patient = self.patient.get_or_insert_with(|| {
            stalled.set(true);
            Box::pin(sleep(patience))
        });
        ready!(patient.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client reads nothing of its reply")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedWrites<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let (this, before) = (self.get_mut(), into.filled().len());
        ready!(Pin::new(&mut this.inner).poll_read(context, into))?;
        let first = std::mem::take(&mut this.fresh);
        if first && into.filled()[before..].starts_with(HTTP2_PREFACE) {
            // A server of HTTP/1 alone ends such a connection without a word. Cut short it is a
            // request of a version that is not spoken here, and gets its 400.
            into.set_filled(before + HTTP2_PREFACE.len() - 1);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedWrites<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_write(context, bytes);
        this.bounded(outcome, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.inner).poll_write_vectored(context, pieces);
        this.bounded(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_slow_reader_is_served_and_one_that_stops_is_cut_off() {
        let patience = Duration::from_millis(500);
        let (near, mut far) = duplex(8);
        let mut near = BoundedWrites::new(near, patience);
        // The reader takes longer than the patience in all, but never between two reads.
        let reader = async {
            for _ in 0..10 {
                sleep(patience / 8).await;
                far.read_exact(&mut [0; 8]).await.expect("sent");
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[7; 80]), reader);
        written.expect("every write got on");
        let stopped = near.write_all(&[7; 16]).await.expect_err("nobody reads");
        assert_eq!(stopped.kind(), ErrorKind::TimedOut);
        let still = near.write_all(&[7; 16]).await.expect_err("the stream is of no use any more");
        assert_eq!(still.kind(), ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn the_preface_of_http2_is_cut_short_where_a_connection_begins() {
        let (near, mut far) = duplex(1_024);
        let mut near = BoundedWrites::new(near, Duration::from_secs(1));
        let mut read = [0; 64];
        for expected in [HTTP2_PREFACE.len() - 1, HTTP2_PREFACE.len()] {
            far.write_all(HTTP2_PREFACE).await.expect("sent");
            let count = near.read(&mut read).await.expect("received");
            assert_eq!(read[..count], HTTP2_PREFACE[..expected], "a body may hold anything");
        }
    }

    #[tokio::test]
    async fn an_idle_stream_has_all_the_time_that_it_needs() {
        let patience = Duration::from_millis(20);
        let (near, mut far) = duplex(8);
        let mut near = BoundedWrites::new(near, patience);
        near.write_all(&[1; 8]).await.expect("there is room");
        sleep(patience * 3).await;
        far.write_all(&[2; 4]).await.expect("sent");
        near.read_exact(&mut [0; 4]).await.expect("reading goes on");
        far.read_exact(&mut [0; 8]).await.expect("sent before");
        near.write_all(&[3; 8]).await.expect("there is room again");
    }
}
