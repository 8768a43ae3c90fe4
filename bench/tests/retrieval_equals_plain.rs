//! Every retrieval through the engine, over any number of shards, equals the plain evaluator:
//! keys, scores to the bit, and paths. Small random graphs are made to be nasty: few distinct
//! vectors (equal distances), cycles, self-loops, parallel relations, facts without embedding,
//! and the first and last ids of the key space.

#[path = "../../coordinator/tests/fake/mod.rs"]
mod fake;

use fake::World;
use hopbine_bench::plain::{Column, Found, Plain, Question, Starts};
use hopbine_coordinator::client::Shards;
use hopbine_coordinator::reply::RetrievalReply;
use hopbine_coordinator::request::*;
use hopbine_proto::call::{Relations, Wait, WriteBatch, WriteContext, WriteOp};
use hopbine_proto::filter::{Condition, Filter, Scalar};
use hopbine_proto::graph::{GraphConfig, IdKind};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::shard_map::owner;
use hopbine_proto::{EntityId, Fact, FactKey, Metric, RelationId};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const DIM: usize = 3;

/// Few of them, none zero, several at equal distances from each other.
const VECTORS: [[f32; DIM]; 6] = [
    [1.0, 0.0, 0.0],
    [0.0, 1.0, 0.0],
    [1.0, 1.0, 0.0],
    [-1.0, 0.5, 0.25],
    [0.3, 0.1, 0.7],
    [0.1, 0.3, 0.7],
];

fn entity() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..9, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1)]
}

fn fact() -> impl Strategy<Value = Fact> {
    let embedding = proptest::option::weighted(0.85, 0usize..VECTORS.len());
    (entity(), 1u32..4, entity(), embedding, proptest::option::of(0u8..3)).prop_map(
        |(entity, relation, target, embedding, colour)| Fact {
            key: FactKey::new(entity, relation, target),
            names: None,
            embedding: embedding.map(|i| VECTORS[i].as_slice().into()),
            payload: colour.map(|colour| format!("{{\"colour\":{colour}}}").into()),
        },
    )
}

#[derive(Clone, Debug)]
enum From {
    Seeds { ann_k: usize, relations: Option<Vec<u32>>, on_target: bool, weight: f64 },
    Entities(Vec<u64>),
}

#[derive(Clone, Debug)]
struct Ask {
    query: Option<usize>,
    from: From,
    hops: Vec<(Option<Vec<u32>>, f64)>,
    colour: Option<u8>,
    limit_per_entity: usize,
    beam: usize,
    return_to_start: bool,
    score: ScoreMode,
    top_k: usize,
}

fn relations() -> impl Strategy<Value = Option<Vec<u32>>> {
    proptest::option::of(proptest::collection::vec(1u32..4, 1..3))
}

