//! What is measured: anything that answers the three calls of the benchmark, in the same process
//! or behind a network, and anyone who can build it from facts.

use crate::BenchError;
use crate::workload::SeedOn;
use hopbine_proto::call::{Relations, SeedMode, Work};
use hopbine_proto::graph::GraphConfig;
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, Fact, FactKey};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A pending answer.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, BenchError>> + Send + 'a>>;

/// The nearest facts.
#[derive(Clone, Debug)]
pub struct SeedsAsk {
    /// The question.
    pub vector: Arc<[f32]>,
    /// Facts wanted.
    pub k: u32,
    /// Only these relations.
    pub relations: Relations,
    /// How to search.
    pub mode: SeedMode,
}

/// Hops from given entities.
#[derive(Clone, Debug)]
pub struct ExpandAsk {
    /// Distinct entities.
    pub from: Vec<EntityId>,
    /// One element a hop.
    pub hops: Vec<Relations>,
    /// Question, results and score; `None`: all facts of the last hop in key order.
    pub rank: Option<Rank>,
    /// Whether rows carry their embedding.
    pub vectors: bool,
}

/// How rows are ranked.
#[derive(Clone, Debug)]
pub struct Rank {
    /// The question.
    pub vector: Arc<[f32]>,
    /// Results.
    pub top_k: u32,
    /// What decides.
    pub score: ScoreMode,
}

/// Seeds and hops in one call, by the classic contract: seeds weigh nothing, paths may return.
#[derive(Clone, Debug)]
pub struct RagAsk {
    /// Question, results and score.
    pub rank: Rank,
    /// Seed facts.
    pub ann_k: u32,
    /// How to search them.
    pub mode: SeedMode,
    /// Which column of a seed starts the first hop.
    pub seed_on: SeedOn,
    /// One element a hop.
    pub hops: Vec<Relations>,
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// In the order of the call.
    pub rows: Vec<AnswerRow>,
    /// Each stage and its milliseconds, in order.
    pub stages: Vec<(Stage, f64)>,
    /// What it took in the shards.
    pub work: Work,
}

/// A part of an answer that took time. Shown as `ann`, `expand:1`, or below the caller's own name
/// of the call as `expand/expand:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The caller's name of the call that it is part of, where there are several calls.
    pub call: Option<&'static str>,
    /// What was done.
    pub name: &'static str,
    /// In which hop, from 1.
    pub hop: Option<usize>,
}

impl Stage {
    /// A stage outside hops.
    pub fn named(name: &'static str) -> Self {
        Self { call: None, name, hop: None }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = self.call {
            write!(f, "{call}/")?;
        }
        f.write_str(self.name)?;
        self.hop.map_or(Ok(()), |hop| write!(f, ":{hop}"))
    }
}

/// One fact of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerRow {
    /// Which fact.
    pub key: FactKey,
    /// Distance or score; `None` where nothing was ranked.
    pub score: Option<f64>,
    /// Its embedding, when asked for.
    pub vector: Option<Arc<[f32]>>,
    /// Its JSON text, when the call gives it.
    pub payload: Option<Arc<str>>,
    /// Keys of its best path, first hop first, when the call gives them.
    pub path: Vec<FactKey>,
}

/// A loaded graph that answers.
pub trait Target: Send + Sync {
    /// The nearest facts, best first.
    fn seeds(&self, ask: SeedsAsk) -> Pending<'_, Answer>;
    /// Hops from given entities. An answer that was cut is an error.
    fn expand(&self, ask: ExpandAsk) -> Pending<'_, Answer>;
    /// Seeds and hops in one call.
    fn graph_rag(&self, ask: RagAsk) -> Pending<'_, Answer>;
}

/// A graph as built.
pub struct Built {
    /// Answers for it.
    pub target: Box<dyn Target>,
    /// Live facts of each shard, in range order.
    pub shard_facts: Vec<u64>,
    /// Facts that are in no sealed segment yet.
    pub memtable_facts: u64,
    /// Bytes on disk, where known.
    pub disk_bytes: Option<u64>,
    /// How each segment is searched by default, with its measured recall, where known.
    pub ways: Vec<String>,
}

/// Builds graphs for measuring: the caller decides where.
pub trait Host: Send + Sync {
    /// Makes an empty graph of `config`, loads `facts`, and returns once all of them are durable
    /// and indexed. Every call makes a graph of its own and ends those made before.
    fn build<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built>;
    /// The same beside the graphs made before.
    fn build_beside<'a>(&'a self, config: GraphConfig, facts: &'a [Fact]) -> Pending<'a, Built>;
}
