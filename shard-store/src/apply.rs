//! What a batch of writes does to a state: worked out whole before anything is changed.
//!
//! The outcome depends only on the live facts before the batch and on the batch itself, never on
//! how they are spread over runs, so that every replica and every replay comes to the same reply.

use crate::error::StoreError;
use crate::kernel::norm;
use crate::memtable::MemRow;
use crate::shard::ShardConfig;
use crate::state::State;
use hopbine_proto::call::{WriteOp, WriteReply};
use hopbine_proto::graph::IdKind;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, Fact, FactKey, KeyRange, LogIndex};
use std::collections::BTreeMap;

/// What applying a batch came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// All of it is visible.
    Done(WriteReply),
    /// Nothing of it was done; every replica refuses alike.
    Refused(Box<Problem>),
}

/// Changes that a batch makes.
pub(crate) struct Plan {
    /// Rows to append to the active memtable.
    pub rows: Vec<MemRow>,
    /// Rows that die: the run's place in the state, and the row. Appended rows may be among them.
    pub dying: Vec<(usize, u32)>,
    pub reply: WriteReply,
}

/// Works out what `ops` at log index `index` do to `state`, or why they are refused.
pub(crate) fn plan(
    config: &ShardConfig,
    state: &State,
    index: LogIndex,
    ops: &[WriteOp],
) -> Result<Result<Plan, Problem>, StoreError> {
    if let Err(problem) = check(config, state, ops) {
        return Ok(Err(problem));
    }
    if config.ids == IdKind::Names
        && let Some(problem) = name_collision(state, ops)?
    {
        return Ok(Err(problem));
    }
    let reply = WriteReply { index, ..WriteReply::default() };
    let plan = Plan { rows: Vec::with_capacity(ops.len()), dying: Vec::new(), reply };
    let first_row = state.runs[State::ACTIVE].visible;
    let mut planner = Planner { state, index, first_row, plan, changed: BTreeMap::new() };
    for op in ops {
        match op {
            WriteOp::Upsert(fact) => planner.upsert(fact)?,
            WriteOp::Delete(key) => planner.delete(*key)?,
            WriteOp::DeletePrefix { entity, relation } => {
                let range = match relation {
                    Some(relation) => KeyRange::entity_relation(*entity, *relation),
                    None => KeyRange::entity(*entity),
                };
                planner.delete_range(&range)?;
            }
        }
    }
    let mut plan = planner.plan;
    plan.reply.replaced_versions.sort_unstable();
    Ok(Ok(plan))
}

struct Planner<'s> {
    state: &'s State,
    index: LogIndex,
    first_row: u32,
    plan: Plan,
    /// Keys that the batch has touched: the row that is live now, if any.
    changed: BTreeMap<FactKey, Option<u32>>,
}

impl Planner<'_> {
    /// Kills the live row of `key`, wherever it is; returns its version.
    fn kill(&mut self, key: FactKey) -> Result<Option<LogIndex>, StoreError> {
        let found = match self.changed.get(&key) {
            Some(row) => row.map(|row| (State::ACTIVE, row)),
            None => self.state.find_live(key)?,
        };
        let Some((run, row)) = found else {
            return Ok(None);
        };
        let appended = run == State::ACTIVE && row >= self.first_row;
        let version = if appended { self.index } else { self.state.runs[run].version(row)? };
        self.plan.dying.push((run, row));
        self.plan.reply.replaced_versions.push((key, version));
        Ok(Some(version))
    }

    fn append(&mut self, row: MemRow) -> u32 {
        let number = self.first_row + self.plan.rows.len() as u32;
        self.plan.rows.push(row);
        number
    }

    fn upsert(&mut self, fact: &Fact) -> Result<(), StoreError> {
        if self.kill(fact.key)?.is_some() {
            self.plan.reply.replaced += 1;
        }
        self.plan.reply.upserted += 1;
        let row = self.append(MemRow::fact(fact, self.index, norm));
        self.changed.insert(fact.key, Some(row));
        Ok(())
    }

    fn delete(&mut self, key: FactKey) -> Result<(), StoreError> {
        if self.kill(key)?.is_none() {
            self.plan.reply.not_found += 1;
            self.plan.reply.missing.push(key);
            return Ok(());
        }
        self.plan.reply.deleted += 1;
        let row = self.append(MemRow::tombstone(key, self.index));
        self.plan.dying.push((State::ACTIVE, row));
        self.changed.insert(key, None);
        Ok(())
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), StoreError> {
        let mut live = self.state.live_keys(range)?;
        live.extend(self.changed.keys().copied().filter(|key| range.contains(*key)));
        live.sort_unstable();
        live.dedup();
        for key in live {
            if self.changed.get(&key) != Some(&None) {
                self.delete(key)?;
            }
        }
        Ok(())
    }
}

/// What the door should have refused. Checked again, since a replica must not fall over a log
/// entry: all replicas refuse alike.
fn check(config: &ShardConfig, state: &State, ops: &[WriteOp]) -> Result<(), Problem> {
    for op in ops {
        if !state.range.contains(op.entity()) {
            let detail = format!("entity {} is not of this shard", op.entity());
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        let WriteOp::Upsert(fact) = op else {
            continue;
        };
        if fact.names.is_some() != (config.ids == IdKind::Names) {
            let detail = format!("fact {:?} must have names in a graph of names only", fact.key);
            return Err(Problem::new(Code::InvalidRequest, detail));
        }
        match &fact.embedding {
            None if config.vector_required => {
                let detail = format!("fact {:?} has no embedding", fact.key);
                return Err(Problem::new(Code::InvalidRequest, detail));
            }
            Some(vector) if vector.len() != config.dim as usize => {
                let detail =
                    format!("embedding has {} components, not {}", vector.len(), config.dim);
                return Err(Problem::new(Code::DimensionMismatch, detail));
            }
            Some(vector) if vector.iter().any(|value| !value.is_finite()) => {
                return Err(Problem::new(Code::NotFinite, "embedding is not finite"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Looks for two names of one id: within the batch, and against the live facts of the ids that
/// are entities of this shard. A name known only as the target of another fact is not found here;
/// writing and merging segments looks again.
fn name_collision(state: &State, ops: &[WriteOp]) -> Result<Option<Problem>, StoreError> {
    let mut names: BTreeMap<EntityId, &str> = BTreeMap::new();
    for op in ops {
        let WriteOp::Upsert(fact) = op else {
            continue;
        };
        let Some(own) = &fact.names else {
            continue;
        };
        for (id, name) in [(fact.key.entity, &own.entity), (fact.key.target, &own.target)] {
            if let Some(known) = names.insert(id, name) {
                if known != &**name {
                    return Ok(Some(collision(id, known, name)));
                }
                continue;
            }
            if let Some(known) = state.entity_name(id)?
                && known != *name
            {
                return Ok(Some(collision(id, &known, name)));
            }
        }
    }
    Ok(None)
}

fn collision(id: EntityId, known: &str, new: &str) -> Problem {
    let detail = format!("names {known:?} and {new:?} have the same id {id}");
    Problem::new(Code::NameCollision, detail).hint("change the spelling of one of the two names")
}
