//! From keys and paths to what the user sees: which parts must be fetched, and their assembly.

use super::machine::Task;
use crate::reply::{
    FEWER_RESULTS, FactOut, FactVersion, PathStep, ReplySize, ResultOut, row_text_bytes,
};
use crate::request::{EntityRef, KeyRef, RelationRef, WithParts};
use hopbine_proto::call::{FetchRequest, Row, Seed, Step, With};
use hopbine_proto::graph::{GraphInfo, IdKind};
use hopbine_proto::shard_map::owner;
use hopbine_proto::status::{Code, Problem};
use hopbine_proto::{EntityId, FactKey, Names, RelationId, ShardId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One result before its parts are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The fact.
    pub key: FactKey,
    /// `None` without a question.
    pub score: Option<f64>,
    /// From hop 1 to the fact; empty for a seed fact.
    pub path: Vec<Step>,
}

impl Hit {
    /// A seed fact as a result.
    pub fn seed(seed: Seed) -> Self {
        Self { key: seed.key, score: Some(seed.distance), path: Vec::new() }
    }
}

/// The rows that an answer needs, and those that have come.
#[derive(Debug, Default)]
pub struct Shown {
    wanted: BTreeMap<(ShardId, Task), Vec<FactKey>>,
    rows: HashMap<FactKey, Row>,
    /// Of the rows that have come: each is shown at least once.
    size: ReplySize,
}

impl Shown {
    /// What must be fetched for `hits`: nothing when ids are all that is shown.
    pub fn wanted(hits: &[Hit], with: WithParts, graph: &GraphInfo) -> Self {
        let named = graph.config.ids == IdKind::Names;
        let results = named || with.payload || with.vector || with.version;
        let paths = named || with.path_payloads || with.version;
        let mut keys: BTreeMap<FactKey, Task> = BTreeMap::new();
        if paths {
            let steps = hits.iter().flat_map(|hit| &hit.path);
            keys.extend(steps.map(|step| (step.key, Task::Paths)));
        }
        if results {
            keys.extend(hits.iter().map(|hit| (hit.key, Task::Results)));
        }
        let mut wanted: BTreeMap<(ShardId, Task), Vec<FactKey>> = BTreeMap::new();
        for (key, task) in keys {
            let shard = graph.shards[owner(&graph.shards, key.entity)].id;
            wanted.entry((shard, task)).or_default().push(key);
        }
        Self { wanted, ..Self::default() }
    }

    /// Who must be asked for what.
    pub fn tasks(&self) -> impl Iterator<Item = (ShardId, Task)> {
        self.wanted.keys().copied()
    }

    /// The request for one task.
    pub fn request(&self, shard: ShardId, task: Task, with: WithParts) -> FetchRequest {
        let results = task == Task::Results;
        FetchRequest {
            keys: self.wanted.get(&(shard, task)).cloned().unwrap_or_default(),
            // A result fact is also the last step of its path.
            with: With {
                payload: with.path_payloads || (results && with.payload),
                vector: results && with.vector,
            },
            query: None,
        }
    }

    /// Takes the rows of one task. All must be there: they were read from the same view before.
    /// `payload_too_large` once the rows of all tasks are more than a reply may hold.
    pub fn take(
        &mut self,
        shard: ShardId,
        task: Task,
        rows: Vec<Option<Row>>,
    ) -> Result<(), Problem> {
        let keys = self.wanted.get(&(shard, task)).map_or(&[][..], Vec::as_slice);
        let gone = || {
            let detail = format!("shard {shard} no longer holds the state that this answer saw");
            Problem::new(Code::ShardUnavailable, detail).hint("repeat the request")
        };
        if rows.len() != keys.len() {
            return Err(gone());
        }
        for (key, row) in keys.iter().zip(rows) {
            let row = row.ok_or_else(gone)?;
            self.size.add(row_text_bytes(&row), FEWER_RESULTS)?;
            self.rows.insert(*key, row);
        }
        Ok(())
    }
}

/// Results in the order of `hits`. One whose parts did not come is left out: its shard is among
/// the missing ones.
pub fn results(
    hits: Vec<Hit>,
    shown: &Shown,
    with: WithParts,
    graph: &GraphInfo,
) -> Vec<ResultOut> {
    let writer = Writer::new(shown, with, graph, &hits);
    hits.iter().filter_map(|hit| writer.result(hit)).collect()
}

/// Entities at which a path goes on under another name than it came by: two names of one id.
/// Each with both names, once.
pub fn name_collisions(hits: &[Hit], shown: &Shown) -> Vec<(EntityId, Names)> {
    let names = |step: &Step| shown.rows.get(&step.key)?.fact.names.as_ref();
    let mut found: BTreeMap<EntityId, Names> = BTreeMap::new();
    for pair in hits.iter().flat_map(|hit| hit.path.windows(2)) {
        let Some((before, after)) = names(&pair[0]).zip(names(&pair[1])) else { continue };
        if pair[0].key.target == pair[1].key.entity && before.target != after.entity {
            let both = Names { entity: before.target.clone(), target: after.entity.clone() };
            found.entry(pair[1].key.entity).or_insert(both);
        }
    }
    found.into_iter().collect()
}

/// Turns ids into what users write.
pub struct Namer {
    named: bool,
    relations: HashMap<RelationId, Arc<str>>,
}

impl Namer {
    /// A namer for the facts of `graph`.
    pub fn new(graph: &GraphInfo) -> Self {
        let relations = graph.relations.iter().map(|(name, id)| (*id, name.as_str().into()));
        Self { named: graph.config.ids == IdKind::Names, relations: relations.collect() }
    }

