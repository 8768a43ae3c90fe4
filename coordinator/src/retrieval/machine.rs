//! One retrieval as a state machine: an event in, actions out. The driver does all sending,
//! waiting and timing.
//!
//! Stages: seeds of all shards → one round per hop to the owners of the frontier → sometimes a
//! second look at a shard that had to leave targets out → parts of what the user will see.

use super::account::{Account, Missing};
use super::answer::{self, Hit, Shown};
use super::merge::{self, LeftOut};
use super::plan::{Output, Plan, Starts};
use super::trail::Trail;
use crate::reply::{Coverage, ResultOut};
use crate::request::SeedOn;
use crate::token::Indexes;
use hopbine_proto::call::{
    FetchReply, FetchRequest, HopOutput, HopReply, HopRequest, SeedReply, SeedRequest, Step, Work,
};
use hopbine_proto::graph::GraphInfo;
use hopbine_proto::shard_map::owner;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, FactKey, Names, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What a shard is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// The facts nearest to the question.
    Seeds,
    /// One hop from its part of the frontier.
    Hop,
    /// The same hop without a cut by `beam`.
    WholeHop,
    /// Parts of the result facts.
    Results,
    /// Parts of the facts on the results' paths.
    Paths,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A shard's seeds.
    Seeds(ShardId, SeedReply),
    /// A shard's part of a hop; the task says which ask it answers.
    Hop(ShardId, Task, HopReply),
    /// Rows of a shard, in the order asked.
    Rows(ShardId, Task, FetchReply),
    /// The shard was not ready; ask again.
    Again(ShardId, Task),
    /// The shard will not answer.
    Lost(ShardId, Task, Problem),
    /// Time is up for the current stage.
    Deadline,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask a shard for seeds.
    AskSeeds(ShardId, Arc<SeedRequest>),
    /// Ask a shard for a hop.
    AskHop(ShardId, Task, HopRequest),
    /// Ask a shard for rows.
    AskRows(ShardId, Task, FetchRequest),
    /// Tell the user. Nothing follows.
    Finish(Box<Answer>),
    /// Tell the user that it failed. Nothing follows.
    Fail(Problem),
}

/// What the user gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// In order; empty when the plan asks for keys.
    pub results: Vec<ResultOut>,
    /// In key order, when the plan asks for keys.
    pub keys: Vec<FactKey>,
    /// Whether something is missing.
    pub partial: bool,
    /// What was asked, read, kept and cut.
    pub coverage: Coverage,
    /// Last key of this page when more facts follow.
    pub more_after: Option<FactKey>,
    /// Seed facts used.
    pub seeds: u64,
    /// What it took.
    pub work: Work,
    /// Log index seen per shard.
    pub indexes: Indexes,
    /// Entities on the paths shown that have two names, which nothing else has noticed.
    pub name_collisions: Vec<(EntityId, Names)>,
}

/// Where a retrieval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Waiting for seeds.
    Seeds,
    /// Waiting for a hop, from 0.
    Hop(usize),
    /// Waiting for parts of what is shown.
    Fetch,
    /// Answered or failed.
    Done,
}

/// One retrieval under way.
pub struct Retrieval {
    plan: Plan,
    graph: Arc<GraphInfo>,
    stage: Stage,
    waiting: BTreeSet<(ShardId, Task)>,
    seed_replies: BTreeMap<ShardId, SeedReply>,
    hop_replies: BTreeMap<ShardId, HopReply>,
    /// Positions in the frontier that each shard was asked for.
    asked: BTreeMap<ShardId, Range<usize>>,
    /// Shards that were asked for the current hop a second time, without a cut.
    asked_whole: BTreeSet<ShardId>,
    trail: Trail,
    seeds: u64,
    hits: Vec<Hit>,
    keys: Vec<FactKey>,
    more_after: Option<FactKey>,
    shown: Shown,
    account: Account,
}

