//! The calls of the HTTP contract as messages, and their replies back as its JSON: written from the
//! two contracts, apart from what the server does.

use hopbine_proto::convert::v1::fact_service_client::FactServiceClient;
use hopbine_proto::convert::v1::graph_service_client::GraphServiceClient;
use hopbine_proto::convert::v1::retrieval_service_client::RetrievalServiceClient;
use hopbine_proto::convert::{embedding, embedding_bytes, v1};
use serde_json::{Map, Value, json};
use tonic::Status;
use tonic::transport::Channel;

/// The three services over one connection.
#[derive(Clone)]
pub struct Clients {
    pub graphs: GraphServiceClient<Channel>,
    pub facts: FactServiceClient<Channel>,
    pub retrieval: RetrievalServiceClient<Channel>,
}

impl Clients {
    pub fn new(channel: Channel) -> Self {
        Self {
            graphs: GraphServiceClient::new(channel.clone()),
            facts: FactServiceClient::new(channel.clone()),
            retrieval: RetrievalServiceClient::new(channel),
        }
    }
}

type Object = Map<String, Value>;

/// The fields of `value`, if all of them are among `known`.
fn fields<'a>(value: &'a Value, known: &[&str]) -> Option<&'a Object> {
    let object = value.as_object()?;
    object.keys().all(|name| known.contains(&name.as_str())).then_some(object)
}

