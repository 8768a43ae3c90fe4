//! `multidepth`: chains of up to five facts, asked along their first 1 to 5 hops. All facts of a
//! person lie near the person's direction; what tells the hops apart is a small step of their own.

use super::mt19937::sample_floor;
use super::{Mt19937, Point, Query, SeedOn, Workload, WorkloadError};
use hopbine_coordinator::embed::round_6;
use hopbine_proto::call::Relations;
use hopbine_proto::{EntityId, Fact, FactKey, RelationId};
use std::sync::Arc;

/// Hops of a chain at most.
pub const DEPTH_MAX: u32 = 5;
/// From so many chains on the point of large runs holds, with its smaller steps between hops.
pub const SCALE_PAIRS: u32 = 20_000;
/// Seed of the questions.
pub const SEED: u32 = 42;

/// How many chains of how many facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Chains.
    pub pairs: u32,
    /// Facts of a chain: 1 to [`DEPTH_MAX`].
    pub depth: u32,
    /// Components of an embedding.
    pub dim: u32,
}

impl Size {
    fn is_large(self) -> bool {
        self.pairs >= SCALE_PAIRS
    }

    /// Length of a hop's own step against the person's direction.
    fn hop_weight(self) -> f64 {
        if self.is_large() { 0.05 } else { 0.15 }
    }

    fn point(self) -> Point {
        if self.is_large() {
            return Point { ann_k: 256, top_k: 32, m: 16, ef_construction: 64, ef_search: 128 };
        }
        Point { ann_k: 64, top_k: 10, m: 24, ef_construction: 200, ef_search: 128 }
    }

    /// The part, from 0, of `segments` that holds all facts of the person who is `id`'s chain.
    pub fn segment_of(self, id: EntityId, segments: u32) -> usize {
        let (pairs, segments) = (u64::from(self.pairs), u64::from(segments));
        // Each hop numbers its entities in the order of the persons.
        let person = (id.0 - 1) % pairs;
        (person * segments / pairs).min(segments - 1) as usize
    }
}

/// The chains, and how their segmented form is cut and asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The chains.
    pub size: Size,
    /// Graphs that the segmented form has: 2 to 64; 0: there is none.
    pub segments: u32,
    /// Segments that a bounded route asks.
    pub fan_out: u32,
}

/// Generates the chains one after the other, each from its first hop on, and for every depth, from
/// 1 on, questions about the same `queries` persons.
///
/// Fails when there are too few chains for drawing that many distinct persons.
pub fn generate(size: Size, queries: u32) -> Result<Workload, WorkloadError> {
    let steps: Vec<Vec<f64>> = (1..=size.depth).map(|hop| step(hop, size.dim)).collect();
    let mut facts = Vec::with_capacity(size.pairs as usize * steps.len());
    for person in 1..=size.pairs {
        let direction = direction(person, size.dim);
        facts.extend(
            (1..).zip(&steps).map(|(hop, step)| {
                fact(size, person, hop, unit(&direction, step, size.hop_weight()))
            }),
        );
    }
    let least = sample_floor(queries) + 1;
    let have = size.pairs;
    let persons = Mt19937::new(SEED)
        .sample(have, queries)
        .ok_or(WorkloadError::TooFewToSample { what: "pairs", have, queries, least })?;
    let mut asked = Vec::new();
    let mut sum = vec![0.0; size.dim as usize];
    for (depth, step) in (1..).zip(&steps) {
        sum.iter_mut().zip(step).for_each(|(sum, step)| *sum += step);
        let vector = |person| unit(&direction(person, size.dim), &sum, size.hop_weight());
        asked.extend(persons.iter().map(|person| question(size, *person, depth, vector(*person))));
    }
    Ok(Workload {
        name: "multidepth",
        dim: size.dim as usize,
        facts,
        queries: asked,
        seed_on: SeedOn::Entity,
        point: size.point(),
    })
}

fn direction(person: u32, dim: u32) -> Vec<f64> {
    let component = |k: u32| {
        let ik = f64::from(person) * f64::from(k);
        (0.013 * ik).sin() + 0.7 * (0.017 * ik).cos()
    };
    (1..=dim).map(component).collect()
}

/// What a hop adds to the direction of a person.
fn step(hop: u32, dim: u32) -> Vec<f64> {
    let component = |k: u32| {
        let k = f64::from(k);
        let (up, down) = (f64::from(1_000 + hop) * k, f64::from(2_000 + hop) * k);
        0.6 * (0.019 * up).sin() + 0.4 * (0.023 * down).cos()
    };
    (1..=dim).map(component).collect()
}

