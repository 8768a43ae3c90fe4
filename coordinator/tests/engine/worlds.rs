//! Graphs in a world in memory, and what the tests say to them.

use super::fake::World;
use hopbine_coordinator::Engine;
use hopbine_coordinator::config::CoordinatorConfig;
use hopbine_coordinator::request::*;
use hopbine_proto::graph::{Embedder, GraphConfig, IdKind};
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

pub fn name(text: &str) -> EntityRef {
    EntityRef::Name(text.into())
}

pub fn relation(text: &str) -> RelationRef {
    RelationRef::Name(text.into())
}

pub fn named(entity: &str, by: &str, target: &str) -> KeyRef {
    KeyRef { entity: name(entity), relation: relation(by), target: name(target) }
}

pub fn key(entity: u64, by: u64, target: u64) -> KeyRef {
    KeyRef {
        entity: EntityRef::Number(entity),
        relation: RelationRef::Number(by),
        target: EntityRef::Number(target),
    }
}

pub fn fact(key: KeyRef, embedding: Option<&[f32]>, payload: serde_json::Value) -> FactInput {
    let payload = RawValue::from_string(payload.to_string()).expect("JSON");
    FactInput { key, embedding: embedding.map(Into::into), payload: Some(payload) }
}

/// A `names` graph over two shards with Marie Curie's first facts in it.
pub async fn curie() -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine();
    let mut config = GraphConfig::new(2, IdKind::Names);
    config.shards.initial = 2;
    config.embedder = Embedder::Lexical;
    engine.create_graph("g", config).await.expect("created");
    let facts = vec![
        fact(named("Marie Curie", "discovered", "polonium"), Some(&[1.0, 0.0]), json!({"n": 1})),
        fact(named("Marie Curie", "discovered", "radium"), Some(&[1.0, 1.0]), json!({"n": 2})),
        fact(named("polonium", "named_after", "Poland"), Some(&[0.5, 1.0]), json!({"n": 3})),
        fact(named("radium", "named_after", "ray"), None, json!({"n": 4})),
    ];
    let reply = engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    assert_eq!((reply.upserted, reply.replaced), (4, 0));
    (world, engine)
}

/// A `u64` graph whose shards begin at 0 and 100, with one fact in each.
pub async fn numbers() -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine();
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.shards.boundaries = vec![100];
    engine.create_graph("g", config).await.expect("created");
    let facts = vec![
        fact(key(1, 1, 100), Some(&[1.0, 0.0]), json!("a")),
        fact(key(100, 1, 2), Some(&[0.0, 1.0]), json!("b")),
    ];
    engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    (world, engine)
}

/// A `u64` graph of four shards with a fact of 15 MiB in each.
pub async fn heavy() -> (Arc<World>, Engine) {
    heavy_with(CoordinatorConfig::default()).await
}

pub async fn heavy_with(settings: CoordinatorConfig) -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine_with(settings);
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.shards.boundaries = vec![100, 200, 300];
    config.payload_bytes_max = 16 << 20;
    engine.create_graph("g", config).await.expect("created");
    let payload = json!("x".repeat(15 << 20));
    for entity in [1, 100, 200, 300] {
        let facts = vec![fact(key(entity, 1, 1), Some(&[1.0, 0.0]), payload.clone())];
        engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    }
    (world, engine)
}

pub fn ask(path: &[&str]) -> GraphRagRequest {
    GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        ann_k: 1,
        relation_path: path.iter().map(|r| HopRelations::Of(vec![relation(r)])).collect(),
        ..GraphRagRequest::default()
    }
}

pub fn two_hops() -> GraphRagRequest {
    GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        ann_k: 1,
        relation_path: vec![HopRelations::Any, HopRelations::Any],
        ..GraphRagRequest::default()
    }
}

pub fn quick() -> CallOptions {
    CallOptions { timeout: Duration::from_millis(60), ..CallOptions::default() }
}
