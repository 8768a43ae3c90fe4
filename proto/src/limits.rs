//! Every bound, with its unit and its reason.

use std::time::Duration;

/// Components of an embedding. 4,096 covers today's text models; a row stays within 16 KiB.
pub const DIM_MAX: usize = 4_096;
/// Bytes of one payload's JSON text by default: a paragraph, not a document.
pub const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of an entity or relation name: long enough for a title or a URL.
pub const NAME_BYTES_MAX: usize = 4 * 1024;
/// Bytes of one write request: what is validated and proposed as a whole.
pub const WRITE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of one raft entry; larger shard batches are refused, since an entry is held in memory
/// by the log, the pipeline and the apply step at once.
pub const ENTRY_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Bytes of a request body that is not a write: a batch of questions with their vectors.
pub const QUERY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of payloads, vectors and names in one reply, as text. Larger answers are refused, as a few
/// bytes of request could ask for gigabytes.
pub const REPLY_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Bytes of all replies that a process collects, writes down or sends. The largest reply takes its
/// bytes twice while it is written down, so that four of them fit.
pub const REPLIES_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Bytes after which a page of a scan ends before it has its number of facts: a shard sends no more
/// rows, and no further shard is asked.
pub const PAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// `top_k` and `ann_k`: above it a reply is an export, and `scan` is the call for that.
pub const TOP_K_MAX: u32 = 10_000;
/// Hops of one question. Real questions end at three; each hop is a network round.
pub const HOPS_MAX: usize = 16;
/// Entities given as starting points of one request.
pub const FROM_MAX: usize = 100_000;
/// Distinct targets kept as the next frontier when a request does not say.
pub const BEAM_DEFAULT: u32 = 4_096;
/// Largest `beam`: at 64 bytes an entry times the starts kept, under 64 MiB a query.
pub const BEAM_MAX: u32 = 100_000;
/// Facts kept per frontier entity when a request does not say.
pub const LIMIT_PER_ENTITY_DEFAULT: u32 = 10_000;
/// Facts read per hop when a request does not say.
pub const LIMIT_ROWS_DEFAULT: u64 = 1_000_000;
/// Largest `limit_rows`.
pub const LIMIT_ROWS_MAX: u64 = 100_000_000;
/// `ef_search` when forced: at 16 bytes a candidate, 1 MiB.
pub const EF_MAX: u32 = 65_536;
/// Facts of one `scan` page.
pub const PAGE_SIZE_MAX: u32 = 10_000;
/// Facts of one `scan` page when a request does not say.
pub const PAGE_SIZE_DEFAULT: u32 = 1_000;
/// Requests in one `graph_rag/batch`.
pub const BATCH_REQUESTS_MAX: usize = 256;
/// Keys of one `facts/get` or `facts/delete`.
pub const KEYS_MAX: usize = 100_000;
/// Conditions in one filter, nested ones included: evaluated for every row read.
pub const FILTER_CONDITIONS_MAX: usize = 256;
/// Values that the `match` lists and the ranges of one filter name together: each row read is
/// compared with them one after another, some ten microseconds at this bound.
pub const FILTER_VALUES_MAX: usize = 10_000;
/// Depth of nested filters.
pub const FILTER_DEPTH_MAX: usize = 8;
/// Shards of one graph in one process.
pub const SHARDS_PER_GRAPH_MAX: u32 = 256;
/// Relation names of one graph: the catalogue holds them in memory.
pub const RELATIONS_MAX: usize = 65_536;
/// Graphs of one cluster: the catalogue holds them in memory.
pub const GRAPHS_MAX: usize = 1_024;
/// Views pinned per shard at once; each keeps superseded files and rows alive.
pub const PINNED_VIEWS_MAX: usize = 1_024;
/// Longest `timeout` a request may ask for.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(600);
/// `timeout` when a request does not say.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
/// `max_staleness` when a bounded read does not say.
pub const MAX_STALENESS_DEFAULT: Duration = Duration::from_secs(5);
/// Memtable bytes after which it is frozen and flushed.
pub const MEMTABLE_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Largest size of a weight: with distances below 1e81 no sum over eight hops overflows.
pub const WEIGHT_MAX: f64 = 1e100;
/// Memory of one merge of segments: 1.2 million rows at 384 components and 24 links.
pub const MERGE_MEMORY_DEFAULT: u64 = 1 << 30;
/// Frozen memtables waiting for their flush; beyond it writers get `overloaded`.
pub const FROZEN_MEMTABLES_MAX: usize = 2;
/// A fact block of a segment, so that "blocks read" means something.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a reply that is kept whole for a retry; of a longer one the counts are. With
/// `SESSIONS_MAX` callers these tables stay below 6 MiB, which every manifest holds.
pub const SESSION_REPLY_BYTES_MAX: usize = 512;
/// Idempotency keys and client sessions remembered per shard.
pub const SESSIONS_MAX: usize = 10_000;
/// Age after which an idempotency key is forgotten, in leader-stamped log time.
pub const SESSION_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Bytes of an `Idempotency-Key` header.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Bytes of each text of a problem: names and values of a request are repeated in it, and may be as
/// long as the request.
pub const PROBLEM_TEXT_BYTES_MAX: usize = 4 * 1024;
/// Slow queries remembered by one process, newest first.
pub const SLOW_QUERIES_MAX: usize = 256;
/// Bytes of all of them: as many with the longest names and the most hops would take more.
pub const SLOW_QUERIES_BYTES_MAX: usize = 256 * 1024;
/// Milliseconds from which a query is remembered as slow when the settings do not say.
pub const SLOW_QUERY_MS_DEFAULT: u64 = 500;
/// Bytes of a `query.text`.
pub const QUERY_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Where no counter of ours gets to: at one a nanosecond it takes three centuries. A file that
/// claims more was not written by us, and counting on from there would overflow.
pub const COUNTER_MAX: u64 = 1 << 63;
