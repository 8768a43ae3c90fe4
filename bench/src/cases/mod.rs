//! Every case by its name, and how each is run.
//!
//! - `catalogue.rs` the cases of each workload
//! - `execute.rs` a case on what is measured: one call, or composed from smaller calls
//! - `baseline.rs` the same case on the ordered map
//! - `gate.rs` both must agree before anything is timed; quality comes from the same pass

mod baseline;
mod catalogue;
mod execute;
mod gate;

pub use baseline::Baseline;
pub use catalogue::{butler_gate, gutenberg, multidepth, multihop, synthetic};
pub use execute::{Executor, Outcome};
pub use gate::{Quality, Tally, check, difference};

use hopbine_proto::call::Relations;
use hopbine_proto::score::ScoreMode;
use serde::Serialize;

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// What is measured.
    Hopbine,
    /// The ordered map with brute-force seeds.
    Plain,
}

/// How a case is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One call per entity and hop; the caller joins and ranks.
    Join,
    /// One call per hop with the whole frontier; the caller ranks.
    Set,
    /// One call per hop; the last one ranks.
    Pieces,
    /// One call for all hops and the ranking, seeds searched by a call before.
    Fused,
    /// One call for everything.
    OneCall,
}

/// Where the hops begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the entity of the question.
    Entity,
    /// At seeds searched as part of the case.
    Seeds,
    /// At exact seeds searched as part of the case.
    ExactSeeds,
    /// At seeds searched beforehand: only the hops are timed.
    GivenSeeds,
}

impl From {
    /// As in the reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Entity => "none",
            Self::Seeds => "ann",
            Self::ExactSeeds => "exact",
            Self::GivenSeeds => "given",
        }
    }
}

/// Which edges a hop follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// All.
    All,
    /// Those of the question's relation for this hop.
    Asked,
}

/// How many results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of them.
    All,
    /// `top_k` of the operating point.
    TopK,
}

/// One row of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// As in the definition.
    pub name: &'static str,
    /// Who answers.
    pub store: Store,
    /// How it is put together.
    pub form: Form,
    /// Where the hops begin.
    pub from: From,
    /// One element a hop.
    pub hops: Vec<Edges>,
    /// `None`: all facts of the last hop, unranked.
    pub score: Option<ScoreMode>,
    /// How many results of a ranking.
    pub cut: Cut,
}

impl Case {
    /// The relations of each hop for one question.
    pub fn relations(&self, asked: &[Relations]) -> Vec<Relations> {
        let hop = |(at, edges): (usize, &Edges)| match edges {
            Edges::All => Relations::Any,
            Edges::Asked => asked.get(at).cloned().unwrap_or_default(),
        };
        self.hops.iter().enumerate().map(hop).collect()
    }

    /// Whether both do the same work, so that their times may be compared.
    pub fn comparable(&self, other: &Self) -> bool {
        let seeds = |case: &Self| match case.from {
            From::ExactSeeds => From::Seeds,
            from => from,
        };
        self.hops == other.hops && self.score == other.score && seeds(self) == seeds(other)
    }
}
