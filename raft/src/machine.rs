//! What the raft crate asks of a state machine: trait `Machine`, implemented by the node.
//!
//! A machine is synchronous. The log calls `apply` in log order, one call at a time, off the async
//! threads when the batch is large. Nothing a machine does in `apply` needs to reach the disk: the
//! log keeps every entry above the machine's durable point (`checkpoint`) and replays it.

use crate::command::{Command, LogPosition};
use bytes::Bytes;

/// A state of a machine: everything up to and including one log position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Last entry that the state holds; `LogPosition::NONE` for a new machine.
    pub at: LogPosition,
    /// The group's members as of `at`: the bytes of the last `Entry::Membership` applied, or
    /// empty when there was none. The machine keeps them without understanding them.
    pub membership: Bytes,
}

/// What an entry asks of the machine.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// Nothing: a new leader's first entry. The machine still advances to its position.
    Blank,
    /// The group has these members from now on: bytes to keep for `Checkpoint::membership`.
    Membership(&'a Bytes),
    /// A caller's command.
    Command(&'a Command),
}

/// The machine can not go on; its group stops serving and reports this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the state machine halted: {0}")]
pub struct Halt(pub String);

/// A replicated state machine: equal entries in equal order give equal states and replies.
pub trait Machine: Send + Sync + 'static {
    /// Applies the entry at `at` and returns the reply for the caller who proposed it. The entry
    /// directly follows the last one applied. Must not depend on clock, chance or other groups.
    /// Refusals are replies; `Halt` only when the machine itself is broken.
    fn apply(&self, at: LogPosition, entry: Entry<'_>) -> Result<Bytes, Halt>;

    /// Whether applying `command` may take longer than its size says, so that it belongs off the
    /// async threads. Asked of every command: must cost next to nothing.
    fn is_long(&self, _command: &Command) -> bool {
        false
    }

    /// Whether its commands are few and small, so that all of them may use what a full disk leaves
    /// to votes: one that gives space back (`Group::propose_freeing`) must not wait behind others
    /// of its group that wait for that space.
    fn uses_reserve(&self) -> bool {
        false
    }

    /// What the machine holds when its group starts; entries above it are applied again.
    fn recovered(&self) -> Checkpoint;

    /// The durable point: what the machine would recover to after losing its power now. The log
    /// up to here may go. `None` while there is none.
    fn checkpoint(&self) -> Option<Checkpoint>;
}
