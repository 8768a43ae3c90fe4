//! Bad calls: each is refused with its code, at its place.

use super::worlds::*;
use hopbine_coordinator::request::*;
use hopbine_proto::graph::EfSearch;
use hopbine_proto::limits;
use hopbine_proto::status::Code;
use serde_json::json;
use std::time::Duration;

type Change = fn(&mut GraphRagRequest);

/// Each change of a good question is refused with its code, at its place.
async fn refuses(code: Code, changes: &[(&str, Change)]) {
    let (_, engine) = curie().await;
    for (pointer, change) in changes {
        let mut request = ask(&["discovered"]);
        change(&mut request);
        let problem = engine.graph_rag("g", &request, &CallOptions::default()).await;
        let problem = problem.expect_err(pointer);
        assert_eq!((problem.code, &*problem.errors[0].pointer), (code, *pointer));
    }
}

#[tokio::test]
async fn a_bad_vector_is_refused_at_its_place() {
    let wrong_length: Change = |r| r.query = Query::vector([1.0]);
    refuses(Code::DimensionMismatch, &[("/query/embedding", wrong_length)]).await;
    refuses(
        Code::NotFinite,
        &[
            ("/query/embedding", |r| r.query = Query::vector([0.0, 0.0])),
            ("/query/embedding/1", |r| r.query = Query::vector([1.0, f32::INFINITY])),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_number_out_of_bounds_is_refused_at_its_place() {
    refuses(
        Code::InvalidRequest,
        &[
            ("/query", |r| r.query = Query::default()),
            ("/query/text", |r| {
                r.query = Query::text("x".repeat(limits::QUERY_TEXT_BYTES_MAX + 1));
            }),
            ("/ann_k", |r| r.ann_k = 0),
            ("/ann_k", |r| r.ann_k = 10_001),
            ("/top_k", |r| r.top_k = u64::MAX),
            ("/beam", |r| r.beam = 100_001),
            ("/limit_rows", |r| r.limit_rows = 0),
            ("/limit_per_entity", |r| r.limit_per_entity = 0),
            ("/seed_weight", |r| r.seed_weight = f64::NAN),
            ("/hop_weights", |r| r.hop_weights = Some(vec![])),
            ("/hop_weights/0", |r| r.hop_weights = Some(vec![f64::INFINITY])),
            ("/ef_search", |r| r.ef_search = Some(EfSearch::Fixed(0))),
            ("/relation_path", |r| r.relation_path = vec![HopRelations::Any; 17]),
            ("/beam", |r| {
                r.beam = 100_000;
                r.relation_path = vec![HopRelations::Any; 16];
            }),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_bad_name_or_filter_is_refused_at_its_place() {
    refuses(
        Code::InvalidRequest,
        &[
            ("/relation_path/0", |r| r.relation_path = vec![HopRelations::Of(vec![])]),
            ("/seed_relations", |r| r.seed_relations = Some(vec![])),
            ("/query/entities/0", |r| r.query.entities = vec![EntityRef::Number(1)]),
            ("/relation_path", |r| {
                r.query.entities = vec![name("a")];
                r.relation_path.clear();
            }),
        ],
    )
    .await;
    refuses(
        Code::RelationNotFound,
        &[
            ("/relation_path/0", |r| {
                r.relation_path = vec![HopRelations::Of(vec![relation("knows")])];
            }),
            ("/relation_path/0/1", |r| {
                let list = vec![relation("discovered"), relation("knows")];
                r.relation_path = vec![HopRelations::Of(list)];
            }),
            ("/filter/must/0/relation/0", |r| {
                r.filter = Some(json!({"must": [{"relation": ["knows"]}]}));
            }),
        ],
    )
    .await;
    let unknown_field: Change = |r| r.filter = Some(json!({"x": 1}));
    refuses(Code::BadFilter, &[("/filter/x", unknown_field)]).await;
}

#[tokio::test]
async fn other_bad_calls_name_their_fault() {
    let (_, engine) = curie().await;
    let missing = engine.graph_rag("h", &two_hops(), &quick()).await.expect_err("no graph");
    assert_eq!(missing.code, Code::GraphNotFound);
    let long = CallOptions { timeout: Duration::from_secs(601), ..CallOptions::default() };
    let refused = engine.graph_rag("g", &two_hops(), &long).await.expect_err("too long");
    assert_eq!(refused.errors[0].pointer, "/timeout");
    let empty = engine.graph_rag_batch("g", &[], &quick()).await.expect_err("an empty batch");
    assert_eq!(empty.errors[0].pointer, "/requests");
    let expand = ExpandRequest { page_size: Some(1), ..ExpandRequest::default() };
    let refused = engine.expand("g", &expand, &quick()).await.expect_err("no start");
    assert_eq!(refused.errors[0].pointer, "/from");
}
