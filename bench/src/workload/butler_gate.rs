//! `butler_gate`: seven facts and two questions; a smoke test that must be right in every row.

use super::{Embed, Point, Query, SeedOn, Workload, WorkloadError};
use hopbine_proto::call::Relations;
use hopbine_proto::{EntityId, Fact, FactKey, RelationId};
use serde::Deserialize;

/// Components of an embedding.
pub const DIM: usize = 384;
/// The tight point: as many seeds as the answer needs, and no more.
pub const TIGHT_K: u32 = 2;

const FIXTURE: &str = include_str!("../../data/fixtures/graph_rag_butler_gate_seed.json");

#[derive(Deserialize)]
struct Fixture {
    facts: Vec<FixtureFact>,
    multihop_queries: Vec<FixtureQuery>,
}

#[derive(Deserialize)]
struct FixtureFact {
    text: String,
    entity: String,
    relation: String,
    target: String,
    include_in_graph: bool,
}

#[derive(Deserialize)]
struct FixtureQuery {
    prompt: String,
    seed_entity: String,
    hop1_relation: String,
    hop2_relation: String,
    expected_target: String,
}

/// Numbers names 1, 2, ... by first appearance.
#[derive(Default)]
struct Numbering(Vec<String>);

impl Numbering {
    fn number(&mut self, name: &str) -> u64 {
        if let Some(known) = self.get(name) {
            return known;
        }
        self.0.push(name.to_owned());
        self.0.len() as u64
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().position(|known| known == name).map(|at| at as u64 + 1)
    }
}

/// Reads the fixture. `embed` must be the `generic` lexical embedding.
///
/// Fails when the fixture names something that its graph does not hold.
pub fn generate(embed: Embed) -> Result<Workload, WorkloadError> {
    let fixture: Fixture = serde_json::from_str(FIXTURE)
        .map_err(|error| WorkloadError::Fixture { detail: error.to_string() })?;
    let (mut entities, mut relations) = (Numbering::default(), Numbering::default());
    let mut facts = Vec::new();
    for fact in fixture.facts.iter().filter(|fact| fact.include_in_graph) {
        let entity = entities.number(&fact.entity);
        let target = entities.number(&fact.target);
        let relation = relations.number(&fact.relation);
        facts.push(Fact {
            key: FactKey::new(entity, relation as u32, target),
            names: None,
            embedding: Some(embed(&fact.text).into()),
            payload: Some(super::text_payload(&fact.text)),
        });
    }
    let known = |names: &Numbering, name: &str| {
        names.get(name).ok_or_else(|| WorkloadError::Fixture { detail: format!("no {name:?}") })
    };
    let mut queries = Vec::new();
    for query in fixture.multihop_queries {
        let mut hops = Vec::new();
        for name in [&query.hop1_relation, &query.hop2_relation] {
            hops.push(Relations::Of(vec![RelationId(known(&relations, name)? as u32)]));
        }
        queries.push(Query {
            vector: embed(&query.prompt).into(),
            text: query.prompt,
            entity: EntityId(known(&entities, &query.seed_entity)?),
            hops,
            answer: Some(EntityId(known(&entities, &query.expected_target)?)),
        });
    }
    Ok(Workload {
        name: "butler_gate",
        dim: DIM,
        facts,
        queries,
        seed_on: SeedOn::Entity,
        point: Point { ann_k: 4, top_k: 4, m: 24, ef_construction: 200, ef_search: 64 },
    })
}
