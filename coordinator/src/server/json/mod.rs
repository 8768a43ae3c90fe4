//! Reading a JSON body once, straight into typed values, with the place of every fault.
//!
//! `cursor.rs` shapes · `scalar.rs` numbers and strings · `refusal.rs` what is wrong, and where
//! · `room.rs` what it takes.
//!
//! Nothing is copied but strings with escapes; numbers are read from their text, so integers up to
//! 2^64 - 1 are exact. A body that passes here is JSON to every strict parser: no lone surrogate,
//! no number beyond f64, at most `DEPTH_MAX` levels.

mod cursor;
mod refusal;
mod room;
mod scalar;

pub use cursor::{Cursor, DEPTH_MAX, Kind, read, read_ids, read_within};
pub use refusal::{Read, Refusal, nearest};
pub use room::Room;
