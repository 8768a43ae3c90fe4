//! The approximate index of one sealed segment, and how any run of rows is searched.
//!
//! - `ask.rs` what a caller asks of one run: query, k, mode, filter, dead rows, vectors
//! - `meta.rs` the small record of an index: sizes, chosen way, measured recall
//! - `index.rs` a sealed index opened over its sections; the sections' byte tables
//! - `members.rs` which rows share which vector
//! - `search.rs` the façade: which way to take, `search_segment`
//! - `tail.rs` rows that are not sealed yet: `TailChunk`, `search_tail`
//! - `nearest.rs` the best k by exact distance
//! - `seal.rs` vectors in, index out

pub mod ask;
pub mod index;
pub mod members;
pub mod meta;
pub mod nearest;
pub mod seal;
pub mod search;
pub mod tail;

pub use ask::{RowFilter, RowSet, RunAsk, VectorRow, VectorSource};
pub use index::{IndexDamage, IndexSections, Section, SegmentIndex};
pub use meta::{IndexMeta, Way};
pub use seal::{SealInput, Sealed, seal};
pub use search::{Scratch, search_segment};
pub use tail::{TailChunk, search_tail};