fn from() -> impl Strategy<Value = From> {
    let weight = prop_oneof![Just(0.0), Just(1.0), Just(0.5)];
    prop_oneof![
        2 => (1usize..8, relations(), any::<bool>(), weight).prop_map(
            |(ann_k, relations, on_target, weight)| {
                From::Seeds { ann_k, relations, on_target, weight }
            }
        ),
        1 => proptest::collection::vec(entity(), 1..5).prop_map(From::Entities),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let weight = prop_oneof![3 => Just(1.0), 1 => Just(0.0), 1 => Just(0.3), 1 => Just(-0.5)];
    let hops = proptest::collection::vec((relations(), weight), 0..5);
    let score = prop_oneof![Just(ScoreMode::Path), Just(ScoreMode::Endpoint)];
    let limits = (1usize..4, 1usize..6, 1usize..12);
    let query = proptest::option::weighted(0.85, 0usize..VECTORS.len());
    (query, from(), hops, proptest::option::weighted(0.3, 0u8..3), limits, any::<bool>(), score)
        .prop_map(|(query, from, mut hops, colour, limits, return_to_start, score)| {
            let seeded = matches!(from, From::Seeds { .. });
            if !seeded && hops.is_empty() {
                hops.push((None, 1.0));
            }
            Ask {
                query: if seeded { Some(query.unwrap_or(0)) } else { query },
                from,
                hops,
                colour,
                limit_per_entity: limits.0,
                beam: limits.1,
                return_to_start,
                score,
                top_k: limits.2,
            }
        })
}

fn relation_set(relations: &Option<Vec<u32>>) -> Relations {
    let Some(list) = relations else { return Relations::Any };
    let mut list: Vec<RelationId> = list.iter().map(|r| RelationId(*r)).collect();
    list.sort();
    list.dedup();
    Relations::Of(list)
}

fn relation_refs(relations: &[u32]) -> Vec<RelationRef> {
    relations.iter().map(|r| RelationRef::Number((*r).into())).collect()
}

fn question(ask: &Ask) -> Question {
    let starts = match &ask.from {
        From::Entities(list) => Starts::Entities(list.iter().map(|e| EntityId(*e)).collect()),
        From::Seeds { ann_k, relations, on_target, weight } => Starts::Nearest {
            ann_k: *ann_k,
            relations: relation_set(relations),
            column: if *on_target { Column::Target } else { Column::Entity },
            weight: *weight,
        },
    };
    let filter = ask.colour.map(|colour| Filter {
        must_not: vec![Condition::Match {
            path: vec!["colour".into()],
            any_of: vec![Scalar::Int(colour.into())],
        }],
        ..Filter::default()
    });
    Question {
        query: ask.query.map(|i| VECTORS[i].as_slice().into()),
        starts,
        hops: ask.hops.iter().map(|(r, weight)| (relation_set(r), *weight)).collect(),
        filter,
        limit_per_entity: ask.limit_per_entity,
        beam: ask.beam,
        return_to_start: ask.return_to_start,
        score: ask.score,
        top_k: ask.top_k,
        after: None,
    }
}

fn request(ask: &Ask) -> GraphRagRequest {
    let mut request = GraphRagRequest {
        query: Query {
            embedding: ask.query.map(|i| VECTORS[i].as_slice().into()),
            ..Query::default()
        },
        relation_path: ask
            .hops
            .iter()
            .map(|(relations, _)| match relations {
                None => HopRelations::Any,
                Some(list) => HopRelations::Of(relation_refs(list)),
            })
            .collect(),
        hop_weights: Some(ask.hops.iter().map(|(_, weight)| *weight).collect()),
        exact_seeds: true,
        top_k: ask.top_k as u64,
        score_mode: ask.score,
        limit_per_entity: ask.limit_per_entity as u64,
        beam: ask.beam as u64,
        return_to_start: ask.return_to_start,
        filter: ask
            .colour
            .map(|colour| serde_json::json!({"must_not": [{"key": "colour", "match": colour}]})),
        ..GraphRagRequest::default()
    };
    match &ask.from {
        From::Entities(list) => {
            request.query.entities = list.iter().map(|e| EntityRef::Number(*e)).collect();
        }
        From::Seeds { ann_k, relations, on_target, weight } => {
            request.ann_k = *ann_k as u64;
            request.seed_relations = relations.as_deref().map(relation_refs);
            request.seed_on = if *on_target { SeedOn::Target } else { SeedOn::Entity };
            request.seed_weight = *weight;
        }
    }
    request
}

fn config(metric: Metric, boundaries: &[u64]) -> GraphConfig {
    let mut config = GraphConfig::new(DIM as u32, IdKind::U64);
    config.vector.metric = metric;
    config.shards.boundaries = boundaries.to_vec();
    config
}

/// Puts the facts straight into the shards.
async fn load(world: &Arc<World>, metric: Metric, boundaries: &[u64], facts: &[Fact]) {
    let engine = world.engine();
    let graph = engine.create_graph("g", config(metric, boundaries)).await.expect("created").0;
    let deadline = Duration::MAX;
    for fact in facts {
        let shard = &graph.shards[owner(&graph.shards, fact.key.entity)];
        let at = WriteContext {
            graph: graph.id,
            shard: shard.id,
            epoch: shard.epoch,
            deadline,
            wait: Wait::Committed,
        };
        let ops = vec![WriteOp::Upsert(fact.clone())];
        world
            .write(at, WriteBatch { ops: Arc::new(ops), idempotency: None })
            .await
            .expect("written");
    }
}

fn found(reply: &RetrievalReply) -> Vec<Found> {
    let results = reply.results.iter();
    results
        .map(|result| Found {
            key: result.fact.id,
            score: result.distance,
            path: result.path.iter().map(|step| (step.fact.id, step.distance)).collect(),
        })
        .collect()
}

fn on_runtime<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}

