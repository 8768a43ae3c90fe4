//! The façade of one shard: writes in log order, views to read, freezing, and what is durable.
//! Opening, flushing and compaction are in `maintenance.rs`.
//!
//! Threads: one applies entries, any number reads views, one may flush and one may compact.
//! Locks are taken in the order `flushing` or `compacting`, `durable`, `writer`, `current`; none
//! of the last two is held while a file is read or written, except for point look-ups of a write.

use crate::apply::{self, Applied};
use crate::compaction::rows_within;
use crate::dead::DeadRows;
use crate::error::StoreError;
use crate::graph::Scratch;
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::run::Run;
use crate::state::State;
use crate::view::View;
use hopbine_proto::call::WriteOp;
use hopbine_proto::disk::Disk;
use hopbine_proto::graph::{GraphConfig, IdKind, IndexConfig};
use hopbine_proto::limits::{FROZEN_MEMTABLES_MAX, MEMTABLE_BYTES_DEFAULT, MERGE_MEMORY_DEFAULT};
use hopbine_proto::{EntityRange, Epoch, LogIndex, Metric, SegmentId, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What a shard is configured to be. Plain values; the range and epoch of an existing folder come
/// from its manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardConfig {
    /// Which shard.
    pub shard: ShardId,
    /// Entities owned when the folder is created.
    pub range: EntityRange,
    /// Version of that ownership.
    pub epoch: Epoch,
    /// Components of every embedding: 1 to 4,096.
    pub dim: u32,
    /// Distance.
    pub metric: Metric,
    /// Whether a fact without embedding is refused.
    pub vector_required: bool,
    /// Names or numbers.
    pub ids: IdKind,
    /// How the graph of a segment is built and searched.
    pub index: IndexConfig,
    /// Memtable bytes after which it should be frozen.
    pub memtable_bytes_max: usize,
    /// Memory that a merge of segments may take; at least 16,384 rows are merged whatever it is.
    pub merge_memory_max: u64,
}

impl ShardConfig {
    /// The shard of a graph that owns `range` at its first epoch, with default bounds.
    pub fn of_graph(shard: ShardId, range: EntityRange, epoch: Epoch, graph: &GraphConfig) -> Self {
        Self {
            shard,
            range,
            epoch,
            dim: graph.vector.dim,
            metric: graph.vector.metric,
            vector_required: graph.vector.required,
            ids: graph.ids,
            index: graph.index.clone(),
            memtable_bytes_max: MEMTABLE_BYTES_DEFAULT,
            merge_memory_max: MERGE_MEMORY_DEFAULT,
        }
    }
}

/// What a restart finds: everything up to `index` is in the segments, and nothing after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durable {
    /// Raft term of the last entry held.
    pub term: u64,
    /// Index of the last entry held; replay starts above it.
    pub index: LogIndex,
    /// As given to [`Shard::freeze`] at that entry; empty in a new folder.
    pub membership: Vec<u8>,
    /// As given to [`Shard::freeze`] at that entry; empty in a new folder.
    pub sessions: Vec<u8>,
    /// Entities owned.
    pub range: EntityRange,
    /// Version of that ownership.
    pub epoch: Epoch,
}

/// Whether writers may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// There is room.
    Ok,
    /// The memtable is full and the frozen ones wait for their flush: refuse new proposals with
    /// `overloaded`. Entries that are already in the log must still be applied.
    Full,
}

/// What all views of a shard read with.
pub(crate) struct Reading {
    pub config: ShardConfig,
    /// Search memory that no thread uses at the moment.
    scratch: Mutex<Vec<Scratch>>,
}

impl Reading {
    /// Memory for one search; `give_scratch` takes it back.
    pub fn take_scratch(&self) -> Scratch {
        lock(&self.scratch).pop().unwrap_or_default()
    }

    /// Keeps search memory for the next search.
    pub fn give_scratch(&self, scratch: Scratch) {
        lock(&self.scratch).push(scratch);
    }
}

/// One shard's data. Shared by `Arc` between the thread that applies, readers and maintenance.
pub struct Shard {
    pub(crate) reading: Arc<Reading>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    current: RwLock<Arc<State>>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) durable: Mutex<DurableState>,
    /// How segments are sealed from now on.
    index: Mutex<IndexConfig>,
    pub(crate) next_segment: AtomicU64,
    pub(crate) flushing: Mutex<()>,
    pub(crate) compacting: Mutex<()>,
    pub(crate) stopped: AtomicBool,
}

/// What only the writing thread and a finishing flush touch.
pub(crate) struct Writer {
    /// Waiting for their flush, oldest first.
    pub frozen: VecDeque<Frozen>,
    /// Last entry of the newest frozen memtable, or of the segments when nothing was frozen yet.
    pub frozen_index: LogIndex,
}

/// A frozen memtable and the moment at which it was frozen.
#[derive(Clone)]
pub(crate) struct Frozen {
    pub memtable: Arc<Memtable>,
    pub rows: u32,
    pub point: Durable,
}

/// The manifest on disk, and what follows from the segments that it names alone.
pub(crate) struct DurableState {
    pub manifest: Manifest,
    /// Per segment the rows that opening the folder would find dead.
    pub dead: BTreeMap<SegmentId, DeadRows>,
}