fn unit(direction: &[f64], step: &[f64], weight: f64) -> Arc<[f32]> {
    let sum: Vec<f64> = direction.iter().zip(step).map(|(p, h)| p + weight * h).collect();
    let norm = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    sum.into_iter().map(|x| round_6(x / norm)).collect()
}

fn fact(size: Size, person: u32, hop: u32, embedding: Arc<[f32]>) -> Fact {
    let (n, i, h) = (u64::from(size.pairs), u64::from(person), u64::from(hop));
    let text = format!("Person_{person} rel_{hop} node_{hop}_{person}.");
    Fact {
        key: FactKey::new((h - 1) * n + i, hop, h * n + i),
        names: None,
        embedding: Some(embedding),
        payload: Some(super::text_payload(&text)),
    }
}

fn question(size: Size, person: u32, depth: u32, vector: Arc<[f32]>) -> Query {
    Query {
        text: format!("where do {depth} hops from person {person} lead?"),
        vector,
        entity: EntityId(u64::from(person)),
        hops: (1..=depth).map(|hop| Relations::Of(vec![RelationId(hop)])).collect(),
        answer: Some(EntityId(u64::from(depth) * u64::from(size.pairs) + u64::from(person))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Size = Size { pairs: 5_000, depth: 5, dim: 384 };

    #[track_caller]
    fn begins(vector: &[f32], golden: [f32; 4]) {
        // The libraries of machines may round a sine differently in its last digit.
        for (got, want) in vector.iter().zip(golden) {
            assert!((got - want).abs() <= 2e-6, "{vector:?} against {golden:?}");
        }
    }

    fn vector(size: Size, person: u32, hop: u32) -> Arc<[f32]> {
        unit(&direction(person, size.dim), &step(hop, size.dim), size.hop_weight())
    }

    #[test]
    fn vectors_are_the_golden_ones() {
        begins(&vector(SMALL, 1, 1), [0.058_212, 0.059_807, 0.069_856, 0.065_491]);
        begins(&vector(SMALL, 1, 5), [0.058_339, 0.061_600, 0.071_233, 0.065_380]);
        begins(&vector(SMALL, 5_000, 3), [0.007_498, -0.015_862, -0.016_080, 0.074_153]);
        let large = Size { pairs: SCALE_PAIRS, dim: 64, ..SMALL };
        begins(&vector(large, 1, 1), [0.090_997, 0.092_905, 0.099_150, 0.097_953]);
    }

    #[test]
    fn questions_are_the_golden_ones_at_every_depth() {
        let workload = generate(SMALL, 32).expect("enough pairs");
        assert_eq!((workload.facts.len(), workload.queries.len()), (25_000, 160));
        for of_depth in workload.queries.chunks(32) {
            let persons: Vec<u64> = of_depth.iter().take(6).map(|query| query.entity.0).collect();
            assert_eq!(persons, [913, 205, 2254, 2007, 1829, 1144]);
        }
        let (first, last) = (&workload.queries[0], &workload.queries[128]);
        begins(&first.vector, [-0.079_208, -0.019_973, -0.080_087, 0.012_190]);
        begins(&last.vector, [-0.080_173, -0.017_677, -0.052_085, 0.020_701]);
        assert_eq!((first.hops.len(), last.hops.len()), (1, 5));
        assert_eq!(last.answer, Some(EntityId(5 * 5_000 + 913)));
    }

    #[test]
    fn a_chain_leads_from_the_person_hop_by_hop_and_stays_in_one_segment() {
        let size = Size { pairs: 300, depth: 5, dim: 2 };
        let workload = generate(size, 8).expect("enough pairs");
        let mut counts = [0; 7];
        for chain in workload.facts.chunks(5) {
            assert!(chain.windows(2).all(|pair| pair[0].key.target == pair[1].key.entity));
            let segments: Vec<usize> =
                chain.iter().map(|fact| size.segment_of(fact.key.entity, 7)).collect();
            assert!(segments.iter().all(|segment| *segment == segments[0]), "{segments:?}");
            counts[segments[0]] += 1;
        }
        assert!(counts.iter().all(|count| (42..=43).contains(count)), "{counts:?}");
        let (first, last) = (EntityId(1), EntityId(300));
        assert_eq!((size.segment_of(first, 7), size.segment_of(last, 7)), (0, 6));
    }
}
