//! `hopbine import jsonl`: a file of facts, one JSON object a line, streamed in batches.
//!
//! - `batches.rs` cuts the stream: by rows, by bytes, and before a key that the batch has already
//! - `destination.rs` the graph to load into, made when the flags say how
//! - `agreement.rs` whether a graph that is there is as the command line says
//! - `place.rs` where in a line a fault lies · `fault.rs` a refusal by line and column
//! - `embed.rs` the vector of a line's own words
//! - `settling.rs` when a graph counts as indexed
//! - `whole.rs` up to which line everything is loaded
//! - `driver.rs` sends several batches at once, repeats safely, says what was loaded

mod agreement;
mod batches;
mod destination;
mod driver;
pub mod embed;
mod fault;
mod place;
mod settling;
mod whole;

pub use driver::{Import, run};
