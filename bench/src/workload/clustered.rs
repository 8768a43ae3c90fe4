//! `clustered`: clusters of vectors whose relations know nothing of the clusters, so that a
//! filter by relation is uncorrelated with every question.

use super::{Mt19937, Point, Query, SeedOn, Workload};
use hopbine_coordinator::embed::round_6;
use hopbine_proto::call::Relations;
use hopbine_proto::{Fact, FactKey, RelationId};
use std::sync::Arc;

/// Relations and the share of facts that each has, in parts of 1,000; the rest has relation 5.
pub const SHARES: [(u32, u32); 4] = [(1, 500), (2, 100), (3, 10), (4, 1)];
const REST: u32 = 5;
const SEED: u32 = 20_260;
/// Width of a cluster against the distance of the centres: neighbours are in one cluster, but
/// not all at one distance.
const SPREAD: f64 = 0.7;

/// Generates `rows` facts of `dim` components around `clusters` centres, and `queries` questions
/// drawn from the same clusters that are no fact's vector.
pub fn generate(rows: u32, dim: usize, clusters: u32, queries: u32) -> Workload {
    let mut rng = Mt19937::new(SEED);
    let centres: Vec<Vec<f64>> = (0..clusters).map(|_| normal(&mut rng, dim)).collect();
    let mut facts = Vec::with_capacity(rows as usize);
    for i in 0..u64::from(rows) {
        let draw = rng.below(1_000);
        let embedding = Some(point(&mut rng, &centres));
        let key = FactKey::new(i + 1, relation(draw), u64::from(rows) + i + 1);
        facts.push(Fact { key, names: None, embedding, payload: None });
    }
    let question = |at: u32| Query {
        text: format!("neighbours of point {at}"),
        vector: point(&mut rng, &centres),
        entity: facts[0].key.entity,
        hops: Vec::new(),
        answer: None,
    };
    let queries = (0..queries).map(question).collect();
    Workload {
        name: "filters",
        dim,
        facts,
        queries,
        seed_on: SeedOn::Entity,
        point: Point { ann_k: 10, top_k: 10, m: 24, ef_construction: 200, ef_search: 128 },
    }
}

/// The filters by relation, narrowest last, with the share of facts that pass, in percent.
pub fn filters() -> Vec<(f64, Relations)> {
    let filter =
        |(id, share): (u32, u32)| (f64::from(share) / 10.0, Relations::Of(vec![RelationId(id)]));
    SHARES.into_iter().map(filter).collect()
}

fn relation(draw: u32) -> u32 {
    let mut below = 0;
    for (id, share) in SHARES {
        below += share;
        if draw < below {
            return id;
        }
    }
    REST
}

fn point(rng: &mut Mt19937, centres: &[Vec<f64>]) -> Arc<[f32]> {
    let centre = &centres[rng.below(centres.len() as u32) as usize];
    let noise = normal(rng, centre.len());
    let sum: Vec<f64> = centre.iter().zip(noise).map(|(c, n)| c + SPREAD * n).collect();
    let norm = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    sum.into_iter().map(|x| round_6(x / norm)).collect()
}

/// Near-normal components: sums of uniform draws, the same on every machine.
fn normal(rng: &mut Mt19937, dim: usize) -> Vec<f64> {
    // Four draws have variance 1/3; the shape matters little, the clusters do.
    let component = |_| (0..4).map(|_| rng.unit() - 0.5).sum::<f64>() * 3_f64.sqrt();
    (0..dim).map(component).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_what_the_filters_say() {
        let workload = generate(20_000, 4, 10, 3);
        for (percent, filter) in filters() {
            let matching =
                workload.facts.iter().filter(|f| filter.contains(f.key.relation)).count();
            let expected = 20_000.0 * percent / 100.0;
            let slack = 4.0 * expected.sqrt() + 1.0;
            assert!((matching as f64 - expected).abs() < slack, "{matching} of {expected}");
        }
    }

    #[test]
    fn a_question_has_neighbours_nearer_than_most() {
        let workload = generate(500, 32, 10, 5);
        for query in &workload.queries {
            let mut products: Vec<f32> = workload
                .facts
                .iter()
                .filter_map(|fact| fact.embedding.as_ref())
                .map(|v| v.iter().zip(query.vector.iter()).map(|(a, b)| a * b).sum())
                .collect();
            products.sort_by(f32::total_cmp);
            assert!(products[499] > 0.4 && products[250] < 0.4, "no clusters: {products:?}");
        }
    }
}
