//! The real clock and the real threads behind the seams.

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
