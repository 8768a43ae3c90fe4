//! Graphs come, change and go: one entry in the catalogue's log, then the shards on this node.

use super::node::Node;
use crate::catalogue::{CatalogueCommand, CatalogueReply};
use crate::error::{MAKE_SPACE, NodeError};
use hopbine_proto::GraphId;
use hopbine_proto::graph::{GraphConfig, GraphInfo, GraphPatch};
use hopbine_proto::status::{Code, Problem};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, warn};

/// Bytes of names that are registered at once.
const REGISTER_BYTES_MAX: usize = 1 << 20;
/// Creating and dropping graphs moves files.
const SHAPING_DEADLINE: Duration = Duration::from_secs(30);

impl Node {
    /// All graphs by name.
    pub fn graphs(&self) -> Vec<Arc<GraphInfo>> {
        self.catalogue().graphs().cloned().collect()
    }

    /// One graph as last seen.
    pub fn graph(&self, name: &str) -> Option<Arc<GraphInfo>> {
        self.catalogue().graph(name).cloned()
    }

    /// Creates a graph. `true`: created; `false`: it was there with the same configuration.
    pub async fn create(
        self: &Arc<Self>,
        name: String,
        config: GraphConfig,
    ) -> Result<(Arc<GraphInfo>, bool), Problem> {
        self.refuse_when_stopping()?;
        if config.shards.replicas > 1 {
            let detail =
                format!("{} replicas need as many nodes, there is 1", config.shards.replicas);
            return Err(Problem::new(Code::InvalidRequest, detail)
                .at("/shards/replicas", "more replicas than nodes"));
        }
        if let Some(problem) = self.catalogue().too_many_shards(&name, &config) {
            return Err(problem);
        }
        let command = CatalogueCommand::Create { name, config, node: self.id };
        let node = self.clone();
        to_its_end(async move {
            let shaping = node.shaping.lock().await;
            let (graph, fresh) = match node.propose_meta(&command, node.shaping_deadline()).await? {
                CatalogueReply::Graph(graph, fresh) => (graph, fresh),
                other => return Err(unexpected(&other)),
            };
            let hosted = match fresh {
                true => node.host_new(&graph).await,
                false => node.host_rest(&graph).await,
            };
            let Err(failure) = hosted else { return Ok((graph, fresh)) };
            let gone = fresh && node.take_back(&graph).await;
            drop(shaping);
            if gone && let Err(error) = node.unhost_graph(&graph).await {
                warn!(%error, graph = %graph.name, "the next start removes what was made of it");
            }
            Err(node_problem(failure))
        })
        .await
    }

    /// Takes a graph out of the catalogue that the caller has put there, holding `shaping` since
    /// before: no other creation was told of it, and none of its shards was served. Returns whether
    /// this call took it out; else it is noted as one whose shards are made later.
    async fn take_back(&self, graph: &GraphInfo) -> bool {
        let command = CatalogueCommand::Drop { name: graph.name.clone() };
        let dropped = self.propose_meta(&command, self.shaping_deadline()).await;
        match dropped {
            Ok(CatalogueReply::Dropped(_)) => return true,
            // Another call has dropped it, and removes what is there of it.
            Err(problem) if problem.code == Code::GraphNotFound => {}
            dropped => {
                self.note_missing(graph);
                warn!(graph = %graph.name, ?dropped, "a graph is left whose shards are made later");
            }
        }
        false
    }

    /// Changes a graph that is at `version`.
    pub async fn patch(
        self: &Arc<Self>,
        name: String,
        version: u64,
        patch: GraphPatch,
    ) -> Result<Arc<GraphInfo>, Problem> {
        self.refuse_when_stopping()?;
        let command = CatalogueCommand::Patch { name, version, patch };
        let node = self.clone();
        to_its_end(async move {
            match node.propose_meta(&command, node.shaping_deadline()).await? {
                CatalogueReply::Graph(graph, _) => {
                    node.take_index_settings(graph.id);
                    Ok(graph)
                }
                other => Err(unexpected(&other)),
            }
        })
        .await
    }

    /// Drops a graph and its facts.
    pub async fn drop_graph(self: &Arc<Self>, name: String) -> Result<(), Problem> {
        self.refuse_when_stopping()?;
        let command = CatalogueCommand::Drop { name };
        let node = self.clone();
        to_its_end(async move {
            match node.propose_meta(&command, node.shaping_deadline()).await? {
                CatalogueReply::Dropped(graph) => {
                    let dropped = node.unhost_graph(&graph).await.map_err(node_problem);
                    node.host_missing().await;
                    dropped
                }
                other => Err(unexpected(&other)),
            }
        })
        .await
    }

    /// Segments sealed from now on follow the catalogue's newest settings for their graph.
    fn take_index_settings(&self, graph: GraphId) {
        let catalogue = self.catalogue();
        let Some(known) = catalogue.graphs().find(|known| known.id == graph) else { return };
        for hosted in self.all_hosted().iter().filter(|hosted| hosted.graph == graph) {
            hosted.shard.set_index(known.config.index.clone());
        }
    }

    /// Gives relation names their ids.
    pub async fn register_relations(
        &self,
        graph: GraphId,
        names: Vec<String>,
    ) -> Result<Arc<GraphInfo>, Problem> {
        self.refuse_when_stopping()?;
        // In small commands: a large one could stand in the log before a drop that makes room.
        let mut names = names.into_iter().peekable();
        loop {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while let Some(name) = names.next_if(|name| bytes + name.len() <= REGISTER_BYTES_MAX) {
                bytes += name.len();
                some.push(name);
            }
            let command = CatalogueCommand::Register { graph, names: some };
            match self.propose_meta(&command, self.shaping_deadline()).await? {
                CatalogueReply::Graph(graph, _) if names.peek().is_none() => return Ok(graph),
                CatalogueReply::Graph(..) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn shaping_deadline(&self) -> Duration {
        self.parts.clock.monotonic() + SHAPING_DEADLINE
    }
}

/// Runs `shaping` to its end though its caller goes away: catalogue and folders must not part.
async fn to_its_end<T: Send + 'static>(
    shaping: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(shaping).await {
        Ok(done) => done,
        Err(error) => {
            error!(%error, "shaping a graph broke off");
            let detail = "shaping the graph broke off; repeat the request";
            Err(Problem::new(Code::OutcomeUnknown, detail))
        }
    }
}

fn node_problem(error: NodeError) -> Problem {
    error!(%error, "a graph could not be shaped");
    let code = if error.is_disk_full() { Code::DiskFull } else { Code::ShardUnavailable };
    let problem = Problem::new(code, error.to_string()).retry_after_ms(1_000);
    if code == Code::DiskFull { problem.hint(MAKE_SPACE) } else { problem }
}

fn unexpected(reply: &CatalogueReply) -> Problem {
    Problem::new(Code::VersionSkew, format!("the catalogue answered {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeConfig;
    use hopbine_proto::graph::IdKind;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_patched_index_setting_reaches_the_shards() {
        let dir = tempfile::tempdir().expect("a folder");
        let node = Node::open(dir.path(), NodeConfig::default()).await.expect("opened");
        let config = GraphConfig::new(4, IdKind::U64);
        let (graph, _) = node.create("g".into(), config).await.expect("created");
        let patch = GraphPatch { recall_target: Some(0.5), ..GraphPatch::default() };
        let graph = node.patch("g".into(), graph.version, patch).await.expect("patched");
        let hosted = node.find(graph.shards[0].id).expect("hosted");
        assert_eq!(hosted.shard.index(), graph.config.index);
        assert_eq!(hosted.shard.index().recall_target, 0.5);
    }
}
