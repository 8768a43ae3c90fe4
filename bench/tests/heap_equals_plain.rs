//! The baseline rows, which the gate compares with, answer like the plain evaluator.

use hopbine_bench::heap::{Heap, Scored};
use hopbine_bench::plain::{Plain, Question, Starts};
use hopbine_proto::call::{Relations, WriteOp};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, Fact, FactKey, Metric, RelationId};
use hopbine_shard_store::kernel::ExactQuery;
use proptest::prelude::*;

/// Small ids and few distinct vectors: cycles, parallel edges and equal distances are common.
fn any_fact() -> impl Strategy<Value = Fact> {
    let vector = prop::sample::select(vec![[1.0_f32, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]]);
    (0_u64..6, 1_u32..4, 0_u64..6, vector).prop_map(|(entity, relation, target, vector)| Fact {
        key: FactKey::new(entity, relation, target),
        names: None,
        embedding: Some(vector.into()),
        payload: None,
    })
}

fn any_facts() -> impl Strategy<Value = Vec<Fact>> {
    prop::collection::vec(any_fact(), 1..40).prop_map(|mut facts| {
        facts.sort_by_key(|fact| fact.key);
        facts.dedup_by_key(|fact| fact.key);
        facts
    })
}

fn any_relations() -> impl Strategy<Value = Relations> {
    prop_oneof![
        Just(Relations::Any),
        Just(Relations::Of(vec![RelationId(1)])),
        Just(Relations::Of(vec![RelationId(2), RelationId(3)])),
    ]
}

fn plain(facts: &[Fact]) -> Plain {
    let mut plain = Plain::new(Metric::Cosine);
    for fact in facts {
        plain.write(&[WriteOp::Upsert(fact.clone())]);
    }
    plain
}

fn rows(found: Vec<Scored>) -> Vec<(FactKey, Option<f64>)> {
    found.into_iter().map(|scored| (scored.key, Some(scored.score))).collect()
}

proptest! {
    #[test]
    fn seeds_are_the_plain_ones(
        facts in any_facts(), k in 1_usize..50, relations in any_relations(), threads in 1_usize..4,
    ) {
        let query = [0.3_f32, 0.8];
        let expected = plain(&facts).nearest(&query, k, &relations, None);
        let pair = |seed: &hopbine_proto::call::Seed| (seed.key, Some(seed.distance));
        let expected: Vec<_> = expected.iter().map(pair).collect();
        let heap = Heap::new(&facts, threads);
        prop_assert_eq!(rows(heap.seeds(&ExactQuery::new(&query), k, &relations)), expected);
    }

    #[test]
    fn hops_are_the_plain_ones(
        facts in any_facts(),
        from in prop::collection::btree_set(0_u64..6, 1..5),
        hops in prop::collection::vec(any_relations(), 1..4),
        ranked in any::<bool>(),
        endpoint in any::<bool>(),
    ) {
        let from: Vec<EntityId> = from.into_iter().map(EntityId).collect();
        let query = [0.3_f32, 0.8];
        let score = if endpoint { ScoreMode::Endpoint } else { ScoreMode::Path };
        let question = Question {
            query: ranked.then(|| query.into()),
            starts: Starts::Entities(from.clone()),
            hops: hops.iter().map(|hop| (hop.clone(), 1.0)).collect(),
            filter: None,
            limit_per_entity: usize::MAX,
            beam: usize::MAX,
            return_to_start: true,
            score,
            top_k: usize::MAX,
            after: None,
        };
        let expected = plain(&facts).answer(&question);
        let expected: Vec<_> = expected.iter().map(|found| (found.key, found.score)).collect();
        let heap = Heap::new(&facts, 1);
        let got = if ranked {
            rows(heap.rank(&from, &hops, &ExactQuery::new(&query), score))
        } else {
            heap.expand_all(&from, &hops).into_iter().map(|key| (key, None)).collect()
        };
        prop_assert_eq!(got, expected);
    }
}