/// An optional field: `Some(None)` when it is absent, `None` when `read` finds no such value.
fn maybe<T>(
    object: &Object,
    name: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Option<Option<T>> {
    object.get(name).map_or(Some(None), |value| read(value).map(Some))
}

fn flag(object: &Object, name: &str) -> Option<bool> {
    Some(maybe(object, name, Value::as_bool)?.unwrap_or_default())
}

fn list<T>(value: &Value, read: impl FnMut(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(read).collect()
}

fn list_of<T>(
    object: &Object,
    name: &str,
    read: impl FnMut(&Value) -> Option<T>,
) -> Option<Vec<T>> {
    Some(maybe(object, name, |value| list(value, read))?.unwrap_or_default())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// One request of the contract being turned into messages; `numbers`: the graph's ids are u64.
struct Writer {
    graph: String,
    numbers: bool,
}

impl Writer {
    fn id(&self, value: &Value) -> Option<v1::Id> {
        let id = match value {
            Value::String(text) if self.numbers && text.parse::<u64>().is_ok() => {
                v1::id::Id::Number(text.parse().ok()?)
            }
            Value::String(text) => v1::id::Id::Name(text.clone()),
            value => v1::id::Id::Number(value.as_u64()?),
        };
        Some(v1::Id { id: Some(id) })
    }

    fn ids(&self, value: &Value) -> Option<Vec<v1::Id>> {
        list(value, |id| self.id(id))
    }

    fn key(&self, value: &Value) -> Option<v1::FactKey> {
        let object = fields(value, &["entity", "relation", "target"])?;
        Some(v1::FactKey {
            entity: maybe(object, "entity", |id| self.id(id))?,
            relation: maybe(object, "relation", |id| self.id(id))?,
            target: maybe(object, "target", |id| self.id(id))?,
        })
    }

    fn keys(&self, value: &Value) -> Option<Vec<v1::FactKey>> {
        list(value, |key| self.key(key))
    }

    fn prefix(&self, value: &Value) -> Option<v1::Prefix> {
        let object = fields(value, &["entity", "relation"])?;
        Some(v1::Prefix {
            entity: maybe(object, "entity", |id| self.id(id))?,
            relation: maybe(object, "relation", |id| self.id(id))?,
        })
    }

    fn vector(value: &Value) -> Option<Vec<u8>> {
        let components = list(value, |component| component.as_f64().map(|x| x as f32))?;
        Some(embedding_bytes(&components))
    }

    fn fact(&self, value: &Value) -> Option<v1::Fact> {
        let known = ["entity", "relation", "target", "embedding", "payload"];
        let object = fields(value, &known)?;
        Some(v1::Fact {
            entity: maybe(object, "entity", |id| self.id(id))?,
            relation: maybe(object, "relation", |id| self.id(id))?,
            target: maybe(object, "target", |id| self.id(id))?,
            embedding: maybe(object, "embedding", Self::vector)?.map(Into::into),
            payload: object.get("payload").map(Value::to_string),
            version: None,
        })
    }

    fn facts(&self, value: &Value) -> Option<Vec<v1::Fact>> {
        list(value, |fact| self.fact(fact))
    }

    fn query(&self, value: &Value) -> Option<v1::Query> {
        let object = fields(value, &["embedding", "text", "entities"])?;
        Some(v1::Query {
            embedding: maybe(object, "embedding", Self::vector)?.map(Into::into),
            text: maybe(object, "text", text)?,
            entities: maybe(object, "entities", |ids| self.ids(ids))?.unwrap_or_default(),
        })
    }

    fn path(&self, value: &Value) -> Option<Vec<v1::Hop>> {
        list(value, |hop| {
            let relations = match hop {
                Value::String(any) if any == "*" => Vec::new(),
                Value::Array(_) => self.ids(hop)?,
                one => vec![self.id(one)?],
            };
            Some(v1::Hop { relations })
        })
    }

    fn relations(&self, value: &Value) -> Option<v1::Relations> {
        Some(v1::Relations { relations: self.ids(value)? })
    }
}

fn parts(object: &Object) -> Option<Option<v1::Parts>> {
    maybe(object, "with", |value| {
        let mut parts = v1::Parts::default();
        for part in value.as_array()? {
            match part.as_str()? {
                "payload" => parts.payload = true,
                "vector" => parts.vector = true,
                "path_payloads" => parts.path_payloads = true,
                "version" => parts.version = true,
                _ => return None,
            }
        }
        Some(parts)
    })
}

fn milliseconds(value: &Value) -> Option<u64> {
    let text = value.as_str()?;
    match text.strip_suffix("ms") {
        Some(number) => number.parse().ok(),
        None => Some(text.strip_suffix('s')?.parse::<u64>().ok()? * 1_000),
    }
}

fn options(object: &Object) -> Option<Option<v1::ReadOptions>> {
    let consistency = maybe(object, "consistency", |value| match value.as_str()? {
        "strong" => Some(v1::Consistency::Strong),
        "bounded" => Some(v1::Consistency::Bounded),
        "eventual" => Some(v1::Consistency::Eventual),
        _ => None,
    })?;
    Some(Some(v1::ReadOptions {
        consistency: consistency.map_or(0, Into::into),
        max_staleness_ms: maybe(object, "max_staleness", milliseconds)?,
        timeout_ms: maybe(object, "timeout", milliseconds)?,
        consistency_token: None,
        allow_partial: flag(object, "allow_partial")?,
    }))
}

fn mode(object: &Object) -> Option<i32> {
    Some(
        maybe(object, "score_mode", |value| match value.as_str()? {
            "path" => Some(v1::ScoreMode::Path.into()),
            "endpoint" => Some(v1::ScoreMode::Endpoint.into()),
            _ => None,
        })?
        .unwrap_or_default(),
    )
}

fn beam(object: &Object) -> Option<Option<u32>> {
    maybe(object, "ef_search", |value| match value {
        Value::String(auto) if auto == "auto" => Some(0),
        value => value.as_u64()?.try_into().ok(),
    })
}

const CALL: [&str; 4] = ["consistency", "max_staleness", "timeout", "allow_partial"];

fn with_call<'a>(value: &'a Value, own: &[&str]) -> Option<&'a Object> {
    fields(value, &[own, &CALL].concat())
}

impl Writer {
    fn graph_rag(&self, body: &Value) -> Option<v1::GraphRagRequest> {
        let own = [
            "query",
            "relation_path",
            "seed_on",
            "seed_relations",
            "ann_k",
            "ef_search",
            "exact_seeds",
            "top_k",
            "score_mode",
            "hop_weights",
            "seed_weight",
            "limit_per_entity",
            "beam",
            "limit_rows",
            "return_to_start",
            "filter",
            "with",
        ];
        let object = with_call(body, &own)?;
        let seed_on = maybe(object, "seed_on", |value| match value.as_str()? {
            "entity" => Some(v1::SeedOn::Entity.into()),
            "target" => Some(v1::SeedOn::Target.into()),
            _ => None,
        })?;
        Some(v1::GraphRagRequest {
            graph: self.graph.clone(),
            query: maybe(object, "query", |query| self.query(query))?,
            relation_path: maybe(object, "relation_path", |path| self.path(path))?
                .unwrap_or_default(),
            seed_on: seed_on.unwrap_or_default(),
            seed_relations: maybe(object, "seed_relations", |list| self.relations(list))?,
            ann_k: maybe(object, "ann_k", Value::as_u64)?,
            ef_search: beam(object)?,
            exact_seeds: flag(object, "exact_seeds")?,
            top_k: maybe(object, "top_k", Value::as_u64)?,
            score_mode: mode(object)?,
            hop_weights: list_of(object, "hop_weights", Value::as_f64)?,
            seed_weight: maybe(object, "seed_weight", Value::as_f64)?,
            limit_per_entity: maybe(object, "limit_per_entity", Value::as_u64)?,
            beam: maybe(object, "beam", Value::as_u64)?,
            limit_rows: maybe(object, "limit_rows", Value::as_u64)?,
            return_to_start: flag(object, "return_to_start")?,
            filter: object.get("filter").map(Value::to_string),
            parts: parts(object)?,
            options: options(object)?,
        })
    }

    fn search(&self, body: &Value) -> Option<v1::SearchRequest> {
        let own = ["query", "k", "ef_search", "exact", "filter", "relations", "with"];
        let object = with_call(body, &own)?;
        Some(v1::SearchRequest {
            graph: self.graph.clone(),
            query: maybe(object, "query", |query| self.query(query))?,
            k: maybe(object, "k", Value::as_u64)?,
            ef_search: beam(object)?,
            exact: flag(object, "exact")?,
            filter: object.get("filter").map(Value::to_string),
            relations: maybe(object, "relations", |list| self.relations(list))?,
            parts: parts(object)?,
            options: options(object)?,
        })
    }

    fn expand(&self, body: &Value) -> Option<v1::ExpandRequest> {
        let own = [
            "from",
            "relation_path",
            "query",
            "top_k",
            "score_mode",
            "hop_weights",
            "page_size",
            "page_token",
            "limit_rows",
            "limit_per_entity",
            "beam",
            "return_to_start",
            "filter",
            "with",
        ];
        let object = with_call(body, &own)?;
        Some(v1::ExpandRequest {
            graph: self.graph.clone(),
            from: maybe(object, "from", |ids| self.ids(ids))?.unwrap_or_default(),
            relation_path: maybe(object, "relation_path", |path| self.path(path))?
                .unwrap_or_default(),
            query: maybe(object, "query", |query| self.query(query))?,
            top_k: maybe(object, "top_k", Value::as_u64)?,
            score_mode: mode(object)?,
            hop_weights: list_of(object, "hop_weights", Value::as_f64)?,
            page_size: maybe(object, "page_size", Value::as_u64)?,
            page_token: maybe(object, "page_token", text)?,
            limit_rows: maybe(object, "limit_rows", Value::as_u64)?,
            limit_per_entity: maybe(object, "limit_per_entity", Value::as_u64)?,
            beam: maybe(object, "beam", Value::as_u64)?,
            return_to_start: flag(object, "return_to_start")?,
            filter: object.get("filter").map(Value::to_string),
            parts: parts(object)?,
            options: options(object)?,
        })
    }

    fn rerank(&self, body: &Value) -> Option<v1::RerankRequest> {
        let object = with_call(body, &["query", "paths", "score_mode", "top_k"])?;
        let path = |path: &Value| Some(v1::Path { facts: self.keys(path)? });
        Some(v1::RerankRequest {
            graph: self.graph.clone(),
            query: maybe(object, "query", |query| self.query(query))?,
            paths: list_of(object, "paths", path)?,
            score_mode: mode(object)?,
            top_k: maybe(object, "top_k", Value::as_u64)?,
            options: options(object)?,
        })
    }

    fn batch(&self, body: &Value) -> Option<v1::GraphRagBatchRequest> {
        let object = with_call(body, &["requests"])?;
        Some(v1::GraphRagBatchRequest {
            graph: self.graph.clone(),
            requests: list_of(object, "requests", |request| self.graph_rag(request))?,
            options: options(object)?,
        })
    }

    fn config(body: &Value) -> Option<v1::GraphConfig> {
        let known = ["vector", "ids", "index", "shards", "payload_index", "embedder"];
        let object = fields(body, &known)?;
        let vector = maybe(object, "vector", |value| {
            let object = fields(value, &["dim", "metric", "required"])?;
            let metric = maybe(object, "metric", |value| match value.as_str()? {
                "cosine" => Some(v1::Metric::Cosine.into()),
                "l2" => Some(v1::Metric::L2.into()),
                "dot" => Some(v1::Metric::Dot.into()),
                _ => None,
            })?;
            Some(v1::VectorConfig {
                dim: maybe(object, "dim", Value::as_u64)?.unwrap_or_default().try_into().ok()?,
                metric: metric.unwrap_or_default(),
                required: flag(object, "required")?,
            })
        })?;
        let ids = maybe(object, "ids", |value| match value.as_str()? {
            "names" => Some(v1::IdKind::Names.into()),
            "u64" => Some(v1::IdKind::U64.into()),
            _ => None,
        })?;
        let shards = maybe(object, "shards", |value| {
            let object = fields(value, &["initial", "boundaries"])?;
            Some(v1::ShardsConfig {
                initial: maybe(object, "initial", Value::as_u64)?.map(|count| count as u32),
                boundaries: list_of(object, "boundaries", Value::as_u64)?,
                replicas: None,
                split_at_bytes: None,
            })
        })?;
        Some(v1::GraphConfig {
            vector,
            ids: ids.unwrap_or_default(),
            index: maybe(object, "index", Self::index)?,
            shards,
            payload_index: list_of(object, "payload_index", text)?,
            embedder: maybe(object, "embedder", text)?,
            payload_bytes_max: None,
        })
    }

    fn index(value: &Value) -> Option<v1::IndexConfig> {
        let object = fields(value, &["m", "ef_construction", "ef_search", "recall_target"])?;
        Some(v1::IndexConfig {
            m: maybe(object, "m", Value::as_u64)?.map(|m| m as u32),
            ef_construction: maybe(object, "ef_construction", Value::as_u64)?.map(|n| n as u32),
            ef_search: beam(object)?,
            recall_target: maybe(object, "recall_target", Value::as_f64)?,
            builder: 0,
            build_seed: None,
        })
    }
}

/// The reply of one call as JSON of the HTTP contract, or why there is none; `None` where the
/// request cannot be said in messages: bodies that are no JSON, unknown fields and words.
pub async fn ask(mut clients: Clients, line: &str, body: &str) -> Option<Result<Value, Status>> {
    // A message has each field once.
    if ["\"top_k\":", "\"must\":"].iter().any(|name| body.matches(name).count() > 1) {
        return None;
    }
    let (method, url) = line.split_once(' ')?;
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let mut steps = path.strip_prefix("/v1/graphs")?.trim_start_matches('/').splitn(2, '/');
    let (graph, call) = (steps.next()?.to_owned(), steps.next().unwrap_or_default());
    let body: Value = match (method, body) {
        ("GET" | "DELETE", "") => json!({}),
        (_, body) => serde_json::from_str(body).ok()?,
    };
    let writer = Writer { numbers: graph == "numbers", graph: graph.clone() };
    let wait = match query.strip_prefix("wait=") {
        None if query.is_empty() || query.starts_with("confirm=") => 0,
        None => return None,
        Some("committed") => v1::Wait::Committed.into(),
        Some("applied") => v1::Wait::Applied.into(),
        Some("indexed") => v1::Wait::Indexed.into(),
        Some(_) => return None,
    };
    if graph.is_empty() {
        let list = clients.graphs.list(v1::ListGraphsRequest {}).await;
        let names = |list: v1::ListGraphsReply| {
            json!(list.graphs.iter().map(|graph| graph.name.clone()).collect::<Vec<_>>())
        };
        return Some(list.map(|list| names(list.into_inner())));
    }
    match (method, call) {
        (_, "facts" | "facts/write" | "facts/delete") => {
            writes(&mut clients, &writer, call, &body, wait).await
        }
        (_, call) if call.starts_with("facts/") => reads(&mut clients, &writer, call, &body).await,
        ("POST", call) => questions(&mut clients, &writer, call, &body).await,
        (method, call) => {
            let confirm = query.strip_prefix("confirm=").unwrap_or_default();
            managed(&mut clients, &writer, method, call, &body, confirm).await
        }
    }
}

async fn writes(
    clients: &mut Clients,
    writer: &Writer,
    call: &str,
    body: &Value,
    wait: i32,
) -> Option<Result<Value, Status>> {
    let own = ["facts", "upsert", "delete", "keys", "prefix", "with"];
    let object = with_call(body, &own)?;
    let version = parts(object)?.is_some_and(|parts| parts.version);
    let options = v1::WriteOptions {
        wait,
        timeout_ms: maybe(object, "timeout", milliseconds)?,
        idempotency_key: None,
        version,
    };
    let (graph, options) = (writer.graph.clone(), Some(options));
    let reply = match call {
        "facts" => {
            let facts = maybe(object, "facts", |facts| writer.facts(facts))?.unwrap_or_default();
            clients.facts.upsert(v1::UpsertRequest { graph, facts, options }).await
        }
        "facts/write" => {
            let upsert = maybe(object, "upsert", |facts| writer.facts(facts))?.unwrap_or_default();
            let delete = maybe(object, "delete", |keys| writer.keys(keys))?.unwrap_or_default();
            clients.facts.write(v1::WriteRequest { graph, upsert, delete, options }).await
        }
        _ => {
            let keys = maybe(object, "keys", |keys| writer.keys(keys))?.unwrap_or_default();
            let prefix = maybe(object, "prefix", |prefix| writer.prefix(prefix))?;
            clients.facts.delete(v1::DeleteRequest { graph, keys, prefix, options }).await
        }
    };
    Some(reply.map(|reply| {
        let reply = reply.into_inner();
        let mut shown = match call {
            "facts" => json!({"upserted": reply.upserted, "replaced": reply.replaced}),
            "facts/write" => json!({
                "upserted": reply.upserted, "replaced": reply.replaced,
                "deleted": reply.deleted, "not_found": reply.not_found,
            }),
            _ => json!({"deleted": reply.deleted, "not_found": reply.not_found}),
        };
        if version {
            let replaced = reply.replaced_versions.iter().map(|one| {
                let mut shown = key_json(one.key.as_ref().expect("a key"));
                shown["version"] = version_json(one.version.as_ref().expect("a version"));
                shown
            });
            shown["replaced_versions"] = replaced.collect();
            shown["versions"] = reply.versions.iter().map(version_json).collect();
        }
        shown
    }))
}

async fn reads(
    clients: &mut Clients,
    writer: &Writer,
    call: &str,
    body: &Value,
) -> Option<Result<Value, Status>> {
    let own = ["keys", "prefix", "filter", "page_size", "page_token", "with"];
    let object = with_call(body, &own)?;
    let graph = writer.graph.clone();
    let prefix = maybe(object, "prefix", |prefix| writer.prefix(prefix))?;
    let filter = object.get("filter").map(Value::to_string);
    let (parts, options) = (parts(object)?, options(object)?);
    if parts.is_some_and(|parts| parts.path_payloads) {
        // Its place in a list has no like in a message of flags.
        return None;
    }
    Some(match call {
        "facts/get" => {
            let keys = maybe(object, "keys", |keys| writer.keys(keys))?.unwrap_or_default();
            let reply = clients.facts.get(v1::GetRequest { graph, keys, parts, options }).await;
            reply.map(|reply| {
                let reply = reply.into_inner();
                let facts: Vec<_> = reply.facts.iter().map(fact_json).collect();
                let missing: Vec<_> = reply.not_found.iter().map(key_json).collect();
                json!({"facts": facts, "not_found": missing})
            })
        }
        "facts/scan" => {
            let request = v1::ScanRequest {
                graph,
                prefix,
                filter,
                page_size: maybe(object, "page_size", Value::as_u64)?,
                page_token: maybe(object, "page_token", text)?,
                parts,
                options,
                pages: Some(1),
            };
            scan(clients, request).await
        }
        "facts/count" => {
            let request = v1::CountRequest { graph, prefix, filter, options };
            let reply = clients.facts.count(request).await;
            reply.map(|reply| json!({"count": reply.into_inner().count}))
        }
        _ => return None,
    })
}

async fn scan(clients: &mut Clients, request: v1::ScanRequest) -> Result<Value, Status> {
    let mut messages = clients.facts.scan(request).await?.into_inner();
    let (mut facts, mut next) = (Vec::new(), None);
    while let Some(message) = messages.message().await? {
        facts.extend(message.facts.iter().map(fact_json));
        next = message.next_page_token;
    }
    Ok(json!({"facts": facts, "next_page_token": next}))
}

async fn questions(
    clients: &mut Clients,
    writer: &Writer,
    call: &str,
    body: &Value,
) -> Option<Result<Value, Status>> {
    let client = &mut clients.retrieval;
    Some(match call {
        "graph_rag" => {
            let reply = client.graph_rag(writer.graph_rag(body)?).await;
            reply.map(|reply| answer_json(&reply.into_inner(), true, false))
        }
        "search" => {
            let reply = client.search(writer.search(body)?).await;
            reply.map(|reply| answer_json(&reply.into_inner(), false, false))
        }
        "expand" => {
            let request = writer.expand(body)?;
            let page = request.query.is_none();
            let reply = client.expand(request).await;
            reply.map(|reply| answer_json(&reply.into_inner(), true, page))
        }
        "rerank" => {
            let reply = client.rerank(writer.rerank(body)?).await;
            reply.map(|reply| {
                let results = reply.into_inner().results;
                let line = |line: &v1::RerankResult| {
                    json!({"index": line.index, "distance": line.distance})
                };
                json!({"results": results.iter().map(line).collect::<Vec<_>>()})
            })
        }
        "graph_rag/batch" => {
            let reply = client.graph_rag_batch(writer.batch(body)?).await;
            reply.map(|reply| {
                let one = |reply: &v1::BatchReply| match reply.reply.as_ref().expect("a reply") {
                    v1::batch_reply::Reply::Answer(answer) => answer_json(answer, true, false),
                    v1::batch_reply::Reply::Problem(problem) => {
                        let pointer = problem.errors.first().map(|fault| fault.pointer.clone());
                        json!({"code": problem.code, "pointer": pointer})
                    }
                };
                json!({"replies": reply.into_inner().replies.iter().map(one).collect::<Vec<_>>()})
            })
        }
        _ => return None,
    })
}

async fn managed(
    clients: &mut Clients,
    writer: &Writer,
    method: &str,
    call: &str,
    body: &Value,
    confirm: &str,
) -> Option<Result<Value, Status>> {
    let (graph, client) = (writer.graph.clone(), &mut clients.graphs);
    let options = None;
    Some(match (method, call) {
        ("PUT", "") => {
            let config = Some(Writer::config(body)?);
            let reply = client.create(v1::CreateGraphRequest { graph, config }).await;
            reply.map(|reply| graph_json(&reply.into_inner().graph.expect("a graph")))
        }
        ("GET", "") => {
            let reply = client.get(v1::GetGraphRequest { graph }).await;
            reply.map(|reply| graph_json(&reply.into_inner()))
        }
        ("DELETE", "") => {
            let confirm = confirm.to_owned();
            let reply = client.drop(v1::DropGraphRequest { graph: graph.clone(), confirm }).await;
            reply.map(|_| json!({"dropped": graph}))
        }
        ("GET", "relations") => {
            let reply = client.relations(v1::RelationsRequest { graph, options }).await;
            let line = |line: &v1::Relation| {
                let relation = id_json(line.relation.as_ref());
                json!({"relation": relation, "id": line.id, "facts": line.facts})
            };
            reply.map(|reply| {
                let lines = reply.into_inner().relations;
                json!({"relations": lines.iter().map(line).collect::<Vec<_>>()})
            })
        }
        ("GET", "stats") => {
            let reply = client.stats(v1::StatsRequest { graph, options }).await;
            reply.map(|reply| stats_json(&reply.into_inner()))
        }
        ("GET", call) => {
            let entity = writer.id(&json!(call.strip_prefix("entities/")?));
            let reply = client.entity(v1::EntityRequest { graph, entity, options }).await;
            reply.map(|reply| {
                let reply = reply.into_inner();
                let degree = |line: &v1::Degree| {
                    json!({"relation": id_json(line.relation.as_ref()), "facts": line.facts})
                };
                json!({
                    "entity": id_json(reply.entity.as_ref()),
                    "degrees": reply.degrees.iter().map(degree).collect::<Vec<_>>(),
                    "facts": reply.facts.iter().map(fact_json).collect::<Vec<_>>(),
                })
            })
        }
        _ => return None,
    })
}

fn id_json(id: Option<&v1::Id>) -> Value {
    match id.and_then(|id| id.id.as_ref()).expect("an id") {
        v1::id::Id::Name(name) => json!(name),
        v1::id::Id::Number(number) if *number > 1 << 53 => json!(number.to_string()),
        v1::id::Id::Number(number) => json!(number),
    }
}

fn key_json(key: &v1::FactKey) -> Value {
    json!({
        "entity": id_json(key.entity.as_ref()),
        "relation": id_json(key.relation.as_ref()),
        "target": id_json(key.target.as_ref()),
    })
}

fn version_json(version: &v1::Version) -> Value {
    json!({"shard": version.shard, "epoch": version.epoch, "index": version.index})
}

fn fact_json(fact: &v1::Fact) -> Value {
    let mut shown = json!({
        "entity": id_json(fact.entity.as_ref()),
        "relation": id_json(fact.relation.as_ref()),
        "target": id_json(fact.target.as_ref()),
    });
    if let Some(bytes) = &fact.embedding {
        shown["embedding"] = json!(embedding(bytes).expect("whole components"));
    }
    if let Some(payload) = &fact.payload {
        shown["payload"] = serde_json::from_str(payload).expect("JSON");
    }
    if let Some(version) = &fact.version {
        shown["version"] = version_json(version);
    }
    shown
}

/// A retrieval's reply, without its token.
fn answer_json(reply: &v1::RetrievalReply, path: bool, page: bool) -> Value {
    let result = |result: &v1::Result| {
        let fact = fact_json(result.fact.as_ref().expect("a fact"));
        let mut shown = json!({"distance": result.distance, "fact": fact});
        if path {
            let step = |step: &v1::PathStep| {
                let mut shown = fact_json(step.fact.as_ref().expect("a fact"));
                shown["distance"] = json!(step.distance);
                shown
            };
            shown["path"] = result.path.iter().map(step).collect();
        }
        shown
    };
    let hop = |line: &v1::HopCoverage| {
        let mut shown = json!({
            "hop": line.hop, "frontier": line.frontier, "read": line.read, "kept": line.kept,
            "cut": line.cut,
        });
        if let Some(why) = &line.why {
            shown["why"] = json!(why);
        }
        if !line.indexes.is_empty() {
            let index = |one: &v1::ShardIndex| json!({"shard": one.shard, "index": one.index});
            shown["indexes"] = line.indexes.iter().map(index).collect();
        }
        shown
    };
    let coverage = reply.coverage.as_ref().expect("an account");
    let mut shown = json!({
        "results": reply.results.iter().map(result).collect::<Vec<_>>(),
        "partial": reply.partial,
        "coverage": {
            "shards": coverage.shards, "answered": coverage.answered,
            "missing": coverage.missing,
            "hops": coverage.hops.iter().map(hop).collect::<Vec<_>>(),
        },
    });
    if page {
        shown["next_page_token"] = json!(reply.next_page_token);
    }
    shown
}

/// The word behind the number of an enumeration, which begins at 1.
fn word<'a>(words: &[&'a str], number: i32) -> &'a str {
    words[number as usize - 1]
}

