//! Admission of retrievals by what they may cost: light ones begin at once, heavy ones wait in one
//! queue for a turn, run to their end, and leave processors and memory to the others meanwhile.
//! Began they all at once, none would end in time.

use hopbine_proto::status::{Code, Problem};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Retrievals of at most this weight, see `Plan::weight`, are light: a few milliseconds each.
const LIGHT_MAX: u64 = 32 * 1024;
/// Heavy retrievals that run at once, for each processor: while one waits another works.
const TURNS_PER_PROCESSOR: usize = 2;
/// Heavy retrievals that wait at once. They leave most places of a server to light ones.
const WAITING_MAX: usize = 64;
/// When a retrieval that found the queue full should come back.
const RETRY_AFTER_MS: u64 = 1_000;

/// Who may begin now.
#[derive(Debug)]
pub(crate) struct Admission {
    turns: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// A heavy retrieval's turn; over when it is dropped.
pub(crate) type Begun<'a> = Option<SemaphorePermit<'a>>;

impl Admission {
    /// Turns for this machine.
    pub fn of_machine() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self::new(processors * TURNS_PER_PROCESSOR, WAITING_MAX)
    }

    fn new(turns: usize, waiting_max: usize) -> Self {
        Self { turns: Semaphore::new(turns), waiting: AtomicUsize::new(0), waiting_max }
    }

    /// Waits until a retrieval of this weight may begin; first come, first served. `overloaded`
    /// when too many wait already.
    pub async fn begin(&self, weight: u64) -> Result<Begun<'_>, Problem> {
        if weight <= LIGHT_MAX {
            return Ok(None);
        }
        if let Ok(turn) = self.turns.try_acquire() {
            return Ok(Some(turn));
        }
        let _waits = self.wait()?;
        // Nobody closes it.
        Ok(self.turns.acquire().await.ok())
    }

    fn wait(&self) -> Result<Waits<'_>, Problem> {
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        let waits = Waits(&self.waiting);
        if before < self.waiting_max {
            return Ok(waits);
        }
        let detail = format!("{} retrievals as large as this one wait already", self.waiting_max);
        Err(Problem::new(Code::Overloaded, detail)
            .retry_after_ms(RETRY_AFTER_MS)
            .hint("come back a little later, or ask for less: top_k, beam, ann_k"))
    }
}

/// A place in the queue, given back when it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, poll};
    use std::pin::pin;

    #[tokio::test]
    async fn heavy_retrievals_take_turns_in_order_and_light_ones_begin_at_once() {
        let admission = Admission::new(1, 2);
        let heavy = || admission.begin(LIGHT_MAX + 1);
        let first = heavy().await.expect("begun");
        let (mut second, mut third) = (pin!(heavy()), pin!(heavy()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert_eq!(heavy().await.expect_err("the queue is full").code, Code::Overloaded);
        let light = admission.begin(LIGHT_MAX).now_or_never().expect("at once");
        assert!(light.expect("light").is_none());
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second one comes first");
        let second = second.await.expect("its turn");
        drop(second);
        assert!(third.await.expect("its turn").is_some());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_queue() {
        let admission = Admission::new(1, 1);
        let first = admission.begin(u64::MAX).await.expect("begun");
        for _ in 0..3 {
            assert!(admission.begin(u64::MAX).now_or_never().is_none(), "waits, and is dropped");
        }
        drop(first);
        assert!(admission.begin(u64::MAX).now_or_never().is_some());
    }
}
