//! Graphs, their sizes, relations and entities.

use super::{Call, Outcome, Reply};
use crate::driver::Engine;
use crate::reply::RelationOut;
use crate::server::decode::{graphs as decode, values::entity_text};
use crate::server::encode::{Json, facts, graphs as encode};
use crate::server::json::read_within;
use axum::http::StatusCode;
use hopbine_proto::graph::{GraphConfig, GraphInfo, GraphPatch, IdKind};
use hopbine_proto::status::{Code, Problem};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long a change of the catalogue may take.
const CATALOGUE_TIMEOUT: Duration = Duration::from_secs(30);

/// The ETag of a graph: another incarnation never has the same.
fn etag(graph: &GraphInfo) -> String {
    format!("\"{}-{}\"", graph.id, graph.version)
}

fn shown(graph: &GraphInfo, status: StatusCode) -> Reply {
    let mut json = Json::with_capacity(512);
    encode::graph(&mut json, graph);
    Reply { status, etag: Some(etag(graph)), ..Reply::ok(json) }
}

/// Waits for a change of the catalogue as long as it may take.
pub async fn in_time<T>(change: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    match tokio::time::timeout(CATALOGUE_TIMEOUT, change).await {
        Ok(done) => done,
        Err(_) => Err(Problem::new(Code::DeadlineExceeded, "the catalogue did not answer in time")
            .hint("the change may still be made; ask for the graph before repeating it")),
    }
}

/// `GET /v1/graphs`
pub async fn list(call: &Call<'_>) -> Outcome {
    let graphs = call.engine.graphs();
    let bytes = graphs.iter().map(|graph| encode::graph_bytes(graph)).sum();
    let write = move || {
        let mut json = Json::with_capacity(bytes);
        json.object(|json| {
            json.name("graphs").array(&graphs, |json, graph| encode::graph(json, graph));
        });
        json
    };
    Ok(call.written(bytes, write).await?)
}

/// `GET /v1/graphs/{g}`; 304 when `If-None-Match` names what is there.
pub fn get(call: &Call<'_>) -> Outcome {
    let graph = call.engine.graph(&call.graph)?;
    let tag = etag(&graph);
    let is_it = |known: &&str| *known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag;
    if call.list("if-none-match")?.iter().any(is_it) {
        return Ok(Reply { status: StatusCode::NOT_MODIFIED, etag: Some(tag), ..Reply::default() });
    }
    Ok(shown(&graph, StatusCode::OK))
}

/// What a request says of the graph that it is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// There is no `If-Match`.
    Unsaid,
    /// Whatever is there.
    Any,
    /// The version that was there just now.
    This,
}

fn stale(detail: String) -> Problem {
    Problem::new(Code::PreconditionFailed, detail)
        .hint("send If-Match with the ETag of the version that the change is meant for")
}

/// What `If-Match` says of `graph`; `precondition_failed` when it names other versions alone.
fn wanted(call: &Call<'_>, graph: &GraphInfo) -> Result<Wanted, Problem> {
    if !call.headers.contains_key("if-match") {
        return Ok(Wanted::Unsaid);
    }
    let (tag, wanted) = (etag(graph), call.list("if-match")?);
    if wanted.contains(&"*") {
        return Ok(Wanted::Any);
    }
    if wanted.contains(&tag.as_str()) {
        return Ok(Wanted::This);
    }
    Err(stale(format!("the graph is at {tag}, If-Match says {}", wanted.join(", "))))
}

/// `PUT /v1/graphs/{g}`
pub async fn put(call: &Call<'_>) -> Outcome {
    // How the graph will write its ids is part of what is read.
    let ids = IdKind::Names;
    let config = call
        .parse(move |room, body| read_within(room, body, ids, decode::config))
        .await?
        .into_inner();
    let made = in_time(call.engine.create_graph(&call.graph, config.clone())).await;
    let (graph, created) =
        made.map_err(|problem| with_differences(call.engine, &call.graph, problem, &config))?;
    Ok(shown(&graph, if created { StatusCode::CREATED } else { StatusCode::OK }))
}