impl Retrieval {
    /// A retrieval over the shards of `graph`, and its first actions.
    pub fn start(plan: Plan, graph: Arc<GraphInfo>) -> (Self, Vec<Action>) {
        let mut retrieval = Self {
            plan,
            graph,
            stage: Stage::Seeds,
            waiting: BTreeSet::new(),
            seed_replies: BTreeMap::new(),
            hop_replies: BTreeMap::new(),
            asked: BTreeMap::new(),
            asked_whole: BTreeSet::new(),
            trail: Trail::default(),
            seeds: 0,
            hits: Vec::new(),
            keys: Vec::new(),
            more_after: None,
            shown: Shown::default(),
            account: Account::default(),
        };
        let actions = match &retrieval.plan.starts {
            Starts::Seeds { .. } => {
                let shards: Vec<ShardId> =
                    retrieval.graph.shards.iter().map(|shard| shard.id).collect();
                shards.into_iter().map(|shard| retrieval.ask(shard, Task::Seeds)).collect()
            }
            Starts::Entities(entities) => {
                let starts = entities.iter().map(|entity| (*entity, 0.0)).collect();
                retrieval.trail = Trail::begin(starts);
                retrieval.begin_hop(0)
            }
        };
        (retrieval, actions)
    }

    /// Where it stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The same ranges at newer epochs; shown versions name them.
    pub fn adopt(&mut self, graph: Arc<GraphInfo>) {
        self.graph = graph;
    }

    /// About how many rows a step with `event` goes through, should it be the last of its stage.
    pub fn rows(&self, event: &Event) -> usize {
        let of_hop = |reply: &HopReply| reply.targets.len() + reply.facts.len() + reply.keys.len();
        let new = match event {
            Event::Seeds(_, reply) => reply.seeds.len(),
            Event::Hop(_, _, reply) => of_hop(reply),
            Event::Rows(_, _, reply) => reply.rows.len(),
            Event::Again(..) | Event::Lost(..) | Event::Deadline => 0,
        };
        let seeds: usize = self.seed_replies.values().map(|reply| reply.seeds.len()).sum();
        let hops: usize = self.hop_replies.values().map(of_hop).sum();
        new + seeds + hops + self.trail.len() + self.hits.len()
    }

