//! One hop of a path: the frontier that a shard owns, and what it leads to.

use super::read::{Relations, Work};
use crate::fact::FactKey;
use crate::filter::Filter;
use crate::ids::{EntityId, LogIndex};
use crate::score::ScoreMode;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// One way into a frontier entity: the best path from one start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Where the path began.
    pub start: EntityId,
    /// Its score so far.
    pub prefix: f64,
    /// Its place among the arrivals of this entity: where their prefixes come out equal after one
    /// more fact, the one that was smaller before it goes on being preferred.
    pub tie: u32,
}

/// One entity to expand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrontierEntity {
    /// Whose facts to read.
    pub entity: EntityId,
    /// Best first by `(prefix, last fact key, tie)`; never empty; distinct starts. One entry
    /// (the best) is enough when paths may return to their start.
    pub arrivals: SmallVec<[Arrival; 1]>,
}

/// One hop over the frontier entities that the asked shard owns.
#[derive(Clone, Debug, PartialEq)]
pub struct HopRequest {
    /// Ascending by entity, distinct.
    pub frontier: Vec<FrontierEntity>,
    /// Which edges count.
    pub relations: Relations,
    /// The question; `None`: no distances, limits go by key, prefixes stay 0.
    pub query: Option<Arc<[f32]>>,
    /// Factor of this hop's distance.
    pub weight: f64,
    /// Only facts that pass.
    pub filter: Option<Arc<Filter>>,
    /// Of one entity's matching facts keep the nearest by `(distance, key)`.
    pub limit_per_entity: u32,
    /// Facts read at most; reaching it truncates the hop.
    pub limit_rows: u64,
    /// Whether a fact may lead back to its path's start.
    pub return_to_start: bool,
    /// What to send back.
    pub output: HopOutput,
}

/// What a hop sends back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum HopOutput {
    /// A middle hop: the best `beam` targets by `(smallest prefix, id)`, each with its best
    /// `starts` arrivals from distinct starts.
    Targets {
        /// Targets kept.
        beam: u32,
        /// Arrivals kept per target (hops left after this one, plus 1; 1 when paths may return).
        starts: u32,
    },
    /// The last hop: the best `top_k` facts by `(score, key)`, each with its best arrival.
    Facts {
        /// Facts kept.
        top_k: u32,
        /// What decides.
        score: ScoreMode,
    },
    /// The last hop without a query: facts in key order, after `after`.
    Page {
        /// Facts kept.
        limit: u32,
        /// Where the last page ended.
        after: Option<FactKey>,
    },
    /// The same, keys alone.
    Keys {
        /// Keys kept.
        limit: u32,
        /// Where the last page ended.
        after: Option<FactKey>,
    },
}

/// One way into a target through one fact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The fact walked.
    pub key: FactKey,
    /// Its own unweighted distance; `None` without a query.
    pub distance: Option<f64>,
    /// Prefix of the path up to and with it.
    pub prefix: f64,
    /// Where the path began.
    pub start: EntityId,
    /// `Arrival::tie` of the arrival it came from.
    pub tie: u32,
}

/// A target of a middle hop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetReply {
    /// Which entity.
    pub target: EntityId,
    /// Best first by `(prefix, key, tie)`, distinct starts, never empty.
    pub steps: SmallVec<[Step; 1]>,
}

/// What one hop found in one shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HopReply {
    /// `HopOutput::Targets`: by `(steps[0].prefix, target)`.
    pub targets: Vec<TargetReply>,
    /// `HopOutput::Facts`: by `(score, key)`. `HopOutput::Page`: by key.
    pub facts: Vec<Step>,
    /// `HopOutput::Keys`: ascending.
    pub keys: Vec<FactKey>,
    /// Counts for the reply's account.
    pub counts: HopCounts,
    /// Of the entities that `limit_per_entity` cut, the one with most facts; the first of several.
    pub hub: Option<Hub>,
    /// What it took.
    pub work: Work,
    /// Log index of the view.
    pub index: LogIndex,
}

/// An entity with more facts than `limit_per_entity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hub {
    /// Which.
    pub entity: EntityId,
    /// Its facts that pass relations and filter, as far as they were read.
    pub facts: u64,
}

/// How many facts and targets a hop saw and dropped in one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopCounts {
    /// Entities asked for.
    pub frontier: u64,
    /// Live facts of matching relation read.
    pub read: u64,
    /// Facts that passed filter, `limit_per_entity` and the start test.
    pub kept: u64,
    /// Facts that did not pass the filter.
    pub cut_filter: u64,
    /// Facts beyond `limit_per_entity`.
    pub cut_limit_per_entity: u64,
    /// Facts that only lead back to their start.
    pub cut_return: u64,
    /// Distinct targets found (middle hops).
    pub targets: u64,
    /// Distinct targets beyond `beam`.
    pub cut_beam: u64,
    /// Whether `limit_rows` stopped the reading.
    pub truncated: bool,
}
