//! Which data and which questions. One file a workload:
//!
//! - `multihop`: person, parent, city: the answer does not resemble the question
//! - `synthetic`: a regular graph for pure expansion
//! - `gutenberg`: paragraphs of real books, from each to the next
//! - `multidepth`: chains of five facts, asked along one to five hops
//! - `butler_gate`: seven facts that every row must get right
//! - `clustered`: clusters of vectors with relations that know nothing of them, for filters
//! - `mt19937`: the generator that the definitions draw from

pub mod butler_gate;
pub mod clustered;
pub mod gutenberg;
pub mod mt19937;
pub mod multidepth;
pub mod multihop;
pub mod synthetic;

use hopbine_proto::call::Relations;
use hopbine_proto::{EntityId, Fact};
use std::sync::Arc;

pub use mt19937::Mt19937;

/// Text to vector: the `generic` lexical embedding unless a workload says otherwise.
pub type Embed<'a> = &'a dyn Fn(&str) -> Vec<f32>;

/// Data and questions of one run.
pub struct Workload {
    /// As in the reports.
    pub name: &'static str,
    /// Components of an embedding.
    pub dim: usize,
    /// In generation order.
    pub facts: Vec<Fact>,
    /// In asking order.
    pub queries: Vec<Query>,
    /// Which column of a seed fact starts the first hop.
    pub seed_on: SeedOn,
    /// The operating point of the definition.
    pub point: Point,
}

/// Which column of a seed fact starts the first hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedOn {
    /// Its subject.
    Entity,
    /// What it leads to.
    Target,
}

/// One question.
#[derive(Clone, Debug)]
pub struct Query {
    /// For people.
    pub text: String,
    /// What is searched for.
    pub vector: Arc<[f32]>,
    /// The entity that the question is about.
    pub entity: EntityId,
    /// One element a hop.
    pub hops: Vec<Relations>,
    /// Target of the fact that answers it, where one does.
    pub answer: Option<EntityId>,
}

/// Settings at which a workload is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Seed facts.
    pub ann_k: u32,
    /// Results.
    pub top_k: u32,
    /// Neighbours per node above the base layer of the graph, 2m on it.
    pub m: u32,
    /// Beam while building.
    pub ef_construction: u32,
    /// Beam of rows with a forced graph.
    pub ef_search: u32,
}

/// A workload that cannot be made as asked.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Ask for more data or fewer questions.
    #[error(
        "{have} {what} are too few to draw {queries} distinct questions from: \
         take {least} at least, or fewer questions"
    )]
    TooFewToSample {
        /// What is drawn from.
        what: &'static str,
        /// How many there are.
        have: u32,
        /// How many questions were asked for.
        queries: u32,
        /// How many are enough.
        least: u64,
    },
    /// Repair the fixture.
    #[error("fixture is not usable: {detail}")]
    Fixture {
        /// What is wrong.
        detail: String,
    },
}

/// The JSON payload of a sentence.
pub fn text_payload(text: &str) -> Arc<str> {
    serde_json::json!({ "text": text }).to_string().into()
}

/// The text of a payload made by [`text_payload`].
pub fn payload_text(payload: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(payload).ok()?;
    Some(value.get("text")?.as_str()?.to_owned())
}

/// First entities of shards 2, 3, ..: cuts the facts into `shards` parts of about equal size at
/// entity boundaries. `None` when there are fewer distinct entities than shards.
pub fn boundaries(facts: &[Fact], shards: u32) -> Option<Vec<u64>> {
    let mut entities: Vec<u64> = facts.iter().map(|fact| fact.key.entity.0).collect();
    entities.sort_unstable();
    let (shards, len) = (shards.max(1) as usize, entities.len());
    let mut distinct = entities.clone();
    distinct.dedup();
    if distinct.len() < shards {
        return None;
    }
    let mut cuts: Vec<u64> = Vec::with_capacity(shards - 1);
    let mut below = 0;
    for shard in 1..shards {
        // Leave one distinct entity for each shard on both sides of the cut.
        let quantile = entities[shard * len / shards];
        let at = distinct.partition_point(|&entity| entity < quantile);
        let at = at.clamp(below + 1, distinct.len() - (shards - shard));
        cuts.push(distinct[at]);
        below = at;
    }
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::FactKey;
    use proptest::prelude::*;

    fn facts(entities: &[u64]) -> Vec<Fact> {
        let fact = |(at, &entity): (usize, &u64)| Fact {
            key: FactKey::new(entity, 1, at as u64),
            names: None,
            embedding: None,
            payload: None,
        };
        entities.iter().enumerate().map(fact).collect()
    }

    #[test]
    fn a_payload_gives_its_sentence_back() {
        let text = "She said \"no\".\n";
        assert_eq!(payload_text(&text_payload(text)).as_deref(), Some(text));
    }

    #[test]
    fn equal_parts_are_cut_at_the_quantiles() {
        let all: Vec<u64> = (1..=100).collect();
        assert_eq!(boundaries(&facts(&all), 4), Some(vec![26, 51, 76]));
        assert_eq!(boundaries(&facts(&all), 1), Some(vec![]));
        assert_eq!(boundaries(&facts(&[7, 7, 7]), 2), None);
    }

    proptest! {
        #[test]
        fn no_shard_is_empty(
            entities in prop::collection::vec(0_u64..40, 1..200), shards in 1_u32..12,
        ) {
            let facts = facts(&entities);
            let mut distinct = entities.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let Some(cuts) = boundaries(&facts, shards) else {
                prop_assert!(distinct.len() < shards as usize);
                return Ok(());
            };
            prop_assert_eq!(cuts.len() + 1, shards as usize);
            let mut counts = vec![0; shards as usize];
            for entity in entities {
                counts[cuts.partition_point(|&cut| cut <= entity)] += 1;
            }
            prop_assert!(counts.iter().all(|&count| count > 0), "{:?}", counts);
        }
    }
}
