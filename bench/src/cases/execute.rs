//! A case on what is measured: one call, or composed from smaller calls by the caller.

use super::baseline::starts;
use super::{Case, Cut, Form, From};
use crate::BenchError;
use crate::target::{Answer, AnswerRow, ExpandAsk, RagAsk, Rank, SeedsAsk, Stage, Target};
use crate::workload::{Point, Query, SeedOn};
use hopbine_proto::call::{Relations, SeedMode, Work};
use hopbine_proto::score::ScoreMode;
use hopbine_proto::{EntityId, FactKey, Metric, limits};
use hopbine_shard_store::kernel::{ExactQuery, Kernels, norm};
use std::collections::HashMap;
use std::time::Instant;

/// Rows of one run of a case, and what it took.
#[derive(Debug, Default)]
pub struct Outcome {
    /// In key order, or best first when ranked.
    pub rows: Vec<AnswerRow>,
    /// Each stage and its milliseconds, in order.
    pub stages: Vec<(Stage, f64)>,
    /// What it took in the shards.
    pub work: Work,
}

impl Outcome {
    /// Adds a call's account: its wall time under the caller's own name for it, and the stages
    /// that the answer tells of below that name.
    fn took(&mut self, call: &'static str, since: Instant, answer: &Answer) {
        self.stages.push((Stage::named(call), since.elapsed().as_secs_f64() * 1e3));
        for (inner, ms) in answer.stages.iter().filter(|(_, ms)| *ms > 0.0) {
            self.stages.push((Stage { call: Some(call), ..*inner }, *ms));
        }
        self.work.add(&answer.work);
    }
}

/// Runs cases on a target.
pub struct Executor<'a> {
    target: &'a dyn Target,
    seed_on: SeedOn,
    mode: SeedMode,
}

impl<'a> Executor<'a> {
    /// Searches seeds by `mode` where a case does not ask for exact ones.
    pub fn new(target: &'a dyn Target, seed_on: SeedOn, mode: SeedMode) -> Self {
        Self { target, seed_on, mode }
    }

    fn mode(&self, case: &Case) -> SeedMode {
        if case.from == From::ExactSeeds { SeedMode::Exact } else { self.mode }
    }

    /// The seed facts that `case` finds for a question, best first.
    pub async fn seeds(
        &self,
        case: &Case,
        query: &Query,
        point: &Point,
    ) -> Result<Answer, BenchError> {
        let ask = SeedsAsk {
            vector: query.vector.clone(),
            k: point.ann_k,
            relations: Relations::Any,
            mode: self.mode(case),
        };
        self.target.seeds(ask).await
    }

    /// Runs `case` for one question.
    pub async fn run(
        &self,
        case: &Case,
        query: &Query,
        point: &Point,
        given: &[FactKey],
    ) -> Result<Outcome, BenchError> {
        let hops = case.relations(&query.hops);
        let top_k = if case.cut == Cut::TopK { point.top_k } else { limits::TOP_K_MAX };
        let rank = case.score.map(|score| Rank { vector: query.vector.clone(), top_k, score });
        if let (Form::OneCall, Some(rank)) = (case.form, &rank) {
            return self.one_call(case, rank.clone(), hops, point).await;
        }
        let mut outcome = Outcome::default();
        let from = match case.from {
            From::Entity => vec![query.entity],
            From::GivenSeeds => starts(given, self.seed_on),
            From::Seeds | From::ExactSeeds => {
                let started = Instant::now();
                let answer = self.seeds(case, query, point).await?;
                outcome.took("ann", started, &answer);
                let keys: Vec<FactKey> = answer.rows.iter().map(|row| row.key).collect();
                starts(&keys, self.seed_on)
            }
        };
        match case.form {
            Form::Fused | Form::OneCall => {
                let ask = ExpandAsk { from, hops, rank, vectors: false };
                outcome.rows = self.expand(&mut outcome, "expand", ask).await?;
            }
            Form::Pieces => self.pieces(&mut outcome, from, &hops, rank).await?,
            Form::Join | Form::Set => {
                let levels = self.levels(&mut outcome, case, from, &hops, rank.is_some()).await?;
                let started = Instant::now();
                outcome.rows = match rank {
                    Some(rank) => rerank(levels, &rank),
                    None => levels.into_iter().last().unwrap_or_default(),
                };
                let ms = started.elapsed().as_secs_f64() * 1e3;
                outcome.stages.push((Stage::named("rerank"), ms));
            }
        }
        Ok(outcome)
    }

