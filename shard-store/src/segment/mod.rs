//! A segment: one immutable, key-sorted run of facts with their vectors, payloads and index.
//!
//! | part           | bytes          | content                                                   |
//! |----------------|----------------|-----------------------------------------------------------|
//! | header         | 64             | magic `HBSEGMT\0` 8, version 4, dimension 4, metric 4,    |
//! |                |                | page bytes 4, rows a block 4, zero 32, crc32c of these 60 |
//! | vectors        | vectors x dim  | f32 each, as written, rows without a vector left out      |
//! |                | x 4            |                                                           |
//! | norms          | vectors x 8    | f64 of each vector                                        |
//! | fact blocks    | varies         | 512 facts each in key order, see `block.rs`               |
//! | zone map       | blocks x 96    | what each block can hold, see `zone.rs`                   |
//! | row flags      | rows x 3 bits  | tombstone, has vector, has payload, see `flags.rs`        |
//! | relation table | relations x 16 | relation, number of rows, see `relation.rs`               |
//! | relation rows  | rows x 4       | row numbers by relation, tombstones left out              |
//! | name ids,      | varies         | every name once, ordered by id; empty in a graph of       |
//! | lengths, bytes |                | numbers, see `names.rs`                                   |
//! | payload blocks | varies         | lz4 blocks of JSON texts, see `payload.rs`                |
//! | payload index  | blocks x 24    | where they are                                            |
//! | codes, terms,  | varies         | the approximate index, see `graph/index.rs`               |
//! | members, graph |                |                                                           |
//! | index record   | varies         | `IndexMeta` in postcard coding                            |
//! | section table  | sections x 24  | number 4, zero 4, offset 8, length 8, in order of place   |
//! | page checksums | pages x 4      | crc32c of every 32 KiB of all the above; last page shorter|
//! | footer         | 64             | magic `HBSEGND\0` 8, length of all paged bytes 8, numbers |
//! |                |                | of 4: sections, rows, vectors, tombstones, payloads, name |
//! |                |                | collisions; smallest and largest log index 8 each, zero 4,|
//! |                |                | crc32c of page checksums and these 60                     |
//!
//! Sections start at multiples of 64, padded with zeros, and all but the header's and footer's
//! neighbours are optional when empty. Integers are little-endian; keys in the zone map are
//! big-endian. Written once, synced, then named in the manifest. Nothing edits it afterwards.
//!
//! **Nothing unverified is served.** Opening checks header, footer, the page checksums against the
//! footer's, and the small sections (zone map, flags, relation table, payload index). Every other
//! page is checked once, when first touched; the index sections and the relation rows are checked
//! whole when first used. A scrub (`verify_all`) checks everything again, contents included.
//!
//! - `format.rs` header, section table, footer
//! - `pages.rs` the one rule of checksums
//! - `block.rs` fact blocks · `zone.rs` zone map · `flags.rs` bits per row
//! - `relation.rs` rows per relation · `names.rs` dictionary · `payload.rs` payload blocks
//! - `writer.rs` rows in key order in, file out · `file.rs` checksums while writing
//! - `reader.rs` a mapped file · `locate.rs` rows of keys and ranges
//! - `scrub.rs` everything checked

mod block;
mod file;
mod flags;
mod format;
mod locate;
mod names;
mod pages;
mod payload;
mod reader;
mod relation;
mod scrub;
mod writer;
mod zone;

pub use block::BLOCK_ROWS;
pub use format::{PAGE_BYTES, SEGMENT_VERSION};
pub use locate::Touched;
pub use reader::Segment;
pub use writer::{SegmentRow, SegmentWriter, VectorSpace};
pub use zone::Zone;
