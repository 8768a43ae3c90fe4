//! Admission: how many requests, and how many bytes of their bodies, are held at once.
//!
//! Both bounds refuse at once instead of queueing: a client that is told to come back costs
//! nothing, one that waits holds a connection and its body.

use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Pause that refused clients are asked for, milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// The door of the API. Health and metrics do not pass through it.
#[derive(Debug)]
pub struct Gate {
    requests_max: usize,
    body_bytes_max: usize,
    requests: AtomicUsize,
    body_bytes: AtomicUsize,
    closed: AtomicBool,
    idle: Notify,
}

impl Gate {
    /// A gate for at most `requests_max` requests with `body_bytes_max` bytes of bodies together.
    pub fn new(requests_max: usize, body_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            requests_max,
            body_bytes_max,
            requests: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            idle: Notify::new(),
        })
    }

    /// Lets a request in, or says why not: `shutting_down` or `overloaded`.
    pub fn enter(self: &Arc<Self>) -> Result<Pass, Problem> {
        // Counted first: whoever closes the gate then either sees this request or refuses it.
        let before = self.requests.fetch_add(1, Ordering::SeqCst);
        let pass = Pass { gate: self.clone(), body_bytes: 0 };
        if self.is_closed() {
            let hint = "another server of the cluster may answer";
            return Err(Problem::new(Code::ShuttingDown, "the server is on its way out")
                .hint(hint)
                .retry_after_ms(RETRY_AFTER_MS));
        }
        if before >= self.requests_max {
            let detail = format!("{} requests are being answered", self.requests_max);
            return Err(Problem::new(Code::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS));
        }
        Ok(pass)
    }

    /// Refuses every further request.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether requests are refused for good.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Requests being answered.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Bytes of bodies held.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes.load(Ordering::SeqCst)
    }

    /// Waits until no request is being answered.
    pub async fn idle(&self) {
        while self.requests() > 0 {
            self.idle.notified().await;
        }
    }
}

/// One request's place; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    body_bytes: usize,
}

impl Pass {
    /// Whether the server is on its way out.
    pub fn is_last(&self) -> bool {
        self.gate.is_closed()
    }

    /// Accounts for `bytes` more of the request's body.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Problem> {
        let before = self.gate.body_bytes.fetch_add(bytes, Ordering::SeqCst);
        self.body_bytes += bytes;
        if before + bytes > self.gate.body_bytes_max {
            let most = self.gate.body_bytes_max;
            let detail = format!("request bodies would take more than {most} bytes");
            return Err(Problem::new(Code::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS));
        }
        Ok(())
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.body_bytes.fetch_sub(self.body_bytes, Ordering::SeqCst);
        if self.gate.requests.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.idle.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_leave_no_trace() {
        let gate = Gate::new(1, 10);
        let mut first = gate.enter().expect("room for one");
        assert_eq!(gate.enter().expect_err("full").code, Code::Overloaded);
        assert_eq!(gate.requests(), 1);
        first.hold(8).expect("room for eight bytes");
        assert_eq!(first.hold(3).expect_err("too many").code, Code::Overloaded);
        drop(first);
        assert_eq!((gate.requests(), gate.body_bytes()), (0, 0));
        gate.close();
        assert_eq!(gate.enter().expect_err("closed").code, Code::ShuttingDown);
        assert_eq!(gate.requests(), 0);
    }
}
