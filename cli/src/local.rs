//! Node and coordinator in one process: the coordinator's calls go to the node as plain calls.

use hopbine_coordinator::Engine;
use hopbine_coordinator::client::{Catalogue, GraphPatch, Reply, Shards};
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_node::{Node, NodeConfig, NodeError};
use hopbine_proto::call::{
    CountReply, EntityReply, FetchReply, FetchRequest, HopReply, HopRequest, ReadContext,
    ScanReply, ScanRequest, SeedReply, SeedRequest, ShardStats, WriteBatch, WriteContext,
    WriteReply,
};
use hopbine_proto::filter::Filter;
use hopbine_proto::graph::{GraphConfig, GraphInfo};
use hopbine_proto::status::Problem;
use hopbine_proto::{EntityId, GraphId, KeyRange, RequestId};
use std::path::Path;
use std::sync::Arc;

/// The shards and the catalogue of the node in this process.
#[derive(Clone)]
pub struct Local(pub Arc<Node>);

/// Opens a data folder and puts an engine over it.
pub async fn open(dir: &Path, config: &NodeConfig) -> Result<(Local, Engine), NodeError> {
    let local = Local(Node::open(dir, config.clone()).await?);
    let clock = local.0.clock();
    let (shards, catalogue) = (Arc::new(local.clone()), Arc::new(local.clone()));
    let settings =
        CoordinatorConfig { slow_query_ms: config.slow_query_ms, ..CoordinatorConfig::default() };
    let engine = Engine::new(shards, catalogue, clock, settings);
    Ok((local, engine))
}

impl Shards for Local {
    fn seeds(&self, at: ReadContext, ask: Arc<SeedRequest>) -> Reply<'_, SeedReply> {
        Box::pin(self.0.seeds(at, ask))
    }

    fn hop(&self, at: ReadContext, ask: HopRequest) -> Reply<'_, HopReply> {
        Box::pin(self.0.hop(at, ask))
    }

    fn fetch(&self, at: ReadContext, ask: FetchRequest) -> Reply<'_, FetchReply> {
        Box::pin(self.0.fetch(at, ask))
    }

    fn scan(&self, at: ReadContext, ask: ScanRequest) -> Reply<'_, ScanReply> {
        Box::pin(self.0.scan(at, ask))
    }

    fn count(
        &self,
        at: ReadContext,
        range: KeyRange,
        filter: Option<Arc<Filter>>,
    ) -> Reply<'_, CountReply> {
        Box::pin(self.0.count(at, range, filter))
    }

    fn entity(&self, at: ReadContext, entity: EntityId) -> Reply<'_, EntityReply> {
        Box::pin(self.0.entity(at, entity))
    }

    fn stats(&self, at: ReadContext) -> Reply<'_, ShardStats> {
        Box::pin(self.0.stats(at))
    }

    fn write(&self, at: WriteContext, batch: WriteBatch) -> Reply<'_, WriteReply> {
        Box::pin(self.0.write(at, batch))
    }

    fn release(&self, request: RequestId) {
        self.0.release(request);
    }
}

impl Catalogue for Local {
    fn cluster_id(&self) -> u64 {
        self.0.cluster_id()
    }

    fn graphs(&self) -> Vec<Arc<GraphInfo>> {
        self.0.graphs()
    }

    fn graph(&self, name: &str) -> Option<Arc<GraphInfo>> {
        self.0.graph(name)
    }

    fn create(
        &self,
        name: String,
        config: GraphConfig,
    ) -> Reply<'_, (Arc<GraphInfo>, bool), Problem> {
        Box::pin(self.0.create(name, config))
    }

    fn patch(
        &self,
        name: String,
        version: u64,
        patch: GraphPatch,
    ) -> Reply<'_, Arc<GraphInfo>, Problem> {
        Box::pin(self.0.patch(name, version, patch))
    }

    fn drop_graph(&self, name: String) -> Reply<'_, (), Problem> {
        Box::pin(self.0.drop_graph(name))
    }

    fn register_relations(
        &self,
        graph: GraphId,
        names: Vec<String>,
    ) -> Reply<'_, Arc<GraphInfo>, Problem> {
        Box::pin(self.0.register_relations(graph, names))
    }
}
