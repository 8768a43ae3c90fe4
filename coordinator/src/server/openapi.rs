//! The published description of the API (OpenAPI 3.1): paths from the table of routes, shapes from
//! `schemas.json`, whose fields are held to the ones that are read.

use super::routes::{Endpoint, ROUTES, Route};
use hopbine_proto::status::Code;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// Shapes of requests and replies by name: a route's name in camel case and `Request` or `Reply`.
const SCHEMAS: &str = include_str!("schemas.json");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    serde_json::to_string_pretty(&build()).expect("a tree of plain values serialises") + "\n"
});

/// The document as JSON text; made once.
pub fn document() -> &'static str {
    &DOCUMENT
}

fn schemas() -> Map<String, Value> {
    let mut schemas: Map<String, Value> =
        serde_json::from_str(SCHEMAS).expect("the schemas are checked by a test");
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
    schemas.insert("Code".into(), json!({ "type": "string", "enum": codes }));
    schemas
}

fn build() -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hopbine",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Distributed GraphRAG retrieval: nearest facts, hops along a relation \
                path and exact path-aware rerank in one call.",
        },
        "paths": paths,
        "components": { "schemas": schemas() },
    })
}

/// `graph_rag` and `Reply` make `GraphRagReply`.
fn schema_name(route: &Route, suffix: &str) -> String {
    let words = route.name.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]);
    words.collect::<String>() + suffix
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn content(media: &str, schema: Value) -> Value {
    json!({ media: { "schema": schema } })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if route.body.is_some() {
        let mut bodies = content("application/json", reference(&schema_name(route, "Request")));
        if route.endpoint == Endpoint::Upsert {
            bodies["application/x-ndjson"] = json!({ "schema": reference("Fact") });
        }
        operation["requestBody"] = json!({ "required": true, "content": bodies });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let mut parameters = Vec::new();
    let mut add = |place: &str, name: &str, required: bool| {
        let schema = json!({ "type": "string" });
        parameters
            .push(json!({ "name": name, "in": place, "required": required, "schema": schema }));
    };
    for name in ["graph", "id"] {
        if route.path.contains(&format!("{{{name}}}")) {
            add("path", name, true);
        }
    }
    for name in route.query {
        add("query", name, *name == "confirm");
    }
    if !route.endpoint.is_api() {
        return parameters;
    }
    add("header", "X-Request-Id", false);
    add("header", "traceparent", false);
    match route.endpoint {
        Endpoint::PatchGraph => add("header", "If-Match", true),
        Endpoint::DropGraph => add("header", "If-Match", false),
        Endpoint::GetGraph => add("header", "If-None-Match", false),
        Endpoint::Upsert | Endpoint::Write | Endpoint::Delete => {
            add("header", "Idempotency-Key", false);
        }
        Endpoint::SlowQueries => {}
        _ if route.path.ends_with("{graph}") || route.path == "/v1/graphs" => {}
        _ => add("header", "Consistency-Token", false),
    }
    parameters
}

fn responses(route: &Route) -> Value {
    let reply = match route.endpoint {
        Endpoint::Live | Endpoint::Ready | Endpoint::Metrics => {
            content("text/plain", json!({ "type": "string" }))
        }
        Endpoint::OpenApi => content("application/json", json!({ "type": "object" })),
        _ => content("application/json", reference(&schema_name(route, "Reply"))),
    };
    let mut responses = json!({ "200": { "description": "Done", "content": reply } });
    if route.endpoint == Endpoint::PutGraph {
        let reply = content("application/json", reference("PutGraphReply"));
        responses["201"] = json!({ "description": "Created", "content": reply });
    }
    if route.endpoint == Endpoint::GetGraph {
        responses["304"] = json!({ "description": "As If-None-Match says" });
    }
    if route.endpoint == Endpoint::Ready {
        let lines = content("text/plain", json!({ "type": "string" }));
        responses["503"] = json!({ "description": "Not ready", "content": lines });
    }
    if route.endpoint.is_api() {
        let problem = content("application/problem+json", reference("Problem"));
        responses["default"] = json!({ "description": "A problem", "content": problem });
    }
    responses
}

#[cfg(test)]
mod tests {
    use super::super::decode::{facts, graphs, retrieval, values};
    use super::*;
    use std::collections::BTreeSet;

    fn resolve<'a>(schemas: &'a Map<String, Value>, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some(name) => resolve(schemas, &schemas[name]),
            None => schema,
        }
    }

    fn assert_fields(schemas: &Map<String, Value>, name: &str, schema: &Value, known: &[&str]) {
        let schema = resolve(schemas, schema);
        let properties = schema["properties"].as_object().expect(name);
        let described: BTreeSet<_> = properties.keys().map(String::as_str).collect();
        assert_eq!(described, known.iter().copied().collect(), "fields of {name}");
        assert_eq!(schema["additionalProperties"], false, "{name} takes no other field");
    }

    #[test]
    fn the_fields_described_are_the_fields_read() {
        let schemas = schemas();
        for route in ROUTES {
            if let Some(body) = route.body {
                let name = schema_name(route, "Request");
                assert_fields(&schemas, &name, &schemas[&name], body);
            }
        }
        for (name, known) in [
            ("Fact", facts::FACT),
            ("Key", values::KEY),
            ("Prefix", values::PREFIX),
            ("Query", values::QUERY),
            ("Question", values::QUERY_WITHOUT_ENTITIES),
        ] {
            assert_fields(&schemas, name, &schemas[name], known);
        }
        let config = &schemas["GraphConfig"]["properties"];
        let patch = &schemas["PatchGraphRequest"]["properties"];
        assert_fields(&schemas, "vector", &config["vector"], graphs::VECTOR);
        assert_fields(&schemas, "index", &config["index"], graphs::INDEX);
        assert_fields(&schemas, "shards", &config["shards"], graphs::SHARDS);
        assert_fields(&schemas, "index", &patch["index"], graphs::PATCH_INDEX);
        assert_fields(&schemas, "shards", &patch["shards"], graphs::PATCH_SHARDS);
        let seeds = &schemas["GraphRagRequest"]["properties"]["seeds"]["oneOf"][1];
        assert_fields(&schemas, "seeds", seeds, retrieval::SEEDS);
        for (name, known) in [("Parts", values::PARTS), ("FactParts", values::FACT_PARTS)] {
            assert_eq!(schemas[name]["items"]["enum"], json!(known), "{name}");
        }
    }

    #[test]
    fn what_this_version_refuses_is_not_offered() {
        let schemas = schemas();
        let rag = &schemas["GraphRagRequest"]["properties"];
        let seeds = &rag["seeds"]["oneOf"][1];
        assert_eq!(seeds["properties"]["names"]["const"], false);
        assert_eq!(seeds["properties"]["lexical"]["type"], "null");
        assert_eq!(seeds["required"], json!(["ann"]));
        let embedders = schemas["GraphConfig"]["properties"]["embedder"]["oneOf"].as_array();
        let objects = embedders.expect("a choice").iter().filter(|one| one["type"] == "object");
        assert_eq!(objects.count(), 0, "an embedder behind a URL is refused");
    }

    #[test]
    fn every_reference_leads_somewhere_and_no_schema_is_idle() {
        let document = build();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let mut used = BTreeSet::new();
        for part in text.split("\"#/components/schemas/").skip(1) {
            used.insert(part.split('"').next().expect("a name"));
        }
        let known: BTreeSet<_> = schemas.keys().map(String::as_str).collect();
        assert_eq!(used, known);
    }

    #[test]
    fn every_route_is_described() {
        let document: Value = serde_json::from_str(document()).expect("JSON");
        for route in ROUTES {
            let operation = &document["paths"][route.path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["operationId"], route.name);
        }
    }
}
