//! `synthetic`: a regular fact graph for measuring pure expansion.
//!
//! Entity `e` of `1..=N` has `degree` facts; slot `s` has relation `s mod 4 + 1` and target
//! `(48271 e + 997 r + 811 s) mod N + 1`. Seeds are read on the target side.

use super::{Point, Query, SeedOn, Workload};
use hopbine_coordinator::embed::round_6;
use hopbine_proto::call::Relations;
use hopbine_proto::{Fact, FactKey, RelationId};
use std::sync::Arc;

/// Relations in use.
pub const RELATIONS: u64 = 4;
/// Components of an embedding.
pub const DIM: usize = 32;

/// The size of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Entities.
    pub entities: u32,
    /// Facts per entity.
    pub degree: u32,
    /// Exact bytes of a payload's text where the label is shorter; 0: the label alone.
    pub payload_bytes: usize,
}

/// Generates facts and questions: the first `queries` facts in key order, asked with their own
/// vectors.
pub fn generate(size: Size, queries: usize) -> Workload {
    let mut facts = Vec::with_capacity(size.entities as usize * size.degree as usize);
    for e in 1..=u64::from(size.entities) {
        for s in 0..u64::from(size.degree) {
            facts.push(fact(size, e, s));
        }
    }
    let mut by_key: Vec<&Fact> = facts.iter().collect();
    by_key.sort_by_key(|fact| fact.key);
    let queries = by_key.iter().take(queries).map(|fact| question(fact)).collect();
    Workload {
        name: "synthetic",
        dim: DIM,
        facts,
        queries,
        seed_on: SeedOn::Target,
        point: Point { ann_k: 16, top_k: 10, m: 16, ef_construction: 64, ef_search: 32 },
    }
}

/// Relation and target of slot `s` of entity `e`.
fn edge(size: Size, e: u64, s: u64) -> (u64, u64) {
    let r = s % RELATIONS + 1;
    (r, (e * 48_271 + r * 997 + s * 811) % u64::from(size.entities) + 1)
}

fn fact(size: Size, e: u64, s: u64) -> Fact {
    let (r, t) = edge(size, e, s);
    let text = payload(size.payload_bytes, e, r, t);
    Fact {
        key: FactKey::new(e, r as u32, t),
        names: None,
        embedding: Some(vector(e, r, t)),
        payload: Some(super::text_payload(&text)),
    }
}

fn vector(e: u64, r: u64, t: u64) -> Arc<[f32]> {
    let (e, r, t) = (e as f64, r as f64, t as f64);
    let component = |k: usize| {
        let k = (k + 1) as f64;
        round_6((0.013 * e * k).sin() + (0.017 * t * k).cos() + 0.031 * r)
    };
    (0..DIM).map(component).collect()
}

/// The label, filled up to `bytes` with characters of a linear congruential generator.
fn payload(bytes: usize, e: u64, r: u64, t: u64) -> String {
    let mut text = format!("fact:{e}:{r}:{t}");
    if bytes <= text.len() {
        return text;
    }
    text.push('|');
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut x = ((e * 48_271) ^ (r * 997) ^ (t * 811)) & 0xffff_ffff;
    let mut filler = [0_u8; 64];
    for (i, slot) in filler.iter_mut().enumerate() {
        x = (x * 1_664_525 + 1_013_904_223 + i as u64) & 0xffff_ffff;
        *slot = ALPHABET[(x % 36) as usize];
    }
    let missing = bytes - text.len();
    text.extend(filler.iter().cycle().take(missing).map(|&byte| char::from(byte)));
    text
}

fn question(fact: &Fact) -> Query {
    Query {
        text: format!("neighbours of {}", fact.key.target),
        vector: fact.embedding.clone().unwrap_or_default(),
        entity: fact.key.entity,
        hops: vec![relation(fact.key.relation)],
        answer: None,
    }
}

fn relation(id: RelationId) -> Relations {
    Relations::Of(vec![id])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const MEDIUM: Size = Size { entities: 20_000, degree: 16, payload_bytes: 0 };

    #[test]
    fn slots_of_the_first_entity_are_the_golden_ones() {
        let slots: Vec<(u64, u64)> = (0..5).map(|s| edge(MEDIUM, 1, s)).collect();
        assert_eq!(slots, [(1, 9_269), (2, 11_077), (3, 12_885), (4, 14_693), (1, 12_513)]);
    }

    #[test]
    fn the_first_vector_is_the_golden_one() {
        let golden = [0.924_743_f32, 0.608_414, 0.160_560, -0.308_902];
        let first = vector(1, 1, 9_269);
        for (got, want) in first.iter().zip(golden) {
            assert!((got - want).abs() <= 2e-6, "{got} against {want}");
        }
    }

    #[test]
    fn a_filled_payload_is_the_golden_one() {
        let want = "fact:1:1:9269|aefhcc9z2635co17qyfpg853uqj9s49rqm3doctfayfxgglzae";
        assert_eq!(payload(64, 1, 1, 9_269), want);
        assert_eq!(payload(0, 1, 1, 9_269), "fact:1:1:9269");
        assert_eq!(payload(2_048, 1, 1, 9_269).len(), 2_048);
    }

    #[test]
    fn no_key_comes_twice() {
        for degree in [8, 16] {
            let size = Size { degree, ..MEDIUM };
            let keys: BTreeSet<(u64, u64, u64)> = (1..=20_000)
                .flat_map(|e| (0..u64::from(degree)).map(move |s| (e, s)))
                .map(|(e, s)| (e, edge(size, e, s).0, edge(size, e, s).1))
                .collect();
            assert_eq!(keys.len(), 20_000 * degree as usize);
        }
    }

    #[test]
    fn questions_are_the_first_facts_in_key_order() {
        let workload = generate(Size { entities: 300, degree: 4, payload_bytes: 0 }, 16);
        let mut keys: Vec<FactKey> = workload.facts.iter().map(|fact| fact.key).collect();
        keys.sort();
        assert_eq!(workload.queries.len(), 16);
        assert_eq!(workload.queries[5].entity, keys[5].entity);
        assert_eq!(workload.facts.len(), 1_200);
    }
}
