//! Graphs, their sizes, relations and entities.

use super::call::{Answer, Call, unknown_word};
use super::encode;
use super::values::{ef_search, entity};
use crate::reply::RelationOut;
use crate::server::calls::graphs::{any_version, in_time, with_differences};
use crate::server::decode::values::required;
use crate::server::encode::graphs::graph_bytes;
use crate::server::http::Surface;
use hopbine_proto::convert::v1;
use hopbine_proto::convert::v1::graph_service_server::GraphService;
use hopbine_proto::graph::{
    BuilderKind, EfSearch, Embedder, GraphConfig, GraphPatch, IdKind, IndexConfig, ShardsConfig,
    VectorConfig,
};
use hopbine_proto::score::Metric;
use hopbine_proto::status::{Code, Problem};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service of graphs.
pub struct Graphs(pub Arc<Surface>);

fn config(given: Option<v1::GraphConfig>) -> Result<GraphConfig, Problem> {
    let given = given.unwrap_or_default();
    let space = required(given.vector, "vector").map_err(Problem::from)?;
    let metric = match space.metric {
        0 | 1 => Metric::Cosine,
        2 => Metric::L2,
        3 => Metric::Dot,
        other => return Err(unknown_word("metric", other).within("vector").into()),
    };
    let ids = match given.ids {
        0 | 1 => IdKind::Names,
        2 => IdKind::U64,
        other => return Err(unknown_word("ids", other).into()),
    };
    Ok(GraphConfig {
        vector: VectorConfig { dim: space.dim, metric, required: space.required },
        index: index(given.index.unwrap_or_default())?,
        shards: shards(given.shards.unwrap_or_default()),
        payload_index: given.payload_index,
        embedder: match given.embedder.as_deref() {
            None => Embedder::None,
            Some("lexical") => Embedder::Lexical,
            Some("lexical-code") => Embedder::LexicalCode,
            Some(url) => Embedder::Http(url.to_owned()),
        },
        payload_bytes_max: given
            .payload_bytes_max
            .unwrap_or_else(|| GraphConfig::new(0, ids).payload_bytes_max),
        ids,
    })
}

fn index(given: v1::IndexConfig) -> Result<IndexConfig, Problem> {
    let default = IndexConfig::default();
    Ok(IndexConfig {
        m: given.m.unwrap_or(default.m),
        ef_construction: given.ef_construction.unwrap_or(default.ef_construction),
        ef_search: ef_search(given.ef_search).unwrap_or(EfSearch::Auto),
        recall_target: given.recall_target.unwrap_or(default.recall_target),
        builder: match given.builder {
            0 | 1 => BuilderKind::Native,
            2 => BuilderKind::HnswRs,
            other => return Err(unknown_word("builder", other).within("index").into()),
        },
        build_seed: given.build_seed.unwrap_or(default.build_seed),
    })
}

fn shards(given: v1::ShardsConfig) -> ShardsConfig {
    let default = ShardsConfig::default();
    ShardsConfig {
        initial: given.initial.unwrap_or(default.initial),
        boundaries: given.boundaries,
        replicas: given.replicas.unwrap_or(default.replicas),
        split_at_bytes: given.split_at_bytes.unwrap_or(default.split_at_bytes),
    }
}

async fn create(
    call: &Call,
    request: v1::CreateGraphRequest,
) -> Result<Answer<v1::CreateGraphReply>, Problem> {
    let (engine, name) = (call.engine(), &request.graph);
    let config = config(request.config)?;
    let made = in_time(engine.create_graph(name, config.clone())).await;
    let (graph, created) =
        made.map_err(|problem| with_differences(engine, name, problem, &config))?;
    let graph = Some(encode::graph(&graph));
    Ok(Answer::of(v1::CreateGraphReply { graph, created }))
}

async fn patch(call: &Call, request: v1::PatchGraphRequest) -> Result<Answer<v1::Graph>, Problem> {
    let patch = GraphPatch {
        ef_search: ef_search(request.ef_search),
        recall_target: request.recall_target,
        split_at_bytes: request.split_at_bytes,
        payload_bytes_max: request.payload_bytes_max,
    };
    if patch == GraphPatch::default() {
        let detail = "the change is empty";
        return Err(Problem::new(Code::InvalidRequest, detail).at("", detail));
    }
    let (engine, name) = (call.engine(), &request.graph);
    let graph = match request.version {
        Some(version) => in_time(engine.patch_graph(name, version, patch)).await?,
        None => in_time(any_version(engine, name, patch)).await?,
    };
    Ok(Answer::of(encode::graph(&graph)))
}

