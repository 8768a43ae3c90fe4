//! One retrieval, from seeds to answer.
//!
//! - `plan.rs` a checked request
//! - `machine.rs` the state machine: an event in, actions out
//! - `merge.rs` merging the shards' answers
//! - `trail.rs` the ways walked so far and the path behind a result
//! - `account.rs` what was asked, read, kept and cut
//! - `answer.rs` what must be fetched for the user, and its assembly
//! - `trace.rs` each shard's answers, for a retrieval that explains itself
//! - `driver.rs` sends, waits and times

mod account;
pub mod answer;
mod driver;
pub mod machine;
pub mod merge;
pub mod plan;
pub mod trace;
mod trail;

pub(crate) use driver::run;
pub use machine::{Action, Answer, Event, Retrieval, Stage, Task};
pub use plan::{Hop, Output, Plan, Starts};
