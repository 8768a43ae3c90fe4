//! Create, list, patch and drop graphs.

use super::Engine;
use crate::check;
use crate::client::GraphPatch;
use hopbine_proto::graph::{GraphConfig, GraphInfo};
use hopbine_proto::status::Problem;
use std::sync::Arc;

impl Engine {
    /// Creates a graph. `true`: created; `false`: it was there with the same configuration;
    /// `graph_exists` when it was there with another.
    pub async fn create_graph(
        &self,
        name: &str,
        config: GraphConfig,
    ) -> Result<(Arc<GraphInfo>, bool), Problem> {
        check::graph::name(name)?;
        check::graph::config(&config)?;
        self.parts.catalogue.create(name.to_owned(), config).await
    }

    /// All graphs, by name.
    pub fn graphs(&self) -> Vec<Arc<GraphInfo>> {
        let mut graphs = self.parts.catalogue.graphs();
        graphs.sort_by(|a, b| a.name.cmp(&b.name));
        graphs
    }

    /// Changes a graph that is at `version`; `precondition_failed` at another.
    pub async fn patch_graph(
        &self,
        name: &str,
        version: u64,
        patch: GraphPatch,
    ) -> Result<Arc<GraphInfo>, Problem> {
        self.graph(name)?;
        check::graph::patch(&patch)?;
        self.parts.catalogue.patch(name.to_owned(), version, patch).await
    }

    /// Drops a graph and its facts.
    pub async fn drop_graph(&self, name: &str) -> Result<(), Problem> {
        self.graph(name)?;
        self.parts.catalogue.drop_graph(name.to_owned()).await
    }
}
