//! The endpoints: one table for dispatch, metrics and the published description.

use super::decode::{facts, graphs, retrieval};

/// What an endpoint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the table below describes each")]
pub enum Endpoint {
    ListGraphs,
    PutGraph,
    GetGraph,
    PatchGraph,
    DropGraph,
    Stats,
    Relations,
    Entity,
    Upsert,
    Write,
    Get,
    Delete,
    Scan,
    Count,
    Search,
    Expand,
    Rerank,
    GraphRag,
    GraphRagBatch,
    Explain,
    SlowQueries,
    Version,
    Live,
    Ready,
    Metrics,
    OpenApi,
}

/// One line of the table.
#[derive(Debug)]
pub struct Route {
    /// What it does.
    pub endpoint: Endpoint,
    /// Method; `GET` stands for `HEAD` too.
    pub method: &'static str,
    /// Path with `{parameters}`.
    pub path: &'static str,
    /// Name of the operation in the description and in metrics.
    pub name: &'static str,
    /// What it does, in a few words.
    pub summary: &'static str,
    /// Parameters of the query string.
    pub query: &'static [&'static str],
    /// Fields of the request body; `None`: it takes none.
    pub body: Option<&'static [&'static str]>,
}

const READ: &[&str] = &["consistency", "max_staleness", "timeout"];
const WRITE: &[&str] = &["wait", "with", "timeout"];

macro_rules! routes {
    ($($endpoint:ident $name:literal $method:literal $path:literal $query:expr, $body:expr,
       $summary:literal;)*) => {
        /// Every endpoint. Those of one path stand together.
        pub const ROUTES: &[Route] = &[$(Route {
            endpoint: Endpoint::$endpoint,
            method: $method,
            path: $path,
            name: $name,
            summary: $summary,
            query: $query,
            body: $body,
        },)*];
    };
}

routes! {
    ListGraphs "list_graphs" "GET" "/v1/graphs" &[], None, "All graphs, by name";
    GetGraph "get_graph" "GET" "/v1/graphs/{graph}" &[], None,
        "One graph's configuration, with its ETag";
    PutGraph "put_graph" "PUT" "/v1/graphs/{graph}" &[], Some(graphs::CONFIG),
        "Create a graph: 201, or 200 when it is there with the same configuration";
    PatchGraph "patch_graph" "PATCH" "/v1/graphs/{graph}" &[], Some(graphs::PATCH),
        "Change a graph that is still at the version named by If-Match";
    DropGraph "drop_graph" "DELETE" "/v1/graphs/{graph}" &["confirm"], None,
        "Drop a graph and its facts; `confirm` repeats its name";
    Stats "stats" "GET" "/v1/graphs/{graph}/stats" READ, None,
        "Counts, bytes, segments and index coverage, in total and by shard";
    Relations "relations" "GET" "/v1/graphs/{graph}/relations" READ, None,
        "The relation dictionary, with live facts per relation";
    Entity "entity" "GET" "/v1/graphs/{graph}/entities/{id}" READ, None,
        "One entity: degree per relation and its first facts";
    Upsert "upsert" "PUT" "/v1/graphs/{graph}/facts" WRITE, Some(facts::UPSERT),
        "Insert or replace a batch of facts, as one JSON object or as NDJSON";
    Write "write" "POST" "/v1/graphs/{graph}/facts/write" WRITE, Some(facts::WRITE),
        "Insert, replace and delete in one batch, atomic within a shard";
    Get "get" "POST" "/v1/graphs/{graph}/facts/get" &[], Some(facts::GET), "Facts by key";
    Delete "delete" "POST" "/v1/graphs/{graph}/facts/delete" WRITE, Some(facts::DELETE),
        "Delete facts by key or by prefix";
    Scan "scan" "POST" "/v1/graphs/{graph}/facts/scan" &[], Some(facts::SCAN),
        "Facts in key order, a page at a time";
    Count "count" "POST" "/v1/graphs/{graph}/facts/count" &[], Some(facts::COUNT),
        "Number of facts under a prefix that pass a filter";
    Search "search" "POST" "/v1/graphs/{graph}/search" &[], Some(retrieval::SEARCH),
        "The facts nearest to a question";
    Expand "expand" "POST" "/v1/graphs/{graph}/expand" &[], Some(retrieval::EXPAND),
        "Hops from known entities, ranked by a question or in key order";
    Rerank "rerank" "POST" "/v1/graphs/{graph}/rerank" &[], Some(retrieval::RERANK),
        "Exact scores of paths that the caller has";
    GraphRag "graph_rag" "POST" "/v1/graphs/{graph}/graph_rag" &[], Some(retrieval::GRAPH_RAG),
        "Seeds, hops along a relation path and exact rerank in one call";
    GraphRagBatch "graph_rag_batch" "POST" "/v1/graphs/{graph}/graph_rag/batch" &[],
        Some(retrieval::BATCH), "Several graph_rag requests, each with its own reply or problem";
    Explain "explain" "POST" "/v1/graphs/{graph}/explain" &[], Some(retrieval::EXPLAIN),
        "How a request would be, or was, answered: stages, shards, numbers, warnings";
    SlowQueries "slow_queries" "GET" "/v1/slow_queries" &[], None,
        "The last queries that took long or had no answer in time, newest first";
    Version "version" "GET" "/version" &[], None, "Name and version of the server";
    Live "livez" "GET" "/livez" &[], None, "Whether the process loop turns";
    Ready "readyz" "GET" "/readyz" &["verbose"], None,
        "Whether requests will be served; one line a condition";
    Metrics "metrics" "GET" "/metrics" &[], None, "Metrics in the Prometheus text format";
    OpenApi "openapi" "GET" "/openapi.json" &[], None, "This description";
}

impl Endpoint {
    /// Whether the gate, the request counts and the shutdown concern it.
    pub fn is_api(self) -> bool {
        use Endpoint::{Live, Metrics, OpenApi, Ready, Version};
        !matches!(self, Version | Live | Ready | Metrics | OpenApi)
    }
}

/// The endpoints of one path, in table order.
pub fn of_path(path: &str) -> impl Iterator<Item = (usize, &'static Route)> {
    ROUTES.iter().enumerate().filter(move |(_, route)| route.path == path)
}

/// The distinct paths.
pub fn paths() -> Vec<&'static str> {
    let mut paths: Vec<_> = ROUTES.iter().map(|route| route.path).collect();
    paths.dedup();
    paths
}

/// The methods of one path, as an `Allow` header says them.
pub fn allow(path: &str) -> String {
    let mut methods = Vec::new();
    for (_, route) in of_path(path) {
        methods.push(route.method);
        if route.method == "GET" {
            methods.push("HEAD");
        }
    }
    methods.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_method_of_a_path_and_each_name_stands_once() {
        let keys: BTreeSet<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        let names: BTreeSet<_> = ROUTES.iter().map(|route| route.name).collect();
        assert_eq!((keys.len(), names.len()), (ROUTES.len(), ROUTES.len()));
        let distinct: BTreeSet<_> = paths().into_iter().collect();
        assert_eq!(distinct.len(), paths().len(), "those of one path stand together");
        assert_eq!(allow("/v1/graphs/{graph}"), "GET, HEAD, PUT, PATCH, DELETE");
    }
}