fn metric() -> impl Strategy<Value = Metric> {
    prop_oneof![3 => Just(Metric::Cosine), 1 => Just(Metric::L2), 1 => Just(Metric::Dot)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn every_question_over_any_shards_equals_the_plain_evaluator(
        mut facts in proptest::collection::vec(fact(), 1..60),
        cuts in proptest::collection::btree_set(
            prop_oneof![5 => 1u64..9, 1 => Just(u64::MAX), 1 => Just(100)], 0..8,
        ),
        asks in proptest::collection::vec(ask(), 1..4),
        metric in metric(),
    ) {
        if metric != Metric::Cosine {
            facts.retain(|fact| fact.embedding.is_some());
        }
        let mut plain = Plain::new(metric);
        for fact in &facts {
            plain.write(&[WriteOp::Upsert(fact.clone())]);
        }
        let cuts: Vec<u64> = cuts.into_iter().collect();
        on_runtime(async {
            let world = World::new();
            load(&world, metric, &cuts, &facts).await;
            let engine = world.engine();
            for ask in &asks {
                let options = CallOptions::default();
                let reply = engine.graph_rag("g", &request(ask), &options).await.expect("answered");
                prop_assert_eq!(found(&reply), plain.answer(&question(ask)), "{:?}", ask);
                prop_assert!(!reply.partial);
                prop_assert_eq!(world.unreleased(), 0);
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_pages_of_an_expansion_are_its_whole_answer(
        facts in proptest::collection::vec(fact(), 1..60),
        cuts in proptest::collection::btree_set(1u64..9, 0..8),
        mut ask in ask(),
        page_size in 1u64..5,
    ) {
        ask.query = None;
        ask.from = From::Entities(vec![0, 1, 2, u64::MAX]);
        if ask.hops.is_empty() {
            ask.hops.push((None, 1.0));
        }
        ask.top_k = 1_000;
        let mut plain = Plain::new(Metric::Cosine);
        for fact in &facts {
            plain.write(&[WriteOp::Upsert(fact.clone())]);
        }
        let whole = request(&ask);
        let mut expand = ExpandRequest {
            from: whole.query.entities,
            relation_path: whole.relation_path,
            page_size: Some(page_size),
            limit_per_entity: whole.limit_per_entity,
            beam: whole.beam,
            return_to_start: whole.return_to_start,
            filter: whole.filter,
            ..ExpandRequest::default()
        };
        let cuts: Vec<u64> = cuts.into_iter().collect();
        on_runtime(async {
            let world = World::new();
            load(&world, Metric::Cosine, &cuts, &facts).await;
            let engine = world.engine();
            let mut pages = Vec::new();
            loop {
                let reply = engine.expand("g", &expand, &CallOptions::default()).await;
                let reply = reply.expect("answered");
                prop_assert!(reply.results.len() <= page_size as usize);
                pages.extend(found(&reply));
                expand.page_token = reply.next_page_token;
                if expand.page_token.is_none() {
                    break;
                }
                prop_assert_eq!(reply.results.len(), page_size as usize);
            }
            prop_assert_eq!(pages, plain.answer(&question(&ask)));
            Ok(())
        })?;
    }
}
