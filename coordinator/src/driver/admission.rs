//! Admission of retrievals by what they may cost: light ones begin at once, heavy ones wait in one
//! queue for a turn, run to their end, and leave processors and memory to the others meanwhile.
//! Began they all at once, none would end in time, or what one has read would find no room.

use crate::memory::Memory;
use hopbine_proto::status::{Code, Problem};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Retrievals of at most this weight, see `Plan::weight`, are light: a few milliseconds each.
const LIGHT_MAX: u64 = 32 * 1024;
/// Heavy retrievals that run at once, for each processor: while one waits another works.
const TURNS_PER_PROCESSOR: usize = 2;
/// Heavy retrievals that wait at once. They leave most places of a server to light ones.
const WAITING_MAX: usize = 64;
/// When a retrieval that found the queue full should come back.
const RETRY_AFTER_MS: u64 = 1_000;
/// How often one that has its turn looks for room.
const LOOK: Duration = Duration::from_millis(5);
/// While replies hold one in so many of the bytes that they may, there is room whatever comes.
const ROOMY_SHARE: usize = 8;

/// Who may begin now.
#[derive(Debug)]
pub(crate) struct Admission {
    turns: Semaphore,
    turns_max: usize,
    waiting: AtomicUsize,
    waiting_max: usize,
    /// About what a heavy retrieval's reply held lately, as rows and as text.
    reply_bytes: AtomicUsize,
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
        Self {
            turns: Semaphore::new(turns),
            turns_max: turns,
            waiting: AtomicUsize::new(0),
            waiting_max,
            reply_bytes: AtomicUsize::new(0),
        }
    }

    /// Waits until a retrieval of this weight may begin; first come, first served. `overloaded`
    /// when too many wait already. `replies` is where its reply will be held.
    pub async fn begin(&self, weight: u64, replies: &Memory) -> Result<Begun<'_>, Problem> {
        if weight <= LIGHT_MAX {
            return Ok(None);
        }
        let turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                let _waits = self.wait()?;
                let turn = self.turns.acquire().await;
                turn.expect("nobody closes it")
            }
        };
        while !self.fits(replies.bytes(), replies.bytes_max()) {
            tokio::time::sleep(LOOK).await;
        }
        Ok(Some(turn))
    }

    /// Whether replies like the last ones of all that have a turn fit beside the bytes `held`,
    /// which may be rows that are yet to be written down.
    fn fits(&self, held: usize, most: usize) -> bool {
        let running = self.turns_max - self.turns.available_permits();
        let coming = self.reply_bytes.load(Ordering::Relaxed).saturating_mul(running);
        held <= most / ROOMY_SHARE || held.saturating_mul(2).saturating_add(coming) <= most
    }

    /// Learns that the rows of a heavy retrieval's reply held `bytes`.
    pub fn ended(&self, bytes: usize) {
        let before = self.reply_bytes.load(Ordering::Relaxed);
        // Forgotten by and by.
        self.reply_bytes.store((2 * bytes).max(before - before.div_ceil(8)), Ordering::Relaxed);
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
        let (admission, replies) = (Admission::new(1, 2), Memory::new(1));
        let heavy = || admission.begin(LIGHT_MAX + 1, &replies);
        let first = heavy().await.expect("begun");
        let (mut second, mut third) = (pin!(heavy()), pin!(heavy()));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        assert_eq!(heavy().await.expect_err("the queue is full").code, Code::Overloaded);
        let light = admission.begin(LIGHT_MAX, &replies).now_or_never().expect("at once");
        assert!(light.expect("light").is_none());
        drop(first);
        assert!(poll!(&mut third).is_pending(), "the second one comes first");
        let second = second.await.expect("its turn");
        drop(second);
        assert!(third.await.expect("its turn").is_some());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_queue() {
        let (admission, replies) = (Admission::new(1, 1), Memory::new(1));
        let heavy = || admission.begin(u64::MAX, &replies);
        let first = heavy().await.expect("begun");
        for _ in 0..3 {
            assert!(heavy().now_or_never().is_none(), "waits, and is dropped");
        }
        drop(first);
        assert!(heavy().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_turn_waits_for_room_for_replies_like_the_last_ones() {
        let (admission, replies) = (Admission::new(2, 2), Memory::new(80));
        let heavy = || admission.begin(u64::MAX, &replies);
        let mut held = replies.hold();
        held.settle(30);
        drop(heavy().now_or_never().expect("nothing is known yet"));
        admission.ended(10);
        let first = heavy().now_or_never().expect("twice 30 and 20 fit").expect("begun");
        let mut second = pin!(heavy());
        assert!(poll!(&mut second).is_pending(), "twice 20 do not");
        held.settle(10);
        assert!(second.await.is_ok(), "little is held, whatever comes");
        drop(first);
        held.settle(41);
        for _ in 0..40 {
            assert!(heavy().now_or_never().is_none());
            admission.ended(0);
        }
        held.settle(40);
        assert!(heavy().now_or_never().is_some(), "forgotten");
    }
}
