//! A client without a network: requests go straight into the router.

use super::fake::World;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::server::{AlwaysReady, HttpConfig, Surface, router};
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt;

/// A server and the world behind it.
pub struct Api {
    pub world: Arc<World>,
    pub surface: Arc<Surface>,
    router: Router,
}

/// One response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("visible ASCII"))
    }

    /// The problem's code, and the pointer of its first fault.
    pub fn problem(&self) -> (String, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.body);
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16());
        assert_eq!(json["request_id"], self.header("x-request-id").expect("an id"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&json["code"]), text(&json["errors"][0]["pointer"]))
    }
}

impl Api {
    pub fn new() -> Self {
        Self::with(HttpConfig::default())
    }

    pub fn with(config: HttpConfig) -> Self {
        Self::with_settings(config, CoordinatorConfig::default())
    }

    pub fn with_settings(config: HttpConfig, settings: CoordinatorConfig) -> Self {
        let world = World::new();
        let surface = Surface::new(world.engine_with(settings), Arc::new(AlwaysReady), config);
        Self { world, router: router(surface.clone()), surface }
    }

    pub fn over(world: Arc<World>, surface: Arc<Surface>, router: Router) -> Self {
        Self { world, surface, router }
    }

    /// Sends `method path` with `Name: value` lines and a body.
    pub async fn send(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let (parts, body) = self.begin(line, headers, body).await.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// The same, but the body of the response waits to be read.
    pub async fn begin(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let (method, path) = line.split_once(' ').expect("a method and a path");
        let mut request = Request::builder().method(method).uri(path).header("host", "x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        self.router.clone().oneshot(request).await.expect("always a response")
    }

    /// The same without headers of its own.
    pub async fn ask(&self, line: &str, body: &str) -> Answer {
        self.send(line, &[], body.to_owned()).await
    }

    /// The same, which must succeed.
    pub async fn done(&self, line: &str, body: &str) -> Value {
        let answer = self.ask(line, body).await;
        assert!(answer.status.is_success(), "{line}: {}", answer.body);
        answer.json()
    }

    /// Bytes of replies under way.
    pub async fn reply_bytes(&self) -> u64 {
        let metrics = self.ask("GET /metrics", "").await.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("hopbine_reply_bytes "));
        line.expect("a gauge").parse().expect("a number")
    }

    /// Two graphs: `people` with names in two shards and `numbers` with u64 ids, cut at 100.
    pub async fn filled() -> Self {
        let api = Self::new();
        let shards = r#""shards": {"initial": 2}"#;
        let config = format!(r#"{{"vector": {{"dim": 2}}, {shards}, "embedder": "lexical"}}"#);
        api.done("PUT /v1/graphs/people", &config).await;
        let config = r#"{"vector": {"dim": 2}, "ids": "u64", "shards": {"boundaries": [100]}}"#;
        api.done("PUT /v1/graphs/numbers", config).await;
        let facts = r#"{"facts": [
            {"entity": "Marie Curie", "relation": "discovered", "target": "polonium",
             "embedding": [1, 0], "payload": {"text": "found in 1898", "year": 1898}},
            {"entity": "polonium", "relation": "named_after", "target": "Poland",
             "embedding": [3, 4], "payload": "a country"},
            {"entity": "polonium", "relation": "kind_of", "target": "metal"}]}"#;
        api.done("PUT /v1/graphs/people/facts", facts).await;
        let facts = r#"{"facts": [
            {"entity": 7, "relation": 1, "target": 18446744073709551615, "embedding": [0, 1]},
            {"entity": "18446744073709551615", "relation": 2, "target": 9007199254740993}]}"#;
        api.done("PUT /v1/graphs/numbers/facts", facts).await;
        api
    }
}
