//! What a body takes once it is read: counted value by value, and refused before it is too much.
//!
//! A byte of text may come to thirty times as much and more: `0,` in a list becomes a tree's node,
//! `"a",` an allocation with its counters. So each shape takes room for what it makes before it
//! makes the next, for the forms too that the engine turns it into later. What is counted is within
//! a factor of one and a half of what is allocated at the worst moment of a request, besides what
//! is gone when a call returns and the list that is growing at the moment, which is up to twice as
//! long as it will be.

use super::refusal::Read;
use crate::memory::Held;

/// The bytes that one request takes among those of all. The default one has no bound.
#[derive(Debug, Default)]
pub struct Room {
    held: Option<Held>,
    bytes: usize,
}

impl Room {
    /// Room for a request that holds `held`.
    pub fn new(held: Held) -> Self {
        Self { held: Some(held), bytes: 0 }
    }

    /// Takes `bytes` for a value; `memory_limit` when others have them.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Read<()> {
        self.bytes += bytes;
        if let Some(held) = &mut self.held {
            held.cover(self.bytes)?;
        }
        Ok(())
    }

    /// Gives back what was taken ahead of the values.
    pub fn settle(&mut self) {
        if let Some(held) = &mut self.held {
            held.settle(self.bytes);
        }
    }
}
