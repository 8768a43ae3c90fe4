//! How do replicas agree on an order? The shared log, the raft groups over it, and what they ask
//! of a state machine.

pub mod command;
pub mod config;
pub mod error;
pub mod machine;
pub mod session;

pub use command::{ClientSequence, Command, LogPosition, Outcome};
pub use config::RaftConfig;
pub use error::{LogError, RaftError};
pub use machine::{Checkpoint, Entry, Halt, Machine};
pub use session::{Check, SessionLimits, Sessions};
