//! A checked request: everything the machine needs to know, nothing left to doubt.

use crate::request::{SeedOn, WithParts};
use hopbine_proto::call::{Relations, SeedRequest};
use hopbine_proto::filter::Filter;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, FactKey};
use std::sync::Arc;

/// One retrieval, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The question, or `None` for plain expansion.
    pub query: Option<Arc<[f32]>>,
    /// Where paths start.
    pub starts: Starts,
    /// At most `HOPS_MAX`; empty only with seeds.
    pub hops: Vec<Hop>,
    /// Only facts that pass, at every hop.
    pub filter: Option<Arc<Filter>>,
    /// Of one entity's matching facts keep the nearest.
    pub limit_per_entity: u32,
    /// Distinct targets kept as the next frontier.
    pub beam: u32,
    /// Safety bound on facts read per hop in one shard.
    pub limit_rows: u64,
    /// Whether a path may end a hop where it began.
    pub return_to_start: bool,
    /// What to answer.
    pub output: Output,
    /// Parts of facts to return.
    pub with: WithParts,
    /// Whether a lost shard or the deadline leaves a partial answer instead of an error.
    pub allow_partial: bool,
}

/// Where paths start.
#[derive(Clone, Debug, PartialEq)]
pub enum Starts {
    /// At the entities (or targets) of the facts nearest to the question.
    Seeds {
        /// Asked of every shard.
        ask: Arc<SeedRequest>,
        /// Which column of a seed fact is a start.
        on: SeedOn,
        /// A start's prefix is this times its seed distance.
        weight: f64,
    },
    /// At these, ascending and distinct, each with prefix 0.
    Entities(Vec<EntityId>),
}

/// One element of the relation path.
#[derive(Clone, Debug, PartialEq)]
pub struct Hop {
    /// Which edges count.
    pub relations: Relations,
    /// Factor of the hop's distance.
    pub weight: f64,
}

/// What to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// The best facts.
    Top {
        /// How many.
        top_k: u32,
        /// What decides.
        score: ScoreMode,
    },
    /// Facts in key order: an expansion without a question.
    Page {
        /// How many.
        limit: u32,
        /// Where the last page ended.
        after: Option<FactKey>,
    },
    /// The same facts by key alone: no path is followed back and nothing is fetched.
    Keys {
        /// How many.
        limit: u32,
        /// Where the last page ended.
        after: Option<FactKey>,
    },
}

impl Plan {
    /// Most ways that the hops before the last one can keep, all together.
    pub fn ways(&self) -> u64 {
        let middle_hops = 0..self.hops.len().saturating_sub(1);
        let starts: u64 = middle_hops.map(|hop| u64::from(self.starts_kept(hop))).sum();
        starts * u64::from(self.beam)
    }

    /// Starts that it is given, or seeds that it looks for.
    pub fn starts_given(&self) -> u64 {
        match &self.starts {
            Starts::Seeds { ask, .. } => u64::from(ask.k),
            Starts::Entities(entities) => entities.len() as u64,
        }
    }

    /// Most rows of which it fetches payload, vector or path payloads.
    pub fn rows_fetched(&self) -> u64 {
        let fetched = self.with.payload || self.with.vector || self.with.path_payloads;
        match self.output {
            Output::Top { top_k: rows, .. } | Output::Page { limit: rows, .. } if fetched => {
                rows.into()
            }
            _ => 0,
        }
    }

    /// Arrivals from distinct starts that a target of hop `hop` (from 0) must keep so that every
    /// later fact still finds its best admissible path: each hop left can rule out one start.
    pub fn starts_kept(&self, hop: usize) -> u32 {
        let hops_left = self.hops.len() - 1 - hop;
        if self.return_to_start { 1 } else { hops_left as u32 + 1 }
    }
}
