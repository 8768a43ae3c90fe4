//! The memory of replies and that of requests: one bound each on the bytes of all those that a
//! process holds.
//!
//! A reply holds its bytes from the first row that comes in until its last byte is sent or it is
//! given up, a request those that it takes once it is read, until it is answered: a [`Held`] grows
//! with it, and gives everything back when it is dropped.

use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// When a request that found no room should come back, milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// A reply of at most one in so many of all bytes always finds room: of 1 GiB these are 64 KiB, and
/// as many of them as requests are served at once add little.
const SMALL_SHARE: usize = 16 * 1024;
/// The same for a request: of 2 GiB this is 1 MiB, which 64 KiB of text do not exceed unless they
/// are made to. As many as are served at once add an eighth to the bound.
const SMALL_REQUEST_SHARE: usize = 2 * 1024;

/// What [`Held::cover`] takes at least.
const PIECE: usize = 64 * 1024;

/// How many bytes replies, or requests, may hold together, and how many they do.
#[derive(Debug)]
pub struct Memory {
    /// Whose.
    name: &'static str,
    bytes_max: usize,
    /// Who has no more than this is never refused.
    small: usize,
    held: AtomicUsize,
}

/// The memory of replies.
pub type ReplyMemory = Memory;

impl Memory {
    /// Room for replies of at most `bytes_max` bytes together.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        let (name, small) = ("replies", bytes_max / SMALL_SHARE);
        Arc::new(Self { name, bytes_max, small, held: AtomicUsize::new(0) })
    }

    /// Room for requests that take at most `bytes_max` bytes together once they are read.
    pub fn of_requests(bytes_max: usize) -> Arc<Self> {
        let (name, small) = ("requests", bytes_max / SMALL_REQUEST_SHARE);
        Arc::new(Self { name, bytes_max, small, held: AtomicUsize::new(0) })
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Bytes that may be held.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The part of a new one, which has no bytes yet.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held { memory: self.clone(), bytes: 0 }
    }
}

/// What one reply or request holds; given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    memory: Arc<Memory>,
    bytes: usize,
}

/// What a reply holds is no part of what it says.
impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Held {
    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more; `memory_limit` when others have them, and then nothing is taken.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let most = self.memory.bytes_max;
        // A small one is not refused for what large ones hold, nor who takes nothing.
        let small = self.bytes.saturating_add(bytes) <= self.memory.small;
        let room =
            |held: usize| held.checked_add(bytes).filter(|all| bytes == 0 || small || *all <= most);
        if self.memory.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_err() {
            let name = self.memory.name;
            let detail = format!("the {name} under way would take more than {most} bytes");
            return Err(Problem::new(Code::MemoryLimit, detail)
                .retry_after_ms(RETRY_AFTER_MS)
                .hint("come back a little later, or ask for less at once"));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Holds at least `bytes` in all from now on; `memory_limit` when there is no room for them.
    /// Takes a piece at a time where it can, so that a count which grows in small steps is cheap.
    #[inline]
    pub fn cover(&mut self, bytes: usize) -> Result<(), Problem> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let more = bytes - self.bytes;
        self.grow(more.max(PIECE)).or_else(|_| self.grow(more))
    }

    /// Holds `bytes` in all from now on; `memory_limit` when that is more than there is room for.
    pub fn fit(&mut self, bytes: usize) -> Result<(), Problem> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.settle(bytes);
                Ok(())
            }
        }
    }

    /// The same for bytes that are there already, whether or not there was room for them.
    pub fn settle(&mut self, bytes: usize) {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.memory.held.fetch_add(more, Ordering::SeqCst),
            None => self.memory.held.fetch_sub(self.bytes - bytes, Ordering::SeqCst),
        };
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_reply_finds_room_beside_large_ones() {
        let memory = ReplyMemory::new(10 * SMALL_SHARE);
        let (mut large, mut small) = (memory.hold(), memory.hold());
        large.grow(10 * SMALL_SHARE).expect("all of it");
        small.grow(4).expect("small");
        small.grow(6).expect("still small");
        assert!(small.grow(1).is_err(), "small no more");
        assert_eq!((small.bytes(), memory.bytes()), (10, 10 * SMALL_SHARE + 10));
    }

    #[test]
    fn a_count_that_grows_in_steps_takes_pieces_until_the_last_bytes() {
        let memory = Memory::of_requests(PIECE + 2);
        let mut held = memory.hold();
        held.cover(1).expect("a piece");
        held.cover(PIECE).expect("the same piece");
        assert_eq!(memory.bytes(), PIECE);
        held.cover(PIECE + 1).expect("a byte where no piece is left");
        held.cover(PIECE + 2).expect("the last byte");
        let refused = held.cover(PIECE + 3).expect_err("one too many");
        assert_eq!(refused.code, Code::MemoryLimit);
        assert_eq!(refused.detail, "the requests under way would take more than 65538 bytes");
        held.settle(7);
        assert_eq!(memory.bytes(), 7);
    }

    #[test]
    fn all_replies_share_one_bound_and_give_back_what_they_held() {
        let memory = ReplyMemory::new(100);
        let (mut one, mut other) = (memory.hold(), memory.hold());
        one.grow(60).expect("room for sixty");
        other.grow(40).expect("room for forty");
        let refused = other.grow(1).expect_err("one too many");
        assert_eq!(refused.code, Code::MemoryLimit);
        assert!(refused.code.retryable() && refused.retry_after_ms.is_some());
        assert_eq!((memory.bytes(), other.bytes()), (100, 40), "nothing of it was taken");
        one.fit(10).expect("less than before");
        other.fit(90).expect("what the other gave back");
        assert!(other.fit(91).is_err());
        one.settle(30);
        assert_eq!(memory.bytes(), 120, "what is there counts");
        one.grow(0).expect("takes nothing");
        drop(other);
        assert_eq!(memory.bytes(), 30);
        drop(one);
        assert_eq!(memory.bytes(), 0);
    }
}