async fn drop_graph(
    call: &Call,
    request: v1::DropGraphRequest,
) -> Result<Answer<v1::DropGraphReply>, Problem> {
    if request.confirm != request.graph {
        call.engine().graph(&request.graph)?;
        return Err(Problem::new(Code::InvalidRequest, "dropping a graph needs its name twice")
            .hint("repeat the graph's name in the field confirm"));
    }
    in_time(call.engine().drop_graph(&request.graph)).await?;
    Ok(Answer::of(v1::DropGraphReply {}))
}

async fn list(call: &Call) -> Result<Answer<v1::ListGraphsReply>, Problem> {
    let graphs = call.engine().graphs();
    let bytes = graphs.iter().map(|graph| graph_bytes(graph)).sum();
    let write = move || v1::ListGraphsReply {
        graphs: graphs.iter().map(|graph| encode::graph(graph)).collect(),
    };
    call.written(bytes, write).await
}

async fn stats(call: &Call, request: v1::StatsRequest) -> Result<Answer<v1::StatsReply>, Problem> {
    let options = call.options(request.options)?;
    let reply = call.engine().stats(&request.graph, &options).await?;
    call.written(reply.text_bytes(), move || encode::stats(&reply)).await
}

async fn relations(
    call: &Call,
    request: v1::RelationsRequest,
) -> Result<Answer<v1::RelationsReply>, Problem> {
    let options = call.options(request.options)?;
    let list = call.engine().relations(&request.graph, &options).await?;
    let bytes = list.iter().map(RelationOut::text_bytes).sum();
    call.written(bytes, move || encode::relations(&list)).await
}

async fn entity_of(
    call: &Call,
    request: v1::EntityRequest,
) -> Result<Answer<v1::EntityReply>, Problem> {
    let options = call.options(request.options)?;
    let wanted = required(request.entity, "entity").and_then(entity).map_err(Problem::from)?;
    let reply = call.engine().entity(&request.graph, &wanted, &options).await?;
    let token = reply.consistency_token.clone();
    let answer = call.written(reply.text_bytes(), move || encode::entity_reply(&reply)).await?;
    Ok(Answer { token: Some(token), ..answer })
}

#[tonic::async_trait]
impl GraphService for Graphs {
    async fn list(
        &self,
        request: Request<v1::ListGraphsRequest>,
    ) -> Result<Response<v1::ListGraphsReply>, Status> {
        let (call, ..) = Call::begin(&self.0, request)?;
        call.respond(list(&call).await)
    }

    async fn create(
        &self,
        request: Request<v1::CreateGraphRequest>,
    ) -> Result<Response<v1::CreateGraphReply>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(create(&call, request).await)
    }

    async fn get(
        &self,
        request: Request<v1::GetGraphRequest>,
    ) -> Result<Response<v1::Graph>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        let graph = call.engine().graph(&request.graph);
        call.respond(graph.map(|graph| Answer::of(encode::graph(&graph))))
    }

    async fn patch(
        &self,
        request: Request<v1::PatchGraphRequest>,
    ) -> Result<Response<v1::Graph>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(patch(&call, request).await)
    }

    async fn drop(
        &self,
        request: Request<v1::DropGraphRequest>,
    ) -> Result<Response<v1::DropGraphReply>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(drop_graph(&call, request).await)
    }

    async fn stats(
        &self,
        request: Request<v1::StatsRequest>,
    ) -> Result<Response<v1::StatsReply>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(stats(&call, request).await)
    }

    async fn relations(
        &self,
        request: Request<v1::RelationsRequest>,
    ) -> Result<Response<v1::RelationsReply>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(relations(&call, request).await)
    }

    async fn entity(
        &self,
        request: Request<v1::EntityRequest>,
    ) -> Result<Response<v1::EntityReply>, Status> {
        let (call, request, _room) = Call::begin(&self.0, request)?;
        call.respond(entity_of(&call, request).await)
    }
}