    /// Takes an event and says what to do next. An event that nobody waits for changes nothing.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Deadline => return self.deadline(),
            Event::Again(shard, task) => {
                if !self.waiting.contains(&(shard, task)) {
                    return Vec::new();
                }
                return vec![self.ask(shard, task)];
            }
            Event::Seeds(shard, reply) => {
                if !self.waiting.remove(&(shard, Task::Seeds)) {
                    return Vec::new();
                }
                self.account.answered(shard, reply.index, &reply.work);
                self.seed_replies.insert(shard, reply);
            }
            Event::Hop(shard, task, reply) => {
                if !self.waiting.remove(&(shard, task)) {
                    return Vec::new();
                }
                self.account.answered(shard, reply.index, &reply.work);
                if task == Task::Hop {
                    let limit_rows = self.limit_rows_of_all();
                    self.account.hop_counts(shard, reply.index, &reply.counts, limit_rows);
                }
                self.hop_replies.insert(shard, reply);
            }
            Event::Rows(shard, task, reply) => {
                if !self.waiting.remove(&(shard, task)) {
                    return Vec::new();
                }
                self.account.answered(shard, reply.index, &reply.work);
                if let Err(problem) = self.shown.take(shard, task, reply.rows) {
                    return self.fail(problem);
                }
            }
            Event::Lost(shard, task, problem) => {
                if !self.waiting.remove(&(shard, task)) {
                    return Vec::new();
                }
                if !self.plan.allow_partial {
                    return self.fail(problem);
                }
                let late = problem.code == Code::DeadlineExceeded;
                let why = if late { Missing::Deadline } else { Missing::Shard };
                self.account.missing(shard, why);
            }
        }
        if self.waiting.is_empty() { self.advance() } else { Vec::new() }
    }

    /// Facts that all shards together may read in the current hop. A page is filled by every shard
    /// on its own: what that means is known when it is merged.
    fn limit_rows_of_all(&self) -> u64 {
        let last = matches!(self.stage, Stage::Hop(hop) if hop + 1 == self.plan.hops.len());
        let page = matches!(self.plan.output, Output::Page { .. } | Output::Keys { .. });
        if last && page { u64::MAX } else { self.plan.limit_rows }
    }

    fn fail(&mut self, problem: Problem) -> Vec<Action> {
        self.stage = Stage::Done;
        self.waiting.clear();
        vec![Action::Fail(problem)]
    }

    fn deadline(&mut self) -> Vec<Action> {
        if self.stage == Stage::Done {
            return Vec::new();
        }
        let late: Vec<String> = self.waiting.iter().map(|(shard, _)| shard.to_string()).collect();
        if !self.plan.allow_partial {
            let detail = format!("no answer in time from shard {}", late.join(", "));
            return self.fail(Problem::new(Code::DeadlineExceeded, detail));
        }
        for (shard, _) in std::mem::take(&mut self.waiting) {
            self.account.missing(shard, Missing::Deadline);
        }
        let last_round = self.plan.hops.len().checked_sub(1).map_or(Stage::Seeds, Stage::Hop);
        if self.stage == last_round || self.stage == Stage::Fetch {
            return self.advance();
        }
        // No time for another round: what was found so far leads to no last fact.
        self.stage = Stage::Fetch;
        self.advance()
    }

    /// The stage has all that it will get.
    fn advance(&mut self) -> Vec<Action> {
        match self.stage {
            Stage::Seeds => self.merge_seeds(),
            Stage::Hop(hop) if hop + 1 == self.plan.hops.len() => self.merge_last_hop(),
            Stage::Hop(hop) => self.merge_middle_hop(hop),
            Stage::Fetch => self.finish(),
            Stage::Done => Vec::new(),
        }
    }

    fn merge_seeds(&mut self) -> Vec<Action> {
        let Starts::Seeds { ask, on, weight } = &self.plan.starts else { return Vec::new() };
        let replies = std::mem::take(&mut self.seed_replies).into_values();
        let mut seeds = merge::seeds(replies.map(|reply| reply.seeds), ask.k as usize);
        self.seeds = seeds.len() as u64;
        if self.plan.hops.is_empty() {
            if let Output::Top { top_k, .. } = self.plan.output {
                seeds.truncate(top_k as usize);
            }
            self.hits = seeds.into_iter().map(Hit::seed).collect();
            return self.begin_fetch();
        }
        let column = |key: FactKey| match on {
            SeedOn::Entity => key.entity,
            SeedOn::Target => key.target,
        };
        let starts = seeds.iter().map(|seed| (column(seed.key), seed.distance));
        self.trail = Trail::begin(merge::starts(starts, *weight));
        self.begin_hop(0)
    }

    fn begin_hop(&mut self, hop: usize) -> Vec<Action> {
        if self.trail.is_empty() {
            return self.begin_fetch();
        }
        self.stage = Stage::Hop(hop);
        self.account.hop_begins();
        self.hop_replies.clear();
        self.asked.clear();
        self.asked_whole.clear();
        // Shards ascend by range and the frontier by entity, so each owner has one stretch of it.
        for (position, entity) in self.trail.entities().enumerate() {
            let shard = self.graph.shards[owner(&self.graph.shards, entity)].id;
            self.asked.entry(shard).or_insert(position..position).end = position + 1;
        }
        let shards: Vec<ShardId> = self.asked.keys().copied().collect();
        shards.into_iter().map(|shard| self.ask(shard, Task::Hop)).collect()
    }

    fn merge_middle_hop(&mut self, hop: usize) -> Vec<Action> {
        let starts = self.plan.starts_kept(hop);
        let replies = self.hop_replies.values().map(|reply| &reply.targets[..]);
        let (targets, cut) = merge::targets(replies, starts, self.plan.beam);
        let mut again = Vec::new();
        for (shard, reply) in &self.hop_replies {
            if self.asked_whole.contains(shard) {
                continue;
            }
            let frontier_starts = || self.frontier_starts(*shard);
            let Some(left_out) = LeftOut::of(reply, frontier_starts) else { continue };
            if targets.iter().any(|target| left_out.may_hold_way(target, starts)) {
                again.push(*shard);
                self.account.takes_back_cut(reply.counts.cut_beam);
            }
        }
        if !again.is_empty() {
            self.asked_whole.extend(&again);
            return again.into_iter().map(|shard| self.ask(shard, Task::WholeHop)).collect();
        }
        self.account.cut_beam(cut);
        self.trail.push(targets);
        self.begin_hop(hop + 1)
    }

    /// Distinct starts among what a shard was asked to expand, ascending.
    fn frontier_starts(&self, shard: ShardId) -> Vec<EntityId> {
        let frontier = self.trail.frontier(self.asked.get(&shard).cloned().unwrap_or(0..0));
        let arrivals = frontier.iter().flat_map(|entity| &entity.arrivals);
        arrivals.map(|arrival| arrival.start).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn merge_last_hop(&mut self) -> Vec<Action> {
        let replies = std::mem::take(&mut self.hop_replies).into_values();
        let (steps, score) = match self.plan.output {
            Output::Top { top_k, score } => {
                let parts = replies.map(|reply| reply.facts);
                (merge::best_facts(parts, top_k, score), Some(score))
            }
            Output::Page { limit, .. } => {
                let parts = replies.map(|reply| reply.facts);
                let (steps, more_after) = merge::page(parts, limit, |step| step.key);
                self.more_after = more_after;
                self.note_page_end();
                (steps, None)
            }
            Output::Keys { limit, .. } => {
                let parts = replies.map(|reply| reply.keys);
                (self.keys, self.more_after) = merge::page(parts, limit, |key| *key);
                self.note_page_end();
                return self.begin_fetch();
            }
        };
        let hit = |step: Step| Hit {
            key: step.key,
            score: score.map(|score| merge::step_score(&step, score)),
            path: self.trail.path(step),
        };
        self.hits = steps.into_iter().map(hit).collect();
        self.begin_fetch()
    }

    /// The last page holds all that the hop read, so the bound on that counts; a full page ends
    /// before what the shards behind it read ahead.
    fn note_page_end(&mut self) {
        if self.more_after.is_none() {
            self.account.limit_hop(self.plan.limit_rows);
        }
    }

    fn begin_fetch(&mut self) -> Vec<Action> {
        self.stage = Stage::Fetch;
        self.shown = Shown::wanted(&self.hits, self.plan.with, &self.graph);
        let tasks: Vec<(ShardId, Task)> = self.shown.tasks().collect();
        if tasks.is_empty() {
            return self.finish();
        }
        tasks.into_iter().map(|(shard, task)| self.ask(shard, task)).collect()
    }

    fn finish(&mut self) -> Vec<Action> {
        self.stage = Stage::Done;
        let hits = std::mem::take(&mut self.hits);
        let name_collisions = answer::name_collisions(&hits, &self.shown);
        let results = answer::results(hits, &self.shown, self.plan.with, &self.graph);
        vec![Action::Finish(Box::new(Answer {
            results,
            keys: std::mem::take(&mut self.keys),
            partial: self.account.is_partial(),
            coverage: self.account.coverage(),
            more_after: self.more_after,
            seeds: self.seeds,
            work: std::mem::take(&mut self.account.work),
            indexes: std::mem::take(&mut self.account.indexes),
            name_collisions,
        }))]
    }

    /// The action that asks `shard` for `task`, the same whenever it is repeated.
    fn ask(&mut self, shard: ShardId, task: Task) -> Action {
        self.waiting.insert((shard, task));
        self.account.asked(shard);
        match (task, &self.plan.starts) {
            (Task::Seeds, Starts::Seeds { ask, .. }) => Action::AskSeeds(shard, ask.clone()),
            (Task::Results | Task::Paths, _) => {
                Action::AskRows(shard, task, self.shown.request(shard, task, self.plan.with))
            }
            _ => Action::AskHop(shard, task, self.hop_request(shard, task)),
        }
    }

    fn hop_request(&self, shard: ShardId, task: Task) -> HopRequest {
        let Stage::Hop(number) = self.stage else { unreachable!("hops are asked in hop stages") };
        let hop = &self.plan.hops[number];
        HopRequest {
            frontier: self.trail.frontier(self.asked[&shard].clone()),
            relations: hop.relations.clone(),
            query: self.plan.query.clone(),
            weight: hop.weight,
            filter: self.plan.filter.clone(),
            limit_per_entity: self.plan.limit_per_entity,
            limit_rows: self.plan.limit_rows,
            return_to_start: self.plan.return_to_start,
            output: self.hop_output(number, shard, task),
        }
    }

    fn hop_output(&self, hop: usize, shard: ShardId, task: Task) -> HopOutput {
        if hop + 1 < self.plan.hops.len() {
            let found = self.hop_replies.get(&shard).map_or(0, |reply| reply.counts.targets);
            let whole = u32::try_from(found).unwrap_or(u32::MAX).max(self.plan.beam);
            let beam = if task == Task::WholeHop { whole } else { self.plan.beam };
            return HopOutput::Targets { beam, starts: self.plan.starts_kept(hop) };
        }
        match self.plan.output {
            Output::Top { top_k, score } => HopOutput::Facts { top_k, score },
            // One more than shown tells whether another page follows.
            Output::Page { limit, after } => HopOutput::Page { limit: limit + 1, after },
            Output::Keys { limit, after } => HopOutput::Keys { limit: limit + 1, after },
        }
    }
}
