//! Which of equals wins, and what bounds do: cases that only show where numbers meet exactly.

mod fake;

use fake::World;
use hopbine_coordinator::Engine;
use hopbine_coordinator::reply::RetrievalReply;
use hopbine_coordinator::request::*;
use hopbine_proto::Metric;
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::limits::WEIGHT_MAX;
use hopbine_proto::status::Code;
use std::sync::Arc;

type Edge = (u64, u64, u64, Option<[f32; 2]>);

fn key(entity: u64, relation: u64, target: u64) -> KeyRef {
    KeyRef {
        entity: EntityRef::Number(entity),
        relation: RelationRef::Number(relation),
        target: EntityRef::Number(target),
    }
}

async fn graph(metric: Metric, boundaries: &[u64], edges: &[Edge]) -> (Arc<World>, Engine) {
    let world = World::new();
    let engine = world.engine();
    let mut config = GraphConfig::new(2, IdKind::U64);
    config.vector.metric = metric;
    config.shards.boundaries = boundaries.to_vec();
    engine.create_graph("g", config).await.expect("created");
    let fact = |(entity, relation, target, vector): &Edge| FactInput {
        key: key(*entity, *relation, *target),
        embedding: vector.map(|vector| vector.into()),
        payload: None,
    };
    let facts = edges.iter().map(fact).collect();
    engine.upsert("g", facts, &WriteOptions::default()).await.expect("written");
    (world, engine)
}

fn along(relations: &[u64]) -> Vec<HopRelations> {
    relations.iter().map(|r| HopRelations::Of(vec![RelationRef::Number(*r)])).collect()
}

fn paths(reply: &RetrievalReply) -> Vec<Vec<u64>> {
    let ids = |result: &hopbine_coordinator::reply::ResultOut| {
        result.path.iter().map(|step| step.fact.id.entity.0).collect()
    };
    reply.results.iter().map(ids).collect()
}

#[tokio::test]
async fn the_sign_of_zero_decides_neither_beam_nor_order() {
    // By dot product start 1 has distance 1 and start 2 has -1; weighed with 0 both are equal.
    let edges = [
        (1, 1, 10, Some([-1.0, 0.0])),
        (2, 1, 20, Some([1.0, 0.0])),
        (10, 2, 5, Some([1.0, 0.0])),
        (20, 2, 5, Some([1.0, 0.0])),
    ];
    let (_world, engine) = graph(Metric::Dot, &[], &edges).await;
    let mut request = GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        seed_relations: Some(vec![RelationRef::Number(1)]),
        seed_weight: 0.0,
        hop_weights: Some(vec![0.0, 1.0]),
        relation_path: along(&[1, 2]),
        beam: 1,
        ..GraphRagRequest::default()
    };
    let options = CallOptions::default();
    let reply = engine.graph_rag("g", &request, &options).await.expect("answered");
    assert_eq!(paths(&reply), [[1, 10]], "the smaller id of two equal prefixes");
    (request.hop_weights, request.relation_path) = (Some(vec![0.0]), along(&[1]));
    let reply = engine.graph_rag("g", &request, &options).await.expect("answered");
    assert_eq!(paths(&reply), [[1], [2]]);
    let score = reply.results[0].distance.expect("a score");
    assert!(score == 0.0 && score.is_sign_positive(), "{score:?}");
}

#[tokio::test]
async fn of_ways_that_a_sum_makes_equal_the_nearer_one_is_shown() {
    // One of the first facts is nearer by a unit in the last place, which the sum swallows.
    let near = |scale: f32| Some([-scale, -scale]);
    let mut edges = vec![(1, 1, 10, near(1.0)), (10, 2, 11, None), (11, 3, 30, None)];
    edges.extend((2..9).map(|entity| (entity, 1, 10, near(7.0))));
    let (_world, engine) = graph(Metric::Cosine, &[], &edges).await;
    let mut first = Vec::new();
    for (from, return_to_start) in [(3, false), (3, true), (9, false), (9, true)] {
        let request = ExpandRequest {
            from: (1..from).map(EntityRef::Number).collect(),
            query: Some(Query::vector([-1.0, -1.0])),
            relation_path: along(&[1, 2, 3]),
            return_to_start,
            ..ExpandRequest::default()
        };
        let reply = engine.expand("g", &request, &CallOptions::default()).await.expect("answered");
        first.push(paths(&reply)[0][0]);
    }
    assert!(first.windows(2).all(|pair| pair[0] == pair[1]), "{first:?}");
}

