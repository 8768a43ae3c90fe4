//! Admission: how many requests are answered at once, how many are on their way in, and how many
//! bytes of their bodies are held.
//!
//! A request takes its place when its body is here: a client that announces one and sends it by
//! and by holds nobody up. Every bound refuses at once instead of queueing: a client that is told
//! to come back costs nothing, one that waits holds a connection and its body.

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
    arrived_max: usize,
    body_bytes_max: usize,
    requests: AtomicUsize,
    arrived: AtomicUsize,
    body_bytes: AtomicUsize,
    closed: AtomicBool,
    idle: Notify,
}

impl Gate {
    /// A gate for at most `requests_max` requests being answered, `receiving_max` more whose bodies
    /// are on their way, and `body_bytes_max` bytes of bodies together.
    pub fn new(requests_max: usize, receiving_max: usize, body_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            requests_max,
            arrived_max: requests_max.saturating_add(receiving_max),
            body_bytes_max,
            requests: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            idle: Notify::new(),
        })
    }

    /// Lets a request send its body, or says why not: `shutting_down` or `overloaded`. While all
    /// places are taken it is not worth sending.
    pub fn arrive(self: &Arc<Self>) -> Result<Pass, Problem> {
        // Counted first: whoever closes the gate then either sees this request or refuses it.
        let before = self.arrived.fetch_add(1, Ordering::SeqCst);
        let pass = Pass { gate: self.clone(), entered: false, body_bytes: 0 };
        if self.is_closed() {
            let hint = "another server of the cluster may answer";
            return Err(Problem::new(Code::ShuttingDown, "the server is on its way out")
                .hint(hint)
                .retry_after_ms(RETRY_AFTER_MS));
        }
        if self.requests() >= self.requests_max {
            return Err(self.full());
        }
        if before >= self.arrived_max {
            let detail = format!("{before} requests are being answered or received");
            return Err(Problem::new(Code::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS));
        }
        Ok(pass)
    }

    fn full(&self) -> Problem {
        let detail = format!("{} requests are being answered", self.requests_max);
        Problem::new(Code::Overloaded, detail).retry_after_ms(RETRY_AFTER_MS)
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

    /// Waits until no request is being answered or received.
    pub async fn idle(&self) {
        while self.arrived.load(Ordering::SeqCst) > 0 {
            self.idle.notified().await;
        }
    }
}

/// One request on its way through; what it holds is given back when it is dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    entered: bool,
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

    /// Gives back what the body held so far: it is done with.
    pub fn let_go(&mut self) {
        self.gate.body_bytes.fetch_sub(std::mem::take(&mut self.body_bytes), Ordering::SeqCst);
    }

    /// Takes a place among the requests being answered, or says that there is none: `overloaded`.
    /// One that arrived before the gate was closed still enters.
    pub fn enter(&mut self) -> Result<(), Problem> {
        assert!(!self.entered, "a request takes one place");
        self.entered = true;
        let before = self.gate.requests.fetch_add(1, Ordering::SeqCst);
        if before >= self.gate.requests_max { Err(self.gate.full()) } else { Ok(()) }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.body_bytes.fetch_sub(self.body_bytes, Ordering::SeqCst);
        if self.entered {
            self.gate.requests.fetch_sub(1, Ordering::SeqCst);
        }
        if self.gate.arrived.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.idle.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn refused_requests_leave_no_trace() {
        let gate = Gate::new(1, 1, 10);
        let mut first = gate.arrive().expect("room for one");
        first.enter().expect("a place");
        assert_eq!(gate.arrive().expect_err("full").code, Code::Overloaded);
        assert_eq!(gate.requests(), 1);
        first.hold(8).expect("room for eight bytes");
        assert_eq!(first.hold(3).expect_err("too many").code, Code::Overloaded);
        drop(first);
        assert_eq!((gate.requests(), gate.body_bytes()), (0, 0));
        gate.close();
        assert_eq!(gate.arrive().expect_err("closed").code, Code::ShuttingDown);
        assert_eq!(gate.requests(), 0);
        assert!(gate.idle().now_or_never().is_some());
    }

    #[test]
    fn a_body_on_its_way_takes_no_place() {
        let gate = Gate::new(1, 2, 10);
        let mut slow = [gate.arrive(), gate.arrive()].map(|pass| pass.expect("room"));
        let mut quick = gate.arrive().expect("room");
        quick.enter().expect("the place");
        assert_eq!(slow[0].enter().expect_err("it is taken").code, Code::Overloaded);
        drop((quick, slow));
        assert_eq!(gate.requests(), 0);
        let mut waiting: Vec<_> = (0..3).map(|_| gate.arrive().expect("room")).collect();
        assert_eq!(gate.arrive().expect_err("too many").code, Code::Overloaded);
        gate.close();
        assert!(gate.idle().now_or_never().is_none(), "bodies are on their way");
        waiting[0].enter().expect("it arrived in time");
        drop(waiting);
        assert!(gate.idle().now_or_never().is_some());
    }
}
