//! What a person is told to act on, over the product's own store.

use super::store::{fact, graph};
use hopbine_coordinator::request::*;
use serde_json::json;

fn told(reply: &hopbine_coordinator::reply::RetrievalReply) -> Vec<(&'static str, &str)> {
    let explanation = reply.explain.as_deref().expect("explained");
    explanation.warnings.iter().map(|one| (one.code, one.message.as_str())).collect()
}

#[tokio::test]
async fn a_hub_few_starts_a_narrow_beam_and_an_empty_relation_are_told() {
    let (store, engine) = graph(&[]).await;
    let near = (100..112)
        .map(|target| fact(1, 1, target, [1.0, target as f32 / 1_000.0, 0.0, 0.0], json!({})));
    let far = fact(2, 1, 100, [-1.0, 0.0, 0.0, 0.0], json!({}));
    let facts = near.chain([far]).collect();
    engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    store.seal();
    let along = |relation| HopRelations::Of(vec![RelationRef::Number(relation)]);
    let mut request = GraphRagRequest {
        query: Query::vector([1.0, 0.1, 0.0, 0.0]),
        relation_path: vec![along(1), along(99)],
        ann_k: 8,
        limit_per_entity: 5,
        beam: 2,
        ..GraphRagRequest::default()
    };
    let options = CallOptions { explain: Explain::Analyze, ..CallOptions::default() };
    let reply = engine.graph_rag("g", &request, &options).await.expect("answered");
    let expected = [
        ("empty_relation", "no fact has the relation 99 of hop 2"),
        ("few_starts", "8 seeds found; distinct starts among them: 1"),
        ("hub", "12 of its 12 facts leave 1 in hop 1; limit_per_entity is 5"),
        ("beam", "hop 1 cut 3 targets beyond a beam of 2"),
    ];
    assert_eq!(told(&reply), expected);
    (request.limit_per_entity, request.beam) = (100, 100);
    request.relation_path = vec![along(1)];
    request.ann_k = 13;
    let reply = engine.graph_rag("g", &request, &options).await.expect("answered");
    let expected = [("few_starts", "13 seeds found; distinct starts among them: 2")];
    assert_eq!(told(&reply), expected);
    request.relation_path.clear();
    let reply = engine.graph_rag("g", &request, &options).await.expect("answered");
    assert_eq!(told(&reply), [], "nothing to act on");
}