#[tokio::test]
async fn shards_that_read_more_than_the_limit_together_make_the_hop_partial() {
    let edges: Vec<Edge> = (0..40).map(|n| (n * 10, 1, n, Some([1.0, 0.5]))).collect();
    let (_world, engine) = graph(Metric::Cosine, &[100, 200, 300], &edges).await;
    for (limit_rows, partial) in [(9, true), (39, true), (40, false)] {
        let request = ExpandRequest {
            from: (0..40).map(|n| EntityRef::Number(n * 10)).collect(),
            relation_path: along(&[1]),
            limit_rows,
            ..ExpandRequest::default()
        };
        let reply = engine.expand("g", &request, &CallOptions::default()).await.expect("answered");
        let hop = &reply.coverage.hops[0];
        assert_eq!(reply.partial, partial, "{limit_rows}: {hop:?}");
        assert_eq!(hop.why.as_deref(), partial.then_some("limit_rows"), "{limit_rows}");
    }
}

#[tokio::test]
async fn weights_that_could_overflow_a_score_are_refused_at_their_place() {
    let (_world, engine) = graph(Metric::Dot, &[], &[(1, 1, 2, Some([1.0, 0.0]))]).await;
    let request = |seed_weight, weight| GraphRagRequest {
        query: Query::vector([1.0, 0.0]),
        relation_path: along(&[1]),
        hop_weights: Some(vec![weight]),
        seed_weight,
        ..GraphRagRequest::default()
    };
    let options = CallOptions::default();
    for bad in [2.0 * WEIGHT_MAX, f64::NAN, f64::INFINITY, -2.0 * WEIGHT_MAX] {
        let refused = engine.graph_rag("g", &request(bad, 1.0), &options).await;
        assert_eq!(refused.expect_err("refused").errors[0].pointer, "/seed_weight");
        let refused = engine.graph_rag("g", &request(1.0, bad), &options).await;
        assert_eq!(refused.expect_err("refused").errors[0].pointer, "/hop_weights/0");
    }
    let reply = engine.graph_rag("g", &request(WEIGHT_MAX, WEIGHT_MAX), &options).await;
    assert!(reply.expect("answered").results[0].distance.is_some_and(f64::is_finite));
}

#[tokio::test]
async fn a_page_is_whole_however_many_shards_fill_it() {
    let edges: Vec<Edge> = (1..=20).map(|id| (id, 1, 100 + id, Some([1.0, 0.0]))).collect();
    let request = ExpandRequest {
        from: (1..=20).map(EntityRef::Number).collect(),
        relation_path: along(&[1]),
        page_size: Some(10),
        limit_rows: 15,
        ..ExpandRequest::default()
    };
    for boundaries in [&[11][..], &[5, 11, 16]] {
        let (_world, engine) = graph(Metric::Cosine, boundaries, &edges).await;
        let reply = engine.expand("g", &request, &CallOptions::default()).await.expect("a page");
        assert_eq!((reply.results.len(), reply.partial), (10, false), "{boundaries:?}");
        assert!(reply.next_page_token.is_some());
    }
}

#[tokio::test]
async fn a_reply_is_refused_that_a_small_request_made_huge() {
    let (_world, engine) = graph(Metric::Cosine, &[], &[(2, 1, 3, None)]).await;
    let payload = format!("\"{}\"", "x".repeat(64 * 1024 - 2));
    let payload = Some(serde_json::value::RawValue::from_string(payload).expect("JSON"));
    let fact = FactInput { key: key(1, 1, 1), embedding: Some([1.0, 0.0].into()), payload };
    engine.upsert("g", vec![fact], &WriteOptions::default()).await.expect("written");
    let get = async |times: usize| {
        let keys = (0..times).map(|_| key(1, 1, 1)).collect();
        let request = GetRequest { keys, with: WithParts::PAYLOAD };
        engine.get("g", &request, &CallOptions::default()).await
    };
    assert_eq!(get(1_000).await.expect("64 MB").facts.len(), 1_000);
    let refused = get(100_000).await.expect_err("6.5 GB");
    assert_eq!(refused.code, Code::PayloadTooLarge);
    assert!(refused.hint.is_some_and(|hint| hint.contains("fewer keys")));
}