    /// A relation as users write it.
    pub fn relation(&self, id: RelationId) -> RelationRef {
        match self.relations.get(&id) {
            Some(name) if self.named => RelationRef::Name(name.clone()),
            _ => RelationRef::Number(id.0.into()),
        }
    }

    /// A key as users write it; `None` when names are needed and not known.
    pub fn key(&self, key: FactKey, names: Option<&Names>) -> Option<KeyRef> {
        let (entity, target) = match (self.named, names) {
            (false, _) => (EntityRef::Number(key.entity.0), EntityRef::Number(key.target.0)),
            (true, Some(names)) => {
                (EntityRef::Name(names.entity.clone()), EntityRef::Name(names.target.clone()))
            }
            (true, None) => return None,
        };
        Some(KeyRef { entity, relation: self.relation(key.relation), target })
    }

    /// A row as users see it; `None` when names are needed and not known.
    pub fn fact(&self, row: &Row, with: WithParts, graph: &GraphInfo) -> Option<FactOut> {
        let key = row.fact.key;
        let version = || {
            let shard = &graph.shards[owner(&graph.shards, key.entity)];
            FactVersion { shard: shard.id, epoch: shard.epoch, index: row.version }
        };
        Some(FactOut {
            id: key,
            key: self.key(key, row.fact.names.as_ref())?,
            embedding: row.fact.embedding.clone().filter(|_| with.vector),
            payload: row.fact.payload.clone().filter(|_| with.payload),
            version: with.version.then(version),
        })
    }
}

struct Writer<'a> {
    shown: &'a Shown,
    with: WithParts,
    graph: &'a GraphInfo,
    namer: Namer,
}

impl<'a> Writer<'a> {
    fn new(shown: &'a Shown, with: WithParts, graph: &'a GraphInfo, hits: &[Hit]) -> Self {
        // Without results no name is needed, and a graph may know many.
        let nameless = || Namer { named: false, relations: HashMap::new() };
        let namer = if hits.is_empty() { nameless() } else { Namer::new(graph) };
        Self { shown, with, graph, namer }
    }

    fn result(&self, hit: &Hit) -> Option<ResultOut> {
        let step_with = WithParts { payload: self.with.path_payloads, vector: false, ..self.with };
        let mut path = Vec::with_capacity(hit.path.len());
        for step in &hit.path {
            let fact = self.fact(step.key, step_with)?;
            path.push(PathStep { fact, distance: step.distance });
        }
        Some(ResultOut { distance: hit.score, fact: self.fact(hit.key, self.with)?, path })
    }

    fn fact(&self, key: FactKey, with: WithParts) -> Option<FactOut> {
        let nothing_fetched = FactOut {
            id: key,
            key: KeyRef {
                entity: EntityRef::Number(key.entity.0),
                relation: self.namer.relation(key.relation),
                target: EntityRef::Number(key.target.0),
            },
            embedding: None,
            payload: None,
            version: None,
        };
        match self.shown.rows.get(&key) {
            Some(row) => self.namer.fact(row, with, self.graph),
            None if self.namer.named || with.payload || with.vector || with.version => None,
            None => Some(nothing_fetched),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopbine_proto::{Fact, LogIndex};

    #[test]
    fn rows_of_several_shards_are_refused_as_soon_as_they_are_too_large_together() {
        let shards = [ShardId(1), ShardId(2)];
        let keys = [FactKey::new(1, 1, 2), FactKey::new(9, 1, 3)];
        let wanted = shards.iter().zip(keys).map(|(id, key)| ((*id, Task::Results), vec![key]));
        let mut shown =
            Shown { wanted: wanted.collect(), size: ReplySize::up_to(1_000), ..Shown::default() };
        let rows = |key| {
            let (_, mut row) = row(key, "a", "b");
            row.fact.payload = Some("7".repeat(600).as_str().into());
            vec![Some(row)]
        };
        assert_eq!(shown.take(shards[0], Task::Results, rows(keys[0])), Ok(()));
        let refused = shown.take(shards[1], Task::Results, rows(keys[1])).expect_err("too large");
        assert_eq!(refused.code, Code::PayloadTooLarge);
        assert_eq!(shown.rows.len(), 1);
    }

    fn row(key: FactKey, entity: &str, target: &str) -> (FactKey, Row) {
        let names = Some(Names { entity: entity.into(), target: target.into() });
        let fact = Fact { key, names, embedding: None, payload: None };
        (key, Row { fact, version: LogIndex(1), distance: None })
    }

    #[test]
    fn an_entity_left_under_another_name_than_it_was_reached_by_is_told_once() {
        let (first, second) = (FactKey::new(1, 1, 2), FactKey::new(2, 1, 3));
        let step = |key| Step { key, distance: None, prefix: 0.0, start: EntityId(1), tie: 0 };
        let hit = Hit { key: second, score: None, path: vec![step(first), step(second)] };
        let hits = [hit.clone(), hit];
        let shown = |of_second| Shown {
            rows: HashMap::from([row(first, "a", "b"), row(second, of_second, "c")]),
            ..Shown::default()
        };
        assert_eq!(name_collisions(&hits, &shown("b")), []);
        let both = Names { entity: "b".into(), target: "x".into() };
        assert_eq!(name_collisions(&hits, &shown("x")), [(EntityId(2), both)]);
        assert_eq!(name_collisions(&hits, &Shown::default()), [], "a graph of numbers");
    }
}
