//! How do replicas agree on an order? The shared log, the raft groups over it, and what they ask
//! of a state machine.
//!
//! `Groups::open` opens the log; `Groups::start_group` runs one replica of one group over a
//! `Machine`; `Group::propose` and `Group::read_barrier` are what a node serves with.

pub mod client;
pub mod command;
pub mod config;
pub mod driver;
pub mod error;
pub mod log;
pub mod machine;
pub mod session;

pub use client::{NoPeers, Peer, Peers};
pub use command::{ClientSequence, Command, LogPosition, Outcome};
pub use config::RaftConfig;
pub use driver::{Founding, Group, Groups, Reply, World, commands_of};
pub use error::{LogError, RaftError};
pub use log::{LogReport, LogStats, check_log};
pub use machine::{Checkpoint, Entry, Halt, Machine};
pub use session::{Check, SessionLimits, Sessions};
