//! The approximate index of one sealed segment, and how any run of rows is searched.
//!
//! - `ask.rs` what a caller asks of one run: query, k, mode, filter, dead rows, vectors
//! - `meta.rs` the small record of an index: sizes, chosen way, measured recall
//! - `index.rs` a sealed index opened over its sections; the sections' byte tables
//! - `members.rs` which rows share which vector
//! - `layout.rs` the graph on disk
//! - `search.rs` the façade: which way to take, `search_segment`
//! - `tail.rs` rows that are not sealed yet: `TailChunk`, `search_tail`
//! - `walk.rs` a beam over the graph · `sketch.rs` the 1-bit and 4-bit scans
//! - `scan.rs` scores to exact answers
//! - `nearest.rs` the best k
//! - `scratch.rs` memory that searches use one after the other
//! - `seal.rs` vectors in, index out · `measure.rs` how to search it
//! - `build.rs` our builder · `hnsw_crate.rs` the hnsw_rs crate as one · `reach.rs` repairs

pub mod ask;
pub mod build;
pub mod hnsw_crate;
pub mod index;
pub mod layout;
mod measure;
pub mod members;
pub mod meta;
pub mod nearest;
mod reach;
mod scan;
pub mod scratch;
pub mod seal;
pub mod search;
mod sketch;
pub mod tail;
mod walk;

pub use ask::{RowFilter, RowSet, RowTest, RunAsk, VectorRow, VectorSource};
pub use index::{IndexDamage, IndexSections, Section, SegmentIndex};
pub use meta::{IndexMeta, Way};
pub use scratch::Scratch;
pub use seal::{SealInput, Sealed, seal};
pub use search::search_segment;
pub use tail::{TailChunk, search_tail};