    async fn one_call(
        &self,
        case: &Case,
        rank: Rank,
        hops: Vec<Relations>,
        point: &Point,
    ) -> Result<Outcome, BenchError> {
        let mode = self.mode(case);
        let ask = RagAsk { rank, ann_k: point.ann_k, mode, seed_on: self.seed_on, hops };
        let answer = self.target.graph_rag(ask).await?;
        Ok(Outcome { rows: answer.rows, stages: answer.stages, work: answer.work })
    }

    /// One expand call; no call for an empty frontier.
    async fn expand(
        &self,
        outcome: &mut Outcome,
        stage: &'static str,
        ask: ExpandAsk,
    ) -> Result<Vec<AnswerRow>, BenchError> {
        if ask.from.is_empty() {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let answer = self.target.expand(ask).await?;
        outcome.took(stage, started, &answer);
        Ok(answer.rows)
    }

    /// One call per hop, of which the last ranks.
    async fn pieces(
        &self,
        outcome: &mut Outcome,
        mut from: Vec<EntityId>,
        hops: &[Relations],
        rank: Option<Rank>,
    ) -> Result<(), BenchError> {
        for (at, hop) in hops.iter().enumerate() {
            let rank = if at + 1 == hops.len() { rank.clone() } else { None };
            let ask = ExpandAsk { from, hops: vec![hop.clone()], rank, vectors: false };
            outcome.rows = self.expand(outcome, "expand", ask).await?;
            from = targets(&outcome.rows);
        }
        Ok(())
    }

    /// The rows of every hop, in key order, fetched by set or one entity after the other.
    async fn levels(
        &self,
        outcome: &mut Outcome,
        case: &Case,
        mut from: Vec<EntityId>,
        hops: &[Relations],
        vectors: bool,
    ) -> Result<Vec<Vec<AnswerRow>>, BenchError> {
        let mut levels = Vec::new();
        for hop in hops {
            let calls: Vec<Vec<EntityId>> = match case.form {
                Form::Join => from.iter().map(|id| vec![*id]).collect(),
                _ => vec![from],
            };
            let mut rows = Vec::new();
            for from in calls {
                let ask = ExpandAsk { from, hops: vec![hop.clone()], rank: None, vectors };
                rows.extend(self.expand(outcome, "expand", ask).await?);
            }
            rows.sort_by_key(|row| row.key);
            from = targets(&rows);
            levels.push(rows);
        }
        Ok(levels)
    }
}

fn targets(rows: &[AnswerRow]) -> Vec<EntityId> {
    let keys: Vec<FactKey> = rows.iter().map(|row| row.key).collect();
    crate::heap::targets(&keys)
}

/// Ranks the last level by the caller itself: by its own distances, or adding to each the
/// smallest sum that leads to its entity.
fn rerank(levels: Vec<Vec<AnswerRow>>, rank: &Rank) -> Vec<AnswerRow> {
    let query = ExactQuery::new(&rank.vector);
    let distance = |row: &AnswerRow| {
        let vector = row.vector.as_deref().unwrap_or_default();
        query.distance(Kernels::chosen(), Metric::Cosine, vector, norm(vector))
    };
    let count = levels.len();
    let mut prefixes: HashMap<EntityId, f64> = HashMap::new();
    let mut ranked = Vec::new();
    for (at, mut rows) in levels.into_iter().enumerate() {
        let mut next: HashMap<EntityId, f64> = HashMap::new();
        for row in &mut rows {
            let prefix = prefixes.get(&row.key.entity).copied().unwrap_or_default();
            let own = distance(row);
            let endpoint = at + 1 == count && rank.score == ScoreMode::Endpoint;
            let score = if endpoint { own } else { prefix + own };
            row.score = Some(score);
            let smallest = next.entry(row.key.target).or_insert(score);
            *smallest = smallest.min(score);
        }
        prefixes = next;
        ranked = rows;
    }
    let score = |row: &AnswerRow| row.score.unwrap_or_default();
    ranked.sort_by(|a, b| hopbine_proto::score::rank((score(a), a.key), (score(b), b.key)));
    ranked.truncate(rank.top_k as usize);
    ranked
}
