//! The coordinator's only view of the world: the traits `Shards` and `Catalogue`.
//!
//! Replicas in the same process and replicas behind a network implement them alike. Every call
//! carries its own deadline; a dropped future means that nobody waits for the answer any more.

use hopbine_proto::call::{
    CountReply, EntityReply, FetchReply, FetchRequest, HopReply, HopRequest, ReadContext,
    ScanReply, ScanRequest, SeedReply, SeedRequest, ShardStats, WriteBatch, WriteContext,
    WriteReply,
};
use hopbine_proto::filter::Filter;
use hopbine_proto::graph::{GraphConfig, GraphInfo};
use hopbine_proto::status::{CallError, Problem};
use hopbine_proto::{EntityId, GraphId, KeyRange, RequestId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use hopbine_proto::graph::GraphPatch;

/// A pending answer.
pub type Reply<'a, T, E = CallError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// The shards of every graph, wherever they live. Reads of one request share one view per shard.
pub trait Shards: Send + Sync {
    /// The facts nearest to a vector.
    fn seeds(&self, at: ReadContext, ask: Arc<SeedRequest>) -> Reply<'_, SeedReply>;
    /// One hop from the frontier entities that this shard owns.
    fn hop(&self, at: ReadContext, ask: HopRequest) -> Reply<'_, HopReply>;
    /// Facts by key.
    fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Reply<'_, FetchReply>;
    /// Facts of a range in key order.
    fn scan(&self, at: ReadContext, ask: ScanRequest) -> Reply<'_, ScanReply>;
    /// Number of live facts of a range that pass.
    fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Reply<'_, CountReply>;
    /// Name and degrees of one entity.
    fn entity(&self, at: ReadContext, entity: EntityId) -> Reply<'_, EntityReply>;
    /// Sizes and state of a shard.
    fn stats(&self, at: ReadContext) -> Reply<'_, ShardStats>;
    /// Applies a batch at one log index, or not at all.
    fn write(&self, at: WriteContext, batch: WriteBatch) -> Reply<'_, WriteReply>;
    /// Lets go of the views that `request` pinned. Cheap; never waits.
    fn release(&self, request: RequestId);
}

/// Graphs, relation names and the shard map, held by version.
pub trait Catalogue: Send + Sync {
    /// Identity of the cluster, part of every consistency token.
    fn cluster_id(&self) -> u64;
    /// All graphs by name.
    fn graphs(&self) -> Vec<Arc<GraphInfo>>;
    /// One graph as last seen.
    fn graph(&self, name: &str) -> Option<Arc<GraphInfo>>;
    /// Creates a graph. `true`: created; `false`: it was there with the same configuration.
    fn create(
        &self,
        name: String,
        config: GraphConfig,
    ) -> Reply<'_, (Arc<GraphInfo>, bool), Problem>;
    /// Changes a graph that is at `version`; `precondition_failed` at another.
    fn patch(
        &self,
        name: String,
        version: u64,
        patch: GraphPatch,
    ) -> Reply<'_, Arc<GraphInfo>, Problem>;
    /// Drops a graph and its facts.
    fn drop_graph(&self, name: String) -> Reply<'_, (), Problem>;
    /// Gives each name an id (its hash); known names are fine; `name_collision` when two names
    /// share one. Returns the graph that knows them all.
    fn register_relations(
        &self,
        graph: GraphId,
        names: Vec<String>,
    ) -> Reply<'_, Arc<GraphInfo>, Problem>;
}