fn graph_json(graph: &v1::Graph) -> Value {
    let config = graph.config.as_ref().expect("a configuration");
    let (vector, index) = (config.vector.expect("a space"), config.index.expect("an index"));
    let shards = config.shards.as_ref().expect("cuts");
    json!({
        "name": graph.name, "id": graph.id, "version": graph.version,
        "config": {
            "vector": {
                "dim": vector.dim,
                "metric": word(&["cosine", "l2", "dot"], vector.metric),
                "required": vector.required,
            },
            "ids": word(&["names", "u64"], config.ids),
            "index": {
                "m": index.m, "ef_construction": index.ef_construction,
                "ef_search": index.ef_search.map_or(json!("auto"), |beam| json!(beam)),
                "recall_target": index.recall_target,
                "builder": word(&["native", "hnsw_rs"], index.builder),
                "build_seed": index.build_seed,
            },
            "shards": {
                "initial": shards.initial, "boundaries": shards.boundaries,
                "replicas": shards.replicas,
                "split_at": format!("{}MiB", shards.split_at_bytes.expect("a size") >> 20),
            },
            "payload_index": config.payload_index,
            "embedder": config.embedder,
            "payload_bytes_max": config.payload_bytes_max,
        },
    })
}

fn sizes_json(shown: &mut Value, sizes: &v1::Sizes) {
    shown["facts"] = json!(sizes.facts);
    shown["vectors"] = json!(sizes.vectors);
    shown["dead_rows"] = json!(sizes.dead_rows);
    shown["memtable_facts"] = json!(sizes.memtable_facts);
    shown["memtable_bytes"] = json!(sizes.memtable_bytes);
    shown["disk_bytes"] = json!(sizes.disk_bytes);
    shown["frozen_memtables"] = json!(sizes.frozen_memtables);
    shown["compaction_due"] = json!(sizes.compaction_due);
    shown["index_coverage"] = json!(sizes.index_coverage);
}

fn stats_json(reply: &v1::StatsReply) -> Value {
    let exact = |number: u64| match number > 1 << 53 {
        true => json!(number.to_string()),
        false => json!(number),
    };
    let shard = |shard: &v1::ShardStats| {
        let mut shown = json!({
            "shard": shard.shard, "epoch": shard.epoch, "start": exact(shard.start),
            "end": shard.end.map(exact), "index": shard.index,
            "segments": shard.segments.iter().map(|one| json!({
                "id": one.id, "rows": one.rows, "dead": one.dead, "bytes": one.bytes,
                "way": one.way, "recall": one.recall, "alarm": one.alarm,
            })).collect::<Vec<_>>(),
        });
        sizes_json(&mut shown, shard.sizes.as_ref().expect("sizes"));
        shown
    };
    let segments = reply.shards.iter().map(|shard| shard.segments.len()).sum::<usize>();
    let mut shown = json!({
        "graph": reply.graph, "segments": segments,
        "shards": reply.shards.iter().map(shard).collect::<Vec<_>>(),
    });
    sizes_json(&mut shown, reply.total.as_ref().expect("sizes"));
    shown
}