/// Why a graph cannot be made beside the one of its name: the settings in which they differ.
pub fn with_differences(
    engine: &Engine,
    name: &str,
    mut problem: Problem,
    wanted: &GraphConfig,
) -> Problem {
    if problem.code != Code::GraphExists {
        return problem;
    }
    let Ok(known) = engine.graph(name) else { return problem };
    let faults = encode::differences(&known.config, wanted);
    if let Some(first) = faults.first() {
        let (others, setting) = (faults.len() - 1, &first.pointer);
        let others = if others > 0 { format!(", and {others} more") } else { String::new() };
        problem.detail = format!("{}: {setting}: {}{others}", problem.detail, first.detail);
    }
    problem.errors = faults;
    problem
}

/// `PATCH /v1/graphs/{g}`
pub async fn patch(call: &Call<'_>) -> Outcome {
    let current = call.engine.graph(&call.graph)?;
    let patch: GraphPatch = call.read(decode::patch).await?.into_inner();
    let (engine, name) = (call.engine, &call.graph);
    let changed = match wanted(call, &current)? {
        Wanted::Unsaid => return Err(stale("If-Match is missing".into()).into()),
        Wanted::Any => in_time(any_version(engine, name, patch)).await?,
        Wanted::This => in_time(engine.patch_graph(name, current.version, patch)).await?,
    };
    Ok(shown(&changed, StatusCode::OK))
}

/// Changes a graph at whatever version it is, also one that came in between.
pub async fn any_version(
    engine: &Engine,
    name: &str,
    patch: GraphPatch,
) -> Result<Arc<GraphInfo>, Problem> {
    loop {
        let version = engine.graph(name)?.version;
        match engine.patch_graph(name, version, patch.clone()).await {
            Err(problem) if problem.code == Code::PreconditionFailed => {}
            changed => return changed,
        }
    }
}

/// `DELETE /v1/graphs/{g}`; with `If-Match` only a graph that is still at a version it names.
pub async fn drop_graph(call: &Call<'_>) -> Outcome {
    let graph = call.engine.graph(&call.graph)?;
    if call.parameter("confirm") != Some(&call.graph) {
        return Err(Problem::new(Code::InvalidRequest, "dropping a graph needs its name twice")
            .hint("add ?confirm= and the graph's name")
            .into());
    }
    // A look before the drop: the catalogue drops by name, so a change that is made between the two
    // is dropped as well.
    wanted(call, &graph)?;
    in_time(call.engine.drop_graph(&call.graph)).await?;
    let mut json = Json::default();
    json.object(|json| json.field("dropped", &call.graph));
    Ok(Reply::ok(json))
}

/// `GET .../stats`
pub async fn stats(call: &Call<'_>) -> Outcome {
    let options = call.options(Default::default())?;
    let reply = call.engine.stats(&call.graph, &options).await?;
    Ok(call.written(reply.text_bytes(), move || encode::stats(&reply)).await?)
}

/// `GET .../relations`
pub async fn relations(call: &Call<'_>) -> Outcome {
    let options = call.options(Default::default())?;
    let list = call.engine.relations(&call.graph, &options).await?;
    let bytes = list.iter().map(RelationOut::text_bytes).sum();
    Ok(call.written(bytes, move || encode::relations(&list)).await?)
}

/// `GET .../entities/{id}`
pub async fn entity(call: &Call<'_>) -> Outcome {
    let id = entity_text(&call.id, call.ids()?);
    let options = call.options(Default::default())?;
    let mut reply = call.engine.entity(&call.graph, &id, &options).await?;
    let token = std::mem::take(&mut reply.consistency_token);
    let written = call.written(reply.text_bytes(), move || facts::entity_reply(&reply)).await?;
    Ok(Reply { token: Some(token), ..written })
}