/// A panic of another thread leaves these values whole: each is replaced in one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    /// A shard over what its folder holds; `segments` newest first, as runs.
    pub(crate) fn assemble(
        config: ShardConfig,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        durable: DurableState,
        segments: Vec<Run>,
    ) -> Self {
        let manifest = &durable.manifest;
        let mut runs = vec![Run::empty_memtable(config.metric, config.dim)];
        runs.extend(segments);
        let state = State {
            term: manifest.applied_term,
            index: manifest.applied_index,
            range: manifest.range,
            epoch: manifest.epoch,
            runs,
        };
        Self {
            index: Mutex::new(config.index.clone()),
            reading: Arc::new(Reading { config, scratch: Mutex::default() }),
            disk,
            dir,
            current: RwLock::new(Arc::new(state)),
            writer: Mutex::new(Writer {
                frozen: VecDeque::new(),
                frozen_index: manifest.applied_index,
            }),
            next_segment: AtomicU64::new(manifest.next_segment.0),
            durable: Mutex::new(durable),
            flushing: Mutex::default(),
            compacting: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Live rows of a merged segment at most.
    pub(crate) fn merge_rows_max(&self) -> u64 {
        let config = self.config();
        rows_within(config.merge_memory_max, config.dim, self.index().m)
    }

    /// What the shard is configured to be.
    pub fn config(&self) -> &ShardConfig {
        &self.reading.config
    }

    /// Settings of the index for segments sealed from now on.
    pub fn set_index(&self, index: IndexConfig) {
        *lock(&self.index) = index;
    }

    /// How segments are sealed from now on.
    pub fn index(&self) -> IndexConfig {
        lock(&self.index).clone()
    }

    /// What a restart would find.
    pub fn durable(&self) -> Durable {
        let durable = lock(&self.durable);
        let manifest = &durable.manifest;
        Durable {
            term: manifest.applied_term,
            index: manifest.applied_index,
            membership: manifest.membership.clone(),
            sessions: manifest.sessions.clone(),
            range: manifest.range,
            epoch: manifest.epoch,
        }
    }

    /// Term and index of the last applied entry.
    pub fn applied(&self) -> (u64, LogIndex) {
        let state = self.state();
        (state.term, state.index)
    }

    /// Applies the batch of one log entry, whole or not at all; visible to later views at once.
    /// Entries come in log order. Costs a point look-up per changed key. After an error the
    /// entry is not applied and the shard is as before.
    pub fn apply(
        &self,
        term: u64,
        index: LogIndex,
        ops: &[WriteOp],
    ) -> Result<Applied, StoreError> {
        let _writer = lock(&self.writer);
        let state = self.state();
        assert_follows(&state, index);
        match apply::plan(&self.reading.config, &state, index, ops)? {
            Err(problem) => {
                self.publish(state.after(term, index, 0, &[]));
                Ok(Applied::Refused(Box::new(problem)))
            }
            Ok(plan) => {
                let appended = plan.rows.len() as u32;
                let (rows, visible) = (state.active().len(), state.runs[State::ACTIVE].visible);
                assert_eq!(rows, visible, "an earlier batch was appended and not published");
                state.active().append(plan.rows);
                self.publish(state.after(term, index, appended, &plan.dying));
                Ok(Applied::Done(plan.reply))
            }
        }
    }

    /// Notes an entry without facts: a blank one, a change of membership.
    pub fn advance(&self, term: u64, index: LogIndex) {
        let _writer = lock(&self.writer);
        let state = self.state();
        assert_follows(&state, index);
        self.publish(state.after(term, index, 0, &[]));
    }

    /// Whether the memtable is full and may be frozen.
    pub fn should_freeze(&self) -> bool {
        let state = self.state();
        state.active().bytes() >= self.reading.config.memtable_bytes_max
            && state.frozen().count() < FROZEN_MEMTABLES_MAX
    }

    /// Ends the memtable at the last applied entry, so that it can be flushed; `membership` and
    /// `sessions` are kept in the manifest with it. Returns whether it did: not when nothing was
    /// applied since the last time, nor while as many as allowed wait for their flush.
    pub fn freeze(&self, membership: Vec<u8>, sessions: Vec<u8>) -> bool {
        let mut writer = lock(&self.writer);
        let state = self.state();
        if writer.frozen.len() >= FROZEN_MEMTABLES_MAX || writer.frozen_index == state.index {
            return false;
        }
        let (range, epoch) = (state.range, state.epoch);
        let point =
            Durable { term: state.term, index: state.index, membership, sessions, range, epoch };
        let rows = state.runs[State::ACTIVE].visible;
        writer.frozen_index = state.index;
        writer.frozen.push_back(Frozen { memtable: state.active().clone(), rows, point });
        let mut next = State::clone(&state);
        let empty = Run::empty_memtable(self.reading.config.metric, self.reading.config.dim);
        next.runs.insert(State::ACTIVE, empty);
        self.publish(next);
        true
    }

    /// Whether writers may go on.
    pub fn write_pressure(&self) -> Pressure {
        let state = self.state();
        let full = state.active().bytes() >= self.reading.config.memtable_bytes_max;
        if full && state.frozen().count() >= FROZEN_MEMTABLES_MAX {
            Pressure::Full
        } else {
            Pressure::Ok
        }
    }

    /// Pins the state of the last applied entry. Cheap; holds superseded rows and files alive.
    pub fn view(&self) -> View {
        View::new(self.state(), self.reading.clone())
    }

    /// The current state.
    pub(crate) fn state(&self) -> Arc<State> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `state` the current one. The caller holds `writer`.
    pub(crate) fn publish(&self, state: State) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

/// The log must hand over its entries in order, each once.
fn assert_follows(state: &State, index: LogIndex) {
    assert!(index > state.index, "entry {index} applied after entry {}", state.index);
}
