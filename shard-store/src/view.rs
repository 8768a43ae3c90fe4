//! A view: one applied log index of one shard, pinned for as long as somebody reads it.
//!
//! Everything that a request reads comes from one view, so that scores, hops and payloads agree.
//! Reads are stopped by `stop`, which is asked about every thousand rows: they then fail with
//! [`StoreError::Stopped`].

use crate::error::StoreError;
use crate::expand;
use crate::known::Known;
use crate::read;
use crate::seeds;
use crate::shard::Reading;
use crate::state::State;
use hopbine_proto::call::{
    CountReply, EntityReply, FetchReply, FetchRequest, HopReply, HopRequest, ScanReply,
    ScanRequest, SeedReply, SeedRequest,
};
use hopbine_proto::filter::Filter;
use hopbine_proto::{EntityId, EntityRange, Epoch, KeyRange, LogIndex};
use std::sync::{Arc, OnceLock};

/// Whether a reader's caller has given up.
pub type Stop<'a> = &'a dyn Fn() -> bool;

/// One moment of a shard. Cheap to clone; holds superseded rows and files alive.
#[derive(Clone)]
pub struct View {
    state: Arc<State>,
    reading: Arc<Reading>,
    /// What the first search for seeds found out.
    known: Arc<OnceLock<Known>>,
}

impl View {
    pub(crate) fn new(state: Arc<State>, reading: Arc<Reading>) -> Self {
        Self { state, reading, known: Arc::default() }
    }

    /// The last log entry that the view holds.
    pub fn index(&self) -> LogIndex {
        self.state.index
    }

    /// Entities that the shard owned at that moment.
    pub fn range(&self) -> EntityRange {
        self.state.range
    }

    /// Version of that ownership.
    pub fn epoch(&self) -> Epoch {
        self.state.epoch
    }

    /// The facts nearest to a vector, at most `k` by `(distance, key)`.
    pub fn seeds(&self, request: &SeedRequest, stop: Stop<'_>) -> Result<SeedReply, StoreError> {
        seeds::seeds(&self.state, &self.reading, &self.known, request, stop)
    }

    /// One hop over frontier entities.
    pub fn hop(&self, request: &HopRequest, stop: Stop<'_>) -> Result<HopReply, StoreError> {
        expand::hop(&self.state, &self.reading.config, self.known.get(), request, stop)
    }

    /// Facts by key, in the order asked.
    pub fn fetch(&self, request: &FetchRequest, stop: Stop<'_>) -> Result<FetchReply, StoreError> {
        read::fetch(&self.state, &self.reading.config, request, stop)
    }

    /// Facts of a range in key order.
    pub fn scan(&self, request: &ScanRequest, stop: Stop<'_>) -> Result<ScanReply, StoreError> {
        read::scan(&self.state, request, stop)
    }

    /// How many live facts of `range` pass `filter`.
    pub fn count(
        &self,
        range: &KeyRange,
        filter: Option<&Filter>,
        stop: Stop<'_>,
    ) -> Result<CountReply, StoreError> {
        read::count(&self.state, range, filter, stop)
    }

    /// Name and degrees of one entity.
    pub fn entity(&self, entity: EntityId, stop: Stop<'_>) -> Result<EntityReply, StoreError> {
        read::entity(&self.state, entity, stop)
    }
}
