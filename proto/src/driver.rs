//! The real clock and the real threads behind the seams, and long work off the async threads.

use crate::seam::{Clock, Spawn};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The machine's own clocks.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_millis() as u64)
    }
}

/// One named thread per piece of work.
#[derive(Default)]
pub struct Threads;

impl Spawn for Threads {
    fn spawn(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) {
        let started = std::thread::Builder::new().name(name.into()).spawn(work);
        started.expect("the system can start a thread");
    }
}

/// Work on at most this many bytes is done where it is: at some 200 MB/s it takes less than half a
/// millisecond.
pub const INLINE_BYTES_MAX: usize = 96 * 1024;

/// Does `work` here, or on a thread for blocking work when it is about more than a few `bytes`.
/// Panics as `work` does.
pub async fn apart<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The work panicked: so does who waits for it, and whoever catches that answers for it.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
