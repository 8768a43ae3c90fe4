//! `multihop`: person, parent, city. The sentence with the answer shares no word with the
//! question that would set it apart; only the way through the parent leads to it.

use super::mt19937::sample_floor;
use super::{Embed, Mt19937, Point, Query, SeedOn, Workload, WorkloadError};
use hopbine_proto::call::Relations;
use hopbine_proto::{EntityId, Fact, FactKey, RelationId};

/// Components of an embedding.
pub const DIM: usize = 384;
/// Seed of the cities; the questions use this xor `QUESTIONS`.
pub const SEED: u32 = 42;
const QUESTIONS: u32 = 0x5A17;
const CITIES: u32 = 1_000_000;

/// Generates `chains` chains of two facts, in the order hop 1, hop 2, chain by chain, and
/// `queries` questions. `embed` must be the `generic` lexical embedding.
///
/// Fails when `chains` is too few for drawing that many distinct persons.
pub fn generate(chains: u32, queries: u32, embed: Embed) -> Result<Workload, WorkloadError> {
    let mut rng = Mt19937::new(SEED);
    let mut facts = Vec::with_capacity(2 * chains as usize);
    for i in 1..=chains {
        let city = rng.below(CITIES);
        facts.extend(chain(chains, i, city).map(|(key, text)| sentence(key, &text, embed)));
    }
    let least = sample_floor(queries) + 1;
    let persons = Mt19937::new(SEED ^ QUESTIONS)
        .sample(chains, queries)
        .ok_or(WorkloadError::TooFewToSample { what: "chains", have: chains, queries, least })?;
    let queries = persons.into_iter().map(|person| question(chains, person, embed)).collect();
    Ok(Workload {
        name: "multihop",
        dim: DIM,
        facts,
        queries,
        seed_on: SeedOn::Entity,
        point: Point { ann_k: 64, top_k: 10, m: 24, ef_construction: 200, ef_search: 128 },
    })
}

/// Keys and sentences of chain `i`.
fn chain(chains: u32, i: u32, city: u32) -> [(FactKey, String); 2] {
    let (n, id) = (u64::from(chains), u64::from(i));
    [
        (FactKey::new(id, 1, n + id), format!("Person_{i} has parent Parent_{i}.")),
        (FactKey::new(n + id, 2, 2 * n + id), format!("Parent_{i} lives in City_{city}.")),
    ]
}

fn sentence(key: FactKey, text: &str, embed: Embed) -> Fact {
    Fact {
        key,
        names: None,
        embedding: Some(embed(text).into()),
        payload: Some(super::text_payload(text)),
    }
}

fn question(chains: u32, person: u32, embed: Embed) -> Query {
    let text = format!("Where does the parent of Person_{person} live?");
    Query {
        vector: embed(&text).into(),
        text,
        entity: EntityId(u64::from(person)),
        hops: vec![Relations::Of(vec![RelationId(1)]), Relations::Of(vec![RelationId(2)])],
        answer: Some(EntityId(2 * u64::from(chains) + u64::from(person))),
    }
}
