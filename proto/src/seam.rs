//! The seams besides `Disk`: time and background work. The real ones are in `driver.rs`.

use std::time::Duration;

/// Time as the rest of the code sees it.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment of this process; never goes back.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since the Unix epoch; may jump.
    fn wall_ms(&self) -> u64;
}

/// Background work: flush, compaction, graph building.
pub trait Spawn: Send + Sync {
    /// Starts `work` off the calling thread under `name`. The caller waits through whatever it
    /// put into `work` (a channel, a latch); nothing is joined here.
    fn spawn(&self, name: &'static str, work: Box<dyn FnOnce() + Send>);
}
